"""Explicit multistep: y_{n+1} = sum alpha_j y_{n-j} + h^d sum beta_j f_{n-j}.  The history is part of the state.

States and slopes of the last steps are stored in ring buffers: step i in slot i modulo the length of the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import copysign
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from stepnet.engines.contract import FixedSteps, Outcome, Plan, Saving
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.families import find_executor
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, FULL, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field, build_part_fields
from stepnet.engines.numba_engine.runs.driver import StartFailed, drive
from stepnet.engines.numba_engine.runs.job import Job, StageSlopes, allocate_work, create_run_state, find_save_times
from stepnet.problem import Problem
from stepnet.schemes.capabilities import find_derivative_order
from stepnet.schemes.multistep import Multistep
from stepnet.solution import Status

# Rows of `work`: state (q and v for second-order problems), new state, interpolated state, then the two rings.
STATE, NEW, BETWEEN, RINGS = 0, 2, 4, 6


@inlined
def advance_history(field, p, alpha, beta, power, work, h, run):
    """work[NEW] = the next state, from the rings; False if the right-hand side raised."""
    length = (work.shape[0] - RINGS) // 2
    n, reals, slopes = run.step, run.reals, RINGS + length
    now = n % length
    if run.has_slope == 0:
        if call_field(field, run.t, work, RINGS + now, slopes + now, p, run.n) != 0:
            stepping.note_exception(run, 0, 0, run.t, RINGS + now)
            return False
        run.evaluations += 1
    for k in range(reals):
        work[NEW, k] = 0.0
    for j in range(alpha.shape[0]):
        row = RINGS + (n - j) % length
        for k in range(reals):
            work[NEW, k] += alpha[j] * work[row, k]
    for j in range(beta.shape[0]):
        row, w = slopes + (n - j) % length, beta[j] * h**power
        for k in range(reals):
            work[NEW, k] += w * work[row, k]
    run.has_slope = 0
    return True


@inlined
def append_slope(field, p, work, t_new, run):
    """Store the new state and its slope in the rings; False if the right-hand side raised."""
    length = (work.shape[0] - RINGS) // 2
    slot = (run.step + 1) % length
    copy_row(work, NEW, RINGS + slot)
    if call_field(field, t_new, work, NEW, RINGS + length + slot, p, run.n) != 0:
        stepping.note_exception(run, 0, 0, t_new, NEW)
        return False
    run.evaluations += 1
    run.has_slope = 1
    return True


@inlined
def interpolate(interpolant, work, theta, h, run):
    """work[BETWEEN] = y_n + h sum_i B_i(theta) f_{n+1-i}: the integral of the polynomial through the last slopes."""
    length = (work.shape[0] - RINGS) // 2
    copy_row(work, STATE, BETWEEN)
    for i in range(interpolant.shape[0]):
        weight = 0.0
        for m in range(interpolant.shape[1] - 1, -1, -1):
            weight = theta * (weight + interpolant[i, m])
        row = RINGS + length + (run.step + 1 - i) % length
        for k in range(run.reals):
            work[BETWEEN, k] += h * weight * work[row, k]


@Kernel
def run_first_order(field, p, alpha, beta, interpolant, work, run_, save_at, out_t, out_y):
    """Equal steps of y' = f(t, y)."""
    run = run_[0]
    no_grid = save_at[:0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, no_grid)
        if not advance_history(field, p, alpha, beta, 1, work, h, run):
            return FIELD_RAISED
        if not is_finite_row(work, NEW):
            return NOT_FINITE
        if not append_slope(field, p, work, t_new, run):
            return FIELD_RAISED
        while stepping.is_inside(run, save_at, t_new):
            interpolate(interpolant, work, (save_at[run.next_save] - t) / h, h, run)
            if not is_finite_row(work, BETWEEN):
                return NOT_FINITE
            stepping.save_wanted(work, BETWEEN, 1, run, save_at, out_t, out_y)
        copy_row(work, NEW, STATE)
        stepping.finish_step(work, STATE, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


@inlined
def interpolate_hermite(work, before, slope_before, after, slope_after, target, theta, h, reals):
    """work[target] = the cubic with these values and slopes at both ends of the step."""
    a = theta * theta * (3 - 2 * theta)
    b, c = theta * (1 - theta) * (1 - theta) * h, -theta * theta * (1 - theta) * h
    for k in range(reals):
        values = (1 - a) * work[before, k] + a * work[after, k]
        work[target, k] = values + b * work[slope_before, k] + c * work[slope_after, k]


@Kernel
def run_second_order(field, p, alpha, beta, work, run_, save_at, out_t, out_y):
    """Equal steps of q'' = a(t, q); v is the central difference, (q_{n+1} - q_n) / h + h a_{n+1} / 2."""
    run = run_[0]
    no_grid = save_at[:0]
    length = (work.shape[0] - RINGS) // 2
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, no_grid)
        if not advance_history(field, p, alpha, beta, 2, work, h, run):
            return FIELD_RAISED
        if not is_finite_row(work, NEW):
            return NOT_FINITE
        if not append_slope(field, p, work, t_new, run):
            return FIELD_RAISED
        old_a, new_a = RINGS + length + run.step % length, RINGS + length + (run.step + 1) % length
        for k in range(run.reals):
            work[NEW + 1, k] = (work[NEW, k] - work[STATE, k]) / h + 0.5 * h * work[new_a, k]
        if not is_finite_row(work, NEW + 1):
            return NOT_FINITE
        while stepping.is_inside(run, save_at, t_new):
            theta = (save_at[run.next_save] - t) / h
            interpolate_hermite(work, STATE, STATE + 1, NEW, NEW + 1, BETWEEN, theta, h, run.reals)
            interpolate_hermite(work, STATE + 1, old_a, NEW + 1, new_a, BETWEEN + 1, theta, h, run.reals)
            if not (is_finite_row(work, BETWEEN) and is_finite_row(work, BETWEEN + 1)):
                return NOT_FINITE
            stepping.save_wanted(work, BETWEEN, 2, run, save_at, out_t, out_y)
        copy_row(work, NEW, STATE)
        copy_row(work, NEW + 1, STATE + 1)
        stepping.finish_step(work, STATE, 2, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: Multistep, plan: Plan) -> Job:
    """Prepare a run of explicit steps."""
    return prepare_with_history(problem, scheme, plan, _prepare)


def prepare_with_history(problem: Problem, scheme, plan: Plan, continue_run: Callable[..., Job]) -> Job:
    """Start with the one-step scheme that the record names, then continue from the history it has computed.

    `continue_run(problem, scheme, plan, start, n_started)` prepares the steps after these.
    """
    n_steps, n_started = plan.stepping.n_steps, scheme.n_steps - 1
    t0, t1 = problem.t_span
    if n_steps <= n_started or t0 == t1:
        return find_executor(scheme.starter)(problem, scheme.starter, plan)
    opening = replace(problem, t_span=(t0, t0 + n_started * ((t1 - t0) / n_steps)))
    start = _run_starter(opening, scheme.starter, Plan(FixedSteps(n_started), Saving(None, 1)))
    job = continue_run(problem, scheme, plan, start, n_started)
    prefix, n_evaluations = _record_start(opening, scheme, plan, start)
    job.run[0]["evaluations"] += n_evaluations
    return job._replace(prefix=prefix)


def _run_starter(opening: Problem, starter, plan: Plan) -> Outcome:
    outcome = drive(find_executor(starter)(opening, starter, plan), opening, plan, starter)
    if outcome.status is not Status.COMPLETED:
        raise StartFailed(outcome)
    return outcome


def _record_start(opening: Problem, scheme, plan: Plan, start: Outcome) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """The states saved during the starting procedure, and the evaluations that this takes."""
    every, wanted = plan.saving.every, plan.saving.at
    if wanted is None:
        kept = slice(None, None, every) if every else slice(0, 0)
        return (start.t[kept], start.y[kept]), 0
    direction = copysign(1.0, opening.t_span[1] - opening.t_span[0])
    early = wanted[(wanted - opening.t_span[1]) * direction <= 0]
    if not early.size:
        return (early, start.y[:0]), 0
    aside = _run_starter(opening, scheme.starter, Plan(FixedSteps(len(start.t) - 1), Saving(early, 1)))
    return (aside.t, aside.y), aside.statistics.evaluations


def _prepare(problem: Problem, scheme: Multistep, plan: Plan, start: Outcome, n_started: int) -> Job:
    is_second = find_derivative_order(scheme) == 2
    field = build_part_fields(problem)[1] if is_second else build_full_field(problem)
    rows = 2 if is_second else 1
    length = scheme.n_steps + 1
    work, run = allocate_work(problem.initial, rows, RINGS + 2 * length), create_run_state(problem, plan, rows)
    reals = int(run[0]["reals"])
    states = start.y.view(work.dtype)
    work[RINGS : RINGS + n_started + 1, :reals] = states[: n_started + 1, :reals]
    work[:rows, :reals] = states[-1].reshape(rows, reals)
    r = run[0]
    r["step"], r["t"], r["evaluations"] = n_started, start.t[-1], start.statistics.evaluations
    for i in range(n_started):
        slopes = field(start.t[i], np.ascontiguousarray(start.y[i, : field_size(problem, rows)]))
        work[RINGS + length + i, :reals] = slopes.view(work.dtype)
        r["evaluations"] += 1
    alpha, beta = np.array(scheme.alpha), np.array(scheme.beta)
    head: tuple[Any, ...]
    if is_second:
        advance = run_second_order
        head = (field.address, field.p, alpha, beta, work, run, find_save_times(plan))
    else:
        advance = run_first_order
        head = (
            field.address,
            field.p,
            alpha,
            beta,
            find_slope_interpolant(scheme.n_steps + 1),
            work,
            run,
            find_save_times(plan),
        )

    def go(out):
        return advance(*head, out.t, out.y)

    def slopes_of_step(t, y, h):
        size = field_size(problem, rows)
        still = np.zeros(size if is_second else 0, y.dtype)
        slope = field(t, y[:size])
        yield StageSlopes(np.concatenate((still, slope)), t, y[:size])
        moved = y[:size] + h * (y[size:] if is_second else slope)
        slope = field(t + h, moved)
        yield StageSlopes(np.concatenate((still, slope)), t + h, moved)

    return Job(go, run, work, rows, (field,), problem.initial.dtype, slopes_of_step)


def field_size(problem: Problem, rows: int) -> int:
    """The number of entries of the flat state that the right-hand side takes."""
    return problem.initial.size // rows


def find_slope_interpolant(nodes: int) -> np.ndarray:
    """Coefficients of B_i(theta) = int_0^theta L_i(s) ds, L_i the Lagrange polynomials on s = 1, 0, -1, ...

    Row i holds the coefficients of theta, theta^2, ...
    """
    s = 1.0 - np.arange(nodes)
    rows = []
    for i in range(nodes):
        others = np.delete(s, i)
        lagrange = Polynomial.fromroots(others) / np.prod(s[i] - others)
        rows.append(lagrange.integ().coef[1:])
    return np.array(rows)
