"""Tridiagonal systems along an axis of a grid with entries of their own on every line, by elimination.

(I - factor A) x = b for diffusion with a coefficient that varies in space.  On a periodic axis both corners of the
matrix are filled; it is T + u v' with a tridiagonal T, and the formula of Sherman and Morrison gives the rest:
M = T (I + q v') with T q = u.  Loops run over the lines inside, which are neighbours in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import check_once, compiled
from stepnet.operators.coefficient_operators import VariableDiffusion
from stepnet.operators.extension import extend, extend_transposed

BELOW, MAIN, ABOVE = range(3)
SMALLEST = 1e-200  # pivot


@check_once
class LineSystems(NamedTuple):
    """The matrices A_k as their diagonals, (axes, 3, points), and workspace for factors; all empty if none varies.

    Row i of a line has `diagonals[k, :, i]` in the columns i - 1, i and i + 1, around the ends on a periodic axis.
    Factors are the multiplier, the inverse of the pivot and the entry above; `corrections` holds q, `scales` a number
    for each line, `sums` one for each line inside.
    """

    diagonals: np.ndarray
    factors: np.ndarray
    corrections: np.ndarray
    scales: np.ndarray
    sums: np.ndarray


def build_line_systems(diagonals: np.ndarray) -> LineSystems:
    """The systems with these diagonals."""
    m, _, size = diagonals.shape
    return LineSystems(diagonals, np.empty_like(diagonals), np.empty((m, size)), np.empty((m, size)), np.empty(size))


def find_diagonals(operator: VariableDiffusion, coefficient: np.ndarray) -> np.ndarray:
    """The diagonals of div(k grad u) along each axis, (axes, 3, points)."""
    grid = operator.grid
    found = np.zeros((grid.ndim, 3, *grid.shape))
    for axis, n in enumerate(grid.shape):
        extended = np.moveaxis(extend(coefficient, operator.coefficient_extensions[axis]), axis, 0)
        faces = 0.5 * (extended[1:] + extended[:-1]) / grid.spacing[axis] ** 2
        below, main, above = np.moveaxis(found[axis], axis + 1, 1)
        below[:], main[:], above[:] = faces[:-1], -faces[1:] - faces[:-1], faces[1:]
        rules = operator.extensions[axis].rules
        if rules is not None:
            _close(main, above, below, faces[0], rules[0].weights[0], 0)
            _close(main, below, above, faces[-1], rules[1].weights[0], -1)
        elif n == 2:  # both neighbours are the same point
            above[0] += below[0]
            below[1] += above[1]
            below[0], above[1] = 0.0, 0.0
        elif n == 1:
            found[axis] = 0.0
    return found.reshape(grid.ndim, 3, -1)


def _close(main, inward, outward, face: np.ndarray, weights: tuple[float, ...], end: int) -> None:
    """Express the ghost value at one end by the points beside it."""
    outward[end] = 0.0
    main[end] += face * weights[0]
    if len(weights) > 1:
        inward[end] += face * weights[1]


def pull_back_coefficient(operator: VariableDiffusion, axis: int, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of w . A x with respect to the coefficient, for the part A of the operator along one axis."""
    extension, at_faces = operator.extensions[axis], operator.coefficient_extensions[axis]
    v, w = np.moveaxis(x, axis, 0), np.moveaxis(w, axis, 0)
    if extension.rules is None:
        v = np.concatenate((v[-1:], v, v[:1]))
    else:
        lower, upper = (rule.weights[0] for rule in extension.rules)
        ghosts = sum(c * v[i] for i, c in enumerate(lower)), sum(c * v[-1 - i] for i, c in enumerate(upper))
        v = np.concatenate((ghosts[0][None], v, ghosts[1][None]))
    zero = np.zeros_like(w[:1])
    bars = (np.concatenate((zero, w)) - np.concatenate((w, zero))) * (v[1:] - v[:-1])
    bars *= 0.5 / operator.grid.spacing[axis] ** 2
    spread = np.concatenate((bars, zero)) + np.concatenate((zero, bars))
    return extend_transposed(np.moveaxis(spread, 0, axis), at_faces)


# ---- kernels --------------------------------------------------------------------------------------------------------


@compiled
def factorise_lines(lines, k, n, outer, inner, factor, is_ring):
    """Factorise I - factor A_k on all lines; False if a pivot vanishes."""
    A, F = lines.diagonals[k], lines.factors[k]
    for o in range(outer):
        first = o * n * inner
        last = first + (n - 1) * inner
        for i in range(n):
            for a in range(inner):
                j = first + i * inner + a
                F[BELOW, j], F[ABOVE, j] = -factor * A[BELOW, j], -factor * A[ABOVE, j]
                pivot = 1.0 - factor * A[MAIN, j]
                if is_ring and i == 0:
                    pivot *= 2.0
                if is_ring and i == n - 1:
                    pivot -= -2.0 * F[BELOW, first + a] * F[ABOVE, last + a] * F[MAIN, first + a]
                if i > 0:
                    F[BELOW, j] *= F[MAIN, j - inner]
                    pivot -= F[BELOW, j] * F[ABOVE, j - inner]
                if not (abs(pivot) > SMALLEST and np.isfinite(pivot)):
                    return False
                F[MAIN, j] = 1.0 / pivot
    return correct_rings(lines, k, n, outer, inner) if is_ring else True


@compiled
def correct_rings(lines, k, n, outer, inner):
    """The vector q of every line, and 1 / (1 + v . q)."""
    F, q = lines.factors[k], lines.corrections[k]
    for o in range(outer):
        first = o * n * inner
        last = first + (n - 1) * inner
        for j in range(first, first + n * inner):
            q[j] = 0.0
        for a in range(inner):
            q[first + a] = -0.5 / F[MAIN, first + a]
            q[last + a] = F[ABOVE, last + a]
    eliminate_lines(lines, k, n, outer, inner, q, q)
    for o in range(outer):
        first = o * n * inner
        last = first + (n - 1) * inner
        for a in range(inner):
            pivot = 1.0 + q[first + a] - 2.0 * F[BELOW, first + a] * F[MAIN, first + a] * q[last + a]
            if not (abs(pivot) > SMALLEST and np.isfinite(pivot)):
                return False
            lines.scales[k, o * inner + a] = 1.0 / pivot
    return True


@compiled
def eliminate_lines(lines, k, n, outer, inner, b, x):
    """x = T^-1 b on all lines; the two may be the same array."""
    F = lines.factors[k]
    for o in range(outer):
        first = o * n * inner
        for j in range(first, first + inner):
            x[j] = b[j]
        for j in range(first + inner, first + n * inner):
            x[j] = b[j] - F[BELOW, j] * x[j - inner]
        for j in range(first + (n - 1) * inner, first + n * inner):
            x[j] *= F[MAIN, j]
        for i in range(n - 2, -1, -1):
            for j in range(first + i * inner, first + (i + 1) * inner):
                x[j] = (x[j] - F[ABOVE, j] * x[j + inner]) * F[MAIN, j]


@compiled
def eliminate_lines_transposed(lines, k, n, outer, inner, b, x):
    """x = T'^-1 b on all lines; the two may be the same array."""
    F = lines.factors[k]
    for o in range(outer):
        first = o * n * inner
        for j in range(first, first + inner):
            x[j] = b[j] * F[MAIN, j]
        for j in range(first + inner, first + n * inner):
            x[j] = (b[j] - F[ABOVE, j - inner] * x[j - inner]) * F[MAIN, j]
        for i in range(n - 2, -1, -1):
            for j in range(first + i * inner, first + (i + 1) * inner):
                x[j] -= F[BELOW, j + inner] * x[j + inner]


@compiled
def solve_varying_lines(lines, k, n, outer, inner, is_ring, b, x):
    """x = (I - factor A_k)^-1 b on all lines."""
    eliminate_lines(lines, k, n, outer, inner, b, x)
    if not is_ring:
        return
    F, q = lines.factors[k], lines.corrections[k]
    for o in range(outer):
        first = o * n * inner
        last = first + (n - 1) * inner
        for a in range(inner):
            dot = x[first + a] - 2.0 * F[BELOW, first + a] * F[MAIN, first + a] * x[last + a]
            lines.sums[a] = dot * lines.scales[k, o * inner + a]
        for i in range(n):
            for a in range(inner):
                x[first + i * inner + a] -= q[first + i * inner + a] * lines.sums[a]


@compiled
def solve_varying_lines_transposed(lines, k, n, outer, inner, is_ring, b, x):
    """The same with the transposed matrices."""
    for j in range(n * outer * inner):
        x[j] = b[j]
    F, q = lines.factors[k], lines.corrections[k]
    for o in range(outer if is_ring else 0):
        first = o * n * inner
        last = first + (n - 1) * inner
        for a in range(inner):
            lines.sums[a] = 0.0
        for i in range(n):
            for a in range(inner):
                lines.sums[a] += q[first + i * inner + a] * x[first + i * inner + a]
        for a in range(inner):
            dot = lines.sums[a] * lines.scales[k, o * inner + a]
            x[first + a] -= dot
            x[last + a] += 2.0 * F[BELOW, first + a] * F[MAIN, first + a] * dot
    eliminate_lines_transposed(lines, k, n, outer, inner, x, x)
