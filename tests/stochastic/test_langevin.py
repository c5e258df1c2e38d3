"""Langevin dynamics: stationary distributions, strong order against an `SDE` scheme, gradients, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import stepnet as sn
from stepnet.gradients import reversal
from stepnet.schemes.langevin import LangevinSplitting

SCHEMES = sn.schemes.names("Langevin")
K, T, C = 2.0, 1.5, 0.7  # stiffness, temperature, friction


def build_oscillator(**options) -> sn.Langevin:
    numbers = {"friction": C, "temperature": T, "seed": 4}
    return sn.Langevin(lambda t, q, k: -k * q, [1.0], [0.5], (0.0, 1.0), (K,), **{**numbers, **options})


def find_linear_step(name: str, h: float, mass: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """M and s of a step (q, v) -> M (q, v) + s xi for a linear force."""
    problem = replace(build_oscillator(mass=mass), t_span=(0.0, h), cells=1)
    xi = sn.noise.BrownianPath(4, 0, (0.0, h)).increment(0.0, h)[0] / np.sqrt(h)
    take = lambda q, v, **changes: sn.solve(replace(problem, q0=[q], v0=[v], **changes), name, steps=1).y[-1]
    M = np.stack([take(1.0, 0.0, temperature=0.0), take(0.0, 1.0, temperature=0.0)], axis=1)
    return M, take(0.0, 0.0) / xi


def find_stationary_covariance(M: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The solution of X = M X M' + s s'."""
    return np.linalg.solve(np.eye(4) - np.kron(M, M), np.outer(s, s).ravel()).reshape(2, 2)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("mass", [1.0, 3.0])
def test_positions_in_a_harmonic_well_have_the_exact_variance(name, mass):
    """All three schemes sample q of a linear force exactly at any step size; v has an error of the second order."""
    errors = []
    for h in (0.4, 0.2, 0.1):
        X = find_stationary_covariance(*find_linear_step(name, h, mass))
        assert X[0, 0] == pytest.approx(T / K, rel=1e-12)
        errors.append(abs(X[1, 1] * mass / T - 1))
    slope = np.polyfit(np.log([0.4, 0.2, 0.1]), np.log(errors), 1)[0]
    assert slope == pytest.approx(2.0, abs=0.2)


def force(t, q, a):
    return np.array([-a * np.sin(q[0]) + 0.5 * q[1] + 0.2 * np.cos(t), -np.tanh(q[1]) - 0.3 * q[0]])


def build_nonlinear(**options) -> sn.Langevin:
    numbers = {"friction": C, "temperature": T, "mass": [1.0, 2.0], "seed": 6, "cells": 32}
    return sn.Langevin(force, [0.8, -0.4], [0.1, 0.3], (0.0, 1.0), (1.4,), **{**numbers, **options})


def write_as_sde(problem: sn.Langevin) -> sn.SDE:
    """The same process as an equation for (q, v) with additive noise."""
    mass, sigma = problem.mass, np.sqrt(2 * problem.friction * problem.temperature / problem.mass)
    friction = problem.friction

    def drift(t, y, a):
        F = force(t, y[:2], a)
        return np.array([y[2], y[3], F[0] / mass[0] - friction * y[2], F[1] / mass[1] - friction * y[3]])

    def diffusion(t, y, a):
        return np.array([[0.0, 0.0], [0.0, 0.0], [sigma[0], 0.0], [0.0, sigma[1]]])

    how = {"noise": "additive", "seed": problem.seed, "cells": problem.cells}
    return sn.SDE(drift, diffusion, problem.initial, problem.t_span, problem.args, **how)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_strong_order_is_one_on_the_brownian_path_of_the_sde(name):
    problem, steps, errors = build_nonlinear(), np.array([32, 64, 128]), []
    fine = sn.solve_ensemble(write_as_sde(problem), "sra3", paths=200, steps=2048).y
    for n in steps:
        found = sn.solve_ensemble(problem, name, paths=200, steps=int(n))
        assert found.rung == "lanes"
        errors.append(np.sqrt(np.mean((found.y - fine) ** 2)))
    assert -np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_path_is_the_same_alone_and_in_an_ensemble(name):
    problem = build_nonlinear()
    many = sn.solve_ensemble(problem, name, paths=20, steps=32, save_at=[0.25, 1.0])
    one = sn.solve(problem, name, steps=32, path=13)
    assert np.array_equal(many.y[13], one.y[[8, 32]])
    assert one.q.shape == one.v.shape == (33, 2)
    plain = sn.solve(replace(problem, trace=False), name, steps=32, path=13)
    np.testing.assert_allclose(plain.y, one.y, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(slots=3)], ids=["all", "checkpoints"])
def test_gradients_are_those_of_the_path(name, memory, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 1)  # blocks of one step, so that schedules have something to do

    def loss(y):
        return y[0] ** 2 * y[3] + np.sin(y[1]) * y[2]

    problem, eps = build_nonlinear(), 1e-6
    found = sn.gradient(problem, name, loss, steps=32, memory=memory)

    def evaluate(**changes):
        return loss(sn.solve(replace(problem, **changes), name, steps=32, save_every=0).y[-1])

    slope = (evaluate(args=(1.4 + eps,)) - evaluate(args=(1.4 - eps,))) / (2 * eps)
    assert found.args[0] == pytest.approx(slope, rel=1e-7)
    for i, e in enumerate(np.eye(2)):
        for j, part in enumerate(("q0", "v0")):
            up, down = (evaluate(**{part: getattr(problem, part) + sign * eps * e}) for sign in (1, -1))
            assert found.y0[2 * j + i] == pytest.approx((up - down) / (2 * eps), rel=1e-6, abs=1e-8)


def quadratic(y):
    return y[0] ** 2 * y[3] + y[1] * y[2]


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_of_many_paths_are_those_of_each(name):
    problem = build_nonlinear()
    many = sn.gradient_ensemble(problem, name, quadratic, paths=18, steps=32)
    one = sn.gradient(replace(problem, path=17), name, quadratic, steps=32)
    assert many.rung == "lanes"
    np.testing.assert_allclose([*many.y0[17], *many.args[17]], one.flat, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", SCHEMES)
def test_tangents_and_hessian_products_are_derivatives_of_ends_and_gradients(name):
    problem, eps = build_nonlinear(), 1e-5
    direction, change = np.array([0.3, -0.2, 0.5, 0.1]), 0.7

    def move(x):
        q, v = np.split(problem.initial + x * direction, 2)
        return replace(problem, q0=q, v0=v, args=(1.4 + x * change,))

    tangent = sn.tangent(problem, name, y0=direction, args=(change,), steps=32)
    ends = [sn.solve(move(x), name, steps=32, save_every=0).y[-1] for x in (eps, -eps)]
    np.testing.assert_allclose(tangent.dy, (ends[0] - ends[1]) / (2 * eps), rtol=1e-8, atol=1e-9)
    product = sn.hvp(problem, name, quadratic, y0=direction, args=(change,), steps=32)
    slopes = [sn.gradient(move(x), name, quadratic, steps=32).flat for x in (eps, -eps)]
    np.testing.assert_allclose(product.flat, (slopes[0] - slopes[1]) / (2 * eps), rtol=1e-8, atol=1e-9)


def test_a_sweep_reduces_the_paths_of_each_point():
    problem = build_oscillator()
    found = sn.sweep(problem, "baoab", {"k": [1.0, 3.0]}, paths=40, steps=16, reduce=sn.reductions.Mean()).result
    alone = sn.solve_ensemble(replace(problem, args=(3.0,)), "baoab", paths=40, steps=16).y
    np.testing.assert_allclose(found.mean[1], alone.mean(axis=0), rtol=1e-12)


def test_without_friction_baoab_is_verlet():
    problem = build_oscillator(friction=0.0)
    found = sn.solve(problem, "baoab", steps=50)
    verlet = sn.solve(sn.SecondOrder(problem.force, [1.0], [0.5], (0.0, 1.0), (K,)), "verlet", steps=50)
    np.testing.assert_allclose(found.y, verlet.y, rtol=1e-13, atol=1e-14)


WELL_SPAN, WELL_T = 200.0, 0.3


def sample_double_well(name: str, h: float, paths: int) -> tuple[float, float, float]:
    """Mean of q^2 with its standard error, and the mean of v^2, for U = (q^2 - 1)^2."""
    steps = round(WELL_SPAN / h)
    problem = sn.Langevin(
        lambda t, q: -4 * q * (q * q - 1), [1.0], [0.0], (0.0, WELL_SPAN), friction=1.0, temperature=WELL_T, seed=9
    )
    times = np.linspace(0.0, WELL_SPAN, steps + 1)[steps // 10 :: steps // 40]
    y = sn.solve_ensemble(problem, name, paths=paths, steps=steps, save_at=times).y
    means = (y[..., 0] ** 2).mean(axis=1)
    return means.mean(), means.std() / np.sqrt(paths), (y[..., 1] ** 2).mean()


def integrate_density() -> float:
    q = np.linspace(-4, 4, 20001)
    weight = np.exp(-((q * q - 1) ** 2) / WELL_T)
    return (q * q * weight).sum() / weight.sum()


def test_the_distribution_in_a_double_well_is_near_the_exact_one():
    found, error, temperature = sample_double_well("baoab", 0.1, 2000)
    assert abs(found - integrate_density()) < 4 * error + 0.003  # the bias at this step size is below 0.003
    assert temperature == pytest.approx(WELL_T, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_biases_in_a_double_well_are_of_the_second_order(name):
    """That of q^2 by aboba, and that of the kinetic temperature; q^2 by the others has none that is measurable."""
    exact, positions, temperatures = integrate_density(), [], []
    for h in (0.25, 0.125):
        found, error, temperature = sample_double_well(name, h, 60_000)
        positions.append(found / exact - 1)
        temperatures.append(temperature / WELL_T - 1)
        assert error < 5e-4 * exact
    print(f"{name} at h = 1/4 and 1/8: biases of q^2 {positions}, of the temperature {temperatures}")
    assert np.log2(temperatures[0] / temperatures[1]) == pytest.approx(2.0, abs=0.5)
    if name == "aboba":
        assert np.log2(positions[0] / positions[1]) > 1.8
    else:
        assert max(map(abs, positions)) < 2e-3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"friction": -1.0}, "`friction`"),
        ({"temperature": -1.0}, "`temperature`"),
        ({"temperature": np.nan}, "`temperature`"),
        ({"mass": 0.0}, "`mass` must be positive"),
        ({"mass": [1.0, 2.0]}, "`mass` must be one number or have the shape"),
        ({"t_span": (1.0, 0.0)}, "`t_span` of a `Langevin` problem must be two finite times"),
        ({"v0": [1.0, 2.0]}, "must have equal shapes"),
    ],
)
def test_bad_problems_are_refused(changes, match):
    numbers = {"force": lambda t, q: -q, "q0": [1.0], "v0": [0.0], "t_span": (0.0, 1.0)}
    with pytest.raises((ValueError, TypeError), match=match):
        sn.Langevin(**{**numbers, **changes})


def test_wrong_pairings_are_refused():
    problem = build_oscillator()
    with pytest.raises(TypeError, match="rk4 does not integrate Langevin dynamics"):
        sn.solve(problem, "rk4", steps=4)
    with pytest.raises(TypeError, match="baoab integrates Langevin dynamics; use `Langevin`"):
        sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "baoab", steps=4)
    with pytest.raises(ValueError, match="baoab is a scheme for equal steps"):
        sn.solve(problem, "baoab", steps=[0.0, 0.3, 1.0])
    with pytest.raises(ValueError, match="baoab has no error estimate"):
        sn.solve(problem, "baoab")
    with pytest.raises(TypeError, match="baoab locates no `events`"):
        sn.solve(problem, "baoab", steps=4, events=sn.Event(lambda t, y: y[0], terminal=True))
    with pytest.raises(ValueError, match="`times` is not available"):
        sn.gradient(problem, "baoab", lambda y: y[0], steps=4, times=True)
    with pytest.raises(sn.SchemeError, match="one O"):
        LangevinSplitting("own", "OBABO", sn.schemes.get("baoab").orders, "a test")
