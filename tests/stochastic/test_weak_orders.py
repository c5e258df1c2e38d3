"""Weak orders of whole runs: slopes of errors of expectations, with intervals.

The closed form on the same noise takes most of the variance out of the errors.  `test_schemes.py` has the orders for
all types of noise, by quadrature.
"""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn

A, S, SEED = 0.5, 0.5, 12
PATHS = 1 << 17
WIDTH = 0.2  # of the interval of a slope, of four standard errors
SLOPE_TOLERANCE = 0.2


def find_orders(name: str):
    return next((orders for orders in sn.schemes.get(name).orders if orders.noise == "diagonal"), None)


def square_exactly(paths: np.ndarray, steps: int, cells: int, is_strong: bool) -> np.ndarray:
    """Squares of the solution at t = 1, or for weak schemes what has their mean: exp(2 S V) in place of exp(2 S dW)."""
    if is_strong:
        W = sn.noise.brownian(SEED, paths, 0.0, 1.0, cells=cells)[:, 0]
        return np.exp(2 * A - S**2 + 2 * S * W)
    x = 2 * S / np.sqrt(steps)
    V = sn.noise.three_point(SEED, paths, range(steps)).sum(axis=0)[:, 0]
    return np.exp(2 * A + S**2 + x * V) / (2 / 3 + np.cosh(np.sqrt(3) * x) / 3) ** steps


def collect_errors(name: str, steps: list[int]) -> np.ndarray:
    """The errors of squares for each number of steps, (steps, paths)."""
    gbm = sn.SDE(lambda t, y: A * y, lambda t, y: S * y, [1.0], (0.0, 1.0), seed=SEED, cells=steps[0])
    problem, paths = gbm.convert(sn.schemes.get(name).calculus), np.arange(PATHS)
    is_strong, errors = find_orders(name).strong > 0, []
    for n in steps:
        squares = sn.solve_ensemble(problem, name, paths=paths, steps=n).y_end[:, 0] ** 2
        errors.append(squares - square_exactly(paths, n, steps[0], is_strong))
    return np.array(errors)


def measure_slope(name: str, steps: list[int]) -> tuple[float, float]:
    """The slope of the logarithms of the mean errors, and its standard error."""
    errors = collect_errors(name, steps)
    means, x = errors.mean(axis=1), -np.log(steps)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    covariance = np.cov(errors) / PATHS
    gradient = weights / means
    return float(weights @ np.log(np.abs(means))), float(np.sqrt(gradient @ covariance @ gradient))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in sn.schemes.names("SDE") if find_orders(name)])
def test_slopes_of_mean_errors_are_the_weak_orders(name):
    order, is_strong = find_orders(name).weak, find_orders(name).strong > 0
    slope, error = measure_slope(name, [16, 32, 64] if order == 1 else [8, 16, 32] if is_strong else [4, 8, 16])
    print(f"{name}: weak order {order:g}, slope {slope:.3f} +- {2 * error:.3f}")
    assert 4 * error < WIDTH
    assert slope > order - SLOPE_TOLERANCE
