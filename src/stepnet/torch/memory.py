"""What `memory` may be."""

from __future__ import annotations

from stepnet.checkpoints import Checkpoints

NAMES = ("auto", "all", "reversible", "continuous")


def validate_memory(memory) -> str | Checkpoints:
    """A name or `Checkpoints`; a number is one of bytes."""
    if isinstance(memory, str) and memory in NAMES:
        return memory
    if isinstance(memory, Checkpoints) and memory.disk is None:
        return memory
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return Checkpoints(bytes=memory)
    raise ValueError(
        f"`memory` must be one of {', '.join(map(repr, NAMES))}, a number of bytes or `Checkpoints` without `disk`, "
        f"found {memory!r:.60}"
    )
