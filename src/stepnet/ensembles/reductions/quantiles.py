"""Quantiles over the members from a few thousand of their states, with a guaranteed error bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepnet.ensembles.reductions.reduction import Arrays, Chunk
from stepnet.records import show_fields
from stepnet.validation import array, arrays, check, having, whole

PARTS = ("weight0", "shifts", "shape")
MOST_SAMPLES = 2**32


class QuantilesFound(NamedTuple):
    """`values` (levels, times, *state): the fraction of `members` below a value is its level up to `rank_error`.

    Parameters
    ----------
    members : int
        How many members reached the end.
    levels : ndarray
        The levels.
    values : ndarray
        The quantiles (levels, times, *state).
    rank_error : float
        Bound of the error of their levels.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> sn.sweep(problem, "rk4", {"y0[0]": np.arange(5.0)}, reduce=sn.reductions.Quantiles(), steps=2).result.rank_error
    0.0
    """

    members: int
    levels: np.ndarray
    values: np.ndarray
    rank_error: float

    def __repr__(self) -> str:
        return show_fields(self)


@check(levels=array(), size=whole(2, MOST_SAMPLES))
@dataclass(frozen=True)
class Quantiles:
    """Quantiles of each entry of the states, over all members that reached the end.

    Up to `size` values are kept of each weight 1, 2, 4, ...; when there are more, they are sorted and every second one
    is kept with twice the weight.  Doing that with values of weight w shifts a rank by w at most, upward if the odd
    ones are kept and downward if the even ones are, so the two alternate, and the sums of the shifts bound the error.
    It is zero for up to `size` members, and at most (log2(members / size) + 1) / size, half a percent for a million
    (Agarwal et al. 2013, ACM Trans. Database Syst. 38, 26).

    Parameters
    ----------
    levels : tuple of float, optional
        The levels, from 0 to 1.
    size : int, optional
        Values that are kept of each weight.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> median = sn.reductions.Quantiles(levels=(0.5,))
    >>> sn.sweep(problem, "rk4", {"y0[0]": np.arange(5.0)}, reduce=median, steps=2).result.values
    array([[[2.]]])
    """

    levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)
    size: int = 2048

    def __post_init__(self) -> None:
        levels = np.atleast_1d(np.asarray(self.levels, float))
        if levels.ndim != 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
            raise ValueError(f"`levels` must be numbers from 0 to 1, found {self.levels!r:.80}")
        object.__setattr__(self, "levels", tuple(levels.tolist()))

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        y = chunk.solution.y[chunk.solution.success]
        if y.dtype.kind == "c":
            raise TypeError("`Quantiles` need real states, found complex ones")
        return self._pack([y.reshape(len(y), prod(y.shape[1:]))], np.zeros(2, np.int64), y.shape[1:])

    @check(one=arrays(*PARTS), other=arrays(*PARTS))
    def merge(self, one: Arrays, other: Arrays) -> Arrays:
        rows = zip(*(_longer(part, max(_height(one), _height(other))) for part in (one, other)), strict=True)
        groups = [np.concatenate(both) for both in rows]
        return self._pack(groups, one["shifts"] + other["shifts"], one["shape"])

    @check(whole=arrays(*PARTS))
    def result(self, whole: Arrays) -> QuantilesFound:
        groups = [whole[f"weight{h}"] for h in range(_height(whole))]
        shape = tuple(whole["shape"].tolist())
        weights = np.repeat(2 ** np.arange(len(groups)), [len(group) for group in groups])
        count, levels = int(weights.sum()), np.array(self.levels)
        if count == 0:
            return QuantilesFound(0, levels, np.full((len(levels), *shape), np.nan), 0.0)
        values = np.concatenate(groups)
        order = np.argsort(values, axis=0, kind="stable")
        ranks = np.cumsum(weights[order], axis=0)
        wanted = np.clip(np.ceil(levels * count), 1, count)
        places = np.stack([(ranks < rank).sum(axis=0) for rank in wanted])
        found = np.take_along_axis(np.take_along_axis(values, order, axis=0), places, axis=0)
        return QuantilesFound(count, levels, found.reshape(len(levels), *shape), float(whole["shifts"].max() / count))

    def _pack(self, groups: list[np.ndarray], shifts: np.ndarray, shape: Any) -> Arrays:
        """Groups of values of weight 1, 2, 4, ..., none longer than `size`."""
        shifts = shifts.copy()
        groups, h = list(groups), 0
        while h < len(groups):
            if len(groups[h]) > self.size:
                ordered = np.sort(groups[h], axis=0)
                pairs = len(ordered) // 2 * 2
                which = int(shifts[0] > shifts[1])  # the odd or the even ones, whichever were kept less often
                shifts[which] += 2**h
                above = groups[h + 1 : h + 2] or [ordered[:0]]
                groups[h + 1 : h + 2] = [np.concatenate((above[0], ordered[which:pairs:2]))]
                groups[h] = ordered[pairs:].copy()  # a view would keep the whole array alive
            h += 1
        return {f"weight{h}": group for h, group in enumerate(groups)} | {"shifts": shifts, "shape": np.array(shape)}


def _height(part: Arrays) -> int:
    return sum(name.startswith("weight") for name in part)


def _longer(part: Arrays, height: int) -> list[np.ndarray]:
    """The groups of values, padded with empty ones up to this height."""
    return [part.get(f"weight{h}", part["weight0"][:0]) for h in range(height)]
