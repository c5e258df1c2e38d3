"""Linear operators with constant coefficients: sums of stencils along axes, stacks, sums and compositions of them.

Each is called as `operator(u, t)`, where t matters only for boundary values that depend on time, and has `transpose(w)`
and `matrix()` of its linear part and `find_offset(t)`, the effect of boundary values: operator(u, t) = matrix() u +
find_offset(t).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet import validation
from stepnet.operators.application import apply_stencils, apply_transposed
from stepnet.operators.array_functions import NUMPY, ArrayFunctions, require_field, take
from stepnet.operators.extension import (
    AxisExtension,
    build_extension,
    build_extension_matrix,
    extend,
    extend_transposed,
)
from stepnet.operators.grid import Grid
from stepnet.operators.stencils import MOST_DERIVATIVE, MOST_ORDER, DifferenceStencil, build_stencil
from stepnet.records import keep, show_fields, validate_number

if TYPE_CHECKING:
    from scipy.sparse import csr_array

A_GRID = validation.instance(Grid)


@validation.check(stencil=validation.instance(DifferenceStencil))
@dataclass(frozen=True)
class AxisStencil:
    """factor times a stencil along one axis of a grid.

    Parameters
    ----------
    axis : int
        Along which axis, from 0.
    stencil : DifferenceStencil
        Offsets and weights.
    factor : float
        A constant coefficient.

    Examples
    --------
    >>> from stepnet.operators import AxisStencil, build_stencil
    >>> AxisStencil(0, build_stencil(2)).factor
    1.0
    """

    axis: int
    stencil: DifferenceStencil
    factor: float = 1.0

    def __post_init__(self) -> None:
        keep(self, axis=validation.whole(0, 2)("axis", self.axis), factor=validate_number("factor", self.factor))


@validation.check(
    grid=A_GRID, terms=validation.sequence(validation.instance(AxisStencil), 1), is_free=validation.validate_flag
)
@dataclass(frozen=True, eq=False)
class StencilOperator:
    """A sum of stencils along the axes of a grid, divided by the powers of the spacings.

    It acts on the last axes of an array; axes in front of them (components of a system) are kept.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions.
    terms : sequence of AxisStencil
        The terms of the sum.
    is_free : bool
        Whether values beyond sides that are not periodic are extrapolated, regardless of the boundary conditions.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import AxisStencil, Grid, StencilOperator, build_stencil
    >>> grid = Grid(4, boundary="neumann")
    >>> StencilOperator(grid, [AxisStencil(0, build_stencil(2))])(np.ones(4))
    array([0., 0., 0., 0.])
    """

    grid: Grid
    terms: tuple[AxisStencil, ...]
    is_free: bool = False
    extensions: tuple[AxisExtension, ...] = field(init=False, repr=False)
    scaled: tuple[tuple[float, ...], ...] = field(init=False, repr=False)  # weights with factors and spacings

    __repr__ = show_fields

    def __post_init__(self) -> None:
        extensions, scaled = [], []
        for i, term in enumerate(self.terms):
            if term.axis >= self.grid.ndim:
                raise ValueError(f"`terms[{i}]` must be along one of {self.grid.ndim} axes, found axis {term.axis}")
            stencil = term.stencil
            order, free = stencil.order + stencil.order % 2, (self.is_free, self.is_free)
            extensions.append(build_extension(self.grid, term.axis, stencil.reach, order, free))
            factor = term.factor / self.grid.spacing[term.axis] ** stencil.derivative
            scaled.append(tuple(weight * factor for weight in stencil.weights))
        keep(self, extensions=tuple(extensions), scaled=tuple(scaled))

    def __call__(self, u: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY, *, workers: int = 1) -> Any:
        """Apply the operator with its boundary values at time t.

        Large arrays of float64 or float32, with boundary values that do not depend on time, are processed by a
        compiled kernel with `workers` threads; the result is bitwise independent of `workers`.
        """
        require_field("u", u, self.grid.shape, functions)
        found = apply_stencils(self, u, functions, workers)
        if found is not None:
            return found
        total = None
        for term, extension, weights in zip(self.terms, self.extensions, self.scaled, strict=True):
            extended = extend(u, extension, t, functions)
            part = _combine(extended, u.shape[extension.axis], term.stencil, weights, extension)
            total = part if total is None else total + part
        return total

    def transpose(self, w: Any) -> np.ndarray:
        """The transpose of the linear part, applied to an array.

        Parameters
        ----------
        w : array_like
            An array of the shape of the grid, with any axes in front.

        Returns
        -------
        array

        Examples
        --------
        >>> from stepnet.operators import Grid, laplacian
        >>> laplacian(Grid(4)).transpose([1.0, 0.0, 0.0, 0.0])
        array([-32.,  16.,   0.,  16.])
        """
        w = validate_grid_function("w", w, self.grid)
        found = apply_transposed(self, w)
        if found is not None:
            return found
        total = np.zeros_like(w)
        for term, extension, weights in zip(self.terms, self.extensions, self.scaled, strict=True):
            moved = np.moveaxis(w, extension.axis, 0)
            n = len(moved)
            v = np.zeros((n + extension.below + extension.above, *moved.shape[1:]), moved.dtype)
            for offset, weight in zip(term.stencil.offsets, weights, strict=True):
                first = extension.below + offset
                v[first : first + n] += weight * moved
            total += extend_transposed(np.moveaxis(v, 0, extension.axis), extension)
        return total

    def matrix(self) -> csr_array:
        """The linear part as a SciPy sparse matrix, assembled row by row and by Kronecker products.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, laplacian
        >>> laplacian(Grid(4)).matrix().toarray()[0]
        array([-32.,  16.,   0.,  16.])
        """
        parts = (embed_axis_matrix(self.grid, term.axis, self.find_axis_matrix(i)) for i, term in enumerate(self.terms))
        return sum(parts).tocsr()

    def find_axis_matrix(self, i: int) -> np.ndarray:
        """The matrix of one term along its axis, dense.

        Parameters
        ----------
        i : int
            Which term.

        Returns
        -------
        array (n, n)

        Examples
        --------
        >>> from stepnet.operators import Grid, laplacian
        >>> laplacian(Grid(4)).find_axis_matrix(0)[0]
        array([-32.,  16.,   0.,  16.])
        """
        i = validation.whole(0, len(self.terms) - 1)("i", i)
        term, extension = self.terms[i], self.extensions[i]
        n = self.grid.shape[term.axis]
        factor = term.factor / self.grid.spacing[term.axis] ** term.stencil.derivative
        rows = np.zeros((n, n + extension.below + extension.above))
        for row in range(n):
            for offset, weight in zip(term.stencil.offsets, term.stencil.weights, strict=True):
                rows[row, row + extension.below + offset] += factor * weight
        return rows @ build_extension_matrix(extension, n)

    def find_offset(self, t: float = 0.0) -> np.ndarray:
        """The effect of the boundary values at time t: what the operator gives for u = 0.

        Parameters
        ----------
        t : float
            The time.

        Returns
        -------
        array of the shape of the grid

        Examples
        --------
        >>> from stepnet.operators import Grid, laplacian
        >>> laplacian(Grid(4)).find_offset().tolist()
        [0.0, 0.0, 0.0, 0.0]
        """
        return self(np.zeros(self.grid.shape), validate_number("t", t))


def _combine(v: Any, n: int, stencil: DifferenceStencil, weights: tuple[float, ...], extension: AxisExtension) -> Any:
    """sum_j w_j v(x + o_j), with neighbours of equal or opposite weights taken together, so that rounding cancels."""
    at = dict(zip(stencil.offsets, weights, strict=True))

    def shift(offset: int) -> Any:
        return take(v, extension.axis, extension.below + offset, extension.below + offset + n)

    total = None
    for offset in sorted(at, key=abs):
        weight = at[offset]
        mirrored = at.get(-offset)
        if weight == 0.0 or (offset < 0 and mirrored is not None and abs(mirrored) == abs(weight)):
            continue
        if offset > 0 and mirrored is not None and abs(mirrored) == abs(weight):
            both = shift(offset) + shift(-offset) if mirrored == weight else shift(offset) - shift(-offset)
            part = weight * both
        else:
            part = weight * shift(offset)
        total = part if total is None else total + part
    return total


def embed_axis_matrix(grid: Grid, axis: int, matrix: Any) -> Any:
    """The matrix on the whole grid of a matrix along one axis."""
    from scipy import sparse  # scipy takes long to import

    before, after = int(np.prod(grid.shape[:axis])), int(np.prod(grid.shape[axis + 1 :]))
    return sparse.kron(sparse.kron(sparse.eye_array(before), sparse.csr_array(matrix)), sparse.eye_array(after))


def validate_grid_function(name: str, value: Any, grid: Grid, leading: tuple[int, ...] | None = None) -> np.ndarray:
    """Return an array whose last axes are those of the grid, with the `leading` axes (None: any) in front."""
    found = validation.array()(name, value)
    ahead = found.shape[: max(0, found.ndim - grid.ndim)]
    if found.shape[len(ahead) :] != grid.shape or (leading is not None and ahead != leading):
        wanted = grid.shape if not leading else (*leading, *grid.shape)
        raise ValueError(f"`{name}` must have the shape {wanted} of the grid, found {found.shape}")
    return found


@validation.check(grid=A_GRID, axis=validation.whole(0, 2), derivative=validation.whole(1, MOST_DERIVATIVE))
def derivative(grid: Grid, axis: int, derivative: int = 1, order: int = 2) -> StencilOperator:
    """A partial derivative by central differences.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions.
    axis : int
        Along which axis.
    derivative : int
        Which derivative.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    StencilOperator

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, derivative
    >>> grid = Grid(8, 0.0, 8.0)
    >>> derivative(grid, 0)(np.arange(8.0))[2:5]
    array([1., 1., 1.])
    """
    return StencilOperator(grid, (AxisStencil(axis, build_stencil(derivative, order)),))


@validation.check(grid=A_GRID, order=validation.whole(2, MOST_ORDER))
def laplacian(grid: Grid, order: int = 2) -> StencilOperator:
    """The Laplacian: the sum of the second derivatives along all axes.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    StencilOperator

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, laplacian
    >>> laplacian(Grid(4))(np.array([1.0, 0.0, 0.0, 0.0]))
    array([-32.,  16.,   0.,  16.])
    """
    return StencilOperator(grid, tuple(AxisStencil(axis, build_stencil(2, order)) for axis in range(grid.ndim)))
