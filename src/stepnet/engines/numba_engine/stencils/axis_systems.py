"""Linear systems along the axes of a grid: (I - factor A_k) x = b on all lines of axis k, by banded elimination.

A_k is the part of a linear equation along one axis.  The entries that wrap around a periodic axis are no part of the
band B; with them the matrix is B + sum_r e_r v_r', and the formula of Sherman, Morrison and Woodbury gives the rest.
Matrices that vary from line to line are in `line_systems.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, check_once, compiled
from stepnet.engines.numba_engine.stencils.axis_bands import build_axis_matrix
from stepnet.engines.numba_engine.stencils.line_systems import (
    LineSystems,
    build_line_systems,
    factorise_lines,
    find_diagonals,
    solve_varying_lines,
    solve_varying_lines_transposed,
)
from stepnet.operators.linear_form import NEGATIVE, POSITIVE, SQUARE, AxisTerm, DiffusionForm, LinearForm, Rate
from stepnet.problem import ODE

LINES = 32  # that are solved together
SHORT = 128  # points of the shortened axis whose matrix shows all rows
N, OUTER, INNER, LOWER, UPPER, RANK, VARIES = range(7)
SMALLEST = 1e-200  # pivot


@check_once
class AxisSystems(NamedTuple):
    """The matrices A_k, one for each axis that has terms, and workspace for factors.

    A row of `sizes` holds the length of the axis, the numbers of lines around it and between two of its points, the
    diagonals below and above the main one, the number of rows that wrap around, and whether the matrix varies: then it
    is in `varying`, and `RANK` tells whether it wraps around.  Entry (i, j) of A_k is otherwise
    `bands[k, i, j - i + lower]`; the row `rows[k, r]` also has `values[k, r, c]` in the column `columns[k, r, c]`.
    """

    sizes: np.ndarray
    bands: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    factors: np.ndarray
    corrections: np.ndarray
    small: np.ndarray
    lines: np.ndarray
    products: np.ndarray
    varying: LineSystems


class AxisMatrix(NamedTuple):
    """A matrix along an axis: its band, and what wraps around."""

    band: np.ndarray
    lower: int
    wrapped: dict[int, list[tuple[int, float]]]


# ---- building -------------------------------------------------------------------------------------------------------


def list_numbers(problem: ODE) -> np.ndarray:
    """The arguments of an equation as parameters of its rates."""
    return np.concatenate([np.ravel(each).astype(float) for each in problem.args])


def evaluate_rate(rate: Rate, p: np.ndarray) -> float:
    """The value of a rate."""
    value = float(p[rate.argument])
    changed = {SQUARE: value * value, POSITIVE: max(value, 0.0), NEGATIVE: min(value, 0.0)}
    return rate.sign * changed.get(rate.kind, value)


def differentiate_rate(rate: Rate, p: np.ndarray) -> float:
    """The derivative of a rate with respect to its parameter."""
    value = float(p[rate.argument])
    changed = {SQUARE: 2.0 * value, POSITIVE: float(value > 0.0), NEGATIVE: float(value < 0.0)}
    return rate.sign * changed.get(rate.kind, 1.0)


def build_axis_systems(form: LinearForm, rates: dict[Rate, float]) -> AxisSystems:
    """The matrices along all axes of a form, with the numerical values of its rates."""
    ndim = len(form.shape)
    axes = sorted({ndim + term.extension.axis for term in form.terms})
    matrices = [
        _build_matrix([term for term in form.terms if ndim + term.extension.axis == axis], form.shape[axis], rates)
        for axis in axes
    ]
    m, longest = len(axes), max(form.shape)
    width = max(each.band.shape[1] for each in matrices)
    rank = max(1, *(len(each.wrapped) for each in matrices))
    count = max([1, *(len(entries) for each in matrices for entries in each.wrapped.values())])
    sizes, bands = np.zeros((m, 7), np.int64), np.zeros((m, longest, width))
    rows, columns, values = (
        np.zeros((m, rank), np.int64),
        np.zeros((m, rank, count), np.int64),
        np.zeros((m, rank, count)),
    )
    for k, (axis, (band, lower, wrapped)) in enumerate(zip(axes, matrices, strict=True)):
        n, inner = form.shape[axis], int(np.prod(form.shape[axis + 1 :]))
        sizes[k] = n, int(np.prod(form.shape[:axis])), inner, lower, band.shape[1] - 1 - lower, len(wrapped), 0
        bands[k, :n, : band.shape[1]] = band
        for r, (row, entries) in enumerate(wrapped.items()):
            rows[k, r] = row
            for c, (column, value) in enumerate(entries):
                columns[k, r, c], values[k, r, c] = column, value
    return AxisSystems(
        sizes, bands, rows, columns, values, bands.copy(), np.zeros((m, rank, longest)), np.zeros((rank, 2 * rank)),
        np.zeros((longest, LINES)), np.zeros((rank, LINES)), build_line_systems(np.zeros((0, 3, 0))),
    )  # fmt: skip


def build_varying_systems(form: DiffusionForm, p: np.ndarray) -> AxisSystems:
    """The matrices of diffusion whose coefficient varies in space."""
    grid = form.operator.grid
    count = int(np.prod(grid.shape))
    coefficient = p[form.argument : form.argument + count].reshape(grid.shape)
    sizes = np.zeros((grid.ndim, 7), np.int64)
    for k, n in enumerate(grid.shape):
        is_ring = grid.boundary[k] is None and n > 2
        sizes[k] = n, int(np.prod(grid.shape[:k])), int(np.prod(grid.shape[k + 1 :])), 1, 1, is_ring, 1
    bands, indices = np.zeros((grid.ndim, 0, 0)), np.zeros((grid.ndim, 0), np.int64)
    return AxisSystems(
        sizes, bands, indices, indices[..., None], bands, bands, bands, np.zeros((0, 0)), np.zeros((0, LINES)),
        np.zeros((0, LINES)), build_line_systems(find_diagonals(form.operator, coefficient)),
    )  # fmt: skip


def build_systems(form: LinearForm | DiffusionForm, p: np.ndarray) -> AxisSystems:
    """The matrices along all axes for the arguments of an equation."""
    if isinstance(form, DiffusionForm):
        return build_varying_systems(form, p)
    return build_axis_systems(form, {term.rate: evaluate_rate(term.rate, p) for term in form.terms})


def _build_matrix(terms: list[AxisTerm], n: int, rates: dict[Rate, float]) -> AxisMatrix:
    """Read off the matrix of a shorter axis, on which closures and wrap-around look the same."""
    reach = max(max(*map(abs, term.offsets), term.extension.below, term.extension.above) for term in terms)
    m = min(n, SHORT + 2 * reach)
    matrix: Any = sum(rates[term.rate] * build_axis_matrix(term, m) for term in terms)
    half, n_high = m // 2, m - m // 2
    inside: list[tuple[int, int, float]] = []
    wrapped: dict[int, list[tuple[int, float]]] = {}
    for i, j in np.argwhere(matrix).tolist():
        if abs(i - j) > half:
            row, column = (i, n - m + j) if i < half else (n - m + i, j)
            wrapped.setdefault(row, []).append((column, float(matrix[i, j])))
        else:
            inside.append((i, j, float(matrix[i, j])))
    lower, upper = max([0, *(i - j for i, j, _ in inside)]), max([0, *(j - i for i, j, _ in inside)])
    short = np.zeros((m, lower + upper + 1))
    for i, j, value in inside:
        short[i, j - i + lower] = value
    band = np.tile(short[half], (n, 1))
    band[:half], band[n - n_high :] = short[:half], short[half:]
    return AxisMatrix(band, lower, wrapped)


# ---- kernels --------------------------------------------------------------------------------------------------------


@compiled
def factorise_axes(systems, factor):
    """Factorise I - factor A_k for all axes; False if a pivot vanishes."""
    for k in range(systems.sizes.shape[0]):
        n, lower, upper = systems.sizes[k, N], systems.sizes[k, LOWER], systems.sizes[k, UPPER]
        if systems.sizes[k, VARIES] > 0:
            outer, inner, is_ring = systems.sizes[k, OUTER], systems.sizes[k, INNER], systems.sizes[k, RANK] > 0
            if not factorise_lines(systems.varying, k, n, outer, inner, factor, is_ring):
                return False
            continue
        F, A = systems.factors[k], systems.bands[k]
        for i in range(n):
            for c in range(lower + upper + 1):
                F[i, c] = -factor * A[i, c]
            F[i, lower] += 1.0
        for i in range(n):
            pivot = F[i, lower]
            if not (abs(pivot) > SMALLEST and np.isfinite(pivot)):
                return False
            inverse = 1.0 / pivot
            for d in range(1, min(lower, n - 1 - i) + 1):
                share = F[i + d, lower - d] * inverse
                F[i + d, lower - d] = share
                for j in range(1, min(upper, n - 1 - i) + 1):
                    F[i + d, lower - d + j] -= share * F[i, lower + j]
            F[i, lower] = inverse
        if systems.sizes[k, RANK] > 0 and not correct_wrapped(systems, k, factor):
            return False
    return True


@compiled
def correct_wrapped(systems, k, factor):
    """The vectors g_r with x = y - sum_r g_r (v_r . y) for y = B^-1 b."""
    n, rank = systems.sizes[k, N], systems.sizes[k, RANK]
    G, K = systems.corrections[k], systems.small
    for r in range(rank):
        for i in range(n):
            systems.lines[i, 0] = 0.0
        systems.lines[systems.rows[k, r], 0] = 1.0
        eliminate(systems, k, 1)
        for i in range(n):
            G[r, i] = systems.lines[i, 0]
    for r in range(rank):
        for s in range(rank):
            total = 1.0 if r == s else 0.0
            for c in range(systems.columns.shape[2]):
                total -= factor * systems.values[k, r, c] * G[s, systems.columns[k, r, c]]
            K[r, s] = total
            K[r, rank + s] = 1.0 if r == s else 0.0
    for r in range(rank):  # the inverse of K by Gauss and Jordan
        best = r
        for s in range(r + 1, rank):
            if abs(K[s, r]) > abs(K[best, r]):
                best = s
        pivot = K[best, r]
        if not (abs(pivot) > SMALLEST and np.isfinite(pivot)):
            return False
        for s in range(2 * rank):
            K[r, s], K[best, s] = K[best, s], K[r, s]
        for s in range(2 * rank):
            K[r, s] /= pivot
        for q in range(rank):
            if q != r:
                share = K[q, r]
                for s in range(2 * rank):
                    K[q, s] -= share * K[r, s]
    for i in range(n):
        for r in range(rank):
            systems.products[r, 0] = G[r, i]
        for r in range(rank):
            total = 0.0
            for s in range(rank):
                total += systems.products[s, 0] * K[s, rank + r]
            G[r, i] = total
    return True


@compiled
def eliminate(systems, k, count):
    """Replace the first `count` columns of `lines` by B^-1 of them."""
    n, lower, upper, F, x = (
        systems.sizes[k, N], systems.sizes[k, LOWER], systems.sizes[k, UPPER], systems.factors[k], systems.lines,
    )  # fmt: skip
    for i in range(1, n):
        for d in range(1, min(lower, i) + 1):
            share, here, there = F[i, lower - d], x[i], x[i - d]
            for w in range(count):
                here[w] -= share * there[w]
    for i in range(n - 1, -1, -1):
        here = x[i]
        for d in range(1, min(upper, n - 1 - i) + 1):
            share, there = F[i, lower + d], x[i + d]
            for w in range(count):
                here[w] -= share * there[w]
        inverse = F[i, lower]
        for w in range(count):
            here[w] *= inverse


@compiled
def eliminate_transposed(systems, k, count):
    """Replace the first `count` columns of `lines` by B'^-1 of them."""
    n, lower, upper, F, x = (
        systems.sizes[k, N], systems.sizes[k, LOWER], systems.sizes[k, UPPER], systems.factors[k], systems.lines,
    )  # fmt: skip
    for i in range(n):
        here = x[i]
        for d in range(1, min(upper, i) + 1):
            share, there = F[i - d, lower + d], x[i - d]
            for w in range(count):
                here[w] -= share * there[w]
        inverse = F[i, lower]
        for w in range(count):
            here[w] *= inverse
    for i in range(n - 2, -1, -1):
        here = x[i]
        for d in range(1, min(lower, n - 1 - i) + 1):
            share, there = F[i + d, lower - d], x[i + d]
            for w in range(count):
                here[w] -= share * there[w]


@compiled
def solve_lines(systems, k, factor, count):
    """Replace the first `count` columns of `lines` by (I - factor A_k)^-1 of them."""
    n, rank, x, dots = systems.sizes[k, N], systems.sizes[k, RANK], systems.lines, systems.products
    eliminate(systems, k, count)
    for r in range(rank):
        for w in range(count):
            total = 0.0
            for c in range(systems.columns.shape[2]):
                total -= factor * systems.values[k, r, c] * x[systems.columns[k, r, c], w]
            dots[r, w] = total
    for r in range(rank):
        dot, G = dots[r], systems.corrections[k, r]
        for i in range(n):
            share, here = G[i], x[i]
            for w in range(count):
                here[w] -= share * dot[w]


@compiled
def solve_lines_transposed(systems, k, factor, count):
    """The same with the transposed matrix."""
    n, rank, x, dots = systems.sizes[k, N], systems.sizes[k, RANK], systems.lines, systems.products
    for r in range(rank):
        dot, G = dots[r], systems.corrections[k, r]
        for w in range(count):
            dot[w] = 0.0
        for i in range(n):
            share, here = G[i], x[i]
            for w in range(count):
                dot[w] += share * here[w]
    for r in range(rank):
        for w in range(count):
            for c in range(systems.columns.shape[2]):
                x[systems.columns[k, r, c], w] += factor * systems.values[k, r, c] * dots[r, w]
    eliminate_transposed(systems, k, count)


@compiled
def solve_axis(systems, k, factor, is_transposed, b, x):
    """x = (I - factor A_k)^-1 b on all lines of an axis of flat fields, which may be the same array."""
    n, outer, inner = systems.sizes[k, N], systems.sizes[k, OUTER], systems.sizes[k, INNER]
    if systems.sizes[k, VARIES] > 0:
        is_ring = systems.sizes[k, RANK] > 0
        if is_transposed:
            solve_varying_lines_transposed(systems.varying, k, n, outer, inner, is_ring, b, x)
        else:
            solve_varying_lines(systems.varying, k, n, outer, inner, is_ring, b, x)
        return
    count = outer * inner
    for first in range(0, count, LINES):
        block = min(LINES, count - first)
        for w in range(block):
            line = first + w
            start = line // inner * n * inner + line % inner
            for i in range(n):
                systems.lines[i, w] = b[start + i * inner]
        if is_transposed:
            solve_lines_transposed(systems, k, factor, block)
        else:
            solve_lines(systems, k, factor, block)
        for w in range(block):
            line = first + w
            start = line // inner * n * inner + line % inner
            for i in range(n):
                x[start + i * inner] = systems.lines[i, w]


@Kernel
def factorise_systems(systems, factor):
    """`factorise_axes` for callers in Python: 1 if no pivot vanishes."""
    return 1 if factorise_axes(systems, factor) else 0


@Kernel
def solve_system(systems, k, factor, is_transposed, b, x):
    """`solve_axis` for callers in Python."""
    solve_axis(systems, k, factor, is_transposed, b, x)
    return 0


@Kernel
def weigh_axis(systems, k, w, x, total):
    """total[0] = w . A_k x for flat fields."""
    n, outer, inner = systems.sizes[k, N], systems.sizes[k, OUTER], systems.sizes[k, INNER]
    lower, upper, rank = systems.sizes[k, LOWER], systems.sizes[k, UPPER], systems.sizes[k, RANK]
    A, found = systems.bands[k], 0.0
    for o in range(outer):
        for i in range(n):
            here = (o * n + i) * inner
            for j in range(max(0, i - lower), min(n, i + upper + 1)):
                share, there, part = A[i, j - i + lower], (o * n + j) * inner, 0.0
                for a in range(inner):
                    part += w[here + a] * x[there + a]
                found += share * part
        for r in range(rank):
            here = (o * n + systems.rows[k, r]) * inner
            for c in range(systems.columns.shape[2]):
                there = (o * n + systems.columns[k, r, c]) * inner
                for a in range(inner):
                    found += systems.values[k, r, c] * w[here + a] * x[there + a]
    total[0] = found
    return 0
