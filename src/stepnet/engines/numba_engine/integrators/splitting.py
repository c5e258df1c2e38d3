"""Splitting: the flows of the parts one after the other, over the fractions of the step that the scheme defines.

For q' = dq(t, p), p' = dp(t, q) every flow is exact: q changes with p fixed (drift), p with q fixed (kick).  For a sum
of right-hand sides each flow is one step of a Runge-Kutta scheme of at least the same order.  Every part has its own
time, which advances with its flow; this preserves the order for right-hand sides that depend on time.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import uintp

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, call_steps, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.codegen.steps.fused_steps import find_fused_address, write_steps
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.explicit_rk import evaluate_stage_slopes
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, FULL, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import (
    build_flow_field,
    build_part_field,
    build_part_fields,
    is_flow,
)
from stepnet.engines.numba_engine.rhs.stencil_steps import count_spare_rows, find_stencil_steps
from stepnet.engines.numba_engine.runs.job import (
    Job,
    StageSlopes,
    allocate_work,
    create_run_state,
    find_grid,
    find_save_times,
)
from stepnet.problem import Problem, Split
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program import build_scheme_program, find_inner_scheme

# Rows of a partitioned problem: q, p, their slopes; the same four for a step in progress or an auxiliary step.
Q, P, DQ, DP, ASIDE = range(5)
BEFORE = 2 * ASIDE  # q and p at the beginning of the step, restored if it fails


@inlined
def take_partitioned_step(dq, dp, parameters, parts, fractions, is_known, work, at, t, h, run):
    """Drifts and kicks in place on the four rows from `at`; the slope of the first flow may already be known."""
    q_clock = p_clock = t
    q_known = is_known and parts[0] == 0
    p_known = is_known and parts[0] == 1
    reals = run.reals
    for i in range(parts.shape[0]):
        w = fractions[i] * h
        if parts[i] == 0:
            if dq == 0:  # q' = v
                for k in range(reals):
                    work[at + Q, k] += w * work[at + P, k]
            else:
                if not q_known:
                    if call_field(dq, p_clock, work, at + P, at + DQ, parameters, run.n) != 0:
                        stepping.note_exception(run, 0, i, p_clock, at + P)
                        return False
                    run.evaluations += 1
                    q_known = True
                for k in range(reals):
                    work[at + Q, k] += w * work[at + DQ, k]
            q_clock += w
            p_known = False
        else:
            if not p_known:
                if call_field(dp, q_clock, work, at + Q, at + DP, parameters, run.n) != 0:
                    stepping.note_exception(run, 1, i, q_clock, at + Q)
                    return False
                run.evaluations += 1
                p_known = True
            for k in range(reals):
                work[at + P, k] += w * work[at + DP, k]
            p_clock += w
            q_known = False
    return True


@inlined
def give_up(status, work, run):
    """Restore the beginning of the step, but keep the row on which the right-hand side raised."""
    copy_row(work, run.row_in, ASIDE)
    run.row_in = ASIDE
    copy_row(work, BEFORE + Q, Q)
    copy_row(work, BEFORE + P, P)
    return status


@Kernel
def run_partitioned(dq, dp, steps, parameters, parts, fractions, is_fsal, work, run_, grid, save_at, out_t, out_y):
    """Steps of a separable problem.  If a step ends with the part that begins the next one, its slope is reused.

    `steps` is the address of generated equal steps, or 0.
    """
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        is_known = run.has_slope == 1
        while stepping.is_inside(run, save_at, t_new):
            for row in range(ASIDE):
                copy_row(work, row, ASIDE + row)
            aside = save_at[run.next_save] - t
            if not take_partitioned_step(dq, dp, parameters, parts, fractions, is_known, work, ASIDE, t, aside, run):
                return FIELD_RAISED
            if not (is_finite_row(work, ASIDE + Q) and is_finite_row(work, ASIDE + P)):
                return NOT_FINITE
            stepping.save_wanted(work, ASIDE, 2, run, save_at, out_t, out_y)
        copy_row(work, Q, BEFORE + Q)
        copy_row(work, P, BEFORE + P)
        count = 1
        if steps != 0 and (is_known or is_fsal == 0):
            count = stepping.count_steps_ahead(run) if save_at.shape[0] == 0 else 1
            call_steps(steps, run.t0, run.h, run.step, count, work, parameters)
            run.evaluations += run.per_step * count
        elif not take_partitioned_step(dq, dp, parameters, parts, fractions, is_known, work, 0, t, h, run):
            return give_up(FIELD_RAISED, work, run)
        if not (is_finite_row(work, Q) and is_finite_row(work, P)):
            give_up(NOT_FINITE, work, run)
            if count == 1:
                return NOT_FINITE
            run.stride, run.has_slope = 1, 0  # to find the step at which it happened
            continue
        run.has_slope = is_fsal
        run.step += count - 1
        stepping.finish_step(work, Q, 2, stepping.grid_time(run, grid, run.step + 1), run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


# Rows of a sum of parts: state, copy for an auxiliary step, scratch, and the slopes of the inner scheme.
Y, Y_ASIDE, SCRATCH, K = range(4)


@inlined
def take_sum_step(
    fields, parameters, solved, solution_parameters, step, parts, fractions, A, b, c, clocks, work, at, t, h, run
):
    """Apply the flows in place to row `at`, each by its function or by one step of the inner Runge-Kutta scheme."""
    clocks[:] = t
    s = c.shape[0]
    for i in range(parts.shape[0]):
        part, w = parts[i], fractions[i] * h
        if solved[part] == 1:
            step[0] = w
            solution_parameters[0] = w
            if call_field(uintp(fields[part]), clocks[part], work, at, SCRATCH, solution_parameters, run.n) != 0:
                stepping.note_exception(run, part, i, clocks[part], at)
                return False
            copy_row(work, SCRATCH, at)
            clocks[part] += w
            run.evaluations += 1
            continue
        for j in range(s):
            combine(work, SCRATCH, at, w, A, j, K, j)
            t_stage = clocks[part] + c[j] * w
            if call_field(uintp(fields[part]), t_stage, work, SCRATCH, K + j, parameters, run.n) != 0:
                stepping.note_exception(run, part, i, t_stage, SCRATCH)
                return False
        combine(work, at, at, w, b, 0, K, s)
        clocks[part] += w
        run.evaluations += s
    return True


@Kernel
def run_sum_of_parts(
    fields, parameters, solved, solution_parameters, step, parts, fractions, A, b, c, clocks, work, run_, grid, save_at,
    out_t, out_y,
):  # fmt: skip
    """Steps of y' = f1 + f2 + ...; parts with `solved` = 1 are functions y(t + h), with h in their first parameter."""
    run = run_[0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, grid)
        while stepping.is_inside(run, save_at, t_new):
            copy_row(work, Y, Y_ASIDE)
            aside = save_at[run.next_save] - t
            if not take_sum_step(
                fields, parameters, solved, solution_parameters, step, parts, fractions, A, b, c, clocks, work, Y_ASIDE,
                t, aside, run,
            ):  # fmt: skip
                return FIELD_RAISED
            if not is_finite_row(work, Y_ASIDE):
                return NOT_FINITE
            stepping.save_wanted(work, Y_ASIDE, 1, run, save_at, out_t, out_y)
        copy_row(work, Y, Y_ASIDE)
        if not take_sum_step(
            fields, parameters, solved, solution_parameters, step, parts, fractions, A, b, c, clocks, work, Y_ASIDE, t,
            h, run,
        ):  # fmt: skip
            return FIELD_RAISED
        if not is_finite_row(work, Y_ASIDE):
            return NOT_FINITE
        copy_row(work, Y_ASIDE, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: Splitting, plan: Plan) -> Job:
    """Prepare a run: exact flows for partitioned problems, inner Runge-Kutta steps for sums."""
    return _prepare_sum(problem, scheme, plan) if isinstance(problem, Split) else _prepare_pair(problem, scheme, plan)


def _prepare_pair(problem: Problem, scheme: Splitting, plan: Plan) -> Job:
    dq, dp = build_part_fields(problem)
    initial = problem.initial
    parts, fractions = _list_flows(scheme, 2)
    advance = run_partitioned
    is_second_order = dq.address == 0
    program = build_scheme_program(scheme, 2, False, is_second_order).step
    n_spare = count_spare_rows((dq, dp), program)
    work, run = allocate_work(initial, 2, BEFORE + 2 + n_spare), create_run_state(problem, plan, rows=2)
    steps = 0
    if plan.stepping.grid is None:
        stride, rows = work.shape[1], [Q, P, DP if parts[0] else DQ][: program.n_rows]
        if n_spare:
            steps = find_stencil_steps((dq, dp), program, tuple(rows), BEFORE + 2, stride)
        else:
            write = partial(write_steps, program, rows, stride)
            steps = find_fused_address((dq, dp), program, stride, "steps", write, len(parts))
    run[0]["per_step"] = count_evaluations_per_step(scheme, is_second_order)
    head = (dq.address, dp.address, steps, dp.p, parts, fractions, int(scheme.is_fsal))

    def go(out):
        return advance(*head, work, run, find_grid(plan), find_save_times(plan), out.t, out.y)

    def slopes(t, y, h):
        q, p = np.split(y, 2)
        clocks, still = [t, t], np.zeros_like(q)
        for part, fraction in scheme.sequence():
            given = (clocks[1], p) if part == 0 else (clocks[0], q)
            slope = (dq, dp)[part](*given)
            yield StageSlopes(np.concatenate((slope, still) if part == 0 else (still, slope)), *given, part)
            q, p = (q + fraction * h * slope, p) if part == 0 else (q, p + fraction * h * slope)
            clocks[part] += fraction * h

    return Job(go, run, work, 2, (dq, dp), initial.dtype, slopes)


def _prepare_sum(problem: Split, scheme: Splitting, plan: Plan) -> Job:
    step = np.zeros(1)
    fields, solved = _build_sum_fields(problem, step)
    initial = problem.initial
    inner = find_inner_scheme(scheme.order).butcher
    work, run = allocate_work(initial, 1, K + len(inner.b)), create_run_state(problem, plan)
    parts, fractions = _list_flows(scheme, len(fields))
    A, b = np.array(inner.A, work.dtype), np.array(inner.b[None, :], work.dtype)
    addresses = np.array([field.address for field in fields])
    parameters = _find_parameters(fields, solved, 0), _find_parameters(fields, solved, 1)
    advance = run_sum_of_parts
    head = (
        addresses, parameters[0], solved, parameters[1], step, parts, fractions, A, b, np.array(inner.c),
        np.zeros(len(fields)),
    )  # fmt: skip

    def go(out):
        return advance(*head, work, run, find_grid(plan), find_save_times(plan), out.t, out.y)

    def slopes(t, y, h):
        clocks = [t] * len(fields)
        for part, fraction in scheme.sequence(len(fields)):
            if solved[part]:
                step[0] = parameters[1][0] = fraction * h
                moved = fields[part](clocks[part], y)
                yield StageSlopes(moved, clocks[part], y, part)
                y = moved
            else:
                k = []
                for found in evaluate_stage_slopes(fields[part], inner)(clocks[part], y, fraction * h):
                    k.append(found.slopes)
                    yield found._replace(part=part)
                y = y + fraction * h * sum(b * slope for b, slope in zip(inner.b, k, strict=True))
            clocks[part] += fraction * h

    return Job(go, run, work, 1, fields, initial.dtype, slopes)


def _build_sum_fields(problem: Split, step: np.ndarray) -> tuple[tuple[CompiledRHS, ...], np.ndarray]:
    """The fields of the parts, and which of them are solutions."""
    solved = np.array([is_flow(problem, i) for i in range(len(problem.parts))], np.int64)
    if not solved.any():
        return build_part_fields(problem), solved
    fields = [
        build_flow_field(problem, i, step) if solved[i] else build_part_field(problem, i) for i in range(len(solved))
    ]
    return tuple(fields), solved


def _find_parameters(fields: tuple[CompiledRHS, ...], solved: np.ndarray, kind: int) -> np.ndarray:
    """The parameters that all right-hand sides (0) or all solutions (1) share."""
    return next((field.p for field, one in zip(fields, solved, strict=True) if one == kind), np.zeros(1))


def count_evaluations_per_step(scheme: Splitting, is_second_order: bool) -> int:
    """Evaluations of right-hand sides per step; a slope that is reused is not counted again."""
    flows = scheme.sequence()
    parts = [part for part, _ in flows][1 if scheme.is_fsal else 0 :]
    return sum(1 for part in parts if not (is_second_order and part == 0))


def _list_flows(scheme: Splitting, parts: int) -> tuple[np.ndarray, np.ndarray]:
    flows = scheme.sequence(parts)
    return np.array([part for part, _ in flows]), np.array([fraction for _, fraction in flows])
