"""Low-storage Runge-Kutta in 2N form: d <- A_i d + h f(t + c_i h, y);  y <- y + B_i d."""

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
from stepnet.schemes.tableau import LowStorageRK

# Rows of `work`: the state, the register d, a slope, and the state of a step in progress.
Y, D, SLOPE, TRIAL = range(4)


@inlined
def step(field, p, A, B, c, work, t, h, run):
    """One step from work[Y] into work[TRIAL]; False if the right-hand side raised."""
    copy_row(work, Y, TRIAL)
    reals = run.reals
    for i in range(c.shape[0]):
        if call_field(field, t + c[i] * h, work, TRIAL, SLOPE, p, run.n) != 0:
            stepping.note_exception(run, 0, i, t + c[i] * h, TRIAL)
            return False
        for k in range(reals):
            work[D, k] = A[i] * work[D, k] + h * work[SLOPE, k]
            work[TRIAL, k] += B[i] * work[D, k]
    run.evaluations += c.shape[0]
    return True


@Kernel
def run_fixed(field, p, A, B, c, work, run_, grid, save_at, out_t, out_y):
    """Fixed steps; save times inside a step are reached by auxiliary steps from its beginning."""
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        while stepping.is_inside(run, save_at, t_new):
            if not step(field, p, A, B, c, work, t, save_at[run.next_save] - t, run):
                return FIELD_RAISED
            if not is_finite_row(work, TRIAL):
                return NOT_FINITE
            stepping.save_wanted(work, TRIAL, 1, run, save_at, out_t, out_y)
        if not step(field, p, A, B, c, work, t, h, run):
            return FIELD_RAISED
        if not is_finite_row(work, TRIAL):
            return NOT_FINITE
        copy_row(work, TRIAL, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: LowStorageRK, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    initial, field = problem.initial, build_full_field(problem)
    work, run = allocate_work(initial, 1, 4), create_run_state(problem, plan)
    tables = (np.array(scheme.A), np.array(scheme.B), np.array(scheme.butcher.c))
    advance = run_fixed

    def go(out):
        return advance(field.address, field.p, *tables, work, run, find_grid(plan), find_save_times(plan), out.t, out.y)

    return Job(go, run, work, 1, (field,), initial.dtype, evaluate_stage_slopes(field, scheme.butcher))
