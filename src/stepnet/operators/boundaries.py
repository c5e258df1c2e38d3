"""Boundary conditions a u + b du/dn = g, and how they continue a grid function beyond the boundary."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from stepnet import validation
from stepnet.operators.stencils import compute_weights
from stepnet.records import keep, validate_number


@dataclass(frozen=True, eq=False)
class Boundary:
    """value_weight u + slope_weight du/dn = value, with n the outward normal.

    `dirichlet`, `neumann` and `robin` build it.

    Parameters
    ----------
    value_weight, slope_weight : float
        Not both zero.
    value : float, array_like or callable
        A number, an array of the shape of the side (the grid without the axis), or a function of time that returns one
        of them, written with NumPy.  An operator that is called with (t, *data) instead of t passes all of them to it.

    Examples
    --------
    >>> from stepnet.operators import Boundary
    >>> Boundary(1.0, 0.0, 20.0).is_dirichlet
    True
    """

    value_weight: float
    slope_weight: float
    value: Any = 0.0

    def __post_init__(self) -> None:
        a, b = (validate_number(name, getattr(self, name)) for name in ("value_weight", "slope_weight"))
        if a == b == 0.0:
            raise ValueError("`value_weight` and `slope_weight` must not both be zero")
        keep(self, value_weight=a, slope_weight=b, value=_validate_value(self.value))

    @property
    def is_dirichlet(self) -> bool:
        """Whether the value itself is given."""
        return self.slope_weight == 0.0

    @property
    def is_homogeneous(self) -> bool:
        """Whether the right-hand side is zero for all times."""
        return isinstance(self.value, float) and self.value == 0.0


def _validate_value(value: Any) -> Any:
    if callable(value):
        _require_time(value)
        return value
    if not isinstance(value, (np.ndarray, list, tuple)):
        return validate_number("value", value)
    found = validation.array()("value", value).astype(float)
    if found.ndim == 0:
        return validate_number("value", found)
    if not np.isfinite(found).all():
        raise ValueError("`value` of a boundary must be finite")
    found.flags.writeable = False
    return found


def _require_time(function: Any) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a NumPy or C function
        return
    if not any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL) for each in parameters
    ):
        raise TypeError(
            "`value` of a boundary must be a function of time, as `lambda t: ...`; found one without arguments"
        )


def dirichlet(value: Any = 0.0) -> Boundary:
    """u = value on a side.

    Parameters
    ----------
    value : float, array_like or callable
        A number, an array of the shape of the side, or a function of time that returns one of them.

    Returns
    -------
    Boundary

    Examples
    --------
    >>> from stepnet.operators import dirichlet
    >>> dirichlet(20.0).value
    20.0
    """
    return Boundary(1.0, 0.0, value)


def neumann(slope: Any = 0.0) -> Boundary:
    """du/dn = slope on a side, with n the outward normal.

    Parameters
    ----------
    slope : float, array_like or callable
        A number, an array of the shape of the side, or a function of time that returns one of them.

    Returns
    -------
    Boundary

    Examples
    --------
    >>> from stepnet.operators import neumann
    >>> neumann().is_homogeneous
    True
    """
    return Boundary(0.0, 1.0, slope)


def robin(value_weight: float, slope_weight: float, value: Any = 0.0) -> Boundary:
    """value_weight u + slope_weight du/dn = value on a side, with n the outward normal.

    Parameters
    ----------
    value_weight, slope_weight : float
        Not both zero.
    value : float, array_like or callable
        A number, an array of the shape of the side, or a function of time that returns one of them.

    Returns
    -------
    Boundary

    Examples
    --------
    >>> from stepnet.operators import robin
    >>> robin(1.0, 0.5).slope_weight
    0.5
    """
    return Boundary(value_weight, slope_weight, value)


class GhostRule(NamedTuple):
    """Ghost value k (k = 0 next to the grid) = sum_i weights[k][i] u_i + value_weights[k] g, with u_0 at the side."""

    weights: tuple[tuple[float, ...], ...]
    value_weights: tuple[float, ...]
    boundary: Boundary


def build_ghost_rule(boundary: Boundary, side: str, position: Fraction, h: float, width: int, order: int) -> GhostRule:
    """Continue a grid function by the polynomial through the condition and the first points of the grid.

    The boundary lies at `position` (-1/2, -1 or 0) in units of h from the first point.  At order 2 the polynomial is
    the one that makes the usual second-order closures: reflections, and central differences of the slope.
    """
    fewest = 1 if boundary.is_dirichlet or position != 0 else 2
    points = [Fraction(i) for i in range(fewest if order == 2 else order)]
    a, b = boundary.value_weight, -boundary.slope_weight / h  # du/dn = -du/ds / h on the lower side

    def read(values: list[Fraction], slopes: list[Fraction]) -> list[float]:
        return [a * float(v) + b * float(s) for v, s in zip(values, slopes, strict=True)]

    known = read(compute_weights(0, points, position), compute_weights(1, points, position))
    # omega(s) = prod (s - i) vanishes at the points, so it is the part that the condition determines
    omega, omega_slope = _expand_product(points, position)
    pivot = a * float(omega) + b * float(omega_slope)
    if abs(pivot) < 1e-12 * (abs(a) + abs(b)):
        raise ValueError(
            f"the {side} boundary {a:g} u + {boundary.slope_weight:g} du/dn is singular on this grid, h = {h:.3g}: "
            f"the condition does not determine the value beyond the side; change its weights or the grid"
        )
    rows, values = [], []
    for k in range(1, width + 1):
        at = Fraction(-k)
        lift = float(_expand_product(points, at)[0]) / pivot
        rows.append(tuple(float(w) - lift * c for w, c in zip(compute_weights(0, points, at), known, strict=True)))
        values.append(lift)
    return GhostRule(tuple(rows), tuple(values), boundary)


def build_free_rule(width: int, n_points: int) -> GhostRule:
    """Continue a grid function by the polynomial through its first points: no condition."""
    points = [Fraction(i) for i in range(n_points)]
    rows = [tuple(map(float, compute_weights(0, points, Fraction(-k)))) for k in range(1, width + 1)]
    return GhostRule(tuple(rows), (0.0,) * width, neumann())


def _expand_product(points: list[Fraction], at: Fraction) -> tuple[Fraction, Fraction]:
    """prod (s - i) and its derivative at s."""
    value, slope = Fraction(1), Fraction(0)
    for point in points:
        value, slope = value * (at - point), slope * (at - point) + value
    return value, slope
