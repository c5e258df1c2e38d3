"""GMRES for many samples at once, each with its own Krylov space: arrays are `(stages, groups, features, samples)`.

A sample that is solved is left alone, so its bits do not depend on those that are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

RESTART, MOST_RESTARTS = 40, 10
PROGRESS = 0.5  # a cycle that leaves more of a residual is the last one of its sample

Product = Callable[[np.ndarray], np.ndarray]


def multiply_samples(v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The inner product of each sample, (groups, samples), with sums in the order of the rows."""
    return (v * w).sum(axis=0).sum(axis=1)


def measure_samples(v: np.ndarray) -> np.ndarray:
    """The Euclidean norm of each sample."""
    return np.sqrt(multiply_samples(v, v))


def solve_by_gmres(multiply: Product, rhs: np.ndarray, tolerance: float) -> np.ndarray:
    """Solve A x = rhs for every sample to a relative residual, as far as restarts make progress.

    Saad & Schultz (1986), SIAM J. Sci. Stat. Comput. 7:856.
    """
    x, goal = np.zeros_like(rhs), tolerance * measure_samples(rhs)
    residual, best, is_open = rhs, np.full_like(goal, np.inf), np.ones(goal.shape, bool)
    for number in range(MOST_RESTARTS):
        if number:
            residual = rhs - multiply(x)
        size = measure_samples(residual)
        is_open &= (size > goal) & (size < PROGRESS * best)
        if not is_open.any():
            break
        best = size
        x = x + _find_correction(multiply, np.where(_spread(is_open), residual, 0), size, goal, is_open)
    return x


def _spread(values: np.ndarray) -> np.ndarray:
    """One value per sample, for all entries of the samples."""
    return values[None, :, None, :]


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), a.dtype), where=b != 0)


def _find_correction(
    multiply: Product, residual: np.ndarray, size: np.ndarray, goal: np.ndarray, is_open: np.ndarray
) -> np.ndarray:
    """One cycle: the corrections that make the residuals smallest, 0 for samples that are not open."""
    basis, columns = [_divide(residual, _spread(size))], []
    rotations: list[tuple[np.ndarray, np.ndarray]] = []
    left, is_open = [np.where(is_open, size, 0)], is_open.copy()
    for k in range(RESTART):
        w, column = multiply(basis[k]), [np.zeros_like(size) for _ in range(k + 1)]
        for _ in range(2):  # Gram-Schmidt twice keeps the bases orthogonal
            for i, v in enumerate(basis):
                part = multiply_samples(v, w)
                column[i] = column[i] + part
                w = w - _spread(part) * v
        last = measure_samples(w)
        for i, (c, s) in enumerate(rotations):
            column[i], column[i + 1] = c * column[i] + s * column[i + 1], c * column[i + 1] - s * column[i]
        length = np.sqrt(column[k] * column[k] + last * last)
        c, s = _divide(column[k], length), _divide(last, length)
        column[k] = length
        columns.append(column)
        rotations.append((c, s))
        begun, left[k] = left[k], c * left[k]
        is_open &= (abs(s * begun) > goal) & (s > np.finfo(s.dtype).eps)
        if not is_open.any():
            break
        left.append(np.where(is_open, -s * begun, 0))
        basis.append(_divide(np.where(_spread(is_open), w, 0), _spread(last)))
    return _combine(basis, columns, left)


def _combine(basis: list[np.ndarray], columns: list[list[np.ndarray]], left: list[np.ndarray]) -> np.ndarray:
    """sum_k y_k v_k with the solution y of the triangular system of every sample."""
    weights = [np.zeros_like(left[0])] * len(columns)
    for k in range(len(columns) - 1, -1, -1):
        rest = left[k]
        for j in range(k + 1, len(columns)):
            rest = rest - columns[j][k] * weights[j]
        weights[k] = _divide(rest, columns[k][k])
    total = np.zeros_like(basis[0])
    for weight, v in zip(weights, basis, strict=False):
        total = total + _spread(weight) * v
    return total
