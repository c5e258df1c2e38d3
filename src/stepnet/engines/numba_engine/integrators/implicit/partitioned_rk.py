"""Partitioned Runge-Kutta schemes: q and p with different matrices, all stages solved together.

    k_i = f(t + c_i h, y + h sum_j (a_ij S + a^_ij S^) k_j)

S keeps the first half of a state (q, p), and S^ the second one.  The two matrices have no common eigenvectors, so that
the matrix of simplified Newton iteration, of the size of all stages, is factorised as a whole.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import uintp

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine, copy_row
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import ZERO, K, Y
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    MOST_IN_FIXED,
    NEAR_FLOOR,
    NO_EXPLICIT,
    REFRESH,
    SLOPES,
    StageTables,
    evaluate_jacobian,
)
from stepnet.engines.numba_engine.integrators.implicit.linear_systems import DENSE, factorise, solve_factorised
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, NOT_SOLVED
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.tableau import butcher


@lru_cache(maxsize=64)
def build_pair_tables(scheme: PartitionedRK) -> StageTables:
    """The coefficients of a pair as kernels read them."""
    b, A, _, A_hat = (array.copy() for array in scheme.tableaux)
    s, none = len(b), np.zeros((0, 0), complex)
    return StageTables(
        A, A.copy(), b[None].copy(), np.array(scheme.c), np.zeros((0, 4), np.int64), np.zeros(0, complex), 0, none,
        none.copy(), np.zeros((1, s)), 0.0, -1, 0, np.zeros(0), NO_EXPLICIT, A_hat,
    )  # fmt: skip


@inlined
def choose(tables, i, j, k, half):
    """a_ij for the first half of a state, a^_ij for the second one."""
    return tables.A[i, j] if k < half else tables.second[i, j]


@inlined
def combine_halves(work, out, base, h, tables, i, first, run):
    """Row `out` = base + h sum_j (a_ij S + a^_ij S^) row_(first + j)."""
    half = run.n // 2
    for k in range(run.n):
        total = 0.0
        for j in range(tables.A.shape[0]):
            total += choose(tables, i, j, k, half) * work[first + j, k]
        work[out, k] = work[base, k] + h * total


@compiled
def factorise_together(tables, newton, work, h, run):
    """Factorise the matrix of all stages with one df/dy; False if it is singular."""
    n, half, s, M = run.n, run.n // 2, tables.A.shape[0], newton.factors[0]
    run.h_factorised = 0.0
    for i in range(s):
        for r in range(n):
            for j in range(s):
                for k in range(n):
                    M[i * n + r, j * n + k] = -h * choose(tables, i, j, k, half) * work[newton.first_row + r, k]
            M[i * n + r, i * n + r] += 1.0
    if not factorise(M, newton.pivots[0], DENSE, DENSE):
        return False
    run.factorisations += 1
    run.h_factorised = h
    return True


@inlined
def evaluate_pair_residuals(tables, newton, work, t, h, run):
    """f - k of all stages in `newton.vector`; False if f raised."""
    s = tables.A.shape[0]
    for i in range(s):
        residual, stage = SLOPES + s + i, SLOPES + 2 * s + i
        combine_halves(work, stage, Y, h, tables, i, SLOPES, run)
        t_stage = t + (run.t_low + tables.c[i] * h)
        if call_field(uintp(newton.field), t_stage, work, stage, residual, newton.field_p, run.n) != 0:
            stepping.note_exception(run, 0, i, t_stage, stage)
            return False
        for k in range(run.n):
            newton.vector[i * run.n + k] = work[residual, k] - work[SLOPES + i, k]
    run.evaluations += s
    return True


@inlined
def change_pair_slopes(tables, newton, how, work, h, run):
    """Add `newton.vector` to the slopes; the largest change of a stage in units of the tolerance."""
    s, largest = tables.A.shape[0], 0.0
    changes, moved = SLOPES + s, SLOPES + 3 * s
    for i in range(s):
        for k in range(run.n):
            work[changes + i, k] = newton.vector[i * run.n + k]
            work[SLOPES + i, k] += newton.vector[i * run.n + k]
    for i in range(s):
        combine_halves(work, moved, ZERO, h, tables, i, changes, run)
        distance = step_control.scaled_norm(work, moved, Y, SLOPES + 2 * s + i, how.atol, how.rtol, how.norm, run)
        if not distance <= largest:  # a NaN is kept
            largest = distance
    return largest


@compiled
def take_pair_stages(tables, newton, how, limits, work, new, t, h, run):
    """All stages, and the new state in the row `new`: DONE, FIELD_RAISED or NOT_SOLVED.

    The slope at the start of the step and df/dy must be known; df/dy is renewed where the iteration is slow.
    """
    s, before = tables.A.shape[0], 0.0
    if run.h_factorised != h and not factorise_together(tables, newton, work, h, run):
        return NOT_SOLVED
    run.rate = 0.0
    for i in range(s):
        copy_row(work, K, SLOPES + i)
    refreshed = 0
    for iteration in range(MOST_IN_FIXED):
        if not evaluate_pair_residuals(tables, newton, work, t, h, run):
            return FIELD_RAISED
        solve_factorised(newton.factors[0], newton.pivots[0], newton.vector, DENSE, DENSE)
        distance = change_pair_slopes(tables, newton, how, work, h, run)
        if not np.isfinite(distance):
            return NOT_SOLVED
        rate = distance / before if iteration > 0 else 0.0
        run.rate, before = max(run.rate, rate), distance
        is_near = rate < 1.0 and distance * rate / (1.0 - rate) <= limits.kappa
        is_rounding = rate > 0.5 and refreshed > 0 and distance < NEAR_FLOOR
        if distance <= 1e-2 * limits.kappa or (iteration > 0 and is_near) or is_rounding:
            combine(work, new, Y, h, tables.b, 0, SLOPES, s)
            return DONE
        if rate > REFRESH:
            refreshed += 1
            stage, t_stage = SLOPES + 3 * s - 1, t + (run.t_low + tables.c[s - 1] * h)
            if not evaluate_jacobian(newton, work, stage, t_stage, run):
                return stepping.note_exception(run, 0, s - 1, t_stage, stage)
            if not factorise_together(tables, newton, work, h, run):
                return NOT_SOLVED
            run.jacobian_age = 2
    return NOT_SOLVED


def prepare(problem: Problem, scheme: PartitionedRK, plan: Plan) -> Job:
    """Prepare a run of a problem for (q, p), with its right-hand sides combined into one."""
    from stepnet.engines.numba_engine.integrators.implicit.implicit_rk import prepare_with_tables

    table = butcher(scheme.tableaux.A, scheme.tableaux.b)
    return prepare_with_tables(problem, scheme, plan, build_pair_tables(scheme), table)
