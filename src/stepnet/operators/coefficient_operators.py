"""Linear operators with variable coefficients: diffusion div(k grad u) and upwind advection a . grad u.

Each is called as `operator(u, coefficient, t)` and has `transpose(w, coefficient)` and `matrix(coefficient)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet import validation
from stepnet.operators.application import apply_diffusion
from stepnet.operators.array_functions import NUMPY, ArrayFunctions, require_field, take
from stepnet.operators.boundaries import build_free_rule
from stepnet.operators.extension import (
    AxisExtension,
    build_extension,
    build_extension_matrix,
    extend,
    extend_transposed,
)
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, embed_axis_matrix, validate_grid_function
from stepnet.operators.stencils import DifferenceStencil, fit_stencil
from stepnet.records import keep, show_fields

if TYPE_CHECKING:
    from scipy.sparse import csr_array

UPWIND_OFFSETS = {1: (-1, 0), 2: (-2, -1, 0), 3: (-2, -1, 0, 1)}


@validation.check(grid=A_GRID)
@dataclass(frozen=True, eq=False)
class VariableDiffusion:
    """div(k grad u) in conservative form: fluxes k du/dx at faces, with k the mean of its two neighbours.

    Beyond a Dirichlet side k is continued by its last value, beyond other sides linearly.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions of u.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, VariableDiffusion
    >>> VariableDiffusion(Grid(4))(np.array([1.0, 0.0, 0.0, 0.0]), np.ones(4))
    array([-32.,  16.,   0.,  16.])
    """

    grid: Grid
    extensions: tuple[AxisExtension, ...] = field(init=False, repr=False)
    coefficient_extensions: tuple[AxisExtension, ...] = field(init=False, repr=False)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        axes = range(self.grid.ndim)
        keep(
            self,
            extensions=tuple(build_extension(self.grid, axis, (1, 1)) for axis in axes),
            coefficient_extensions=tuple(_extend_coefficient(self.grid, axis) for axis in axes),
        )

    def __call__(self, u: Any, k: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY, *, workers: int = 1) -> Any:
        """Apply the operator with the coefficient k (an array of the shape of the grid).

        Large arrays of one type, float64 or float32, are processed by a compiled kernel with `workers` threads; the
        result is bitwise independent of `workers`.
        """
        require_field("u", u, self.grid.shape, functions)
        require_field("k", k, self.grid.shape, functions)
        found = apply_diffusion(self, u, k, t, functions, workers)
        if found is not None:
            return found
        total = None
        for axis, extension in enumerate(self.extensions):
            faces = _differ(extend(u, extension, t, functions), extension.axis)
            flux = self._average(k, axis, functions) * faces
            part = _differ(flux, extension.axis) * (1.0 / self.grid.spacing[axis] ** 2)
            total = part if total is None else total + part
        return total

    def _average(self, k: Any, axis: int, functions: ArrayFunctions) -> Any:
        """The coefficient at the faces along an axis."""
        extension = self.coefficient_extensions[axis]
        v = extend(k, extension, 0.0, functions)
        n = v.shape[extension.axis]
        return 0.5 * (take(v, extension.axis, 1, n) + take(v, extension.axis, 0, n - 1))

    def transpose(self, w: Any, k: Any) -> np.ndarray:
        """The transpose of the linear part in u, applied to an array.

        Parameters
        ----------
        w, k : array_like
            Arrays of the shape of the grid.

        Returns
        -------
        array

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, VariableDiffusion
        >>> VariableDiffusion(Grid(4)).transpose([1.0, 0.0, 0.0, 0.0], np.ones(4))
        array([-32.,  16.,   0.,  16.])
        """
        w, k = validate_grid_function("w", w, self.grid, ()), validate_grid_function("k", k, self.grid, ())
        total = np.zeros_like(w)
        for axis, extension in enumerate(self.extensions):
            flux = _differ_transposed(w * (1.0 / self.grid.spacing[axis] ** 2), extension.axis)
            v = _differ_transposed(self._average(k, axis, NUMPY) * flux, extension.axis)
            total += extend_transposed(v, extension)
        return total

    def matrix(self, k: Any) -> csr_array:
        """The linear part in u as a SciPy sparse matrix.

        Parameters
        ----------
        k : array_like
            The coefficient, of the shape of the grid.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, VariableDiffusion
        >>> VariableDiffusion(Grid(4)).matrix(np.ones(4)).toarray()[0]
        array([-32.,  16.,   0.,  16.])
        """
        from scipy import sparse

        k = validate_grid_function("k", k, self.grid, ())
        parts = []
        for axis, n in enumerate(self.grid.shape):
            slopes = np.diff(build_extension_matrix(self.extensions[axis], n), axis=0)
            means = build_extension_matrix(self.coefficient_extensions[axis], n)
            at_faces = embed_axis_matrix(self.grid, axis, (means[1:] + means[:-1]) / 2) @ k.ravel()
            balance = np.diff(np.eye(n + 1), axis=0) / self.grid.spacing[axis] ** 2
            into_faces = embed_axis_matrix(self.grid, axis, slopes)
            parts.append(embed_axis_matrix(self.grid, axis, balance) @ sparse.diags_array(at_faces) @ into_faces)
        return sum(parts).tocsr()


def _extend_coefficient(grid: Grid, axis: int) -> AxisExtension:
    """Constant beyond a Dirichlet side, positive and accurate enough; linear beyond others, which give fluxes."""
    sides = grid.boundary[axis]
    rules = sides and tuple(build_free_rule(1, 1 if side.is_dirichlet else 2) for side in sides)
    return AxisExtension(axis - grid.ndim, 1, 1, rules)


def _differ(v: Any, axis: int) -> Any:
    n = v.shape[axis]
    return take(v, axis, 1, n) - take(v, axis, 0, n - 1)


def _differ_transposed(w: np.ndarray, axis: int) -> np.ndarray:
    zero = np.zeros_like(take(w, axis, 0, 1))
    return np.concatenate((zero, w), axis) - np.concatenate((w, zero), axis)


@validation.check(grid=A_GRID, order=validation.whole(1, 3))
@dataclass(frozen=True, eq=False)
class Upwind:
    """a . grad u with differences from the side that the velocity a comes from.

    Values beyond an inflow side follow its boundary condition, those beyond an outflow side are extrapolated.

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions of u.
    order : {1, 2, 3}
        1 is monotone, 2 uses two upwind neighbours, 3 is biased: two upwind neighbours and one downwind.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, Upwind
    >>> Upwind(Grid(4, 0.0, 4.0), order=1)(np.array([3.0, 3.0, 4.0, 3.0]), np.array([2.0])).tolist()
    [0.0, 0.0, 2.0, -2.0]
    """

    grid: Grid
    order: int = 3
    stencils: tuple[DifferenceStencil, DifferenceStencil] = field(
        init=False, repr=False
    )  # for positive and negative velocities
    extensions: tuple[tuple[AxisExtension, AxisExtension], ...] = field(init=False, repr=False)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        offsets = UPWIND_OFFSETS[self.order]
        stencils = fit_stencil(1, offsets), fit_stencil(1, tuple(-o for o in offsets))
        order, free = self.order + self.order % 2, ((False, True), (True, False))
        extensions = tuple(
            tuple(
                build_extension(self.grid, axis, stencil.reach, order, sides)
                for stencil, sides in zip(stencils, free, strict=True)
            )
            for axis in range(self.grid.ndim)
        )
        keep(self, stencils=stencils, extensions=extensions)

    def __call__(self, u: Any, velocity: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY) -> Any:
        """Apply the operator; `velocity` is an array with one number or one field per axis of the grid."""
        require_field("u", u, self.grid.shape, functions)
        require_field("velocity", velocity, (), functions)
        if tuple(velocity.shape) not in ((self.grid.ndim,), (self.grid.ndim, *self.grid.shape)):
            raise ValueError("`velocity` must hold one number or one array of the shape of the grid per axis")
        total = None
        for axis in range(self.grid.ndim):
            a = velocity[axis]
            rightward, leftward = (self._differ(u, axis, side, t, functions) for side in (0, 1))
            part = functions.maximum(a, 0.0) * rightward + functions.minimum(a, 0.0) * leftward
            total = part if total is None else total + part
        return total

    def _differ(self, u: Any, axis: int, side: int, t: Any, functions: ArrayFunctions) -> Any:
        stencil, extension, n = self.stencils[side], self.extensions[axis][side], u.shape[axis - self.grid.ndim]
        v = extend(u, extension, t, functions)
        total = None
        for offset, weight in zip(stencil.offsets, stencil.weights, strict=True):
            first = extension.below + offset
            part = (weight / self.grid.spacing[axis]) * take(v, extension.axis, first, first + n)
            total = part if total is None else total + part
        return total

    def transpose(self, w: Any, velocity: Any) -> np.ndarray:
        """The transpose of the linear part in u, applied to an array.

        Parameters
        ----------
        w : array_like
            An array of the shape of the grid.
        velocity : array_like
            One number or one array of the shape of the grid per axis.

        Returns
        -------
        array

        Examples
        --------
        >>> from stepnet.operators import Grid, Upwind
        >>> Upwind(Grid(4, 0.0, 4.0), 1).transpose([0.0, 0.0, 1.0, 0.0], [2.0])
        array([ 0., -2.,  2.,  0.])
        """
        w = validate_grid_function("w", w, self.grid, ())
        total = np.zeros_like(w)
        for axis, a in enumerate(validate_velocity(velocity, self.grid)):
            for side, part in enumerate((np.maximum(a, 0.0), np.minimum(a, 0.0))):
                stencil, extension = self.stencils[side], self.extensions[axis][side]
                moved = np.moveaxis(part * w, extension.axis, 0)
                v = np.zeros((len(moved) + extension.below + extension.above, *moved.shape[1:]))
                for offset, weight in zip(stencil.offsets, stencil.weights, strict=True):
                    first = extension.below + offset
                    v[first : first + len(moved)] += weight / self.grid.spacing[axis] * moved
                total += extend_transposed(np.moveaxis(v, 0, extension.axis), extension)
        return total

    def matrix(self, velocity: Any) -> csr_array:
        """The linear part in u as a SciPy sparse matrix.

        Parameters
        ----------
        velocity : array_like
            One number or one array of the shape of the grid per axis.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, Upwind
        >>> Upwind(Grid(4, 0.0, 4.0), 1).matrix([2.0]).toarray()[1]
        array([-2.,  2.,  0.,  0.])
        """
        from scipy import sparse

        parts = []
        for axis, a in enumerate(validate_velocity(velocity, self.grid)):
            full = np.broadcast_to(a, self.grid.shape).ravel()
            for side, values in enumerate((full.clip(min=0.0), full.clip(max=0.0))):
                along = embed_axis_matrix(self.grid, axis, self.find_axis_matrix(axis, side))
                parts.append(sparse.diags_array(values) @ along)
        return sum(parts).tocsr()

    def _find_axis_weights(self, axis: int, side: int) -> tuple[tuple[int, ...], tuple[float, ...], AxisExtension]:
        """The offsets, weights and ghost values of a difference along an axis.

        Parameters
        ----------
        axis, side : int
            Which axis, and the difference for positive (0) or negative (1) velocities.

        Returns
        -------
        tuple
            Offsets, weights divided by the spacing, and the extension.

        Examples
        --------
        >>> from stepnet.operators import Grid, Upwind
        >>> Upwind(Grid(4, 0.0, 4.0), 1)._find_axis_weights(0, 0)[:2]
        ((-1, 0), (-1.0, 1.0))
        """
        axis = validation.whole(0, self.grid.ndim - 1)("axis", axis)
        side = validation.whole(0, 1)("side", side)
        stencil, spacing = self.stencils[side], self.grid.spacing[axis]
        return stencil.offsets, tuple(weight / spacing for weight in stencil.weights), self.extensions[axis][side]

    def find_axis_matrix(self, axis: int, side: int) -> np.ndarray:
        """The difference along an axis for positive (side 0) or negative (side 1) velocities, as a dense matrix.

        Parameters
        ----------
        axis, side : int
            Which axis, and which of the two differences.

        Returns
        -------
        array (n, n)

        Examples
        --------
        >>> from stepnet.operators import Grid, Upwind
        >>> Upwind(Grid(4, 0.0, 4.0), 1).find_axis_matrix(0, 0)[1]
        array([-1.,  1.,  0.,  0.])
        """
        axis = validation.whole(0, self.grid.ndim - 1)("axis", axis)
        side = validation.whole(0, 1)("side", side)
        stencil, extension, n = self.stencils[side], self.extensions[axis][side], self.grid.shape[axis]
        rows = np.zeros((n, n + extension.below + extension.above))
        for row in range(n):
            for offset, weight in zip(stencil.offsets, stencil.weights, strict=True):
                rows[row, row + extension.below + offset] += weight / self.grid.spacing[axis]
        return rows @ build_extension_matrix(extension, n)


def validate_velocity(value: Any, grid: Grid) -> np.ndarray:
    """Return one number (axes,) or one array (axes, *grid) of finite numbers per axis; one number in 1-D."""
    found = validation.array()("velocity", value)
    found = found[None] if found.shape == () or (grid.ndim == 1 and found.shape == grid.shape != (1,)) else found
    if found.shape not in ((grid.ndim,), (grid.ndim, *grid.shape)):
        raise ValueError(
            f"`velocity` must have the shape {(grid.ndim,)} or {(grid.ndim, *grid.shape)}: one number or one array of "
            f"the shape of the grid per axis; found {found.shape}"
        )
    if not np.isfinite(found).all():
        raise ValueError("`velocity` must be finite")
    return found
