"""Weak orders of whole runs: slopes of errors of expectations, with intervals, for all types of noise.

Equations are linear, so that the expectations are known to rounding; martingales take most of the variance out of the
errors.  `test_schemes.py` has the local errors on nonlinear equations, by quadrature.
"""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import linear_moments

import stepnet as sn

WIDTH = 0.2  # of the interval of a slope, of four standard errors
SLOPE_TOLERANCE = 0.2
PATHS, PATHS_OF_PAIRS = 1024, 4096  # the second state of `reversible_heun` is not in the controls
GUARDS = [("euler_maruyama", "general"), ("dri1", "general"), ("baoab", "additive")]

# Schemes whose second moments of these linear equations converge faster than the weak order that holds in general.
HIGHER = {
    ("sriw1", "scalar"): 2, ("sriw1", "diagonal"): 2, ("stochastic_heun", "additive"): 2,
    ("stochastic_midpoint", "additive"): 2, ("reversible_heun", "additive"): 2,
}  # fmt: skip


def list_orders(name: str) -> dict[str, tuple[float, float]]:
    """The strong and the weak order for each type of noise."""
    return {orders.noise: (orders.strong, orders.weak) for orders in sn.schemes.get(name).orders}


def choose_steps(strong: float, weak: float) -> tuple[int, ...]:
    """Three numbers of steps; fewer for weak schemes, whose runs of different lengths share no variables."""
    first = 16 if strong == 0 else 32 if weak == 1 else 64
    return first, 2 * first, 4 * first


def measure_slope(name: str, noise: str, steps: tuple[int, ...]) -> tuple[float, float]:
    """The slope of the logarithms of the mean errors, and its standard error."""
    n_paths = PATHS_OF_PAIRS if name == "reversible_heun" else PATHS
    errors = linear_moments.collect_errors(name, noise, steps, n_paths)
    means, x = errors.mean(axis=1), -np.log(steps)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    gradient = weights / means
    return float(weights @ np.log(np.abs(means))), float(np.sqrt(gradient @ np.cov(errors) @ gradient / n_paths))


def require_order(name: str, noise: str) -> str:
    """Assert that the measured slope is the order; the slope as text."""
    strong, weak = list_orders(name)[noise]
    slope, error = measure_slope(name, noise, choose_steps(strong, weak))
    order = HIGHER.get((name, noise), weak)
    assert order >= weak
    assert 4 * error < WIDTH
    assert slope == pytest.approx(order, abs=SLOPE_TOLERANCE), f"{name}, {noise} noise"
    return f"{noise} {slope:.3f} +- {2 * error:.3f} ({weak:g})"


@pytest.mark.parametrize(("name", "noise"), GUARDS)
def test_slopes_of_mean_errors_are_the_weak_orders_of_some_schemes(name, noise):
    require_order(name, noise)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sn.schemes.names("SDE"), *sn.schemes.names("Langevin")])
def test_slopes_of_mean_errors_are_the_weak_orders(name):
    print(f"weak slopes (orders) of {name}: " + ", ".join(require_order(name, noise) for noise in list_orders(name)))


def test_controls_have_the_mean_zero_and_leave_the_mean():
    """With and without them, the error of few paths is the same up to the standard error of the uncontrolled mean."""
    name, noise, steps, n_paths = "milstein", "commutative", (8,), 4096
    controlled = linear_moments.collect_errors(name, noise, steps, n_paths)[0]
    problem = linear_moments.build(name, noise, seed=12, cells=8)
    y = sn.solve_ensemble(problem.problem, name, paths=n_paths, steps=8).y_end
    z = np.column_stack((np.ones((n_paths, 2)), y))
    start = np.array([1.0, 0.0, *linear_moments.START])
    exact = start @ linear_moments.find_means(problem.sde, np.array([0.0]))[0] @ start
    plain = np.einsum("pi,ij,pj->p", z, linear_moments.Q, z) - exact
    assert controlled.std() < 0.05 * plain.std()
    assert abs(plain.mean() - controlled.mean()) < 4 * plain.std() / np.sqrt(n_paths)
