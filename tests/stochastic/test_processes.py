"""Processes with closed forms, the Brownian path of a run, the two calculi, refused pairings and bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn
from stepnet.schemes import capabilities

PATHS, STANDARD_ERRORS = 1 << 14, 4.0
SPAN = (0.0, 1.0)


def build_ou() -> tuple[sn.SDE, float, float]:
    """dy = k (m - y) dt + s dW."""
    k, m, s, y0 = 1.5, 0.4, 0.7, 1.0
    problem = sn.SDE(lambda t, y: k * (m - y), lambda t, y: 0.0 * y + s, [y0], SPAN, seed=1)
    return problem, m + (y0 - m) * np.exp(-k), s**2 / (2 * k) * (1 - np.exp(-2 * k))


def build_gbm() -> tuple[sn.SDE, float, float]:
    """dy = a y dt + s y dW."""
    a, s = 0.3, 0.5
    problem = sn.SDE(lambda t, y: a * y, lambda t, y: s * y, [1.0], SPAN, seed=2)
    return problem, np.exp(a), np.exp(2 * a) * (np.exp(s**2) - 1)


def build_cir() -> tuple[sn.SDE, float, float]:
    """dy = k (m - y) dt + s sqrt(y) dW, with 2 k m >> s^2, so that no path comes near zero."""
    k, m, s, y0 = 2.0, 1.0, 0.3, 1.5
    problem = sn.SDE(lambda t, y: k * (m - y), lambda t, y: s * np.sqrt(y), [y0], SPAN, seed=3)
    e = np.exp(-k)
    return problem, m + (y0 - m) * e, y0 * s**2 / k * (e - e**2) + m * s**2 / (2 * k) * (1 - e) ** 2


@pytest.mark.parametrize("build", [build_ou, build_gbm, build_cir])
@pytest.mark.parametrize(("scheme", "steps"), [("sriw1", 64), ("platen_weak2", 64), ("dri1", 64), ("milstein", 1024)])
def test_mean_and_variance_are_those_of_the_closed_form(build, scheme, steps):
    problem, mean, variance = build()
    y = sn.solve_ensemble(problem, scheme, paths=PATHS, steps=steps).y[:, -1, 0]
    squares = (y - mean) ** 2
    assert abs(y.mean() - mean) < STANDARD_ERRORS * y.std() / np.sqrt(PATHS)
    assert abs(squares.mean() - variance) < STANDARD_ERRORS * squares.std() / np.sqrt(PATHS)


def test_the_path_of_a_run_is_the_same_on_1024_and_16384_steps():
    """dy = dW has W itself as its solution: sums of multiples of a power of two, which are exact."""
    problem = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 0.0 * y + 1.0, [0.0], SPAN, seed=4, path=9, cells=1 << 10)
    coarse, fine = (sn.solve(problem, "euler_maruyama", steps=n).y[:, 0] for n in (1 << 10, 1 << 14))
    W = sn.noise.BrownianPath(4, 9, SPAN, cells=1 << 10)(np.linspace(0, 1, (1 << 10) + 1))[:, 0]
    assert np.array_equal(coarse, fine[::16])
    assert np.array_equal(coarse, W)


@pytest.mark.parametrize("noise", ["scalar", "diagonal", "commutative", "general"])
@pytest.mark.parametrize("calculus", ["ito", "stratonovich"])
def test_both_calculi_describe_the_same_process(noise, calculus):
    """The distance between schemes of the two calculi on the same paths is halved with steps a quarter as long."""
    problem = problems.build(noise, calculus, cells=64, seed=6)
    distances = []
    for steps in (256, 4096):
        ito = sn.solve_ensemble(problem.convert("ito"), "euler_maruyama", paths=200, steps=steps).y
        other = sn.solve_ensemble(problem.convert("stratonovich"), "stochastic_heun", paths=200, steps=steps).y
        distances.append(np.sqrt(np.mean((ito - other) ** 2)))
    assert distances[1] < distances[0] / 3  # Euler-Maruyama has the order 1/2: a quarter is expected
    assert distances[1] < 0.03


def test_conversion_there_and_back_is_the_problem():
    problem = problems.build("diagonal")
    there = problem.convert("stratonovich")
    assert there.correction == -0.5
    assert there.convert("ito").correction == 0.0
    assert problem.convert("ito") is problem


@pytest.mark.parametrize("name", sn.schemes.names("SDE"))
def test_pairings_that_a_scheme_does_not_admit_are_refused_with_the_reason(name):
    scheme = sn.schemes.get(name)
    admitted = [orders.noise for orders in scheme.orders]
    for noise in problems.DIFFUSIONS:
        if noise not in admitted:
            with pytest.raises(TypeError, match=f"{name} does not admit {noise} noise, only"):
                sn.solve(problems.build(noise, scheme.calculus), name, steps=4)
        elif noise != "additive":
            other = "stratonovich" if scheme.calculus == "ito" else "ito"
            with pytest.raises(TypeError, match=f"convert it by `sde.convert\\('{scheme.calculus}'\\)`"):
                sn.solve(problems.build(noise, other), name, steps=4)


@pytest.mark.parametrize("name", sn.schemes.names("SDE"))
def test_diagonal_noise_with_coupled_entries_is_refused_where_the_order_needs_it(name):
    scheme = sn.schemes.get(name)
    problem = replace(problems.build("diagonal", scheme.calculus), diffusion=lambda t, y, a: np.array([y[1], y[0]]))
    if capabilities.needs_own_entries(scheme, "diagonal"):
        with pytest.raises(ValueError, match="entry 0 of `diffusion` depends on entry 1"):
            sn.solve(problem, name, steps=4)
    elif "diagonal" in [orders.noise for orders in scheme.orders]:
        assert sn.solve(problem, name, steps=4).success


@pytest.mark.parametrize("name", ["milstein", "euler_heun", "drift_implicit_milstein"])
def test_columns_that_do_not_commute_are_refused_where_the_order_needs_it(name):
    calculus = sn.schemes.get(name).calculus
    coupled = replace(problems.build("general", calculus), noise="commutative")
    with pytest.raises(ValueError, match=r"\(dg_j/dy\) g_k = .* columns 0 and 1 differ by 0.2 at t = 0"):
        sn.solve(coupled, name, steps=4)
    assert sn.solve(coupled.convert("ito"), "euler_maruyama", steps=4).success


def test_tamed_euler_stays_finite_where_euler_maruyama_explodes():
    problem = sn.SDE(lambda t, y: -(y**5), lambda t, y: y, [3.0], SPAN, seed=8)
    plain = sn.solve_ensemble(problem, "euler_maruyama", paths=256, steps=16)
    tamed = sn.solve_ensemble(problem, "tamed_euler", paths=256, steps=16)
    assert not plain.success.any()
    assert tamed.success.all()
    assert np.abs(tamed.y).max() < 10


BAD = [
    ({"noise": "purple"}, "there is no noise 'purple'"),
    ({"calculus": "malliavin"}, "there is no calculus 'malliavin'"),
    ({"t_span": (1.0, 0.0)}, "`t_span` of an `SDE` must be two finite times"),
    ({"t_span": (0.0, np.inf)}, "`t_span` of an `SDE` must be two finite times"),
    ({"diffusion": lambda t, y: np.ones(3)}, r"must return the shape \(1,\) of the state, found \(3,\)"),
    ({"diffusion": lambda t, y: np.ones(1), "noise": "general"}, r"\(\*state, components\)"),
    ({"diffusion": lambda t, y: np.nan * y}, "`diffusion` must be finite"),
    ({"diffusion": lambda t, y: 1j * y}, "`diffusion` must return real numbers"),
    ({"diffusion": lambda t, y: y, "noise": "additive"}, "`diffusion` of additive noise must depend on t only"),
    ({"seed": -1}, "`seed`"),
    ({"path": -1}, "`path`"),
    ({"cells": 0}, "`cells`"),
]


@pytest.mark.parametrize(("changes", "match"), BAD)
def test_bad_equations_are_refused(changes, match):
    numbers = {"drift": lambda t, y: -y, "diffusion": lambda t, y: 0.1 * y, "y0": [1.0], "t_span": SPAN}
    with pytest.raises((ValueError, TypeError, sn.UnknownName), match=match):
        sn.solve(sn.SDE(**{**numbers, **changes}), "euler_maruyama", steps=4)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda sde: sn.solve(sde, "euler_maruyama"), "euler_maruyama has no error estimate.*`steps`"),
        (lambda sde: sn.solve_ensemble(sde, "euler_maruyama", paths=0, steps=4), "`paths`"),
        (lambda sde: sn.solve(sde, "euler_maruyama", steps=4, dense=True), "`dense` is not available"),
        (lambda sde: sn.solve(sde, "euler_maruyama", steps=4, save_at=[0.3]), "`save_at` of an SDE"),
        (lambda sde: sn.solve(sde, "euler_maruyama", steps=4, save_at=[-0.25]), "`save_at` must lie in"),
        (lambda sde: sn.solve(sde, "rk4", steps=4), "rk4 has no noise"),
        (lambda sde: sn.start(sde, "euler_maruyama", steps=4), "`start` does not take SDE"),
        (lambda sde: sn.solve(sde, "euler_maruyama", steps=4, events=lambda t, y: y[0]), "must be terminal"),
    ],
)
def test_bad_calls_are_refused(call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call(build_gbm()[0])
