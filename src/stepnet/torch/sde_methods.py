"""Stochastic schemes by the names of torchsde and of this package."""

from __future__ import annotations

from typing import Any

from stepnet.engines.torch_engine import LOG_ODE, build_from_constants
from stepnet.errors import UnknownName
from stepnet.schemes import catalogue, stochastic
from stepnet.schemes.capabilities import is_implicit, is_stochastic

ADJOINT_OF_REVERSIBLE_HEUN = "adjoint_reversible_heun"
THEIRS = {
    "euler": stochastic.EULER_MARUYAMA,
    "heun": stochastic.STOCHASTIC_HEUN,
    "midpoint": stochastic.STOCHASTIC_MIDPOINT,
}
"""Names of torchsde for schemes that have another one here."""
BY_EQUATION = ("milstein", "srk", "log_ode")
"""Names that denote several schemes, chosen by the type of noise and the calculus."""
IMPLICIT = frozenset(name for name in catalogue.names("SDE") if is_implicit(catalogue.get(name)))
DEFAULTS = {"diagonal": "srk", "additive": "srk", "scalar": "srk", "commutative": "milstein", "general": "euler"}


def sde_method_names() -> list[str]:
    """The names accepted as `method` of `sdeint`; a stochastic scheme of `stepnet.schemes` is accepted too.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> from stepnet.torch import sde_method_names
    >>> "srk" in sde_method_names()
    True
    """
    return sorted({*THEIRS, *BY_EQUATION, *catalogue.names("SDE")})


def reads_data(method: Any) -> bool:
    """Whether steps depend on numbers that are read: the convergence of implicit stages."""
    return method in IMPLICIT if isinstance(method, str) else is_implicit(method)


def find_stochastic_scheme(method: Any, noise: str, calculus: str, is_derivative_free: bool = False) -> Any:
    """Return a scheme by name or unchanged; torchsde's choice for None."""
    if method is None:
        method = DEFAULTS[noise] if calculus == "ito" else "midpoint"
    if not (isinstance(method, str) or is_stochastic(method)):
        raise TypeError(f"`method` must be a name or a stochastic scheme, found {type(method).__name__}")
    return (
        find_named_stochastic_scheme(method, noise, calculus, is_derivative_free) if isinstance(method, str) else method
    )


@build_from_constants
def find_named_stochastic_scheme(method: str, noise: str, calculus: str, is_derivative_free: bool) -> Any:
    """The scheme of a name for an equation."""
    if method == "milstein":
        return _choose_milstein(noise, calculus, is_derivative_free)
    if method == "srk":
        return stochastic.SRA1 if noise == "additive" else stochastic.SRID2
    if method == "log_ode":
        return LOG_ODE if noise == "general" else stochastic.STOCHASTIC_MIDPOINT
    if method == ADJOINT_OF_REVERSIBLE_HEUN:
        raise ValueError(f"`method` {method!r} is for `adjoint_method` only, with `method`='reversible_heun'")
    known = sde_method_names()
    if method not in known:
        raise UnknownName("method", method, known)
    return THEIRS.get(method) or catalogue.get(method)


def _choose_milstein(noise: str, calculus: str, is_derivative_free: bool) -> Any:
    """Additive noise needs neither the derivative of the diffusion nor a substitute for it."""
    if noise == "additive":
        return stochastic.EULER_MARUYAMA
    if calculus == "ito":
        return stochastic.MILSTEIN_DERIVATIVE_FREE if is_derivative_free else stochastic.MILSTEIN
    if is_derivative_free:
        return stochastic.MILSTEIN_STRATONOVICH_DERIVATIVE_FREE
    return stochastic.MILSTEIN_STRATONOVICH
