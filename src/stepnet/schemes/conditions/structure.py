"""Structure of schemes: explicit, embedded pairs, symplectic, symmetric, reversible."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.schemes.conditions.families import OF_DIFFERENCES, ROUNDING, check_scheme, linear_tableau, tableau_of
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import (
    PartitionedRK,
    find_symplecticity_defect,
    is_symmetric_pair,
)
from stepnet.schemes.splitting import Splitting


@check_scheme
def is_explicit(scheme: Any) -> bool:
    """Whether no stage depends on its own slope.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_explicit(get("rk4"))
    True
    """
    table = linear_tableau(scheme)
    return not isinstance(scheme, (*OF_DIFFERENCES, PartitionedRK)) and (table is None or not np.any(np.triu(table.A)))


@check_scheme
def is_pair(scheme: Any) -> bool:
    """Whether it has an embedded error estimate for adaptive steps.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_pair(get("dopri5")), conditions.is_pair(get("rk4"))
    (True, False)
    """
    return bool(getattr(scheme, "embedded", ()))


@check_scheme
def is_fsal(scheme: Any) -> bool:
    """First same as last: the last stage is the new state, so its slope begins the next step.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_fsal(get("dopri5")), conditions.is_fsal(get("rk4"))
    (True, False)
    """
    table = tableau_of(scheme)
    return bool(getattr(scheme, "is_fsal", False)) if table is None else table.is_fsal


@check_scheme
def is_stiffly_accurate(scheme: Any) -> bool:
    """Whether the new state is the last stage.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_stiffly_accurate(get("dopri5"))
    True
    """
    table = linear_tableau(scheme)
    return table is not None and bool(np.allclose(table.A[-1], table.b, rtol=0, atol=ROUNDING))


@check_scheme
def symplecticity_defect(scheme: Any) -> float:
    """max |b_i a_ij + b_j a_ji - b_i b_j|; 0 for splittings, which compose exact flows; NaN for multistep schemes.

    Of a partitioned scheme the first matrix is that of p.

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
    >>> conditions.symplecticity_defect(get("verlet"))
    0.0
    """
    if isinstance(scheme, Splitting):
        return 0.0
    if isinstance(scheme, PartitionedRK):
        return find_symplecticity_defect(scheme.tableaux)
    table = tableau_of(scheme)
    if table is None:
        return float("nan")
    BA = table.b[:, None] * table.A
    return float(np.max(np.abs(BA + BA.T - np.outer(table.b, table.b))))


@check_scheme
def is_symplectic(scheme: Any) -> bool:
    """Whether it preserves the symplectic form (of a separable problem, for splittings).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_symplectic(get("verlet")), conditions.is_symplectic(get("rk4"))
    (True, False)
    """
    return symplecticity_defect(scheme) < ROUNDING


@check_scheme
def is_symmetric(scheme: Any) -> bool:
    """Whether a step with -h inverts a step with h: the scheme is its own adjoint.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_symmetric(get("verlet")), conditions.is_symmetric(get("rk4"))
    (True, False)
    """
    table = tableau_of(scheme)
    if table is not None:
        return bool(np.allclose(table.A + table.A[::-1, ::-1], table.b[None, :], rtol=0, atol=ROUNDING))
    if isinstance(scheme, Splitting):
        flows = scheme.sequence()
        forward, backward = np.array(flows), np.array(flows[::-1])
        return bool(np.allclose(forward, backward, rtol=0, atol=ROUNDING))
    if isinstance(scheme, PartitionedRK):
        return is_symmetric_pair(scheme.tableaux)
    if not isinstance(scheme, Multistep):
        return False
    k = scheme.n_steps
    rho, sigma = np.zeros(k + 1), np.zeros(k + 1)
    rho[0], rho[1 : 1 + len(scheme.alpha)], sigma[1 : 1 + len(scheme.beta)] = (
        1.0,
        np.negative(scheme.alpha),
        scheme.beta,
    )
    return bool(np.allclose(rho[::-1], rho[-1] * rho) and abs(rho[-1]) == 1 and np.allclose(sigma[::-1], sigma))


@check_scheme
def is_reversible(scheme: Any) -> bool:
    """Whether the previous state can be computed explicitly, exactly up to rounding.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_reversible(get("verlet")), conditions.is_reversible(get("rk4"))
    (True, False)
    """
    return is_symmetric(scheme) and tableau_of(scheme) is None and is_explicit(scheme)
