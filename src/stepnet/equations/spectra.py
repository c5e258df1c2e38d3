"""Eigenvalues of discrete operators, as sets of complex numbers that decide which steps are stable.

Along an axis they are the Fourier symbol of the stencil, on a short periodic axis at its own waves, and, if the axis is
not periodic, also the eigenvalues of its matrix; on a grid they are sums of one of each axis.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from stepnet.operators.coefficient_operators import Upwind
from stepnet.operators.grid import Grid
from stepnet.operators.linear import StencilOperator
from stepnet.operators.stencils import DifferenceStencil

MOST_ROWS = 64  # of a matrix whose eigenvalues are computed: closures at the sides act on a few points only
LONGEST = np.arange(-8.0, 9.0)  # multiples of the smallest angle
ANGLES = {1: 257, 2: 65, 3: 17}  # per axis, by the number of axes; odd, so that pi is among them


def find_symbol(stencil: DifferenceStencil, grid: Grid, axis: int) -> np.ndarray:
    """The eigenvalues of a stencil on waves exp(i theta x / h), the longest waves of the axis among them."""
    h, n, n_angles = grid.spacing[axis], grid.shape[axis], ANGLES[grid.ndim]
    longest = 2 * np.pi / n
    if grid.boundary[axis] is None and n <= n_angles:
        theta = longest * np.arange(n)
    else:
        theta = np.linspace(-np.pi, np.pi, n_angles)
        theta = np.concatenate((theta[np.abs(theta) >= 0.99 * longest], longest * LONGEST))
    return np.exp(1j * np.outer(theta, stencil.offsets)) @ np.array(stencil.weights) / h**stencil.derivative


def find_stencil_spectrum(operator: StencilOperator) -> np.ndarray:
    """The eigenvalues of a sum of stencils along axes."""
    grid = operator.grid
    along: list[np.ndarray] = []
    for i, term in enumerate(operator.terms):
        values = term.factor * find_symbol(term.stencil, grid, term.axis)
        if grid.boundary[term.axis] is not None:
            values = np.append(values, np.linalg.eigvals(_cut_middle(operator.find_axis_matrix(i))))
        along.append(values)
    return add_sets(along)


def find_upwind_spectrum(operator: Upwind, velocity: np.ndarray) -> np.ndarray:
    """The eigenvalues of -a . grad u, for the lowest and highest velocity along each axis."""
    grid = operator.grid
    along = []
    for axis in range(grid.ndim):
        values = [np.zeros(1, complex)]
        for a in {float(np.min(velocity[axis])), float(np.max(velocity[axis]))} - {0.0}:
            values.append(-a * find_symbol(operator.stencils[int(a < 0)], grid, axis))
        along.append(np.concatenate(values))
    return add_sets(along)


def find_transport_spectrum(
    upwind: Upwind, velocity: np.ndarray, laplacian: StencilOperator, D: float, direction: float = 1.0
) -> np.ndarray:
    """The eigenvalues of -direction a . grad u + D lap u, the same waves in both terms along each axis."""
    grid, along = upwind.grid, []
    for term, axis in zip(laplacian.terms, range(grid.ndim), strict=True):
        spread = D * find_symbol(term.stencil, grid, axis)
        L = D * laplacian.find_axis_matrix(axis)
        values = []
        for a in {float(np.min(velocity[axis])), float(np.max(velocity[axis]))}:
            side = int(a < 0)
            values.append(spread - direction * a * find_symbol(upwind.stencils[side], grid, axis))
            if grid.boundary[axis] is not None:
                values.append(np.linalg.eigvals(_cut_middle(L - direction * a * upwind.find_axis_matrix(axis, side))))
        along.append(np.concatenate(values))
    return add_sets(along)


def add_sets(sets: list[np.ndarray]) -> np.ndarray:
    """All sums of one number of each set."""
    return reduce(lambda a, b: np.add.outer(a, b).ravel(), map(_merge, sets))


def _merge(values: np.ndarray) -> np.ndarray:
    """Different numbers, up to rounding."""
    size = float(np.max(np.abs(values), initial=0.0)) or 1.0
    return np.unique(np.round(values / size, 12)) * size


def _cut_middle(matrix: np.ndarray) -> np.ndarray:
    """A matrix along an axis without most of its rows far from the sides, which are all alike."""
    n = len(matrix)
    if n <= MOST_ROWS:
        return matrix
    kept = np.r_[: MOST_ROWS // 2, n - MOST_ROWS // 2 : n]
    small = np.zeros((MOST_ROWS, MOST_ROWS))
    for row, i in enumerate(kept):
        columns = np.flatnonzero(matrix[i])
        small[row, np.clip(columns - i + row, 0, MOST_ROWS - 1)] += matrix[i, columns]
    return small
