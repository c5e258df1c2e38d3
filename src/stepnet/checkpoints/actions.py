"""Actions, the entries of a schedule."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Kind(IntEnum):
    """What an action does.  State k is the one before step k; one state is current, except after a reversal."""

    ADVANCE = 0
    """Run the steps start..stop from the current state `start`; then `stop` is current."""
    KEEP = 1
    """Copy the current state `start` into the free slot; it stays current."""
    RESTORE = 2
    """Make the state `start` of the slot current; the slot keeps it."""
    REVERSE = 3
    """Reverse the step start..stop from the current state `start`, including its forward evaluation."""
    DROP = 4
    """Free the slot, which holds state `start` or the stages of the step that begins there."""
    KEEP_STEP = 5
    """Run the step start..stop from the current state and keep its stages in the free slot; `stop` is current."""
    REVERSE_KEPT = 6
    """Reverse the step start..stop from its stages in the slot; no current state, no forward evaluation."""


KINDS = tuple(Kind)
PHRASES = (
    "advance {1} -> {2}",
    "keep {1} in slot {3}",
    "restore {1} from slot {3}",
    "reverse {2} -> {1}",
    "drop {1} from slot {3}",
    "advance {1} -> {2}, its stages in slot {3}",
    "reverse {2} -> {1} by the stages in slot {3}",
)
COLUMNS = ("kind", "start", "stop", "slot")
ROW = np.dtype([(name, np.int64) for name in COLUMNS])


class Action(NamedTuple):
    """One row of a schedule; `start == stop` for Keep, Restore and Drop, `slot` is -1 for Advance and Reverse.

    Parameters
    ----------
    kind : Kind
        Advance, Keep, Restore, Reverse or Drop.
    start, stop : int
        The range of steps.
    slot : int
        The slot that is used.

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> [action.kind.name for action in checkpoints.binomial(2, 1)][:3]
    ['KEEP', 'ADVANCE', 'REVERSE']
    """

    kind: Kind
    start: int
    stop: int
    slot: int

    def __str__(self) -> str:
        return PHRASES[self.kind].format(*self)
