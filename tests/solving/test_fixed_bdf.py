"""BDF of fixed order with equal steps, and options for the linear systems of the implicit part of a sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coefficients import IMPLICIT as COEFFICIENTS
from coefficients import places, put
from scipy import sparse

import stepnet as sn
from stepnet.errors import SchemeError, UnknownName
from stepnet.schemes import FixedBDF, conditions, find
from stepnet.schemes.backward_differences import expand_differences

RECORDS = find(family="FixedBDF")
SMALLEST_MISTAKE = 1e-6  # relative: a wrong sixth digit
STIFF = -1e3
SLACK = 0.2  # of a slope between finite steps
SAME = 1e-12  # linear systems solved in other ways
EXACT = 1e-10  # of gradients, relative

over_records = pytest.mark.parametrize("scheme", RECORDS, ids=lambda scheme: scheme.name)


@over_records
def test_records_hold_the_formulas_and_refuse_others(scheme):
    assert conditions.order(scheme) == scheme.order == len(scheme.alpha)
    assert conditions.error_constant(scheme) == 1 / (scheme.order + 1)
    assert conditions.is_l_stable(scheme) == (scheme.order == 2)
    with pytest.raises(SchemeError):
        replace(scheme, order=scheme.order + 1)
    for field in COEFFICIENTS[FixedBDF]:
        for path, number in places(getattr(scheme, field)):
            with pytest.raises(SchemeError, match="misses a condition"):
                replace(scheme, **{field: put(getattr(scheme, field), path, number * (1 + SMALLEST_MISTAKE))})


def test_starters_of_too_low_an_order_and_unstable_formulas_are_refused():
    euler, steps = sn.schemes.get("implicit_euler"), {scheme.order: scheme for scheme in RECORDS}
    assert replace(steps[2], starter=euler).starter is euler
    with pytest.raises(SchemeError, match="`starter` must have order 2"):
        replace(steps[3], starter=euler)
    alpha, gamma = expand_differences(7)
    with pytest.raises(SchemeError, match="not zero-stable"):
        FixedBDF("bdf7", 7, alpha, float(gamma), sn.schemes.radau_iia(4), "Curtiss & Hirschfelder (1952)")


@over_records
def test_the_order_shows_on_a_very_stiff_equation(scheme):
    """Prothero and Robinson's: multistep schemes lose no order."""
    problem = sn.ODE(lambda t, y: [STIFF * (y[0] - np.cos(t)) - np.sin(t)], [1.0], (0.0, 2.0))
    steps = (64, 128)
    errors = [abs(sn.solve(problem, scheme, steps=n, save_every=0).y[-1, 0] - np.cos(2.0)) for n in steps]
    assert np.log2(errors[0] / errors[1]) > scheme.order - SLACK


@over_records
def test_algebraic_equations_are_solved_and_differentiated(scheme):
    """x' = -x z, z = 1 + x^2: the same steps as without z, whose gradients they have, too."""
    mass = np.diag([1.0, 0.0])
    both = sn.ODE(lambda t, y: [-y[0] * y[1], y[1] - 1.0 - y[0] ** 2], [0.8, 1.64], (0.0, 1.0), mass=mass)
    alone = sn.ODE(lambda t, y: [-y[0] * (1.0 + y[0] ** 2)], [0.8], (0.0, 1.0))
    found, wanted = (sn.solve(each, scheme, steps=12).y for each in (both, alone))
    assert np.max(np.abs(found[:, 0] - wanted[:, 0])) < SAME
    slopes = [sn.gradient(each, scheme, lambda y: y[0], steps=12).y0[0] for each in (both, alone)]
    assert slopes[0] == pytest.approx(slopes[1], rel=EXACT)


M = 24
LINE = sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(M, M)) * (M + 1) ** 2
LAPLACE = sparse.csc_array(sparse.kron(LINE, sparse.eye_array(M)) + sparse.kron(sparse.eye_array(M), LINE))


def react(t, y):
    return y * (1.0 - y)


def build(**options) -> sn.Split:
    return sn.Split((react, lambda t, y: LAPLACE @ y), np.ones(M * M), (0.0, 0.02), **options)


@pytest.mark.parametrize("scheme", ["sbdf2", "ars222"])
def test_linear_solvers_of_the_implicit_part_give_the_same_states(scheme):
    wanted = sn.solve(build(linear_solver="dense"), scheme, steps=5)
    assert wanted.statistics.linear_solver == "dense"
    for name, options in (("banded", {"jac": LAPLACE}), ("sparse", {"jac_sparsity": LAPLACE}), ("gmres", {})):
        found = sn.solve(build(linear_solver=name, **options), scheme, steps=5)
        assert found.statistics.linear_solver == name
        assert np.max(np.abs(found.y - wanted.y)) < SAME


def test_the_sparsity_of_the_implicit_part_spares_evaluations():
    """Without a trace, columns that share no row are found by one difference."""
    few, many = (
        sn.solve(build(trace=False, jac_sparsity=given), "ars222", steps=2).statistics.evaluations
        for given in (LAPLACE, None)
    )
    assert few < many - M * M / 2
    with pytest.raises(ValueError, match="`jac_sparsity` must"):
        build(jac_sparsity=np.eye(3))
    with pytest.raises(UnknownName, match="no linear_solver 'lapack'"):
        build(linear_solver="lapack")
