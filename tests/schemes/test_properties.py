"""Properties derived from coefficients agree with the literature; the catalogue finds schemes by name and property."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from problems import coupled_ode
from scheme_names import FIXED_STEPS

import stepnet
from stepnet.errors import SchemeError, UnknownName
from stepnet.schemes import (
    AdditiveRK,
    Butcher,
    Controller,
    Embedded,
    ExplicitRK,
    ExponentialRK,
    Multistep,
    PartitionedRK,
    SemiImplicitBDF,
    Splitting,
    conditions,
    find,
    get,
)
from stepnet.schemes.capabilities import is_implicit
from stepnet.schemes.controllers import CONTROLLERS
from stepnet.schemes.explicit import rk2
from stepnet.schemes.tableau import butcher

NAMES = FIXED_STEPS
OF_SUMS = (SemiImplicitBDF, ExponentialRK)  # which take no equation without parts
OF_PARTS = (*OF_SUMS, PartitionedRK)
STABLE_IN_SECTORS = ("bdf3", "bdf4", "bdf5")
IMPLICIT_NAMES = [
    name
    for name in NAMES
    if is_implicit(get(name)) and not isinstance(get(name), OF_PARTS) and name not in STABLE_IN_SECTORS
]
EXPLICIT_NAMES = [name for name in NAMES if not (is_implicit(get(name)) or isinstance(get(name), OF_SUMS))]
FAR = 1e4  # where schemes without a limit are examined
PRINTED = 1e-3  # half a unit in the last digit of the tables, which give four digits
BISECTION = 1e-7  # limits are found by bisection to 1e-8, through a slack of 1e-9 in |R|

R3, R6, R15 = 3**0.5, 6**0.5, 15**0.5


def tableau(A, b) -> Butcher:
    return butcher(np.array(A, float), np.array(b, float))


IMPLICIT_EULER = tableau([[1]], [1])
IMPLICIT_MIDPOINT = tableau([[1 / 2]], [1])
TRAPEZOIDAL = tableau([[0, 0], [1 / 2, 1 / 2]], [1 / 2, 1 / 2])
GAUSS2 = tableau([[1 / 4, 1 / 4 - R3 / 6], [1 / 4 + R3 / 6, 1 / 4]], [1 / 2, 1 / 2])
GAUSS3 = tableau(
    [
        [5 / 36, 2 / 9 - R15 / 15, 5 / 36 - R15 / 30],
        [5 / 36 + R15 / 24, 2 / 9, 5 / 36 - R15 / 24],
        [5 / 36 + R15 / 30, 2 / 9 + R15 / 15, 5 / 36],
    ],
    [5 / 18, 4 / 9, 5 / 18],
)
RADAU2 = tableau([[5 / 12, -1 / 12], [3 / 4, 1 / 4]], [3 / 4, 1 / 4])
RADAU3 = tableau(
    [
        [(88 - 7 * R6) / 360, (296 - 169 * R6) / 1800, (-2 + 3 * R6) / 225],
        [(296 + 169 * R6) / 1800, (88 + 7 * R6) / 360, (-2 - 3 * R6) / 225],
        [(16 - R6) / 36, (16 + R6) / 36, 1 / 9],
    ],
    [(16 - R6) / 36, (16 + R6) / 36, 1 / 9],
)

# Hairer & Wanner, Solving Ordinary Differential Equations II, IV.3 and IV.5; Geometric Numerical Integration, IV.2, V.2
# tableau: (order, stage order, A-stable, L-stable, symplectic, symmetric, stiffly accurate)
IMPLICIT = {
    "implicit_euler": (IMPLICIT_EULER, (1, 1, True, True, False, False, True)),
    "implicit_midpoint": (IMPLICIT_MIDPOINT, (2, 1, True, False, True, True, False)),
    "trapezoidal": (TRAPEZOIDAL, (2, 2, True, False, False, True, True)),
    "gauss2": (GAUSS2, (4, 2, True, False, True, True, False)),
    "gauss3": (GAUSS3, (6, 3, True, False, True, True, False)),
    "radau2": (RADAU2, (3, 2, True, True, False, False, True)),
    "radau3": (RADAU3, (5, 3, True, True, False, False, True)),
}


# ---- linear stability -----------------------------------------------------------------------------------------------

REAL_LIMITS = {
    "euler": 2.0,
    "heun2": 2.0,
    "midpoint": 2.0,
    "ssprk3": 2.5127,
    "rk4": 2.7853,
    "rk38": 2.7853,
    "dopri5": 3.3066,
    "carpenter_kennedy54": 4.6568,
    "ab2": 1.0,
    "ab3": 6 / 11,
    "ab4": 0.3,
    "ab5": 90 / 551,
    "midpoint_two_step": 0.0,
}
IMAGINARY_LIMITS = {
    "euler": 0.0,
    "heun2": 0.0,
    "ssprk3": 3**0.5,
    "rk4": 8**0.5,
    "rk38": 8**0.5,
    "ab2": 0.0,
    "ab3": 0.7236,
    "ab4": 0.43,
    "midpoint_two_step": 1.0,
    "verlet": 2.0,
    "verlet_position": 2.0,
    "symplectic_euler_drift": 2.0,
    "leapfrog_two_step": 2.0,
    "yoshida4": 1.5734,
    "forest_ruth": 1.5734,
}


@pytest.mark.parametrize("name", REAL_LIMITS)
def test_real_stability_limit_is_the_published_one(name):
    assert conditions.real_stability_limit(get(name)) == pytest.approx(REAL_LIMITS[name], abs=PRINTED)


@pytest.mark.parametrize("name", IMAGINARY_LIMITS)
def test_imaginary_stability_limit_is_the_published_one(name):
    assert conditions.imaginary_stability_limit(get(name)) == pytest.approx(IMAGINARY_LIMITS[name], abs=PRINTED)


@pytest.mark.parametrize("stages", [2, 3, 10, 25, 50, 100])
def test_legendre_intervals_grow_with_the_square_of_the_stages(stages):
    """Meyer, Balsara & Aslam: s^2 + s, and (s^2 + s - 2) / 2, which odd s exceed."""
    first = conditions.real_stability_limit(get("rkl1", stages=stages))
    second = conditions.real_stability_limit(get("rkl2", stages=stages))
    assert first == pytest.approx(stages**2 + stages, rel=BISECTION)
    promised = (stages**2 + stages - 2) / 2
    assert second >= promised * (1 - BISECTION)
    if stages % 2 == 0:
        assert second == pytest.approx(promised, rel=BISECTION)


@pytest.mark.parametrize("stages", [10, 50, 100])
def test_chebyshev_intervals_are_those_of_verwer(stages):
    """(2 - 4 epsilon / 3) s^2 and 2/3 (s^2 - 1) (1 - 2 epsilon / 15), to the next order in epsilon: half a per cent."""
    first = conditions.real_stability_limit(get("rkc1", stages=stages))
    second = conditions.real_stability_limit(get("rkc2", stages=stages))
    assert first == pytest.approx((2 - 4 / 3 * 0.05) * stages**2, rel=5e-3)
    assert second == pytest.approx(2 / 3 * (stages**2 - 1) * (1 - 2 / 15 * 2 / 13), rel=5e-3)


def limit_of(scheme) -> tuple[float, complex]:
    """The limit that matters for the scheme and its direction: real for y' = -y, imaginary for q'' = -q."""
    if is_for_oscillators(scheme):
        return conditions.imaginary_stability_limit(scheme), 1j
    return conditions.real_stability_limit(scheme), -1.0


def is_for_oscillators(scheme) -> bool:
    return isinstance(scheme, (Splitting, PartitionedRK)) or getattr(scheme, "derivative", 1) == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_point_below_the_limit_is_stable(name):
    """On a grid fine enough for the gaps that splittings have near pi; double roots are known to 1e-8 only."""
    limit, direction = limit_of(get(name))
    x = np.linspace(0, min(limit, FAR), 20_001)[1:-1]
    unstable = x[conditions.amplification(get(name), direction * x) > 1 + 1e-7]
    assert unstable.size == 0, f"limit {limit}, but unstable at {unstable.min()} ... {unstable.max()}"


@pytest.mark.parametrize("name", IMPLICIT_NAMES)
def test_implicit_runs_are_bounded_with_any_step(name):
    assert limit_of(get(name))[0] == np.inf
    assert largest_state(get(name), FAR, 1000) <= 1.0


@pytest.mark.parametrize("name", EXPLICIT_NAMES)
def test_runs_are_bounded_below_the_limit_and_grow_above_it(name):
    scheme = get(name)
    limit, _ = limit_of(scheme)
    if limit > 0:
        assert largest_state(scheme, 0.999 * limit) < 1e3
    assert largest_state(scheme, max(1.0002 * limit, 0.01)) > 1e6


def decay(t, y):
    return -y


def largest_state(scheme, h: float, steps: int = 300_000) -> float:
    """The engine itself on y' = -y or q'' = -q."""
    start, span = np.array([1.0]), (0.0, h * steps)
    is_second = is_for_oscillators(scheme)
    problem = stepnet.SecondOrder(decay, start, start, span) if is_second else stepnet.ODE(decay, start, span)
    solution = stepnet.solve(problem, scheme, steps=steps, save_every=100, check=False)
    return np.max(np.abs(solution.y)) if solution.success else np.inf


@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5", "dop853", "williamson3", "rkc2"])
def test_stability_function_is_one_step_on_the_test_equation(name):
    z = np.array([-0.7 + 0.4j, 0.3j, 0.5])
    P, Q = conditions.stability_function(get(name))
    assert np.allclose(P(z) / Q(z), [one_complex_step(name, value) for value in z], rtol=1e-12, atol=0)
    assert np.allclose(conditions.amplification(get(name), z), np.abs(P(z) / Q(z)), rtol=1e-12, atol=0)


def rotation(t, y, a, b):
    return (a + 1j * b) * y


def one_complex_step(name: str, z: complex) -> complex:
    problem = stepnet.ODE(rotation, np.array([1.0 + 0j]), (0.0, 1.0), args=(z.real, z.imag))
    return stepnet.solve(problem, name, steps=1).y[-1, 0]


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(get(name), (Splitting, Multistep))])
def test_only_runge_kutta_schemes_have_a_stability_function(name):
    with pytest.raises(TypeError, match=name):
        conditions.stability_function(get(name))


# ---- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_tableaux_have_the_properties_of_the_book(name):
    table, expected = IMPLICIT[name]
    found = (
        conditions.order(table),
        conditions.stage_order(table),
        conditions.is_a_stable(table),
        conditions.is_l_stable(table),
        conditions.is_symplectic(table),
        conditions.is_symmetric(table),
        conditions.is_stiffly_accurate(table),
    )
    assert found == expected
    assert not conditions.is_explicit(table)
    assert not conditions.is_pair(table)
    assert not conditions.is_reversible(table)


@pytest.mark.parametrize("name", IMPLICIT)
def test_a_stable_tableaux_have_infinite_limits(name):
    table, _ = IMPLICIT[name]
    assert conditions.real_stability_limit(table) == np.inf
    assert conditions.imaginary_stability_limit(table) == np.inf


def test_first_same_as_last_needs_a_first_stage_at_the_beginning():
    assert conditions.is_fsal(TRAPEZOIDAL)
    assert not conditions.is_fsal(RADAU2)
    assert not conditions.is_fsal(IMPLICIT_EULER)


@pytest.mark.parametrize("name", NAMES)
def test_first_same_as_last_is_decided_by_the_record(name):
    """The record says it, and its continuous extension takes the slope at the new state from the last stage if so."""
    scheme = get(name)
    assert conditions.is_fsal(scheme) == getattr(scheme, "is_fsal", False)
    if isinstance(scheme, ExplicitRK):
        assert scheme.continuous.new == len(scheme.b) - scheme.is_fsal


@pytest.mark.parametrize("name", IMPLICIT_NAMES)
def test_implicit_schemes_are_a_stable(name):
    scheme = get(name)
    assert not conditions.is_explicit(scheme)
    assert conditions.is_a_stable(scheme)
    assert not conditions.is_reversible(scheme)


@pytest.mark.parametrize("name", EXPLICIT_NAMES)
def test_explicit_schemes_are_neither_a_stable_nor_symplectic_unless_they_split(name):
    scheme = get(name)
    assert conditions.is_explicit(scheme)
    assert not conditions.is_a_stable(scheme)
    assert not conditions.is_l_stable(scheme)
    assert conditions.is_symplectic(scheme) == isinstance(scheme, Splitting)


def test_pairs_that_use_their_last_slope_twice_are_found():
    explicit = [scheme.name for scheme in find(fsal=True, pair=True, explicit=True)]
    implicit = [scheme.name for scheme in find(fsal=True, pair=True, explicit=False)]
    assert explicit == ["bosh3", "dopri5", "tsit5", "verner65"]
    assert implicit == ["trbdf2", "kvaerno3", "kvaerno4", "kvaerno5"]


def test_symmetric_schemes_are_the_known_ones():
    symmetric = {scheme.name for scheme in find(symmetric=True, explicit=True)}
    assert {"implicit_midpoint", "trapezoid", "gauss4"} <= {s.name for s in find(symmetric=True, reversible=False)}
    assert symmetric == {scheme.name for scheme in find(reversible=True)}
    assert {"verlet", "strang", "yoshida4", "yoshida8", "blanes_moan6", "midpoint_two_step"} <= symmetric
    assert not {"lie", "ruth3", "mclachlan4", "symplectic_euler_kick", "ab2", "rk4"} & symmetric


@pytest.mark.parametrize("name", EXPLICIT_NAMES)
def test_stage_order_of_explicit_schemes_is_one(name):
    """The second stage is an Euler step, so c_2^2 / 2 is missed; Euler's scheme has no second stage."""
    table = conditions.tableau_of(get(name))
    if table is None:
        assert conditions.stage_order(get(name)) == 0
    elif len(table.b) > 1:
        assert conditions.stage_order(get(name)) == 1


SSP = {"euler": 1, "ssprk2": 1, "heun2": 1, "ssprk3": 1, "ssprk104": 6, "ralston2": 1 / 2, "rk4": 0, "midpoint": 0}


@pytest.mark.parametrize("name", SSP)
def test_strong_stability_coefficient_is_the_published_one(name):
    assert conditions.ssp_coefficient(get(name)) == pytest.approx(SSP[name], abs=BISECTION)


def test_strong_stability_coefficients_of_implicit_tableaux():
    """Gottlieb, Ketcheson & Shu (2011): 2 for midpoint and trapezoidal, no limit for implicit Euler, none for Gauss."""
    assert conditions.ssp_coefficient(IMPLICIT_MIDPOINT) == pytest.approx(2, abs=BISECTION)
    assert conditions.ssp_coefficient(TRAPEZOIDAL) == pytest.approx(2, abs=BISECTION)
    assert conditions.ssp_coefficient(GAUSS2) == 0
    assert conditions.ssp_coefficient(IMPLICIT_EULER) == np.inf


ERROR_CONSTANTS = {
    "euler": 1 / 2,
    "ab2": 5 / 12,
    "ab3": 3 / 8,
    "ab4": 251 / 720,
    "ab5": 95 / 288,
    "midpoint_two_step": 1 / 6,
    "leapfrog_two_step": 1 / 12,
    "rk4": 1.450e-2,  # Dormand & Prince (1980) give A^(p+1) of their own and of Fehlberg's pair
    "dopri5": 3.991e-4,
    "fehlberg45": 1.839e-3,
    "bosh3": 4.181e-2,
}


@pytest.mark.parametrize("name", ERROR_CONSTANTS)
def test_error_constant_is_the_published_one(name):
    assert conditions.error_constant(get(name)) == pytest.approx(ERROR_CONSTANTS[name], rel=PRINTED)


def test_principal_error_of_the_classical_scheme_is_the_one_by_hand():
    """The nine trees of order 5: (Phi - 1/gamma) / sigma, Hairer, Norsett & Wanner I, II.3."""
    A, b, c = get("rk4").butcher
    by_hand = [
        (b @ c**4 - 1 / 5) / 24,
        (b @ (c**2 * (A @ c)) - 1 / 10) / 2,
        (b @ (A @ c) ** 2 - 1 / 20) / 2,
        (b @ (c * (A @ c**2)) - 1 / 15) / 2,
        b @ (c * (A @ A @ c)) - 1 / 30,
        (b @ (A @ c**3) - 1 / 20) / 6,
        b @ (A @ (c * (A @ c))) - 1 / 40,
        (b @ (A @ A @ c**2) - 1 / 60) / 2,
        b @ (A @ A @ A @ c) - 1 / 120,
    ]
    assert conditions.error_constant(get("rk4")) == pytest.approx(np.linalg.norm(by_hand), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_error_constant_is_positive_where_it_means_something(name):
    constant = conditions.error_constant(get(name))
    of_parts = Splitting, PartitionedRK, AdditiveRK, SemiImplicitBDF
    assert np.isnan(constant) if isinstance(get(name), of_parts) else constant > 0


def test_rational_second_order_schemes_of_two_stages_are_one_family():
    assert [rk2(alpha).b for alpha in (1 / 2, 1.0)] == [get("midpoint").b, get("heun2").b]
    with pytest.raises(ValueError, match="`alpha` must not be 0"):
        rk2(0)


# ---- the catalogue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_names_are_answered_in_any_case_and_records_pass_through(name):
    scheme = get(name)
    assert get(name.upper()) == scheme
    assert get(scheme) is scheme
    assert scheme.name.split("(")[0] == name


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_scheme_finds_it_again(name):
    assert get(get(name).name) == get(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_cites_a_paper_with_its_year(name):
    years = [int(year) for year in re.findall(r"\((\d{4})\)", get(name).reference)]
    assert years
    assert all(1768 <= year <= 2026 for year in years)


@pytest.mark.parametrize("name", NAMES)
def test_records_are_frozen_hashable_and_equal_to_their_copies(name):
    scheme = get(name)
    again = replace(scheme)
    for same in (again, copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme))):
        assert same == scheme
        assert hash(same) == hash(scheme)
    for field in fields(scheme):
        with pytest.raises(FrozenInstanceError):
            setattr(scheme, field.name, getattr(scheme, field.name))
    assert scheme != replace(scheme, name="other")


@pytest.mark.parametrize("name", NAMES)
def test_arrays_made_from_a_record_cannot_be_written_to(name):
    scheme = get(name)
    arrays = getattr(scheme, "tableaux", None) or conditions.tableau_of(scheme) or ()
    assert not any(array.flags.writeable for array in arrays)


def test_names_are_sorted_and_unique():
    assert sorted(set(NAMES)) == NAMES


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no scheme 'dorpi5'; did you mean 'dopri5'"):
        get("dorpi5")


def test_a_hopeless_name_is_answered_with_all_names():
    with pytest.raises(UnknownName, match=r"known: ab2, .*yoshida8"):
        get("zzzzzz")


def test_an_unknown_property_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no property 'symplectik'; did you mean 'symplectic'"):
        find(symplectik=True)


def test_find_joins_properties_and_sorts_by_order_and_name():
    found = find(order=4, symplectic=True)
    assert [s.name for s in found] == sorted(s.name for s in found)
    assert {s.name for s in found} >= {"yoshida4", "forest_ruth", "suzuki4", "blanes_moan4", "mclachlan4"}
    assert [s.order for s in find()] == sorted(s.order for s in find())
    assert len(find()) == len(NAMES)
    assert [s.name for s in find(order=4, symplectic=True, explicit=False)] == [
        "gauss4", "lobatto_iiia_iiib(3)", "lobatto_iiia_iiib4",
    ]  # fmt: skip
    assert find(order=4, symplectic=True, l_stable=True) == []


@pytest.mark.parametrize("family", ["rkc1", "rkc2", "rkl1", "rkl2"])
def test_stabilised_families_take_a_number_of_stages(family):
    assert len(get(family).mu) == 10
    assert len(get(family, stages=25).mu) == 25
    assert get(family, stages=25).name == f"{family}(25)"
    with pytest.raises(ValueError, match="`stages` must be at least"):
        get(family, stages=0)


def test_stages_are_refused_where_their_number_is_fixed():
    with pytest.raises(ValueError, match=r"`stages` is for rkc1, .*, lobatto_iiia_iiib; 'rk4' has a fixed number"):
        get("rk4", stages=5)
    with pytest.raises(ValueError, match="`stages`"):
        get(get("rkl2"), stages=5)


# ---- a scheme of one's own ------------------------------------------------------------------------------------------


def my_scheme() -> ExplicitRK:
    """Six lines: a pair of order 2(1)."""
    return ExplicitRK(
        "mine", 2,
        a=((), (2 / 3,)),
        b=(1 / 4, 3 / 4),
        reference="me (2024)",
        embedded=(Embedded((1.0, 0.0), 1),),
    )  # fmt: skip


def test_a_scheme_of_ones_own_is_checked_and_solves():
    problem = coupled_ode()
    reference = stepnet.solve(problem, "dop853", rtol=1e-12, atol=1e-12).y[-1]
    adaptive, fixed = stepnet.solve(problem, my_scheme(), rtol=1e-6), stepnet.solve(problem, my_scheme(), steps=1000)
    assert np.max(np.abs(adaptive.y[-1] - reference)) < 1e-4  # 100 times the tolerance: the error of all steps adds up
    assert np.max(np.abs(fixed.y[-1] - reference)) < 1e-5  # h^2 = 4e-6
    assert "mine: me (2024)" in adaptive.citation()
    with pytest.raises(SchemeError, match="`b` promises order 2, but a condition of order 2 is missed"):
        replace(my_scheme(), b=(3 / 4, 1 / 4))


def test_a_scheme_written_with_lists_is_the_same_record():
    mine = my_scheme()
    listed = ExplicitRK("mine", 2, [[], [2 / 3]], [1 / 4, 3 / 4], "me (2024)", [Embedded([1.0, 0.0], 1)])
    assert listed == mine
    assert hash(listed) == hash(mine)
    assert stepnet.solve(coupled_ode(), listed).success


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"safety": 0.0}, r"`safety` must be in \(0, 1\], found 0.0"),
        ({"shrink": 2.0}, "`shrink` < 1 < `grow` is needed, found 2.0 and 10.0"),
        ({"grow": 0.5}, "`shrink` < 1 < `grow` is needed, found 0.2 and 0.5"),
        ({"beta1": -1.0}, "`beta1` must be positive, found -1.0"),
    ],
)
def test_controllers_refuse_bad_numbers(numbers, message):
    with pytest.raises(SchemeError, match=message):
        replace(CONTROLLERS["I"], **numbers)


def test_controllers_are_chosen_by_name_or_by_object():
    mine = Controller("mine", 0.6, -0.2, 0.0, "me (2024)")
    assert stepnet.solve(coupled_ode(), "dopri5", controller=mine).success
    with pytest.raises(UnknownName, match="no controller 'PJ'"):
        stepnet.solve(coupled_ode(), "dopri5", controller="PJ")


def test_every_scheme_has_its_properties():
    rows = [
        {key: function(get(name)) for key, function in stepnet.schemes.catalogue.PROPERTIES.items()} for name in NAMES
    ]
    assert len(rows) == len(NAMES)
    counts = {key: sum(bool(row[key]) for row in rows) for key in ("pair", "fsal", "symplectic", "symmetric", "ssp")}
    print(f"{len(NAMES)} schemes: {counts}")
