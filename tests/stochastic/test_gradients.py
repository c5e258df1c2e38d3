"""Derivatives of paths: exact gradients, tangents and Hessian products, and likelihood ratios."""

from __future__ import annotations

from dataclasses import replace
from math import erf, exp, log, pi, sqrt

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn
from stepnet.errors import NoDerivative
from stepnet.gradients import reversal
from stepnet.schemes import capabilities

STEPS, PATHS = 40, 21
AGREEMENT = 1e-12  # of the same sums in another order
STEP = 1e-4  # of central differences of fourth order, whose error is about 1e-11
DIFFERENCES = 1e-7
WITHOUT_TANGENT = ("tamed_euler",)  # a norm of the drift is not one of drift and tangent


def loss(y):
    return y[0] ** 2 * y[1] + np.sin(y[1])


def build(name: str, noise: str, **options) -> sn.SDE:
    return problems.build(noise, sn.schemes.get(name).calculus, seed=11, **options)


def differentiate(function, x: float) -> float:
    """By central differences of fourth order."""
    values = [function(x + k * STEP) for k in (-2, -1, 1, 2)]
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * STEP)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_gradients_are_those_of_the_path_with_the_same_noise(name, noise):
    problem = build(name, noise, path=3)
    found = sn.gradient_ensemble(problem, name, loss, paths=PATHS, steps=STEPS)
    assert found.rung == ("one by one" if capabilities.is_implicit(sn.schemes.get(name)) else "lanes")
    k = 18
    for wanted, change in (
        (found.y0[k, 0], lambda x: replace(problem, y0=[x, problem.y0[1]], path=3 + k)),
        (found.args[k, 0], lambda x: replace(problem, args=(x,), path=3 + k)),
    ):
        at = problem.y0[0] if wanted == found.y0[k, 0] else problem.args[0]
        slope = differentiate(lambda x, change=change: loss(sn.solve(change(x), name, steps=STEPS).y[-1]), at)
        assert wanted == pytest.approx(slope, rel=DIFFERENCES, abs=DIFFERENCES)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_all_memory_policies_lanes_tangents_and_jacobians_agree(name, noise, tmp_path, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 1)  # blocks of one step, so that schedules have something to do
    problem = build(name, noise)
    own = replace(problem, path=18)
    lanes = sn.gradient_ensemble(problem, name, loss, paths=PATHS, steps=STEPS)
    bounded = [sn.Checkpoints(4), 400, sn.Checkpoints(2, disk=tmp_path)]
    for memory in ["all", *bounded, *(["reversible"] if name == "reversible_heun" else [])]:
        found = sn.gradient(own, name, loss, steps=STEPS, memory=memory)
        assert memory not in bounded or 0 < found.cost.states < STEPS
        np.testing.assert_allclose(found.flat, [*lanes.y0[18], *lanes.args[18]], rtol=AGREEMENT, atol=AGREEMENT)
        assert found.value == pytest.approx(lanes.value[18], rel=AGREEMENT)
    direction, change = np.array([0.3, -0.7]), (0.4,)
    if name in WITHOUT_TANGENT:
        with pytest.raises(NoDerivative, match="`tangent` and `hvp` do not support it"):
            sn.tangent(own, name, y0=direction, steps=STEPS)
        return
    jacobian = sn.jacobian(own, name, steps=STEPS)
    tangent = sn.tangent(own, name, y0=direction, args=change, steps=STEPS)
    product = jacobian.y0 @ direction + jacobian.args[0] * change[0]
    np.testing.assert_allclose(tangent.dy, product, rtol=AGREEMENT, atol=AGREEMENT)
    np.testing.assert_allclose(lanes.y0[18] @ direction + lanes.args[18] @ change,
                               _gradient_of_loss(tangent.y) @ tangent.dy, rtol=1e-11)  # fmt: skip


def _gradient_of_loss(y):
    return np.array([2 * y[0] * y[1], y[0] ** 2 + np.cos(y[1])])


@pytest.mark.parametrize(
    ("name", "noise"), [("milstein", "commutative"), ("sriw1", "diagonal"), ("euler_heun", "general")]
)
def test_hessian_products_are_derivatives_of_gradients(name, noise):
    problem = build(name, noise, path=2)
    found = sn.hvp(problem, name, loss, y0=[1.0, 0.0], args=(0.5,), steps=STEPS)

    def gradient(x):
        moved = replace(problem, y0=problem.y0 + x * np.array([1.0, 0.0]), args=(problem.args[0] + 0.5 * x,))
        return sn.gradient(moved, name, loss, steps=STEPS).flat

    np.testing.assert_allclose(found.flat, differentiate(gradient, 0.0), rtol=DIFFERENCES, atol=DIFFERENCES)


def test_tangents_at_save_times_end_with_that_of_the_end():
    problem = build("sriw1", "diagonal")
    found = sn.tangent(problem, "sriw1", y0=[1.0, 2.0], steps=STEPS, save_at=[0.0, 0.5, 1.0])
    end = sn.tangent(problem, "sriw1", y0=[1.0, 2.0], steps=STEPS)
    assert np.array_equal(found.dy[0], [1.0, 2.0])
    assert np.array_equal(found.y[1], sn.solve(problem, "sriw1", steps=STEPS, save_at=[0.5]).y[0])
    np.testing.assert_allclose(found.dy[2], end.dy, rtol=AGREEMENT)


def test_a_reversible_scheme_keeps_few_states_of_any_number_of_steps():
    problem = build("reversible_heun", "general")
    few, many = (
        sn.gradient(problem, "reversible_heun", loss, steps=n, memory="reversible").cost for n in (100_000, 200_000)
    )
    assert few.states == many.states < 50_000
    assert many.drift < 1e-9


@pytest.mark.parametrize("cells", [None, 8, 128])
def test_long_runs_in_segments_and_refined_noise_agree_with_single_paths(cells, monkeypatch):
    from stepnet.engines.numba_engine.ensembles import path_gradients

    monkeypatch.setattr(path_gradients, "SEGMENT_BYTES", 1)
    problem = build("sriw1", "diagonal", cells=cells)
    found = sn.gradient_ensemble(problem, "sriw1", loss, paths=18, steps=64)
    assert found.rung == "lanes"
    alone = sn.gradient(replace(problem, path=17), "sriw1", loss, steps=64)
    np.testing.assert_allclose([*found.y0[17], *found.args[17]], alone.flat, rtol=AGREEMENT)


def test_losses_with_their_own_gradient_end_gradients_and_untraced_problems_agree():
    problem = build("milstein", "diagonal")
    traced = sn.gradient_ensemble(problem, "milstein", loss, paths=5, steps=STEPS)
    pairs = sn.gradient_ensemble(problem, "milstein", lambda y: (loss(y), _gradient_of_loss(y)), paths=5, steps=STEPS)
    ends = sn.solve_ensemble(problem, "milstein", paths=5, steps=STEPS).y_end
    bars = np.array([_gradient_of_loss(y) for y in ends])
    given = sn.gradient_ensemble(problem, "milstein", end_gradient=bars, paths=5, steps=STEPS)
    uneven = sn.gradient_ensemble(problem, "milstein", loss, paths=5, steps=np.linspace(0, 1, STEPS + 1))
    assert uneven.rung == "one by one"
    for other in (pairs, given, uneven):
        np.testing.assert_allclose(other.y0, traced.y0, rtol=1e-10)
        np.testing.assert_allclose(other.args, traced.args, rtol=1e-10)
    value, y0, args = traced.mean()
    assert value == pytest.approx(traced.value.mean(), rel=AGREEMENT)
    np.testing.assert_allclose(np.concatenate((y0, args)) * 5, np.concatenate(traced.sum()[1:]), rtol=AGREEMENT)


# ---- likelihood ratios ----------------------------------------------------------------------------------------------

A, S, STRIKE = 0.05, 0.2, 1.05
GBM = sn.SDE(lambda t, y, a, s: a * y, lambda t, y, a, s: s * y, [1.0], (0.0, 1.0), (A, S), seed=5)
BIAS = 0.02  # of Euler-Maruyama with 32 steps


def test_likelihood_ratios_of_a_digital_payoff_are_those_of_the_closed_form():
    found = sn.likelihood_ratio_gradient(GBM, lambda y: float(y[0] > STRIKE), paths=50_000, steps=32)
    d = (A - S**2 / 2 - log(STRIKE)) / S
    density = exp(-(d**2) / 2) / sqrt(2 * pi)
    wanted = density / S, density * (-1 - d / S)
    assert found.value == pytest.approx(0.5 * (1 + erf(d / sqrt(2))), abs=4 * found.value_error + BIAS)
    assert (np.abs(found.args - wanted) < 4 * found.args_error + BIAS).all()


def test_likelihood_ratios_of_a_smooth_payoff_agree_with_pathwise_gradients():
    weighted = sn.likelihood_ratio_gradient(GBM, lambda y: y[0] ** 2, paths=20_000, steps=16)
    exact = sn.gradient_ensemble(GBM, "euler_maruyama", lambda y: y[0] ** 2, paths=20_000, steps=16)
    _, _, args = exact.mean()
    errors = np.hypot(weighted.args_error, exact.standard_errors()[2])
    assert (np.abs(weighted.args - args) < 4 * errors).all()
    assert (weighted.args_error > exact.standard_errors()[2]).all()


def test_likelihood_ratios_refuse_other_noise_and_problems_without_arguments():
    with pytest.raises(ValueError, match="one component of noise for each entry"):
        sn.likelihood_ratio_gradient(build("euler_maruyama", "general"), loss, paths=4, steps=4)
    with pytest.raises(ValueError, match="Ito"):
        sn.likelihood_ratio_gradient(GBM.convert("stratonovich"), loss, paths=4, steps=4)
    bare = sn.SDE(lambda t, y: -y, lambda t, y: 1.0 + 0 * y, [1.0], (0.0, 1.0))
    with pytest.raises(ValueError, match="numbers in `args`"):
        sn.likelihood_ratio_gradient(bare, loss, paths=4, steps=4)
