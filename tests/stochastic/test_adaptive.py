"""Adaptive steps of stochastic pairs: errors follow the tolerance, no bias, the same path after rejected attempts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn
from stepnet.schemes import capabilities

PAIRS = [name for name in sn.schemes.names("SDE") if capabilities.is_adaptive(sn.schemes.get(name))]
A, S = 0.3, 0.8  # drift and volatility of geometric Brownian motion
STANDARD_ERRORS = 3.0


def list_noises(name: str) -> list[str]:
    return [orders.noise for orders in sn.schemes.get(name).orders]


def build_gbm(**options) -> sn.SDE:
    drift, diffusion = lambda t, y, a, s: a * y, lambda t, y, a, s: s * y
    return sn.SDE(drift, diffusion, [1.0], (0.0, 1.0), (A, S), seed=11, cells=1, **options)


def test_the_pairs_are_those_of_roessler():
    assert PAIRS == ["sra1", "sra2", "sra3", "sriw1", "sriw2"]


QUICK = {("sra1", "additive"), ("sriw1", "diagonal"), ("sriw2", "scalar")}
CASES = [
    pytest.param(name, noise, marks=() if (name, noise) in QUICK else pytest.mark.slow)
    for name in PAIRS
    for noise in list_noises(name)
]


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_errors_on_the_same_paths_follow_the_tolerance(name, noise, counted):
    """A hundred paths; the error is at most ten times the tolerance, and falls at least tenfold with a hundredth."""
    problem, errors = problems.build(noise, cells=1, seed=5), []
    exact = sn.solve_ensemble(problem, name, paths=100, rtol=1e-6, atol=1e-6).y
    for tolerance in (1e-2, 1e-4):
        found = sn.solve_ensemble(problem, name, paths=100, rtol=tolerance, atol=tolerance)
        assert found.success.all()
        errors.append(np.sqrt(np.mean((found.y - exact) ** 2)))
        assert errors[-1] < 10 * tolerance
    assert found.rejected.sum() > 100
    assert errors[1] < errors[0] / 10
    counted("pairs and types of noise with adaptive steps", f"{name} {noise}", len(CASES))


def test_adaptive_steps_have_no_bias():
    """Mean and variance of geometric Brownian motion; rejected attempts would bias them if the path were drawn anew."""
    n = 8192
    found = sn.solve_ensemble(build_gbm(), "sriw1", paths=n, rtol=1e-3, atol=1e-3)
    y = found.y[:, -1, 0]
    assert found.rejected.sum() > n  # at least one of each path on average
    mean, variance = np.exp(A), np.exp(2 * A) * (np.exp(S**2) - 1)
    assert abs(y.mean() - mean) < STANDARD_ERRORS * y.std() / np.sqrt(n)
    squares = (y - mean) ** 2
    assert abs(squares.mean() - variance) < STANDARD_ERRORS * squares.std() / np.sqrt(n)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4])
def test_the_mean_error_of_the_paths_is_within_the_tolerance(tolerance):
    """Against the closed form on the same paths, where the variance of the mean does not hide a bias."""
    n = 2048
    W = sn.noise.brownian(11, np.arange(n), 0.0, 1.0)[:, 0]
    exact = np.exp(A - S**2 / 2 + S * W)
    found = sn.solve_ensemble(build_gbm(), "sriw1", paths=n, rtol=tolerance, atol=tolerance).y[:, -1, 0]
    assert abs(np.mean(found - exact)) < 2 * tolerance


def test_a_run_is_repeated_by_the_times_of_its_steps():
    adaptive = sn.solve(build_gbm(), "sriw1", rtol=1e-4, path=3)
    repeated = sn.solve(build_gbm(), "sriw1", steps=adaptive.t, path=3)
    assert adaptive.statistics.rejected > 0
    np.testing.assert_allclose(repeated.y, adaptive.y, rtol=1e-12)


def test_save_times_are_steps_on_the_same_path():
    times = np.array([0.0, 0.1, 1 / 3, 0.7, 1.0])  # 1/3 is not dyadic
    found = sn.solve(build_gbm(), "sriw1", rtol=1e-6, atol=1e-8, path=3, save_at=times)
    W = sn.noise.BrownianPath(11, 3)(times)[:, 0]
    assert np.array_equal(found.t, times)
    np.testing.assert_allclose(found.y[:, 0], np.exp((A - S**2 / 2) * times + S * W), rtol=1e-5)


def test_members_do_not_depend_on_threads_and_others():
    problem = build_gbm()
    alone = [sn.solve(problem, "sriw1", rtol=1e-3, path=k, save_every=0).y[-1] for k in range(40)]
    for workers in (1, 2):
        found = sn.solve_ensemble(problem, "sriw1", rtol=1e-3, paths=40, workers=workers)
        assert np.array_equal(found.y[:, -1], alone)


def test_saved_states_are_those_of_every_kth_step():
    every, third, last = (sn.solve(build_gbm(), "sriw1", rtol=1e-5, save_every=k) for k in (1, 3, 0))
    n = every.statistics.accepted
    assert len(every.t) == n + 1 > 100
    assert np.array_equal(third.t, every.t[np.unique([*range(0, n, 3), n])])
    assert np.array_equal(last.y, every.y[-1:])


def test_functions_in_python_run_and_their_exceptions_are_reported():
    seen = []  # a function that changes something outside runs in Python

    def drift(t, y, a, s):
        seen.append(t)
        if t > 0.5:
            raise RuntimeError("beyond")
        return a * y

    plain = replace(build_gbm(), trace=False)
    assert np.allclose(sn.solve(plain, "sriw1").y[-1], sn.solve(build_gbm(), "sriw1").y[-1], rtol=1e-12)
    with pytest.raises(sn.SolveFailed) as failed:
        sn.solve(replace(build_gbm(), drift=drift), "sriw1")
    assert "beyond" in str(failed.value.__cause__)
    assert 0.0 < failed.value.solution.t[-1] <= 0.5


def test_an_explosion_ends_a_path_with_its_status():
    problem = sn.SDE(lambda t, y: y**3, lambda t, y: 0.0 * y, [2.0], (0.0, 1.0))  # explodes at t = 1/8
    found = sn.solve(problem, "sriw1", check=False)
    assert not found.success
    assert found.t_end == pytest.approx(0.125, rel=1e-2)


def test_limits_are_kept():
    with pytest.raises(sn.SolveFailed, match="max_steps"):
        sn.solve(build_gbm(), "sriw1", rtol=1e-5, max_steps=10)
    assert np.diff(sn.solve(build_gbm(), "sriw1", max_step=0.01).t).max() <= 0.01 * (1 + 1e-9)


def test_schemes_without_an_estimate_and_derivatives_need_steps():
    with pytest.raises(ValueError, match=r"milstein has no error estimate.*give `steps`"):
        sn.solve(build_gbm(), "milstein")
    with pytest.raises(ValueError, match="`steps` are needed for derivatives"):
        sn.gradient(build_gbm(), "sriw1", lambda y: y[0])
