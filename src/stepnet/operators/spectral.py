"""Spectral derivatives on periodic grids: multiplication in Fourier space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet import validation
from stepnet.operators.array_functions import NUMPY, ArrayFunctions, require_field
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, validate_grid_function
from stepnet.operators.stencils import MOST_DERIVATIVE
from stepnet.records import as_array, keep, show_fields

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@validation.check(grid=A_GRID)
@dataclass(frozen=True, eq=False)
class SpectralOperator:
    """u -> F^-1 (symbol F u) with the discrete Fourier transform F: exact for the waves that the grid resolves.

    Parameters
    ----------
    grid : Grid
        A periodic grid.
    symbol : array_like
        Complex factors of the shape of the grid, in the order of `numpy.fft.fftfreq`.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.operators import Grid, spectral_derivative
    >>> grid = Grid(8, 0.0, 2 * np.pi, centring="node")
    >>> x, = grid.coordinates
    >>> bool(np.allclose(spectral_derivative(grid, 0)(np.sin(x)), np.cos(x)))
    True
    """

    grid: Grid
    symbol: np.ndarray

    __repr__ = show_fields

    def __post_init__(self) -> None:
        if not self.grid.is_periodic:
            raise ValueError("`grid` of a spectral operator must be periodic along all axes")
        symbol = as_array("symbol", self.symbol)
        if symbol.dtype.kind not in "biufc":
            raise TypeError(f"`symbol` must be an array of numbers, found dtype {symbol.dtype}")
        symbol = symbol.astype(complex)
        if symbol.shape != self.grid.shape:
            raise ValueError(f"`symbol` must have the shape {self.grid.shape} of the grid, found {symbol.shape}")
        symbol.flags.writeable = False
        keep(self, symbol=symbol)

    def __call__(self, u: Any, t: Any = 0.0, functions: ArrayFunctions = NUMPY) -> Any:
        """Apply the operator; real arrays stay real."""
        require_field("u", u, self.grid.shape, functions)
        return functions.multiply_waves(u, self.symbol, tuple(range(-self.grid.ndim, 0)))

    def transpose(self, w: Any) -> np.ndarray:
        """The transpose, applied to an array.

        Parameters
        ----------
        w : array_like
            An array of the shape of the grid.

        Returns
        -------
        array

        Examples
        --------
        >>> import numpy as np
        >>> from stepnet.operators import Grid, spectral_laplacian
        >>> float(abs(spectral_laplacian(Grid(4)).transpose(np.ones(4))).max())
        0.0
        """
        w = validate_grid_function("w", w, self.grid)
        axes = tuple(range(-self.grid.ndim, 0))
        return np.fft.ifftn(self.symbol.conj() * np.fft.fftn(w, axes=axes), axes=axes).real

    def matrix(self) -> csr_array:
        """The operator on real fields as a (full) matrix, by sums of sines and cosines instead of transforms.

        Returns
        -------
        scipy.sparse.csr_array

        Examples
        --------
        >>> from stepnet.operators import Grid, spectral_laplacian
        >>> spectral_laplacian(Grid(4)).matrix().shape
        (4, 4)
        """
        from scipy import sparse

        waves = np.ones((1, 1))
        for n in self.grid.shape:
            waves = np.kron(waves, np.exp(2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n))
        return sparse.csr_array((waves @ (self.symbol.ravel()[:, None] * waves.conj().T) / waves.shape[0]).real)


@validation.check(grid=A_GRID, axis=validation.whole(0, 2), derivative=validation.whole(1, MOST_DERIVATIVE))
def spectral_derivative(grid: Grid, axis: int, derivative: int = 1) -> SpectralOperator:
    """A partial derivative by Fourier transforms.

    The wave with two points per period has no odd derivative on the grid and is set to zero there.

    Parameters
    ----------
    grid : Grid
        A periodic grid.
    axis : int
        Along which axis.
    derivative : int
        Which derivative.

    Returns
    -------
    SpectralOperator

    Examples
    --------
    >>> from stepnet.operators import Grid, spectral_derivative
    >>> spectral_derivative(Grid(4), 0).symbol[2]
    np.complex128(0j)
    """
    axis = validation.whole(0, grid.ndim - 1)("axis", axis)
    n, h = grid.shape[axis], grid.spacing[axis]
    symbol = (2j * np.pi * np.fft.fftfreq(n, h)) ** derivative
    if n % 2 == 0 and derivative % 2:
        symbol[n // 2] = 0.0
    shape = [1] * grid.ndim
    shape[axis] = n
    return SpectralOperator(grid, np.broadcast_to(symbol.reshape(shape), grid.shape))


@validation.check(grid=A_GRID)
def spectral_laplacian(grid: Grid) -> SpectralOperator:
    """The Laplacian by Fourier transforms.

    Parameters
    ----------
    grid : Grid
        A periodic grid.

    Returns
    -------
    SpectralOperator

    Examples
    --------
    >>> from stepnet.operators import Grid, spectral_laplacian
    >>> spectral_laplacian(Grid((4, 4))).symbol.shape
    (4, 4)
    """
    parts = [spectral_derivative(grid, axis, 2).symbol for axis in range(grid.ndim)]
    return SpectralOperator(grid, sum(parts))  # type: ignore[arg-type]
