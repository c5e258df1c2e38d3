"""Gradients and Hessian products of every loss, by Taylor slopes; what reductions and weights mean."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from nets.losses.cases import BATCH, CASES, generator, outputs

from stepnet.nets import losses, penalties

LENGTHS = np.array([2e-3, 1e-3, 5e-4])
NEAR = 0.15  # of the slopes
ROUNDING = 1e-13
SQUARES = {"mse", "mae", "quantile", "huber"}
ALMOST = 1e-6  # a power this close to two leaves less than rounding

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def slope_of(remainders: np.ndarray) -> float:
    return float(np.polyfit(np.log(LENGTHS), np.log(remainders), 1)[0])


def test_every_loss_of_the_catalogue_is_tried():
    assert {case.loss.name for case in CASES} == set(losses.names())


@every_case
def test_what_the_gradient_leaves_shrinks_as_the_square_and_with_the_hessian_as_the_cube(case):
    z, v = outputs(), generator().normal(size=outputs().shape)
    here = case.loss.at(z, case.targets)
    change = np.array([case.loss.at(z + s * v, case.targets).value for s in LENGTHS]) - here.value
    linear = LENGTHS * np.vdot(here.gradient, v)
    quadratic = linear + 0.5 * LENGTHS**2 * np.vdot(here.product(v), v)
    if case.loss.name not in SQUARES and abs(case.loss.numbers.get("alpha", 0) - 2) > ALMOST:
        assert slope_of(np.abs(change - linear)) == pytest.approx(2, abs=NEAR)
        assert slope_of(np.abs(change - quadratic)) == pytest.approx(3, abs=NEAR)
    else:  # piecewise polynomials of degree two at most: nothing is left
        assert np.abs(change - quadratic).max() < ROUNDING


@every_case
def test_the_product_is_the_derivative_of_the_gradient_and_symmetric(case):
    z, random = outputs(), generator()
    u, v = random.normal(size=(2, *z.shape))
    here = case.loss.at(z, case.targets)
    s = 1e-5
    ahead, behind = (case.loss.at(z + d * v, case.targets).gradient for d in (s, -s))
    np.testing.assert_allclose((ahead - behind) / (2 * s), here.product(v), atol=1e-8, rtol=1e-6)
    assert np.vdot(u, here.product(v)) == pytest.approx(np.vdot(v, here.product(u)), abs=ROUNDING)


@every_case
def test_samples_do_not_know_each_other(case):
    """With single samples in place of the batch, values and gradients are the same; so are weights and repetitions."""
    summed = replace(case.loss, reduction="sum")
    z, weights = outputs(), np.arange(BATCH) % 3
    whole = summed.at(z, case.targets, weights)
    alone = [summed.at(z[i : i + 1], case.targets[i : i + 1]) for i in range(BATCH)]
    assert whole.value == pytest.approx(sum(w * one.value for w, one in zip(weights, alone, strict=True)), rel=ROUNDING)
    rows = np.vstack([w * one.gradient for w, one in zip(weights, alone, strict=True)])
    np.testing.assert_allclose(whole.gradient, rows, atol=ROUNDING)


@every_case
def test_a_weight_of_two_is_a_sample_that_comes_twice(case):
    z, weights = outputs(), np.arange(BATCH) % 3
    again = np.repeat(np.arange(BATCH), weights)
    weighted, repeated = case.loss.at(z, case.targets, weights), case.loss.at(z[again], case.targets[again])
    assert weighted.value == pytest.approx(repeated.value, rel=ROUNDING)


@every_case
def test_convex_losses_have_no_negative_curvature(case):
    random = generator()
    least = min(
        np.vdot(v, case.loss.at(z, case.targets).product(v))
        for z, v in random.normal(scale=3.0, size=(200, 2, *outputs().shape))
    )
    assert (least > -ROUNDING) or not case.loss.convex


@every_case
def test_float32_stays_float32_and_agrees(case):
    z = outputs()
    short, long = case.loss.at(z.astype(np.float32), case.targets), case.loss.at(z, case.targets)
    assert short.gradient.dtype == short.product(z).dtype == np.float32
    assert short.value == pytest.approx(long.value, rel=1e-4)
    np.testing.assert_allclose(short.gradient, long.gradient, atol=1e-4)


@every_case
def test_a_loss_comes_back_from_pickle(case):
    again = pickle.loads(pickle.dumps(case.loss))
    assert repr(again) == repr(case.loss)
    assert again.at(outputs(), case.targets).value == case.loss.at(outputs(), case.targets).value


@pytest.mark.parametrize("penalty", [penalties.l1(0.3), penalties.l2(0.3), penalties.elastic_net(0.3, 0.4)], ids=repr)
def test_penalties_have_their_derivatives_and_proximal_maps(penalty):
    random = generator()
    w, v = random.normal(size=(2, 12))
    here, s = penalty.at(w), 1e-4
    values = [penalty.at(w + d * v).value for d in (s, -s)]
    assert (values[0] - values[1]) / (2 * s) == pytest.approx(here.gradient @ v, rel=1e-9)
    second = (values[0] - 2 * here.value + values[1]) / s**2
    assert second == pytest.approx(v @ here.product(v), abs=1e-6)
    step = 0.7
    u = penalty.proximal(w, step)

    def cost(x):
        return 0.5 * (x - w) @ (x - w) + step * penalty.at(x).value

    assert all(cost(u) <= cost(u + 1e-3 * d) for d in random.normal(size=(50, 12)))
