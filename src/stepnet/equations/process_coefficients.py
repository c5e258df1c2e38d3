"""Drift and diffusion of a stochastic process on the points of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from stepnet.operators.grid import Grid
from stepnet.problem import SDE

COMPARED = 64  # points at which functions of arrays are compared with functions of single states
AGREEMENT = 1e-12  # relative: the same operations on arrays and on numbers
DIFFERENCE = 6e-6  # cube root of the resolution of float64: the step of a central difference


@dataclass(frozen=True, eq=False)
class ProcessCoefficients:
    """f and D = g g' of an Ito process at all points of a grid, as functions of time and of the arguments of the SDE.

    The functions of the SDE are called once with an array of states (axes, points).  `n_columns` is 0 if g has one
    component of W for each axis; `correction` is the multiple of sum_j (dg_j/dy) g_j that is added to the drift.
    """

    drift: Callable[..., Any]
    diffusion: Callable[..., Any]
    points: np.ndarray
    grid_shape: tuple[int, ...]
    n_columns: int
    correction: float

    def find_drift(self, t: Any, args: tuple[Any, ...]) -> Any:
        """f at all points, (axes, *grid)."""
        f = broadcast(self.drift(t, self.points.copy(), *args), self.points.shape)
        if self.correction != 0.0:
            f = f + self.correction * self._find_change_of_columns(t, args)
        return f.reshape((len(self.points), *self.grid_shape))

    def find_diffusion(self, t: Any, args: tuple[Any, ...]) -> Any:
        """The diagonal of D at all points, (axes, *grid)."""
        g = self.find_columns(t, self.points, args)
        squares = g * g if self.n_columns == 0 else (g * g).sum(axis=1)
        return squares.reshape((len(self.points), *self.grid_shape))

    def find_couplings(self, t: Any, args: tuple[Any, ...]) -> list[tuple[int, int, Any]]:
        """(i, j, D_ij) for each pair of axes, if components of the noise act on several axes."""
        if self.n_columns == 0 or len(self.points) == 1:
            return []
        g = self.find_columns(t, self.points, args)
        pairs = combinations(range(len(self.points)), 2)
        return [(i, j, (g[i] * g[j]).sum(axis=0).reshape(self.grid_shape)) for i, j in pairs]

    def evaluate(self, function: Callable[..., Any], t: Any, args: tuple[Any, ...]) -> Any:
        """A function of t and a state, returning a number, at all points."""
        value = function(t, self.points.copy(), *args) + np.zeros(self.points.shape[1])
        return value.reshape(self.grid_shape)

    def find_columns(self, t: Any, points: Any, args: tuple[Any, ...]) -> Any:
        """g at points: (axes, points) if `n_columns` is 0, else (axes, columns, points)."""
        g = self.diffusion(t, points.copy(), *args)
        if self.n_columns == 0:
            return broadcast(g, self.points.shape)
        if self.n_columns == 1 and np.ndim(g) == len(self.points.shape):
            return broadcast(g, self.points.shape)[:, None]
        rows = [broadcast(g[i], (self.n_columns, self.points.shape[1])) for i in range(len(self.points))]
        return np.stack(rows)

    def _find_change_of_columns(self, t: Any, args: tuple[Any, ...]) -> Any:
        """sum_j (dg_j/dy) g_j by central differences along the columns g_j."""
        g = self.find_columns(t, self.points, args)
        if self.n_columns == 0:
            return np.stack([self._differ(g * _unit(j, g.shape), t, args)[j] for j in range(g.shape[0])])
        total = self._differ(g[:, 0], t, args)[:, 0]
        for j in range(1, self.n_columns):
            total = total + self._differ(g[:, j], t, args)[:, j]
        return total

    def _differ(self, along: Any, t: Any, args: tuple[Any, ...]) -> Any:
        ahead = self.find_columns(t, self.points + DIFFERENCE * along, args)
        behind = self.find_columns(t, self.points - DIFFERENCE * along, args)
        return (ahead - behind) * (0.5 / DIFFERENCE)


def _unit(j: int, shape: tuple[int, ...]) -> np.ndarray:
    unit = np.zeros(shape)
    unit[j] = 1.0
    return unit


def broadcast(value: Any, shape: tuple[int, ...]) -> Any:
    """An array (rows, points) from an array or a list of arrays and numbers, or from one number for each row."""
    if isinstance(value, (list, tuple)):
        value = np.stack([row + np.zeros(shape[1:]) for row in value])
    if np.ndim(value) == 1:
        value = value[:, None]
    return value + np.zeros(shape)


def sample_process(sde: SDE, grid: Grid) -> ProcessCoefficients:
    """The coefficients of a process on a grid with one axis for each entry of its state."""
    if sde.y0.shape != (grid.ndim,):
        raise ValueError(
            f"`sde` must have a state of the shape ({grid.ndim},), one entry for each axis of `grid`, found "
            f"{sde.y0.shape}"
        )
    shape = sde.diffusion_shape
    n_columns = 0 if sde.noise == "diagonal" or (sde.noise == "additive" and shape == sde.y0.shape) else 1
    if len(shape) > 1:
        n_columns = shape[1]
    points = np.stack([x.ravel() for x in grid.coordinates])
    correction = sde.correction + (0.5 if sde.calculus == "stratonovich" else 0.0)
    if sde.noise == "additive":
        correction = 0.0
    found = ProcessCoefficients(sde.drift, sde.diffusion, points, grid.shape, n_columns, correction)
    _compare("drift", sde, points, lambda t: broadcast(sde.drift(t, points.copy(), *sde.args), points.shape))
    _compare("diffusion", sde, points, lambda t: found.find_columns(t, points, sde.args))
    return found


def _compare(name: str, sde: SDE, points: np.ndarray, evaluate: Callable[[float], Any]) -> None:
    """Refuse a function whose values at an array of states are not those at the single states."""
    chosen = np.unique(np.linspace(0, points.shape[1] - 1, COMPARED).astype(int))
    try:
        for t in sde.t_span:
            single = [np.asarray(getattr(sde, name)(t, points[:, k].copy(), *sde.args), float) for k in chosen]
            together = evaluate(t)[..., chosen]
            wanted = np.stack([each.reshape(together.shape[:-1]) for each in single], axis=-1)
            is_equal = np.allclose(together, wanted, rtol=0, atol=AGREEMENT * float(np.max(np.abs(wanted))))
            if not is_equal:
                break
    except (TypeError, ValueError, IndexError):
        is_equal = False
    if not is_equal:
        raise TypeError(
            f"`{name}` of `sde` must also take an array of states (axes, points) and return its values at all of them; "
            f"write it with y[0], y[1], ... and NumPy, without branches on the state"
        )
