"""Sums of values and of their products, in an order that depends on neither blocks nor threads."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

UNIT = 256  # paths that are summed at once; blocks are made of whole units


class PathMoments:
    """Sums over the paths from each point: of the values, of control variables, and of all products.

    Values are shifted by that of the first path, so that differences of large sums keep their digits and equal values
    have exactly their own mean.  Values that are not finite are counted in `exploded` and left out.
    """

    def __init__(self, n_points: int, n_controls: int = 0):
        size = 1 + n_controls
        self.count = np.zeros(n_points, np.int64)
        self.exploded = 0
        self._shift = np.zeros((n_points, size))
        self._sums = np.zeros((n_points, size))
        self._products = np.zeros((n_points, size, size))

    def add(self, points: slice, values: np.ndarray, controls: np.ndarray | None = None) -> None:
        """Add values (points, paths) and controls (points, paths, number) for some of the points."""
        is_valid = np.isfinite(values)
        n_valid = is_valid.sum(axis=1)
        shift = self._shift[points]
        is_first = (self.count[points] == 0) & (n_valid > 0)
        if is_first.any():
            start = values[np.arange(len(values)), is_valid.argmax(axis=1)]
            shift[is_first, 0] = start[is_first]
        columns = [values] if controls is None else [values, *np.moveaxis(controls, 2, 0)]
        rest = [np.ascontiguousarray(column - shift[:, i : i + 1]) for i, column in enumerate(columns)]
        if not is_valid.all():
            rest = [np.where(is_valid, each, 0.0) for each in rest]
        sums, products = self._sums[points].copy(), self._products[points].copy()
        for i, a in enumerate(rest):
            sums[:, i] = add_in_units(sums[:, i], a)
            for j, b in enumerate(rest[: i + 1]):
                products[:, i, j] = add_in_units(products[:, i, j], a * b)
        self._sums[points], self._products[points] = sums, products  # together, so that Ctrl-C leaves all or nothing
        self.count[points] += n_valid
        self.exploded += int(is_valid.size - n_valid.sum())

    @property
    def means(self) -> np.ndarray:
        """(points, 1 + controls)"""
        return self._shift + self._sums / np.maximum(self.count, 1)[:, None]

    @property
    def covariances(self) -> np.ndarray:
        """(points, 1 + controls, 1 + controls)"""
        n = np.maximum(self.count, 2)[:, None, None]
        products = self._products + np.tril(self._products, -1).swapaxes(1, 2)
        return (products - self._sums[:, :, None] * self._sums[:, None, :] / n) / (n - 1)

    def estimate(self, control_means: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, variance of one path and degrees of freedom for each point.

        The controls are subtracted with the weights of least squares, b = cov(C, C)^-1 cov(C, value).
        """
        means, covariances = self.means, self.covariances
        value, variance = means[:, 0].copy(), covariances[:, 0, 0].copy()
        freedom = self.count - means.shape[1]
        if control_means is None:
            return value, variance, freedom
        for i, matrix in enumerate(covariances):
            weights = np.linalg.lstsq(matrix[1:, 1:], matrix[1:, 0], rcond=None)[0]
            value[i] -= weights @ (means[i, 1:] - control_means[i])
            variance[i] = max(0.0, variance[i] - weights @ matrix[1:, 0])
        return value, variance * (self.count - 1) / np.maximum(freedom, 1), freedom


def add_in_units(totals: np.ndarray, rows: ArrayLike) -> np.ndarray:
    """Totals (rows,) plus the sums of rows (rows, paths), one unit after the other."""
    rows = np.asarray(rows)
    whole = rows.shape[1] // UNIT * UNIT
    sums = [rows[:, :whole].reshape(len(rows), whole // UNIT, UNIT).sum(axis=2)]
    if whole < rows.shape[1]:
        sums.append(rows[:, whole:].sum(axis=1)[:, None])
    return np.add.accumulate(np.column_stack((totals, *sums)), axis=1)[:, -1]


def find_quantile(confidence: float, freedom: np.ndarray | int) -> np.ndarray:
    """The quantile of Student's distribution for a two-sided interval."""
    return stdtrit(np.maximum(freedom, 1), 0.5 + 0.5 * confidence)
