"""Stabilised Runge-Kutta by three-term recursion.

Y_j = (1 - mu_j - nu_j) y + mu_j Y_{j-1} + nu_j Y_{j-2} + mu~_j h F_{j-1} + gamma~_j h F_0.
"""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.explicit_rk import evaluate_stage_slopes
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, FULL, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field
from stepnet.engines.numba_engine.runs.job import Job, allocate_work, create_run_state, find_grid, find_save_times
from stepnet.problem import Problem
from stepnet.schemes.tableau import StabilisedRK

# Rows of `work`: state, its slope, slope of the last stage, and three stages used in rotation.
Y, F0, SLOPE, STAGE = range(4)


@inlined
def step(field, p, table, c, work, t, h, run):
    """One step from work[Y] with slope work[F0]; the row of the new state, or -1 if the right-hand side raised."""
    s, reals = table.shape[1], run.reals
    copy_row(work, Y, STAGE)
    for k in range(reals):
        work[STAGE + 1, k] = work[Y, k] + table[2, 0] * h * work[F0, k]
    for j in range(1, s):
        before, last, new = STAGE + (j - 1) % 3, STAGE + j % 3, STAGE + (j + 1) % 3
        if call_field(field, t + c[j] * h, work, last, SLOPE, p, run.n) != 0:
            stepping.note_exception(run, 0, j, t + c[j] * h, last)
            return -1
        mu, nu, mu_h, gamma_h = table[0, j], table[1, j], table[2, j] * h, table[3, j] * h
        for k in range(reals):
            kept = (1.0 - mu - nu) * work[Y, k] + mu * work[last, k] + nu * work[before, k]
            work[new, k] = kept + mu_h * work[SLOPE, k] + gamma_h * work[F0, k]
    run.evaluations += s - 1
    return STAGE + s % 3


@Kernel
def run_fixed(field, p, table, c, work, run_, grid, save_at, out_t, out_y):
    """Fixed steps; save times inside a step are reached by auxiliary steps from its beginning."""
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        if call_field(field, t, work, Y, F0, p, run.n) != 0:
            return stepping.note_exception(run, 0, 0, t, Y)
        run.evaluations += 1
        while stepping.is_inside(run, save_at, t_new):
            row = step(field, p, table, c, work, t, save_at[run.next_save] - t, run)
            if row < 0:
                return FIELD_RAISED
            if not is_finite_row(work, row):
                return NOT_FINITE
            stepping.save_wanted(work, row, 1, run, save_at, out_t, out_y)
        row = step(field, p, table, c, work, t, h, run)
        if row < 0:
            return FIELD_RAISED
        if not is_finite_row(work, row):
            return NOT_FINITE
        copy_row(work, row, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: StabilisedRK, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    initial, field = problem.initial, build_full_field(problem)
    work, run = allocate_work(initial, 1, STAGE + 3), create_run_state(problem, plan)
    table = np.array([scheme.mu, scheme.nu, scheme.mu_tilde, scheme.gamma_tilde])
    c = np.array(scheme.butcher.c)
    advance = run_fixed

    def go(out):
        return advance(
            field.address, field.p, table, c, work, run, find_grid(plan), find_save_times(plan), out.t, out.y
        )

    return Job(go, run, work, 1, (field,), initial.dtype, evaluate_stage_slopes(field, scheme.butcher))
