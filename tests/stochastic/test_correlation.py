"""Correlated components of the noise: laws, closed forms, conversions, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn

R = np.array([[1.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 1.0]])
A, S = np.array([0.1, -0.2, 0.3]), np.array([0.5, 0.7, 0.4])
STANDARD_ERRORS = 4.0
SLOPE_TOLERANCE = 0.2
ROUNDING = 1e-13


def build_gbm(**options) -> sn.SDE:
    return sn.SDE(lambda t, y: A * y, lambda t, y: S * y, np.ones(3), (0.0, 1.0), seed=8, **options)


def test_correlations_of_ends_are_those_that_were_asked_for():
    motion = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, np.zeros(3), (0.0, 1.0), seed=2)
    n = 20_000
    alone, found = (
        sn.solve_ensemble(each, "euler_maruyama", paths=n, steps=2).y[:, -1]
        for each in (motion, sn.noise.correlate(motion, R))
    )
    products = found[:, :, None] * found[:, None, :]
    assert (np.abs(products.mean(axis=0) - R) < STANDARD_ERRORS * products.std(axis=0) / np.sqrt(n)).all()
    np.testing.assert_allclose(found[:, 0], alone[:, 0], rtol=0, atol=ROUNDING)  # the first component stays
    np.testing.assert_allclose(found, alone @ np.linalg.cholesky(R).T, rtol=0, atol=10 * ROUNDING)


def test_milstein_has_its_order_with_correlated_diagonal_noise():
    """Against the closed form of geometric Brownian motions on the same paths."""
    paths, steps = 200, np.array([32, 64, 128, 256])
    problem = sn.noise.correlate(build_gbm(cells=32), R)
    W = sn.noise.brownian(8, np.arange(paths), 0.0, 1.0, cells=32, dimension=3) @ np.linalg.cholesky(R).T
    exact = np.exp(A - S**2 / 2 + S * W)
    errors = []
    for n in steps:
        found = sn.solve_ensemble(problem, "milstein", paths=paths, steps=int(n))
        assert found.rung == "lanes"
        errors.append(np.sqrt(np.mean((found.y[:, -1] - exact) ** 2)))
    assert -np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(1.0, abs=SLOPE_TOLERANCE)


def test_correlating_and_converting_commute():
    one = sn.noise.correlate(build_gbm(), R).convert("stratonovich")
    other = sn.noise.correlate(build_gbm().convert("stratonovich"), R)
    first, second = (sn.solve(each, "stochastic_heun", steps=32).y for each in (one, other))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("noise", ["diagonal", "additive", "commutative", "general"])
def test_no_correlation_changes_nothing(noise):
    problem = problems.build(noise, seed=4)
    found, wanted = (
        sn.solve(each, "euler_maruyama", steps=16).y for each in (sn.noise.correlate(problem, np.eye(2)), problem)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-14)


def test_components_of_a_singular_matrix_are_one():
    equal = replace(build_gbm(), drift=lambda t, y: 0.1 * y, diffusion=lambda t, y: 0.4 * y)
    y = sn.solve(sn.noise.correlate(equal, np.ones((3, 3))), "euler_maruyama", steps=16).y
    assert np.array_equal(y[:, 0], y[:, 1])
    assert np.array_equal(y[:, 0], y[:, 2])


def test_states_of_any_shape_and_gradients():
    problem = sn.SDE(lambda t, y, s: -y, lambda t, y, s: s * y, [[1.0, 2.0]], (0.0, 1.0), (0.3,), seed=5)
    both = sn.noise.correlate(problem, [[1.0, -0.5], [-0.5, 1.0]])
    assert both.diffusion_shape == (1, 2, 2)

    def loss(y):
        return y[0, 0] * y[0, 1]

    found, eps = sn.gradient(both, "milstein", loss, steps=16), 1e-5
    up, down = (loss(sn.solve(replace(both, args=(0.3 + d,)), "milstein", steps=16).y[-1]) for d in (eps, -eps))
    assert found.args[0] == pytest.approx((up - down) / (2 * eps), rel=1e-7)


def test_scalar_noise_has_nothing_to_correlate():
    problem = problems.build("scalar")
    assert sn.noise.correlate(problem, [[1.0]]) is problem


@pytest.mark.parametrize(
    ("correlation", "match"),
    [
        ([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]], "positive semidefinite, found the eigenvalue -0.8"),
        ([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]], "positive semidefinite, found the eigenvalue -1"),
        ([[1.0, 0.5], [0.5, 1.0]], r"`correlation` must have the shape \(3, 3\)"),
        (np.ones(3), r"`correlation` must have the shape \(n, n\)"),
        (np.diag([1.0, 2.0, 1.0]), "ones on the diagonal"),
        ([[1.0, 0.5, 0.0], [0.4, 1.0, 0.0], [0.0, 0.0, 1.0]], "must be symmetric"),
        (np.full((3, 3), np.nan), "`correlation` must be finite"),
        ("half", "`correlation` must be an array"),
    ],
)
def test_matrices_that_are_no_correlations_are_refused(correlation, match):
    with pytest.raises((ValueError, TypeError), match=match):
        sn.noise.correlate(build_gbm(), correlation)


def test_other_problems_are_refused():
    with pytest.raises(TypeError, match="`sde` must be an SDE"):
        sn.noise.correlate(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), [[1.0]])
