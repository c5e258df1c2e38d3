"""Grid functions continued beyond the ends of an axis: ghost values by periodicity or by boundary conditions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepnet.operators.array_functions import NUMPY, ArrayFunctions, insert_axis, require_side_values, take
from stepnet.operators.boundaries import GhostRule, build_free_rule, build_ghost_rule
from stepnet.operators.grid import Grid


class AxisExtension(NamedTuple):
    """`below` and `above` ghost values along an axis (counted from the end); no rules on a periodic axis."""

    axis: int
    below: int
    above: int
    rules: tuple[GhostRule, GhostRule] | None


def build_extension(
    grid: Grid, axis: int, reach: tuple[int, int], order: int = 2, free: tuple[bool, bool] = (False, False)
) -> AxisExtension:
    """The ghost values that stencils of this reach need; refuses a grid that is too small for them.

    On a `free` side (lower, upper) values are extrapolated, regardless of its boundary condition.
    """
    n, sides, from_end = grid.shape[axis], grid.boundary[axis], axis - grid.ndim
    if sides is None:
        rules, least = None, max(1, *reach)
    else:
        lower, upper = (_build_rule(grid, axis, side, reach[side], order, free[side]) for side in (0, 1))
        rules, least = (lower, upper), max(order, *reach)
    if n < least:
        raise ValueError(f"`grid` must have at least {least} points along axis {axis} for this stencil, found {n}")
    return AxisExtension(from_end, *reach, rules)


def _build_rule(grid: Grid, axis: int, side: int, width: int, order: int, is_free: bool) -> GhostRule:
    if is_free:
        return build_free_rule(width, order)
    boundary, name = grid.boundary[axis][side], ("lower", "upper")[side]
    return build_ghost_rule(boundary, name, grid.find_side_position(axis, side), grid.spacing[axis], width, order)


def extend(u: Any, extension: AxisExtension, t: Any = 0.0, functions: ArrayFunctions = NUMPY) -> Any:
    """The grid function with its ghost values along one axis."""
    axis, below, above, rules = extension
    if rules is None:
        n = u.shape[axis]
        parts = [take(u, axis, n - below, None)] * (below > 0) + [u] + [take(u, axis, 0, above)] * (above > 0)
    else:
        lower = [_evaluate_ghost(u, axis, rules[0], k, 1, t) for k in reversed(range(below))]
        upper = [_evaluate_ghost(u, axis, rules[1], k, -1, t) for k in range(above)]
        parts = [*lower, u, *upper]
    return functions.concatenate(parts, axis) if len(parts) > 1 else u


def _evaluate_ghost(u: Any, axis: int, rule: GhostRule, k: int, direction: int, t: Any) -> Any:
    """Ghost value k of one side; `direction` is 1 at the lower side and -1 at the upper side."""
    n = u.shape[axis]
    ghost = None
    for i, weight in enumerate(rule.weights[k]):
        if weight != 0.0 or (ghost is None and i == len(rule.weights[k]) - 1):
            place = i if direction == 1 else n - 1 - i
            term = weight * take(u, axis, place, place + 1)
            ghost = term if ghost is None else ghost + term
    if rule.boundary.is_homogeneous:
        return ghost
    return ghost + rule.value_weights[k] * insert_axis(evaluate_value(rule.boundary.value, t, u, axis), axis)


def evaluate_value(value: Any, t: Any, u: Any, axis: int) -> Any:
    """A boundary value at time t on a side of u; functions get t, or t and all data of a tuple (t, *data)."""
    if not callable(value):
        return value
    found = value(*t) if isinstance(t, tuple) else value(t)
    require_side_values(found, u, axis)
    return found


def find_time(t: Any) -> Any:
    """The time of t or (t, *data)."""
    return t[0] if isinstance(t, tuple) else t


def extend_transposed(v: np.ndarray, extension: AxisExtension) -> np.ndarray:
    """The transpose of the linear part of `extend`: ghost entries are added to what they were computed from."""
    axis, below, above, rules = extension
    v = np.moveaxis(v, axis, 0)
    n = len(v) - below - above
    u = v[below : below + n].copy()
    if rules is None:
        u[n - below :] += v[:below]
        u[:above] += v[below + n :]
    else:
        for k in range(below):
            for i, weight in enumerate(rules[0].weights[k]):
                u[i] += weight * v[below - 1 - k]
        for k in range(above):
            for i, weight in enumerate(rules[1].weights[k]):
                u[n - 1 - i] += weight * v[below + n + k]
    return np.moveaxis(u, 0, axis)


def build_extension_matrix(extension: AxisExtension, n: int) -> np.ndarray:
    """The linear part of `extend` for one axis of length n, written down entry by entry."""
    _, below, above, rules = extension
    matrix = np.zeros((below + n + above, n))
    for row in range(below + n + above):
        i = row - below
        if 0 <= i < n:
            matrix[row, i] = 1.0
        elif rules is None:
            matrix[row, i % n] = 1.0
        elif i < 0:
            weights = rules[0].weights[-i - 1]
            matrix[row, : len(weights)] = weights
        else:
            weights = rules[1].weights[i - n]
            matrix[row, n - len(weights) :] = weights[::-1]
    return matrix
