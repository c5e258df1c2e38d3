"""Implicit operations of step programs in sweeps: solved to the rounding of the state, and transposed exactly.

Jacobians come from pullbacks of unit vectors, so that any right-hand side with a pullback has exact implicit steps.
The gradient of a `LinearSolve` contains second derivatives, which are the pullback of (df/dy) v + tau df/dt.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, call_pullback
from stepnet.engines.numba_engine.integrators.implicit.linear_systems import (
    DENSE,
    factorise,
    solve_factorised,
    solve_transposed,
)
from stepnet.engines.numba_engine.integrators.stepping import pad_length
from stepnet.schemes.step_program import LinearSolve, Solve, StepProgram

MOST = 60  # Newton iterations
ROUNDING, NEAR_ROUNDING = (
    2e-16,
    1e-9,
)  # relative to the state: the target; slow convergence below it is rounding
REFRESH, SLOW = (
    0.1,
    0.5,
)  # rates above which Jacobians are evaluated again, and of changes by rounding
NONE = -1  # no row has its Jacobian factorised


class SolveArrays(NamedTuple):
    """The implicit operations of a program; `index[i]` is the number of operation i among them, or -1.

    Coefficients begin at `first` in `b` and `c`, and at `first_entry` in `A`.  `A_hat` is the matrix of the second half
    of a state, which is A where there is no other.  A `LinearSolve` has gamma and delta in `c` and `b`, its base in
    `base`, and no entry of A.
    """

    index: np.ndarray  # type: ignore[assignment]
    part: np.ndarray
    row: np.ndarray
    base: np.ndarray
    stages: np.ndarray
    first: np.ndarray
    first_entry: np.ndarray
    A: np.ndarray
    A_hat: np.ndarray
    b: np.ndarray
    c: np.ndarray


class SolveWorkspace(NamedTuple):
    """Workspace of implicit operations: `slopes` (operations, stages, n) keep the solved stages for the transpose.

    `factored` holds the row of state whose Jacobian is factorised for linear systems, and its gamma h; `evaluations`
    counts the right-hand sides that were evaluated.  `mass` is the matrix M of M y' = f, without entries for the unit
    matrix.
    """

    slopes: np.ndarray
    rows: np.ndarray
    bars: np.ndarray
    matrix: np.ndarray
    pivots: np.ndarray
    vector: np.ndarray
    f_t: np.ndarray
    p_bar: np.ndarray
    t_bar: np.ndarray
    direction: np.ndarray
    factored: np.ndarray
    evaluations: np.ndarray
    mass: np.ndarray


@lru_cache(maxsize=256)
def build_solve_arrays(program: StepProgram) -> SolveArrays:
    """The implicit operations of a program as arrays."""
    solves = [each for each in program.operations if isinstance(each, (Solve, LinearSolve))]
    linear = [isinstance(each, LinearSolve) for each in solves]
    b = [(each.delta,) if isinstance(each, LinearSolve) else each.b for each in solves]
    c = [(each.gamma,) if isinstance(each, LinearSolve) else each.c for each in solves]
    A = [() if isinstance(each, LinearSolve) else sum(each.A, ()) for each in solves]
    A_hat = [() if isinstance(each, LinearSolve) else sum(each.A_hat or each.A, ()) for each in solves]
    counter = iter(range(len(solves)))
    index = [next(counter) if isinstance(each, (Solve, LinearSolve)) else -1 for each in program.operations]

    def whole(values) -> np.ndarray:
        return np.array(list(values), np.int64)

    def flat(values) -> np.ndarray:
        return np.array([x for some in values for x in some], float)

    return SolveArrays(
        whole(index), whole(each.part for each in solves), whole(each.row for each in solves),
        whole(each.base if isinstance(each, LinearSolve) else NONE for each in solves),
        whole(0 if is_linear else len(each) for each, is_linear in zip(b, linear, strict=True)),
        np.cumsum([0, *map(len, b)]), np.cumsum([0, *map(len, A)]), flat(A), flat(A_hat), flat(b), flat(c),
    )  # fmt: skip


def allocate_solve_workspace(program: StepProgram, n: int, n_parameters: int, mass: np.ndarray) -> SolveWorkspace:
    """Workspace for the implicit operations of a program on a state of n entries; an empty `mass` is the unit one."""
    solves = build_solve_arrays(program)
    s, count = int(solves.stages.max(initial=0)), len(solves.part)
    size = n * max(s, 1) if count else 0
    width = pad_length(n, np.dtype(float))
    return SolveWorkspace(
        np.zeros((count, max(s, 1), width)), np.zeros((2 * max(s, 1), width)), np.zeros((2, width)),
        np.zeros((size, size)), np.zeros(size, np.int64), np.zeros(size), np.zeros(n), np.zeros(n_parameters),
        np.zeros(1), np.zeros((3, pad_length(2 * n + 1, np.dtype(float)))), np.zeros(2), np.zeros(1, np.int64), mass,
    )  # fmt: skip


@inlined
def choose(A, A_hat, entry, k, n):
    """An entry of the matrix for component k of a state."""
    return A[entry] if 2 * k < n else A_hat[entry]


@compiled
def pull_back_units(pullback, p, t, rows, at, scratch, scale, first_row, first_column, n, stages, A, A_hat, offset):
    """Subtract h A_ij J from the blocks (i, j) of the matrix, for one row i of blocks, by n pullbacks at rows[at].

    `scale` is h, `first_row` the first equation of the stage; df/dt goes to `scratch.f_t`.
    """
    bars, matrix = scratch.bars, scratch.matrix
    for r in range(n):
        bars[:] = 0.0
        bars[0, r] = 1.0
        scratch.t_bar[0] = 0.0
        if call_pullback(pullback, t, rows, at, p, bars, 0, scratch.t_bar, 1, scratch.p_bar, n) != 0:
            return False
        scratch.f_t[r] = scratch.t_bar[0]
        for j in range(stages):
            for k in range(n):
                factor = scale * choose(A, A_hat, offset + j, k, n)
                matrix[first_row + r, first_column + j * n + k] = -factor * bars[1, k]
        if scratch.mass.shape[0] == 0:
            matrix[first_row + r, first_row + r] += 1.0
        else:
            for k in range(n):
                matrix[first_row + r, first_row + k] += scratch.mass[r, k]
    return True


@inlined
def place_stages(solves, m, work, scratch, h, n):
    """The stages of an operation from its slopes, in the first of `scratch.rows`."""
    s, offset = solves.stages[m], solves.first_entry[m]
    for i in range(s):
        for k in range(n):
            total = 0.0
            for j in range(s):
                total += choose(solves.A, solves.A_hat, offset + i * s + j, k, n) * scratch.slopes[m, j, k]
            scratch.rows[i, k] = work[solves.row[m], k] + h * total


@compiled
def factorise_stages(pullback, p, solves, m, scratch, t, h, n):
    """Factorise the matrix of Newton's iteration with the Jacobians at the stages; False if that fails."""
    s, offset, first = solves.stages[m], solves.first_entry[m], solves.first[m]
    scratch.factored[0] = NONE
    for i in range(s):
        t_stage = t + solves.c[first + i] * h
        head = (pullback, p, t_stage, scratch.rows, i, scratch, h, i * n, 0, n)
        if not pull_back_units(*head, s, solves.A, solves.A_hat, offset + i * s):
            return False
    size = s * n
    return factorise(scratch.matrix[:size, :size], scratch.pivots, DENSE, DENSE)


@inlined
def find_residuals(field, p, solves, m, scratch, t, h, n):
    """f - M K in the stages of an operation, in `scratch.vector`; False if a right-hand side raised."""
    s, first = solves.stages[m], solves.first[m]
    scratch.evaluations[0] += s
    for i in range(s):
        if call_field(field, t + solves.c[first + i] * h, scratch.rows, i, s + i, p, n) != 0:
            return False
        for k in range(n):
            moved = scratch.slopes[m, i, k]
            if scratch.mass.shape[0] > 0:
                moved = 0.0
                for j in range(n):
                    moved += scratch.mass[k, j] * scratch.slopes[m, i, j]
            scratch.vector[i * n + k] = scratch.rows[s + i, k] - moved
    return True


@inlined
def move_slopes(solves, m, scratch, h, n):
    """Add `scratch.vector` to the slopes; the largest change of a stage, and its largest entry."""
    s, offset = solves.stages[m], solves.first_entry[m]
    change, size = 0.0, 0.0
    for i in range(s):
        for k in range(n):
            total = 0.0
            for j in range(s):
                total += choose(solves.A, solves.A_hat, offset + i * s + j, k, n) * scratch.vector[j * n + k]
            change = max(change, abs(h * total))
            size = max(size, abs(scratch.rows[i, k]))
            scratch.slopes[m, i, k] += scratch.vector[i * n + k]
            if not np.isfinite(scratch.slopes[m, i, k]):
                return np.inf, size
    return change, size


@compiled
def solve_operation(field, pullback, p, solves, m, work, out, scratch, t, h, n):
    """work[out] = sum_i b_i K_i of a `Solve`; False if a right-hand side raised or the iteration failed."""
    s, first, size = solves.stages[m], solves.first[m], solves.stages[m] * n
    scratch.slopes[m, :, :] = 0.0
    before, is_fresh = 0.0, False
    for iteration in range(MOST):
        place_stages(solves, m, work, scratch, h, n)
        if iteration == 0 or not is_fresh:
            if not factorise_stages(pullback, p, solves, m, scratch, t, h, n):
                return False
            is_fresh = True
        if not find_residuals(field, p, solves, m, scratch, t, h, n):
            return False
        solve_factorised(scratch.matrix[:size, :size], scratch.pivots, scratch.vector[:size], DENSE, DENSE)
        change, largest = move_slopes(solves, m, scratch, h, n)
        if not np.isfinite(change):
            return False
        rate = change / before if before > 0.0 else 1.0
        aim = ROUNDING * largest
        is_floor = rate > SLOW and change <= NEAR_ROUNDING * largest and iteration > 1
        if change <= aim or (rate < SLOW and change * rate <= 0.5 * aim) or is_floor:
            for k in range(n):
                total = 0.0
                for i in range(s):
                    total += solves.b[first + i] * scratch.slopes[m, i, k]
                work[out, k] = total
            return True
        before, is_fresh = change, rate < REFRESH
    return False


@compiled
def transpose_operation(pullback, p, solves, m, work, bars, out, scratch, t, h, n, p_bar, times):
    """Add the gradients of a `Solve` to those of its row, of p and of time; False if a pullback raised."""
    s, first, offset, row = solves.stages[m], solves.first[m], solves.first_entry[m], solves.row[m]
    size = s * n
    place_stages(solves, m, work, scratch, h, n)
    if not factorise_stages(pullback, p, solves, m, scratch, t, h, n):
        return False
    for i in range(s):
        for k in range(n):
            scratch.vector[i * n + k] = solves.b[first + i] * bars[out, k]
    solve_transposed(scratch.matrix[:size, :size], scratch.pivots, scratch.vector[:size])
    for i in range(s):
        scratch.bars[1, :] = 0.0
        scratch.t_bar[0] = 0.0
        for k in range(n):
            scratch.bars[0, k] = scratch.vector[i * n + k]
        t_stage = t + solves.c[first + i] * h
        if call_pullback(pullback, t_stage, scratch.rows, i, p, scratch.bars, 0, scratch.t_bar, 1, p_bar, n) != 0:
            return False
        times[0] += scratch.t_bar[0]
        times[1] += solves.c[first + i] * scratch.t_bar[0]
        for k in range(n):
            bars[row, k] += scratch.bars[1, k]
            for j in range(s):
                a = choose(solves.A, solves.A_hat, offset + i * s + j, k, n)
                times[1] += scratch.bars[1, k] * a * scratch.slopes[m, j, k]
    return True


@compiled
def factorise_base(pullback, p, solves, m, work, scratch, t, h, n):
    """Factorise I - gamma h J at the base of a `LinearSolve`, unless that is done."""
    base, factor = solves.base[m], solves.c[solves.first[m]] * h
    if scratch.factored[0] == base and scratch.factored[1] == factor:
        return True
    for k in range(n):
        scratch.rows[0, k] = work[base, k]
    head = (pullback, p, t, scratch.rows, 0, scratch, h, 0, 0, n, 1)
    if not pull_back_units(*head, solves.c, solves.c, solves.first[m]):
        return False
    scratch.factored[0], scratch.factored[1] = base, factor
    return factorise(scratch.matrix[:n, :n], scratch.pivots, DENSE, DENSE)


@compiled
def solve_linear(pullback, p, solves, m, work, out, scratch, t, h, n):
    """work[out] of a `LinearSolve`; False if a pullback raised or the matrix is singular."""
    if not factorise_base(pullback, p, solves, m, work, scratch, t, h, n):
        return False
    time = solves.b[solves.first[m]] * h
    for k in range(n):
        scratch.vector[k] = work[solves.row[m], k] + time * scratch.f_t[k]
    solve_factorised(scratch.matrix[:n, :n], scratch.pivots, scratch.vector[:n], DENSE, DENSE)
    for k in range(n):
        work[out, k] = scratch.vector[k]
    return True


@compiled
def transpose_linear(pullback, second, p, solves, m, work, bars, out, scratch, t, h, n, p_bar, times):
    """Add the gradients of a `LinearSolve`; `second` is the pullback of (df/dy) v + tau df/dt for (y, v, tau)."""
    if not factorise_base(pullback, p, solves, m, work, scratch, t, h, n):
        return False
    base, row, direction = solves.base[m], solves.row[m], scratch.direction
    gamma, delta = solves.c[solves.first[m]], solves.b[solves.first[m]]
    for k in range(n):
        scratch.vector[k] = bars[out, k]
    solve_transposed(scratch.matrix[:n, :n], scratch.pivots, scratch.vector[:n])
    direction[1:, :] = 0.0
    for k in range(n):
        bars[row, k] += scratch.vector[k]
        direction[0, k], direction[0, n + k] = work[base, k], gamma * h * work[out, k]
        direction[1, k] = scratch.vector[k]
    direction[0, 2 * n] = delta * h
    scratch.t_bar[0] = 0.0
    if call_pullback(second, t, direction, 0, p, direction, 1, scratch.t_bar, 2, p_bar, 2 * n + 1) != 0:
        return False
    times[0] += scratch.t_bar[0]
    times[1] += delta * direction[2, 2 * n]
    for k in range(n):
        bars[base, k] += direction[2, k]
        times[1] += gamma * direction[2, n + k] * work[out, k]
    return True


@inlined
def execute_implicit(field, pullback, p, solves, m, work, out, scratch, t, h, n):
    """Row `out` of a program; False if it fails."""
    if solves.base[m] >= 0:
        return solve_linear(uintp(pullback), p, solves, m, work, out, scratch, t, h, n)
    return solve_operation(uintp(field), uintp(pullback), p, solves, m, work, out, scratch, t, h, n)


@inlined
def transpose_implicit(pullback, second, p, solves, m, work, bars, out, scratch, t, h, n, p_bar, times):
    """Add the gradients of an implicit operation; False if it fails."""
    head = (solves, m, work, bars, out, scratch, t, h, n, p_bar, times)
    if solves.base[m] >= 0:
        return transpose_linear(uintp(pullback), uintp(second), p, *head)
    return transpose_operation(uintp(pullback), p, *head)
