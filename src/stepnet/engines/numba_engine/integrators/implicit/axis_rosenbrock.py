"""Rosenbrock steps on an equation on a grid, with the product of the matrices of all axes: alternating directions.

    y_new = y + h (I - h gamma A_m)^-1 ... (I - h gamma A_1)^-1 f(t + h / 2, y)

Every matrix couples the points of single lines only.  Douglas & Gunn (1964), Numer. Math. 6:428.
"""

from __future__ import annotations

from typing import cast

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.primitives import call_field, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.explicit_rk import evaluate_stage_slopes
from stepnet.engines.numba_engine.integrators.stepping import DONE, FULL, NOT_FINITE, NOT_SOLVED, PAUSED
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field
from stepnet.engines.numba_engine.runs.job import Job, allocate_work, create_run_state, find_grid, find_save_times
from stepnet.engines.numba_engine.stencils.axis_systems import (
    AxisSystems,
    build_systems,
    factorise_axes,
    list_numbers,
    solve_axis,
)
from stepnet.problem import ODE, Problem
from stepnet.schemes.capabilities import needs_axes
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.tableau import butcher

Y, Y_NEW, K, ROWS = range(4)


def find_systems(problem: Problem, scheme: Rosenbrock) -> AxisSystems | None:
    """The matrices along the axes of an equation; None if the scheme takes the whole matrix of this problem."""
    if not needs_axes(scheme, problem):
        return None
    return build_systems(problem.fun.find_axes(*problem.args), list_numbers(cast(ODE, problem)))


@compiled
def take_axis_step(field, p, systems, gamma, work, t, h, run):
    """The state after a step in the row `Y_NEW`."""
    if run.h_factorised != h:
        run.h_factorised = 0.0
        if not factorise_axes(systems, gamma * h):
            return NOT_SOLVED
        run.h_factorised = h
        run.factorisations += 1
    if call_field(field, t + 0.5 * h, work, Y, K, p, run.n) != 0:
        return stepping.note_exception(run, 0, 0, t + 0.5 * h, Y)
    run.evaluations += 1
    for k in range(systems.sizes.shape[0]):
        solve_axis(systems, k, gamma * h, 0, work[K], work[K])
    for i in range(run.reals):
        work[Y_NEW, i] = work[Y, i] + h * work[K, i]
    return DONE if is_finite_row(work, Y_NEW) else NOT_FINITE


@Kernel
def run_axis_steps(field, p, systems, gamma, work, run_, grid, save_at, out_t, out_y):
    """Fixed steps; save times inside a step are reached by auxiliary steps from its beginning."""
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        run.h_tried = h
        while stepping.is_inside(run, save_at, t_new):
            status = take_axis_step(field, p, systems, gamma, work, t, save_at[run.next_save] - t, run)
            if status != DONE:
                return status
            stepping.save_wanted(work, Y_NEW, 1, run, save_at, out_t, out_y)
        status = take_axis_step(field, p, systems, gamma, work, t, h, run)
        if status != DONE:
            return status
        copy_row(work, Y_NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: Rosenbrock, plan: Plan, systems: AxisSystems) -> Job:
    """Prepare a run of an equation whose matrices along axes are known."""
    field, initial = build_full_field(problem), problem.initial
    work, run = allocate_work(initial, 1, ROWS), create_run_state(problem, plan)
    slopes = evaluate_stage_slopes(field, butcher(scheme.arrays.alpha, scheme.arrays.b))

    def advance(out):
        times = find_grid(plan), find_save_times(plan)
        return run_axis_steps(field.address, field.p, systems, scheme.gamma, work, run, *times, out.t, out.y)

    return Job(advance, run, work, 1, (field,), initial.dtype, slopes)
