"""Pairs of a fine and a coarse solution along the same Brownian paths, and the sums of their differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stepnet.montecarlo.moments import UNIT, add_in_units
from stepnet.montecarlo.path_functional import MOST_NUMBERS, PathFunctional, count_threads, draw_increments, sample

PATHS_OF_A_LEVEL = 2**34


class CoupledValues(NamedTuple):
    """Values on the fine and the coarse grid, (paths,); the coarse ones are zero on the coarsest level."""

    fine: np.ndarray
    coarse: np.ndarray


@dataclass(frozen=True)
class Coupling:
    """How a level is sampled: the steps of the coarsest level, twice as many on each finer one.

    "same path": both grids use the increments of one path.  "antithetic": the fine value is the mean of two paths that
    exchange the increments of each pair of fine steps, M. B. Giles and L. Szpruch (2014), Ann. Appl. Probab. 24:1585.
    """

    functional: PathFunctional
    point: np.ndarray
    steps: int
    kind: str
    n_components: int
    workers: int | None

    def count_steps(self, level: int) -> int:
        """Steps of the fine path."""
        return self.steps << level

    def find_cost(self, level: int) -> float:
        """Steps of one sample."""
        fine = float(self.count_steps(level))
        return fine if level == 0 else (2.5 if self.kind == "antithetic" else 1.5) * fine

    def find_block(self, level: int) -> int:
        """Samples that are drawn at once."""
        numbers = self.functional.size
        if self.kind == "antithetic":
            numbers = max(numbers, self.count_steps(level) * self.functional.sde.n_components)
        return max(UNIT, MOST_NUMBERS * count_threads(self.workers) // numbers // UNIT * UNIT)

    def sample(self, level: int, first: int, count: int) -> CoupledValues:
        """Samples `first` to `first + count` of a level."""
        steps = self.count_steps(level)
        functional = replace(self.functional, sde=replace(self.functional.sde, cells=steps))
        first += functional.sde.path + level * PATHS_OF_A_LEVEL

        def evaluate(steps: int, increments: np.ndarray | None = None) -> np.ndarray:
            return sample(functional, self.point, first, count, steps, self.workers, increments).values[0]

        if level == 0:
            return CoupledValues(evaluate(steps), np.zeros(count))
        if self.kind == "same path":
            return CoupledValues(evaluate(steps), evaluate(steps // 2))
        dW = self._draw(functional, first, count, steps)
        pairs = dW.reshape(count, steps // 2, 2, -1)
        twin = np.ascontiguousarray(pairs[:, :, ::-1]).reshape(dW.shape)
        return CoupledValues(
            0.5 * (evaluate(steps, dW) + evaluate(steps, twin)), evaluate(steps // 2, pairs.sum(axis=2))
        )

    def _draw(self, functional: PathFunctional, first: int, count: int, steps: int) -> np.ndarray:
        """The increments of the paths, (paths, steps, components)."""
        dW = draw_increments(functional.sde, self.n_components, first, count, steps, self.workers)
        spare = functional.sde.n_components - self.n_components  # of entries without noise
        return np.pad(dW, ((0, 0), (0, 0), (0, spare)))


class LevelSums:
    """Power sums of the differences of a level, and sums of its fine values, in the order of the paths.

    Both are shifted by those of the first sample, so that differences of large sums keep their digits.
    """

    def __init__(self) -> None:
        self.count, self.exploded = 0, 0
        self._shift = np.zeros(2)
        self._powers = np.zeros(4)
        self._fine = np.zeros(2)

    def add(self, values: CoupledValues) -> None:
        """Add samples, in units of a fixed length."""
        difference = values.fine - values.coarse
        is_valid = np.isfinite(difference)  # then both are finite
        n_valid = int(is_valid.sum())
        if not self.count and n_valid:
            first = is_valid.argmax()
            self._shift[:] = difference[first], values.fine[first]
        d, fine = difference - self._shift[0], values.fine - self._shift[1]
        if n_valid < len(d):
            d, fine = np.where(is_valid, d, 0.0), np.where(is_valid, fine, 0.0)
        square = d * d
        powers = add_in_units(self._powers, [d, square, square * d, square * square])
        self._powers, self._fine = powers, add_in_units(self._fine, [fine, fine * fine])
        self.count += n_valid
        self.exploded += len(difference) - n_valid

    @property
    def mean(self) -> float:
        return float(self._shift[0] + _divide(self._powers[0], self.count))

    @property
    def variance(self) -> float:
        return _find_variance(self._powers, self.count)

    @property
    def kurtosis(self) -> float:
        """The fourth central moment over the square of the variance; 3 for a normal variable."""
        if not self.variance > 0.0:
            return 0.0
        mean, m2, m3, m4 = self._powers / self.count
        return float((m4 - 4 * m3 * mean + 6 * m2 * mean**2 - 3 * mean**4) / np.float64(self.variance) ** 2)

    @property
    def fine_mean(self) -> float:
        return float(self._shift[1] + _divide(self._fine[0], self.count))

    @property
    def fine_variance(self) -> float:
        return _find_variance(self._fine, self.count)


def _divide(total: float, count: int) -> float:
    """The mean, NaN without a sample."""
    return float(total) / count if count else float("nan")


def _find_variance(powers: np.ndarray, count: int) -> float:
    mean = _divide(powers[0], count)
    return float(np.maximum(0.0, _divide(powers[1], count) - mean * mean))  # also NaN


def extend(coupling: Coupling, sums: LevelSums, level: int, count: int, show: Callable[[int], object]) -> None:
    """Draw samples of a level until their number is reached."""
    block, done = coupling.find_block(level), sums.count + sums.exploded
    while done < count:
        size = min(block, count - done)
        sums.add(coupling.sample(level, done, size))
        show(size)
        done += size
