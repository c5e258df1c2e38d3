"""Conservation laws u_t + div F(u) = 0 in conservative form, by reconstruction and numerical fluxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepnet import validation
from stepnet.operators.array_functions import NUMPY, ArrayFunctions, require_field, take
from stepnet.operators.extension import AxisExtension, build_extension, extend
from stepnet.operators.fluxes import NUMERICAL_FLUXES, find_largest_speed
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID
from stepnet.operators.reconstruction import LIMITERS, reconstruct_weno5
from stepnet.records import keep, show_fields

REACH = {"constant": 1, "muscl": 2, "weno5": 3}


@validation.check(
    grid=A_GRID,
    flux=validation.function,
    speeds=validation.function,
    reconstruction=validation.one_of(*REACH),
    numerical_flux=validation.one_of(*NUMERICAL_FLUXES, "lax_friedrichs"),
    limiter=validation.one_of(*LIMITERS),
)
@dataclass(frozen=True, eq=False)
class ConservationLaw:
    """-div F(u): the net flow into each cell, so that its sum over a periodic grid is zero up to rounding.

    "constant" and "muscl" reconstruct the state on both sides of a face and use a numerical flux.  "weno5" splits the
    flux by the largest speed near the face, reconstructs both parts, and needs no numerical flux: it is of fifth order
    for values at points in any dimension (Shu 1998).

    Parameters
    ----------
    grid : Grid
        Where it acts, and the boundary conditions; `neumann()` lets waves leave.
    flux : callable
        `flux(u, axis, *args)`: the flux along an axis at each point, of the shape of u.
    speeds : callable
        `speeds(u, axis, *args)`: the lowest and highest wave speeds (of a scalar law twice F'(u)).
    reconstruction : {"constant", "muscl", "weno5"}
        Orders 1, 2 and 5 for smooth solutions.
    numerical_flux : {"upwind", "lax_friedrichs", "rusanov", "hll"}
        How two states give one flux; "lax_friedrichs" has the dissipation of a fixed speed, `largest_speed`.
    limiter : {"minmod", "van_leer", "mc", "superbee"}
        The slopes of "muscl".
    largest_speed : float, optional
        For "lax_friedrichs": a bound of all wave speeds.

    Examples
    --------
    >>> from stepnet.operators import ConservationLaw, Grid
    >>> import numpy as np
    >>> law = ConservationLaw(Grid(4, 0.0, 4.0), lambda u, axis: u * u / 2, lambda u, axis: (u, u), "constant")
    >>> float(law(np.array([0.0, 1.0, 0.0, 0.0])).sum())
    0.0
    """

    grid: Grid
    flux: Callable[..., Any]
    speeds: Callable[..., Any]
    reconstruction: str = "weno5"
    numerical_flux: str = "rusanov"
    limiter: str = "van_leer"
    largest_speed: float | None = None
    extensions: tuple[AxisExtension, ...] = field(init=False, repr=False)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        reach = REACH[self.reconstruction]
        speed = validation.optional(validation.real("[0, inf)"))("largest_speed", self.largest_speed)
        if (speed is None) == (self.numerical_flux == "lax_friedrichs"):
            raise ValueError(
                f"`largest_speed` must be given with 'lax_friedrichs' and no other flux, found {speed} with "
                f"{self.numerical_flux!r}"
            )
        axes = range(self.grid.ndim)
        keep(self, extensions=tuple(build_extension(self.grid, axis, (reach, reach)) for axis in axes))
        keep(self, largest_speed=speed)

    def __call__(self, u: Any, t: Any = 0.0, args: tuple[Any, ...] = (), functions: ArrayFunctions = NUMPY) -> Any:
        """-div F(u) with boundary values at time t; `args` are passed to `flux` and `speeds`."""
        require_field("u", u, self.grid.shape, functions)
        if not isinstance(args, tuple):
            raise TypeError("`args` must be a tuple, found " + type(args).__name__)
        total = None
        for axis, extension in enumerate(self.extensions):
            v, n = extend(u, extension, t, functions), u.shape[extension.axis]
            if self.reconstruction == "weno5":
                through = self._split_flux(v, axis, n, args, functions)
            else:
                through = self._combine_states(v, axis, n, args, functions)
            inflow = take(through, extension.axis, 0, n) - take(through, extension.axis, 1, n + 1)
            part = inflow * (1.0 / self.grid.spacing[axis])
            total = part if total is None else total + part
        return total

    def _combine_states(self, v: Any, axis: int, n: int, args: tuple[Any, ...], functions: ArrayFunctions) -> Any:
        """The numerical flux of the states on both sides of the n + 1 faces."""
        left, right = self._find_states(v, axis - self.grid.ndim, n, functions)
        flux_left, flux_right = self.flux(left, axis, *args), self.flux(right, axis, *args)
        if self.largest_speed is not None:
            return 0.5 * (flux_left + flux_right) - 0.5 * self.largest_speed * (right - left)
        (slow, fast), (slow_right, fast_right) = self.speeds(left, axis, *args), self.speeds(right, axis, *args)
        numerical = NUMERICAL_FLUXES[self.numerical_flux]
        return numerical((left, flux_left, slow, fast), (right, flux_right, slow_right, fast_right), functions)

    def _find_states(self, v: Any, axis: int, n: int, functions: ArrayFunctions) -> tuple[Any, Any]:
        if self.reconstruction == "constant":
            return take(v, axis, 0, n + 1), take(v, axis, 1, n + 2)
        steps = take(v, axis, 1, n + 4) - take(v, axis, 0, n + 3)
        half = 0.5 * LIMITERS[self.limiter](take(steps, axis, 0, n + 2), take(steps, axis, 1, n + 3), functions)
        centre = take(v, axis, 1, n + 3)
        return take(centre + half, axis, 0, n + 1), take(centre - half, axis, 1, n + 2)

    def _split_flux(self, v: Any, axis: int, n: int, args: tuple[Any, ...], functions: ArrayFunctions) -> Any:
        """WENO5 of (F + s u) / 2 from the left and (F - s u) / 2 from the right, s the largest speed of six cells."""
        from_end = axis - self.grid.ndim
        flux = self.flux(v, axis, *args)
        near = find_largest_speed(self.speeds(v, axis, *args), functions) + 0.0 * v  # of the shape of the state
        s = take(near, from_end, 0, n + 1)
        for k in range(1, 6):
            s = functions.maximum(s, take(near, from_end, k, k + n + 1))
        cells = [(take(flux, from_end, k, k + n + 1), take(v, from_end, k, k + n + 1)) for k in range(6)]
        forward = reconstruct_weno5(tuple(0.5 * (f + s * u) for f, u in cells[:5]))
        backward = reconstruct_weno5(tuple(0.5 * (f - s * u) for f, u in cells[:0:-1]))
        return forward + backward
