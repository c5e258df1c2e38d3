"""Layouts: channels as the first or the last axis of a sample.

Internally, a sample is a flat vector, channel by channel.  For users it is an array of the shape given by its layout,
or that array flattened.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from stepnet.errors import UnknownName

if TYPE_CHECKING:
    from typing import TypeVar

    import numpy as np
    import torch

    Batch = TypeVar("Batch", np.ndarray, torch.Tensor)

NAMES = ("channels_first", "channels_last")
SPACE = {2: ("nodes",), 3: ("height", "width")}


@dataclass(frozen=True)
class Layout:
    """The axes of a sample, and how users order them.

    Parameters
    ----------
    axes : tuple of int
        Channels first: (channels, nodes), (channels, height, width); (features,) if there is one axis only.
    name : "channels_first" or "channels_last"
    """

    axes: tuple[int, ...]
    name: str = "channels_first"

    @property
    def size(self) -> int:
        return prod(self.axes)

    @property
    def is_moved(self) -> bool:
        """Whether the user's order differs from the internal one."""
        return self.name == "channels_last" and len(self.axes) > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample for users."""
        return (*self.axes[1:], self.axes[0]) if self.is_moved else self.axes

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether a sample may have this shape: as in the layout, flat, or without a single channel."""
        if len(self.axes) == 1:
            return len(shape) >= 1 and prod(shape) == self.size
        return shape in (self.shape, (self.size,)) or (self.axes[0] == 1 and shape == self.axes[1:])

    def flatten(self, batch: Batch) -> Batch:
        """`(batch, size)` channel by channel, from an array or a tensor of admitted samples."""
        n = batch.shape[0]
        if self.is_moved:
            batch = batch.reshape(n, self.size // self.axes[0], self.axes[0]).swapaxes(1, 2)
        return batch.reshape(n, self.size)

    def restore(self, flat: Batch, shape: tuple[int, ...] | None = None) -> Batch:
        """The inverse of `flatten`: a batch of some shape, flat by default, from `(batch, size)` channel by channel."""
        n = flat.shape[0]
        if self.is_moved:
            flat = flat.reshape(n, self.axes[0], self.size // self.axes[0]).swapaxes(1, 2).reshape(n, self.size)
        return flat if shape is None else flat.reshape(shape)

    def explain(self, found: tuple[int, ...]) -> str:
        """What is expected instead of a batch of this shape, for samples of several axes."""
        names = ("channels", *SPACE.get(len(self.axes), ("...",)))
        if self.is_moved:
            names = (*names[1:], names[0])
        other = Layout(self.axes, NAMES[self.name == "channels_first"])
        hint = f"; for this order of axes give `layout`={other.name!r}" if found[1:] == other.shape else ""
        return (
            f"must have the shape {_describe(self.shape)}, that is {_describe(names)}, or be flat in that order, "
            f"{_describe((self.size,))}, found the shape {found}{hint}"
        )


def _describe(axes: tuple[Any, ...]) -> str:
    return f"(batch, {', '.join(map(str, axes))})"


def validate_layout(name: str) -> str:
    """Return the name of a layout; refuse an unknown one."""
    if not isinstance(name, str) or name not in NAMES:
        raise UnknownName("layout", name, NAMES)
    return name
