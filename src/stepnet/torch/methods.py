"""Schemes by the names of torchdiffeq and of this package."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from stepnet.engines.torch_engine import (
    build_from_constants,
)
from stepnet.errors import UnknownName
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import find_step_choice_refusal, takes_fixed_steps
from stepnet.schemes.explicit import DOPRI5, RK38
from stepnet.schemes.implicit import GAUSS4, GAUSS6, RADAU3, RADAU5, SDIRK2, TRBDF2, ImplicitRK
from stepnet.schemes.tableau import Embedded, ExplicitRK

ADAPTIVE_HEUN = ExplicitRK(
    "adaptive_heun", 2, ((), (1.0,)), (0.5, 0.5), "Heun (1900), Z. Math. Phys. 45:23; with Euler's step for its error",
    embedded=(Embedded((1.0, 0.0), 1),),
)  # fmt: skip
FEHLBERG2 = ExplicitRK(
    "fehlberg2", 2, ((), (1 / 2,), (1 / 256, 255 / 256)), (1 / 512, 255 / 256, 1 / 512),
    "Fehlberg (1969), NASA TR R-315", embedded=(Embedded((1 / 256, 255 / 256, 0.0), 1),),
)  # fmt: skip


def _drop_estimate(name: str, scheme: ImplicitRK) -> ImplicitRK:
    """A scheme without its error estimate, under the name of torchdiffeq, where it takes fixed steps."""
    return replace(scheme, name=name, embedded=(), start=0.0, damping=0.0)


IMPLICIT = {
    "radauIIA3": RADAU3, "radauIIA5": RADAU5, "gl4": GAUSS4, "gl6": GAUSS6, "sdirk2": SDIRK2, "trbdf2": TRBDF2,
}  # fmt: skip
THEIRS = {
    "rk4": RK38, "adaptive_heun": ADAPTIVE_HEUN, "fehlberg2": FEHLBERG2,
    **{name: _drop_estimate(name, scheme) for name, scheme in IMPLICIT.items()},
}  # fmt: skip
"""Names that denote another scheme in torchdiffeq than here, or one that the catalogue does not have."""

HAND_OVER = "torchdiffeq:"
THEIR_OWN = ("explicit_adams", "fixed_adams", "implicit_adams", "scipy_solver")
"""Methods that torchdiffeq itself runs: Adams methods of variable order, and SciPy's."""


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
    ours = (name for name in catalogue.names("ODE") if takes_fixed_steps(catalogue.get(name)))
    return sorted({*THEIRS, *ours})


@build_from_constants
def find_named_scheme(method: str) -> Any:
    """The scheme of a name, torchdiffeq's meaning first: its "rk4" is the 3/8 rule."""
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
    scheme = method if catalogue.is_scheme(method) else find_named_scheme(method)
    refusal = find_step_choice_refusal(scheme, "and `method` must be a scheme for tensors;")
    if refusal is not None:
        raise TypeError(refusal)
    return scheme


def find_torchdiffeq(method: Any) -> SimpleNamespace | None:
    """torchdiffeq's functions with the method of a name "torchdiffeq:method", or one of its own; None for others."""
    if not isinstance(method, str) or not (method.startswith(HAND_OVER) or method in THEIR_OWN):
        return None
    try:
        import torchdiffeq
    except ImportError:
        raise ImportError(f"`method` {method!r} is run by torchdiffeq, which is not installed") from None
    name = method.removeprefix(HAND_OVER)
    functions = torchdiffeq.odeint, torchdiffeq.odeint_adjoint
    return SimpleNamespace(**{function.__name__: partial(function, method=name) for function in functions})
