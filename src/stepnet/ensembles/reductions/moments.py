"""Mean and variance over the members, merged chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepnet.ensembles.reductions.reduction import Arrays, Chunk
from stepnet.records import show_fields
from stepnet.validation import arrays, check, having

PARTS = ("count", "mean", "squares")


class Moments(NamedTuple):
    """Mean and variance (divided by members - 1) of the states over `members` members, (times, *state).

    Parameters
    ----------
    members : int
        How many members reached the end.
    mean : ndarray
        Their mean (times, *state).
    variance : ndarray
        Their variance (times, *state).

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> sn.sweep(problem, "rk4", {"y0[0]": [1.0, 3.0]}, reduce=sn.reductions.Mean(), steps=2).result.variance
    array([[2.]])
    """

    members: int
    mean: np.ndarray
    variance: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True)
class Mean:
    """Mean and variance of the states over all members that reached the end.

    The means and sums of squared deviations of two groups give those of both, without cancellation (Chan, Golub &
    LeVeque 1983, The American Statistician 37, 242).

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1.0))
    >>> sn.sweep(problem, "rk4", {"y0[0]": [1.0, 3.0]}, reduce=sn.reductions.Mean(), steps=2).result.mean
    array([[2.]])
    """

    @check(chunk=having("solution", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        y = chunk.solution.y[chunk.solution.success]
        mean = y.mean(axis=0) if len(y) else np.zeros(y.shape[1:], y.dtype)
        return {"count": np.array(len(y)), "mean": mean, "squares": (np.abs(y - mean) ** 2).sum(axis=0)}

    @check(one=arrays(*PARTS), other=arrays(*PARTS))
    def merge(self, one: Arrays, other: Arrays) -> Arrays:
        count = one["count"] + other["count"]
        part = other["count"] / max(count, 1)
        shift = other["mean"] - one["mean"]
        squares = one["squares"] + other["squares"] + np.abs(shift) ** 2 * (one["count"] * part)
        return {"count": count, "mean": one["mean"] + part * shift, "squares": squares}

    @check(whole=arrays(*PARTS))
    def result(self, whole: Arrays) -> Moments:
        count = int(whole["count"])
        mean = whole["mean"] if count else np.full_like(whole["mean"], np.nan)
        return Moments(count, mean, whole["squares"] / (count - 1) if count > 1 else np.full(mean.shape, np.nan))
