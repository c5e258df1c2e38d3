"""Explicit Runge-Kutta: k_i = f(t + c_i h, y + h sum_{j<i} a_ij k_j),  y_new = y + h sum b_i k_i."""

from __future__ import annotations

from functools import lru_cache, partial
from types import SimpleNamespace
from typing import cast

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_attempt, call_steps, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.codegen.steps.fused_steps import find_fused_address, write_attempt, write_steps
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import (
    ASIDE,
    ERROR,
    ERROR_2,
    Y_NEW,
    ZERO,
    K,
    SchemeTables,
    Y,
    evaluate_first_slope,
    evaluate_stages,
)
from stepnet.engines.numba_engine.integrators.events import build_event_state
from stepnet.engines.numba_engine.integrators.step_output import (
    OutputBuffers,
    build_output_request,
    complete,
    is_full,
    is_nothing_wanted,
)
from stepnet.engines.numba_engine.integrators.stepping import (
    BROKEN,
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_fields
from stepnet.engines.numba_engine.rhs.stencil_steps import count_spare_rows, find_stencil_steps
from stepnet.engines.numba_engine.runs.job import Job, StageSlopes, allocate_work, create_run_state, find_grid
from stepnet.problem import Problem
from stepnet.schemes.step_program import build_scheme_program
from stepnet.schemes.tableau import Butcher, ExplicitRK

ROWS = SimpleNamespace(Y=Y, Y_NEW=Y_NEW, ERROR=ERROR, K=K)

FIRST_LOOK = np.array([Y, K, Y_NEW, ERROR])  # rows for `choose_first_step`


@inlined
def take_generated_steps(steps, p, tables, work, run, grid, save_at, out):
    """Take as many equal generated steps as possible at once; only one if the result is not finite."""
    count = stepping.count_steps_ahead(run)
    copy_row(work, Y, ASIDE)
    call_steps(steps, run.t0, run.h, run.step, count, work, p)
    run.evaluations += tables.b.shape[1] * count
    if is_finite_row(work, Y):
        run.step += count - 1
        stepping.finish_step(work, Y, 1, stepping.grid_time(run, grid, run.step + 1), run, save_at, out.t, out.y)
        return DONE
    copy_row(work, ASIDE, Y)
    run.stride = 1  # to find the step at which it happened
    return NOT_FINITE if count == 1 else DONE


@Kernel
def run_fixed(field, steps, p, tables, needs, work, run_, grid, out):
    """Fixed steps; `steps` is the address of generated equal steps, or 0."""
    run = run_[0]
    used, is_simple = tables.b.shape[1], is_nothing_wanted(needs)
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out.t) or (not is_simple and is_full(needs, run, out)):
            return FULL
        is_whole = run.is_cut == 0
        if steps != 0 and is_simple and is_whole:
            if take_generated_steps(steps, p, tables, work, run, grid, needs.save_at, out) != DONE:
                return NOT_FINITE
            continue
        t, t_new, h = stepping.find_next_step(run, grid)
        if not evaluate_first_slope(field, p, work, run):
            return FIELD_RAISED
        if not evaluate_stages(field, p, tables.A, tables.c, work, Y, Y_NEW, K, 1, used, t, h, run):
            return FIELD_RAISED
        combine(work, Y_NEW, Y, h, tables.b, 0, K, used)
        if steps != 0 and is_whole:  # the same step as without step output
            copy_row(work, Y, ASIDE)
            call_steps(steps, run.t0, run.h, run.step, 1, work, p)
            copy_row(work, Y, Y_NEW)
            copy_row(work, ASIDE, Y)
        if not is_finite_row(work, Y_NEW):
            return NOT_FINITE
        status = complete(field, p, tables, needs, is_simple, work, used, t_new, h, run, out)
        if status != DONE:
            return status
    return DONE if run.step == run.n_steps else PAUSED


@inlined
def attempt_step(field, attempt, p, tables, work, h, run):
    """Stages, new state and error estimates of one step; False if the right-hand side raised."""
    s, n_errors = tables.n_stages, tables.E.shape[0]
    if attempt != 0:
        call_attempt(attempt, run.t, run.t_low, h, work, p)
        run.evaluations += s - 1
        return True
    if not evaluate_stages(field, p, tables.A, tables.c, work, Y, Y_NEW, K, 1, s, run.t, h, run):
        return False
    if tables.b.shape[1] == s:  # else the last stage is the slope at the new state
        combine(work, Y_NEW, Y, h, tables.b, 0, K, s)
    for m in range(n_errors):
        combine(work, ERROR + m, ZERO, h, tables.E, m, K, s)
    return True


@inlined
def measure_error(work, n_errors, how, run):
    """Norm of e = h sum (b - b^)_i k_i; with a second estimate e~ DOP853 takes |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2)."""
    error = step_control.scaled_norm(work, ERROR, Y, Y_NEW, how.atol, how.rtol, how.norm, run)
    if n_errors == 2 and error > 0.0:
        other = step_control.scaled_norm(work, ERROR_2, Y, Y_NEW, how.atol, how.rtol, how.norm, run)
        error *= error / np.sqrt(error * error + 0.01 * other * other)
    return error


@inlined
def is_lost(work, h, run):
    """Whether a very short step leaves the state unchanged although its slope is nonzero: a sign of a singularity."""
    span = abs(run.t_end - run.t0)
    if not abs(h) < step_control.LOST * max(abs(run.t), span if np.isfinite(span) else 1.0):
        return False
    has_slope = False
    for k in range(run.reals):
        if work[Y, k] != work[Y_NEW, k]:
            return False
        has_slope = has_slope or work[K, k] != 0.0
    return has_slope


@inlined
def find_next_goal(run, stops):
    """The next time at which a step must end: one of `stops`, or the end of the run."""
    return stops[run.next_stop] if run.next_stop < stops.shape[0] else run.t_end


@inlined
def advance_time(run, h, goal, is_at_goal):
    """t + h with compensated (Kahan) summation, so that 10^8 steps do not drift."""
    if is_at_goal:
        return goal, 0.0
    increment = h + run.t_low
    t = run.t + increment
    return t, increment - (t - run.t)


@Kernel
def run_adaptive(field, attempt, p, tables, how, stops, needs, work, run_, out):
    """Adaptive steps; `attempt` is the address of a generated step, or 0.

    A step ends at each of the times `stops`.
    """
    run = run_[0]
    is_simple = is_nothing_wanted(needs)
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out.t) or (not is_simple and is_full(needs, run, out)):
            return FULL
        if run.step + run.rejected >= run.max_steps:
            return STEP_LIMIT
        if not evaluate_first_slope(field, p, work, run):
            return FIELD_RAISED
        goal = find_next_goal(run, stops)
        remaining = (goal - run.t) - run.t_low
        is_at_goal = abs(run.h) >= abs(remaining) * (1.0 - 1e-9)
        is_last = is_at_goal and run.next_stop == stops.shape[0]
        h = remaining if is_at_goal else run.h
        run.h_tried = h
        if not is_finite_row(work, K):
            return NOT_FINITE
        if not attempt_step(field, attempt, p, tables, work, h, run):
            return FIELD_RAISED
        error = measure_error(work, tables.E.shape[0], how, run)
        if not error <= 1.0:
            is_broken = not np.isfinite(error)
            run.rejected += 1
            run.was_rejected = 2 if is_broken else 1
            run.h = h * step_control.shrinkage(error, how.controller)
            if step_control.is_too_short(run):
                return NOT_FINITE if is_broken else STEP_TOO_SMALL
            if is_broken and run.is_checked:
                return BROKEN
            continue
        if run.was_rejected == 2 and is_lost(work, h, run):
            return NOT_FINITE
        t_new, t_low = advance_time(run, h, goal, is_at_goal)
        run.n_steps = run.step + 1 if is_last else -1
        status = complete(field, p, tables, needs, is_simple, work, tables.n_stages, t_new, h, run, out)
        if run.theta < 1.0:  # stopped by an event or a failure before the end of the step
            run.n_steps = -1
            return status
        run.t_low = t_low
        if is_at_goal and not is_last:
            run.next_stop += 1
        longer = h * step_control.growth(error, run, how.controller)
        if is_at_goal and abs(run.h) > abs(longer):  # it was shortened: no bound for the next step
            longer = run.h
        run.h = np.sign(h) * min(abs(longer), run.h_max)
        run.error_2 = run.error_1
        run.error_1 = max(error, 1e-4)
        run.was_rejected = 0
        if status == EVENT:
            return EVENT
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: ExplicitRK, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    initial, (field, watched, moved) = problem.initial, build_fields(problem, plan)
    extension = scheme.continuous
    n, n_corrections = len(extension.c), len(extension.R)
    is_adaptive, n_rows = isinstance(plan.stepping, AdaptiveSteps), K + 2 * n + n_corrections
    program = None if is_adaptive else build_scheme_program(scheme, 1, False, False).step
    work = allocate_work(initial, 1, n_rows + count_spare_rows((field,), program))
    run, tables = create_run_state(problem, plan), build_tables(scheme, work.dtype)
    is_aside = not is_adaptive or (scheme.dense is None and scheme.order > extension.order)
    watch = build_event_state(plan, field, (*watched, *moved), problem, run["reals"].item(), work.dtype)
    fused = _find_fused_steps(field, scheme, is_adaptive, plan, work, n_rows)
    choose_step = None
    if is_adaptive:
        stepping = cast(AdaptiveSteps, plan.stepping)
        how = step_control.build_control_settings(stepping, 1.0 / error_power(scheme))
        run["is_checked"] = field.replay is not None and not field.callbacks
        choose_step = partial(step_control.begin_anew, field, stepping, how, work, FIRST_LOOK, run)
        step_control.begin_with_step(field, stepping, how, work, FIRST_LOOK, run)

    def go(out):
        needs = build_output_request(plan, out.watch, moved, is_aside)
        output = OutputBuffers(out.t, out.y, out.piece_t, out.pieces)
        if is_adaptive:
            return run_adaptive(field.address, fused, field.p, tables, how, stepping.stops, needs, work, run, output)
        return run_fixed(field.address, fused, field.p, tables, needs, work, run, find_grid(plan), output)

    slopes = evaluate_stage_slopes(field, scheme.butcher)
    fields, rows_per_piece = (field, *watched, *moved), 4 + n_corrections
    return Job(
        go, run, work, 1, fields, initial.dtype, slopes, watch, rows_per_piece=rows_per_piece, choose_step=choose_step
    )


def _find_fused_steps(
    field: CompiledRHS, scheme: ExplicitRK, is_adaptive: bool, plan: Plan, work: np.ndarray, spare: int
) -> int:
    """Address of generated steps of a small problem, or a linear one on a grid (rows from `spare` are free), or 0."""
    stride = work.shape[1]
    if is_adaptive:
        return find_fused_attempt(field, scheme, work)
    if plan.stepping.grid is not None:
        return 0
    program = build_scheme_program(scheme, 1, False, False).step
    if len(work) > spare:
        return find_stencil_steps((field,), program, (Y,), spare, stride)
    write = partial(write_steps, program, [Y], stride)
    return find_fused_address((field,), program, stride, "steps", write, program.n_slopes)


def find_fused_attempt(field: CompiledRHS, scheme: ExplicitRK, work: np.ndarray) -> int:
    """Address of a generated adaptive step of a small problem, or 0."""
    s, stride = len(scheme.b), work.shape[1]
    return find_fused_address((field,), scheme, stride, "attempt", lambda: write_attempt(scheme, ROWS, stride), s)


@lru_cache(maxsize=64)
def build_tables(scheme: ExplicitRK, dtype) -> SchemeTables:
    """The coefficients of a scheme as kernels read them."""
    table, extension = scheme.butcher, scheme.continuous
    s = len(table.b)
    used = s - scheme.is_fsal
    E = np.array([table.b - np.array(hat.b) for hat in scheme.embedded]).reshape(-1, s)
    arrays = (extension.A, table.b[None, :used], extension.c, E, extension.R)
    kinds = (dtype, dtype, float, dtype, dtype)
    A, b, c, E, R = (np.array(x, dtype=k, order="C") for x, k in zip(arrays, kinds, strict=True))
    return SchemeTables(A, b, c, E, R, s, extension.new)


@lru_cache(maxsize=64)
def error_power(scheme: ExplicitRK) -> int:
    """k in error = O(h^k): the lower order plus one; 2 k_1 - k_2 for the two estimates of DOP853."""
    powers = [min(scheme.order, hat.order) + 1 for hat in scheme.embedded]
    return powers[0] if len(powers) == 1 else 2 * powers[0] - powers[1]


def evaluate_stage_slopes(field, table: Butcher):
    """Evaluate the slopes of one step in Python, stage by stage, to diagnose a failure."""

    def slopes(t, y, h):
        k: list[np.ndarray] = []
        for i in range(len(table.b)):
            increment = sum((a * slope for a, slope in zip(table.A[i], k, strict=False)), np.zeros_like(y))
            t_stage, y_stage = t + table.c[i] * h, (y + h * increment).astype(y.dtype)
            k.append(field(t_stage, y_stage))
            yield StageSlopes(k[-1], t_stage, y_stage)

    return slopes
