"""Brownian paths: the same numbers in any order and on any grid, with the law of Brownian motion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import stepnet as sn
from stepnet.noise import bridge, reference
from stepnet.noise.grid import NoiseGrid
from stepnet.noise.levy_area import approximate_levy_area, join_areas
from stepnet.noise.reference import BrownianPaths

LEAST_P = 1e-4  # of tests on numbers that never change
STANDARD_ERRORS = 4.5
PATHS = 20_000
H_ROUNDING = 1e-11  # of space-time areas in units of the root of the step


def evaluate(a, b, paths=1, dimension=1, cells=1, levels=24, seed=1):
    """W and H of intervals, (intervals, paths, components)."""
    grid = NoiseGrid((0.0, 1.0), cells, levels)
    noise = BrownianPaths(grid, seed, np.arange(paths), dimension)
    return reference.evaluate(noise, grid.locate(np.atleast_1d(a)), grid.locate(np.atleast_1d(b)))


# ---- one path, whoever asks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [1, 64, 1024, 2**14])
def test_w_at_common_times_is_the_same_number_on_every_grid(cells):
    """As a function, and as sums of increments of 2^10 and 2^14 steps in any order of summation."""
    W = sn.noise.BrownianPath(3, path=5, t_span=(0.0, 0.7), cells=cells, dimension=2)
    coarse, fine = (0.7 * np.arange(n + 1) / n for n in (2**10, 2**14))
    at_coarse, at_fine = W(coarse), W(fine)
    assert (at_fine[::16] == at_coarse).all()
    for times, values in ((coarse, at_coarse), (fine, at_fine)):
        increments = W.increments(times)
        assert (np.cumsum(increments, axis=0) == values[1:]).all()
        assert (np.cumsum(increments[::-1], axis=0)[::-1] == values[-1] - values[:-1]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8), st.sampled_from([1, 3, 16]), st.integers(0, 24))
def test_increments_add_up_exactly(times, cells, levels):
    W = sn.noise.BrownianPath(2**63, path=2**39, cells=cells, dimension=2, levels=levels)
    t = np.sort(times)
    assert (W.increments(t).sum(axis=0) == W.increment(t[0], t[-1])).all()
    assert (W(t[-1]) - W(t[0]) == W.increment(t[0], t[-1])).all()


def test_order_blocking_and_company_do_not_matter():
    rng = np.random.default_rng(0)
    a, b = np.sort(rng.random((2, 40)), axis=0)
    W, H = evaluate(a, b, paths=9, dimension=3, cells=5)
    order = rng.permutation(40)
    for one, other in zip(evaluate(a[order], b[order], 9, 3, 5), (W, H), strict=True):
        assert (one == other[order]).all()
    for i in range(0, 40, 7):
        for one, other in zip(evaluate(a[i], b[i], 9, 2, 5), (W, H), strict=True):
            assert (one[0] == other[i, :, :2]).all()
    path = sn.noise.BrownianPath(1, path=4, cells=5, dimension=3)
    assert (path.increment(a, b) == W[:, 4]).all()
    assert (sn.noise.brownian(1, [4, 0], a[0], b[0], cells=5, dimension=3) == W[0, [4, 0]]).all()


def test_levels_do_not_matter_at_dyadic_times():
    t = np.arange(65) / 64
    assert (sn.noise.BrownianPath(levels=6)(t) == sn.noise.BrownianPath(levels=31)(t)).all()


def test_times_a_few_ulps_off_are_those_that_were_meant():
    W = sn.noise.BrownianPath(t_span=(0.1, 0.4), cells=8)
    t = np.linspace(0.1, 0.4, 129)
    for shift in (-2, 2):
        assert (W(t + shift * np.spacing(t)) == W(t)).all()
    assert (W(0.4 + 2 * np.spacing(0.4)) == W(0.4)).all()
    assert W(0.1).tolist() == [0.0]


def test_empty_intervals_and_empty_queries():
    W = sn.noise.BrownianPath(dimension=2)
    assert W.increment(0.3, 0.3).tolist() == [0.0, 0.0]
    assert W([]).shape == (0, 2)
    assert W(np.zeros((2, 3))).shape == (2, 3, 2)


# ---- the law of Brownian motion --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0.25, 0.5), (0.1, 0.9), (0.3, 0.30001), (5 / 64, 6 / 64), (0.2, 0.7)])
@pytest.mark.parametrize("cells", [1, 8])
def test_increments_and_areas_are_normal(a, b, cells):
    W, H = (each.ravel() for each in evaluate(a, b, PATHS, cells=cells, levels=20))
    assert stats.kstest(W / np.sqrt(b - a), "norm").pvalue > LEAST_P
    assert stats.kstest(H / np.sqrt((b - a) / 12), "norm").pvalue > LEAST_P
    assert stats.pearsonr(W, H).pvalue > LEAST_P


def test_increments_of_neighbours_are_independent():
    t = np.array([0, 0.1, 0.25, 0.26, 0.5, 0.53125, 0.77, 1.0])
    W, H = evaluate(t[:-1], t[1:], PATHS, cells=2)
    scaled = np.concatenate((W[..., 0], np.sqrt(12) * H[..., 0])) / np.sqrt(np.tile(np.diff(t), 2))[:, None]
    covariance = scaled @ scaled.T / PATHS
    assert np.abs(covariance - np.eye(14)).max() < 5 * np.sqrt(2 / PATHS)


def test_the_midpoint_given_the_ends_has_the_variance_of_the_bridge():
    W, _ = evaluate([0.25, 0.25], [0.375, 0.5], PATHS)
    residual = (W[0] - 0.5 * W[1]).ravel()
    assert stats.kstest(residual / np.sqrt(0.25 / 4), "norm").pvalue > LEAST_P
    assert stats.pearsonr(residual, W[1].ravel()).pvalue > LEAST_P


@pytest.mark.parametrize("t", [(0.2, 0.3, 0.7), (0.0, 0.5, 1.0), (0.1, 0.125, 0.126), (0.4999, 0.5001, 0.95)])
def test_space_time_areas_are_consistent_under_refinement(t, within):
    a, b, c = t
    W, H = evaluate([a, b, a], [b, c, c], 50, 2, cells=4)
    joined = bridge.join(W[0], H[0], b - a, W[1], H[1], c - b)
    assert (joined[0] == W[2]).all()
    within("space-time areas joined", np.abs(joined[1] - H[2]).max() / np.sqrt(c - a), H_ROUNDING)


def test_a_space_time_area_is_the_integral_of_the_path():
    n = 2**12
    W = sn.noise.BrownianPath(8, path=1, dimension=3)
    t = np.arange(n + 1) / n
    values = W(t) - t[:, None] * W(1.0)
    _, area = W.increment_and_area(0.0, 1.0)
    _, inside = W.increment_and_area(t[:-1], t[1:])
    integral = (values[1:] + values[:-1]).sum(axis=0) / (2 * n) + inside.sum(axis=0) / n
    assert np.abs(integral - area).max() < 1e-11


# ---- Levy areas ------------------------------------------------------------------------------------------------------


FOURTH_MOMENTS = {"foster": 123 / 400, "davie": 13 / 48}
"""Of the approximations in h^4: E[K^4] + 6 E[K^2 v] + 3 E[v^2] with K = H_1 W_2 - W_1 H_2 and the variance v of B.
That of the true area is 5/16, as its characteristic function is 1 / cosh(h u / 2)."""


@pytest.mark.parametrize("method", FOURTH_MOMENTS)
def test_levy_areas_have_the_moments_that_are_stated(method):
    h, n = 0.3, 400_000
    rng = np.random.default_rng(2)
    W, H = np.sqrt(h) * rng.standard_normal((n, 2)), np.sqrt(h / 12) * rng.standard_normal((n, 2))
    A = approximate_levy_area(W, H, h, rng.standard_normal((n, 2, 2)), is_conditional=method == "foster")
    assert (np.swapaxes(A, 1, 2) == -A).all()
    for power, moment in ((1, 0.0), (2, h**2 / 4), (3, 0.0), (4, FOURTH_MOMENTS[method] * h**4)):
        values = A[:, 0, 1] ** power
        assert abs(values.mean() - moment) < STANDARD_ERRORS * values.std() / np.sqrt(n)


def test_levy_areas_are_those_of_a_fine_path_on_average():
    """The mean of the true area given W and H is H W' - W H'."""
    n, paths = 64, 3000
    t = np.arange(n + 1) / n
    W, H = evaluate(t[:-1], t[1:], paths, 2)
    total, area = np.zeros((paths, 2)), np.zeros((paths, 2, 2))
    for i in range(n):
        known = H[i][:, :, None] * W[i][:, None, :]
        area = join_areas(total, area, W[i], known - np.swapaxes(known, 1, 2))
        total = total + W[i]
    W1, H1 = (each[0] for each in evaluate(0, 1, paths, 2))
    residual = area[:, 0, 1] - (H1[:, 0] * W1[:, 1] - W1[:, 0] * H1[:, 1])
    given = residual**2 - (1 / 20 + (H1**2).sum(axis=1) / 5)
    assert abs(residual.mean()) < STANDARD_ERRORS * residual.std() / np.sqrt(paths)
    assert abs(given.mean()) < STANDARD_ERRORS * given.std() / np.sqrt(paths)
    assert abs(np.mean(given * (H1**2).sum(axis=1))) < STANDARD_ERRORS * np.std(given * (H1**2).sum(axis=1)) / np.sqrt(
        paths
    )


def test_levy_areas_depend_on_the_interval_alone():
    W = sn.noise.BrownianPath(4, path=9, dimension=3)
    areas = W.levy_areas([0.0, 0.1, 0.5, 0.6])
    assert areas.shape == (3, 3, 3)
    assert (W.levy_areas([0.1, 0.5]) == areas[1:2]).all()
    assert (W.levy_areas([0.1, 0.5], "davie") != areas[1:2]).any()


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"seed": 2**64}, "`seed` must be at most"),
        ({"seed": 0.5}, "`seed` must be an integer"),
        ({"path": -1}, "`path` must be at least 0"),
        ({"path": 2**40}, "`path` must be at most"),
        ({"dimension": 0}, "`dimension` must be at least 1"),
        ({"cells": 0}, "`cells` must be at least 1"),
        ({"levels": 32}, "`levels` must be at most 31"),
        ({"t_span": (1.0, 1.0)}, "`t_span` must be two finite times"),
        ({"t_span": (0.0, np.inf)}, "`t_span` must be two finite times"),
        ({"t_span": (0.0, 1.0, 2.0)}, "`t_span` must have the shape"),
        ({"t_span": (1e9, 1e9 + 1), "cells": 2**30}, "`cells` must be less"),
    ],
)
def test_wrong_paths_are_refused(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sn.noise.BrownianPath(**wrong)


def test_wrong_times_are_refused():
    W = sn.noise.BrownianPath()
    with pytest.raises(ValueError, match=r"`t` must be within the interval \[0, 1\] of the path, found 1.1"):
        W([0.2, 1.1])
    with pytest.raises(ValueError, match="`t` must be within"):
        W(np.nan)
    with pytest.raises(TypeError, match="`t` must be an array"):
        W("now")
    with pytest.raises(ValueError, match="`b` must not be before `a`"):
        W.increment(0.5, 0.2)
    with pytest.raises(ValueError, match="shapes that broadcast"):
        W.increment([0.1, 0.2], [0.3, 0.4, 0.5])
    with pytest.raises(ValueError, match="at least two times"):
        W.increments([0.1])
    with pytest.raises(ValueError, match="do not decrease"):
        W.increments([0.1, 0.3, 0.2])
    with pytest.raises(sn.UnknownName, match="foster"):
        W.levy_areas([0.1, 0.2], "fooster")
    with pytest.raises(ValueError, match="`t1` must not be before"):
        sn.noise.brownian(0, 0, 0.5, 0.2)
    with pytest.raises(ValueError, match=r"`path\[1\]` must be at least 0"):
        sn.noise.two_point(0, [0, -1], 0)
