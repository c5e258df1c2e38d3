"""Brownian increments from scrambled Sobol points in the order of a Brownian bridge.

The first coordinates of a point, which are distributed best, give W(T), W(T/2), W(T/4), ...  R. E. Caflisch and
B. Moskowitz (1995), in Monte Carlo and Quasi-Monte Carlo Methods, Springer LNS 106.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

BITS = 30
MOST_DIMENSIONS = 21201  # of SciPy's direction numbers


class BridgePoint(NamedTuple):
    """W after step `place` is the interpolation between `left` and `right` plus `deviation` times a normal variable."""

    place: int
    left: int
    right: int
    deviation: float


@lru_cache(maxsize=64)
def order_bridge(steps: int) -> tuple[BridgePoint, ...]:
    """The points of a bridge over equal steps of length one, the end first, then the middles of ever shorter gaps."""
    found, gaps = [BridgePoint(steps, 0, 0, steps**0.5)], [(0, steps)]
    while gaps:
        left, right = gaps.pop(0)
        if right - left < 2:
            continue
        middle = (left + right) // 2
        variance = (middle - left) * (right - middle) / (right - left)
        found.append(BridgePoint(middle, left, right, variance**0.5))
        gaps += [(left, middle), (middle, right)]
    return tuple(found)


def build_increments(normals: np.ndarray, h: float) -> np.ndarray:
    """Increments (paths, steps, components) of Brownian paths from normal variables of the same shape."""
    count, steps, m = normals.shape
    W = np.zeros((steps + 1, count, m))
    for k, (i, left, right, deviation) in enumerate(order_bridge(steps)):
        W[i] = deviation * normals[:, k]
        if right > left:
            s = (i - left) / (right - left)
            W[i] += (1.0 - s) * W[left] + s * W[right]
    return np.ascontiguousarray(np.sqrt(h) * np.diff(W, axis=0).transpose(1, 0, 2))


class SobolPaths:
    """Brownian paths from a scrambled Sobol sequence: `draw(count)` gives the increments of the next paths."""

    def __init__(self, seed: int, replicate: int, steps: int, components: int, h: float):
        from scipy.stats.qmc import Sobol  # slow to import

        self._shape, self._h = (steps, components), h
        source = np.random.default_rng([seed, replicate])
        keyword: dict[str, Any] = {"rng" if "rng" in signature(Sobol).parameters else "seed": source}
        self._sequence = Sobol(steps * components, scramble=True, bits=BITS, **keyword)

    def draw(self, count: int) -> np.ndarray:
        """(count, steps, components); the number of all paths drawn so far should be a power of two."""
        uniforms = self._sequence.random(count) + 0.5 ** (BITS + 1)  # the middles of the cells: never 0 or 1
        return build_increments(ndtri(uniforms).reshape(count, *self._shape), self._h)
