"""The coefficients of every scheme satisfy its order conditions, and a wrong coefficient is always detected."""

from __future__ import annotations

from dataclasses import replace
from math import factorial, inf, nan

import numpy as np
import pytest
from coefficients import EXPLICIT as COEFFICIENTS
from coefficients import IMPLICIT, OF_SUMS, places, put
from hypothesis import given, settings
from hypothesis import strategies as st
from scheme_names import FIXED_STEPS

import stepnet
from stepnet.errors import SchemeError
from stepnet.schemes import (
    Embedded,
    ExplicitRK,
    LowStorageRK,
    Multistep,
    Splitting,
    StabilisedRK,
    conditions,
)
from stepnet.schemes.order import HIGHEST, Conditions, n_conditions
from stepnet.schemes.trees import density, n_vertices, symmetry, trees

NAMES = [name for name in FIXED_STEPS if type(stepnet.schemes.get(name)) in COEFFICIENTS]
PAIRS = [scheme.name for scheme in stepnet.schemes.find(pair=True, explicit=True)]
SMALLEST_MISTAKE = 1e-6  # relative: a wrong sixth digit; the conditions notice 2e-15, the twelfth digit of any entry


# ---- every number of a record, by its place -------------------------------------------------------------------------


def entries(scheme) -> list[tuple]:
    """All (field, path, number) of a scheme."""
    return [(field, *place) for field in COEFFICIENTS[type(scheme)] for place in places(getattr(scheme, field))]


def is_refused(scheme, field, path, number) -> bool:
    """Whether a record with this number cannot be built, or the number is one that its recursion never uses."""
    try:
        changed = replace(scheme, **{field: put(getattr(scheme, field), path, number)})
    except SchemeError:
        return True
    return isinstance(scheme, StabilisedRK) and all(map(np.array_equal, changed.butcher, scheme.butcher))


# ---- promises -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_attained_order_is_the_declared_one(name):
    scheme = stepnet.schemes.get(name)
    assert conditions.order(scheme) == scheme.order


@pytest.mark.parametrize("name", NAMES)
def test_attained_embedded_orders_are_the_declared_ones(name):
    scheme = stepnet.schemes.get(name)
    assert conditions.embedded_orders(scheme) == tuple(hat.order for hat in getattr(scheme, "embedded", ()))


@pytest.mark.parametrize("name", NAMES)
def test_one_order_more_is_refused(name):
    """Also beyond order 9, where no conditions are generated: what cannot be checked cannot be promised."""
    scheme = stepnet.schemes.get(name)
    with pytest.raises(SchemeError, match=rf"order.*{scheme.order + 1}"):
        replace(scheme, order=scheme.order + 1)


@pytest.mark.parametrize("stages", [2, 3, 5, 10, 20, 50, 100])
@pytest.mark.parametrize("family", ["rkc1", "rkc2", "rkl1", "rkl2"])
def test_stabilised_families_keep_their_order_with_any_number_of_stages(family, stages):
    scheme = stepnet.schemes.get(family, stages=stages)
    assert conditions.order(scheme) == scheme.order


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_digit_anywhere_is_refused(name):
    scheme = stepnet.schemes.get(name)
    for field, path, number in entries(scheme):
        wrong = number * (1 + SMALLEST_MISTAKE) if number else SMALLEST_MISTAKE
        assert is_refused(scheme, field, path, wrong), (field, path)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_sign_anywhere_is_refused(name):
    scheme = stepnet.schemes.get(name)
    for field, path, number in entries(scheme):
        if number:
            assert is_refused(scheme, field, path, -number), (field, path)


@given(st.data(), st.sampled_from(PAIRS), st.floats(SMALLEST_MISTAKE, 10.0), st.sampled_from([-1, 1]))
@settings(max_examples=200, deadline=None)
def test_a_mistake_of_any_size_in_a_pair_is_refused(data, name, size, sign):
    scheme = stepnet.schemes.get(name)
    field, path, number = data.draw(st.sampled_from([entry for entry in entries(scheme) if entry[2]]))
    assert is_refused(scheme, field, path, number * (1 + sign * size))


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_is_refused_by_its_place(name, bad):
    scheme = stepnet.schemes.get(name)
    for field in COEFFICIENTS[type(scheme)]:
        for path, _ in list(places(getattr(scheme, field)))[-1:]:
            with pytest.raises(SchemeError, match=rf"`{field}` must be finite, but entry \d+ is {bad}"):
                replace(scheme, **{field: put(getattr(scheme, field), path, bad)})


@pytest.mark.parametrize("order", [0, -1])
@pytest.mark.parametrize("name", NAMES)
def test_an_order_below_one_is_refused(name, order):
    with pytest.raises(SchemeError, match=f"must be at least 1, found {order}"):
        replace(stepnet.schemes.get(name), order=order)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_number_is_refused(name):
    scheme = stepnet.schemes.get(name)
    for field in COEFFICIENTS[type(scheme)]:
        if field != "embedded":
            with pytest.raises(SchemeError, match=name.split("(")[0]):
                replace(scheme, **{field: getattr(scheme, field)[:-1]})


def test_a_row_of_the_wrong_length_is_refused_with_the_lengths_found():
    with pytest.raises(SchemeError, match=r"2 rows with 0, 1, ..., 1 entries.*found rows with \[0, 2\] entries"):
        ExplicitRK("mine", 2, ((), (0.5, 0.5)), (0.0, 1.0), "me (2024)")


def test_embedded_weights_of_the_wrong_length_are_refused():
    with pytest.raises(SchemeError, match="embedded `b` must have 2 entries, found 1"):
        ExplicitRK("mine", 2, ((), (0.5,)), (0.0, 1.0), "me (2024)", (Embedded((1.0,), 1),))


def test_a_third_embedded_result_is_refused():
    hat = Embedded((1.0, 0.0), 1)
    with pytest.raises(SchemeError, match="at most two embedded results are supported, found 3"):
        ExplicitRK("mine", 2, ((), (0.5,)), (0.0, 1.0), "me (2024)", (hat, hat, hat))


def test_an_embedded_result_that_repeats_the_first_is_refused():
    """Its error estimate would be 0 and the steps would grow without limit."""
    with pytest.raises(SchemeError, match="embedded"):
        ExplicitRK("mine", 2, ((), (0.5,)), (0.0, 1.0), "me (2024)", (Embedded((0.0, 1.0), 2),))


@pytest.mark.parametrize("record", [ExplicitRK, LowStorageRK, Splitting])
def test_a_scheme_without_numbers_is_refused(record):
    with pytest.raises(SchemeError, match="mine"):
        record("mine", 1, (), (), "me (2024)")


def test_a_low_storage_scheme_that_reads_an_empty_register_is_refused():
    with pytest.raises(SchemeError, match=r"`A\[0\]` must be 0.*found 0.5"):
        LowStorageRK("mine", 1, (0.5,), (1.0,), "me (2024)")


def test_a_multistep_scheme_that_is_not_zero_stable_is_refused():
    """Dahlquist's example: the explicit two-step scheme of order 3 has the root -5."""
    with pytest.raises(SchemeError, match="not zero-stable"):
        Multistep("mine", 3, (-4.0, 5.0), (4.0, 2.0), stepnet.schemes.get("rk4"), "Dahlquist (1956)")


def test_a_double_root_on_the_unit_circle_is_refused():
    """rho = (z - 1)^2 for a first-order equation: errors grow linearly with the number of steps."""
    with pytest.raises(SchemeError, match="not zero-stable"):
        Multistep("mine", 1, (2.0, -1.0), (1.0, -1.0), stepnet.schemes.get("rk4"), "me (2024)")


def test_a_starter_of_too_low_an_order_is_refused():
    with pytest.raises(SchemeError, match="`starter` must have order 3 or more, euler has 1"):
        replace(stepnet.schemes.get("ab4"), starter=stepnet.schemes.get("euler"))


def test_a_third_derivative_is_refused():
    with pytest.raises(SchemeError, match="`derivative` must be 1 or 2, found 3"):
        replace(stepnet.schemes.get("ab2"), derivative=3)


def test_second_order_recursions_promise_no_more_than_their_velocities():
    with pytest.raises(SchemeError, match="`order` can be at most 2, found 4"):
        replace(stepnet.schemes.get("leapfrog_two_step"), order=4)


# ---- the trees themselves -------------------------------------------------------------------------------------------


def tall(n: int) -> tuple:
    return () if n == 1 else (tall(n - 1),)


def bushy(n: int) -> tuple:
    return ((),) * (n - 1)


def test_numbers_of_rooted_trees_are_those_of_cayley():
    assert [len(trees(n)) for n in range(1, HIGHEST + 1)] == [1, 1, 2, 4, 9, 20, 48, 115, 286]
    assert [n_conditions(n) for n in (4, 5, 8, 9)] == [8, 17, 200, 486]


@pytest.mark.parametrize("n", range(1, HIGHEST + 1))
def test_trees_of_an_order_are_different_and_have_that_many_vertices(n):
    assert len(set(trees(n))) == len(trees(n))
    assert {n_vertices(tree) for tree in trees(n)} == {n}


@pytest.mark.parametrize("n", range(1, HIGHEST + 1))
def test_increasing_labellings_of_all_trees_add_up(n):
    """alpha(tree) = n! / (gamma sigma) counts labellings that increase from the root; together there are (n - 1)!."""
    labellings = [factorial(n) / (density(tree) * symmetry(tree)) for tree in trees(n)]
    assert all(alpha == int(alpha) for alpha in labellings)
    assert sum(labellings) == factorial(n - 1)


@pytest.mark.parametrize("n", range(1, HIGHEST + 1))
def test_tall_and_bushy_trees_have_known_density_and_symmetry(n):
    assert (density(tall(n)), symmetry(tall(n))) == (factorial(n), 1)
    assert (density(bushy(n)), symmetry(bushy(n))) == (n, factorial(n - 1))


def test_trees_of_order_four_have_the_densities_of_the_book():
    """Hairer, Norsett & Wanner I, table II.2.1."""
    book = {((), (), ()): (4, 6), ((), ((),)): (8, 1), (((), ()),): (12, 2), ((((),),),): (24, 1)}
    assert {tuple(sorted(tree)): (density(tree), symmetry(tree)) for tree in trees(4)} == book


def test_quadrature_and_nested_weights_are_those_written_out():
    """For the classical scheme: sum b c^3 = 1/4, sum b c (A c) = 1/8, sum b (A c^2) = 1/12, sum b (A A c) = 1/24."""
    A, b, c = stepnet.schemes.get("rk4").butcher
    weights = Conditions(A).stage_weights
    assert np.allclose(weights(((), (), ())), c**3)
    assert np.allclose(weights(((), ((),))), c * (A @ c))
    assert np.allclose(weights((((), ()),)), A @ c**2)
    assert np.isclose(b @ weights(tall(4)), 1 / 24)


def test_every_scheme_is_checked():
    numbers = sum(len(entries(stepnet.schemes.get(name))) for name in NAMES)
    assert {type(stepnet.schemes.get(name)) for name in NAMES} == set(COEFFICIENTS)
    others = {type(stepnet.schemes.get(name)) for name in set(FIXED_STEPS) - set(NAMES)}
    assert others <= {*IMPLICIT, *OF_SUMS}  # test_implicit_records, test_records_of_sums
    print(f"{len(NAMES)} schemes and {len(PAIRS)} pairs with {numbers} numbers, each of them varied")
