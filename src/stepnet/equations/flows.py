"""Parts of split equations by their solutions: transport along characteristics and heat in Fourier space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.operators.coefficient_operators import validate_velocity
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID
from stepnet.operators.spectral import spectral_laplacian
from stepnet.problem import Flow

HALO = 40  # points by which a periodic grid is continued: the influence of splines decays like 0.43^k at least


@dataclass(frozen=True, eq=False)
class CharacteristicFlow:
    """u(x, t + h) = u(X, t), with the foot X of the characteristic through x by one step of the classical RK4."""

    grid: Grid
    velocity: np.ndarray | Callable[..., Any]
    order: int

    def __call__(self, t: float, u: np.ndarray, h: float, *args: Any) -> np.ndarray:
        from scipy.ndimage import map_coordinates

        feet = self._find_feet(t, h)
        columns = u.reshape(-1, *self.grid.shape)
        padded, places = self._pad(columns, feet)
        found = [map_coordinates(each, places, order=self.order, mode="nearest") for each in padded]
        return np.stack(found).reshape(u.shape)

    def _find_feet(self, t: float, h: float) -> np.ndarray:
        """Backward from t + h to t, in coordinates."""
        x = np.stack(self.grid.coordinates)
        k1 = self._evaluate(t + h, x)
        k2 = self._evaluate(t + h / 2, x - h / 2 * k1)
        k3 = self._evaluate(t + h / 2, x - h / 2 * k2)
        k4 = self._evaluate(t, x - h * k3)
        return x - h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def _evaluate(self, t: float, x: np.ndarray) -> np.ndarray:
        if callable(self.velocity):
            return np.asarray(self.velocity(t, x), float)
        return self.velocity.reshape(-1, *(1,) * self.grid.ndim)

    def _pad(self, u: np.ndarray, feet: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fields continued around periodic axes, and the feet in indices of them."""
        places = feet.copy()
        for axis, (first, h, n) in enumerate(zip(self._starts, self.grid.spacing, self.grid.shape, strict=True)):
            places[axis] = (feet[axis] - first) / h
            if self.grid.boundary[axis] is None:
                places[axis] = places[axis] % n + HALO
                index = np.arange(-HALO, n + HALO) % n
                u = np.take(u, index, axis=1 + axis)
        return u, places

    @property
    def _starts(self) -> tuple[float, ...]:
        return tuple(float(self.grid.find_axis(axis)[0]) for axis in range(self.grid.ndim))


@validation.check(grid=A_GRID, order=validation.whole(1, 5))
def characteristic_flow(grid: Grid, velocity: Any, order: int = 3) -> Flow:
    """The solution of u_t + velocity . grad u = 0 by interpolation at feet of characteristics, a part of a `Split`.

    No step is unstable; for smooth u the error of a step is that of the interpolation, h^4 for cubic splines.  Beyond
    sides that are not periodic, u is continued by its value at the side.

    Parameters
    ----------
    grid : Grid
        The grid of u.
    velocity : array_like or callable
        One number per axis, or `velocity(t, x)` at points x (axes, ...), such as `nets.NetworkVelocity`.
    order : int
        The degree of the splines, from 1 (monotone) to 5.

    Returns
    -------
    Flow

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> grid = sn.operators.Grid(32, 0.0, 1.0)
    >>> (x,) = grid.coordinates
    >>> parts = sn.equations.characteristic_flow(grid, [1.0]), lambda t, u: -u
    >>> problem = sn.Split(parts, np.sin(2 * np.pi * x), (0.0, 1.0))
    >>> found = sn.solve(problem, "strang", steps=8, save_every=0).y[-1]
    >>> bool(np.allclose(found, np.exp(-1.0) * np.sin(2 * np.pi * x), atol=1e-3))
    True
    """
    if not callable(velocity):
        velocity = validate_velocity(velocity, grid)
        if velocity.shape != (grid.ndim,):
            raise ValueError("`velocity` must be one number per axis, or a function velocity(t, x) of points")
    return Flow(CharacteristicFlow(grid, velocity, order))


@validation.check(grid=A_GRID, diffusivity=validation.real("[0, inf)"))
def heat_flow(grid: Grid, diffusivity: float = 1.0) -> Flow:
    """The solution of u_t = diffusivity lap u on a periodic grid by Fourier transforms, as part of a `Split`.

    Steps backward in time amplify rounding errors without bound, so that splitting schemes of order above two, such
    as yoshida4, which take such steps, do not apply.

    Parameters
    ----------
    grid : Grid
        A periodic grid.
    diffusivity : float
        Not negative.

    Returns
    -------
    Flow

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> grid = sn.operators.Grid(16, 0.0, 2 * np.pi)
    >>> (x,) = grid.coordinates
    >>> bool(np.allclose(sn.equations.heat_flow(grid).fun(0.0, np.sin(x), 1.0), np.exp(-1.0) * np.sin(x)))
    True
    """
    symbol, axes = diffusivity * spectral_laplacian(grid).symbol.real, tuple(range(-grid.ndim, 0))

    def solve(t: float, u: np.ndarray, h: float, *args: Any) -> np.ndarray:
        found = np.fft.ifftn(np.exp(h * symbol) * np.fft.fftn(u, axes=axes), axes=axes)
        return found if np.iscomplexobj(u) else found.real

    return Flow(solve)
