"""Solutions against references that are independent of this package: closed orbits, published values, SciPy, mpmath."""

from __future__ import annotations

from functools import cache

import mpmath
import numpy as np
import pytest
from problems import (
    BRUSSELATOR_END,
    LORENZ_END,
    PLEIADES_END,
    arenstorf,
    brusselator,
    brusselator_slope,
    kepler,
    lorenz,
    pleiades,
)
from scipy.integrate import solve_ivp

import stepnet as sn

PAIRS = [scheme.name for scheme in sn.schemes.find(pair=True)]

# Errors at the end in units of the tolerance.  The orbit passes the moon at a distance of 0.01 and again at its end.
ARENSTORF = 1e5
PLEIADES = 2e3  # two stars meet at a distance of 0.08
BRUSSELATOR = 1e2  # a limit cycle: errors grow along it only linearly
OPTIMISTIC = {"kencarp5": 3.0}  # its estimate is several times smaller than the error
LORENZ = 3e8  # errors grow like exp(0.906 t), by two million, and the state is of size 30

# End state of `lorenz` to 18 digits, by Taylor series in 40; the slow test below computes it again.
LORENZ_EXACT = np.array([-9.1313130273687529279, -12.476178811078253334, 22.843338960982388206])


@cache
def by_scipy(problem_of, method="DOP853"):
    """The end state by SciPy, as tight as it goes."""
    problem = problem_of()
    solution = solve_ivp(problem.fun, problem.t_span, problem.y0, method=method, rtol=3e-14, atol=1e-14)
    assert solution.success
    return solution.y[:, -1]


def end(problem, scheme, tolerance) -> np.ndarray:
    return sn.solve(problem, scheme, rtol=tolerance, atol=tolerance, save_every=0).y[-1]


# ---- Arenstorf's orbit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [1e-7, 1e-9, 1e-11, 1e-13])
@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "verner65", "verner76", "dop853", "dopri8", "verner98"])
def test_the_orbit_of_arenstorf_closes(scheme, tolerance):
    problem = arenstorf()
    gap = np.max(np.abs(end(problem, scheme, tolerance) - problem.y0))
    assert gap < ARENSTORF * tolerance


@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "verner76", "dop853", "verner98"])
def test_the_gap_of_the_orbit_shrinks_with_the_tolerance(scheme):
    problem = arenstorf()
    gaps = [np.max(np.abs(end(problem, scheme, tolerance) - problem.y0)) for tolerance in (1e-6, 1e-9, 1e-12)]
    assert gaps[0] > 30 * gaps[1] > 900 * gaps[2]


def test_even_steps_do_not_close_the_orbit():
    """Why steps are chosen: 24000 even steps of rk4 leave a gap that 200 chosen ones of dopri5 do not."""
    problem = arenstorf()
    even = sn.solve(problem, "rk4", steps=24_000, save_every=0)
    chosen = sn.solve(problem, "dopri5", rtol=1e-7, atol=1e-7, save_every=0)
    assert np.max(np.abs(even.y[-1] - problem.y0)) > 0.1
    assert np.max(np.abs(chosen.y[-1] - problem.y0)) < 0.01
    assert chosen.statistics.evaluations < even.statistics.evaluations / 50


# ---- published values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "verner76", "dop853", "verner98"])
def test_the_pleiades_end_where_they_were_seen(scheme, tolerance):
    error = np.max(np.abs(end(pleiades(), scheme, tolerance)[:14] - PLEIADES_END))
    assert error < PLEIADES * tolerance + 1e-11  # the values have 12 digits


def test_the_pleiades_agree_with_scipy():
    assert np.max(np.abs(end(pleiades(), "dop853", 1e-13) - by_scipy(pleiades))) < 1e-9


@pytest.mark.parametrize("tolerance", [1e-9, 1e-11, 1e-13])
@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "verner76", "dop853", "verner98"])
def test_lorenz_ends_where_it_must(scheme, tolerance):
    assert np.max(np.abs(end(lorenz(), scheme, tolerance) - LORENZ_EXACT)) < LORENZ * tolerance


def test_lorenz_agrees_with_scipy():
    assert np.max(np.abs(end(lorenz(), "dop853", 1e-13) - by_scipy(lorenz))) < LORENZ * 1e-13


def test_the_lorenz_values_of_other_tests_are_right():
    assert np.max(np.abs(LORENZ_END - LORENZ_EXACT)) < 1e-7  # they are given with 7 decimals


@pytest.mark.slow
def test_lorenz_by_taylor_series_in_forty_digits():
    """x' = 10 (y - x), y' = x (28 - z) - y, z' = x y - 8 z / 3: the coefficients follow one another."""
    with mpmath.workdps(40):
        sigma, r, b, h = mpmath.mpf(10), mpmath.mpf(28), mpmath.mpf(8) / 3, mpmath.mpf(16) / 800
        state = [mpmath.mpf(-8), mpmath.mpf(8), mpmath.mpf(27)]
        for _ in range(800):
            x, y, z = ([value] for value in state)
            for k in range(40):
                xz = sum(x[i] * z[k - i] for i in range(k + 1))
                xy = sum(x[i] * y[k - i] for i in range(k + 1))
                x_new, y_new = sigma * (y[k] - x[k]) / (k + 1), (r * x[k] - xz - y[k]) / (k + 1)
                z.append((xy - b * z[k]) / (k + 1))
                x.append(x_new)
                y.append(y_new)
            state = [mpmath.polyval(c[::-1], h) for c in (x, y, z)]
        assert np.max(np.abs(np.array([float(value) for value in state]) - LORENZ_EXACT)) < 1e-13


@pytest.mark.parametrize("tolerance", [1e-5, 1e-8, 1e-11])
@pytest.mark.parametrize("scheme", PAIRS)
def test_every_pair_follows_the_brusselator(scheme, tolerance):
    found = end(brusselator(), scheme, tolerance)
    bound = BRUSSELATOR * OPTIMISTIC.get(scheme, 1.0) * tolerance
    if scheme == "trbdf2":  # order 2, estimate h^3
        bound = 2 * tolerance ** (2 / 3)
    assert np.max(np.abs(found - by_scipy(brusselator))) < bound
    assert np.max(np.abs(found - BRUSSELATOR_END)) < bound + 1e-12


def test_the_published_brusselator_agrees_with_scipy():
    assert np.max(np.abs(by_scipy(brusselator) - BRUSSELATOR_END)) < 1e-11


@pytest.mark.parametrize("scheme", ["rk4", "ssprk104", "carpenter_kennedy54", "ab4", "rk38"])
def test_even_steps_of_order_four_follow_the_brusselator(scheme):
    coarse, fine = (
        np.max(np.abs(sn.solve(brusselator(), scheme, steps=n, save_every=0).y[-1] - BRUSSELATOR_END))
        for n in (4000, 8000)
    )
    assert fine < 1e-6
    assert coarse / fine == pytest.approx(16, rel=0.15)


def test_whole_trajectories_agree_with_scipy():
    times = np.linspace(0.0, 20.0, 57)
    problem = brusselator()
    theirs = solve_ivp(problem.fun, (0, 20), problem.y0, "DOP853", times, rtol=1e-12, atol=1e-12).y.T
    ours = sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_at=times).y
    assert np.max(np.abs(ours - theirs)) < 1e-8  # SciPy interpolates with order 7 in steps of 0.1


# ---- closed forms and high precision --------------------------------------------------------------------------------


def volterra(t, y):
    return [y[0] * (1.5 - y[1]) + 0.2 * np.sin(t), y[1] * (y[0] - 1.0)]


@cache
def volterra_by_mpmath() -> np.ndarray:
    """20 digits by Taylor series."""
    with mpmath.workdps(20):

        def slope(t, y):
            x, z = y
            return [x * (mpmath.mpf(3) / 2 - z) + mpmath.mpf(0.2) * mpmath.sin(t), z * (x - 1)]

        solution = mpmath.odefun(slope, 0, [mpmath.mpf(2), mpmath.mpf(1) / 2])
        return np.array([float(x) for x in solution(2)])


@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "verner65", "verner76", "dop853", "dopri8", "verner98"])
def test_taylor_series_of_twenty_digits_agree(scheme):
    found = end(sn.ODE(volterra, [2.0, 0.5], (0.0, 2.0)), scheme, 1e-13)
    assert np.max(np.abs(found - volterra_by_mpmath())) < 1e-11


@pytest.mark.parametrize("e", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("scheme", ["dopri5", "dop853", "verner98"])
def test_kepler_is_where_keplers_equation_says(scheme, e):
    """x = cos u - e, y = sqrt(1 - e^2) sin u with u - e sin u = t."""
    t = 5.0 * np.pi + 0.4
    u = float(mpmath.findroot(lambda u: u - e * mpmath.sin(u) - t, t))
    exact = np.array([np.cos(u) - e, np.sqrt(1 - e * e) * np.sin(u)])
    found = sn.solve(kepler(e, t), scheme, rtol=1e-12, atol=1e-12).q[-1]
    assert np.max(np.abs(found - exact)) < 1e-8  # two and a half revolutions, 1e4 tolerances


@pytest.mark.parametrize("scheme", PAIRS)
def test_every_pair_keeps_its_tolerance_on_a_solution_known_in_closed_form(scheme):
    """y' = -2 t y^2, y = 1 / (1 + t^2)."""
    found = end(sn.ODE(bell, [1.0], (0.0, 3.0)), scheme, 1e-8)
    assert found[0] == pytest.approx(0.1, abs=1e-6)


def bell(t, y):
    return [-2.0 * t * y[0] * y[0]]


def test_the_tests_problem_is_the_books():
    """The right-hand side used above, by hand at one point."""
    assert brusselator_slope(0.0, np.array([1.5, 3.0])) == pytest.approx([1 + 6.75 - 6.0, 4.5 - 6.75])
