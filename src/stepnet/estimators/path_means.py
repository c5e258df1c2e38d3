"""Means of functions of a sample over its Brownian paths, with standard errors.

The paths of a sample, how many they are and the order in which they are summed depend on that sample alone.  So its
mean does not depend on the other samples of a batch, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepnet.montecarlo.moments import UNIT, PathMoments, find_quantile
from stepnet.nets import SampleNoise

ROWS = 4096  # samples times paths of one evaluation
MOST_PATHS = 2**20  # of one sample

Evaluate = Callable[[np.ndarray, SampleNoise], np.ndarray]


class PathMeans(NamedTuple):
    """Means (n, columns) over paths, their standard errors (n, columns), and numbers of paths (n,).

    `cost` (n,) is in paths of the whole net.
    """

    mean: np.ndarray
    standard_error: np.ndarray
    paths: np.ndarray
    cost: np.ndarray

    def find_margin(self, confidence: float) -> np.ndarray:
        """Half the widths of the confidence intervals, by Student's distribution."""
        return find_quantile(confidence, self.paths - 1)[:, None] * self.standard_error


def average_over_paths(
    evaluate: Evaluate, X: np.ndarray, noise: SampleNoise, paths: int, error: float | None = None
) -> PathMeans:
    """Average `evaluate(X, noise)`, (n, columns), over the first paths of each sample; `noise` has a key for each.

    There are `paths` of them.  With a target `error` they are a pilot run: samples with a larger standard error in some
    column get 2, 4, 8, ... times as many paths, as the error of the pilot run requires.
    """
    keys = np.asarray(noise.keys)
    found = _average(evaluate, X, keys, noise.seed, paths)
    if error is None:
        return found
    largest = found.standard_error.max(axis=1)
    wanted = np.minimum(paths * (largest / error) ** 2, MOST_PATHS)
    counts = np.full(len(X), paths)
    while (few := counts < wanted).any():
        counts[few] *= 2
    return average_samples(evaluate, X, noise, counts, found)


def average_samples(
    evaluate: Evaluate, X: np.ndarray, noise: SampleNoise, counts: np.ndarray, pilot: PathMeans
) -> PathMeans:
    """Average over `counts` paths of each sample, where that of `pilot` are too few; written into `pilot`."""
    keys = np.asarray(noise.keys)
    for count in np.unique(counts[counts > pilot.paths]).tolist():
        rows = counts == count
        for whole, part in zip(pilot, _average(evaluate, X[rows], keys[rows], noise.seed, count), strict=True):
            whole[rows] = part
    return pilot


def _average(evaluate: Evaluate, X: np.ndarray, keys: np.ndarray, seed: int, paths: int) -> PathMeans:
    at_once = max(1, ROWS // min(paths, UNIT))
    parts = [slice(i, i + at_once) for i in range(0, len(X), at_once)]
    found = [_average_few(evaluate, X[part], keys[part], seed, paths) for part in parts]
    mean, error = (np.concatenate(each) for each in zip(*found, strict=True))
    return PathMeans(mean, error, np.full(len(X), paths), np.full(len(X), float(paths)))


def _average_few(
    evaluate: Evaluate, X: np.ndarray, keys: np.ndarray, seed: int, paths: int
) -> tuple[np.ndarray, np.ndarray]:
    n, moments = len(X), PathMoments(0)
    for first in range(0, paths, UNIT):
        numbers = np.arange(first, min(first + UNIT, paths))
        m = len(numbers)
        noise = SampleNoise(seed, keys=np.repeat(keys, m), path=np.tile(numbers, n))
        values = evaluate(np.repeat(X, m, axis=0), noise).reshape(n, m, -1).swapaxes(1, 2).reshape(-1, m)
        if first == 0:
            moments = PathMoments(len(values))
        moments.add(slice(None), values)
    mean, variance, _ = moments.estimate()
    mean[moments.count < paths] = np.nan  # a path on which the value is not finite
    return mean.reshape(n, -1), np.sqrt(np.maximum(variance, 0.0) / paths).reshape(n, -1)
