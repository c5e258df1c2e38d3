"""Implicit, Rosenbrock and additive schemes: order conditions, structure and stability from their numbers alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from coefficients import IMPLICIT as COEFFICIENTS
from coefficients import places, put

from stepnet.errors import SchemeError
from stepnet.schemes import (
    AdditiveRK,
    Embedded,
    ImplicitRK,
    Rosenbrock,
    conditions,
    gauss,
    get,
    imex,
    implicit,
    lobatto_iiia,
    lobatto_iiib,
    lobatto_iiic,
    radau_iia,
    rosenbrock,
)
from stepnet.schemes.implicit import MOST_STAGES
from stepnet.schemes.order import HIGHEST, additive_defect, find_simplified_order

RECORDS = [
    value
    for module, kind in ((implicit, ImplicitRK), (rosenbrock, Rosenbrock), (imex, AdditiveRK))
    for value in vars(module).values()
    if isinstance(value, kind)
]
RUNGE_KUTTA = [scheme for scheme in RECORDS if isinstance(scheme, ImplicitRK)]
ROSENBROCK = [scheme for scheme in RECORDS if isinstance(scheme, Rosenbrock)]
ADDITIVE = [scheme for scheme in RECORDS if isinstance(scheme, AdditiveRK)]
FAMILIES = {
    gauss: lambda s: 2 * s,
    radau_iia: lambda s: 2 * s - 1,
    lobatto_iiia: lambda s: 2 * s - 2,
    lobatto_iiib: lambda s: 2 * s - 2,
    lobatto_iiic: lambda s: 2 * s - 2,
}
LEAST = {gauss: 1, radau_iia: 1, lobatto_iiia: 2, lobatto_iiib: 2, lobatto_iiic: 2}
MEMBERS = [(family, s) for family in FAMILIES for s in range(LEAST[family], MOST_STAGES + 1)]
SMALLEST_MISTAKE = 1e-6  # relative: a wrong sixth digit
ROUNDING = 1e-13  # of coefficients of size 1 to 100, with cancellation

over_records = pytest.mark.parametrize("scheme", RECORDS, ids=lambda scheme: scheme.name)
over_members = pytest.mark.parametrize(("family", "s"), MEMBERS, ids=lambda x: getattr(x, "__name__", x))


def entries(scheme):
    return [(field, *place) for field in COEFFICIENTS[type(scheme)] for place in places(getattr(scheme, field))]


def list_properties(scheme):
    found = conditions
    return [
        f(scheme) for f in (found.is_a_stable, found.is_l_stable, found.is_symplectic, found.stage_order, found.order)
    ]


# ---- orders ---------------------------------------------------------------------------------------------------------


@over_records
def test_attained_orders_are_the_declared_ones(scheme):
    assert conditions.order(scheme) == scheme.order
    hats = tuple(hat.order for hat in scheme.embedded)
    assert conditions.embedded_orders(scheme) == (hats[:1] if isinstance(scheme, AdditiveRK) else hats)


@over_records
def test_one_order_more_is_refused(scheme):
    with pytest.raises(SchemeError, match=f"order {scheme.order + 1}"):
        replace(scheme, order=scheme.order + 1)


@over_members
def test_families_attain_their_orders_with_any_number_of_stages(family, s):
    scheme, order = family(s), FAMILIES[family](s)
    assert scheme.order == order == conditions.order(scheme)
    with pytest.raises(SchemeError, match=f"order {order + 1}"):
        replace(scheme, order=order + 1)
    for hat in scheme.embedded:
        assert conditions.embedded_orders(scheme) == (hat.order,) == (min(s, HIGHEST),)


@over_members
def test_simplifying_assumptions_imply_the_order_that_trees_show(family, s):
    scheme = family(s)
    assert find_simplified_order(*scheme.butcher) == scheme.order


@over_records
def test_a_wrong_digit_anywhere_is_refused(scheme):
    """A number that the order does not depend on changes another property: the matrix of implicit Euler."""
    for field, path, number in entries(scheme):
        wrong = number * (1 + SMALLEST_MISTAKE) if number else SMALLEST_MISTAKE
        try:
            changed = replace(scheme, **{field: put(getattr(scheme, field), path, wrong)})
        except SchemeError:
            continue
        assert list_properties(changed) != list_properties(scheme), (field, path)


@over_records
@pytest.mark.parametrize("bad", [nan, inf])
def test_numbers_that_are_not_finite_are_refused(scheme, bad):
    for field in COEFFICIENTS[type(scheme)]:
        for path, _ in list(places(getattr(scheme, field)))[-1:]:
            with pytest.raises((SchemeError, ValueError), match=f"`{field}` must be"):
                replace(scheme, **{field: put(getattr(scheme, field), path, bad)})


def test_trees_of_two_colours_need_both_tableaux():
    """Each tableau of ARS(2,2,2) has order 2; an implicit one of order 2 with other nodes does not fit it."""
    scheme = imex.ARS222
    assert additive_defect([scheme.explicit_table.A], [scheme.explicit_table.b], 2) < ROUNDING
    with pytest.raises(SchemeError, match="rows 1 of `explicit` and `implicit` must have equal sums"):
        replace(scheme, implicit=((0.0,), (0.0, 1 / 2), (0.0, 0.0, 1 / 2)))


def test_rosenbrock_conditions_are_those_written_out():
    """Hairer & Wanner IV.7, table 7.1: vertices with one subtree have beta, others alpha."""
    alpha, gamma, b, c, _ = rosenbrock.RODAS4.arrays
    beta = (alpha + gamma) @ np.ones(len(b))
    B = alpha + gamma
    assert b @ beta == pytest.approx(1 / 2, abs=ROUNDING)
    assert [b @ c**2, b @ B @ beta] == pytest.approx([1 / 3, 1 / 6], abs=ROUNDING)
    fourth = [b @ c**3, b @ (c * (alpha @ beta)), b @ B @ c**2, b @ B @ B @ beta]
    assert fourth == pytest.approx([1 / 4, 1 / 8, 1 / 12, 1 / 24], abs=ROUNDING)


# ---- published numbers ----------------------------------------------------------------------------------------------


def test_radau5_is_the_published_one_with_its_estimate():
    """Hairer & Wanner IV.5, table 5.6 and IV.8; there the estimate is written in Z = h A k."""
    r, scheme = 6**0.5, implicit.RADAU5
    A = [
        [(88 - 7 * r) / 360, (296 - 169 * r) / 1800, (-2 + 3 * r) / 225],
        [(296 + 169 * r) / 1800, (88 + 7 * r) / 360, (-2 - 3 * r) / 225],
        [(16 - r) / 36, (16 + r) / 36, 1 / 9],
    ]
    np.testing.assert_allclose(scheme.A, A, rtol=ROUNDING)
    gamma = 1 / ((6 + 81 ** (1 / 3) - 9 ** (1 / 3)) / 30)
    gamma = 1 / gamma
    assert scheme.start == scheme.damping == pytest.approx(gamma, rel=ROUNDING)
    weights = gamma / 3 * np.array([-13 - 7 * r, -13 + 7 * r, -1]) @ np.array(A)
    np.testing.assert_allclose(scheme.estimate, [gamma, *weights], rtol=ROUNDING, atol=ROUNDING)


def test_gauss_and_lobatto_are_the_published_ones():
    r = 3**0.5
    np.testing.assert_allclose(implicit.GAUSS4.A, [[1 / 4, 1 / 4 - r / 6], [1 / 4 + r / 6, 1 / 4]], rtol=ROUNDING)
    iiia = [[0, 0, 0], [5 / 24, 1 / 3, -1 / 24], [1 / 6, 2 / 3, 1 / 6]]
    iiib = [[1 / 6, -1 / 6, 0], [1 / 6, 1 / 3, 0], [1 / 6, 5 / 6, 0]]
    iiic = [[1 / 6, -1 / 3, 1 / 6], [1 / 6, 5 / 12, -1 / 12], [1 / 6, 2 / 3, 1 / 6]]
    for scheme, A in ((implicit.LOBATTO_IIIA4, iiia), (implicit.LOBATTO_IIIB4, iiib), (implicit.LOBATTO_IIIC4, iiic)):
        np.testing.assert_allclose(scheme.A, A, rtol=ROUNDING, atol=ROUNDING)


def test_transformed_rosenbrock_coefficients_are_the_printed_ones():
    """Of the code RODAS, with its sixteen digits."""
    a, C, m, e = rosenbrock.RODAS4.transformed
    assert a[4, 2] == pytest.approx(12.53708332932087, rel=ROUNDING)
    assert C[5, 4] == pytest.approx(-6.058818238834054, rel=ROUNDING)
    np.testing.assert_allclose(m[-2:], 1.0, rtol=ROUNDING)
    np.testing.assert_allclose(e, [0, 0, 0, 0, 0, -1], atol=ROUNDING)


# ---- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [1, 2, 3, 5, 8])
def test_gauss_schemes_are_symplectic_symmetric_and_a_stable(s):
    scheme = gauss(s)
    assert conditions.is_symplectic(scheme)
    assert conditions.is_symmetric(scheme)
    assert conditions.is_a_stable(scheme)
    assert not conditions.is_l_stable(scheme)
    assert conditions.stage_order(scheme) == (s if s > 1 else 1)
    assert not conditions.is_reversible(scheme)


@pytest.mark.parametrize("s", [1, 2, 3, 5, 8])
def test_radau_schemes_are_l_stable_and_stiffly_accurate(s):
    scheme = radau_iia(s)
    assert conditions.is_l_stable(scheme)
    assert conditions.is_stiffly_accurate(scheme)
    assert conditions.stage_order(scheme) == s
    assert scheme.butcher.c[-1] == 1.0


@pytest.mark.parametrize("s", [2, 3, 4, 6])
def test_lobatto_schemes_have_the_properties_of_the_book(s):
    a, b, c = lobatto_iiia(s), lobatto_iiib(s), lobatto_iiic(s)
    assert [conditions.stage_order(x) for x in (a, b, c)] == [s, max(s - 2, 1), s - 1]
    assert [conditions.is_a_stable(x) for x in (a, b, c)] == [True] * 3
    assert [conditions.is_l_stable(x) for x in (a, b, c)] == [False, False, True]
    assert conditions.is_symmetric(a)
    assert conditions.is_symmetric(b)
    assert conditions.is_stiffly_accurate(a)
    assert conditions.is_stiffly_accurate(c)
    w = a.butcher.b
    pair = w[:, None] * b.butcher.A + (w[:, None] * a.butcher.A).T
    np.testing.assert_allclose(pair, np.outer(w, w), atol=ROUNDING)  # IIIA for q with IIIB for p is symplectic


DIAGONAL = ("implicit_euler", "implicit_midpoint", "trapezoid", "sdirk2", "trbdf2", "sdirk4", "kvaerno3", "kvaerno4",
            "kvaerno5")  # fmt: skip


def test_structure_is_computed_from_the_matrix():
    assert tuple(s.name for s in RUNGE_KUTTA if s.butcher.is_diagonally_implicit) == DIAGONAL
    assert tuple(s.name for s in RUNGE_KUTTA if s.butcher.is_singly_diagonal) == DIAGONAL
    explicit_first = {s.name for s in RUNGE_KUTTA if s.butcher.has_explicit_first_stage}
    assert explicit_first == {"trapezoid", "trbdf2", "kvaerno3", "kvaerno4", "kvaerno5", "lobatto_iiia4"}
    assert {s.name for s in RUNGE_KUTTA if s.is_fsal} == explicit_first


@over_records
def test_all_are_implicit_and_a_stable_with_infinite_limits(scheme):
    assert not conditions.is_explicit(scheme)
    assert conditions.is_a_stable(scheme)
    assert conditions.real_stability_limit(scheme) == inf
    assert conditions.imaginary_stability_limit(scheme) == inf


def test_pairs_and_stiffly_accurate_schemes_are_l_stable():
    damped = [s for s in RECORDS if conditions.is_stiffly_accurate(s) and conditions.is_l_stable(s)]
    assert {s.name for s in RECORDS if s.embedded} <= {s.name for s in damped}


@pytest.mark.parametrize("scheme", ROSENBROCK, ids=lambda scheme: scheme.name)
def test_both_forms_of_a_rosenbrock_step_agree(scheme):
    """On y' = (y2^2 - t, -3 y1 y2 + sin t), with J and f_t by hand."""
    t, h, y = 0.3, 0.2, np.array([0.7, -0.4])
    f = lambda t, y: np.array([y[1] ** 2 - t, -3 * y[0] * y[1] + np.sin(t)])
    J = np.array([[0.0, 2 * y[1]], [-3 * y[1], -3 * y[0]]])
    slope = np.array([-1.0, np.cos(t)])
    alpha, gamma, b, c, d = scheme.arrays
    k, W = [], np.eye(2) - h * scheme.gamma * J
    for i in range(len(b)):
        at = y + h * sum((a * x for a, x in zip(alpha[i], k, strict=False)), np.zeros(2))
        mixed = sum((g * x for g, x in zip(gamma[i], k, strict=False)), np.zeros(2))
        k.append(np.linalg.solve(W, f(t + c[i] * h, at) + h * J @ mixed + h * d[i] * slope))
    a, C, m, e = scheme.transformed
    u, W = [], np.eye(2) / (h * scheme.gamma) - J
    for i in range(len(b)):
        at = y + sum((w * x for w, x in zip(a[i], u, strict=False)), np.zeros(2))
        mixed = sum((w * x for w, x in zip(C[i], u, strict=False)), np.zeros(2))
        u.append(np.linalg.solve(W, f(t + c[i] * h, at) + mixed / h + h * d[i] * slope))
    np.testing.assert_allclose(m @ u, h * b @ k, rtol=ROUNDING, atol=ROUNDING)
    hat = np.array(scheme.embedded[0].b if scheme.embedded else scheme.b)
    np.testing.assert_allclose(e @ u, h * (hat - b) @ k, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("scheme", RUNGE_KUTTA + ROSENBROCK, ids=lambda scheme: scheme.name)
def test_stability_function_is_one_step_on_the_test_equation(scheme):
    z = -0.7 + 0.4j
    table = scheme.linear if isinstance(scheme, Rosenbrock) else scheme.butcher
    k = np.linalg.solve(np.eye(len(table.b)) - z * table.A, np.ones(len(table.b)))
    P, Q = conditions.stability_function(scheme)
    assert P(z) / Q(z) == pytest.approx(1 + z * table.b @ k, rel=ROUNDING)


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_explicit_tableaux_are_refused():
    with pytest.raises(SchemeError, match="no stage is implicit; build it as an `ExplicitRK`"):
        ImplicitRK("mine", 1, ((0.0,),), (1.0,), "me (2024)")


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SchemeError, match=r"`A` must have 2 rows with 2 entries.*\[1\]"):
        ImplicitRK("mine", 1, ((1.0,),), (0.5, 0.5), "me (2024)")
    with pytest.raises(SchemeError, match="`gamma_lower` must have 1 rows"):
        Rosenbrock("mine", 1, 1.0, ((),), ((), (1.0,)), (1.0,), "me (2024)")
    with pytest.raises(SchemeError, match="`implicit` must have 2 rows with 1, 2"):
        AdditiveRK("mine", 1, ((), (1.0,)), ((), (1.0,)), (1.0, 0.0), (0.0, 1.0), "me (2024)")
    with pytest.raises(SchemeError, match="`b_explicit` must have 2 entries, found 1"):
        replace(imex.IMEX_EULER, b_explicit=(1.0,))


def test_first_stages_of_additive_schemes_are_explicit():
    with pytest.raises(SchemeError, match=r"the first row of `implicit` must be 0.*found 0\.5"):
        replace(imex.IMEX_EULER, implicit=((0.5,), (0.0, 1.0)))


def test_embedded_results_are_checked():
    with pytest.raises(SchemeError, match="`start` and `damping` need an embedded result"):
        replace(implicit.IMPLICIT_EULER, damping=1.0)
    with pytest.raises(SchemeError, match="at most one embedded result"):
        replace(implicit.SDIRK2, embedded=implicit.SDIRK2.embedded * 2)
    with pytest.raises(SchemeError, match="at most one embedded result"):
        replace(rosenbrock.RODAS3, embedded=rosenbrock.RODAS3.embedded * 2)
    with pytest.raises(SchemeError, match="`embedded` must hold the results of both parts, found 1"):
        replace(imex.KENCARP3, embedded=imex.KENCARP3.embedded[:1])
    for scheme in (implicit.SDIRK2, rosenbrock.RODAS3):
        with pytest.raises(SchemeError, match="embedded `b` repeats `b`"):
            replace(scheme, embedded=(Embedded(scheme.b, 1),))
        with pytest.raises(SchemeError, match="embedded `b` must have"):
            replace(scheme, embedded=(Embedded((1.0,), 1),))


def test_gamma_of_rosenbrock_schemes_is_positive():
    with pytest.raises(SchemeError, match="`gamma` must be positive, found -1"):
        Rosenbrock("mine", 1, -1.0, ((),), ((),), (1.0,), "me (2024)")


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_stages_are_checked(family):
    for stages, message in ((LEAST[family] - 1, "at least"), (MOST_STAGES + 1, "at most")):
        with pytest.raises(ValueError, match=f"`stages` must be {message}"):
            family(stages)


@over_records
def test_records_are_hashable_and_compare_by_their_numbers(scheme):
    assert hash(replace(scheme)) == hash(scheme)
    assert replace(scheme) == scheme != get("rk4")
