"""Uniform Cartesian grids in one to three dimensions with their boundary conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet import validation
from stepnet.errors import UnknownName
from stepnet.operators.boundaries import Boundary, dirichlet, neumann
from stepnet.records import keep, show_fields, validate_number

MOST_POINTS = 2**31
LARGEST = 1e300  # square of a spacing, by which differences are divided
NAMED = {"dirichlet": dirichlet, "neumann": neumann}
CENTRINGS = ("cell", "node")

Sides = tuple[Boundary, Boundary] | None


@validation.check(centring=validation.one_of(*CENTRINGS))
@dataclass(frozen=True)
class Grid:
    """A uniform Cartesian grid with a boundary condition on each side.

    With `centring="cell"` the unknowns are at the centres of `shape` cells, and sides are faces of cells.  With
    "node" they are at the nodes: those of a Dirichlet side are known and not part of the grid, those of other sides
    belong to it; a periodic axis has its first node at `lower`.

    Parameters
    ----------
    shape : int or sequence of ints
        The number of unknowns along each of one to three axes.
    lower, upper : float or sequence of floats
        The ends of the domain, one number for all axes or one per axis.
    boundary : str, Boundary or sequence
        "periodic", "dirichlet", "neumann" or a `Boundary`: for all sides; or a sequence with one of these, or a pair
        (lower, upper), per axis.
    centring : {"cell", "node"}
        Where the unknowns are.

    Raises
    ------
    ValueError
        If a size, an interval or a boundary is wrong; the two sides of a periodic axis cannot be given separately.

    Examples
    --------
    >>> from stepnet.operators import Grid
    >>> grid = Grid((4, 8), 0.0, (1.0, 2.0), boundary=["neumann", "periodic"])
    >>> grid.spacing
    (0.25, 0.25)
    """

    shape: tuple[int, ...]
    lower: tuple[float, ...] = (0.0,)
    upper: tuple[float, ...] = (1.0,)
    boundary: Any = "periodic"
    centring: str = "cell"
    spacing: tuple[float, ...] = field(init=False)

    __repr__ = show_fields

    if TYPE_CHECKING:

        def __init__(
            self,
            shape: int | Sequence[int],
            lower: float | Sequence[float] = 0.0,
            upper: float | Sequence[float] = 1.0,
            boundary: Any = "periodic",
            centring: str = "cell",
        ) -> None: ...

    def __post_init__(self) -> None:
        shape = _validate_shape(self.shape)
        lower, upper = (_validate_ends(name, getattr(self, name), len(shape)) for name in ("lower", "upper"))
        for axis, (a, b) in enumerate(zip(lower, upper, strict=True)):
            if not a < b:
                raise ValueError(f"`upper` must be above `lower`, found {b:g} and {a:g} for axis {axis}")
        keep(self, shape=shape, lower=lower, upper=upper, boundary=_validate_boundaries(self.boundary, shape))
        keep(self, spacing=tuple((upper[k] - lower[k]) / self._count_intervals(k) for k in range(len(shape))))
        for axis, (a, b, h) in enumerate(zip(lower, upper, self.spacing, strict=True)):
            if not (1.0 / LARGEST < h * h < LARGEST and a + h > a and b - h < b):
                raise ValueError(
                    f"`lower` and `upper` must be apart by a length that {shape[axis]} points can divide in float64, "
                    f"found {a!r} and {b!r} for axis {axis}"
                )

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_periodic(self) -> bool:
        """Whether all axes are periodic."""
        return all(sides is None for sides in self.boundary)

    @property
    def cell_volume(self) -> float:
        """The product of the spacings."""
        return float(np.prod(self.spacing))

    @property
    def coordinates(self) -> tuple[np.ndarray, ...]:
        """The coordinates of all unknowns: one array of the shape of the grid per axis."""
        return tuple(np.meshgrid(*(self.find_axis(k) for k in range(self.ndim)), indexing="ij"))

    def make_homogeneous(self) -> Grid:
        """The same grid with the same kinds of boundary conditions and values zero.

        Returns
        -------
        Grid

        Examples
        --------
        >>> from stepnet.operators import Grid, dirichlet
        >>> Grid(4, boundary=dirichlet(3.0)).make_homogeneous().boundary[0][0].value
        0.0
        """
        sides = [None if pair is None else tuple(replace(side, value=0.0) for side in pair) for pair in self.boundary]
        return Grid(self.shape, self.lower, self.upper, sides, self.centring)

    def find_axis(self, axis: int) -> np.ndarray:
        """The coordinates along one axis.

        Parameters
        ----------
        axis : int
            Which axis.

        Returns
        -------
        array (n,)

        Examples
        --------
        >>> from stepnet.operators import Grid
        >>> Grid(2).find_axis(0)
        array([0.25, 0.75])
        """
        axis = validation.whole(0, self.ndim - 1)("axis", axis)
        first = -float(self.find_side_position(axis, 0)) if self.boundary[axis] else self._find_periodic_start()
        return self.lower[axis] + self.spacing[axis] * (first + np.arange(self.shape[axis]))

    def find_side_position(self, axis: int, side: int) -> Fraction:
        """Where a side lies in spacings from its first unknown: -1/2, or for nodes -1 (Dirichlet) or 0.

        Parameters
        ----------
        axis, side : int
            Which axis, not a periodic one, and its lower (0) or upper (1) side.

        Returns
        -------
        Fraction

        Examples
        --------
        >>> from stepnet.operators import Grid
        >>> Grid(4, boundary="neumann").find_side_position(0, 0)
        Fraction(-1, 2)
        """
        axis = validation.whole(0, self.ndim - 1)("axis", axis)
        side = validation.whole(0, 1)("side", side)
        if self.boundary[axis] is None:
            raise ValueError(f"`axis` must not be periodic, found axis {axis}, which has no sides")
        if self.centring == "cell":
            return Fraction(-1, 2)
        return Fraction(-1 if self.boundary[axis][side].is_dirichlet else 0)

    def _find_periodic_start(self) -> float:
        return 0.5 if self.centring == "cell" else 0.0

    def _count_intervals(self, axis: int) -> float:
        """The length of the axis in spacings."""
        if self.boundary[axis] is None:
            return self.shape[axis]
        return self.shape[axis] - 1 - float(sum(self.find_side_position(axis, side) for side in (0, 1)))


def _validate_shape(value: Any) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, (int, np.integer)) else value
    shape = validation.sequence(validation.whole(2, MOST_POINTS), 1)("shape", sizes)
    if len(shape) > 3:
        raise ValueError(f"`shape` must have one to three axes, found {len(shape)}")
    return shape


def _validate_ends(name: str, value: Any, ndim: int) -> tuple[float, ...]:
    if not isinstance(value, (np.ndarray, list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return (validate_number(name, value),) * ndim
    ends = validation.sequence(lambda key, x: validate_number(key, x))(name, value)
    if len(ends) == 1:
        return ends * ndim
    if len(ends) != ndim:
        raise ValueError(f"`{name}` must be one number or one for each of {ndim} axes, found {len(ends)}")
    return ends


def _validate_boundaries(value: Any, shape: tuple[int, ...]) -> tuple[Sides, ...]:
    ndim = len(shape)
    is_one = value is None or isinstance(value, (str, Boundary))
    if not is_one and (not isinstance(value, (list, tuple)) or len(value) != ndim):
        raise ValueError(
            f"`boundary` must be one boundary for all sides, or a sequence with one or a pair for each of {ndim} axes, "
            f"found {value!r:.80}"
        )
    sides = tuple(_validate_axis(value if is_one else value[axis], axis) for axis in range(ndim))
    for axis, pair in enumerate(sides):
        for boundary in pair or ():
            wanted = shape[:axis] + shape[axis + 1 :]
            if isinstance(boundary.value, np.ndarray) and boundary.value.shape != wanted:
                raise ValueError(
                    f"`boundary[{axis}]` must have values of the shape {wanted} of the side, found "
                    f"{boundary.value.shape}"
                )
    return sides


def _validate_axis(value: Any, axis: int) -> Sides:
    if value is None or (isinstance(value, str) and value == "periodic"):
        return None
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"`boundary[{axis}]` must be one boundary or a pair, found {len(value)}")
        if any(side is None or (isinstance(side, str) and side == "periodic") for side in value):
            raise ValueError(
                f"`boundary[{axis}]` must be periodic on both sides or on none, found {value!r:.80}; write 'periodic' "
                f"for the axis"
            )
        return _validate_side(value[0], axis), _validate_side(value[1], axis)
    side = _validate_side(value, axis)
    return side, side


def _validate_side(value: Any, axis: int) -> Boundary:
    if isinstance(value, Boundary):
        return value
    if not isinstance(value, str) or value not in NAMED:
        raise UnknownName(f"boundary[{axis}]", value, ("periodic", *NAMED))
    return NAMED[value]()
