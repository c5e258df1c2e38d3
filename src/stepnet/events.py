"""Events: zeros of functions of time and state, located during a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.c_functions import check_function
from stepnet.records import MOST_COUNT


@dataclass(frozen=True)
class Event:
    """A zero of g(t, y, *args) (g(t, q, p, *args) for partitioned problems) where its sign changes.

    A path of an `SDE` crosses a level infinitely often, so that its events must be `terminal`: they find its first
    exit from the domain where g has its initial sign.

    Each step is searched in eight equal parts.  Two zeros in one part are found from the minimum of |g| between them,
    if it is the only one there (a smaller `max_step` makes the parts shorter).  Zeros without a change of sign are
    found with `touch`.

    Parameters
    ----------
    fun : callable or C function
        g, returning one number; it may be compiled, so it must not have side effects.
    direction : int
        1 for zeros where g increases, -1 where it decreases, 0 for both.
    terminal : bool or int
        True stops the run at the first zero, a number at that many zeros.
    reset : callable, optional
        `reset(t, y, *args)` returns the state that replaces y at each zero; it is called in Python.  Events that
        accumulate at a time, like the bounces of a ball, end the run there with `Status.EVENTS_ACCUMULATE`.
    at_start : bool
        Whether a zero at the initial time counts, if g leaves it in the given direction; in SciPy it does.
    touch : float
        Also count minima of |g| up to this value without a change of sign, where rounding and the error of the solution
        decide whether g crosses zero; `direction` is that in which g approaches zero.
    bridge : bool
        For an `SDE`: whether a path that is on one side before and after a step may have been on the other in between,
        with the probability of a Brownian bridge.  Without it the bias of exit times decreases like sqrt(h) only.

    Examples
    --------
    >>> import stepnet as sn
    >>> ball = sn.ODE(lambda t, y: [y[1], -9.81], [10.0, 0.0], (0.0, 5.0))
    >>> landing = sn.Event(lambda t, y: y[0], direction=-1, terminal=True)
    >>> sn.solve(ball, "dopri5", events=landing).t_events[0].round(4)
    array([1.4278])
    """

    fun: Callable[..., Any]
    direction: int = 0
    terminal: bool | int = False
    reset: Callable[..., Any] | None = None
    at_start: bool = False
    touch: float = 0.0
    bridge: bool = True

    def __post_init__(self) -> None:
        check_function("fun", self.fun, " of an event")
        if not isinstance(self.direction, (int, float, np.number)) or self.direction not in (-1, 0, 1):
            raise ValueError(f"`direction` of an event must be -1, 0 or 1, found {self.direction!r:.60}")
        if not isinstance(self.terminal, (bool, int)) or not 0 <= self.terminal <= MOST_COUNT:
            raise ValueError(
                f"`terminal` of an event must be a boolean or a count of at most 2**62, found {self.terminal!r:.60}"
            )
        if not isinstance(self.bridge, (bool, np.bool_)):
            raise TypeError(f"`bridge` of an event must be True or False, found {self.bridge!r:.60}")
        is_number = isinstance(self.touch, (int, float)) and not isinstance(self.touch, bool)
        if not is_number or not 0.0 <= self.touch <= sys.float_info.max:
            raise ValueError(
                f"`touch` of an event must be a number, the largest |g| that counts, found {self.touch!r:.60}"
            )
        if self.reset is not None and not callable(self.reset):
            raise TypeError(f"`reset` of an event must be a function, found {type(self.reset).__name__}")
        if self.reset is not None and self.terminal:
            raise ValueError("an event cannot both stop the run (`terminal`) and continue from a new state (`reset`)")
