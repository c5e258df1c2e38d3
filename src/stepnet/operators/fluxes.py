"""Numerical fluxes: the flux through a face from the states on its two sides.

A side is a tuple (u, flux, slowest, fastest): the state, its flux, and its lowest and highest wave speeds.
"""

from __future__ import annotations

from typing import Any

from stepnet.operators.array_functions import ArrayFunctions

Side = tuple[Any, Any, Any, Any]


def upwind_flux(left: Side, right: Side, functions: ArrayFunctions) -> Any:
    """The flux of the side that the mean speed comes from (Roe's flux of a scalar law, without entropy fix)."""
    return functions.where(left[3] + right[3] > 0.0, left[1], right[1])


def rusanov_flux(left: Side, right: Side, functions: ArrayFunctions) -> Any:
    """Mean flux minus the jump times half the largest speed of both sides (local Lax-Friedrichs; Rusanov 1961)."""
    speed = functions.maximum(find_largest_speed(left[2:], functions), find_largest_speed(right[2:], functions))
    return 0.5 * (left[1] + right[1]) - 0.5 * speed * (right[0] - left[0])


def hll_flux(left: Side, right: Side, functions: ArrayFunctions) -> Any:
    """Harten, Lax & van Leer (1983), SIAM Review 25:35, with the speeds of both sides as bounds (Davis)."""
    low = functions.minimum(functions.minimum(left[2], right[2]), 0.0)
    high = functions.maximum(functions.maximum(left[3], right[3]), 0.0)
    spread = high - low
    is_moving = spread > 0.0
    mixed = (high * left[1] - low * right[1] + low * high * (right[0] - left[0])) / functions.where(
        is_moving, spread, 1.0
    )
    return functions.where(is_moving, mixed, 0.5 * (left[1] + right[1]))


def find_largest_speed(speeds: tuple[Any, Any], functions: ArrayFunctions) -> Any:
    """The largest absolute value of the lowest and the highest wave speed."""
    return functions.maximum(functions.maximum(speeds[1], -speeds[1]), -speeds[0])


NUMERICAL_FLUXES = {"upwind": upwind_flux, "rusanov": rusanov_flux, "hll": hll_flux}
