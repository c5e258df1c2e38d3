"""Schemes by the names of torchdiffeq and of this package."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from stepnet.engines.torch_engine import (
    build_from_constants,
)
from stepnet.errors import UnknownName
from stepnet.schemes import catalogue
from stepnet.schemes.explicit import DOPRI5, RK38
from stepnet.schemes.tableau import Embedded, ExplicitRK

ADAPTIVE_HEUN = ExplicitRK(
    "adaptive_heun", 2, ((), (1.0,)), (0.5, 0.5), "Heun (1900), Z. Math. Phys. 45:23; with Euler's step for its error",
    embedded=(Embedded((1.0, 0.0), 1),),
)  # fmt: skip
FEHLBERG2 = ExplicitRK(
    "fehlberg2", 2, ((), (1 / 2,), (1 / 256, 255 / 256)), (1 / 512, 255 / 256, 1 / 512),
    "Fehlberg (1969), NASA TR R-315", embedded=(Embedded((1 / 256, 255 / 256, 0.0), 1),),
)  # fmt: skip

THEIRS = {"rk4": RK38, "adaptive_heun": ADAPTIVE_HEUN, "fehlberg2": FEHLBERG2}
"""Names that denote another scheme in torchdiffeq than here, or one that the catalogue does not have."""

HAND_OVER = "torchdiffeq:"
UNKNOWN = {
    "explicit_adams": "it has variable order; take 'ab4' or 'ab5', or 'torchdiffeq:explicit_adams'",
    "implicit_adams": "there are no implicit multistep schemes; take 'ab4' or 'dopri5'",
    "fixed_adams": "there are no implicit multistep schemes; take 'ab4' or 'dopri5'",
    "scipy_solver": "take `stepnet.solve_ivp` for SciPy's methods",
}


def method_names() -> list[str]:
    """The names accepted as `method`; a scheme of `stepnet.schemes` is accepted too.

    Returns
    -------
    list of str

    Examples
    --------
    >>> import stepnet.torch as snt
    >>> "dopri5" in snt.method_names()
    True
    """
    return sorted({*THEIRS, *catalogue.names()})


@build_from_constants
def find_named_scheme(method: str) -> Any:
    """The scheme of a name, torchdiffeq's meaning first: its "rk4" is the 3/8 rule."""
    if method in UNKNOWN:
        raise ValueError(f"`method` {method!r} of torchdiffeq is not here: {UNKNOWN[method]}")
    if method in THEIRS:
        return THEIRS[method]
    try:
        return catalogue.get(method)
    except UnknownName:
        raise UnknownName("method", method, method_names()) from None


def find_scheme(method: Any) -> Any:
    """Return a scheme by name or unchanged; dopri5 for None."""
    if method is None:
        return DOPRI5
    if not (isinstance(method, str) or catalogue.is_scheme(method)):
        raise TypeError(f"`method` must be a name or a scheme, found {type(method).__name__}")
    return method if catalogue.is_scheme(method) else find_named_scheme(method)


def find_torchdiffeq(method: Any) -> SimpleNamespace | None:
    """torchdiffeq's functions with the method of a name "torchdiffeq:method"; None for all other names."""
    if not isinstance(method, str) or not method.startswith(HAND_OVER):
        return None
    try:
        import torchdiffeq
    except ImportError:
        raise ImportError(f"`method` {method!r} is run by torchdiffeq, which is not installed") from None
    name = method.removeprefix(HAND_OVER)
    functions = torchdiffeq.odeint, torchdiffeq.odeint_adjoint
    return SimpleNamespace(**{function.__name__: partial(function, method=name) for function in functions})
