"""Poincare sections: the states at which a solution crosses a surface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.events import Event
from stepnet.problem import Problem
from stepnet.records import show_fields
from stepnet.solving.integrate import solve
from stepnet.stability.first_order import DETERMINISTIC
from stepnet.validation import check, function, real, whole


@dataclass(frozen=True, repr=False, eq=False)
class PoincareSection:
    """Crossings of a surface.

    Parameters
    ----------
    times : array (crossings,)
    points : array (crossings, n)
        The flat states.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> sn.stability.PoincareSection(np.array([0.0, 1.5]), np.zeros((2, 3))).return_times.tolist()
    [1.5]
    """

    times: np.ndarray
    points: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def return_times(self) -> np.ndarray:
        """The times between crossings."""
        return np.diff(self.times)


@check(problem=DETERMINISTIC, section=function, direction=whole(-1, 1), transient=real("[0, inf)"))
def poincare_section(
    problem: Problem, section: Callable[..., Any], scheme: Any = None, *, direction: int = 1, transient: float = 0.0,
    **options: Any,
) -> PoincareSection:  # fmt: skip
    """Solve a problem and collect the states on the surface section(t, y, *args) = 0, located as events.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    section : callable
        `section(t, y, *args)`, of partitioned states `section(t, q, p, *args)`, whose zeros are the surface.
    scheme : str or scheme, optional
    direction : int, optional
        1 for crossings where `section` increases, -1 where it decreases, 0 for both.
    transient : float, optional
        Crossings in this time at the beginning are left out.
    **options
        Options of `solve`, such as `steps`, `rtol` and `atol`.

    Returns
    -------
    PoincareSection

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> circle = sn.ODE(lambda t, y: [y[1], -y[0]], [0.0, 1.0], (0.0, 20.0))
    >>> found = sn.stability.poincare_section(circle, lambda t, y: y[0], "dop853", rtol=1e-10, atol=1e-10)
    >>> found.return_times.round(6).tolist(), found.points[0].round(6).tolist()
    ([6.283185, 6.283185], [0.0, 1.0])
    """
    event = Event(section, direction=direction)
    solution = solve(problem, scheme, events=event, save_every=0, **options)
    times, states = np.asarray(solution.t_events[0]), np.asarray(solution.y_events[0])
    late = np.abs(times - problem.t_span[0]) >= transient
    return PoincareSection(times[late], states.reshape(len(times), problem.initial.size)[late])
