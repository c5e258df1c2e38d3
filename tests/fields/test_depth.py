"""Weights along depth: refinement keeps the function, roughness equals the integral in its definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.interpolate import BSpline

from stepnet.fields import Depth

SAME = 1e-13  # relative to controls of order one
INTEGRAL = 1e-10  # of quadrature, relative


@pytest.mark.parametrize("intervals", [1, 2, 5, 40])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_refined_spline_is_the_same_function(degree, factor, intervals):
    coarse, fine = Depth(intervals + degree, degree), Depth(factor * intervals + degree, degree)
    controls = np.random.default_rng(degree).normal(size=(coarse.controls, 2, 3))
    refined = coarse.refine(controls, fine)
    for s in np.linspace(0, 1, 200, endpoint=False) + 1e-4:
        np.testing.assert_allclose(fine.values(refined, s), coarse.values(controls, s), atol=SAME)


@pytest.mark.parametrize("intervals", [1, 2, 6])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_roughness_is_the_integral_of_the_squared_slope(degree, intervals):
    depth, length = Depth(intervals + degree, degree), 2.5
    controls = np.random.default_rng(degree).normal(size=(depth.controls, 2))
    knots = np.concatenate((np.zeros(degree), np.arange(intervals + 1) / intervals, np.ones(degree)))
    slope = BSpline(knots, controls, degree).derivative()
    parts = [
        quad(lambda s: np.sum(slope(s) ** 2), k / intervals, (k + 1) / intervals - 1e-14)[0] for k in range(intervals)
    ]
    value, _ = depth.roughness(controls, length)
    assert abs(value - sum(parts) / (2 * length)) < INTEGRAL * value


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_roughness_is_a_quadratic_form_with_its_gradient(degree):
    depth, random = Depth(7, degree), np.random.default_rng(degree)
    one, other = random.normal(size=(2, 7, 3))
    (value, gradient), (_, beside) = depth.roughness(one, 0.7), depth.roughness(other, 0.7)
    assert abs(np.vdot(one, gradient) - 2 * value) < 1e-12 * value
    assert abs(np.vdot(one, beside) - np.vdot(other, gradient)) < 1e-12 * value  # symmetric
    np.testing.assert_allclose(depth.roughness(one + other, 0.7)[1], gradient + beside, atol=1e-12 * value)
    assert depth.roughness(np.ones((7, 3)), 0.7)[0] < 1e-24


@pytest.mark.parametrize("degree", [1.0, True, "1", None, -1])
def test_a_degree_is_a_whole_number(degree):
    with pytest.raises(ValueError, match="`degree` must be 0, 1, 2 or 3"):
        Depth(5, degree)
    assert type(Depth(5, np.int64(1)).degree) is int
