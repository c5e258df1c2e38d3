"""Schemes by name and by property."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from stepnet.errors import UnknownName
from stepnet.schemes import (
    backward_differences,
    conditions,
    explicit,
    exponential,
    imex,
    implicit,
    langevin,
    low_storage,
    multistep,
    partitioned_rk,
    rosenbrock,
    semi_implicit,
    stabilised,
    symplectic,
    variable_order,
    weak,
)
from stepnet.schemes import stochastic as stochastic_schemes
from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.langevin import LangevinSplitting, StochasticVerlet
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.stochastic import ReversibleHeun, StochasticRK, TamedEuler
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.schemes.variable_order import Switching, VariableAdams, VariableBDF
from stepnet.schemes.weak import WeakRK

STOCHASTIC = (StochasticRK, WeakRK, TamedEuler, ReversibleHeun)
LANGEVIN = (LangevinSplitting, StochasticVerlet)
ADAPTIVE_ONLY = (VariableBDF, VariableAdams, Switching)
RECORDS = (
    ExplicitRK, LowStorageRK, StabilisedRK, Splitting, Multistep, ImplicitRK, Rosenbrock, AdditiveRK, SemiImplicitBDF,
    ExponentialRK, PartitionedRK, FixedBDF,
)  # fmt: skip
FAMILIES = {
    "rkc1": stabilised.rkc1, "rkc2": stabilised.rkc2, "rkl1": stabilised.rkl1, "rkl2": stabilised.rkl2,
    "gauss": implicit.gauss, "radau_iia": implicit.radau_iia, "lobatto_iiia": implicit.lobatto_iiia,
    "lobatto_iiib": implicit.lobatto_iiib, "lobatto_iiic": implicit.lobatto_iiic,
    "lobatto_iiia_iiib": partitioned_rk.lobatto_iiia_iiib,
}  # fmt: skip
DEFAULT_STAGES = 10  # of the stabilised families
DEFAULT_COLLOCATION_STAGES = 3

PROPERTIES = {
    "order": lambda scheme: scheme.order,
    "family": lambda scheme: type(scheme).__name__,
    "explicit": conditions.is_explicit,
    "pair": conditions.is_pair,
    "fsal": conditions.is_fsal,
    "symplectic": conditions.is_symplectic,
    "symmetric": conditions.is_symmetric,
    "reversible": conditions.is_reversible,
    "nystrom": lambda scheme: getattr(scheme, "nystrom", False),
    "ssp": lambda scheme: conditions.ssp_coefficient(scheme) > 0,
    "a_stable": conditions.is_a_stable,
    "l_stable": conditions.is_l_stable,
}


@cache
def _constants() -> dict[str, Any]:
    modules = (
        explicit, low_storage, symplectic, multistep, implicit, partitioned_rk, rosenbrock, imex, semi_implicit,
        exponential, backward_differences,
    )  # fmt: skip
    found = (value for module in modules for value in vars(module).values() if isinstance(value, RECORDS))
    return {scheme.name: scheme for scheme in found}


@cache
def _stochastic_constants() -> dict[str, Any]:
    modules = (stochastic_schemes, weak)
    found = (value for module in modules for value in vars(module).values() if isinstance(value, STOCHASTIC))
    return {scheme.name: scheme for scheme in found}


@cache
def _langevin_constants() -> dict[str, Any]:
    return {value.name: value for value in vars(langevin).values() if isinstance(value, LANGEVIN)}


@cache
def _adaptive_constants() -> dict[str, Any]:
    return {value.name: value for value in vars(variable_order).values() if isinstance(value, ADAPTIVE_ONLY)}


@cache
def _list_all_constants() -> dict[str, Any]:
    return _constants() | _stochastic_constants() | _langevin_constants() | _adaptive_constants()


def _list_ordinary() -> list[str]:
    return [*_constants(), *_adaptive_constants(), *FAMILIES]


KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "ODE": _list_ordinary,
    "SDE": _stochastic_constants,
    "Langevin": _langevin_constants,
}


def is_scheme(value: Any) -> bool:
    """Whether a value is the record of a scheme."""
    return isinstance(value, (*RECORDS, *STOCHASTIC, *LANGEVIN, *ADAPTIVE_ONLY))


def get(name: Any, stages: int | None = None) -> Any:
    """The scheme of this name; `stages` is for families: rkc1, rkc2, rkl1, rkl2 (10 by default), and gauss,
    radau_iia, lobatto_iiia, lobatto_iiib, lobatto_iiic, lobatto_iiia_iiib (3 by default).

    "rkl2(20)" means the same as `get("rkl2", stages=20)`; a scheme is returned unchanged.

    Parameters
    ----------
    name
        A name, or a scheme.
    stages : int, optional
        Number of stages of a scheme of a family.

    Returns
    -------
    scheme

    Examples
    --------
    >>> from stepnet import schemes
    >>> schemes.get("rkl2", stages=20) == schemes.get("rkl2(20)")
    True
    """
    if is_scheme(name):
        key, found = name.name, name
    else:
        key, number = _split(str(name).lower())
        if number is not None and stages is None:
            stages = number
        if key in FAMILIES:
            default = DEFAULT_STAGES if key.startswith("rk") else DEFAULT_COLLOCATION_STAGES
            return FAMILIES[key](default if stages is None else stages)
        known = _list_all_constants()
        if key not in known:
            raise UnknownName("scheme", name, names())
        found = known[key]
    if stages is not None:
        raise ValueError(f"`stages` is for {', '.join(FAMILIES)}; {key!r} has a fixed number")
    return found


@cache
def _split(key: str) -> tuple[str, int | None]:
    """ "rkl2(20)" as ("rkl2", 20)."""
    match = re.fullmatch(r"(\w+)\((\d+)\)", key)
    return (match[1], int(match[2])) if match else (key, None)


def names(problem: str | None = None) -> list[str]:
    """The names that `get` knows, sorted.

    Parameters
    ----------
    problem : str, optional
        "ODE", "SDE" or "Langevin": only schemes for these equations, "ODE" being all ordinary differential equations,
        second-order and partitioned ones and sums among them.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from stepnet import schemes
    >>> {"dopri5", "verlet", "bdf", "milstein"} <= set(schemes.names())
    True
    >>> "milstein" in schemes.names("ODE")
    False
    """
    if problem is None:
        return sorted(name for known in KINDS.values() for name in known())
    if not isinstance(problem, str):
        raise TypeError(f"`problem` must be one of {', '.join(KINDS)}, found {type(problem).__name__}")
    if problem not in KINDS:
        raise UnknownName("kind of problem", problem, KINDS)
    return sorted(KINDS[problem]())


def find(**properties: Any) -> list[Any]:
    """All schemes with these properties, by order and name, as in `find(order=4, symplectic=True)`.

    Known properties: order, family, explicit, pair, fsal, symplectic, symmetric, reversible, nystrom, ssp, a_stable,
    l_stable.

    Parameters
    ----------
    **properties
        Properties and their values.

    Returns
    -------
    list of schemes

    Examples
    --------
    >>> from stepnet import schemes
    >>> [scheme.name for scheme in schemes.find(order=2, symplectic=True, explicit=True, nystrom=False)][:1]
    ['leapfrog']
    """
    for key, value in properties.items():
        if key not in PROPERTIES:
            raise UnknownName("property", key, PROPERTIES)
        if not isinstance(value, (bool, np.bool_, int, np.integer, float, str)):
            raise TypeError(f"`{key}` must be a number, a name, True or False, found {type(value).__name__}")
    schemes = (get(name) for name in (*_constants(), *FAMILIES))
    chosen = (s for s in schemes if all(PROPERTIES[key](s) == value for key, value in properties.items()))
    return sorted(chosen, key=lambda scheme: (scheme.order, scheme.name))
