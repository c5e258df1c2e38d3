"""Memory budgets of gradients, and the validation of memory policies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepnet.records import validate_count

AUTOMATIC_BYTES = 2**28  # what "auto" may store
LAYER_MEMORIES = ("auto", "all", "segments", "reversible")  # names of policies for the layers of nets


@dataclass(frozen=True)
class Checkpoints:
    """A number of states or of bytes in memory; with `disk`, further states are written to files in a directory.

    Parameters
    ----------
    slots : int, optional
        Maximum number of states in memory, including the initial one.
    bytes : int, optional
        Memory for stored states, instead of `slots`.
    disk : path, optional
        A directory for states that do not fit into memory.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.gradient(problem, "rk4", lambda y: y[0], steps=100, memory=sn.Checkpoints(slots=5)).y0.round(6)
    array([0.367879])
    """

    slots: int | None = None
    bytes: int | None = None
    disk: Path | None = None

    def __post_init__(self) -> None:
        if (self.slots is None) == (self.bytes is None):
            found = "neither" if self.slots is None else f"slots={self.slots!r} and bytes={self.bytes!r}"
            raise ValueError(f"`Checkpoints` takes either `slots` or `bytes`, found {found}")
        for name in ("slots", "bytes"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, validate_count(name, value, 1))
        if self.disk is not None:
            object.__setattr__(self, "disk", _check_directory(self.disk))

    def slots_for(self, bytes_per_state: int) -> int:
        """The number of states that fit into memory."""
        size = validate_count("bytes_per_state", bytes_per_state, 1)
        if self.bytes is None:
            return self.slots  # type: ignore[return-value]
        if self.bytes < size:
            raise ValueError(f"`bytes` must hold at least one state of {size} bytes, found {self.bytes}")
        return self.bytes // size


Memory = str | Checkpoints
"""The memory policy of a gradient: a name such as "all", or how many states or bytes."""


def validate_memory(memory: Any, names: Iterable[str], may_use_disk: bool = False) -> Memory:
    """Return the argument `memory`: a known name, or `Checkpoints`, also built from a number of bytes."""
    if isinstance(memory, str) and memory in names:
        return memory
    if isinstance(memory, Checkpoints) and (may_use_disk or memory.disk is None):
        return memory
    if not isinstance(memory, (str, Checkpoints)):
        with suppress(TypeError, ValueError):
            return Checkpoints(bytes=memory)
    raise ValueError(
        f"`memory` must be one of {', '.join(map(repr, names))}, a number of bytes or `Checkpoints`"
        f"{'' if may_use_disk else ' without `disk`'}, found {memory!r:.60}"
        f"{'; leave out `disk`' if isinstance(memory, Checkpoints) else ''}"
    )


def require_undoable(can_undo: bool, name: str) -> None:
    """Refuse `memory="reversible"` for steps that cannot be inverted; `name` is that of their scheme."""
    if not can_undo:
        raise ValueError(
            f'`memory`="reversible" needs invertible steps, such as those of a splitting scheme, not {name!r}; '
            f"use `Checkpoints` instead"
        )


def _check_directory(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"`disk` must be the path of a directory, found {value!r:.80} ({type(value).__name__})")
    path = Path(value).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"`disk` must be the path of a directory, but {str(path)!r} is a file")
    return path
