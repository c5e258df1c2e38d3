"""What to look for along a solution: zeros of functions of time and state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepnet.c_functions import check_function
from stepnet.records import MOST_COUNT


@dataclass(frozen=True)
class Event:
    """A zero of g(t, y, *args) (g(t, q, p, *args) for partitioned problems) where its sign changes.

    Every step is looked at in eight equal parts.  Two zeros in one of them are found by the minimum of |g| between, if
    it is the only one there (`max_step` makes the parts shorter).  Where g only touches zero there is no change of
    sign: `touch` finds that, too.

    Parameters
    ----------
    fun : callable or C function
        g, returning one number; it may be compiled, so it must not have side effects.
    direction : int
        1 for zeros where g grows, -1 where it falls, 0 for both.
    terminal : bool or int
        Stop at the first zero, or at this many.
    reset : callable, optional
        `reset(t, y, *args)` returns the state to go on with after each zero; plain Python.  Events that accumulate at
        a time, as the bounces of a ball, end the run there with `Status.EVENTS_ACCUMULATE`.
    at_start : bool
        Whether a zero at the very beginning counts, if g leaves it in the wanted direction; SciPy's do.
    touch : float
        Also count where |g| has a minimum of at most this without a change of sign, which rounding and the error of
        the solution would decide; `direction` is that in which g comes to zero.
    """

    fun: Callable
    direction: int = 0
    terminal: bool | int = False
    reset: Callable | None = None
    at_start: bool = False
    touch: float = 0.0

    def __post_init__(self):
        check_function("fun", self.fun, " of an event")
        if not isinstance(self.direction, (int, float, np.number)) or self.direction not in (-1, 0, 1):
            raise ValueError(f"`direction` of an event must be -1, 0 or 1, found {self.direction!r:.60}")
        if not isinstance(self.terminal, (bool, int)) or not 0 <= self.terminal <= MOST_COUNT:
            raise ValueError(
                f"`terminal` of an event must be a boolean or a count of at most 2**62, found {self.terminal!r:.60}"
            )
        is_number = isinstance(self.touch, (int, float)) and not isinstance(self.touch, bool)
        if not is_number or not 0.0 <= self.touch <= sys.float_info.max:
            raise ValueError(f"`touch` of an event must be a number, how near to zero counts, found {self.touch!r:.60}")
        if self.reset is not None and not callable(self.reset):
            raise TypeError(f"`reset` of an event must be a function, found {type(self.reset).__name__}")
        if self.reset is not None and self.terminal:
            raise ValueError("an event cannot both stop the run (`terminal`) and go on with a new state (`reset`)")
