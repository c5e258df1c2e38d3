"""Expectations over a random start: paths from Latin hypercubes of start points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.montecarlo.moments import UNIT, PathMoments, find_quantile
from stepnet.montecarlo.path_averages import Average, Sampling
from stepnet.montecarlo.path_functional import MOST_NUMBERS, PathFunctional, count_threads
from stepnet.validation import check, function, whole

MOST_COORDINATES = 10_000


@check(quantile=function, dimensions=whole(1, MOST_COORDINATES))
@dataclass(frozen=True)
class RandomStart:
    """A distribution of start points, for `x` of `feynman_kac`: the estimate is E[u(X, t0)].

    Start points are stratified: each coordinate of 256 successive ones has one number in each of 256 intervals of equal
    length (a Latin hypercube), so that the variance due to the start almost vanishes if u is close to a sum of
    functions of one coordinate.

    Parameters
    ----------
    quantile : callable
        `quantile(u)` maps a point u of the open unit cube, an array (dimensions,), to a start state.
    dimensions : int
        Coordinates of u.

    Examples
    --------
    >>> import stepnet as sn
    >>> from scipy.special import ndtri
    >>> sde = sn.SDE(lambda t, y: -y, lambda t, y: 0.1 + 0.0 * y, [0.0], (0.0, 1.0))
    >>> start = sn.montecarlo.RandomStart(lambda u: ndtri(u))  # normal
    >>> found = sn.montecarlo.feynman_kac(sde, lambda y: y[0] ** 2, start, paths=1024, steps=8)
    >>> found.interval[0] < found.value < found.interval[1]
    True
    """

    quantile: Callable[[np.ndarray], Any]
    dimensions: int = 1


def draw_start_points(start: RandomStart, seed: int, unit: int, shape: tuple[int, ...]) -> np.ndarray:
    """The flat start points of one unit of paths."""
    random = np.random.default_rng([seed, unit])
    strata = random.permuted(np.tile(np.arange(UNIT), (start.dimensions, 1)), axis=1).T
    cube = (strata + random.uniform(np.finfo(float).eps, 1.0, strata.shape)) / UNIT
    points = [np.asarray(start.quantile(u), float) for u in cube]
    for u, point in zip(cube, points, strict=True):
        if point.shape != shape or not np.isfinite(point).all():
            raise ValueError(
                f"`quantile` of a RandomStart must return finite numbers of the shape {shape} of the state, found "
                f"{point!r:.60} for u = {u!r:.60}"
            )
    return np.array(points).reshape(UNIT, -1)


@dataclass
class StartSums:
    """Running sums over units of paths, whose means are independent.

    `functionals` are one, or two with opposite noise; `require` refuses start points outside of the domain.
    """

    functionals: tuple[PathFunctional, ...]
    start: RandomStart
    how: Sampling
    require: Callable[[np.ndarray], None]
    rung: str = ""
    reason: str = ""
    done: int = 0
    exploded: int = 0
    moments: PathMoments = field(default_factory=lambda: PathMoments(1))
    power: float = 2.0
    least_power: float = 2.0

    @property
    def n_points(self) -> int:
        return 1

    @property
    def functional(self) -> PathFunctional:
        return self.functionals[0]

    @property
    def per_sample(self) -> int:
        """Paths of a sample: one, or a pair."""
        return len(self.functionals)

    def extend(self, paths: int) -> None:
        """Run units of paths until their number is reached."""
        at_once = max(1, MOST_NUMBERS * count_threads(self.how.workers) // (UNIT * self.functional.size))
        last = -(-paths // (UNIT * self.per_sample))
        while self.done < last:
            count = min(at_once, last - self.done)
            self._add(count)
            self.how.show(count * UNIT * self.per_sample)
            self.done += count

    def _add(self, count: int) -> None:
        functional, units = self.functional, range(self.done, self.done + count)
        sde, shape = functional.sde, functional.shape
        points = np.concatenate([draw_start_points(self.start, sde.seed, sde.path + unit, shape) for unit in units])
        self.require(points)
        starts = functional.extend(points).reshape(-1, *sde.y0.shape)
        paths = sde.path + np.arange(units.start * UNIT, units.stop * UNIT)
        found = [
            solve_ensemble(
                each.sde, each.scheme, y0=starts, paths=paths, steps=self.how.steps,
                events=() if each.exits is None else each.exits, workers=self.how.workers,
            )
            for each in self.functionals
        ]  # fmt: skip
        self.rung, self.reason = found[0].rung, found[0].reason
        pairs = zip(self.functionals, found, strict=True)
        values = np.mean([each.read_out(ends) for each, ends in pairs], axis=0)
        is_valid = np.isfinite(values)
        self.exploded += int(values.size - is_valid.sum())
        sums = np.where(is_valid, values, 0.0).reshape(count, UNIT).sum(axis=1)
        number = is_valid.reshape(count, UNIT).sum(axis=1)
        self.moments.add(slice(0, 1), np.where(number > 0, sums / np.maximum(number, 1), np.nan)[None])

    def average(self, confidence: float) -> Average:
        """The estimates from the units so far."""
        value, variance, freedom = self.moments.estimate()
        error = np.sqrt(variance / np.maximum(self.moments.count, 1))
        return Average(value, error, find_quantile(confidence, freedom) * error, self.done * UNIT * self.per_sample)

    @property
    def is_usable(self) -> bool:
        """Whether there are enough units for an estimate with an error."""
        return bool((self.moments.count > 1).all())

    def round_up(self, paths: float) -> int:
        """A number of paths that can be run: whole units, two at least."""
        unit = UNIT * self.per_sample
        return max(2, int(-(-paths // unit))) * unit
