"""Step output: events, save times, dense output and projection; and how a step is completed."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import check_once, compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import events, stepping
from stepnet.engines.numba_engine.integrators.dense_output import (
    ASIDE,
    Y_NEW,
    K,
    Y,
    evaluate_stages,
    extend,
    interpolate,
    keep_piece,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, EVENT, FIELD_RAISED, NOT_FINITE
from stepnet.engines.numba_engine.runs.job import NO_TIMES, find_save_times


@check_once
class OutputRequest(NamedTuple):
    """The step output that a run computes."""

    watch: events.EventState
    save_at: np.ndarray
    is_dense: int
    is_aside: int  # save times by auxiliary steps, not by the continuous extension
    project: int  # address of a function that replaces each new state, or 0


class OutputBuffers(NamedTuple):
    """Arrays for saved states and for the polynomials of dense output."""

    t: np.ndarray
    y: np.ndarray
    piece_t: np.ndarray
    pieces: np.ndarray


def build_output_request(plan: Plan, watch: events.EventState, moved, is_aside: bool) -> OutputRequest:
    """The step output of a plan; `moved` holds the field of its projection, if there is one."""
    if not (plan.events or plan.dense or moved) and plan.saving.at is None:
        return request_nothing(watch.y.shape[1], watch.y.dtype, is_aside)
    return OutputRequest(watch, find_save_times(plan), int(plan.dense), int(is_aside), moved[0].address if moved else 0)


@lru_cache(maxsize=64)
def request_nothing(reals: int, dtype, is_aside: bool) -> OutputRequest:
    """The request without step output, one instance for all runs with such states."""
    return OutputRequest(events.watch_nothing(reals, dtype), NO_TIMES, 0, int(is_aside), 0)


@inlined
def is_nothing_wanted(needs):
    """Whether there is no step output, the common case, which skips everything else."""
    is_plain = needs.is_dense == 0 and needs.project == 0
    return is_plain and needs.watch.values.shape[0] == 0 and needs.save_at.shape[0] == 0


@compiled
def is_full(needs, run, out):
    """Whether the next step may lack space for events or dense output."""
    if needs.is_dense and run.n_pieces == out.piece_t.shape[0]:
        return True
    n = needs.watch.values.shape[0]
    return n > 0 and run.n_found + 2 * events.SAMPLES * n > needs.watch.t.shape[0]


@inlined
def evaluate_at_time(field, p, tables, is_aside, work, length, h, run):
    """work[ASIDE] = y(t + length), by a step of that length or by the continuous extension of the step of length h."""
    if is_aside:
        used, aside = tables.b.shape[1], K + tables.c.shape[0] + tables.R.shape[0]
        copy_row(work, K, aside)
        if not evaluate_stages(field, p, tables.A, tables.c, work, Y, ASIDE, aside, 1, used, run.t, length, run):
            return False
        combine(work, ASIDE, Y, length, tables.b, 0, aside, used)
    else:
        interpolate(tables, work, length / h, h, run)
    return True


@inlined
def save_between(field, p, tables, needs, work, t_new, h, run, out):
    """Save the states at save times inside a step; the main steps never depend on them."""
    while stepping.is_inside(run, needs.save_at, t_new):
        length = (needs.save_at[run.next_save] - run.t) - run.t_low
        if not evaluate_at_time(field, p, tables, needs.is_aside, work, length, h, run):
            return FIELD_RAISED
        if not is_finite_row(work, ASIDE):
            return NOT_FINITE
        stepping.save_wanted(work, ASIDE, 1, run, needs.save_at, out.t, out.y)
    return DONE


@compiled
def look_inside(field, p, tables, needs, work, known, t_new, h, run, out):
    """Compute the step output: DONE, EVENT if the run stops (at run.theta), or a failure."""
    has_events = needs.watch.values.shape[0] > 0
    is_interpolated = needs.is_aside == 0 and stepping.is_inside(run, needs.save_at, t_new)
    is_extended = has_events or needs.is_dense or is_interpolated
    if is_extended and not extend(field, p, tables, work, known, h, run):
        return FIELD_RAISED
    if has_events:
        run.theta = events.look_for_events(tables, needs.watch, work, t_new, h, run)
        if run.theta == events.RAISED:
            return FIELD_RAISED
    t_stop = run.t + run.theta * h if run.theta < 1.0 else t_new
    status = save_between(field, p, tables, needs, work, t_stop, h, run, out)
    if status != DONE:
        return status
    if needs.is_dense:
        keep_piece(tables, work, h, run, out)
    run.has_slope = 1 if is_extended or tables.new < known else 0
    if run.theta <= 1.0:
        interpolate(tables, work, run.theta, h, run)
        copy_row(work, ASIDE, Y_NEW)
        run.has_slope = 0
        return EVENT
    if needs.project != 0:
        run.has_slope = 0
        if call_field(needs.project, t_new, work, Y_NEW, ASIDE, needs.watch.p, run.n) != 0:
            return stepping.note_exception(run, 1 + needs.watch.values.shape[0], 0, t_new, Y_NEW)
        copy_row(work, ASIDE, Y_NEW)
    return DONE


@inlined
def complete(field, p, tables, needs, is_simple, work, known, t_new, h, run, out):
    """Complete a step whose new state is computed: compute its output and advance to its end, or to an event inside it.

    DONE, EVENT if the run stops here, or a failure; run.theta < 1 if the end of the step is not reached.
    """
    status = DONE
    run.theta = events.NEVER
    if is_simple:
        run.has_slope = 1 if tables.new < known else 0
    else:
        status = look_inside(field, p, tables, needs, work, known, t_new, h, run, out)
        if status != DONE and status != EVENT:
            run.theta = events.RAISED
            return status
    if run.has_slope:
        copy_row(work, K + tables.new, K)
    copy_row(work, Y_NEW, Y)
    if run.theta < 1.0:
        run.t, run.t_low, run.is_cut = run.t + run.theta * h, 0.0, 1
        while stepping.is_due(run, needs.save_at, run.t):
            stepping.save_wanted(work, Y, 1, run, needs.save_at, out.t, out.y)
    else:
        stepping.finish_step(work, Y, 1, t_new, run, needs.save_at, out.t, out.y)
    if status == EVENT and run.save_every > 0 and (run.saved == 0 or out.t[run.saved - 1] != run.t):
        stepping.save(work, Y, 1, run.t, run, out.t, out.y)
    return status
