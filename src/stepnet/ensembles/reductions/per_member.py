"""Reductions with a value per member: states, basin, escape time, or the result of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepnet.ensembles.reductions.reduction import STATUSES, Arrays, Chunk
from stepnet.records import MOST_COUNT, show_fields
from stepnet.solution import Status
from stepnet.validation import array, arrays, check, function, having, optional, real, sequence, whole

BLOWN_UP = [STATUSES.index(status) for status in (Status.NOT_FINITE, Status.STEP_TOO_SMALL)]


class Ends(NamedTuple):
    """States (*grid, times, *state) and, in the shape of the grid, the end time, status and steps of each member.

    `status` is the index of a member's status in `tuple(stepnet.Status)`; 0 means the end was reached.

    Parameters
    ----------
    y : ndarray
        States (*grid, times, *state).
    t_end : ndarray
        End time of each member.
    status : ndarray
        Index of each member's status in `tuple(stepnet.Status)`.
    steps : ndarray
        Steps of each member.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.sweep(problem, "rk4", {"y0[0]": [1.0, 2.0]}, steps=5).result.steps
    array([5, 5])
    """

    y: np.ndarray
    t_end: np.ndarray
    status: np.ndarray
    steps: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True)
class States:
    """All states, as returned by `solve_ensemble`; the default of a sweep.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> sn.sweep(problem, "rk4", {"y0[0]": [1.0, 3.0]}, reduce=sn.reductions.States(), steps=2).result.y.shape
    (2, 1, 1)
    """

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        found = chunk.solution
        return {"y": found.y, "t_end": found.t_end, "status": chunk.statuses, "steps": found.accepted + found.rejected}

    @check(whole=arrays(*Ends._fields))
    def result(self, whole: Arrays) -> Ends:
        return Ends(**whole)


@check(function=function)
@dataclass(frozen=True)
class Rows:
    """The result of a function of the `EnsembleSolution` of some members: an array with one row per member.

    Parameters
    ----------
    function : callable
        A function of the `EnsembleSolution` of some members.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> squares = sn.reductions.Rows(lambda solution: solution.y[:, -1, 0] ** 2)
    >>> sn.sweep(problem, "rk4", {"y0[0]": [1.0, 3.0]}, reduce=squares, steps=2).result
    array([1., 9.])
    """

    function: Callable[..., Any]

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        rows = np.asarray(self.function(chunk.solution))
        if rows.ndim == 0 or len(rows) != chunk.count:
            raise ValueError(
                f"`function` must return one row for every member, {chunk.count} of them, found the shape {rows.shape}"
            )
        return {"rows": rows}

    @check(whole=arrays("rows"))
    def result(self, whole: Arrays) -> np.ndarray:
        return whole["rows"]


@check(attractors=array(None, None), tolerance=real("(0, inf)"), entries=optional(sequence(whole(-MOST_COUNT))))
@dataclass(frozen=True, eq=False)
class Basins:
    """The index of the attractor nearest to a member's end state if it is within `tolerance`, otherwise -1.

    `attractors` (attractors, entries) are compared with the flat end states, or with those `entries` of them.

    Parameters
    ----------
    attractors : ndarray
        States (attractors, entries).
    tolerance : float
        Largest distance from an attractor.
    entries : tuple of int, optional
        Which entries of the end states are compared; by default all.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.ODE(lambda t, y: y - y**3, [0.5], (0.0, 20.0))
    >>> basins = sn.reductions.Basins([[-1.0], [1.0]], 0.1)
    >>> sn.sweep(problem, "dopri5", {"y0[0]": [-0.5, 0.5]}, reduce=basins).result.tolist()
    [0, 1]
    """

    attractors: np.ndarray
    tolerance: float
    entries: tuple[int, ...] | None = None

    __repr__ = show_fields

    def __post_init__(self) -> None:
        attractors = np.array(self.attractors, float)
        if not len(attractors) or not np.isfinite(attractors).all():
            raise ValueError(
                f"`attractors` must be finite numbers (attractors, entries), found {self.attractors!r:.80}"
            )
        object.__setattr__(self, "attractors", attractors)

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        ends = chunk.solution.y_end.reshape(chunk.count, -1)
        n, width = ends.shape[1], self.attractors.shape[1]
        entries = range(n) if self.entries is None else self.entries
        if len(entries) != width or not all(-n <= i < n for i in entries):
            raise ValueError(
                f"`attractors` must have one number for each of the entries compared, {len(entries)} of {n}; "
                f"found {width}"
            )
        with np.errstate(over="ignore"):  # of members that failed
            distance = np.linalg.norm(ends[:, None, list(entries)] - self.attractors, axis=2)
        distance[~chunk.solution.success] = np.inf
        nearest = distance.argmin(axis=1)
        is_near = distance[np.arange(chunk.count), nearest] <= self.tolerance
        return {"label": np.where(is_near, nearest, -1).astype(np.int32)}

    @check(whole=arrays("label"))
    def result(self, whole: Arrays) -> np.ndarray:
        return whole["label"]


@check(radius=optional(real("(0, inf)")), condition=optional(function))
@dataclass(frozen=True)
class EscapeTimes:
    """The first of the times `save_at` at which a member is outside; infinite if there is none.

    Outside is where |y| > `radius`, or where `condition(t, y)` is True: a function of times (members, times) and states
    (members, times, *state).  A member that blows up is outside from the first time that it does not reach; for one
    that stopped for another reason while inside, the time is NaN.

    Parameters
    ----------
    radius : float, optional
        Outside is where |y| is larger.
    condition : callable, optional
        `condition(t, y)`, instead of `radius`.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: y, [1.0], (0.0, 2.0))
    >>> escape = sn.reductions.EscapeTimes(radius=5.0)
    >>> sn.sweep(problem, "rk4", {"y0[0]": [0.1, 1.0]}, reduce=escape, steps=50, save_at=[0.0, 1.0, 2.0]).result
    array([inf,  2.])
    """

    radius: float | None = None
    condition: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if (self.radius is None) == (self.condition is None):
            raise ValueError("give either `radius` or `condition`")

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        if chunk.options.get("save_at") is None:
            raise ValueError("`EscapeTimes` tests members at the times of `save_at`, but there is none; give `save_at`")
        found = chunk.solution
        times = np.arange(found.t.shape[1])
        was_reached = times < found.saved[:, None]
        is_outside = was_reached & self._is_outside(found.t, found.y)
        is_outside |= ~was_reached & np.isin(chunk.statuses, BLOWN_UP)[:, None]
        first = np.where(is_outside.any(axis=1), is_outside.argmax(axis=1), -1)
        never = np.where(found.success, np.inf, np.nan)
        return {"time": np.where(first >= 0, found.t[np.arange(chunk.count), first], never)}

    def _is_outside(self, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self.condition is None:
            with np.errstate(over="ignore"):  # which is outside
                return np.linalg.norm(y.reshape(*t.shape, -1), axis=2) > self.radius
        outside = np.asarray(self.condition(t, y))
        if outside.shape != t.shape or outside.dtype != bool:
            raise ValueError(
                f"`condition` must return an array of True and False of the shape (members, times) = {t.shape}, "
                f"found {outside.dtype} {outside.shape}"
            )
        return outside

    @check(whole=arrays("time"))
    def result(self, whole: Arrays) -> np.ndarray:
        return whole["time"]
