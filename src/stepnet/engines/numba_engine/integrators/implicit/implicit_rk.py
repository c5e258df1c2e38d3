"""Implicit Runge-Kutta, Rosenbrock and additive schemes with fixed and adaptive steps.

The error estimate is e = (I - h damping J)^-1 h (start f(t, y) + sum (b^_i - b_i) k_i); if it rejects a step, its first
term is evaluated again at y + e, as in RADAU5 (Hairer & Wanner (1996), IV.8).  With a mass matrix M, M stands for I and
multiplies the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import (
    ASIDE,
    ERROR,
    ERROR_2,
    Y_NEW,
    ZERO,
    K,
    Y,
    build_cubic_tables,
    evaluate_first_slope,
)
from stepnet.engines.numba_engine.integrators.events import build_event_state
from stepnet.engines.numba_engine.integrators.explicit_rk import (
    FIRST_LOOK,
    advance_time,
    evaluate_stage_slopes,
    find_next_goal,
    is_lost,
)
from stepnet.engines.numba_engine.integrators.implicit.additive_stages import (
    count_additive_rows,
    find_explicit_slopes,
    take_additive_stages,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    EXACT,
    FLOOR,
    SLOPES,
    SMALL_SYSTEM,
    StageTables,
    build_stage_tables,
    choose_limits,
    evaluate_jacobian,
    forget_jacobian,
    multiply_by_mass,
    solve_row,
    solve_stages,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_systems import ImplicitSystem, Shifts, build_system
from stepnet.engines.numba_engine.integrators.implicit.linear_stages import take_linear_stages
from stepnet.engines.numba_engine.integrators.implicit.partitioned_rk import take_pair_stages
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
    NOT_SOLVED,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.runs.job import Job, find_grid, find_save_times
from stepnet.problem import Problem
from stepnet.schemes.controllers import controller
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.tableau import Butcher

LEAST = 1e-300  # added to scales, which avoids division by zero for a state of zeros
SHORTER = 0.25  # factor of the step after Newton's iteration failed
NO_GROWTH = 1.2  # growth of the step up to this factor does not justify a new factorisation


@inlined
def take_step(field, p, tables, newton, how, limits, work, new, t, h, run):
    """The state after a step in the row `new`: DONE, FIELD_RAISED or NOT_SOLVED."""
    if tables.time_weights.shape[0] > 0:
        return take_linear_stages(tables, newton, work, new, t, h, run)
    if tables.explicit.shape[0] > 0:
        return take_additive_stages(tables, newton, how, limits, work, new, t, h, run)
    if tables.second.shape[0] > 0:
        return take_pair_stages(tables, newton, how, limits, work, new, t, h, run)
    return solve_stages(field, p, tables, newton, how, limits, work, new, t, h, run)


# ---- fixed steps ----------------------------------------------------------------------------------------------------


@inlined
def set_exact_scale(how, work, base, run):
    """Newton's iteration in fixed steps ends at the rounding of the largest entry of the state or the row `base`."""
    largest = 0.0
    for k in range(run.reals):
        largest = max(largest, abs(work[Y, k]), abs(work[base, k]))
    how.atol[:] = FLOOR * largest + LEAST
    how.rtol[:] = FLOOR


@inlined
def take_fixed_step(field, p, tables, newton, how, work, new, t, h, run):
    """One step from work[Y] into the row `new`."""
    if run.jacobian_age == 0 and not evaluate_jacobian(newton, work, Y, t, run):
        return stepping.note_exception(run, 0, 0, t, Y)
    status = take_step(field, p, tables, newton, how, EXACT, work, new, t, h, run)
    if status == DONE and not is_finite_row(work, new):
        return NOT_FINITE
    return status


@Kernel
def run_fixed(field, p, tables, newton, how, work, run_, grid, save_at, out_t, out_y):
    """Fixed steps; save times inside a step are reached by auxiliary steps from its beginning."""
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        run.h_tried = h
        if not evaluate_first_slope(field, p, work, run):
            return FIELD_RAISED
        set_exact_scale(how, work, Y, run)
        while stepping.is_inside(run, save_at, t_new):
            length = save_at[run.next_save] - t
            status = take_fixed_step(field, p, tables, newton, how, work, ASIDE, t, length, run)
            if status != DONE:
                return status
            stepping.save_wanted(work, ASIDE, 1, run, save_at, out_t, out_y)
        status = take_fixed_step(field, p, tables, newton, how, work, Y_NEW, t, h, run)
        if status != DONE:
            return status
        forget_jacobian(run)
        run.has_slope = 0
        if newton.is_slope == 0 and tables.ends_with_slope:
            copy_row(work, SLOPES + tables.b.shape[1] - 1, K)
            run.has_slope = 1
        copy_row(work, Y_NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


# ---- adaptive steps -------------------------------------------------------------------------------------------------


@inlined
def estimate_error(tables, newton, how, work, slope, h, run):
    """The norm of the error estimate with the slope at the start in the row `slope`."""
    s = tables.b.shape[1]
    combine(work, ERROR, ZERO, h, tables.estimate, 0, SLOPES, s)
    if tables.damping >= 0 and newton.mass_rows.shape[0] > 0:
        multiply_by_mass(newton, work, ERROR, ERROR_2, run.n)
        copy_row(work, ERROR_2, ERROR)
    if tables.explicit.shape[0] > 0:
        combine(work, ERROR, ERROR, h, tables.explicit, s + 1, find_explicit_slopes(s), s)
    if tables.start != 0.0:
        for k in range(run.reals):
            work[ERROR, k] += h * tables.start * work[slope, k]
    if tables.damping >= 0:
        solve_row(newton, tables.damping, work, ERROR, run.n)
    return step_control.scaled_norm(work, ERROR, Y, Y_NEW, how.atol, how.rtol, how.norm, run)


@inlined
def measure_error(tables, newton, how, work, h, run):
    """The norm of the error estimate; NaN if the right-hand side raised."""
    stage, slope, start = SLOPES + 3 * tables.b.shape[1], SLOPES + 3 * tables.b.shape[1] + 1, K
    if tables.start != 0.0 and newton.is_slope == 0:
        start = slope
        if call_field(newton.field, run.t + run.t_low, work, Y, slope, newton.field_p, run.n) != 0:
            return np.nan
        run.evaluations += 1
    error = estimate_error(tables, newton, how, work, start, h, run)
    if tables.start == 0.0 or not error > 1.0 or not (run.was_rejected or run.step == 0):
        return error
    for k in range(run.reals):
        work[stage, k] = work[Y, k] + work[ERROR, k]
    if call_field(newton.field, run.t + run.t_low, work, stage, slope, newton.field_p, run.n) != 0:
        return error
    run.evaluations += 1
    return estimate_error(tables, newton, how, work, slope, h, run)


@inlined
def choose_next_length(h, error, how, is_at_goal, run):
    """Set the length of the next step; a large system keeps it if it would change little, and with it the factors."""
    factor = step_control.growth(error, run, how.controller)
    longer = h if run.n > SMALL_SYSTEM and 1.0 <= factor <= NO_GROWTH else h * factor
    if is_at_goal and abs(run.h) > abs(longer):  # it was shortened: no bound for the next step
        longer = run.h
    run.h = np.sign(h) * min(abs(longer), run.h_max)
    run.error_2 = run.error_1
    run.error_1 = max(error, 1e-4)
    run.was_rejected = 0


@inlined
def shorten(h, error, how, run):
    """After a rejected step: PAUSED to continue with a shorter one, or how the run ends."""
    is_broken = not np.isfinite(error)
    run.rejected += 1
    run.was_rejected = 2 if is_broken else 1
    run.h = h * step_control.shrinkage(error, how.controller)
    if step_control.is_too_short(run):
        return NOT_FINITE if is_broken else STEP_TOO_SMALL
    return BROKEN if is_broken and run.is_checked else PAUSED


@inlined
def retry(h, run):
    """After Newton's iteration failed: again with df/dy at the current state, or with a shorter step."""
    run.rejected += 1
    if run.jacobian_age == 1:
        run.h = h * SHORTER
        run.was_rejected = 1
        return NOT_SOLVED if step_control.is_too_short(run) else PAUSED
    run.jacobian_age = 0
    return PAUSED


@Kernel
def run_adaptive(field, p, tables, cubic, newton, how, stops, needs, work, run_, out):
    """Adaptive steps; a step ends at each of the times `stops`."""
    run = run_[0]
    is_simple, s = is_nothing_wanted(needs), tables.b.shape[1]
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
        if run.jacobian_age == 0 and not evaluate_jacobian(newton, work, Y, run.t + run.t_low, run):
            return stepping.note_exception(run, 0, 0, run.t, Y)
        limits = choose_limits(work, how, run)
        status = take_step(field, p, tables, newton, how, limits, work, Y_NEW, run.t, h, run)
        if status == NOT_SOLVED:
            status = retry(h, run)
            if status != PAUSED:
                return status
            continue
        if status != DONE:
            return status
        error = measure_error(tables, newton, how, work, h, run)
        if not error <= 1.0:
            status = shorten(h, error, how, run)
            if status != PAUSED:
                return status
            continue
        if run.was_rejected == 2 and is_lost(work, h, run):
            return NOT_FINITE
        t_new, t_low = advance_time(run, h, goal, is_at_goal)
        run.n_steps = run.step + 1 if is_last else -1
        if tables.ends_with_slope:
            copy_row(work, SLOPES + s - 1, K + 1)
        known = 1 + tables.ends_with_slope
        forget_jacobian(run)
        status = complete(field, p, cubic, needs, is_simple, work, known, t_new, h, run, out)
        if run.theta < 1.0:  # stopped by an event or a failure before the end of the step
            run.n_steps = -1
            return status
        run.t_low = t_low
        if is_at_goal and not is_last:
            run.next_stop += 1
        choose_next_length(h, error, how, is_at_goal, run)
        if status == EVENT:
            return EVENT
    return DONE if run.step == run.n_steps else PAUSED


# ---- preparation ----------------------------------------------------------------------------------------------------


def prepare(problem: Problem, scheme: ImplicitRK, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    return prepare_with_tables(problem, scheme, plan, build_stage_tables(scheme), scheme.butcher)


def prepare_with_tables(
    problem: Problem, scheme, plan: Plan, tables: StageTables, explicit: Butcher, parts: tuple[CompiledRHS, ...] = ()
) -> Job:
    """The same for any stages; `explicit` is a tableau by which a failure is diagnosed.

    `parts` are the explicit and the implicit part of a sum that are treated as such.
    """
    s = len(scheme.b)
    first_row = SLOPES + 3 * s + 2 + (count_additive_rows(s) if parts else 0)
    system = build_system(problem, plan, list_shifts(tables), first_row, parts)
    initial, field, (watched, moved) = system.initial, system.slopes, system.others
    newton, choice, work, run = system.newton, system.solver, system.work, system.run
    slopes = evaluate_stage_slopes(system.own, explicit)
    fields = (system.own, *watched, *moved)
    if not isinstance(plan.stepping, AdaptiveSteps):
        scale = np.zeros(initial.size)
        how = step_control.ControlSettings(
            scale, scale.copy(), step_control.MAXIMUM, step_control.build_controller(controller("I"), 1.0)
        )

        def advance(out):
            times = find_grid(plan), find_save_times(plan)
            code = run_fixed(field.address, field.p, tables, newton, how, work, run, *times, out.t, out.y)
            return system.check_outside(code)

        return Job(advance, run, work, 1, fields, initial.dtype, slopes, linear_solver=choice)
    watch = build_event_state(plan, field, (*watched, *moved), problem, run["reals"].item(), work.dtype)
    power = min(scheme.order, scheme.embedded[0].order) + 1
    stepping = plan.stepping
    how, cubic = step_control.build_control_settings(stepping, 1.0 / power), build_cubic_tables(work.dtype)
    run["is_checked"] = system.own.replay is not None and not system.own.callbacks
    begin = system.first_slopes, stepping, how, work, FIRST_LOOK, run
    choose_step = partial(_choose_step, step_control.begin_anew, system, begin)
    _choose_step(step_control.begin_with_step, system, begin)

    def go(out):
        needs = build_output_request(plan, out.watch, moved, False)
        output = OutputBuffers(out.t, out.y, out.piece_t, out.pieces)
        numbers = (tables, cubic, newton, how, stepping.stops)
        return system.check_outside(run_adaptive(field.address, field.p, *numbers, needs, work, run, output))

    return Job(
        go, run, work, 1, fields, initial.dtype, slopes, watch, rows_per_piece=4, choose_step=choose_step,
        linear_solver=choice,
    )  # fmt: skip


def list_shifts(tables: StageTables) -> Shifts:
    """The matrices of the stages."""
    return Shifts(tables.shifts, tables.n_real, len(tables.time_weights) > 0, len(tables.second))


def _choose_step(choose: Callable, system: ImplicitSystem, arguments: tuple) -> None:
    """Choose the first step by the slope y'; the run itself may take f of M y' = f instead."""
    choose(*arguments)
    if system.first_slopes is not system.slopes:
        arguments[-1]["has_slope"] = 0
