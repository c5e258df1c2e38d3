"""Implicit stages by simplified Newton iteration.

    k_i = f(t + c_i h, y + h sum_j a_ij k_j)

Stages are solved in blocks: one after the other if A is triangular, else all at once.  An iteration solves
(I - h A x J) dk = f - k, x being the Kronecker product, which A = T Lambda T^-1 decouples: a real or complex matrix
I - h lambda J of the size of the state is factorised for each eigenvalue, or for each diagonal entry of a triangular A.
With a mass matrix M y' = f(t, y) the slopes solve M k_i = f(...), and the matrices are M - h lambda J.
Hairer & Wanner (1996), Solving Ordinary Differential Equations II, IV.8 and VI.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.kernels import check_once, compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_entries, call_field, combine, copy_row
from stepnet.engines.numba_engine.derivatives.jacobian_fields import JacobianField, describe_size
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import ZERO, K, Y
from stepnet.engines.numba_engine.integrators.implicit.linear_systems import DENSE, factorise, solve_factorised
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, NOT_SOLVED
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.schemes.tableau import Butcher

SLOPES = K + 2  # rows of `work`: the slopes of the stages, after those at both ends of the step

MOST_IN_ADAPTIVE, MOST_IN_FIXED = 10, 60  # iterations: a shorter step costs less than slow convergence
LOOSEST = 0.01  # of the tolerance: the error of the iteration must not show in the error estimate
SLOWEST = 0.9  # rate of convergence above which an adaptive step is abandoned
REFRESH = 0.2  # rate above which fixed steps evaluate df/dy at the current iterate
FLOOR, NEAR_FLOOR = (
    2e-15,
    1e3,
)  # rounding relative to the state, and the multiple where slow convergence is rounding
SMALL_SYSTEM = 16  # entries up to which df/dy and factors are computed in every step
FAST = 0.1  # rate of convergence below which df/dy is reused in the next step


NO_EXPLICIT = np.zeros((0, 0))


@check_once
class StageTables(NamedTuple):
    """Coefficients of an implicit Runge-Kutta scheme.

    Row m of `blocks` holds the first and the number of stages of a block, and its first and last but one of `shifts`;
    a block without shifts is one explicit stage.  `inner` is A within the blocks, its columns counted from the block.
    `T` (stages, shifts) and `T_inverse` transform a block; the first `n_real` of the shifts are real, and the others
    stand for themselves and their conjugates.  `estimate` are the weights of the stages in the error estimate, `start`
    is that of the slope at the start of the step, and `damping` the index of the shift that damps it, or -1.
    Stages with `time_weights` are linear systems instead (`linear_stages`).  Those with `explicit` belong to a sum of
    parts (`additive_stages`): its rows are the explicit tableau, its weights, and those in the error estimate.
    `second` is the matrix of p if `A` is that of q alone (`partitioned_rk`).
    """

    A: np.ndarray
    inner: np.ndarray
    b: np.ndarray
    c: np.ndarray
    blocks: np.ndarray
    shifts: np.ndarray
    n_real: int
    T: np.ndarray
    T_inverse: np.ndarray
    estimate: np.ndarray
    start: float
    damping: int
    ends_with_slope: int
    time_weights: np.ndarray
    explicit: np.ndarray
    second: np.ndarray = NO_EXPLICIT


@check_once
class NewtonArrays(NamedTuple):
    """df/dy as a C function with the places of its entries, and workspace: factors for every shift, vectors.

    `first_row` is the first of the rows of `work` that hold df/dy: its rows if `lower` < 0, else its diagonals.
    `n_slopes` counts the evaluations of the right-hand side for differences.
    `field` and `field_p` are f of M y' = f, and `is_slope` says whether the run takes the same function for y'.  The
    entries of M are `mass_values` at (`mass_rows`, `mass_columns`), none for M = I.  With `outer` != 0 the C function
    there factorises and solves outside the kernel (`outer_systems`).
    `parts` are the addresses of the explicit and the implicit part of a sum, `parts_p` their parameters.
    """

    address: int
    p: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    lower: int
    upper: int
    first_row: int
    n_slopes: int
    values: np.ndarray
    factors: np.ndarray
    complex_factors: np.ndarray
    pivots: np.ndarray
    vector: np.ndarray
    complex_vector: np.ndarray
    field: int
    field_p: np.ndarray
    is_slope: int
    mass_rows: np.ndarray
    mass_columns: np.ndarray
    mass_values: np.ndarray
    outer: int
    parts: np.ndarray
    parts_p: np.ndarray


class IterationLimits(NamedTuple):
    """Newton's iteration ends at the fraction `kappa` of the tolerance; `is_exact`: at the level of rounding."""

    is_exact: int
    kappa: float


EXACT = IterationLimits(1, 0.1)
NO_PARTS = np.zeros(0, np.int64), np.zeros(0)


# ---- tables ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def build_stage_tables(scheme) -> StageTables:
    """The coefficients of an `ImplicitRK` as kernels read them."""
    table: Butcher = scheme.butcher
    A, s = table.A.copy(), len(table.b)
    if np.triu(A, 1).any():
        first = int(not A[0].any())  # an explicit stage
        shifts, T, T_inverse = _decouple(A[first:, first:])
        T, T_inverse = np.pad(T, ((first, 0), (0, 0))), np.pad(T_inverse, ((0, 0), (first, 0)))
        blocks = [(0, 1, 0, 0)] * first + [(first, s - first, 0, len(shifts))]
        inner = np.zeros((s, s))
        inner[first:, : s - first] = A[first:, first:]
    else:
        diagonal = np.diag(A)
        shifts = np.unique(diagonal[diagonal != 0]).astype(complex)
        where = [int(np.flatnonzero(shifts == d)[0]) if d else -1 for d in diagonal]
        blocks = [(i, 1, m, m + 1) if m >= 0 else (i, 1, 0, 0) for i, m in enumerate(where)]
        T = np.ones((s, len(shifts)), complex)
        T_inverse, inner = T.T.copy(), np.zeros((s, s))
        inner[:, 0] = diagonal
    n_real = int(np.count_nonzero(shifts.imag == 0))
    estimate, damping = scheme.estimate, -1
    if scheme.embedded and scheme.damping:
        shifts, T, T_inverse, blocks, n_real, damping = _add_damping(
            scheme.damping, shifts, T, T_inverse, blocks, n_real
        )
    return StageTables(
        A, inner, table.b[None].copy(), table.c.copy(), np.array(blocks, np.int64), shifts, n_real,
        np.ascontiguousarray(T), np.ascontiguousarray(T_inverse), estimate[None, 1:].copy(), float(estimate[0]),
        damping, int(table.c[-1] == 1.0 and np.array_equal(A[-1], table.b)), np.zeros(0), NO_EXPLICIT,
    )  # fmt: skip


def _decouple(A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues (of conjugate pairs one), the columns of T, and the rows of T^-1."""
    values, T = np.linalg.eig(A)
    T_inverse = np.linalg.inv(T)
    is_real = np.abs(values.imag) <= 1e-12 * np.max(np.abs(values))
    values = np.where(is_real, values.real, values)
    order = [*np.flatnonzero(is_real), *np.flatnonzero(~is_real & (values.imag > 0))]
    return values[order].astype(complex), T[:, order].astype(complex), T_inverse[order].astype(complex)


def _add_damping(damping: float, shifts, T, T_inverse, blocks, n_real: int):
    """Add the shift of the error estimate unless a stage has it; it comes first, because real shifts do."""
    known = np.flatnonzero(np.abs(shifts[:n_real] - damping) <= 1e-9 * damping)
    if known.size:
        return shifts, T, T_inverse, blocks, n_real, int(known[0])
    s = T.shape[0]
    moved = [(first, size, start + (stop > start), stop + (stop > start)) for first, size, start, stop in blocks]
    return (
        np.concatenate(([damping], shifts)), np.hstack((np.zeros((s, 1)), T)), np.vstack((np.zeros((1, s)), T_inverse)),
        moved, n_real + 1, 0,
    )  # fmt: skip


class MassEntries(NamedTuple):
    """The entries of a mass matrix; none for the unit matrix."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


UNIT_MASS = MassEntries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class Storage(NamedTuple):
    """How the matrices are stored: diagonals below and above, DENSE for all entries; `rows` of `work` for df/dy."""

    lower: int
    upper: int
    rows: int


OUTSIDE = Storage(DENSE, DENSE, 0)


def find_storage(bandwidth: tuple[int, int], n: int) -> Storage:
    """Banded storage where that is less work than a dense matrix."""
    lower, upper = bandwidth
    if 2 * lower + upper + 1 < n / 2:
        return Storage(lower, upper, lower + upper + 1)
    return Storage(DENSE, DENSE, n)


def allocate_newton(
    jacobian: JacobianField, n: int, n_shifts: int, n_real: int, storage: Storage, first_row: int,
    parts: tuple[np.ndarray, np.ndarray] = NO_PARTS, field: CompiledRHS | None = None, mass: MassEntries = UNIT_MASS,
) -> NewtonArrays:  # fmt: skip
    """The workspace of Newton's iteration for a system of n equations; without factors if they are kept outside."""
    lower, upper, n_rows = storage
    size = n if n_rows else 0
    width = size if lower < 0 else 2 * lower + upper + 1
    values, vector, pivots = np.zeros(len(jacobian.rows) + n), np.zeros(n), np.zeros((n_shifts, size), np.int64)
    try:
        factors, complex_factors = np.zeros((n_real, size, width)), np.zeros((n_shifts - n_real, size, width), complex)
    except (MemoryError, ValueError):  # the latter if the size in bytes overflows an integer
        raise MemoryError(describe_size(n, width, n_real + 2 * (n_shifts - n_real))) from None
    own = (0, np.zeros(0)) if field is None else (field.address, field.p)
    return NewtonArrays(
        jacobian.address, jacobian.p, jacobian.rows, jacobian.columns, lower, upper, first_row, jacobian.n_slopes,
        values, factors, complex_factors, pivots, vector, np.zeros(n, complex), *own, 1, *mass, 0, *parts,
    )  # fmt: skip


# ---- matrices -------------------------------------------------------------------------------------------------------


@compiled
def evaluate_jacobian(newton, work, row, t, run):
    """Store df/dy at a row of `work`; False if it raised."""
    if call_entries(newton.address, t, work, row, newton.values, newton.p, run.n) != 0:
        return False
    rows, columns, first = newton.rows, newton.columns, newton.first_row
    if newton.outer == 0:
        for e in range(rows.shape[0]):
            if newton.lower < 0:
                work[first + rows[e], columns[e]] = newton.values[e]
            else:
                work[first + newton.upper + rows[e] - columns[e], columns[e]] = newton.values[e]
    run.jacobians += 1
    run.evaluations += newton.n_slopes
    run.jacobian_age = 1
    run.h_factorised = 0.0
    return True


@inlined
def fill(M, newton, work, factor):
    """M = mass - factor df/dy."""
    n, first, lower, upper = M.shape[0], newton.first_row, newton.lower, newton.upper
    if lower < 0:
        for i in range(n):
            for j in range(n):
                M[i, j] = -factor * work[first + i, j]
    else:
        for i in range(n):
            for m in range(M.shape[1]):
                j = i - lower + m
                is_inside = 0 <= j < n and m <= lower + upper
                M[i, m] = -factor * work[first + upper + i - j, j] if is_inside else 0.0
    shift = 0 if lower < 0 else lower
    if newton.mass_rows.shape[0] == 0:
        for i in range(n):
            M[i, i if lower < 0 else shift] += 1.0
    for e in range(newton.mass_rows.shape[0]):
        i, j = newton.mass_rows[e], newton.mass_columns[e]
        M[i, j if lower < 0 else j - i + shift] += newton.mass_values[e]


@inlined
def multiply_by_mass(newton, work, row, out, n):
    """Replace the row `out`, another one, by the mass matrix times a row."""
    if newton.mass_rows.shape[0] == 0:
        copy_row(work, row, out)
        return
    for k in range(n):
        work[out, k] = 0.0
    for e in range(newton.mass_rows.shape[0]):
        work[out, newton.mass_rows[e]] += newton.mass_values[e] * work[row, newton.mass_columns[e]]


@compiled
def factorise_all(shifts, n_real, newton, work, h, run):
    """Factorise I - h lambda df/dy for every shift lambda; False if one is singular."""
    run.h_factorised = 0.0
    for m in range(shifts.shape[0]):
        if newton.outer != 0:
            if call_entries(newton.outer, h, work, Y, newton.vector, newton.p, m + 1) != 0:
                return False
        elif m < n_real:
            M = newton.factors[m]
            fill(M, newton, work, h * shifts[m].real)
            if not factorise(M, newton.pivots[m], newton.lower, newton.upper):
                return False
        else:
            C = newton.complex_factors[m - n_real]
            fill(C, newton, work, h * shifts[m])
            if not factorise(C, newton.pivots[m], newton.lower, newton.upper):
                return False
    run.factorisations += 1
    run.h_factorised = h
    return True


@compiled
def solve_real(newton, m, work):
    """Replace `newton.vector` by the solution of the system of the real shift m; NaN if that failed."""
    if newton.outer == 0:
        solve_factorised(newton.factors[m], newton.pivots[m], newton.vector, newton.lower, newton.upper)
    elif call_entries(newton.outer, 0.0, work, Y, newton.vector, newton.p, -(m + 1)) != 0:
        newton.vector[:] = np.nan


@inlined
def solve_row(newton, m, work, row, n):
    """Replace a row by the solution of the system of the real shift m."""
    for k in range(n):
        newton.vector[k] = work[row, k]
    solve_real(newton, m, work)
    for k in range(n):
        work[row, k] = newton.vector[k]


@compiled
def solve_coupled(tables, newton, work, residuals, changes, first, size, m, n):
    """Add the part of shift m to the changes of a block, from its residuals."""
    if m < tables.n_real:
        x = newton.vector
        for k in range(n):
            total = 0.0
            for i in range(size):
                total += tables.T_inverse[m, first + i].real * work[residuals + i, k]
            x[k] = total
        solve_real(newton, m, work)
        for i in range(size):
            weight = tables.T[first + i, m].real
            for k in range(n):
                work[changes + i, k] += weight * x[k]
    else:
        z = newton.complex_vector
        for k in range(n):
            sum_ = 0.0 + 0.0j
            for i in range(size):
                sum_ += tables.T_inverse[m, first + i] * work[residuals + i, k]
            z[k] = sum_
        if newton.outer == 0:
            factors = newton.complex_factors[m - tables.n_real]
            solve_factorised(factors, newton.pivots[m], z, newton.lower, newton.upper)
        elif call_entries(newton.outer, 0.0, work, Y, z, newton.p, -(m + 1)) != 0:
            z[:] = np.nan
        for i in range(size):
            w = tables.T[first + i, m]
            for k in range(n):
                work[changes + i, k] += 2.0 * (w.real * z[k].real - w.imag * z[k].imag)


# ---- Newton's iteration ---------------------------------------------------------------------------------------------


@inlined
def evaluate_residuals(field, p, tables, newton, work, base, first, size, rows, t, h, run):
    """f - M k in the stages of a block; the last stage stays in the row after the changes.  False if f raised.

    Stages are counted from the row `base`, and include earlier blocks if it is the state.
    """
    s = tables.A.shape[0]
    residuals, stage = rows, rows + 2 * s
    for i in range(size):
        if base == Y:
            combine(work, stage, Y, h, tables.A, first + i, SLOPES, first + size)
        else:
            combine(work, stage, base, h, tables.inner, first + i, SLOPES + first, size)
        t_stage = t + (run.t_low + tables.c[first + i] * h)
        if call_field(field, t_stage, work, stage, residuals + i, p, run.n) != 0:
            stepping.note_exception(run, 0, first + i, t_stage, stage)
            return False
        if newton.mass_rows.shape[0] == 0:
            for k in range(run.reals):
                work[residuals + i, k] -= work[SLOPES + first + i, k]
        for e in range(newton.mass_rows.shape[0]):
            slope = work[SLOPES + first + i, newton.mass_columns[e]]
            work[residuals + i, newton.mass_rows[e]] -= newton.mass_values[e] * slope
    run.evaluations += size
    return True


@inlined
def change_slopes(tables, work, first, size, rows, how, h, run):
    """Add the changes to the slopes of a block; the largest change of its stages in units of the tolerance."""
    s = tables.A.shape[0]
    changes, stage, moved = rows + s, rows + 2 * s, rows + 2 * s + 1
    largest = 0.0
    for i in range(size):
        combine(work, moved, ZERO, h, tables.inner, first + i, changes, size)
        distance = step_control.scaled_norm(work, moved, Y, stage, how.atol, how.rtol, how.norm, run)
        if not distance <= largest:  # a NaN is kept
            largest = distance
        for k in range(run.reals):
            work[SLOPES + first + i, k] += work[changes + i, k]
    return largest


@inlined
def choose_limits(work, how, run):
    """As SciPy's Radau, from the smallest tolerance relative to the state: a fraction above what rounding disturbs."""
    size, least = 0.0, np.inf
    for k in range(run.reals):
        size = max(size, abs(work[Y, k]))
        least = min(least, how.atol[k] + how.rtol[k] * abs(work[Y, k]))
    relative = least / size if size > 0.0 else 1.0
    return IterationLimits(0, min(LOOSEST, max(10.0 * step_control.EPS / relative, relative**0.5)))


@compiled
def solve_block(field, p, tables, newton, block, how, limits, work, base, t, h, run):
    """Solve M k = f in the stages of a block: DONE, FIELD_RAISED or NOT_SOLVED; `base` as in `evaluate_residuals`."""
    s = tables.A.shape[0]
    first, size, shift, last_shift = block[0], block[1], block[2], block[3]
    rows = SLOPES + s
    residuals, changes, stage = rows, rows + s, rows + 2 * s
    for i in range(first, first + size):
        copy_row(work, SLOPES + first - 1 if first > 0 else K, SLOPES + i)
    before, refreshed = 0.0, 0
    for iteration in range(MOST_IN_FIXED if limits.is_exact else MOST_IN_ADAPTIVE):
        if not evaluate_residuals(field, p, tables, newton, work, base, first, size, rows, t, h, run):
            return FIELD_RAISED
        work[changes : changes + size] = 0.0
        for m in range(shift, last_shift):
            solve_coupled(tables, newton, work, residuals, changes, first, size, m, run.n)
        distance = change_slopes(tables, work, first, size, rows, how, h, run)
        if not np.isfinite(distance):
            return NOT_SOLVED
        rate = distance / before if iteration > 0 else 0.0
        before = distance
        if iteration > 0:
            run.rate = max(run.rate, rate)
        rest = distance * rate / (1.0 - rate) if rate < 1.0 else np.inf
        if distance == 0.0 or distance <= 1e-2 * limits.kappa or (iteration > 0 and rest <= limits.kappa):
            return DONE
        if not limits.is_exact:
            if rate > SLOWEST:
                return NOT_SOLVED
            continue
        if rate > REFRESH and refreshed > 0 and rate > 0.5 and distance < NEAR_FLOOR:
            return DONE
        if rate > REFRESH:
            refreshed += 1
            t_stage = t + (run.t_low + tables.c[first + size - 1] * h)
            if not evaluate_jacobian(newton, work, stage, t_stage, run):
                return stepping.note_exception(run, 0, first, t_stage, stage)
            if not factorise_all(tables.shifts, tables.n_real, newton, work, h, run):
                return NOT_SOLVED
            run.jacobian_age = 2
    return NOT_SOLVED


@compiled
def solve_stages(field, p, tables, newton, how, limits, work, new, t, h, run):
    """All stages, and the new state in the row `new`: DONE, FIELD_RAISED or NOT_SOLVED.

    `field` gives slopes, and `newton.field` the other side of M y' = f.  The slope at the start of the step and df/dy
    must be known.
    """
    s = tables.A.shape[0]
    stage = SLOPES + 3 * s
    if run.h_factorised != h and not factorise_all(tables.shifts, tables.n_real, newton, work, h, run):
        return NOT_SOLVED
    run.rate = 0.0
    for m in range(tables.blocks.shape[0]):
        block = tables.blocks[m]
        first = block[0]
        if block[3] > block[2]:
            own = uintp(newton.field)
            status = solve_block(own, newton.field_p, tables, newton, block, how, limits, work, Y, t, h, run)
            if status != DONE:
                return status
        elif first == 0:
            copy_row(work, K, SLOPES)
        else:
            combine(work, stage, Y, h, tables.A, first, SLOPES, first)
            t_stage = t + (run.t_low + tables.c[first] * h)
            if call_field(field, t_stage, work, stage, SLOPES + first, p, run.n) != 0:
                return stepping.note_exception(run, 0, first, t_stage, stage)
            run.evaluations += 1
    combine(work, new, Y, h, tables.b, 0, SLOPES, s)
    return DONE


@inlined
def forget_jacobian(run):
    """Decide after a step whether df/dy is reused in the next one."""
    is_kept = run.n > SMALL_SYSTEM and run.rate < FAST
    run.jacobian_age = 2 if is_kept else 0
