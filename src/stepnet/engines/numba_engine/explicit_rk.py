"""Explicit Runge-Kutta: k_i = f(t + c_i h, y + h sum_{j<i} a_ij k_j),  y_new = y + h sum b_i k_i."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import Adaptive, Plan
from stepnet.engines.numba_engine import events, step_control, stepping
from stepnet.engines.numba_engine.compile.cache import Kernel, compiled, inlined
from stepnet.engines.numba_engine.compile.field import Field
from stepnet.engines.numba_engine.compile.fused import fused_address, write_attempt, write_steps
from stepnet.engines.numba_engine.compile.problems import event_fields, full_field, projection_fields
from stepnet.engines.numba_engine.job import Job, grid_of, new_run, new_work, wanted_times
from stepnet.engines.numba_engine.primitives import (
    call_attempt,
    call_field,
    call_steps,
    combine,
    copy_row,
    is_finite_row,
)
from stepnet.engines.numba_engine.stepping import (
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.problem import Problem
from stepnet.schemes import conditions
from stepnet.schemes.tableau import Butcher, ExplicitRK

# Rows of `work`: the state, the new one, one between or aside, two errors, a value of an event, zeros; from K on the
# stages (extra ones of the continuous extension included), then its corrections, then the stages of steps aside.
Y, Y_NEW, ASIDE, ERROR, ERROR_2, VALUE, ZERO, K = range(8)
ROWS = SimpleNamespace(Y=Y, Y_NEW=Y_NEW, ERROR=ERROR, K=K)

SHORTEST = 1e-14  # a step below this fraction of |t| is lost in the clock


class Tables(NamedTuple):
    """The numbers of a scheme: A and c with the extra stages of the continuous extension, R and the stage at its end.

    `b` has one entry less than there are stages if the scheme is first-same-as-last.
    """

    A: np.ndarray
    b: np.ndarray
    c: np.ndarray
    E: np.ndarray
    R: np.ndarray
    n_stages: int
    new: int


class Needs(NamedTuple):
    """What a run wants of the inside of its steps."""

    watch: events.Watch
    save_at: np.ndarray
    is_dense: int
    is_aside: int  # wanted times by steps aside, or by the continuous extension (adaptive steps, if it is good enough)
    project: int  # address of a function that moves each new state, or 0


class Output(NamedTuple):
    """Where saved states and the pieces of dense output go."""

    t: np.ndarray
    y: np.ndarray
    piece_t: np.ndarray
    pieces: np.ndarray


@inlined
def stages(field, p, A, c, work, base, scratch, first, start, stop, t, h, run):
    """Slopes `start` to `stop - 1`, the earlier ones given; False if the right-hand side raised."""
    for i in range(start, stop):
        combine(work, scratch, base, h, A, i, first, i)
        t_stage = t + (run.t_low + c[i] * h)
        if call_field(field, t_stage, work, scratch, first + i, p, run.n) != 0:
            stepping.raised(run, 0, i, t_stage, scratch)
            return False
    run.evaluations += stop - start
    return True


@inlined
def first_slope(field, p, work, run):
    """Slope at the beginning of the step, unless it is known already."""
    if run.has_slope == 0:
        if call_field(field, run.t + run.t_low, work, Y, K, p, run.n) != 0:
            stepping.raised(run, 0, 0, run.t, Y)
            return False
        run.evaluations += 1
        run.has_slope = 1
    return True


@inlined
def extend(field, p, tables, work, known, h, run):
    """The extra stages and the corrections of the continuous extension; False if the right-hand side raised."""
    n = tables.c.shape[0]
    if tables.new >= known:  # the slope at the new state itself, which then begins the next step
        t_new = run.t + (run.t_low + h)
        if call_field(field, t_new, work, Y_NEW, K + tables.new, p, run.n) != 0:
            stepping.raised(run, 0, tables.new, t_new, Y_NEW)
            return False
        run.evaluations += 1
        known = tables.new + 1
    if not stages(field, p, tables.A, tables.c, work, Y, ASIDE, K, known, n, run.t, h, run):
        return False
    for m in range(tables.R.shape[0]):
        combine(work, K + n + m, ZERO, h, tables.R, m, K, n)
    return True


@inlined
def between(tables, work, theta, h, run):
    """work[ASIDE] = y(t + theta h)."""
    n, n_corrections = tables.c.shape[0], tables.R.shape[0]
    events.hermite(work, Y, Y_NEW, K, K + tables.new, K + n, n_corrections, ASIDE, theta, h, run.reals)


@inlined
def crossing_point(p, tables, watch, e, low, high, g_low, g_high, work, h, run):
    """theta of a crossing between two samples: regula falsi (Illinois) with bisection, to the last bits."""
    side = 0
    for _ in range(200):
        if high - low <= 4e-16 * high or g_high == 0.0:
            break
        middle = high - g_high * (high - low) / (g_high - g_low)
        if not low < middle < high or side >= 3:
            middle, side = 0.5 * (low + high), 0
            if not low < middle < high:
                break
        between(tables, work, middle, h, run)
        g = events.evaluate(watch, e, p, work, ASIDE, VALUE, run.t + middle * h, run)
        if g != g:
            break
        if (g > 0.0) == (g_high > 0.0) or g == 0.0:
            high, g_high = middle, g
            g_low *= 0.5
            side = side + 1 if side >= 0 else 0
        else:
            low, g_low = middle, g
            g_high *= 0.5
            side += 1
    return high


@compiled
def look_for_events(p, tables, watch, work, h, run):
    """Note the crossings inside a step in order; theta where the run is to stop, NEVER, or -1 if a function raised."""
    low = 0.0
    for sample in range(1, events.SAMPLES + 1):
        high = sample / events.SAMPLES
        while True:
            first, who = events.NEVER, -1
            between(tables, work, high, h, run)
            for e in range(watch.values.shape[0]):
                watch.now[e] = events.evaluate(watch, e, p, work, ASIDE, VALUE, run.t + high * h, run)
                if watch.now[e] != watch.now[e]:
                    return -1.0
            for e in range(watch.values.shape[0]):
                if events.is_crossing(watch.values[e], watch.now[e], watch.directions[e]):
                    theta = crossing_point(p, tables, watch, e, low, high, watch.values[e], watch.now[e], work, h, run)
                    if theta < first:
                        first, who = theta, e
            if who < 0:
                break
            between(tables, work, first, h, run)
            if events.note(watch, who, run.t + first * h, work, ASIDE, run):
                return first
            low = first
        for e in range(watch.values.shape[0]):
            watch.values[e] = watch.now[e]
        low = high
    return events.NEVER


@inlined
def save_between(field, p, tables, needs, work, t_new, h, run, out):
    """Save the wanted times inside a step; the main steps never depend on them."""
    n, used = tables.c.shape[0], tables.b.shape[1]
    aside = K + n + tables.R.shape[0]
    while stepping.is_inside(run, needs.save_at, t_new):
        length = (needs.save_at[run.next_save] - run.t) - run.t_low
        if needs.is_aside:
            copy_row(work, K, aside)
            if not stages(field, p, tables.A, tables.c, work, Y, ASIDE, aside, 1, used, run.t, length, run):
                return FIELD_RAISED
            combine(work, ASIDE, Y, length, tables.b, 0, aside, used)
        else:
            between(tables, work, length / h, h, run)
        if not is_finite_row(work, ASIDE):
            return NOT_FINITE
        stepping.save_wanted(work, ASIDE, 1, run, needs.save_at, out.t, out.y)
    return DONE


@inlined
def keep_piece(tables, work, h, run, out):
    """Append the polynomial of this step: y, y_new, both slopes, corrections."""
    i, n, reals = run.n_pieces, tables.c.shape[0], run.reals
    out.piece_t[i, 0], out.piece_t[i, 1] = run.t, h
    for k in range(reals):
        out.pieces[i, k] = work[Y, k]
        out.pieces[i, reals + k] = work[Y_NEW, k]
        out.pieces[i, 2 * reals + k] = work[K, k]
        out.pieces[i, 3 * reals + k] = work[K + tables.new, k]
        for m in range(tables.R.shape[0]):
            out.pieces[i, (4 + m) * reals + k] = work[K + n + m, k]
    run.n_pieces = i + 1


@inlined
def is_nothing_wanted(needs):
    """Whether the ends of the steps are all that is wanted; the usual case, kept free of anything else."""
    is_plain = needs.is_dense == 0 and needs.project == 0
    return is_plain and needs.watch.values.shape[0] == 0 and needs.save_at.shape[0] == 0


@compiled
def is_full(needs, run, out):
    """Whether the next step may find no room for events or dense output."""
    if needs.is_dense and run.n_pieces == out.piece_t.shape[0]:
        return True
    n = needs.watch.values.shape[0]
    return n > 0 and run.n_found + events.SAMPLES * n > needs.watch.t.shape[0]


@compiled
def inside(field, p, tables, needs, work, known, t_new, h, run, out):
    """All that is wanted of a step between its ends: DONE, EVENT if it is to end early (at run.theta), or a failure."""
    run.theta = events.NEVER
    has_events = needs.watch.values.shape[0] > 0
    is_interpolated = needs.is_aside == 0 and stepping.is_inside(run, needs.save_at, t_new)
    is_extended = has_events or needs.is_dense or is_interpolated
    if is_extended and not extend(field, p, tables, work, known, h, run):
        return FIELD_RAISED
    if has_events:
        run.theta = look_for_events(p, tables, needs.watch, work, h, run)
        if run.theta < 0.0:
            return FIELD_RAISED
    if run.theta < 1.0:
        t_new = run.t + run.theta * h
    status = save_between(field, p, tables, needs, work, t_new, h, run, out)
    if status != DONE:
        return status
    if needs.is_dense:
        keep_piece(tables, work, h, run, out)
    if run.theta <= 1.0:
        between(tables, work, run.theta, h, run)
        copy_row(work, ASIDE, Y_NEW)
        return EVENT
    run.has_slope = 1 if is_extended else 0
    if needs.project != 0:
        run.has_slope = 0
        if call_field(needs.project, t_new, work, Y_NEW, ASIDE, p, run.n) != 0:
            return stepping.raised(run, 1 + needs.watch.values.shape[0], 0, t_new, Y_NEW)
        copy_row(work, ASIDE, Y_NEW)
    return DONE


@Kernel
def fixed(field, steps, p, tables, needs, work, run_, grid, out):
    """Steps of given length; `steps` is the address of generated even steps, or 0."""
    run = run_[0]
    A, b, c, new = tables.A, tables.b, tables.c, tables.new
    save_at, out_t, out_y = needs.save_at, out.t, out.y
    used, is_simple = b.shape[1], is_nothing_wanted(needs)
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t) or (not is_simple and is_full(needs, run, out)):
            return FULL
        if steps != 0 and is_simple and run.is_cut == 0:
            count = stepping.steps_ahead(run)
            copy_row(work, Y, ASIDE)
            call_steps(steps, run.t0, run.h, run.step, count, work, p)
            run.evaluations += used * count
            if not is_finite_row(work, Y):
                copy_row(work, ASIDE, Y)
                if count == 1:
                    return NOT_FINITE
                run.stride = 1
                continue
            run.step += count - 1
            stepping.finish_step(work, Y, 1, stepping.grid_time(run, grid, run.step + 1), run, save_at, out_t, out_y)
            continue
        is_whole = run.is_cut == 0
        t_new, h = stepping.rest_of_step(run, grid)
        if not first_slope(field, p, work, run):
            return FIELD_RAISED
        if not stages(field, p, A, c, work, Y, Y_NEW, K, 1, used, run.t, h, run):
            return FIELD_RAISED
        combine(work, Y_NEW, Y, h, b, 0, K, used)
        if steps != 0 and is_whole:  # the very step that would be taken if nothing was wanted of its inside
            copy_row(work, Y, ASIDE)
            call_steps(steps, run.t0, run.h, run.step, 1, work, p)
            copy_row(work, Y, Y_NEW)
            copy_row(work, ASIDE, Y)
        if not is_finite_row(work, Y_NEW):
            return NOT_FINITE
        run.has_slope = 0
        if not is_simple:
            status = inside(field, p, tables, needs, work, used, t_new, h, run, out)
            if status == EVENT:
                return stop_at_event(work, run.t + run.theta * h, run, save_at, out_t, out_y)
            if status != DONE:
                return status
        if run.has_slope:
            copy_row(work, K + new, K)
        copy_row(work, Y_NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


@inlined
def stop_at_event(work, t, run, save_at, out_t, out_y):
    """The step ends at an event: it is saved as a step of its own, and the clock stands there."""
    copy_row(work, Y_NEW, Y)
    run.has_slope = 0
    run.t, run.t_low = t, 0.0
    run.is_cut = 1
    while stepping.due(run, save_at, t):
        stepping.save_wanted(work, Y, 1, run, save_at, out_t, out_y)
    if run.save_every > 0:
        stepping.save(work, Y, 1, t, run, out_t, out_y)
    return EVENT


@inlined
def error_of_step(work, n_errors, atol, rtol, norm, run):
    """Norm of e = h sum (b - b^)_i k_i; with a second estimate e~ DOP853 takes |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2)."""
    error = step_control.scaled_norm(work, ERROR, Y, Y_NEW, atol, rtol, norm, run)
    if n_errors == 2 and error > 0.0:
        other = step_control.scaled_norm(work, ERROR_2, Y, Y_NEW, atol, rtol, norm, run)
        error *= error / np.sqrt(error * error + 0.01 * other * other)
    return error


@inlined
def advance_clock(run, h, is_last):
    """t <- t + h with the rounding error carried along (Kahan), so that 10^8 steps do not drift."""
    if is_last:
        run.t = run.t_end
        run.t_low = 0.0
    else:
        increment = h + run.t_low
        t = run.t + increment
        run.t_low = increment - (t - run.t)
        run.t = t


@Kernel
def adaptive(field, attempt, p, tables, how, needs, work, run_, out):
    """Steps as long as the error estimate allows; `attempt` is the address of a generated step, or 0."""
    run = run_[0]
    A, b, c, E, s, new = tables.A, tables.b, tables.c, tables.E, tables.n_stages, tables.new
    atol, rtol, betas = how.atol, how.rtol, how.betas
    save_at, out_t, out_y = needs.save_at, out.t, out.y
    is_fsal, is_simple = b.shape[1] < s, is_nothing_wanted(needs)
    is_slope_kept = is_fsal and needs.project == 0
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t) or (not is_simple and is_full(needs, run, out)):
            return FULL
        if run.step + run.rejected >= run.max_steps:
            return STEP_LIMIT
        if not first_slope(field, p, work, run):
            return FIELD_RAISED
        remaining = (run.t_end - run.t) - run.t_low
        is_last = abs(run.h) >= abs(remaining) * (1.0 - 1e-9)
        h = remaining if is_last else run.h
        run.h_tried = h
        if not is_finite_row(work, K):
            return NOT_FINITE
        if attempt != 0:
            call_attempt(attempt, run.t, run.t_low, h, work, p)
            run.evaluations += s - 1
        else:
            if not stages(field, p, A, c, work, Y, Y_NEW, K, 1, s, run.t, h, run):
                return FIELD_RAISED
            if not is_fsal:
                combine(work, Y_NEW, Y, h, b, 0, K, s)
            for m in range(E.shape[0]):
                combine(work, ERROR + m, ZERO, h, E, m, K, s)
        error = error_of_step(work, E.shape[0], atol, rtol, how.norm, run)
        if not error <= 1.0:
            run.rejected += 1
            run.was_rejected = 1
            run.h = h * step_control.shrinkage(error, how.shrink, how.safety, how.exponent)
            if abs(run.h) < SHORTEST * abs(run.t) or run.t + run.h == run.t:
                return STEP_TOO_SMALL if np.isfinite(error) else NOT_FINITE
            continue
        run.has_slope = 0
        if not is_simple:
            t_new = run.t_end if is_last else run.t + (run.t_low + h)
            status = inside(field, p, tables, needs, work, s, t_new, h, run, out)
            if status == EVENT:
                return stop_at_event(work, run.t + run.theta * h, run, save_at, out_t, out_y)
            if status != DONE:
                return status
        advance_clock(run, h, is_last)
        copy_row(work, Y_NEW, Y)
        if is_slope_kept or run.has_slope:
            copy_row(work, K + new, K)
            run.has_slope = 1
        longer = h * step_control.growth(error, run, betas, how.shrink, how.grow, how.aim)
        if is_last and abs(run.h) > abs(longer):  # it was cut to end here, which says nothing about the next one
            longer = run.h
        run.h = np.sign(h) * min(abs(longer), run.h_max)
        run.error_2 = run.error_1
        run.error_1 = max(error, 1e-4)
        run.was_rejected = 0
        if is_last:
            run.n_steps = run.step + 1
        stepping.finish_step(work, Y, 1, run.t, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: ExplicitRK, plan: Plan) -> Job:
    """Everything a run needs, for any problem: its right-hand sides joined to one."""
    initial, field = problem.initial, full_field(problem)
    watched, moved = event_fields(problem, plan.events), projection_fields(problem, plan.project)
    extension = scheme.continuous
    n, n_corrections = len(extension.c), len(extension.R)
    work, run = new_work(initial, 1, K + 2 * n + n_corrections), new_run(problem, plan)
    tables = tables_of(scheme, work.dtype)
    is_adaptive = isinstance(plan.stepping, Adaptive)
    is_aside = int(not is_adaptive or (scheme.dense is None and scheme.order > extension.order))
    watch = _watch(plan, watched, run, work.dtype, field.p, problem)

    def go(out):
        needs = Needs(out.watch, wanted_times(plan), int(plan.dense), is_aside, moved[0].address if moved else 0)
        output = Output(out.t, out.y, out.piece_t, out.pieces)
        if is_adaptive:
            return adaptive(work.dtype, field.address, fused, field.p, tables, how, needs, work, run, output)
        return fixed(work.dtype, field.address, fused, field.p, tables, needs, work, run, grid_of(plan), output)

    fused = _fused(field, scheme, is_adaptive, plan, work)
    if is_adaptive:
        how = step_control.how_of(plan.stepping, 1.0 / error_power(scheme))
        _choose_first_step(field, plan.stepping, how, work, run)
    return Job(
        go,
        run,
        work,
        1,
        (field, *watched, *moved),
        initial.dtype,
        stage_slopes(field, scheme.butcher),
        watch,
        4 + n_corrections,
    )


def _fused(field: Field, scheme: ExplicitRK, is_adaptive: bool, plan: Plan, work: np.ndarray) -> int:
    """Address of generated steps for a small traced problem, or 0."""
    s, stride = len(scheme.b), work.shape[1]
    if is_adaptive:
        return fused_address((field,), scheme, stride, "attempt", lambda: write_attempt(scheme, ROWS, stride), s)
    if plan.stepping.grid is not None:
        return 0
    used = s - conditions.is_fsal(scheme)
    return fused_address((field,), scheme, stride, "steps", lambda: write_steps(scheme, used, ROWS, stride), used)


def _watch(plan: Plan, watched, run, dtype, p, problem: Problem) -> events.Watch:
    """The events of a plan, with their values at the beginning."""
    stops = [-1 if event.reset is not None else int(event.terminal) for event in plan.events]
    addresses = [field.address for field in watched]
    watch = events.new_watch(addresses, [event.direction for event in plan.events], stops, int(run[0]["reals"]), dtype)
    for e, event in enumerate(watched):
        watch.values[e] = event(problem.t_span[0], problem.initial)[0].real
    return watch


@lru_cache(maxsize=64)
def tables_of(scheme: ExplicitRK, dtype) -> Tables:
    """The numbers of a scheme as kernels read them."""
    table, extension = scheme.butcher, scheme.continuous
    s = len(table.b)
    used = s - conditions.is_fsal(scheme)
    E = np.array([table.b - np.array(hat.b) for hat in scheme.embedded]).reshape(-1, s)
    arrays = (extension.A, table.b[None, :used], extension.c, E, extension.R)
    kinds = (dtype, dtype, float, dtype, dtype)
    return Tables(*(np.array(x, dtype=k, order="C") for x, k in zip(arrays, kinds, strict=True)), s, extension.new)


def _choose_first_step(field: Field, stepping_plan: Adaptive, how, work: np.ndarray, run: np.ndarray) -> None:
    if stepping_plan.first_step is None:
        rows = np.array([Y, K, Y_NEW, ERROR])
        step_control.first_step(work.dtype, field.address, field.p, work, how, rows, run)
    else:
        first = min(stepping_plan.first_step, stepping_plan.max_step)
        run[0]["h"] = np.copysign(first, run[0]["t_end"] - run[0]["t0"])


def error_power(scheme: ExplicitRK) -> int:
    """k in error = O(h^k): one more than the lower order; 2 k_1 - k_2 with the two estimates of DOP853's rule."""
    powers = [min(scheme.order, hat.order) + 1 for hat in scheme.embedded]
    return powers[0] if len(powers) == 1 else 2 * powers[0] - powers[1]


def stage_slopes(field, table: Butcher):
    """The slopes of one step in Python, stage by stage, for whoever looks into a failure."""

    def slopes(t, y, h):
        k = []
        for i in range(len(table.b)):
            increment = sum((a * slope for a, slope in zip(table.A[i], k, strict=False)), np.zeros_like(y))
            k.append(field(t + table.c[i] * h, (y + h * increment).astype(y.dtype)))
            yield k[-1]

    return slopes
