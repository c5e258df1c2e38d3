"""Exponential Runge-Kutta schemes with equal steps: their step program, executed row by row.

Save times inside a step are reached by the cubic Hermite polynomial between its ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numba import uintp

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.adjoint.step_sweeps import LINEAR_MAP, build_program_arrays, scale
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import accumulate, call_field, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.explicit_rk import evaluate_stage_slopes
from stepnet.engines.numba_engine.integrators.multistep import interpolate_hermite
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, FULL, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.rhs.linear_maps import build_linear_maps
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field, build_part_field
from stepnet.engines.numba_engine.runs.job import Job, allocate_work, create_run_state, find_save_times
from stepnet.problem import Linear, Problem
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.step_program import build_scheme_program

# Rows of `work`: the state, the interpolated state, the slopes at both ends of a step, the new state, then the program.
Y, BETWEEN, BEFORE, AFTER, NEW, PROGRAM = range(6)


@inlined
def execute_program(field, p, tape, maps, maps_p, weights, work, t, h, run):
    """The rows of a step from the state, in the rows of `work` from PROGRAM on; False if a function raised."""
    rows = work[PROGRAM:]
    zero = rows.shape[0] - 1
    for i in range(tape.part.shape[0]):
        out, row = 1 + i, tape.row[i]
        if tape.code[i] == LINEAR_MAP:
            if call_field(uintp(maps), 3.0 * tape.factor[i], rows, row, out, maps_p, run.n) != 0:
                stepping.note_exception(run, 0, i, t, PROGRAM + row)
                return False
        elif tape.part[i] < 0:
            accumulate(rows, out, zero, weights, tape.term_row, tape.first[i], tape.first[i + 1])
        else:
            if call_field(field, t + tape.c[i] * h, rows, row, out, p, run.n) != 0:
                stepping.note_exception(run, 0, i, t + tape.c[i] * h, PROGRAM + row)
                return False
            run.evaluations += 1
    copy_row(work, PROGRAM + tape.outputs[0], NEW)
    return True


@inlined
def find_slope(whole, whole_p, t, work, row, slope, run):
    """The slope of the whole equation; False if a part raised."""
    if call_field(whole, t, work, row, slope, whole_p, run.n) != 0:
        stepping.note_exception(run, 0, 0, t, row)
        return False
    run.evaluations += 1
    return True


@Kernel
def run_program(field, p, whole, whole_p, tape, maps, maps_p, weights, work, run_, save_at, out_t, out_y):
    """Equal steps of a step program."""
    run = run_[0]
    no_grid = save_at[:0]
    scale(tape, weights, weights[:0], run.h)
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, no_grid)
        copy_row(work, Y, PROGRAM)
        if not execute_program(field, p, tape, maps, maps_p, weights, work, t, h, run):
            return FIELD_RAISED
        if not is_finite_row(work, NEW):
            return NOT_FINITE
        is_known = False
        while stepping.is_inside(run, save_at, t_new):
            if not is_known:
                if not find_slope(whole, whole_p, t, work, Y, BEFORE, run):
                    return FIELD_RAISED
                if not find_slope(whole, whole_p, t_new, work, NEW, AFTER, run):
                    return FIELD_RAISED
                is_known = True
            theta = (save_at[run.next_save] - t) / h
            interpolate_hermite(work, Y, BEFORE, NEW, AFTER, BETWEEN, theta, h, run.reals)
            if not is_finite_row(work, BETWEEN):
                return NOT_FINITE
            stepping.save_wanted(work, BETWEEN, 1, run, save_at, out_t, out_y)
        copy_row(work, NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: ExponentialRK, plan: Plan) -> Job:
    """Prepare a run of a sum of a part and a `Linear` one."""
    initial, program = problem.initial, build_scheme_program(scheme, 2, True, False).step
    field, whole = build_part_field(problem, 0), build_full_field(problem)
    tape = build_program_arrays(program)
    rows = PROGRAM + program.n_rows + len(program.operations) + 1
    work, run = allocate_work(initial, 1, rows), create_run_state(problem, plan)
    maps = build_linear_maps(cast(Linear, problem.parts[1]), program.linear_maps, run["h"].item(), initial.size, False)
    weights, advance = np.zeros(tape.weight.size), run_program

    def go(out):
        head = (field.address, field.p, whole.address, whole.p, tape, maps.address, maps.p, weights)
        return advance(*head, work, run, find_save_times(plan), out.t, out.y)

    fields = (replace(field, callbacks=(*field.callbacks, *maps.callbacks)), replace(whole, n_calls=1))
    return Job(go, run, work, 1, fields, initial.dtype, evaluate_stage_slopes(whole, scheme.butcher))
