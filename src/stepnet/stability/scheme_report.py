"""What the coefficients of a scheme say about it, in one record."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from math import isinf, isnan, nan
from typing import Any

import numpy as np

from stepnet.schemes import conditions
from stepnet.schemes.capabilities import count_stages
from stepnet.schemes.conditions.families import find_explicit_part, linear_tableau
from stepnet.schemes.phase_errors import find_phase_errors
from stepnet.schemes.stability_grids import is_for_oscillators
from stepnet.stability.arguments import deterministic_scheme
from stepnet.validation import check, text

NEGLIGIBLE = 1e-15  # coefficients of the stability function left by rounding
OF_IMPLICIT_PART = ("numerator", "denominator", "real_limit", "imaginary_limit")  # of an IMEX scheme


@check(name=text, family=text, equation=text, reference=text)
@dataclass(frozen=True)
class SchemeReport:
    """Properties of a scheme, all computed from its coefficients.

    Parameters
    ----------
    name, family, reference : str
    equation : str
        The test equation of linear stability: "y' = lambda y" with z = h lambda, or "q'' = -omega^2 q" with z = i h
        omega.
    stages : int
        Evaluations of the right-hand side in a step; of each part, for splitting and IMEX schemes.
    order, stage_order : int
    error_constant : float
        The size of the principal error, as in `conditions.error_constant`; NaN for splitting schemes.
    embedded_orders : tuple of int
        Orders of the embedded results of a pair.
    numerator, denominator : tuple of float
        Coefficients of R(z) = P(z) / Q(z) by increasing powers; empty for schemes that are not Runge-Kutta.  Of IMEX
        schemes this is the implicit part, as are the limits that follow and A- and L-stability.
    real_limit, imaginary_limit : float
        The longest stable intervals [-x, 0] and i [0, y] of z; h omega for oscillators, whose real limit is NaN.
    explicit_numerator : tuple of float
        Coefficients of the stability polynomial of the explicit part of an IMEX scheme, without an implicit part; empty
        for other schemes and for SBDF.
    explicit_real_limit, explicit_imaginary_limit : float
        The limits of the explicit part; NaN for schemes that are not IMEX.
    ssp_coefficient : float
        Strong stability preserving coefficient, 0 if there is none.
    is_explicit, is_fsal, is_a_stable, is_l_stable, is_symplectic, is_symmetric : bool
    dispersion_order, dispersion, dissipation_order, dissipation : float
        On an oscillator, with nu = h omega: a step has the phase error dispersion nu^(dispersion_order + 1) and loses
        the fraction dissipation nu^(dissipation_order + 1) of the amplitude (gains it, if negative).

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.stability.report("rk4").order
    4
    """

    name: str
    family: str
    equation: str
    stages: int
    order: int
    stage_order: int
    error_constant: float
    embedded_orders: tuple[int, ...]
    numerator: tuple[float, ...]
    denominator: tuple[float, ...]
    real_limit: float
    imaginary_limit: float
    explicit_numerator: tuple[float, ...]
    explicit_real_limit: float
    explicit_imaginary_limit: float
    ssp_coefficient: float
    is_explicit: bool
    is_fsal: bool
    is_a_stable: bool
    is_l_stable: bool
    is_symplectic: bool
    is_symmetric: bool
    dispersion_order: float
    dispersion: float
    dissipation_order: float
    dissipation: float
    reference: str

    @property
    def has_explicit_part(self) -> bool:
        """Whether the scheme is IMEX, so that its stability function is that of the implicit part."""
        return not isnan(self.explicit_real_limit)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values; tuples become lists."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def as_json(self) -> str:
        """The fields as JSON; NaN is null, and infinity the text "inf"."""
        return json.dumps({name: _as_json_value(value) for name, value in self.as_dict().items()}, indent=2)

    def __str__(self) -> str:
        """One line for each property."""
        pairs = [("", f"{self.name}: {self.family}")]
        names = [each.name for each in fields(self)]
        for name in names[names.index("equation") : -1]:
            label = f"implicit_{name}" if name in OF_IMPLICIT_PART and self.has_explicit_part else name
            pairs.append((label.removeprefix("is_").replace("_", " "), _format(getattr(self, name))))
        pairs.append(("reference", self.reference))
        width = max(len(name) for name, _ in pairs)
        return "\n".join([pairs[0][1], *(f"  {name:<{width}}  {value}" for name, value in pairs[1:])])


@check(scheme=deterministic_scheme)
def report(scheme: Any) -> SchemeReport:
    """Collect the properties of a scheme: order, errors, linear stability, structure.

    Parameters
    ----------
    scheme : str, scheme or Butcher
        A scheme by name or record, or an implicit tableau.

    Returns
    -------
    SchemeReport

    Raises
    ------
    TypeError
        If the scheme is stochastic.

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.stability.report("rk4")
    >>> found.order, round(found.real_limit, 4), round(found.imaginary_limit, 4)
    (4, 2.7853, 2.8284)
    >>> print(sn.stability.report("verlet").imaginary_limit)
    2.0
    >>> found = sn.stability.report("ars343")
    >>> found.real_limit, round(found.explicit_real_limit, 4), round(found.explicit_imaginary_limit, 4)
    (inf, 2.7853, 2.8284)
    """
    numerator, denominator = _find_stability_function(scheme)
    errors, explicit = find_phase_errors(scheme), find_explicit_part(scheme)
    return SchemeReport(
        name=getattr(scheme, "name", "tableau"),
        family=type(scheme).__name__,
        equation="q'' = -omega^2 q" if is_for_oscillators(scheme) else "y' = lambda y",
        stages=count_stages(scheme),
        order=conditions.order(scheme),
        stage_order=conditions.stage_order(scheme),
        error_constant=conditions.error_constant(scheme),
        embedded_orders=conditions.embedded_orders(scheme),
        numerator=numerator,
        denominator=denominator,
        real_limit=conditions.real_stability_limit(scheme),
        imaginary_limit=conditions.imaginary_stability_limit(scheme),
        explicit_numerator=() if explicit is None else _find_stability_function(explicit)[0],
        explicit_real_limit=nan if explicit is None else conditions.real_stability_limit(explicit),
        explicit_imaginary_limit=nan if explicit is None else conditions.imaginary_stability_limit(explicit),
        ssp_coefficient=conditions.ssp_coefficient(scheme),
        is_explicit=conditions.is_explicit(scheme),
        is_fsal=conditions.is_fsal(scheme),
        is_a_stable=conditions.is_a_stable(scheme),
        is_l_stable=conditions.is_l_stable(scheme),
        is_symplectic=conditions.is_symplectic(scheme),
        is_symmetric=conditions.is_symmetric(scheme),
        reference=getattr(scheme, "reference", ""),
        **errors._asdict(),
    )


def _find_stability_function(scheme: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if linear_tableau(scheme) is None:
        return (), ()
    P, Q = conditions.stability_function(scheme)
    return _trim(P.coef), _trim(Q.coef)


def _trim(coefficients: np.ndarray) -> tuple[float, ...]:
    """Without the last coefficients that are zero up to rounding, as those of first-same-as-last schemes are."""
    last = np.flatnonzero(np.abs(coefficients) > NEGLIGIBLE)[-1]
    return tuple(float(x) for x in coefficients[: last + 1])


def _as_json_value(value: Any) -> Any:
    if isinstance(value, float):
        return None if isnan(value) else ("inf" if value > 0 else "-inf") if isinf(value) else value
    return value


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_format, value)) or "-"
    if isinstance(value, float):
        return "-" if isnan(value) else f"{value:.10g}"
    return str(value)
