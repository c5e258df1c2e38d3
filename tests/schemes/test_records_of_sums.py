"""Schemes for sums of an explicit part and another one: their records refuse wrong numbers, phi functions are exact."""

from __future__ import annotations

from dataclasses import replace
from math import factorial, inf, nan

import mpmath
import numpy as np
import pytest
from coefficients import OF_SUMS as COEFFICIENTS
from coefficients import places, put
from scipy.linalg import expm

from stepnet.errors import SchemeError
from stepnet.schemes import SemiImplicitBDF, conditions, find, get
from stepnet.schemes.phi_functions import (
    differentiate_phi,
    evaluate_phi,
    evaluate_phi_of_matrix,
    sum_phi,
    sum_phi_of_matrix,
)
from stepnet.schemes.semi_implicit import sbdf

RECORDS = [scheme for kind in COEFFICIENTS for scheme in find(family=kind.__name__)]
SMALLEST_MISTAKE = 1e-6  # relative: a wrong sixth digit
ACCURATE = 2e-14  # relative; the recursion loses a digit where |z| is near 1.5
OF_MATRICES = 1e-12  # relative to the largest entry; doublings add up rounding
DIFFERENCE, OF_DIFFERENCES = 1e-6, 1e-8

over_records = pytest.mark.parametrize("scheme", RECORDS, ids=lambda scheme: scheme.name)


def entries(scheme):
    return [(field, *place) for field in COEFFICIENTS[type(scheme)] for place in places(getattr(scheme, field))]


def test_both_families_are_here():
    assert [scheme.name for scheme in RECORDS] == ["sbdf2", "sbdf3", "sbdf4", "etd1", "etdrk2", "etdrk4"]


@over_records
def test_attained_orders_are_the_declared_ones(scheme):
    assert conditions.order(scheme) == scheme.order
    with pytest.raises(SchemeError):
        replace(scheme, order=scheme.order + 1)


@over_records
def test_a_wrong_digit_anywhere_is_refused(scheme):
    for field, path, number in entries(scheme):
        wrong = number * (1 + SMALLEST_MISTAKE) if number else SMALLEST_MISTAKE
        with pytest.raises(SchemeError):
            replace(scheme, **{field: put(getattr(scheme, field), path, wrong)})


@over_records
@pytest.mark.parametrize("bad", [nan, inf])
def test_numbers_that_are_not_finite_are_refused(scheme, bad):
    for field in COEFFICIENTS[type(scheme)]:
        for path, _ in list(places(getattr(scheme, field)))[-1:]:
            with pytest.raises((SchemeError, ValueError), match=r"finite|must be|nan|inf"):
                replace(scheme, **{field: put(getattr(scheme, field), path, bad)})


def test_other_shapes_are_refused():
    scheme = get("etdrk4")
    with pytest.raises(SchemeError, match="`A` must have 4 rows"):
        replace(scheme, A=scheme.A[:-1])
    with pytest.raises(SchemeError, match="equally many"):
        replace(get("sbdf2"), beta=(1.0,))


def test_seven_backward_differences_are_not_stable():
    with pytest.raises(SchemeError, match="not zero-stable"):
        sbdf(7, get("kencarp5"))


def test_stability_is_that_of_backward_differences():
    """Hairer & Wanner II, V.2: BDF2 is A-stable, BDF3 and 4 are not; all contain the negative real axis."""
    found = {s.name: conditions.is_l_stable(s) for s in RECORDS if isinstance(s, SemiImplicitBDF)}
    assert found == {"sbdf2": True, "sbdf3": False, "sbdf4": False}
    assert all(conditions.real_stability_limit(get(name)) == inf for name in found)
    assert all(conditions.amplification(get(name), -1e12) < 1e-3 for name in found)


# ---- phi functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.0, 1e-9, -0.3, 1.4999, -1.5001, 0.9 + 1.2j, 12.0, -700.0, 40j, -1e6])
def test_phi_functions_are_accurate_everywhere(z):
    found = evaluate_phi(np.array([z]), 6)
    with mpmath.workdps(120):
        for k in range(7):
            number = mpmath.mpmathify(z)
            start = mpmath.exp(number) - sum(number**m / mpmath.factorial(m) for m in range(k))
            exact = complex(start / number**k) if z else 1.0 / factorial(k)
            assert abs(found[k][0] - exact) <= ACCURATE * max(abs(exact), 1e-300)


@pytest.mark.parametrize("size", [0.1, 5.0, 300.0])
def test_phi_functions_of_matrices_are_those_of_their_block_matrix(size):
    M = size * np.random.default_rng(1).normal(size=(4, 4)) - 2.0 * size * np.eye(4)
    block = np.zeros((16, 16))
    block[:4, :4] = M
    for i in range(3):
        block[4 * i : 4 * i + 4, 4 * i + 4 : 4 * i + 8] += np.eye(4)
    wanted = expm(block)[:4]
    for k, phi in enumerate(evaluate_phi_of_matrix(M, 3)):
        exact = wanted[:, 4 * k : 4 * k + 4]
        assert np.max(np.abs(phi - exact)) <= OF_MATRICES * np.max(np.abs(exact)) + 1e-15


def test_derivatives_by_the_step_are_differences():
    terms = ((0.5, 0, 1.0), (2.0, 1, 0.5), (-1.0, 3, 1.0))
    z = np.array([-0.4, 2.3, -30.0])
    slope = (sum_phi(z * (1 + DIFFERENCE), terms) - sum_phi(z * (1 - DIFFERENCE), terms)) / (2 * DIFFERENCE)
    exact = sum_phi(z, differentiate_phi(terms))
    np.testing.assert_allclose(exact, slope, rtol=OF_DIFFERENCES, atol=OF_DIFFERENCES)
    found = sum_phi_of_matrix(np.diag(z), differentiate_phi(terms))
    np.testing.assert_allclose(found, np.diag(exact), rtol=OF_MATRICES, atol=OF_MATRICES)
