"""Orders and error constants of schemes, from their order conditions."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.schemes.backward_differences import FixedBDF, find_implicit_defect
from stepnet.schemes.conditions.families import OF_HALVES, ROUNDING, check_scheme, tableau_of
from stepnet.schemes.conditions.structure import is_pair
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK, extend_by_start
from stepnet.schemes.order import (
    HIGHEST,
    TOLERANCE,
    Conditions,
    additive_defect,
    find_attained,
    find_simplified_order,
    multistep_defect,
    partitioned_defect,
    runge_kutta_defect,
)
from stepnet.schemes.partitioned_rk import (
    PartitionedRK,
    find_pair_defect,
    find_simplified_pair_order,
)
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF, find_explicit_defect
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import StabilisedRK
from stepnet.schemes.trees import density, symmetry, trees


@check_scheme
def order(scheme: Any) -> int:
    """The order that the coefficients attain, up to `HIGHEST`, by rooted trees, alternating trees or polynomials.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.order(get("dopri5"))
    5
    """
    table = tableau_of(scheme)
    if table is not None:
        rounding = scheme.rounding if isinstance(scheme, StabilisedRK) else TOLERANCE
        found = _weights_order(Conditions(table.A), table.b, rounding)
        return max(found, find_simplified_order(*table)) if found == HIGHEST else found
    if isinstance(scheme, Rosenbrock):
        return _weights_order(scheme.conditions, scheme.arrays.b)
    if isinstance(scheme, FixedBDF):
        return find_attained(lambda p: find_implicit_defect(scheme, p), highest=20)
    if isinstance(scheme, AdditiveRK):
        return find_attained(lambda p: additive_defect(*scheme.coupled, p), highest=scheme.order + 1)
    if isinstance(scheme, SemiImplicitBDF):
        return find_attained(
            lambda p: max(find_explicit_defect(scheme, p), find_implicit_defect(scheme, p)), highest=20
        )
    if isinstance(scheme, PartitionedRK):
        found = find_attained(lambda p: find_pair_defect(scheme.tableaux, p), highest=min(scheme.order + 1, HIGHEST))
        return max(found, find_simplified_pair_order(scheme.tableaux)) if found == HIGHEST else found
    if isinstance(scheme, Splitting):
        b, _, b_hat, _ = scheme.tableaux
        return find_attained(lambda p: partitioned_defect(scheme.conditions, b, b_hat, p, scheme.nystrom))
    alpha, beta = np.array(scheme.alpha), np.array(scheme.beta)
    return find_attained(lambda p: multistep_defect(alpha, beta, scheme.derivative, p), highest=20)


@check_scheme
def embedded_orders(scheme: Any) -> tuple[int, ...]:
    """The orders that the embedded results attain.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.embedded_orders(get("dopri5"))
    (4,)
    """
    if not is_pair(scheme):
        return ()
    if isinstance(scheme, ImplicitRK):
        table = extend_by_start(scheme)
        return (_weights_order(Conditions(table.A), table.b),)
    if isinstance(scheme, AdditiveRK):
        matrices, hats = scheme.coupled[0], [np.array(hat.b) for hat in scheme.embedded]
        return (find_attained(lambda p: additive_defect(matrices, hats, p), highest=scheme.order + 1),)
    conditions = scheme.conditions if isinstance(scheme, Rosenbrock) else Conditions(scheme.butcher.A)
    return tuple(_weights_order(conditions, np.array(hat.b)) for hat in scheme.embedded)


def _weights_order(conditions: Conditions, b: np.ndarray, tolerance: float = TOLERANCE) -> int:
    return find_attained(lambda p: runge_kutta_defect(conditions, b, p), tolerance=tolerance)


@check_scheme
def stage_order(scheme: Any) -> int:
    """Largest q with sum_j a_ij c_j^(k-1) = c_i^k / k in every stage for k = 1..q (0 for other families).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.stage_order(get("rk4"))
    1
    """
    table = tableau_of(scheme)
    if table is None:
        return 0
    q = 0
    while q < HIGHEST and np.allclose(table.A @ table.c**q, table.c ** (q + 1) / (q + 1), rtol=0, atol=ROUNDING):
        q += 1
    return q


@check_scheme
def error_constant(scheme: Any) -> float:
    """Size of the principal error: 2-norm over the trees of order p + 1 of (Phi - 1/gamma) / sigma.

    For multistep schemes C_{p+1} of Hairer, Norsett & Wanner I, III.2; NaN for splitting schemes, whose error consists
    of commutators, for partitioned and additive ones, whose error depends on the parts, and above order 9.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    float

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.error_constant(get("euler"))
    0.5
    """
    table = scheme.linear if isinstance(scheme, Rosenbrock) else tableau_of(scheme)
    if table is not None:
        conditions = scheme.conditions if isinstance(scheme, Rosenbrock) else Conditions(table.A)
        attained = order(scheme)
        if attained > HIGHEST:  # there are too many trees
            return float("nan")
        values = [
            (table.b @ conditions.stage_weights(tree) - 1 / density(tree)) / symmetry(tree)
            for tree in trees(attained + 1)
        ]
        return float(np.linalg.norm(values))
    if isinstance(scheme, (*OF_HALVES, AdditiveRK, SemiImplicitBDF)):
        return float("nan")
    m = order(scheme) + scheme.derivative
    if isinstance(scheme, FixedBDF):
        return 1.0 / m  # the next difference is left out: HNW I, III.2
    alpha_terms = np.array(scheme.alpha) * (-1.0 - np.arange(len(scheme.alpha))) ** m
    factor = float(np.prod(m - np.arange(scheme.derivative)))
    beta_terms = factor * np.array(scheme.beta) * (-1.0 - np.arange(len(scheme.beta))) ** (m - scheme.derivative)
    factorial = float(np.prod(np.arange(1, m + 1)))
    return float(-(alpha_terms.sum() + beta_terms.sum()) / factorial / sum(scheme.beta))
