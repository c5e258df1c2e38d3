"""Brownian paths: numbers that depend only on seed, path and interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepnet import validation
from stepnet.noise.arguments import DIMENSION, PATH, check_seed, validate_paths
from stepnet.noise.counters import LEVY_AREA, locate_in_pair, pack_counter
from stepnet.noise.evaluation import evaluate
from stepnet.noise.grid import DEFAULT_LEVELS, NoiseGrid, Positions
from stepnet.noise.levy_area import approximate_levy_area
from stepnet.noise.normals import convert_to_normals
from stepnet.noise.philox import draw_words
from stepnet.noise.reference import BrownianPaths
from stepnet.records import keep, validate_count

MOST_AREA_COMPONENTS = 256  # whose pairs can be counted


@validation.check(seed=check_seed, path=PATH, dimension=DIMENSION)
@dataclass(frozen=True)
class BrownianPath:
    """A Brownian path with W(t0) = 0, which can be evaluated on any intervals in any order.

    The path is a function of all its arguments but `levels`, which matters only at times that are not dyadic.
    Increments of the cells of a base grid are drawn, those of longer intervals are their sums, and those inside a cell
    come from a Brownian bridge.  All increments are multiples of a power of two, so that sums and differences of them
    are exact: `W.increment(a, b) + W.increment(b, c) == W.increment(a, c)` bit for bit.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    path : int
        Which path of the seed; paths are independent.
    t_span : pair of floats
        The interval on which the path is defined.  Times outside by a few units in the last place are replaced by its
        ends.
    cells : int
        Intervals of the base grid.  A query costs about one draw for each cell between its times and one for each
        level below: 1 is suitable for random access, the number of steps for schemes.
    dimension : int
        Independent components m.
    levels : int
        Maximum number of halvings of a cell.  Any set of times with at most one in each interval of length `cell /
        2**levels` has the distribution of a Wiener process; times in the same one share a draw.

    Examples
    --------
    >>> from stepnet.noise import BrownianPath
    >>> W = BrownianPath(seed=1, path=7, t_span=(0.0, 2.0), dimension=3)
    >>> W(0.5).shape, W([0.1, 0.2]).shape
    ((3,), (2, 3))
    >>> bool((W.increment(0.5, 1.1) == W(1.1) - W(0.5)).all())
    True
    """

    seed: int = 0
    path: int = 0
    t_span: tuple[float, float] = (0.0, 1.0)
    cells: int = 1
    dimension: int = 1
    levels: int = DEFAULT_LEVELS
    grid: NoiseGrid = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        grid = NoiseGrid(self.t_span, self.cells, self.levels)
        keep(self, grid=grid, t_span=grid.t_span, cells=grid.cells, levels=grid.levels)

    def __call__(self, t: ArrayLike) -> np.ndarray:
        """W at times of any shape, with components as the last axis.

        Parameters
        ----------
        t : array_like
            Times within `t_span`, in any order.

        Returns
        -------
        numpy.ndarray
            Of shape `(*t.shape, dimension)`.
        """
        times = np.asarray(validation.array()("t", t), np.float64)
        flat = times.ravel()
        order = np.argsort(flat, kind="stable")
        ends = self.grid.locate(flat[order], "t")
        starts = Positions(*(np.concatenate((np.zeros(1, each.dtype), each))[:-1] for each in ends))
        sums = np.cumsum(self._evaluate(starts, ends)[0], axis=0)  # exact
        values = np.empty_like(sums)
        values[order] = sums
        return values.reshape(*times.shape, self.dimension)

    def increment(self, a: ArrayLike, b: ArrayLike) -> np.ndarray:
        """W(b) - W(a) for times or arrays of times that broadcast, a <= b.

        Parameters
        ----------
        a, b : array_like
            Ends of the intervals.

        Returns
        -------
        numpy.ndarray
            Of the shape of the intervals, with components as the last axis.
        """
        return self.increment_and_area(a, b)[0]

    def increment_and_area(self, a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Increments W and space-time Levy areas H of intervals; H has the variance (b - a) / 12.

        Parameters
        ----------
        a, b : array_like
            Ends of the intervals, a <= b.

        Returns
        -------
        W, H : numpy.ndarray
            Of the shape of the intervals, with components as the last axis.
        """
        a, b = _broadcast_times(a, b)
        if (b < a).any():
            raise ValueError("`b` must not be before `a`: increments are defined forward in time")
        self.grid._require_inside(a, "a")
        self.grid._require_inside(b, "b")
        both = self.grid._place(np.concatenate((a.ravel(), b.ravel())))
        W, H = self._evaluate(*(Positions(*(x[part] for x in both)) for part in (slice(a.size), slice(a.size, None))))
        shape = *a.shape, self.dimension
        return W.reshape(shape), H.reshape(shape)

    def increments(self, times: ArrayLike) -> np.ndarray:
        """Increments between consecutive nondecreasing times, (times - 1, components).

        Parameters
        ----------
        times : array_like
            At least two times, one-dimensional.

        Returns
        -------
        numpy.ndarray
            Of shape `(len(times) - 1, dimension)`.
        """
        t = _validate_times(times)
        return self.increment(t[:-1], t[1:])

    def levy_areas(self, times: ArrayLike, method: str = "foster") -> np.ndarray:
        """Approximate Levy areas A_ij between consecutive times, (times - 1, components, components).

        Areas of different intervals are drawn separately: those of a step are not sums of those of its parts.

        Parameters
        ----------
        times : array_like
            At least two nondecreasing times, one-dimensional.
        method : str
            "foster": variance conditional on the space-time areas; "davie": its mean.

        Returns
        -------
        numpy.ndarray
            Antisymmetric in the last two axes.
        """
        validate_count("dimension", self.dimension, 1, MOST_AREA_COMPONENTS, "pairs of components have 16 bits")
        method = validation.one_of("foster", "davie")("method", method)
        t = _validate_times(times)
        W, H = self.increment_and_area(t[:-1], t[1:])
        Z = self._draw_for_areas(self.grid.locate(t))
        return approximate_levy_area(W, H, np.diff(t), Z, is_conditional=method == "foster")

    def _evaluate(self, starts: Positions, ends: Positions) -> tuple[np.ndarray, np.ndarray]:
        noise = BrownianPaths(self.grid, self.seed, np.array([self.path]), self.dimension)
        W, H = evaluate(noise, starts, ends)
        return W[:, 0], H[:, 0]

    def _draw_for_areas(self, times: Positions) -> np.ndarray:
        """Normals with the ends of an interval as their key, (intervals, components, components)."""
        m, n = self.dimension, len(times.cell) - 1
        ends = times.leaf[:-1], times.cell[:-1], times.leaf[1:], times.cell[1:]
        low, high = draw_words(ends, self.seed)[:2]
        pair, half = locate_in_pair(np.array(self.path))
        counter = pack_counter(LEVY_AREA, pair, np.arange(m * m), 0)
        Z = [convert_to_normals(draw_words(counter, int(low[i]) | int(high[i]) << 32))[int(half)] for i in range(n)]
        return np.reshape(Z, (n, m, m))


@validation.check(seed=check_seed, cells=validation.whole(1), dimension=DIMENSION)
def brownian(
    seed: int,
    path: ArrayLike,
    t0: ArrayLike,
    t1: ArrayLike,
    *,
    t_span: Any = (0.0, 1.0),
    cells: int = 1,
    dimension: int = 1,
    levels: int = DEFAULT_LEVELS,
) -> np.ndarray:
    """The increment W(t1) - W(t0) of a Brownian path: the same number in any order of calls.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    path : int or array_like of int
        Number of the path, or several paths.
    t0, t1 : float
        Ends of the interval, t0 <= t1.
    t_span, cells, dimension, levels
        As in `BrownianPath`.

    Returns
    -------
    numpy.ndarray
        `(dimension,)`, or `(paths, dimension)` for several paths.

    Examples
    --------
    >>> from stepnet.noise import BrownianPath, brownian
    >>> dW = brownian(seed=1, path=[0, 1, 2], t0=0.25, t1=0.5)
    >>> dW.shape, bool((dW[2] == BrownianPath(seed=1, path=2).increment(0.25, 0.5)).all())
    ((3, 1), True)
    """
    paths = validate_paths("path", path)
    grid = NoiseGrid(t_span, cells, levels)
    a, b = validation.real()("t0", t0), validation.real()("t1", t1)
    if b < a:
        raise ValueError(f"`t1` must not be before `t0` = {a:g}, found {b:g}")
    W = evaluate(BrownianPaths(grid, seed, paths.ravel(), dimension), grid.locate([a], "t0"), grid.locate([b], "t1"))[0]
    return W[0].reshape(*paths.shape, dimension)


def _broadcast_times(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = (np.asarray(validation.array()(name, each), np.float64) for name, each in (("a", a), ("b", b)))
    if a.shape == b.shape:
        return a, b
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ValueError(f"`a` and `b` must have shapes that broadcast, found {a.shape} and {b.shape}") from None
    return np.broadcast_to(a, shape), np.broadcast_to(b, shape)


def _validate_times(times: ArrayLike) -> np.ndarray:
    t = np.asarray(validation.array(None)("times", times), np.float64)
    if len(t) < 2 or np.any(np.diff(t) < 0.0):
        raise ValueError("`times` must hold at least two times that do not decrease")
    return t
