"""Kernels that assign members of an ensemble to lanes: a lane whose member is complete takes the next one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled, inlined
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.primitives import call_field, call_lane_attempts, copy_row
from stepnet.engines.numba_engine.codegen.steps import lane_steps
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.dense_output import ASIDE, ERROR, Y_NEW, K, Y, extend
from stepnet.engines.numba_engine.integrators.step_control import choose_first_step
from stepnet.engines.numba_engine.integrators.step_output import evaluate_at_time
from stepnet.engines.numba_engine.integrators.stepping import DONE, NOT_FINITE, PAUSED, STEP_LIMIT, STEP_TOO_SMALL

IDLE = -1
ROWS_OF_FIRST_LOOK = (Y, K, Y_NEW, ERROR)
T, T_LOW, H, LOG_1, LOG_2, WAS_REJECTED, ACCEPTED, REJECTED = lane_steps.CHANGING
T_END, H_MAX, MOST, T_WANTED = lane_steps.T_END, lane_steps.H_MAX, lane_steps.MOST, lane_steps.T_WANTED
IS_LIVE, OUTCOME, T_OLD, T_LOW_OLD, H_OLD = (
    lane_steps.IS_LIVE,
    lane_steps.OUTCOME,
    lane_steps.T_OLD,
    lane_steps.T_LOW_OLD,
    lane_steps.H_OLD,
)
NOTHING, FINISHED, TOO_SMALL = lane_steps.NOTHING, lane_steps.FINISHED, lane_steps.TOO_SMALL
USED_UP, WANTED = lane_steps.USED_UP, lane_steps.WANTED


class MemberStarts(NamedTuple):
    """Initial data of members, one row each or one for all: index `i % len`."""

    y0: np.ndarray
    p: np.ndarray
    t_span: np.ndarray
    rtol: np.ndarray
    atol: np.ndarray
    save_at: np.ndarray
    first_step: float  # 0: chosen automatically
    max_step: float
    max_steps: float


class MemberEnds(NamedTuple):
    """Results of members: states at save times (or at the end), end time, counts and status."""

    y: np.ndarray
    t: np.ndarray
    accepted: np.ndarray
    rejected: np.ndarray
    evaluations: np.ndarray
    saved: np.ndarray
    code: np.ndarray


class LaneWorkspace(NamedTuple):
    """Workspace of a thread: the rows of its lanes, the arrays of one member, and the assignment of members to lanes.

    `place` holds the member in each lane, the number of save times it has passed, the next member and the last.
    """

    rows: np.ndarray
    work: np.ndarray
    runs: np.ndarray
    p: np.ndarray
    place: np.ndarray


NEXT, LAST = 2 * LANES, 2 * LANES + 1


@inlined
def start_member(starts, i, how, scratch, field):
    """Put member i into the scratch arrays and choose its first step."""
    run, work = scratch.runs[0], scratch.work
    t_span = starts.t_span[i % starts.t_span.shape[0]]
    run.t0, run.t_end = t_span[0], t_span[1]
    run.t, run.t_low, run.has_slope, run.h_max = run.t0, 0.0, 0, starts.max_step
    for k in range(run.n):
        work[Y, k] = starts.y0[i % starts.y0.shape[0], k]
        how.rtol[k] = starts.rtol[i % starts.rtol.shape[0], k]
        how.atol[k] = starts.atol[i % starts.atol.shape[0], k]
    for j in range(starts.p.shape[1]):
        scratch.p[j] = starts.p[i % starts.p.shape[0], j]
    if starts.first_step > 0.0:
        call_field(field, run.t, work, Y, K, scratch.p, run.n)
        run.h = np.copysign(min(starts.first_step, starts.max_step), run.t_end - run.t0)
        return 1
    choose_first_step(field, scratch.p, work, how, ROWS_OF_FIRST_LOOK, run)
    return 2


@inlined
def find_next_wanted(starts, i, count):
    """The next save time of member i, beyond the end if there is none."""
    save_at = starts.save_at
    if count < save_at.shape[1]:
        return save_at[i % save_at.shape[0], count]
    t_span = starts.t_span[i % starts.t_span.shape[0]]
    return np.inf if t_span[1] >= t_span[0] else -np.inf


@compiled
def take_member(starts, ends, i, lane, how, places, scratch, field):
    """Assign member i to a lane."""
    rows, run, work = scratch.rows, scratch.runs[0], scratch.work
    ends.evaluations[i] = start_member(starts, i, how, scratch, field)
    scratch.place[lane] = i
    rows[T, lane], rows[T_LOW, lane], rows[H, lane] = run.t0, 0.0, run.h
    rows[LOG_1, lane] = rows[LOG_2, lane] = rows[WAS_REJECTED, lane] = 0.0
    rows[ACCEPTED, lane] = rows[REJECTED, lane] = 0.0
    rows[T_END, lane], rows[H_MAX, lane], rows[MOST, lane] = run.t_end, starts.max_step, starts.max_steps
    rows[IS_LIVE, lane] = 1.0
    for k in range(run.n):
        rows[places.y + k, lane] = work[Y, k]
        rows[places.slope + k, lane] = work[K, k]
        rows[places.atol + k, lane] = how.atol[k]
        rows[places.rtol + k, lane] = how.rtol[k]
    for j in range(scratch.p.shape[0]):
        rows[places.p + j, lane] = scratch.p[j]
    count = 0
    while count < starts.save_at.shape[1] and find_next_wanted(starts, i, count) == run.t0:
        for k in range(run.n):
            ends.y[i, count, k] = work[Y, k]
        count += 1
    scratch.place[LANES + lane] = count
    rows[T_WANTED, lane] = find_next_wanted(starts, i, count)


@compiled
def leave(starts, ends, lane, code, places, scratch):
    """Store the results of the member in a lane, which is complete."""
    i, rows, run = scratch.place[lane], scratch.rows, scratch.runs[0]
    ends.t[i] = rows[T, lane]
    ends.accepted[i], ends.rejected[i] = int(rows[ACCEPTED, lane]), int(rows[REJECTED, lane])
    ends.code[i] = code
    ends.saved[i] = scratch.place[LANES + lane]
    if starts.save_at.shape[1] == 0:
        for k in range(run.n):
            ends.y[i, 0, k] = rows[places.y + k, lane]
    rows[IS_LIVE, lane] = 0.0
    scratch.place[lane] = IDLE


@compiled
def save_wanted(starts, ends, lane, field, tables, is_aside, places, scratch):
    """Save the states at the save times inside the step that a lane has just taken, by its continuous extension."""
    i, rows, run, work = scratch.place[lane], scratch.rows, scratch.runs[0], scratch.work
    n, n_stages, count = run.n, tables.n_stages, scratch.place[LANES + lane]
    t_span = starts.t_span[i % starts.t_span.shape[0]]
    run.t0, run.t_end, run.has_slope = t_span[0], t_span[1], 1
    run.t, run.t_low, h, t_new = rows[T_OLD, lane], rows[T_LOW_OLD, lane], rows[H_OLD, lane], rows[T, lane]
    for k in range(n):
        work[Y, k] = rows[places.y_old + k, lane]
        work[Y_NEW, k] = rows[places.y + k, lane]
        for j in range(n_stages):
            work[K + j, k] = rows[places.stages + j * n + k, lane]
    for j in range(scratch.p.shape[0]):
        scratch.p[j] = rows[places.p + j, lane]
    save_at = starts.save_at[i % starts.save_at.shape[0]]
    run.next_save, run.evaluations = count, 0
    if is_aside == 0 and stepping.is_inside(run, save_at, t_new):
        extend(field, scratch.p, tables, work, n_stages, h, run)
    while stepping.is_due(run, save_at, t_new):
        if stepping.is_inside(run, save_at, t_new):
            length = (save_at[run.next_save] - run.t) - run.t_low
            evaluate_at_time(field, scratch.p, tables, is_aside, work, length, h, run)
        else:
            copy_row(work, Y_NEW, ASIDE)
        for k in range(n):
            ends.y[i, run.next_save, k] = work[ASIDE, k]
        run.next_save += 1
    ends.evaluations[i] += run.evaluations
    scratch.place[LANES + lane] = run.next_save
    rows[T_WANTED, lane] = find_next_wanted(starts, i, run.next_save)


@inlined
def convert_outcome(outcome):
    """The code with which a member ended, from the status of its lane."""
    if outcome == FINISHED:
        return DONE
    if outcome == USED_UP:
        return STEP_LIMIT
    return STEP_TOO_SMALL if outcome == TOO_SMALL else NOT_FINITE


@Kernel
def run_lanes(code, field, tables, how, is_aside, places, starts, ends, scratch, most):
    """Run members from place[NEXT] to place[LAST], for at most `most` attempts; PAUSED if some are left."""
    place, rows = scratch.place, scratch.rows
    done = 0
    while done < most:
        n_live = 0
        for lane in range(LANES):
            while place[lane] == IDLE and place[NEXT] < place[LAST]:
                i = place[NEXT]
                place[NEXT] += 1
                take_member(starts, ends, i, lane, how, places, scratch, field)
                if rows[T, lane] == rows[T_END, lane]:
                    leave(starts, ends, lane, DONE, places, scratch)
            n_live += place[lane] != IDLE
        if n_live == 0:
            return DONE
        done += call_lane_attempts(code, rows, most - done)
        for lane in range(LANES):
            outcome = rows[OUTCOME, lane]
            if place[lane] == IDLE or outcome == NOTHING:
                continue
            if (outcome == FINISHED or outcome == WANTED) and starts.save_at.shape[1] > 0:  # noqa: SIM109  compiled
                save_wanted(starts, ends, lane, field, tables, is_aside, places, scratch)
            if outcome != WANTED:
                leave(starts, ends, lane, convert_outcome(outcome), places, scratch)
    return PAUSED
