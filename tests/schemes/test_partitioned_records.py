"""Lobatto pairs: order conditions of both halves, and the symplectic form, from their numbers alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coefficients import IMPLICIT as COEFFICIENTS
from coefficients import places, put

from stepnet.errors import SchemeError
from stepnet.schemes import PartitionedRK, conditions, get, lobatto_iiia_iiib, partitioned_rk
from stepnet.schemes.implicit import MOST_STAGES
from stepnet.schemes.phase_errors import find_phase_errors

RECORDS = [scheme for scheme in vars(partitioned_rk).values() if isinstance(scheme, PartitionedRK)]
SMALLEST_MISTAKE = 1e-6  # relative: a wrong sixth digit
SYMPLECTIC = 1e-16  # half a unit in the last place of products of weights
FIT = 1e-9  # of a limit found by bisection

over_records = pytest.mark.parametrize("scheme", RECORDS, ids=lambda scheme: scheme.name)


@pytest.mark.parametrize("s", range(2, MOST_STAGES + 1))
def test_pairs_have_their_order_and_structure_with_any_number_of_stages(s):
    scheme = lobatto_iiia_iiib(s)
    assert scheme.order == conditions.order(scheme) == 2 * s - 2
    assert conditions.symplecticity_defect(scheme) <= SYMPLECTIC
    assert conditions.is_symmetric(scheme)
    assert not conditions.is_explicit(scheme)
    assert not conditions.is_reversible(scheme)
    with pytest.raises(SchemeError, match=f"order {2 * s - 1}"):
        replace(scheme, order=2 * s - 1)


@over_records
def test_a_wrong_digit_anywhere_is_refused(scheme):
    for field in COEFFICIENTS[PartitionedRK]:
        for path, number in places(getattr(scheme, field)):
            wrong = number * (1 + SMALLEST_MISTAKE) if number else SMALLEST_MISTAKE
            with pytest.raises(SchemeError, match=scheme.name):
                replace(scheme, **{field: put(getattr(scheme, field), path, wrong)})
            with pytest.raises((SchemeError, ValueError), match=f"`{field}` must be"):
                replace(scheme, **{field: put(getattr(scheme, field), path, np.nan)})


def test_matrices_that_do_not_fit_are_refused():
    verlet = get("lobatto_iiia_iiib2")
    with pytest.raises(SchemeError, match="`A_hat` must have 2 rows"):
        replace(verlet, A_hat=((0.5, 0.0),))
    with pytest.raises(SchemeError, match="must be symplectic"):
        replace(verlet, A_hat=verlet.A)
    with pytest.raises(SchemeError, match="`order` must be at least 1"):
        replace(verlet, order=0)


def test_two_stages_are_stormer_and_verlet_on_an_oscillator():
    pair, verlet = get("lobatto_iiia_iiib2"), get("verlet")
    assert abs(conditions.imaginary_stability_limit(pair) - 2.0) < FIT
    z = 1j * np.linspace(0.0, 3.0, 31)
    assert np.allclose(conditions.amplification(pair, z), conditions.amplification(verlet, z), rtol=1e-12)
    assert np.allclose(find_phase_errors(pair), find_phase_errors(verlet))
    assert [find_phase_errors(get(f"lobatto_iiia_iiib{p}")).dispersion_order for p in (2, 4, 6)] == [2, 4, 6]
