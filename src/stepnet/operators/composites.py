"""Operators between scalar and vector fields, and compositions: gradient, divergence, biharmonic operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet import validation
from stepnet.operators.application import apply_stack, apply_sum
from stepnet.operators.array_functions import NUMPY, ArrayFunctions, require_field
from stepnet.operators.grid import Grid
from stepnet.operators.linear import (
    A_GRID,
    AxisStencil,
    StencilOperator,
    derivative,
    laplacian,
    validate_grid_function,
)
from stepnet.operators.stencils import MOST_ORDER, build_stencil
from stepnet.records import show_fields, validate_number

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PARTS = validation.sequence(validation.instance(StencilOperator), 1)
AN_ORDER = validation.whole(2, MOST_ORDER)


@validation.check(parts=PARTS)
@dataclass(frozen=True, eq=False)
class StackedOperator:
    """u -> (L_1 u, L_2 u, ...): several operators on one field, as the gradient.

    Parameters
    ----------
    parts : sequence of StencilOperator
        The operators, all on one grid.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, gradient
    >>> gradient(Grid((4, 4)))(np.ones((4, 4))).shape
    (2, 4, 4)
    """

    parts: tuple[StencilOperator, ...]
    __repr__ = show_fields

    def __call__(self, u: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY, *, workers: int = 1) -> Any:
        """Apply the operators, with `workers` threads where kernels do; the results are stacked in front."""
        require_field("u", u, self.parts[0].grid.shape, functions)
        found = apply_stack(self.parts, u, functions, workers)
        if found is not None:
            return found
        return functions.stack([part(u, t, functions) for part in self.parts], 0)

    def transpose(self, w: Any) -> np.ndarray:
        """The transpose of the linear part, applied to an array (parts, *grid).

        Parameters
        ----------
        w : array_like
            One field per part.

        Returns
        -------
        array of the shape of the grid

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, gradient
        >>> gradient(Grid(4)).transpose(np.ones((1, 4)))
        array([0., 0., 0., 0.])
        """
        w = validate_grid_function("w", w, self.parts[0].grid, (len(self.parts),))
        return np.sum([part.transpose(each) for part, each in zip(self.parts, w, strict=True)], axis=0)

    def matrix(self) -> csr_array:
        """The linear part as a SciPy sparse matrix.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, gradient
        >>> gradient(Grid((4, 4))).matrix().shape
        (32, 16)
        """
        from scipy import sparse

        return sparse.vstack([part.matrix() for part in self.parts]).tocsr()

    def find_offset(self, t: float = 0.0) -> np.ndarray:
        """What the operator gives for u = 0: the effect of the boundary values at time t.

        Parameters
        ----------
        t : float
            The time.

        Returns
        -------
        array (parts, *grid)

        Examples
        --------
        >>> from stepnet.operators import Grid, gradient
        >>> gradient(Grid(4)).find_offset().shape
        (1, 4)
        """
        return self(np.zeros(self.parts[0].grid.shape), validate_number("t", t))


@validation.check(parts=PARTS)
@dataclass(frozen=True, eq=False)
class SummedOperator:
    """(u_1, u_2, ...) -> L_1 u_1 + L_2 u_2 + ...: one operator on each component, as the divergence.

    Parameters
    ----------
    parts : sequence of StencilOperator
        The operators, all on one grid.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, divergence
    >>> divergence(Grid((4, 4)))(np.ones((2, 4, 4))).shape
    (4, 4)
    """

    parts: tuple[StencilOperator, ...]
    __repr__ = show_fields

    def __call__(self, u: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY, *, workers: int = 1) -> Any:
        """Apply each operator to its component and add, with `workers` threads where kernels do."""
        require_field("u", u, (len(self.parts), *self.parts[0].grid.shape), functions)
        found = apply_sum(self.parts, u, functions, workers)
        if found is not None:
            return found
        total = None
        for k, part in enumerate(self.parts):
            term = part(u[k], t, functions)
            total = term if total is None else total + term
        return total

    def transpose(self, w: Any) -> np.ndarray:
        """The transpose of the linear part, applied to an array of the shape of the grid.

        Parameters
        ----------
        w : array_like
            One field.

        Returns
        -------
        array (parts, *grid)

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, divergence
        >>> divergence(Grid(4)).transpose(np.ones(4))
        array([[0., 0., 0., 0.]])
        """
        w = validate_grid_function("w", w, self.parts[0].grid, ())
        return np.stack([part.transpose(w) for part in self.parts])

    def matrix(self) -> csr_array:
        """The linear part as a SciPy sparse matrix.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, divergence
        >>> divergence(Grid((4, 4))).matrix().shape
        (16, 32)
        """
        from scipy import sparse

        return sparse.hstack([part.matrix() for part in self.parts]).tocsr()


@validation.check(outer=validation.instance(StencilOperator), inner=validation.instance(StencilOperator))
@dataclass(frozen=True, eq=False)
class ComposedOperator:
    """u -> outer(inner(u)).

    Parameters
    ----------
    outer, inner : StencilOperator
        Operators on grids of one shape.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, biharmonic
    >>> biharmonic(Grid(8, 0.0, 8.0))(np.eye(8)[3])
    array([ 0.,  1., -4.,  6., -4.,  1.,  0.,  0.])
    """

    outer: StencilOperator
    inner: StencilOperator
    __repr__ = show_fields

    def __call__(self, u: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY, *, workers: int = 1) -> Any:
        """Apply both operators, with `workers` threads where kernels do."""
        return self.outer(self.inner(u, t, functions, workers=workers), t, functions, workers=workers)

    def transpose(self, w: Any) -> np.ndarray:
        """The transpose of the linear part, applied to an array of the shape of the grid.

        Parameters
        ----------
        w : array_like
            One field.

        Returns
        -------
        array

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, biharmonic
        >>> biharmonic(Grid(8)).transpose(np.ones(8)).max()
        np.float64(0.0)
        """
        return self.inner.transpose(self.outer.transpose(w))

    def matrix(self) -> csr_array:
        """The linear part as a SciPy sparse matrix.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, biharmonic
        >>> biharmonic(Grid(8)).matrix().nnz
        40
        """
        return (self.outer.matrix() @ self.inner.matrix()).tocsr()

    def find_offset(self, t: float = 0.0) -> np.ndarray:
        """What the operator gives for u = 0: the effect of the boundary values at time t.

        Parameters
        ----------
        t : float
            The time.

        Returns
        -------
        array of the shape of the grid

        Examples
        --------
        >>> from stepnet.operators import Grid, biharmonic
        >>> biharmonic(Grid(8)).find_offset().shape
        (8,)
        """
        return self(np.zeros(self.inner.grid.shape), validate_number("t", t))


@validation.check(grid=A_GRID, order=AN_ORDER)
def gradient(grid: Grid, order: int = 2) -> StackedOperator:
    """The gradient by central differences: an array (axes, *grid).

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    StackedOperator

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, gradient
    >>> gradient(Grid((8, 8)), order=4)(np.zeros((8, 8))).shape
    (2, 8, 8)
    """
    return StackedOperator(tuple(derivative(grid, axis, 1, order) for axis in range(grid.ndim)))


@validation.check(grid=A_GRID, order=AN_ORDER)
def divergence(grid: Grid, order: int = 2) -> SummedOperator:
    """The divergence of a vector field (axes, *grid) by central differences.

    The boundary conditions of a grid are those of a scalar; the components of a vector field are extrapolated beyond
    sides that are not periodic.

    Parameters
    ----------
    grid : Grid
        Where it acts.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    SummedOperator

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, divergence
    >>> divergence(Grid((8, 8)))(np.zeros((2, 8, 8))).shape
    (8, 8)
    """
    stencil = build_stencil(1, order)
    return SummedOperator(
        tuple(StencilOperator(grid, (AxisStencil(axis, stencil),), True) for axis in range(grid.ndim))
    )


@validation.check(grid=A_GRID, order=AN_ORDER)
def biharmonic(grid: Grid, order: int = 2) -> ComposedOperator:
    """The Laplacian of the Laplacian.

    On sides that are not periodic the Laplacian satisfies the condition of the side with value zero: with Dirichlet
    conditions this is a simply supported plate, u and its Laplacian given.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    ComposedOperator

    Examples
    --------
    >>> from stepnet.operators import Grid, biharmonic
    >>> biharmonic(Grid(8)).matrix().shape
    (8, 8)
    """
    return ComposedOperator(laplacian(grid.make_homogeneous(), order), laplacian(grid, order))
