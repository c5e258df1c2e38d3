"""Reaction and diffusion: equations with patterns, phases and pulses, as problems."""

from __future__ import annotations

from typing import Any

from stepnet import validation
from stepnet.equations.right_hand_sides import AllenCahnRHS, FitzHughNagumoRHS, GrayScottRHS
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, laplacian, validate_grid_function
from stepnet.problem import ODE

A_RATE = validation.real("[0, inf)")


@validation.check(
    grid=A_GRID,
    diffusivities=validation.sequence(A_RATE, 2),
    feed=validation.real(),
    kill=validation.real(),
    check_steps=validation.validate_flag,
)
def gray_scott(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    diffusivities: tuple[float, float] = (2e-5, 1e-5),
    feed: float = 0.04,
    kill: float = 0.06,
    *,
    order: int = 2,
    check_steps: bool = True,
) -> ODE:
    """Gray and Scott's reaction u + 2 v -> 3 v with feed and removal; the state is (u, v) in an array (2, *grid).

    u_t = D_u lap u - u v^2 + feed (1 - u), v_t = D_v lap v + u v^2 - (feed + kill) v.  Pearson (1993), Science 261:189.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions, of both u and v.
    u0 : array_like
        Initial state (2, *grid).
    t_span : (float, float)
        Initial and final time.
    diffusivities : (float, float)
        D_u and D_v, not negative.
    feed, kill : float
        The rates; `args` are D_u, D_v, feed, kill.
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
    >>> from stepnet.equations import gray_scott
    >>> from stepnet.operators import Grid
    >>> grid = Grid((8, 8))
    >>> gray_scott(grid, np.ones((2, 8, 8)), (0.0, 1.0)).args
    (2e-05, 1e-05, 0.04, 0.06)
    """
    u0 = validate_grid_function("u0", u0, grid, (2,))
    if len(diffusivities) != 2:
        raise ValueError(f"`diffusivities` must be two numbers, found {len(diffusivities)}")
    return ODE(GrayScottRHS(laplacian(grid, order), check_steps), u0, t_span, (*diffusivities, feed, kill))


@validation.check(grid=A_GRID, width=A_RATE, check_steps=validation.validate_flag)
def allen_cahn(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    width: float,
    *,
    order: int = 2,
    check_steps: bool = True,
) -> ODE:
    """u_t = width^2 lap u + u - u^3: phases u = 1 and u = -1 with interfaces of the given width.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions.
    u0 : array_like
        Initial state, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    width : float
        Not negative; the only entry of `args`.
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
    >>> from stepnet.equations import allen_cahn
    >>> from stepnet.operators import Grid
    >>> grid = Grid(16, boundary="neumann")
    >>> allen_cahn(grid, np.ones(16), (0.0, 1.0), 0.05).args
    (0.05,)
    """
    u0 = validate_grid_function("u0", u0, grid, ())
    return ODE(AllenCahnRHS(laplacian(grid, order), check_steps), u0, t_span, (width,))


@validation.check(
    grid=A_GRID,
    diffusivity=A_RATE,
    rate=validation.real(),
    a=validation.real(),
    b=validation.real(),
    current=validation.real(),
    check_steps=validation.validate_flag,
)
def fitzhugh_nagumo(
    grid: Grid,
    u0: Any,
    t_span: tuple[float, float],
    diffusivity: float = 1.0,
    rate: float = 0.08,
    a: float = 0.7,
    b: float = 0.8,
    current: float = 0.0,
    *,
    order: int = 2,
    check_steps: bool = True,
) -> ODE:
    """FitzHugh and Nagumo's model of nerve pulses; the state is (u, v) in an array (2, *grid).

    u_t = D lap u + u - u^3 / 3 - v + current, v_t = rate (u + a - b v).  FitzHugh (1961), Biophysical J. 1:445.

    Parameters
    ----------
    grid : Grid
        The grid and the boundary conditions, of u.
    u0 : array_like
        Initial state (2, *grid).
    t_span : (float, float)
        Initial and final time.
    diffusivity : float
        D of u, not negative; v does not spread.
    rate, a, b, current : float
        Of the recovery v, and the stimulus; `args` are D, rate, a, b, current.
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
    >>> from stepnet.equations import fitzhugh_nagumo
    >>> from stepnet.operators import Grid
    >>> fitzhugh_nagumo(Grid(8), np.ones((2, 8)), (0.0, 1.0)).args
    (1.0, 0.08, 0.7, 0.8, 0.0)
    """
    u0 = validate_grid_function("u0", u0, grid, (2,))
    return ODE(FitzHughNagumoRHS(laplacian(grid, order), check_steps), u0, t_span, (diffusivity, rate, a, b, current))
