"""Stability regions of schemes: where a step does not amplify the solution of a linear test equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.records import show_fields
from stepnet.schemes.capabilities import count_formulas
from stepnet.schemes.conditions import imaginary_stability_limit, real_stability_limit
from stepnet.schemes.stability_grids import (
    evaluate_formula,
    evaluate_grid,
    evaluate_sum,
    find_boundary,
    find_boundary_of_formula,
    find_boundary_of_sum,
    is_for_oscillators,
    is_for_sums,
    is_pole,
)
from stepnet.stability.arguments import LARGEST, complex_number, grid_axis, scheme_or_formulas
from stepnet.validation import check, instance, optional, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MARGIN = 0.15  # fraction of the width of the boundary, added on each side of the default window
FAR = 2.0  # in units of the longer stability limit: islands of the region farther away are not shown by default
THIN = 1e-6  # a boundary of this relative width is a line
DEFAULT_REACH = 6.0  # of the window of a scheme whose boundary is the imaginary axis
SLACK = 1e-9  # tolerance of |R| <= 1: rounding on the boundary of a scheme without dissipation
FASTEST = 300.0  # largest real part of h mu, as exp(h mu) would overflow
MOST_POINTS = 20_000  # of an axis


@check(real=grid_axis, imaginary=grid_axis, amplification=instance(np.ndarray), boundary=instance(np.ndarray))
@dataclass(frozen=True, repr=False, eq=False)
class Region:
    """The size of the stability function on a grid of z = h lambda.

    Parameters
    ----------
    name : str
        The name of the scheme, and the order of the formula where it chooses among several.
    equation : str
        The test equation: "y' = lambda y", or "q'' = -omega^2 q" with z = i h omega for splitting schemes and others
        for second-order problems, whose grid is the imaginary axis.
    real, imaginary : array
        The coordinates of the grid.
    amplification : array (len(imaginary), len(real))
        |R(z)|; of several roots the largest.
    boundary : array (curves, points)
        Points with |R(z)| = 1, each row in order along a curve; NaN where a curve leaves for infinity.  The root locus
        of a multistep scheme, which contains the boundary of its region.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.stability.region("heun2", real=[-1.0], imaginary=[0.0]).amplification.tolist()  # |1 + z + z^2 / 2|
    [[0.5]]
    """

    name: str
    equation: str
    real: np.ndarray
    imaginary: np.ndarray
    amplification: np.ndarray
    boundary: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.imaginary), len(self.real))
        if self.amplification.shape != shape:
            raise ValueError(f"`amplification` must have the shape {shape}, found {self.amplification.shape}")

    @property
    def is_stable(self) -> np.ndarray:
        """Where |R(z)| <= 1."""
        return self.amplification <= 1 + SLACK

    @property
    def order_star(self) -> np.ndarray:
        """|R(z) / exp(z)|, greater than 1 in the order star; Wanner, Hairer & Norsett (1978), BIT 18:475."""
        return self.amplification * np.exp(-self.real)

    def __repr__(self) -> str:
        return show_fields(self)


@check(scheme=scheme_or_formulas, real=optional(grid_axis), imaginary=optional(grid_axis),
       resolution=whole(2, MOST_POINTS), angles=whole(8, MOST_POINTS), stiff=optional(complex_number),
       order=optional(whole(1)))  # fmt: skip
def region(
    scheme: Any, *, real: ArrayLike | None = None, imaginary: ArrayLike | None = None, resolution: int = 400,
    angles: int = 720, stiff: complex | None = None, order: int | None = None,
) -> Region:  # fmt: skip
    """Compute the stability region of a scheme: |R(z)| on a grid, and the curves |R(z)| = 1.

    Parameters
    ----------
    scheme : str, scheme or Butcher
        A scheme by name or record, or an implicit tableau.  Splitting schemes and two-step schemes for q'' = a(t, q)
        have a stable interval of h omega; their grid is the imaginary axis.
    real, imaginary : array_like, optional
        The coordinates of the grid, increasing; by default around the boundary.
    resolution : int, optional
        The number of points of a default axis.
    angles : int, optional
        The number of points of each curve of the boundary, at which R(z) = exp(i theta).
    stiff : complex, optional
        For IMEX and exponential schemes: h mu of y' = lambda y + mu y, whose second term is implicit or exact.  Without
        it IMEX schemes take the whole equation implicitly, and exponential ones have no linear part.
    order : int, optional
        For schemes that choose among formulas, such as bdf and adams: the order of the formula, with steps of one
        length.

    Returns
    -------
    Region

    Raises
    ------
    TypeError
        If the scheme is stochastic: its region is that of `mean_square_region`; or if `stiff` is given for a scheme
        without an implicit or exact part, or `order` for a scheme that has one; or if the scheme switches by stiffness.
    ValueError
        If the scheme chooses among formulas and has none of this `order`, or the implicit part has a pole at `stiff`.

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.stability.region("rk4", resolution=50)
    >>> found.amplification.shape
    (50, 50)
    >>> round(float(-found.boundary.real.min()), 3)
    2.785
    """
    if order is not None or count_formulas(scheme):
        return _find_region_of_formula(scheme, order, stiff, real, imaginary, resolution, angles)
    if stiff is not None:
        return _find_region_of_sum(scheme, stiff, real, imaginary, resolution, angles)
    boundary = find_boundary(scheme, angles)
    x, y = _choose_window(boundary, (real_stability_limit(scheme), imaginary_stability_limit(scheme)), resolution)
    if is_for_oscillators(scheme):
        x, real = np.zeros(1), None
    x, y = (default if given is None else np.asarray(given) for given, default in ((real, x), (imaginary, y)))
    equation = "q'' = -omega^2 q" if is_for_oscillators(scheme) else "y' = lambda y"
    return Region(getattr(scheme, "name", "tableau"), equation, x, y, evaluate_grid(scheme, x, y), boundary)


def _find_region_of_sum(scheme: Any, stiff: complex, real: Any, imaginary: Any, resolution: int, angles: int) -> Region:
    """The region of the explicit part for a given implicit or exact part."""
    if not is_for_sums(scheme):
        raise TypeError(f"`stiff` is for IMEX and exponential schemes, found {getattr(scheme, 'name', 'a tableau')}")
    if stiff.real > FASTEST:
        raise ValueError(f"`stiff` must have a real part of at most {FASTEST:g}, found {stiff:g}")
    if is_pole(scheme, stiff):
        raise ValueError(f"`stiff` must not be a pole of the implicit part of {scheme.name}, found {stiff:g}")
    boundary, shown = find_boundary_of_sum(scheme, stiff, angles), stiff if stiff.imag else stiff.real
    points = np.append(boundary[np.abs(boundary) <= LARGEST], 0.0)
    sides = [(float(values.min()), float(values.max())) for values in (points.real, points.imag)]
    x, y = (np.linspace(low - MARGIN * (high - low), high + MARGIN * (high - low), resolution) for low, high in sides)
    x, y = (default if given is None else np.asarray(given) for given, default in ((real, x), (imaginary, y)))
    size = np.abs(evaluate_sum(scheme, x + 1j * y[:, None], stiff))
    return Region(scheme.name, f"y' = lambda y + mu y, h mu = {shown:g}", x, y, size, boundary)


def _find_region_of_formula(
    scheme: Any, order: int | None, stiff: complex | None, real: Any, imaginary: Any, resolution: int, angles: int
) -> Region:
    """The region of one formula of a scheme of variable order."""
    name, highest = getattr(scheme, "name", "a tableau"), count_formulas(scheme)
    if not highest:
        raise TypeError(f"`order` is for schemes that choose their order, such as bdf and adams, found {name}")
    if stiff is not None:
        raise TypeError(f"`stiff` is for IMEX and exponential schemes, found {name}")
    if order is None or order > highest:
        found = "none" if order is None else str(order)
        raise ValueError(f"`order` must be that of a formula of {name}, from 1 to {highest}, found {found}")
    boundary = find_boundary_of_formula(scheme, order, angles)
    limit = float(getattr(scheme, "stability_limits", {order: 0.0})[order])
    x, y = _choose_window(boundary, (limit, 0.0), resolution)
    x, y = (default if given is None else np.asarray(given) for given, default in ((real, x), (imaginary, y)))
    return Region(f"{name}, order {order}", "y' = lambda y", x, y, evaluate_formula(scheme, order, x, y), boundary)


def _choose_window(boundary: np.ndarray, limits: tuple[float, float], resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Axes around the boundary, without islands far from the origin; a square where the boundary is a line."""
    limit = max((x for x in limits if x > 0), default=np.inf)
    points = boundary[np.abs(boundary) <= LARGEST]  # without NaN and roots at infinity
    points = np.append(points[np.abs(points) <= FAR * limit], 0.0)
    sides = [(float(values.min()), float(values.max())) for values in (points.real, points.imag)]
    widths = [high - low for low, high in sides]
    if min(widths) < THIN * max(widths) or max(widths) == 0:
        reach = min(max(*map(max, sides), 1.0), DEFAULT_REACH)
        sides, widths = [(-reach, reach)] * 2, [2 * reach] * 2
    x, y = (
        np.linspace(low - MARGIN * w, high + MARGIN * w, resolution)
        for (low, high), w in zip(sides, widths, strict=True)
    )
    return x, y
