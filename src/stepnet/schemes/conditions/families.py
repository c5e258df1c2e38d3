"""The records that have properties, and the Runge-Kutta scheme behind each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.explicit import RK4
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import (
    PartitionedRK,
)
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import Butcher, ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.validation import check, instance

Scheme = (
    ExplicitRK | LowStorageRK | StabilisedRK | Splitting | Multistep | ImplicitRK | Rosenbrock | AdditiveRK
    | SemiImplicitBDF | ExponentialRK | PartitionedRK | FixedBDF
)  # fmt: skip
FAMILIES = (
    ExplicitRK, LowStorageRK, StabilisedRK, Splitting, Multistep, ImplicitRK, Rosenbrock, AdditiveRK, SemiImplicitBDF,
    ExponentialRK, PartitionedRK, FixedBDF, Butcher,
)  # fmt: skip
OF_DIFFERENCES = (SemiImplicitBDF, FixedBDF)
OF_HALVES = (Splitting, PartitionedRK)  # which advance q and p by different formulas
A_SCHEME = instance(*FAMILIES, what="a scheme such as `schemes.get('rk4')`, or a `Butcher` tableau")
check_scheme = check(scheme=A_SCHEME)
ROUNDING = 1e-12  # rounding left where coefficients of size 1 cancel


def remember(function: Callable[[Any], float]) -> Callable[[Any], float]:
    """Cache a function per scheme; tableaux of arrays are not hashable and are computed each time."""
    kept = cache(function)
    return wraps(function)(lambda scheme: function(scheme) if isinstance(scheme, Butcher) else kept(scheme))


@check_scheme
def tableau_of(scheme: Any) -> Butcher | None:
    """The Butcher tableau of a Runge-Kutta scheme in any form; None for other schemes.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    Butcher or None

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.tableau_of(get("rk4")).c
    array([0. , 0.5, 0.5, 1. ])
    """
    return scheme if isinstance(scheme, Butcher) else getattr(scheme, "butcher", None)


def linear_tableau(scheme: Any) -> Butcher | None:
    """The Runge-Kutta scheme that takes the same steps on y' = lambda y.

    For Rosenbrock schemes its matrix is alpha + gamma; of additive schemes it is the implicit one, and of exponential
    ones the explicit one that remains without a linear part.
    """
    if isinstance(scheme, Rosenbrock):
        return scheme.linear
    return scheme.implicit_table if isinstance(scheme, AdditiveRK) else tableau_of(scheme)


def find_explicit_part(scheme: Any) -> Butcher | Multistep | None:
    """What an IMEX scheme does to y' = f1 without an implicit part; None for other schemes."""
    if isinstance(scheme, AdditiveRK):
        return scheme.explicit_table
    if not isinstance(scheme, SemiImplicitBDF):
        return None
    return Multistep(f"{scheme.name}, explicit", scheme.order, scheme.alpha, scheme.beta, RK4, scheme.reference)
