"""How much memory a gradient may take: a user's choice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stepnet.records import validate_count


@dataclass(frozen=True)
class Checkpoints:
    """A number of states or of bytes in memory; with `disk`, states beyond that go to files in a directory.

    Parameters
    ----------
    slots : int, optional
        States that may be kept in memory at one time, the initial one included.
    bytes : int, optional
        Memory for kept states, instead of `slots`.
    disk : path, optional
        A directory for states that memory has no room for.
    """

    slots: int | None = None
    bytes: int | None = None
    disk: Path | None = None

    def __post_init__(self):
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


def _check_directory(value) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"`disk` must be the path of a directory, found {value!r:.80} ({type(value).__name__})")
    path = Path(value).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"`disk` must be the path of a directory, but {str(path)!r} is a file")
    return path
