"""The two equations of a diffusion process: Fokker and Planck's for its density, Kolmogorov's for its expectations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.equations.process_coefficients import ProcessCoefficients, sample_process
from stepnet.equations.spectra import ANGLES, add_sets, find_symbol, find_upwind_spectrum
from stepnet.operators.array_functions import take
from stepnet.operators.boundaries import build_free_rule
from stepnet.operators.coefficient_operators import Upwind
from stepnet.operators.extension import AxisExtension, build_extension, extend
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID, AxisStencil, StencilOperator, derivative, validate_grid_function
from stepnet.operators.stencils import build_stencil
from stepnet.problem import ODE, SDE, validate_span

AN_SDE = validation.instance(SDE, what="an `SDE`")
LARGEST_RATIO = 500.0  # of drift to diffusion in a cell, for which exp is still finite
SMALL_RATIO = 1e-2  # below which x / (exp(x) - 1) is its Taylor polynomial, to rounding
TINY = 1e-300


def weigh(x: Any) -> Any:
    """Bernoulli's function x / (exp(x) - 1), smooth at 0."""
    small = np.abs(x) < SMALL_RATIO
    square = x * x
    series = 1.0 - 0.5 * x + square * (1.0 / 12.0) - square * square * (1.0 / 720.0)
    safe = np.where(small, 1.0, x)
    return np.where(small, series, safe / np.expm1(safe))


# ---- the density ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FokkerPlanckRHS:
    """-div(f p) + 1/2 sum_ij (D_ij p)_ij: the net flow into each cell.

    The flux f p - 1/2 (D p)' through a face is that of the exact stationary profile between its two cells, so that p
    stays positive (Scharfetter & Gummel 1969; Chang & Cooper 1970).
    """

    grid: Grid
    coefficients: ProcessCoefficients
    extensions: tuple[AxisExtension, ...]
    even: tuple[AxisExtension, ...]  # of coefficients
    slopes: tuple[StencilOperator, ...]
    checks_steps: bool
    name: str = "fokker_planck"

    def __call__(self, t: Any, p: Any, *args: Any) -> Any:
        grid = self.grid
        drift, spread = self.coefficients.find_drift(t, args), self.coefficients.find_diffusion(t, args)
        couplings = self.coefficients.find_couplings(t, args)
        total = None
        for axis in range(grid.ndim):
            left, right = find_face_rates(self.even[axis], grid.spacing[axis], drift[axis], 0.5 * spread[axis])
            v, n = extend(p, self.extensions[axis]), grid.shape[axis]
            place = axis - grid.ndim
            flux = left * take(v, place, 0, n + 1) - right * take(v, place, 1, n + 2)
            for i, j, D in couplings:
                if axis in (i, j):
                    flux = flux + self._couple(p * D, axis, j if axis == i else i)
            flux = close_faces(flux, grid, axis)
            part = (take(flux, place, 0, n) - take(flux, place, 1, n + 1)) * (1.0 / grid.spacing[axis])
            total = part if total is None else total + part
        return total

    def _couple(self, product: Any, axis: int, other: int) -> Any:
        """-1/2 d/dx_other (D p) at the faces along an axis."""
        grid = self.grid
        v, n, place = extend(self.slopes[other](product), self.even[axis]), grid.shape[axis], axis - grid.ndim
        return -0.25 * (take(v, place, 0, n + 1) + take(v, place, 1, n + 2))

    def find_spectrum(self, t: Any, p: Any, *args: Any) -> np.ndarray:
        grid = self.grid
        drift, spread = self.coefficients.find_drift(t, args), self.coefficients.find_diffusion(t, args)
        along = []
        for axis in range(grid.ndim):
            left, right = find_face_rates(self.even[axis], grid.spacing[axis], drift[axis], 0.5 * spread[axis])
            fastest = np.unravel_index(np.argmax(left + right), left.shape)
            theta = np.linspace(-np.pi, np.pi, ANGLES[grid.ndim])
            a, b = left[fastest] / grid.spacing[axis], right[fastest] / grid.spacing[axis]
            along.append(a * (np.exp(-1j * theta) - 1.0) + b * (np.exp(1j * theta) - 1.0))
        return add_sets(along)


def find_face_rates(even: AxisExtension, h: float, f: Any, d: Any) -> tuple[Any, Any]:
    """(a, b) of the flux a p_left - b p_right through the faces along an axis, for drift f and diffusivity d."""
    place, n = even.axis, f.shape[even.axis]
    f, d = extend(f, even), extend(d, even)
    d_left, d_right = take(d, place, 0, n + 1), take(d, place, 1, n + 2)
    drift = 0.5 * (take(f, place, 0, n + 1) + take(f, place, 1, n + 2)) - (d_right - d_left) * (1.0 / h)
    least = np.abs(drift) * (h / LARGEST_RATIO) + TINY
    rate = np.maximum(0.5 * (d_left + d_right), least)
    ratio = h * drift / rate
    return rate * weigh(-ratio) * (1.0 / h), rate * weigh(ratio) * (1.0 / h)


def close_faces(flux: Any, grid: Grid, axis: int) -> Any:
    """No flux through the sides with a Neumann condition."""
    sides, n, place = grid.boundary[axis], grid.shape[axis], axis - grid.ndim
    if sides is None or all(side.is_dirichlet for side in sides):
        return flux
    first, last = take(flux, place, 0, 1), take(flux, place, n, n + 1)
    ends = [first if sides[0].is_dirichlet else 0.0 * first, last if sides[1].is_dirichlet else 0.0 * last]
    return np.concatenate((ends[0], take(flux, place, 1, n), ends[1]), place)


def _extend_evenly(grid: Grid, axis: int) -> AxisExtension:
    rules = None if grid.boundary[axis] is None else (build_free_rule(1, 1),) * 2
    return AxisExtension(axis - grid.ndim, 1, 1, rules)


def _build_free_slopes(grid: Grid) -> tuple[StencilOperator, ...]:
    """Central differences along each axis that extrapolate beyond sides."""
    return tuple(StencilOperator(grid, (AxisStencil(axis, build_stencil(1)),), True) for axis in range(grid.ndim))


@validation.check(grid=A_GRID, sde=AN_SDE, check_steps=validation.validate_flag)
def fokker_planck(grid: Grid, u0: Any, t_span: tuple[float, float], sde: SDE, *, check_steps: bool = True) -> ODE:
    """The density of the paths of an SDE: p_t = -div(f p) + 1/2 sum_ij (D_ij p)_ij with D = g g'.

    The sum of p over the cells is constant up to rounding, unless sides end paths.  Without coupling by the noise
    p stays positive for steps of `euler` within its limit.

    Parameters
    ----------
    grid : Grid
        One axis for each entry of the state, centred in cells.  "neumann" sides reflect paths, "dirichlet" sides end
        them, a periodic axis is a circle.
    u0 : array_like
        The density at the beginning, of the shape of the grid.
    t_span : (float, float)
        Initial and final time.
    sde : SDE
        Its drift and diffusion must also take arrays of states (components, points).  The problem has the same `args`.
        In the Stratonovich sense the noise-induced drift is added.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> sde = sn.SDE(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y, [0.0], (0.0, 1.0))
    >>> grid = sn.operators.Grid(20, -2.0, 2.0, boundary="neumann")
    >>> p = sn.solve(sn.equations.fokker_planck(grid, np.full(20, 0.25), (0.0, 1.0), sde), "rk4", steps=50).y[-1]
    >>> float(p.sum() * grid.cell_volume).__round__(12)
    1.0
    """
    u0 = validate_grid_function("u0", u0, grid, ())
    if grid.centring != "cell":
        raise ValueError(f"`grid` must be centred in cells, whose densities are balanced, found {grid.centring!r}")
    for axis, pair in enumerate(grid.boundary):
        if pair and not all(side.is_homogeneous and side.value_weight * side.slope_weight == 0 for side in pair):
            raise ValueError(f"`grid` must have 'neumann', 'dirichlet' or periodic sides, found others on axis {axis}")
    axes = range(grid.ndim)
    right_hand_side = FokkerPlanckRHS(
        grid,
        sample_process(sde, grid),
        tuple(build_extension(grid, axis, (1, 1)) for axis in axes),
        tuple(_extend_evenly(grid, axis) for axis in axes),
        _build_free_slopes(grid),
        check_steps,
    )
    return ODE(right_hand_side, u0, t_span, sde.args)


# ---- expectations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BackwardKolmogorovRHS:
    """-f . grad u - 1/2 sum_ij D_ij u_ij + V u - source, for time that runs from the end to the beginning."""

    coefficients: ProcessCoefficients
    upwind: Upwind
    seconds: tuple[StencilOperator, ...]
    slopes: tuple[StencilOperator, ...]
    potential: Callable[..., Any] | None
    source: Callable[..., Any] | None
    checks_steps: bool
    name: str = "backward_kolmogorov"

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        process = self.coefficients
        slopes = self.upwind(u, -process.find_drift(t, args), t)
        spread = process.find_diffusion(t, args)
        for axis, second in enumerate(self.seconds):
            slopes = slopes - 0.5 * spread[axis] * second(u, t)
        for i, j, D in process.find_couplings(t, args):
            slopes = slopes - D * self.slopes[i](self.slopes[j](u))
        if self.potential is not None:
            slopes = slopes + process.evaluate(self.potential, t, args) * u
        return slopes if self.source is None else slopes - process.evaluate(self.source, t, args)

    def find_spectrum(self, t: Any, u: Any, *args: Any) -> np.ndarray:
        process, grid = self.coefficients, self.upwind.grid
        along = [-find_upwind_spectrum(self.upwind, -process.find_drift(t, args))]
        spread = process.find_diffusion(t, args)
        for axis, second in enumerate(self.seconds):
            term = second.terms[0]
            symbol = find_symbol(term.stencil, grid, axis).real
            along.append(np.array([0.0, -0.5 * float(np.max(spread[axis])) * symbol.min()]))
        return add_sets(along)


@validation.check(
    grid=A_GRID,
    sde=AN_SDE,
    potential=validation.optional(validation.function),
    source=validation.optional(validation.function),
    order=validation.whole(1, 3),
    check_steps=validation.validate_flag,
)
def backward_kolmogorov(
    grid: Grid,
    terminal: Any,
    t_span: tuple[float, float],
    sde: SDE,
    *,
    potential: Callable[..., Any] | None = None,
    source: Callable[..., Any] | None = None,
    order: int = 3,
    check_steps: bool = True,
) -> ODE:
    """Expectations over the paths of an SDE: u_t + f . grad u + 1/2 sum_ij D_ij u_ij - V u + source = 0, backward.

    u(x, t) = E[exp(-int V) terminal(y(T)) + int exp(-int V) source dt] over paths from y(t) = x, which
    `montecarlo.feynman_kac` estimates at single points.  The problem runs from T to the beginning.

    Parameters
    ----------
    grid : Grid
        One axis for each entry of the state.  Paths end at "dirichlet" sides with the value given there and are
        reflected at "neumann" sides.
    terminal : array_like
        u at the end of `t_span`, of the shape of the grid, with axes in front of it for several functions.
    t_span : (float, float)
        The beginning t0 and the end T > t0 of the paths.
    sde : SDE
        Its drift and diffusion must also take arrays of states (components, points).  The problem has the same `args`.
    potential, source : callable, optional
        V and source, `V(t, y, *args)`, for arrays of states.
    order : {1, 2, 3}
        The order of the upwind differences; second derivatives have order 2, or 4 if this is 3.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE

    Examples
    --------
    >>> import stepnet as sn
    >>> sde = sn.SDE(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y, [0.0], (0.0, 1.0))
    >>> grid = sn.operators.Grid(40, -4.0, 4.0, boundary="neumann")
    >>> (x,) = grid.coordinates
    >>> problem = sn.equations.backward_kolmogorov(grid, x**2, (0.0, 1.0), sde)
    >>> problem.t_span
    (1.0, 0.0)
    """
    terminal = validate_grid_function("terminal", terminal, grid)
    begin, end = validate_span(t_span)
    if not begin < end:
        raise ValueError(f"`t_span` must begin before it ends, found ({begin:g}, {end:g}); the problem reverses it")
    process = sample_process(sde, grid)
    seconds = tuple(derivative(grid, axis, 2, 4 if order == 3 else 2) for axis in range(grid.ndim))
    right_hand_side = BackwardKolmogorovRHS(
        process, Upwind(grid, order), seconds, _build_free_slopes(grid), potential, source, check_steps
    )
    return ODE(right_hand_side, terminal, (end, begin), sde.args)
