"""Gradients of ensembles equal those of single runs, in lanes and one by one."""

from __future__ import annotations

import numpy as np
import pytest
from ensembles.cases import DUFFING, EVEN, LORENZ, duffing, is_second_order, lorenz_args, of_lorenz

import stepnet as sn

GENERATOR = np.random.default_rng(3)


def loss(y):
    return np.sum(np.sin(y)) + 0.5 * y[0] * y[1]


@pytest.mark.parametrize("scheme", EVEN, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("steps", [1, 37])
def test_even_steps_in_lanes(scheme, steps):
    if steps == 1 and getattr(scheme, "n_steps", 1) > 2:
        steps = scheme.n_steps
    if is_second_order(scheme):
        y0, args = GENERATOR.standard_normal((18, 4)), GENERATOR.uniform(0.1, 1.0, (18, 1))
        problem = DUFFING
        alone = [
            sn.SecondOrder(duffing, y[:2], y[2:], (0.0, 0.2), args=tuple(p)) for y, p in zip(y0, args, strict=True)
        ]
    else:
        y0, args = GENERATOR.standard_normal((18, 3)), lorenz_args(18)
        problem = LORENZ
        alone = [of_lorenz(p, y0=y, t_span=(0.0, 0.2)) for y, p in zip(y0, args, strict=True)]
    found = sn.gradient_ensemble(problem, scheme, loss, y0=y0, args=args, t_span=(0.0, 0.2), steps=steps)
    assert found.rung == "lanes"
    for i, one in enumerate(alone):
        wanted = sn.gradient(one, scheme, loss, steps=steps)
        assert found.value[i] == pytest.approx(wanted.value, rel=1e-13)
        np.testing.assert_allclose(found.y0[i], wanted.y0, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(found.args[i], np.array(wanted.args), rtol=1e-11, atol=1e-13)


def test_adaptive_steps_one_by_one():
    args = lorenz_args(5)
    found = sn.gradient_ensemble(LORENZ, "dopri5", loss, args=args, rtol=1e-7, atol=1e-9, workers=2)
    assert found.rung == "one by one"
    assert "adaptive" in found.reason
    for i, values in enumerate(args):
        wanted = sn.gradient(of_lorenz(values), "dopri5", loss, rtol=1e-7, atol=1e-9)
        assert found.value[i] == wanted.value
        assert np.array_equal(found.y0[i], wanted.y0)
        assert np.array_equal(found.args[i], wanted.args)


def test_the_sum_is_the_gradient_of_the_sum():
    """By differences in what all members share."""
    y0 = GENERATOR.standard_normal((40, 3))

    def total(args):
        return sn.gradient_ensemble(LORENZ, "rk4", loss, y0=y0, args=np.tile(args, (40, 1)), steps=50)

    base, step = np.array(LORENZ.args), 1e-6
    value, _, gradient = total(base).sum()
    assert value == pytest.approx(total(base).value.sum())
    for j in range(3):
        shift = step * np.eye(3)[j]
        slope = (total(base + shift).sum()[0] - total(base - shift).sum()[0]) / (2 * step)
        assert gradient[j] == pytest.approx(slope, rel=1e-6)


def test_end_gradients_and_company():
    y0, bars = GENERATOR.standard_normal((70, 3)), GENERATOR.standard_normal((70, 3))
    found = sn.gradient_ensemble(LORENZ, "rk4", end_gradient=bars, y0=y0, steps=30, workers=1)
    order = GENERATOR.permutation(70)
    other = sn.gradient_ensemble(LORENZ, "rk4", end_gradient=bars[order], y0=y0[order], steps=30, workers=2)
    assert np.array_equal(found.y0[order], other.y0)
    assert np.array_equal(found.args[order], other.args)


@pytest.mark.parametrize("how", [{"steps": 3}, {"rtol": 1e-6}], ids=["even", "adaptive"])
def test_no_members(how):
    found = sn.gradient_ensemble(LORENZ, "dopri5", loss, y0=np.zeros((0, 3)), **how)
    assert (found.value.shape, found.y0.shape, found.args.shape) == ((0,), (0, 3), (0, 3))


def test_bad_input():
    with pytest.raises(TypeError, match="either `loss` or `end_gradient`, found neither"):
        sn.gradient_ensemble(LORENZ, "rk4", y0=np.ones((2, 3)), steps=3)
    with pytest.raises(ValueError, match=r"`end_gradient` must be finite and of shape \(2, 3\)"):
        sn.gradient_ensemble(LORENZ, "rk4", end_gradient=np.ones(3), y0=np.ones((2, 3)), steps=3)
    growing = sn.ODE(lambda t, y: y * y, [1.0], (0.0, 2.0))
    with pytest.raises(ValueError, match="1 of 2 members have no end to differentiate, the first of them 1"):
        sn.gradient_ensemble(growing, "rk4", loss=lambda y: y[0], y0=[[0.1], [3.0]], steps=100)


@pytest.mark.filterwarnings("ignore::stepnet.AdjointWarning")
def test_derivatives_that_are_not_known_are_nan():
    """Counts are part of the code, and a user's `vjp` says nothing of the arguments."""
    problem = sn.ODE(lambda t, y, a, k: -a * y ** len(range(k)), [1.0], (0.0, 1.0), args=(0.5, 2))
    for how, rung in (({}, "one by one"), ({"steps": 20}, "lanes")):
        found = sn.gradient_ensemble(problem, "dopri5", lambda y: y[0], y0=[[1.0], [2.0]], **how)
        assert found.rung == rung
        assert np.isfinite(found.args[:, 0]).all()
        assert np.isnan(found.args[:, 1]).all()
    own = sn.ODE(lambda t, y, a: -a * y, [1.0], (0.0, 1.0), args=(0.5,), vjp=lambda t, y, w, a: -a * w)
    found = sn.gradient_ensemble(own, "dopri5", lambda y: y[0], y0=[[1.0], [2.0]])
    np.testing.assert_allclose(found.y0[:, 0], np.exp(-0.5), rtol=1e-5)
    assert np.isnan(found.args).all()
