"""Conservation laws with several components: gas dynamics, shallow water and sound, as problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.equations.right_hand_sides import find_law_spectra
from stepnet.equations.spectra import add_sets
from stepnet.operators.conservation import REACH, ConservationLaw
from stepnet.operators.fluxes import NUMERICAL_FLUXES
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, validate_grid_function
from stepnet.operators.reconstruction import LIMITERS
from stepnet.problem import ODE

SCALAR_FLUX = "upwind"  # takes the flux of one side, for which a system has no single wave speed
SYSTEM_FLUXES = tuple(name for name in NUMERICAL_FLUXES if name != SCALAR_FLUX)
CHOICES = {
    "grid": A_GRID,
    "reconstruction": validation.one_of(*REACH),
    "numerical_flux": validation.one_of(*SYSTEM_FLUXES),
    "limiter": validation.one_of(*LIMITERS),
    "check_steps": validation.validate_flag,
}


@dataclass(frozen=True, eq=False)
class ConservationSystemRHS:
    """-div F(u) of a state (components, *grid)."""

    law: ConservationLaw
    checks_steps: bool
    name: str

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        return self.law(u, t, args)

    def find_spectrum(self, t: Any, u: Any, *args: Any) -> np.ndarray:
        speeds = [self.law.speeds(u, axis, *args) for axis in range(self.law.grid.ndim)]
        fastest = [float(max(np.max(np.abs(low)), np.max(np.abs(high)))) for low, high in speeds]
        return add_sets(find_law_spectra(self.law, fastest))


def _build_law(grid: Grid, flux: Callable[..., Any], speeds: Callable[..., Any], choices: dict[str, Any]) -> Any:
    for axis, pair in enumerate(grid.boundary):
        if pair and not all(side.value_weight == 0.0 and side.is_homogeneous for side in pair):
            raise ValueError(
                f"`grid` of a system of conservation laws must be periodic or 'neumann', through which waves leave, "
                f"found another boundary along axis {axis}"
            )
    return ConservationLaw(grid, flux, speeds, **choices)


def _validate_velocity(velocity: Any, grid: Grid) -> np.ndarray:
    """One field per axis, (axes, *grid); in one dimension also a field."""
    found = validation.array()("velocity", velocity)
    if grid.ndim == 1 and found.shape == grid.shape:
        found = found[None]
    return validate_grid_function("velocity", found, grid, (grid.ndim,))


def _require_positive(name: str, value: Any, grid: Grid) -> np.ndarray:
    found = validate_grid_function(name, value, grid, ())
    bad = found[~(np.isfinite(found) & (found > 0))]
    if bad.size:
        raise ValueError(f"`{name}` must be finite and positive, found {bad[0]:g}")
    return found


# ---- gas dynamics ---------------------------------------------------------------------------------------------------


def find_pressure(u: Any, gamma: Any) -> Any:
    """p = (gamma - 1) (E - rho |v|^2 / 2) of a state (rho, rho v, E)."""
    momentum = u[1:-1]
    return (gamma - 1.0) * (u[-1] - 0.5 * (momentum * momentum).sum(axis=0) / u[0])


def euler_flux(u: Any, axis: Any, gamma: Any) -> Any:
    """v u + p (0, e_axis, v) of a state (rho, rho v, E)."""
    pressure, velocity = find_pressure(u, gamma), u[1 + axis] / u[0]
    parts = [velocity * u[k] for k in range(u.shape[0])]
    parts[1 + axis] = parts[1 + axis] + pressure
    parts[-1] = parts[-1] + velocity * pressure
    return np.stack(parts)


def euler_speeds(u: Any, axis: Any, gamma: Any) -> Any:
    """v - c and v + c with the speed of sound c^2 = gamma p / rho."""
    velocity, sound = u[1 + axis] / u[0], np.sqrt(gamma * find_pressure(u, gamma) / u[0])
    return velocity - sound, velocity + sound


@validation.check(**CHOICES, gamma=validation.real("(1, inf)"))
def euler(
    grid: Grid,
    density: Any,
    velocity: Any,
    pressure: Any,
    t_span: tuple[float, float],
    gamma: float = 1.4,
    *,
    reconstruction: str = "muscl",
    numerical_flux: str = "hll",
    limiter: str = "van_leer",
    check_steps: bool = True,
) -> ODE:
    """Euler's equations of an ideal gas; the state is (rho, rho v, E) in an array (2 + axes, *grid).

    rho_t + div(rho v) = 0, (rho v)_t + div(rho v v + p) = 0, E_t + div(v (E + p)) = 0, p = (gamma - 1) (E - rho |v|^2 /
    2).

    Parameters
    ----------
    grid : Grid
        Periodic or "neumann" along each axis: waves leave through its sides.
    density, pressure : array_like
        Initial values of the shape of the grid, positive.
    velocity : array_like
        One array of the shape of the grid per axis.
    t_span : (float, float)
        Initial and final time.
    gamma : float
        Ratio of specific heats, above 1; the only entry of `args`.
    reconstruction : {"constant", "muscl", "weno5"}
        As in `operators.ConservationLaw`; applied to the components of the state.
    numerical_flux : {"rusanov", "hll"}
        The flux of two states; not used by "weno5".
    limiter : {"minmod", "van_leer", "mc", "superbee"}
        The slopes of "muscl".
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme for the initial speeds are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import euler
    >>> from stepnet.operators import Grid
    >>> gas = euler(Grid(8, boundary="neumann"), np.ones(8), np.zeros(8), np.ones(8), (0.0, 0.1))
    >>> gas.y0.shape, round(float(gas.y0[2, 0]), 12)
    ((3, 8), 2.5)
    """
    rho, p = _require_positive("density", density, grid), _require_positive("pressure", pressure, grid)
    v = _validate_velocity(velocity, grid)
    energy = p / (gamma - 1.0) + 0.5 * rho * np.sum(v * v, axis=0)
    choices = {"reconstruction": reconstruction, "numerical_flux": numerical_flux, "limiter": limiter}
    law = _build_law(grid, euler_flux, euler_speeds, choices)
    u0 = np.concatenate((rho[None], rho * v, energy[None]))
    return ODE(ConservationSystemRHS(law, check_steps, "euler"), u0, t_span, (gamma,))


# ---- shallow water --------------------------------------------------------------------------------------------------


def shallow_water_flux(u: Any, axis: Any, gravity: Any) -> Any:
    """v u + g d^2 / 2 e_axis of a state (d, d v)."""
    velocity = u[1 + axis] / u[0]
    parts = [velocity * u[k] for k in range(u.shape[0])]
    parts[1 + axis] = parts[1 + axis] + 0.5 * gravity * u[0] * u[0]
    return np.stack(parts)


def shallow_water_speeds(u: Any, axis: Any, gravity: Any) -> Any:
    """v - c and v + c with c^2 = g d."""
    velocity, c = u[1 + axis] / u[0], np.sqrt(gravity * u[0])
    return velocity - c, velocity + c


@validation.check(**CHOICES, gravity=validation.real("(0, inf)"))
def shallow_water(
    grid: Grid,
    depth: Any,
    velocity: Any,
    t_span: tuple[float, float],
    gravity: float = 9.81,
    *,
    reconstruction: str = "muscl",
    numerical_flux: str = "hll",
    limiter: str = "van_leer",
    check_steps: bool = True,
) -> ODE:
    """Shallow water over a flat bottom; the state is (d, d v) in an array (1 + axes, *grid).

    d_t + div(d v) = 0, (d v)_t + div(d v v + gravity d^2 / 2) = 0.

    Parameters
    ----------
    grid : Grid
        Periodic or "neumann" along each axis: waves leave through its sides.
    depth : array_like
        Initial depth d, of the shape of the grid, positive.
    velocity : array_like
        One array of the shape of the grid per axis.
    t_span : (float, float)
        Initial and final time.
    gravity : float
        Positive; the only entry of `args`.
    reconstruction : {"constant", "muscl", "weno5"}
        As in `operators.ConservationLaw`; applied to the components of the state.
    numerical_flux : {"rusanov", "hll"}
        The flux of two states; not used by "weno5".
    limiter : {"minmod", "van_leer", "mc", "superbee"}
        The slopes of "muscl".
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme for the initial speeds are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import shallow_water
    >>> from stepnet.operators import Grid
    >>> shallow_water(Grid((8, 8)), np.ones((8, 8)), np.zeros((2, 8, 8)), (0.0, 0.1)).y0.shape
    (3, 8, 8)
    """
    d, v = _require_positive("depth", depth, grid), _validate_velocity(velocity, grid)
    choices = {"reconstruction": reconstruction, "numerical_flux": numerical_flux, "limiter": limiter}
    law = _build_law(grid, shallow_water_flux, shallow_water_speeds, choices)
    u0 = np.concatenate((d[None], d * v))
    return ODE(ConservationSystemRHS(law, check_steps, "shallow_water"), u0, t_span, (gravity,))


# ---- sound ----------------------------------------------------------------------------------------------------------


def acoustics_flux(u: Any, axis: Any, speed: Any) -> Any:
    """(c^2 v_axis, p e_axis) of a state (p, v)."""
    parts = [speed * speed * u[1 + axis], *(0.0 * u[k] for k in range(1, u.shape[0]))]
    parts[1 + axis] = u[0]
    return np.stack(parts)


def acoustics_speeds(u: Any, axis: Any, speed: Any) -> Any:
    """-c and c."""
    return -speed + 0.0 * u[0], speed + 0.0 * u[0]


@validation.check(**CHOICES, speed=validation.real("[0, inf)"))
def acoustics(
    grid: Grid,
    pressure: Any,
    velocity: Any,
    t_span: tuple[float, float],
    speed: float = 1.0,
    *,
    reconstruction: str = "muscl",
    numerical_flux: str = "hll",
    limiter: str = "van_leer",
    check_steps: bool = True,
) -> ODE:
    """The wave equation p_tt = speed^2 lap p as a system of first order; the state is (p, v) in (1 + axes, *grid).

    p_t + speed^2 div v = 0, v_t + grad p = 0.  For long times without dissipation, use `wave` and leapfrog.

    Parameters
    ----------
    grid : Grid
        Periodic or "neumann" along each axis: waves leave through its sides.
    pressure : array_like
        Initial p, of the shape of the grid.
    velocity : array_like
        One array of the shape of the grid per axis.
    t_span : (float, float)
        Initial and final time.
    speed : float
        Not negative; the only entry of `args`.
    reconstruction : {"constant", "muscl", "weno5"}
        As in `operators.ConservationLaw`; applied to the components of the state.
    numerical_flux : {"rusanov", "hll"}
        The flux of two states; not used by "weno5".
    limiter : {"minmod", "van_leer", "mc", "superbee"}
        The slopes of "muscl".
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import acoustics
    >>> from stepnet.operators import Grid
    >>> acoustics(Grid(8), np.ones(8), np.zeros(8), (0.0, 0.1)).y0.shape
    (2, 8)
    """
    p, v = validate_grid_function("pressure", pressure, grid, ()), _validate_velocity(velocity, grid)
    choices = {"reconstruction": reconstruction, "numerical_flux": numerical_flux, "limiter": limiter}
    law = _build_law(grid, acoustics_flux, acoustics_speeds, choices)
    u0 = np.concatenate((p[None], v))
    return ODE(ConservationSystemRHS(law, check_steps, "acoustics"), u0, t_span, (speed,))
