"""What a step depends on besides its arguments: random numbers still to be drawn, and the choices of autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

Draws = tuple[Tensor, Tensor | None]


def is_transformed() -> bool:
    """Whether anything but reverse autograd looks at the tensors: `torch.func`, or forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_written_down() -> bool:
    """Whether the operations themselves are recorded, for other processes: `torch.export`, or `torch.jit.trace`."""
    return torch.jit.is_tracing() or torch.compiler.is_exporting()


def random_state(device: torch.device) -> Draws:
    """Of the generators of the host and of the device."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(device: torch.device, draws: Draws) -> None:
    """So that the same numbers are drawn again."""
    host, other = draws
    torch.set_rng_state(host)
    if other is not None:
        torch.cuda.set_rng_state(other, device)


class Surroundings(NamedTuple):
    """Those of a run at its beginning."""

    device: torch.device
    draws: Draws
    autocast_dtype: torch.dtype | None

    @classmethod
    def here(cls, device: torch.device) -> Surroundings:
        kind = device.type
        is_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        return cls(device, random_state(device), torch.get_autocast_dtype(kind) if is_autocast else None)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As they were; afterwards as they are now."""
        after = random_state(self.device)
        set_random_state(self.device, self.draws)
        try:
            with self._autocast():
                yield
        finally:
            set_random_state(self.device, after)

    def _autocast(self):
        kind = self.device.type
        if not torch.amp.is_autocast_available(kind):
            return nullcontext()
        return torch.autocast(kind, self.autocast_dtype, self.autocast_dtype is not None)
