"""Multigrid reduction in time: all intervals of a run in parallel, corrected by runs with few long steps.

u_(k+1) = Phi_k(u_k) + g_(k+1) is solved at points m steps apart.  An iteration propagates over all intervals in
parallel, and a coarser level with steps m times as long, whose source is the difference of the two propagations,
transports the correction (full approximation scheme).  Falgout et al. (2014), SIAM J. Sci. Comput. 36:C635; for layers
of nets Guenther et al. (2020), SIAM J. Math. Data Sci. 2:1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from stepnet.errors import UnknownName
from stepnet.records import format_value, validate_count, validate_number
from stepnet.validation import check, whole

ROUNDING = 1e-14  # smaller residuals are rounding and are not used for the factor
REACHABLE = 32  # unit roundoffs: the attainable residual is a few of them

Advance = Callable[[int, int, int, Any], Any]
"""advance(level, first, count, state): the state `count` steps after step `first` of a level."""
Carrier = Callable[..., Sequence[Any]]
"""carrier(function, *lists): the values of a function at all entries of some lists, in order."""


def _precision(name: str, value: Any) -> np.dtype:
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a floating-point type, found {value!r:.60}") from None
    if dtype.kind != "f":
        raise TypeError(f"`{name}` must be a floating-point type, found {dtype}")
    return dtype


@dataclass(frozen=True)
class MGRIT:
    """The parameters of multigrid reduction in time.

    Parameters
    ----------
    coarsening : int
        Steps in an interval, and the ratio of step sizes of consecutive levels.
    levels : int
        Number of levels, at least two.
    relaxation : "FCF" or "F"
        Two propagations over all intervals per iteration, or one.
    iterations : int
        Maximum number of iterations.
    tolerance : float
        Tolerance of the residual, relative to the states.  It is raised to 32 unit roundoffs of the net's precision if
        it is smaller; 0 performs all iterations.

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.MGRIT(coarsening=2, levels=3).relaxation
    'FCF'
    """

    coarsening: int = 4
    levels: int = 2
    relaxation: str = "FCF"
    iterations: int = 20
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        for name, least in (("coarsening", 2), ("levels", 2), ("iterations", 1)):
            object.__setattr__(self, name, validate_count(name, getattr(self, name), least))
        if not isinstance(self.relaxation, str) or self.relaxation not in ("F", "FCF"):
            raise UnknownName("relaxation", self.relaxation, ("F", "FCF"))
        object.__setattr__(self, "tolerance", validate_number("tolerance", self.tolerance, "[0, inf)"))

    @check(dtype=_precision)
    def within(self, dtype: np.dtype) -> MGRIT:
        """The same with a tolerance attainable in this precision."""
        least = REACHABLE * float(np.finfo(dtype).eps) if self.tolerance else 0.0
        return replace(self, tolerance=max(self.tolerance, least))

    @check(count=whole(1))
    def steps(self, count: int) -> list[int]:
        """The number of steps on each level."""
        least = self.coarsening ** (self.levels - 1)
        if count % least:
            raise ValueError(
                f"`mgrit` with coarsening {self.coarsening} on {self.levels} levels needs a multiple of {least} steps "
                f"in every block, found {count}; change `coarsening`, `levels` or the steps"
            )
        return [count // self.coarsening**level for level in range(self.levels)]


@dataclass(frozen=True)
class Convergence:
    """The convergence history of an iteration.

    Parameters
    ----------
    residuals : tuple of float
        |P(u) - u| / |P(u)| over the points between intervals, P the propagation over all of them, at first for the run
        on the last level and then after each iteration.
    is_converged : bool
        Whether the last of them is within the tolerance.
    sequential_steps : int
        Steps of any level that depend on each other: those within one interval do, those of different intervals do not.
    steps : int
        The same number in a serial run.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=16)
    >>> nets.mgrit_forward(net, [[1.0, 2.0]]).convergence[0].is_converged
    True
    """

    residuals: tuple[float, ...]
    is_converged: bool
    sequential_steps: int
    steps: int

    @property
    def iterations(self) -> int:
        return len(self.residuals) - 1

    @property
    def factor(self) -> float:
        """The mean reduction factor of the residual per iteration, down to rounding; NaN without an iteration."""
        counted = [r for r in self.residuals if r > ROUNDING]
        if len(counted) < 2:
            return float("nan")
        return float((counted[-1] / counted[0]) ** (1 / (len(counted) - 1)))


class Multigrid:
    """The iteration, for any states with addition and any carrier.

    Parameters
    ----------
    mgrit : MGRIT
    steps : int
    advance : Advance
        Called for whole intervals on level 0, for single steps on the others.
    carrier : Carrier
    norm : callable
        The norm of a state.
    """

    def __init__(self, mgrit: MGRIT, steps: int, advance: Advance, carrier: Carrier, norm: Callable[[Any], float]):
        self.mgrit, self.counts = mgrit, mgrit.steps(steps)
        self.advance, self.carrier, self.norm = advance, carrier, norm
        self.sequential_steps = 0

    def solve(self, y0: Any) -> tuple[list[Any], Convergence]:
        """The states at the ends of all intervals, y0 first."""
        points, residuals = self._guess(1, y0), []
        while True:
            ends = self._propagate_ends(0, points, None)
            residuals.append(self._distance(points[1:], ends))
            is_converged = residuals[-1] <= self.mgrit.tolerance
            if is_converged or not np.isfinite(residuals[-1]) or len(residuals) > self.mgrit.iterations:
                found = Convergence(tuple(residuals), is_converged, self.sequential_steps, self.counts[0])
                return [y0, *ends], found
            points = self._correct_ends(0, points, ends, None)

    def _distance(self, points: list[Any], ends: list[Any]) -> float:
        def length(states: list[Any]) -> float:
            return float(np.linalg.norm([self.norm(each) for each in states]))

        size, distance = length(ends), length([end - point for end, point in zip(ends, points, strict=True)])
        return distance / size if size else distance

    def _guess(self, level: int, y0: Any) -> list[Any]:
        """Initial guess at all points of a level, from a run on the coarsest level."""
        if level == self.mgrit.levels - 1:
            return self._serial(level, y0, None)
        return self._fill_intervals(level, self._guess(level + 1, y0), None)

    def _solve_level(self, level: int, points: list[Any], sources: list[Any]) -> list[Any]:
        """All points of a level from initial ones: exactly on the coarsest level, otherwise by one iteration."""
        if level == self.mgrit.levels - 1:
            return self._serial(level, points[0], sources)
        some = points[:: self.mgrit.coarsening]
        return self._fill_intervals(
            level, self._correct_ends(level, some, self._propagate_ends(level, some, sources), sources), sources
        )

    def _correct_ends(self, level: int, points: list[Any], ends: list[Any], sources: list[Any] | None) -> list[Any]:
        """The interval ends after relaxation and coarse-level correction."""
        if self.mgrit.relaxation == "FCF":
            points = [points[0], *ends]
            ends = self._propagate_ends(level, points, sources)
        n = len(ends)
        self.sequential_steps += 1
        coarse = self.carrier(lambda first, y: self.advance(level + 1, first, 1, y), range(n), points[:n])
        return self._solve_level(level + 1, points, [end - other for end, other in zip(ends, coarse, strict=True)])

    def _propagate_ends(self, level: int, points: list[Any], sources: list[Any] | None) -> list[Any]:
        """Propagate all intervals from their first points."""
        if level > 0:
            return [path[-1] for path in self._paths(level, points, sources)]
        m = self.mgrit.coarsening
        self.sequential_steps += m
        ends = self.carrier(lambda first, y: self.advance(0, first, m, y), self._firsts(points), points[:-1])
        found = list(ends) if np.iterable(ends) else [ends]
        if len(found) != len(points) - 1 or not all(isinstance(end, type(points[0])) for end in found):
            raise TypeError(
                f"`carrier` must give what the function returns at each point, as `map`, found {format_value(ends)}"
            )
        return found

    def _fill_intervals(self, level: int, points: list[Any], sources: list[Any] | None) -> list[Any]:
        """The points inside the intervals, from their ends."""
        paths = self._paths(level, points, sources)
        inner = ((*path[:-1], end) for path, end in zip(paths, points[1:], strict=True))
        return [points[0], *chain.from_iterable(inner)]

    def _paths(self, level: int, points: list[Any], sources: list[Any] | None) -> Sequence[list[Any]]:
        m = self.mgrit.coarsening
        self.sequential_steps += m
        return self.carrier(lambda first, y: self._path(level, first, m, y, sources), self._firsts(points), points[:-1])

    def _serial(self, level: int, y0: Any, sources: list[Any] | None) -> list[Any]:
        self.sequential_steps += self.counts[level]
        return [y0, *self._path(level, 0, self.counts[level], y0, sources)]

    def _path(self, level: int, first: int, count: int, y: Any, sources: list[Any] | None) -> list[Any]:
        """The states after each of `count` steps."""
        found = []
        for step in range(first, first + count):
            y = self.advance(level, step, 1, y)
            if sources is not None:
                y = y + sources[step]
            found.append(y)
        return found

    def _firsts(self, points: list[Any]) -> range:
        """The first steps of all intervals."""
        m = self.mgrit.coarsening
        return range(0, m * (len(points) - 1), m)
