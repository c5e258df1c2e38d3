"""Schroedinger's equation, split into its kinetic part, solved in Fourier space, and its potential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, validate_grid_function
from stepnet.operators.spectral import spectral_laplacian
from stepnet.problem import Flow, Split


@dataclass(frozen=True, eq=False)
class FreeFlow:
    """exp(i h lap / 2) psi by Fourier transforms."""

    laplacian: np.ndarray  # the symbol, real

    def __call__(self, t: Any, psi: Any, h: Any) -> Any:
        return np.fft.ifftn(np.exp(0.5j * h * self.laplacian) * np.fft.fftn(psi))


@dataclass(frozen=True, eq=False)
class PhaseFlow:
    """exp(-i h (V + g |psi|^2)) psi, exact because |psi| is constant in this flow."""

    potential: np.ndarray
    interaction: float

    def __call__(self, t: Any, psi: Any, h: Any) -> Any:
        return np.exp(-1j * h * (self.potential + self.interaction * np.abs(psi) ** 2)) * psi


@validation.check(grid=A_GRID, interaction=validation.real())
def schroedinger(
    grid: Grid, u0: Any, t_span: tuple[float, float], potential: Any = None, interaction: float = 0.0
) -> Split:
    """i psi_t = -1/2 lap psi + V psi + g |psi|^2 psi on a periodic grid, for splitting schemes such as "strang".

    Both parts are solved exactly, the first by Fourier transforms, so that every step preserves the norm up to rounding
    and none is unstable.  Feit, Fleck & Steiger (1982), J. Comput. Phys. 47:412.

    Parameters
    ----------
    grid : Grid
        A periodic grid.
    u0 : array_like
        Initial psi, of the shape of the grid, real or complex.
    t_span : (float, float)
        Initial and final time.
    potential : array_like, optional
        V, of the shape of the grid; zero by default.
    interaction : float
        g: Gross and Pitaevskii's equation if it is not zero.

    Returns
    -------
    Split
        In complex128, without gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> grid = sn.operators.Grid(32, -8.0, 8.0)
    >>> (x,) = grid.coordinates
    >>> problem = sn.equations.schroedinger(grid, np.exp(-(x**2) / 2), (0.0, 1.0), potential=x**2 / 2)
    >>> psi = sn.solve(problem, "strang", steps=20).y
    >>> float(abs(np.sum(abs(psi[-1]) ** 2) - np.sum(abs(psi[0]) ** 2))) < 1e-12
    True
    """
    psi = np.asarray(u0)
    if psi.dtype.kind not in "biufc" or psi.shape != grid.shape:
        raise ValueError(f"`u0` must be numbers of the shape {grid.shape} of the grid, found {psi.dtype} {psi.shape}")
    V = np.zeros(grid.shape) if potential is None else validate_grid_function("potential", potential, grid, ())
    parts: Any = Flow(PhaseFlow(V, interaction)), Flow(FreeFlow(spectral_laplacian(grid).symbol.real))
    return Split(parts, psi.astype(complex), t_span)
