"""Stochastic schemes: strong orders, weak orders, agreement with an independent executor, refusals of records."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest
import sympy as sp
from stochastic import problems, reference

import stepnet as sn
from stepnet.schemes import capabilities
from stepnet.schemes.stochastic import VARIABLES, Orders, StochasticRK

SLOPE_TOLERANCE = 0.2  # of 400 paths and four step sizes
HALF_POWERS = 1e-7  # of means over a step of length 0.04: 1e-4 from h^(5/2), 1e-9 from h^(9/2)
FINEST = {"additive": "sra3", "scalar": "sriw1", "diagonal": "sriw1", "commutative": "milstein"}


def find_orders(name: str, noise: str) -> Orders:
    return next(orders for orders in sn.schemes.get(name).orders if orders.noise == noise)


CASES = problems.list_cases()
STRONG = [case for case in CASES if find_orders(*case).strong > 0]


@pytest.mark.parametrize(("name", "noise"), STRONG)
def test_the_strong_order_is_the_declared_one(name, noise, counted):
    """Against a much finer grid of the same Brownian paths, by the most accurate scheme of the same calculus."""
    scheme, paths, steps = sn.schemes.get(name), 400, np.array([32, 64, 128, 256])
    problem = problems.build(noise, scheme.calculus, cells=32, seed=5)
    finest = "stochastic_heun" if scheme.calculus == "stratonovich" else FINEST.get(noise, "euler_maruyama")
    fine = sn.solve_ensemble(problem, finest, paths=paths, steps=8192)
    errors = []
    for n in steps:
        found = sn.solve_ensemble(problem, scheme, paths=paths, steps=int(n))
        assert found.rung == ("one by one" if capabilities.is_implicit(scheme) else "lanes")
        errors.append(np.sqrt(np.mean(np.sum((found.y - fine.y) ** 2, axis=-1))))
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(find_orders(name, noise).strong, abs=SLOPE_TOLERANCE)
    counted("strong orders of schemes and types of noise", f"{name} {noise}", len(STRONG))


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_the_engine_agrees_with_the_reference_executor(name, noise):
    scheme = sn.schemes.get(name)
    problem = problems.build(noise, scheme.calculus, cells=8, seed=3, path=21)
    for steps in (4, 8, 32):  # joined cells, cells, halved cells
        found = sn.solve(problem, scheme, steps=steps, save_every=0).y[-1]
        np.testing.assert_allclose(found, reference.solve(problem, scheme, steps), rtol=1e-12, atol=1e-13)


# ---- weak orders ----------------------------------------------------------------------------------------------------
#
# The expectation over one step is computed by Gauss-Hermite quadrature (by enumeration for three-point variables) and
# compared with the expansion of the semigroup: a local error of order p + 1 gives the weak order p (Milstein 1986).


def expand_semigroup(noise: str, calculus: str, order: int):
    """Coefficients of E phi(y_h) in powers of h, by the generator."""
    t, y = sp.Symbol("t"), sp.symbols("y0 y1")
    names = {"sin": sp.sin, "cos": sp.cos, "tanh": sp.tanh, "array": lambda x: sp.Matrix(x)}
    own = type("Symbolic", (), {k: staticmethod(v) for k, v in names.items()})
    f = _run_symbolically(problems.drift, own, t, y)
    g = _run_symbolically(problems.DIFFUSIONS[noise], own, t, y)
    g = sp.diag(*g) if noise == "diagonal" else g
    if calculus == "stratonovich":
        for j in range(g.shape[1]):
            f = f + sp.Rational(1, 2) * g[:, j].jacobian(sp.Matrix(y)) * g[:, j]
    phi = y[0] ** 2 * y[1] + sp.sin(y[1])
    terms = [phi]
    for k in range(1, order + 1):
        u = terms[-1]
        gradient, hessian = sp.Matrix([u]).jacobian(sp.Matrix(y)), sp.hessian(u, y)
        spread = g * g.T
        drifted = (gradient * f)[0] + sp.diff(u, t)
        terms.append((drifted + sum(spread[i, j] * hessian[i, j] for i in range(2) for j in range(2)) / 2) / k)
    at = {y[0]: problems.START[0], y[1]: problems.START[1], t: 0.0}
    return [float(term.subs(at).evalf(30)) for term in terms]


def _run_symbolically(function, namespace, t, y):
    copy = type(function)(function.__code__, {"np": namespace})
    return copy(t, y, sp.Float(0.9, 30))


def list_nodes(problem: sn.SDE, scheme, h: float, sign: float = 1.0):
    """Weights and random variables of a quadrature over the noise of one step; `sign` is that of the root of h."""
    m = problem.n_components
    if "V" in scheme.variables:
        points = [(1 / 6, -np.sqrt(3)), (2 / 3, 0.0), (1 / 6, np.sqrt(3))]
        for some, signs in product(product(points, repeat=m), product((-1.0, 1.0), repeat=m)):
            V, zero = np.array([v for _, v in some]), np.zeros(m)
            weight = np.prod([w for w, _ in some]) / 2**m
            yield weight, reference.list_variables(zero, zero, V, np.array(signs), h, sign)
        return
    x, w = np.polynomial.hermite_e.hermegauss(12)
    z, v = np.polynomial.hermite_e.hermegauss(7 if "I10/h" in scheme.variables else 1)
    pairs = [(a * b, s, r) for s, a in zip(x, w / w.sum(), strict=True) for r, b in zip(z, v / v.sum(), strict=True)]
    for some in product(pairs, repeat=m):
        W = np.sqrt(h) * np.array([s for _, s, _ in some])
        H = np.sqrt(h / 12) * np.array([r for _, _, r in some])
        yield np.prod([a for a, _, _ in some]), reference.list_variables(W, H, np.zeros(m), np.zeros(m), h, sign)


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_the_weak_order_is_the_declared_one(name, noise, counted):
    scheme, order = sn.schemes.get(name), find_orders(name, noise).weak
    calculus = scheme.calculus
    problem = problems.build(noise, calculus)
    terms = expand_semigroup(noise, calculus, ceil(order))
    rows = [problem.initial] * (2 if name == "reversible_heun" else 1)
    lengths, errors = np.array([0.04, 0.02, 0.01]), []
    for h in lengths:
        mean = 0.0
        for weight, variables in list_nodes(problem, scheme, h):
            y = reference.take_step(problem, scheme, 0.0, h, rows, variables)[0]
            mean += weight * (y[0] ** 2 * y[1] + np.sin(y[1]))
        errors.append(abs(mean - sum(c * h**k for k, c in enumerate(terms))))
    slope = np.polyfit(np.log(lengths), np.log(errors), 1)[0]
    assert slope > order + 1 - SLOPE_TOLERANCE
    counted("weak orders of schemes and types of noise", f"{name} {noise}", len(CASES))


@pytest.mark.parametrize(("name", "noise"), [case for case in CASES if find_orders(*case).weak > 1])
def test_half_powers_of_the_step_are_in_means_of_the_weak_order_three_halves_only(name, noise):
    """Means over a step are analytic in the root of h, so that half powers are what changes with the sign of the root.

    A slope over few step sizes does not show a small multiple of h^(5/2).
    """
    scheme, order = sn.schemes.get(name), find_orders(name, noise).weak
    problem, change = problems.build(noise, scheme.calculus), np.zeros(2)
    for sign in (1.0, -1.0):
        for weight, variables in list_nodes(problem, scheme, 0.04, sign):
            y = reference.take_step(problem, scheme, 0.0, 0.04, [problem.initial], variables)[0]
            change += sign * weight * y**2
    assert (np.abs(change).max() > HALF_POWERS) == (order == 1.5)


def test_variables_are_the_same_in_records_and_engine():
    from stepnet.engines.numba_engine.random.step_noise import CODE

    assert list(CODE) == list(VARIABLES)


# ---- records --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"alpha": (0.9,)}, "must sum to 1"),
        ({"beta": (("W", (1.1,)),)}, "must sum to 1"),
        ({"beta": (("Q", (1,)),)}, "there is no variable 'Q'"),
        ({"A0": ((1.0, 1.0),)}, "`A0` must be lower triangular"),
        ({"A1": ((1.0,),)}, "strictly lower triangular"),
        ({"gamma0": (("I11", (1, 0)),)}, "must have 1 entries"),
        ({"orders": ()}, "at least one type of noise"),
        ({"c0": (0, 1)}, "must have 1 entries"),
        ({"calculus": "malliavin"}, "there is no calculus"),
        ({"alpha": (float("nan"),)}, "must be finite|sum to 1"),
    ],
)
def test_records_refuse_wrong_numbers(changes, match):
    numbers = {"alpha": (1,), "beta": (("W", (1,)),), "calculus": "ito", "orders": (Orders("scalar", 0.5, 1),)}
    with pytest.raises((sn.SchemeError, sn.UnknownName), match=match):
        StochasticRK("own", reference="a test", **{**numbers, **changes})


@pytest.mark.parametrize("name", sn.schemes.names("SDE"))
def test_records_are_built_again_from_their_numbers(name):
    scheme = sn.schemes.get(name)
    assert replace(scheme) == scheme != replace(scheme, name="own")


def test_a_scheme_of_the_user_runs():
    orders = (Orders("diagonal", 0.5, 1),)
    own = StochasticRK("own", orders, "ito", (1,), (("W", (1,)),), "a test")
    problem = problems.build("diagonal")
    assert np.array_equal(sn.solve(problem, own, steps=9).y, sn.solve(problem, "euler_maruyama", steps=9).y)
