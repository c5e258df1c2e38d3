"""Large, infinite and undefined outputs; limits of families; minimisers of losses."""

from __future__ import annotations

from math import inf

import mpmath
import numpy as np
import pytest

from stepnet.nets import losses

FAR = 1e4
SHARP = 1e-14


def finite(here, v) -> bool:
    return bool(np.isfinite(here.gradient).all() and np.isfinite(here.product(v)).all())


@pytest.mark.parametrize("name", ["cross_entropy", "focal"])
@pytest.mark.parametrize("logits", [(FAR, -FAR, 0.0), (inf, 0.0, -5.0), (1.0, -inf, -inf), (inf, -inf, 0.0)])
def test_a_sure_and_right_answer_costs_nothing(name, logits):
    here = losses.get(name).at(np.array([logits]), [0])
    assert here.value == 0
    assert not here.gradient.any()
    assert finite(here, np.ones((1, 3)))


@pytest.mark.parametrize("name", ["cross_entropy", "focal"])
def test_a_sure_and_wrong_answer_costs_the_distance_of_the_logits(name):
    here = losses.get(name).at(np.array([[FAR, -FAR, 0.0]]), [1])
    assert here.value == 2 * FAR
    np.testing.assert_array_equal(here.gradient, [[1.0, -1.0, 0.0]])
    assert finite(here, np.ones((1, 3)))


def test_an_impossible_answer_costs_infinity_with_a_finite_gradient():
    here = losses.cross_entropy().at(np.array([[0.0, -inf, 1.0]]), [1])
    assert here.value == inf
    assert finite(here, np.ones((1, 3)))


@pytest.mark.parametrize("name", ["binary_cross_entropy", "binary_focal"])
@pytest.mark.parametrize(("z", "y", "value"), [(FAR, 1, 0.0), (-FAR, 0, 0.0), (FAR, 0, FAR), (-FAR, 1, FAR),
                                               (inf, 1, 0.0), (-inf, 0, 0.0), (inf, 0, inf)])  # fmt: skip
def test_answers_of_any_size(name, z, y, value):
    here = losses.get(name).at(np.array([[z]]), [[y]])
    assert here.value == value
    assert finite(here, np.ones((1, 1)))
    assert here.gradient[0, 0] == np.sign(value) * np.sign(z)


@pytest.mark.parametrize("z", [30.0, 100.0, 700.0])
def test_small_losses_keep_their_digits(z):
    exact = float(mpmath.log1p(mpmath.exp(-mpmath.mpf(z))))
    assert losses.binary_cross_entropy().at(np.array([[z]]), [[1]]).value == pytest.approx(exact, rel=SHARP)
    assert losses.cross_entropy().at(np.array([[0.0, z]]), [1]).value == pytest.approx(exact, rel=SHARP)


def test_undefined_outputs_give_an_undefined_value():
    for name in ("mse", "cross_entropy", "binary_cross_entropy", "focal", "poisson"):
        z = np.array([[np.nan, 1.0]])
        assert np.isnan(losses.get(name).at(z, [0] if name in ("cross_entropy", "focal") else [[1.0, 1.0]]).value)


@pytest.mark.parametrize("loss", [losses.poisson(), losses.barron(inf), losses.gaussian_nll()], ids=repr)
def test_overflow_is_an_infinite_value_without_a_warning(loss):
    z = np.array([[FAR, -FAR]])
    here = loss.at(z, [[0.0]] if loss.name == "gaussian_nll" else [[0.0, 0.0]])
    assert here.value == inf
    here.gradient, here.product(z)


def test_the_hessian_of_cross_entropy_is_that_of_the_book():
    """diag(p) - p p'."""
    z = np.array([[0.3, -1.0, 2.0]])
    p = losses.softmax(z)[0]
    here = losses.cross_entropy().at(z, [2])
    found = np.vstack([here.product(np.eye(3)[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(found, np.diag(p) - np.outer(p, p), atol=SHARP)


def test_two_classes_are_a_question():
    z, y, weights = np.array([[0.7], [-2.0], [3.0]]), np.array([1, 0, 0]), [0.4, 3.0]
    for one, two, numbers in (("binary_cross_entropy", "cross_entropy", {}), ("binary_focal", "focal", {"focus": 1.5})):
        binary = losses.get(one, class_weights=weights, **numbers).at(z, y)
        pair = losses.get(two, class_weights=weights, **numbers).at(np.hstack((0 * z, z)), y)
        assert binary.value == pytest.approx(pair.value, rel=SHARP)
        np.testing.assert_allclose(binary.gradient, pair.gradient[:, 1:], rtol=1e-13)


def test_barron_agrees_with_its_formula_in_long_numbers():
    mpmath.mp.dps = 60
    for alpha in (-1e8, -20.0, -2.0, -1e-7, 1e-7, 0.5, 1.0, 2 - 1e-7, 2 + 1e-7, 5.0):
        for r in (1e-3, 0.7, 4.0, 90.0):
            a, x = mpmath.mpf(alpha), mpmath.mpf(r) / 2
            exact = abs(a - 2) / a * ((x * x / abs(a - 2) + 1) ** (a / 2) - 1)
            assert losses.barron(alpha, 2.0).at([[r]], [[0.0]]).value == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize(("limit", "near"), [(2.0, 2 - 1e-9), (2.0, 2 + 1e-9), (0.0, 1e-9), (0.0, -1e-9),
                                             (-inf, -1e9), (inf, 1e9)])  # fmt: skip
def test_barron_is_continuous_at_its_limits(limit, near):
    z, v = np.array([[-2.0, -0.1, 0.0, 0.5, 3.0]]), np.ones((1, 5))
    here, there = (losses.barron(alpha).at(z, 0 * z) for alpha in (limit, near))
    assert here.value == pytest.approx(there.value, rel=1e-6)
    np.testing.assert_allclose(here.gradient, there.gradient, rtol=1e-6)
    np.testing.assert_allclose(here.product(v), there.product(v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("alpha", "formula"), [
    (2.0, lambda x: x**2 / 2), (1.0, lambda x: np.sqrt(x**2 + 1) - 1), (0.0, lambda x: np.log(x**2 / 2 + 1)),
    (-2.0, lambda x: 2 * x**2 / (x**2 + 4)), (-inf, lambda x: 1 - np.exp(-(x**2) / 2)),
])  # fmt: skip
def test_barron_has_the_losses_of_the_paper_as_members(alpha, formula):
    x = np.array([[-3.0, 0.2, 1.7]])
    assert losses.barron(alpha).at(x, 0 * x).value == pytest.approx(formula(x).mean(), rel=1e-13)


@pytest.mark.parametrize("r", [1e-9, 1e-6, 1e-3, 1.0, 4.0, 5.0])
def test_tukey_keeps_the_digits_of_small_residuals(r):
    c = mpmath.mpf(4.685)
    with mpmath.workdps(40):
        wanted = c**2 / 6 * (1 - (1 - min((mpmath.mpf(r) / c) ** 2, 1)) ** 3)
    assert losses.tukey().at(np.array([[r]]), [[0.0]]).value == pytest.approx(float(wanted), rel=SHARP)


@pytest.mark.parametrize("alpha", [1e-320, -1e-320, 1e-12, 0.0])
def test_barron_near_cauchy_is_cauchy(alpha):
    r = np.array([[1e-3, 0.5, 3.0, 1e3]])
    found, wanted = (losses.barron(a).at(r, 0 * r) for a in (alpha, 0.0))
    assert wanted.value == pytest.approx(np.mean(np.log1p(0.5 * r**2)), rel=SHARP)
    assert found.value == pytest.approx(wanted.value, rel=1e-10)
    np.testing.assert_allclose(found.gradient, wanted.gradient, rtol=1e-10)


def test_outputs_that_are_no_numbers_are_never_right():
    z = np.array([[np.nan, 0.0], [1.0, 0.0], [0.0, np.nan]])
    np.testing.assert_array_equal(losses.cross_entropy().hits(z, np.array([0, 0, 1])), [False, True, False])
    np.testing.assert_array_equal(losses.binary_cross_entropy().hits(z, [[0, 0], [1, 0], [0, 0]]), [False, True, False])


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_the_quantile_loss_is_least_at_the_quantile(tau):
    data = np.random.default_rng(0).normal(size=(1001, 1))
    candidates = np.sort(data[:, 0])
    values = [losses.quantile(tau).at(np.full_like(data, c), data).value for c in candidates]
    assert candidates[np.argmin(values)] == pytest.approx(np.quantile(data, tau), abs=0.01)


def test_divergence_from_itself_is_zero():
    z = np.array([[0.3, -1.0, 2.0]])
    here = losses.kl().at(z, losses.softmax(z))
    assert here.value == pytest.approx(0, abs=SHARP)
    np.testing.assert_allclose(here.gradient, 0, atol=SHARP)
    assert losses.kl().at(z, [[1.0, 0.0, 0.0]]).value == losses.cross_entropy().at(z, [0]).value
