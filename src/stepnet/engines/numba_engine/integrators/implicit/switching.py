"""Switching between an explicit pair and an implicit or Rosenbrock pair, by stiffness.

Explicit steps whose two last stages lie at the end of the step show the dominant eigenvalue there, as
|k_s - k_(s-1)| / |Y_s - Y_(s-1)|; if h times it stays near the limit of stability, the implicit scheme takes over.  It
switches back if h times a norm of df/dy stays well below that limit.  Hairer & Wanner (1996), IV.2.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import cast

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import explicit_rk, step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import (
    ASIDE,
    Y_NEW,
    ZERO,
    K,
    Y,
    build_cubic_tables,
    evaluate_first_slope,
)
from stepnet.engines.numba_engine.integrators.events import build_event_state
from stepnet.engines.numba_engine.integrators.explicit_rk import advance_time, find_next_goal, is_lost
from stepnet.engines.numba_engine.integrators.families import find_stage_tables
from stepnet.engines.numba_engine.integrators.implicit import implicit_rk, variable_order
from stepnet.engines.numba_engine.integrators.implicit.implicit_rk import list_shifts
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    SLOPES,
    choose_limits,
    evaluate_jacobian,
    forget_jacobian,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_systems import build_system
from stepnet.engines.numba_engine.integrators.implicit.variable_order import (
    MOST_SWITCHES,
    ChoiceLog,
    describe_switches,
    measure_jacobian,
)
from stepnet.engines.numba_engine.integrators.step_output import (
    OutputBuffers,
    build_output_request,
    complete,
    is_full,
    is_nothing_wanted,
)
from stepnet.engines.numba_engine.integrators.stepping import (
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    NOT_SOLVED,
    PAUSED,
    STEP_LIMIT,
)
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem
from stepnet.schemes.conditions import real_stability_limit
from stepnet.schemes.tableau import ExplicitRK
from stepnet.schemes.variable_order import Switching

EXPLICIT, IMPLICIT = 0, 1  # `run.method`
STIFF, CALM = 0.75, 0.5  # of the limit of stability: h rho above and below which a switch is considered
MOST_STIFF, MOST_CALM = 15, 5  # steps that suggest a switch before it happens
FORGOTTEN = 6  # steps in a row without a sign of stiffness after which earlier signs are forgotten


@compiled
def is_near_limit(tables, difference, limit, how, work, h, run):
    """Whether h rho is near the limit of stability, from the two last stages of an explicit step."""
    s = tables.n_stages
    combine(work, ASIDE, ZERO, h, difference, 0, K, s - 1)
    moved = step_control.scaled_norm(work, ASIDE, Y, Y_NEW, how.atol, how.rtol, how.norm, run)
    for k in range(run.reals):
        work[ASIDE, k] = h * (work[K + s - 1, k] - work[K + s - 2, k])
    return step_control.scaled_norm(work, ASIDE, Y, Y_NEW, how.atol, how.rtol, how.norm, run) > STIFF * limit * moved


@inlined
def count_signs(is_sign, run):
    """Count the steps that suggest the other scheme; they are forgotten after some that do not."""
    if is_sign:
        run.equal_steps += 1
        run.failures = 0
    else:
        run.failures += 1
        if run.failures >= (FORGOTTEN if run.method == EXPLICIT else 1):
            run.equal_steps = 0


@inlined
def switch_if_suggested(log, run):
    """Continue with the other scheme if enough steps have suggested it."""
    if run.equal_steps < (MOST_STIFF if run.method == EXPLICIT else MOST_CALM):
        return
    if run.n_switches < log.times.shape[0]:
        log.times[run.n_switches] = run.t
    run.n_switches += 1
    run.method = IMPLICIT if run.method == EXPLICIT else EXPLICIT
    run.equal_steps, run.failures, run.jacobian_age, run.h_factorised = 0, 0, 0, 0.0
    run.error_1 = run.error_2 = 1.0


@compiled
def attempt_implicit_step(field, p, tables, newton, how, work, h, run):
    """DONE, FIELD_RAISED or NOT_SOLVED, and the norm of the error."""
    if run.jacobian_age == 0:
        if not evaluate_jacobian(newton, work, Y, run.t + run.t_low, run):
            return stepping.note_exception(run, 0, 0, run.t, Y), 0.0
        run.steepness = measure_jacobian(newton, how, work, run)
    limits = choose_limits(work, how, run)
    status = implicit_rk.take_step(field, p, tables, newton, how, limits, work, Y_NEW, run.t, h, run)
    if status != DONE:
        return status, 0.0
    return DONE, implicit_rk.measure_error(tables, newton, how, work, h, run)


@compiled
def attempt_explicit_step(field, attempt, p, tables, how, work, h, run):
    """DONE or FIELD_RAISED, and the norm of the error."""
    if not explicit_rk.attempt_step(field, attempt, p, tables, work, h, run):
        return FIELD_RAISED, 0.0
    return DONE, explicit_rk.measure_error(work, tables.E.shape[0], how, run)


@inlined
def clear_corrections(needs, run, out):
    """Zeros where the polynomial of an implicit step has no corrections."""
    if needs.is_dense:
        out.pieces[run.n_pieces, 4 * run.reals :] = 0.0


@Kernel
def run_switching(
    field, attempt, p, tables, difference, limit, how, implicit, cubic, newton, slow_how, stops, needs, log, work,
    run_, out,
):  # fmt: skip
    """Adaptive steps by one of two schemes; a step ends at each of the times `stops`."""
    run = run_[0]
    is_simple, s = is_nothing_wanted(needs), implicit.b.shape[1]
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
        if run.method == EXPLICIT:
            status, error = attempt_explicit_step(field, attempt, p, tables, how, work, h, run)
        else:
            status, error = attempt_implicit_step(field, p, implicit, newton, slow_how, work, h, run)
        if status == NOT_SOLVED:
            status = implicit_rk.retry(h, run)
            if status != PAUSED:
                return status
            continue
        if status != DONE:
            return status
        if not error <= 1.0:
            status = implicit_rk.shorten(h, error, how if run.method == EXPLICIT else slow_how, run)
            if status != PAUSED:
                return status
            continue
        if run.was_rejected == 2 and is_lost(work, h, run):
            return NOT_FINITE
        t_new, t_low = advance_time(run, h, goal, is_at_goal)
        run.n_steps = run.step + 1 if is_last else -1
        log.steps[run.method, 0] += 1
        if run.method == EXPLICIT:
            is_sign = is_near_limit(tables, difference, limit, how, work, h, run)
            status = complete(field, p, tables, needs, is_simple, work, tables.n_stages, t_new, h, run, out)
        else:
            is_sign = abs(h) * run.steepness < CALM * limit
            if implicit.ends_with_slope:
                copy_row(work, SLOPES + s - 1, K + 1)
            forget_jacobian(run)
            clear_corrections(needs, run, out)
            known = 1 + implicit.ends_with_slope
            status = complete(field, p, cubic, needs, is_simple, work, known, t_new, h, run, out)
        if run.theta < 1.0:  # stopped by an event or a failure before the end of the step
            run.n_steps = -1
            return status
        run.t_low = t_low
        if is_at_goal and not is_last:
            run.next_stop += 1
        implicit_rk.choose_next_length(h, error, how if run.method == EXPLICIT else slow_how, is_at_goal, run)
        count_signs(is_sign, run)
        switch_if_suggested(log, run)
        if status == EVENT:
            return EVENT
    return DONE if run.step == run.n_steps else PAUSED


@lru_cache(maxsize=16)
def build_stiffness_test(scheme: ExplicitRK) -> tuple[np.ndarray, float]:
    """Weights of Y_s - Y_(s-1) on the slopes, and the limit of stability."""
    A = scheme.butcher.A
    return (A[-1] - A[-2])[None].copy(), float(real_stability_limit(scheme))


def prepare(problem: Problem, scheme: Switching, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    if scheme.is_multistep:
        return variable_order.prepare(problem, scheme, plan)
    return _prepare(problem, scheme.explicit, scheme.implicit, plan)  # type: ignore[arg-type]


def _prepare(problem: Problem, explicit: ExplicitRK, implicit, plan: Plan) -> Job:
    tables, stages = explicit_rk.build_tables(explicit, problem.initial.dtype), find_stage_tables(implicit)
    s, n_extra = len(implicit.b), len(explicit.continuous.c)
    n_corrections = len(explicit.continuous.R)
    first_row = max(SLOPES + 3 * s + 2, K + 2 * n_extra + n_corrections)
    system = build_system(problem, plan, list_shifts(stages), first_row)
    initial, field, (watched, moved), newton = system.initial, system.own, system.others, system.newton
    work, run = system.work, system.run
    run["may_switch"] = 1
    fused = explicit_rk.find_fused_attempt(field, explicit, work)
    slopes = explicit_rk.evaluate_stage_slopes(field, explicit.butcher)
    fields = (field, *watched, *moved)
    watch = build_event_state(plan, field, (*watched, *moved), problem, run["reals"].item(), work.dtype)
    how = step_control.build_control_settings(
        cast(AdaptiveSteps, plan.stepping), 1.0 / explicit_rk.error_power(explicit)
    )
    power = min(implicit.order, implicit.embedded[0].order) + 1
    slow_how = step_control.build_control_settings(cast(AdaptiveSteps, plan.stepping), 1.0 / power)
    run["is_checked"] = field.replay is not None and not field.callbacks
    first_look = cast(AdaptiveSteps, plan.stepping), how, work, explicit_rk.FIRST_LOOK, run
    choose_step = partial(step_control.begin_anew, field, *first_look)
    step_control.begin_with_step(field, *first_look)
    log = ChoiceLog(np.zeros((2, 1), np.int64), np.zeros(MOST_SWITCHES))
    cubic, stiffness = build_cubic_tables(work.dtype), build_stiffness_test(explicit)
    names = explicit.name, implicit.name

    def go(out):
        needs = build_output_request(plan, out.watch, moved, False)
        output = OutputBuffers(out.t, out.y, out.piece_t, out.pieces)
        numbers = (tables, *stiffness, how, stages, cubic, newton, slow_how, cast(AdaptiveSteps, plan.stepping).stops)
        code = run_switching(field.address, fused, field.p, *numbers, needs, log, work, run, output)
        return system.check_outside(code)

    def describe_choices() -> dict:
        return describe_switches(names, log.steps[:, 0], log.times[: int(run[0]["n_switches"])])

    return Job(
        go, run, work, 1, fields, initial.dtype, slopes, watch, rows_per_piece=4 + n_corrections,
        choose_step=choose_step, describe_choices=describe_choices, linear_solver=system.solver,
    )  # fmt: skip
