"""div(k grad u) of arrays: one sweep over the rows of the grid, with rows of ghost values beyond its sides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument, inlined
from stepnet.engines.numba_engine.stencils.operator_kernels import cut_range
from stepnet.operators.coefficient_operators import VariableDiffusion
from stepnet.operators.extension import evaluate_value


@inlined
def write_fluxes(out, u, k, factor):
    """out = factor ((k + k_right) (u_right - u) - (k_left + k) (u - u_left)) inside a row."""
    for j in range(1, len(u) - 1):
        upper = (k[j] + k[j + 1]) * (u[j + 1] - u[j])
        lower = (k[j - 1] + k[j]) * (u[j] - u[j - 1])
        out[j] = factor * (upper - lower)


@inlined
def add_fluxes(out, u, k, u_low, k_low, u_high, k_high, factor):
    """out += factor ((k + k_high) (u_high - u) - (k_low + k) (u - u_low)) for rows and those below and above."""
    for j in range(len(u)):
        upper = (k[j] + k_high[j]) * (u_high[j] - u[j])
        lower = (k_low[j] + k[j]) * (u[j] - u_low[j])
        out[j] += factor * (upper - lower)


@inlined
def fill_ghosts(u, k, ghosts, side, weights, k_weights, values, value, nearest, next_one, n):
    """Row `side` of the two rows of u and of k in `ghosts`, continued from the nearest two rows of the grid."""
    at = side * n
    for j in range(n):
        ghosts[0, at + j] = weights[0] * u[nearest + j] + weights[1] * u[next_one + j] + values[value + j]
        ghosts[1, at + j] = k_weights[0] * k[nearest + j] + k_weights[1] * k[next_one + j]


@inlined
def add_row_axis(
    out, u, k, ghosts, place, count, stride, at, n, factor, weights, k_weights, values, value, is_periodic
):
    """The fluxes along an axis of rows, of which `at` is the row `place` of `count`."""
    own, own_k, target = u[at : at + n], k[at : at + n], out[at : at + n]
    if 0 < place < count - 1:
        low, high = at - stride, at + stride
        add_fluxes(
            target, own, own_k, u[low : low + n], k[low : low + n], u[high : high + n], k[high : high + n], factor
        )
        return
    length = (count - 1) * stride
    for side in range(2):
        inner = stride if side == 0 else -stride
        is_end = place == (0 if side == 0 else count - 1)
        source = at + (length if side == 0 else -length) if is_end and is_periodic else at - inner
        if is_end and not is_periodic:
            fill_ghosts(u, k, ghosts, side, weights[side], k_weights[side], values, value[side], at, at + inner, n)
        else:
            for j in range(n):
                ghosts[0, side * n + j] = u[source + j]
                ghosts[1, side * n + j] = k[source + j]
    add_fluxes(target, own, own_k, ghosts[0, :n], ghosts[1, :n], ghosts[0, n:], ghosts[1, n:], factor)


@inlined
def add_end(out, u, k, at, j, inner, length, factor, weights, k_weights, value, is_periodic):
    """The fluxes along a row at one of its ends."""
    here, step = at + j, inner
    if is_periodic:
        ghost, ghost_k = u[here + length], k[here + length]
    else:
        ghost = weights[0] * u[here] + weights[1] * u[here + step] + value
        ghost_k = k_weights[0] * k[here] + k_weights[1] * k[here + step]
    inside = (k[here] + k[here + step]) * (u[here + step] - u[here])
    outside = (ghost_k + k[here]) * (u[here] - ghost)
    out[here] = factor * (inside - outside)


@Kernel
def diffuse_rows(u, k, out, shape, factors, weights, k_weights, values, places, periodic, ghosts, begin, end):
    """Rows begin, ..., end - 1; `places` are those of the boundary values of each axis and side."""
    n_0, n_1, n = shape
    for row in range(begin, end):
        i, j, at = row // n_1, row % n_1, row * n
        write_fluxes(out[at : at + n], u[at : at + n], k[at : at + n], factors[2])
        low, high = values[places[2, 0] + row], values[places[2, 1] + row]
        add_end(out, u, k, at, 0, 1, n - 1, factors[2], weights[2, 0], k_weights[2, 0], low, periodic[2])
        add_end(out, u, k, at, n - 1, -1, 1 - n, factors[2], weights[2, 1], k_weights[2, 1], high, periodic[2])
        if n_0 > 1:
            value = places[0, 0] + j * n, places[0, 1] + j * n
            add_row_axis(
                out, u, k, ghosts, i, n_0, n_1 * n, at, n, factors[0], weights[0], k_weights[0], values, value,
                periodic[0],
            )  # fmt: skip
        if n_1 > 1:
            value = places[1, 0] + i * n, places[1, 1] + i * n
            add_row_axis(
                out, u, k, ghosts, j, n_1, n, at, n, factors[1], weights[1], k_weights[1], values, value, periodic[1]
            )


class DiffusionKernel:
    """A compiled `VariableDiffusion` on contiguous arrays of the shape of its grid."""

    def __init__(self, operator: VariableDiffusion, dtype: np.dtype):
        grid = operator.grid
        self._operator, self._dtype = operator, dtype
        self._axes = {axis: (0, 2)[axis] if grid.ndim == 2 else axis + 3 - grid.ndim for axis in range(grid.ndim)}
        shape = [1, 1, 1]
        self._factors, self._periodic = np.zeros(3, dtype), np.zeros(3, np.bool_)
        self._weights, self._k_weights = np.zeros((3, 2, 2), dtype), np.zeros((3, 2, 2), dtype)
        for axis, place in self._axes.items():
            shape[place], self._factors[place] = grid.shape[axis], 0.5 / grid.spacing[axis] ** 2
            self._periodic[place] = grid.boundary[axis] is None
            pairs = (self._weights, operator.extensions), (self._k_weights, operator.coefficient_extensions)
            for table, extensions in pairs:
                for side, rule in enumerate(extensions[axis].rules or ()):
                    table[place, side, : len(rule.weights[0])] = rule.weights[0]
        self._shape = tuple(shape)

    def __call__(self, u: np.ndarray, k: np.ndarray, t: Any, workers: int) -> np.ndarray | None:
        """The result with the boundary values at time t; None if these are of another type than u."""
        found = self._find_values(u, t)
        if found is None:
            return None
        values, places = found
        out, rows = np.empty(u.shape, u.dtype), self._shape[0] * self._shape[1]
        fields = [as_argument(each).reshape(-1) for each in (u, k)]
        tables = self._shape, self._factors, self._weights, self._k_weights, values, places, self._periodic

        def compute(begin: int, end: int) -> None:
            ghosts = np.empty((2, 2 * self._shape[2]), self._dtype)
            diffuse_rows(*fields, out.reshape(-1), *tables, ghosts, begin, end)

        if workers == 1 or rows == 1:
            compute(0, rows)
            return out
        compute(0, 0)  # one thread compiles
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(partial(_spread, compute), cut_range(0, rows, workers)))
        return out

    def _find_values(self, u: np.ndarray, t: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """The contributions of boundary values to ghost values, side after side, and where each side begins."""
        parts = [np.zeros(max(u.size // n for n in u.shape), self._dtype)]
        places, length = np.zeros((3, 2), np.int64), len(parts[0])
        for axis, place in self._axes.items():
            for side, rule in enumerate(self._operator.extensions[axis].rules or ()):
                if rule.boundary.is_homogeneous:
                    continue
                value = evaluate_value(rule.boundary.value, t, u, axis - u.ndim)
                if np.result_type(u, value) != u.dtype:
                    return None
                shape = u.shape[:axis] + u.shape[axis + 1 :]
                parts.append(np.ravel(np.broadcast_to(rule.value_weights[0] * np.asarray(value), shape)))
                places[place, side], length = length, length + parts[-1].size
        return np.concatenate(parts).astype(self._dtype), places


def _spread(compute: Any, rows: tuple[int, int]) -> None:
    compute(*rows)


def build_diffusion_kernel(operator: VariableDiffusion, dtype: np.dtype) -> DiffusionKernel:
    """The kernel of a diffusion operator for arrays of this type."""
    return DiffusionKernel(operator, dtype)
