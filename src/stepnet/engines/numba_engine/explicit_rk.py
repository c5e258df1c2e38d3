"""Explicit Runge-Kutta: k_i = f(t + c_i h, y + h sum_{j<i} a_ij k_j),  y_new = y + h sum b_i k_i."""

from __future__ import annotations

import numpy as np
from numba import float64, int64, uintp

from stepnet.engines.contract import Adaptive, Plan
from stepnet.engines.numba_engine import step_control, stepping
from stepnet.engines.numba_engine.compile.cache import inlined, kernel
from stepnet.engines.numba_engine.compile.field import Field
from stepnet.engines.numba_engine.compile.problems import full_field
from stepnet.engines.numba_engine.job import Job, grid_of, new_run, new_work, wanted_times
from stepnet.engines.numba_engine.primitives import call_field, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.stepping import (
    DONE,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    PAUSED,
    RUN_TYPE,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.problem import Problem
from stepnet.schemes import conditions
from stepnet.schemes.tableau import Butcher, ExplicitRK

# Rows of `work`; the stages of a step begin at K, those of a step aside (to a wanted time) after them.
Y, Y_NEW, ASIDE, ERROR, ZERO, K = range(6)

SHORTEST = 1e-14  # a step below this fraction of |t| is lost in the clock


@inlined
def stages(field, p, A, c, work, base, scratch, first, count, t, t_low, h, run):
    """Slopes 2 to `count`, the first one given; False if the right-hand side raised."""
    for i in range(1, count):
        combine(work, scratch, base, h, A, i, first, i)
        t_stage = t + (t_low + c[i] * h)
        if call_field(field, t_stage, work, scratch, first + i, p, run.n) != 0:
            stepping.raised(run, 0, i, t_stage, scratch)
            return False
    run.evaluations += count - 1
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
def save_inside(field, p, A, b, c, work, count, t_new, run, save_at, out_t, out_y):
    """Save the wanted times inside a step by steps of their own from its beginning, so the main steps never change."""
    first = K + c.shape[0]
    while stepping.is_inside(run, save_at, t_new):
        h = (save_at[run.next_save] - run.t) - run.t_low
        copy_row(work, K, first)
        if not stages(field, p, A, c, work, Y, ASIDE, first, count, run.t, run.t_low, h, run):
            return FIELD_RAISED
        combine(work, ASIDE, Y, h, b, 0, first, count)
        if not is_finite_row(work, ASIDE):
            return NOT_FINITE
        stepping.save_wanted(work, ASIDE, 1, run, save_at, out_t, out_y)
    return DONE


def _fixed_signature(real):
    tables = (real[:, ::1], real[:, ::1], float64[::1])
    return int64(
        uintp, float64[::1], *tables, real[:, ::1], RUN_TYPE, float64[::1], float64[::1], float64[::1], real[:, ::1]
    )


@kernel(_fixed_signature)
def fixed(field, p, A, b, c, work, run_, grid, save_at, out_t, out_y):
    """Steps of given length."""
    run = run_[0]
    count = c.shape[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.next_step(run, grid)
        run.has_slope = 0
        if not first_slope(field, p, work, run):
            return FIELD_RAISED
        status = save_inside(field, p, A, b, c, work, count, t_new, run, save_at, out_t, out_y)
        if status != DONE:
            return status
        if not stages(field, p, A, c, work, Y, Y_NEW, K, count, t, 0.0, h, run):
            return FIELD_RAISED
        combine(work, Y_NEW, Y, h, b, 0, K, count)
        if not is_finite_row(work, Y_NEW):
            return NOT_FINITE
        copy_row(work, Y_NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


@inlined
def error_of_step(work, E, atol, rtol, h, run, norm):
    """Norm of h sum (b - b^)_i k_i; with a second row of weights |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2), as in DOP853."""
    combine(work, ERROR, ZERO, h, E, 0, K, E.shape[1])
    error = step_control.scaled_norm(work, ERROR, Y, Y_NEW, atol, rtol, run, norm)
    if E.shape[0] == 2 and error > 0.0:
        combine(work, ERROR, ZERO, h, E, 1, K, E.shape[1])
        other = step_control.scaled_norm(work, ERROR, Y, Y_NEW, atol, rtol, run, norm)
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


def _adaptive_signature(real):
    tables = (real[:, ::1], real[:, ::1], float64[::1], real[:, ::1])
    control = (float64[::1], float64[::1], float64[::1], int64)
    return int64(
        uintp, float64[::1], *tables, *control, real[:, ::1], RUN_TYPE, float64[::1], float64[::1], real[:, ::1]
    )


@kernel(_adaptive_signature)
def adaptive(field, p, A, b, c, E, atol, rtol, control, norm, work, run_, save_at, out_t, out_y):
    """Steps as long as the error estimate allows."""
    run = run_[0]
    s = c.shape[0]
    is_fsal = b.shape[1] < s
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        if run.step + run.rejected >= run.max_steps:
            return STEP_LIMIT
        if not first_slope(field, p, work, run):
            return FIELD_RAISED
        remaining = (run.t_end - run.t) - run.t_low
        is_last = abs(run.h) >= abs(remaining) * (1.0 - 1e-9)
        h = remaining if is_last else run.h
        if not stages(field, p, A, c, work, Y, Y_NEW, K, s, run.t, run.t_low, h, run):
            return FIELD_RAISED
        if not is_fsal:
            combine(work, Y_NEW, Y, h, b, 0, K, s)
        error = error_of_step(work, E, atol, rtol, h, run, norm)
        if error <= 1.0:
            t_new = run.t_end if is_last else run.t + (run.t_low + h)
            status = save_inside(field, p, A, b, c, work, b.shape[1], t_new, run, save_at, out_t, out_y)
            if status != DONE:
                return status
            advance_clock(run, h, is_last)
            copy_row(work, Y_NEW, Y)
            if is_fsal:
                copy_row(work, K + s - 1, K)
            run.has_slope = 1 if is_fsal else 0
            longer = h * step_control.growth(error, run, control)
            run.h = np.sign(h) * min(abs(longer), run.h_max)
            run.error_2 = run.error_1
            run.error_1 = max(error, 1e-4)
            run.was_rejected = 0
            if is_last:
                run.n_steps = run.step + 1
            stepping.finish_step(work, Y, 1, run.t, run, save_at, out_t, out_y)
        else:
            run.rejected += 1
            run.was_rejected = 1
            run.was_finite = 1 if np.isfinite(error) else 0
            run.h = h * step_control.shrinkage(error, control)
            if abs(run.h) < SHORTEST * abs(run.t) or run.t + run.h == run.t:
                return STEP_TOO_SMALL if run.was_finite == 1 else NOT_FINITE
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: ExplicitRK, plan: Plan) -> Job:
    """Everything a run needs, for any problem: its right-hand sides joined to one."""
    initial, field = problem.initial, full_field(problem)
    work, run = new_work(initial, 1, K + 2 * len(scheme.b)), new_run(problem, plan)
    if isinstance(plan.stepping, Adaptive):
        advance = adaptive.compiled(work.dtype)
        arguments = (*_adaptive_arguments(field, scheme, plan.stepping, work, run), work, run, wanted_times(plan))
    else:
        advance = fixed.compiled(work.dtype)
        arguments = (*_fixed_arguments(field, scheme, work), work, run, grid_of(plan), wanted_times(plan))

    def go(out_t, out_y):
        return advance(*arguments, out_t, out_y)

    return Job(go, run, work, 1, (field,), initial.dtype, stage_slopes(field, scheme.butcher))


def _fixed_arguments(field: Field, scheme: ExplicitRK, work: np.ndarray) -> tuple:
    """Without an error estimate the last stage of a first-same-as-last scheme is the first one of the next step."""
    table = scheme.butcher
    used = len(table.b) - conditions.is_fsal(scheme)
    A, b = _table(table.A[:used, :used], work.dtype), _table(table.b[None, :used], work.dtype)
    return field.address, field.p, A, b, _table(table.c[:used], float)


def _adaptive_arguments(field: Field, scheme: ExplicitRK, how: Adaptive, work: np.ndarray, run: np.ndarray) -> tuple:
    table = scheme.butcher
    used = len(table.b) - conditions.is_fsal(scheme)
    A, b = _table(table.A, work.dtype), _table(table.b[None, :used], work.dtype)
    E = _table([table.b - np.array(hat.b) for hat in scheme.embedded], work.dtype)
    norm, exponent = step_control.NORMS[how.norm], 1.0 / error_power(scheme)
    if how.first_step is None:
        choose = step_control.first_step.compiled(work.dtype)
        choose(field.address, field.p, work, how.atol, how.rtol, exponent, norm, np.array([Y, K, Y_NEW, ERROR]), run)
    else:
        run[0]["h"] = np.copysign(how.first_step, run[0]["t_end"] - run[0]["t0"])
    control = step_control.numbers(how.controller, exponent)
    return field.address, field.p, A, b, _table(table.c, float), E, how.atol, how.rtol, control, norm


def _table(values, dtype) -> np.ndarray:
    return np.array(values, dtype=dtype, order="C")


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
            k.append(field(t + table.c[i] * h, y + h * increment))
            yield k[-1]

    return slopes
