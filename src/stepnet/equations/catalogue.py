"""The equations: functions that check their arguments and return a problem for `solve`, `gradient` and `start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.equations.right_hand_sides import (
    BurgersRHS,
    DiffusionRHS,
    HeatRHS,
    TransportRHS,
    WaveRHS,
    burgers_flux,
    burgers_speeds,
)
from stepnet.equations.spectra import find_stencil_spectrum
from stepnet.operators.coefficient_operators import Upwind, VariableDiffusion, validate_velocity
from stepnet.operators.conservation import REACH, ConservationLaw
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, laplacian, validate_grid_function
from stepnet.operators.reconstruction import LIMITERS
from stepnet.operators.transforms import find_transforms, has_constants, invert_laplacian
from stepnet.problem import ODE, SecondOrder, validate_span
from stepnet.records import validate_number

A_RATE = validation.real("[0, inf)")


def _check_source(
    source: Any, grid: Grid, t_span: tuple[float, float]
) -> tuple[Callable[..., Any] | None, tuple[Any, ...]]:
    """A function of time is stored in the right-hand side; an array becomes an argument, with a gradient."""
    if source is None:
        return None, ()
    if not callable(source):
        return None, (_validate_source("source", source, grid),)
    begin, _ = validate_span(t_span)
    found = source(begin)
    if np.shape(found):  # a number is the same everywhere
        _validate_source("source(t)", found, grid)
    else:
        validate_number("source(t)", found)
    return source, ()


def _validate_source(name: str, value: Any, grid: Grid) -> np.ndarray:
    found = validate_grid_function(name, value, grid, ())
    if not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be finite, found {found[~np.isfinite(found)][0]}")
    return found


@validation.check(grid=A_GRID, diffusivity=A_RATE, check_steps=validation.validate_flag)
def heat(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    diffusivity: float = 1.0,
    *,
    source: Any = None,
    order: int = 2,
    check_steps: bool = True,
) -> ODE:
    """u_t = diffusivity lap u + source.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0 : array_like
        Initial state, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    diffusivity : float
        Not negative; the first of `args`.
    source : array_like or callable, optional
        An array of the shape of the grid, the second of `args`; or a function of time that returns one.
    order : {2, 4, 6, 8}
        The order in space.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import heat
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16, 0.0, 1.0, boundary="dirichlet")
    >>> heat(grid, np.ones(16), (0.0, 0.1), 0.5).args
    (0.5,)
    """
    u0 = validate_grid_function("u0", u0, grid, ())
    function, extra = _check_source(source, grid, t_span)
    return ODE(HeatRHS(laplacian(grid, order), function, check_steps), u0, t_span, (diffusivity, *extra))


@validation.check(grid=A_GRID, check_steps=validation.validate_flag)
def diffusion(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    diffusivity: Any,
    *,
    source: Any = None,
    check_steps: bool = True,
) -> ODE:
    """u_t = div(diffusivity grad u) + source with a diffusivity that varies in space, conservatively, to second order.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0 : array_like
        Initial state, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    diffusivity : array_like
        Of the shape of the grid, finite and not negative; the first of `args`.
    source : array_like or callable, optional
        An array of the shape of the grid, the second of `args`; or a function of time that returns one.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import diffusion
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16)
    >>> diffusion(grid, np.ones(16), (0.0, 0.1), np.linspace(1.0, 2.0, 16)).args[0].shape
    (16,)
    """
    u0, k = validate_grid_function("u0", u0, grid, ()), validate_grid_function("diffusivity", diffusivity, grid, ())
    bad = k[~(np.isfinite(k) & (k >= 0))]
    if bad.size:
        raise ValueError(f"`diffusivity` must be finite and not negative, found {bad[0]:g}")
    function, extra = _check_source(source, grid, t_span)
    return ODE(DiffusionRHS(VariableDiffusion(grid), laplacian(grid), function, check_steps), u0, t_span, (k, *extra))


@validation.check(grid=A_GRID, speed=A_RATE, check_steps=validation.validate_flag)
def wave(
    grid: Grid,
    u0: Any,
    v0: Any,
    t_span: tuple[float, float],
    speed: float = 1.0,
    *,
    order: int = 2,
    check_steps: bool = True,
) -> SecondOrder:
    """u_tt = speed^2 lap u: for leapfrog ("verlet") and other schemes of second-order problems, or any Runge-Kutta.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0, v0 : array_like
        Initial state and velocity u_t, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    speed : float
        Not negative; the only entry of `args`.
    order : {2, 4, 6, 8}
        The order in space; where sides make eigenvalues complex (order 8), waves would grow, and it is refused.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    SecondOrder

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import wave
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16)
    >>> wave(grid, np.ones(16), np.zeros(16), (0.0, 1.0), speed=2.0).args
    (2.0,)
    """
    u0, v0 = validate_grid_function("u0", u0, grid, ()), validate_grid_function("v0", v0, grid, ())
    operator = laplacian(grid, order)
    spectrum = find_stencil_spectrum(operator)
    if np.max(np.abs(spectrum.imag)) > 1e-6 * np.max(np.abs(spectrum)):
        raise ValueError(f"`order` = {order} lets waves grow at these sides: its eigenvalues are complex; use order 4")
    return SecondOrder(WaveRHS(operator, check_steps), u0, v0, t_span, (speed,))


@validation.check(grid=A_GRID, check_steps=validation.validate_flag)
def transport(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    velocity: Any,
    *,
    order: int = 3,
    check_steps: bool = True,
) -> ODE:
    """u_t + velocity . grad u = 0 by upwind differences.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions; those of outflow sides are not used.
    u0 : array_like
        Initial state, of the shape of the grid, with axes of components in front of it if there are several fields.
    t_span : (float, float)
        Initial and final time; a final time before the initial one solves a terminal-value problem.
    velocity : array_like or callable
        One number or one array of the shape of the grid per axis, the only entry of `args`; or a function of time that
        returns them, such as `nets.NetworkVelocity`.
    order : {1, 2, 3}
        The order in space; 1 is monotone.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import transport
    >>> from stepnet.operators import Grid
    >>> grid = Grid((8, 8))
    >>> transport(grid, np.ones((8, 8)), (0.0, 1.0), [1.0, -0.5]).args
    (array([ 1. , -0.5]),)
    """
    u0 = validate_grid_function("u0", u0, grid)
    function, args = _check_velocity(velocity, grid)
    direction = find_direction(t_span)
    return ODE(TransportRHS(Upwind(grid, order), None, function, check_steps, "transport", direction), u0, t_span, args)


@validation.check(grid=A_GRID, diffusivity=A_RATE, check_steps=validation.validate_flag)
def advection_diffusion(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    velocity: Any,
    diffusivity: float,
    *,
    order: int = 3,
    check_steps: bool = True,
) -> ODE:
    """u_t + velocity . grad u = diffusivity lap u, with upwind and central differences.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0 : array_like
        Initial state, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    velocity : array_like or callable
        One number or one array of the shape of the grid per axis, the first of `args`; or a function of time that
        returns them.
    diffusivity : float
        Not negative; the last of `args`.
    order : {1, 2, 3}
        The order of the upwind differences; the Laplacian has order 2, or 4 if this is 3.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.equations import advection_diffusion
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16)
    >>> advection_diffusion(grid, np.ones(16), (0.0, 1.0), [1.0], 0.01).args[1]
    0.01
    """
    u0 = validate_grid_function("u0", u0, grid, ())
    function, args = _check_velocity(velocity, grid)
    upwind, spread = Upwind(grid, order), laplacian(grid, 4 if order == 3 else 2)
    right_hand_side = TransportRHS(upwind, spread, function, check_steps, "advection_diffusion")
    return ODE(right_hand_side, u0, t_span, (*args, diffusivity))


def find_direction(t_span: Any) -> float:
    """-1.0 if time runs backward, which reverses what is upwind, else 1.0."""
    begin, end = validate_span(t_span)
    return -1.0 if end < begin else 1.0


def _check_velocity(velocity: Any, grid: Grid) -> tuple[Callable[..., Any] | None, tuple[Any, ...]]:
    return (velocity, ()) if callable(velocity) else (None, (validate_velocity(velocity, grid),))


@validation.check(
    grid=A_GRID,
    viscosity=A_RATE,
    reconstruction=validation.one_of(*REACH),
    limiter=validation.one_of(*LIMITERS),
    check_steps=validation.validate_flag,
)
def burgers(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    viscosity: float = 0.0,
    *,
    reconstruction: str = "weno5",
    limiter: str = "van_leer",
    check_steps: bool = True,
) -> ODE:
    """u_t + (u^2 / 2)_x + ... = viscosity lap u in conservative form; the flux is along every axis.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0 : array_like
        Initial state, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    viscosity : float
        Not negative; the only entry of `args`.
    reconstruction : {"constant", "muscl", "weno5"}
        As in `operators.ConservationLaw`.
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
    >>> from stepnet.equations import burgers
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16)
    >>> burgers(grid, np.ones(16), (0.0, 1.0), 0.1).args
    (0.1,)
    """
    u0 = validate_grid_function("u0", u0, grid, ())
    law = ConservationLaw(grid, burgers_flux, burgers_speeds, reconstruction, limiter=limiter)
    return ODE(BurgersRHS(law, laplacian(grid), check_steps), u0, t_span, (viscosity,))


@validation.check(grid=A_GRID)
def poisson(grid: Grid, source: Any, *, order: int = 2) -> np.ndarray:
    """Solve lap u = source with the boundary conditions of the grid.

    Where each axis is periodic or, at order 2, has Dirichlet or Neumann conditions on both sides, fast Fourier, sine
    and cosine transforms solve it; otherwise a sparse factorisation does, which takes longer and more memory.  It is
    one call of SuperLU, minutes long on millions of points, and Ctrl-C takes effect when it has ended.

    Where u is determined up to a constant (periodic and Neumann sides), the mean of the source must be compatible
    with the boundary values, and the solution with mean zero is returned.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    source : array_like
        Of the shape of the grid.
    order : {2, 4, 6, 8}
        The order in space.

    Returns
    -------
    array of the shape of the grid

    Raises
    ------
    ValueError
        If no solution exists, or if the source or a boundary value is not finite.

    Examples
    --------
    >>> from stepnet.equations import poisson
    >>> from stepnet.operators import Grid
    >>> grid = Grid(3, boundary="dirichlet", centring="node")
    >>> poisson(grid, [-2.0, -2.0, -2.0])
    array([0.1875, 0.25  , 0.1875])
    """
    source = _validate_source("source", source, grid)
    operator = laplacian(grid, order)
    offset = operator.find_offset(0.0)
    if not np.isfinite(offset).all():
        raise ValueError("`grid` must have finite boundary values at t = 0, found one that is not")
    right = source - offset
    transforms = find_transforms(operator)
    if transforms is not None:
        u, rest = invert_laplacian(transforms, right)
        _require_mean(rest, right)
        return u - u.mean() if has_constants(transforms) else u
    from scipy import sparse
    from scipy.sparse.linalg import splu

    matrix, right, n = operator.matrix(), right.ravel(), right.size
    if np.max(np.abs(matrix @ np.ones(n))) > 1e-9 * abs(matrix).max():
        return splu(matrix.tocsc()).solve(right).reshape(grid.shape)
    border = np.ones((n, 1))
    bordered = sparse.block_array([[matrix, sparse.csr_array(border)], [sparse.csr_array(border.T), None]])
    solved = splu(bordered.tocsc()).solve(np.append(right, 0.0))
    _require_mean(float(solved[-1]), right)
    return solved[:-1].reshape(grid.shape)


def _require_mean(rest: float, right: np.ndarray) -> None:
    if abs(rest) > 1e-9 * max(np.max(np.abs(right)), np.finfo(float).tiny):
        raise ValueError(
            f"`source` must have the mean that the boundary values prescribe, as nothing fixes the value of u; it is "
            f"off by {rest:.3g}"
        )
