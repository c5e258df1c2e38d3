"""Equal steps of many members in lanes, the same number in each; and their adjoint with respect to the initial states.

The adjoint stores the state at the beginning of every segment of steps, and all states of one segment at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.primitives import (
    call_reverse_in_lanes,
    call_steps_in_lanes,
    call_sweep_in_lanes,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, PAUSED


class LockstepSteps(NamedTuple):
    """Equal steps: addresses of the starting procedure and of the steps, their numbers, and the save times.

    Save time j is the fraction `after[j, 1]` of a step after step `after[j, 0]`; `state` lists the rows of the state.
    """

    opening: int
    steps: int
    n_opening: int
    n_steps: int
    after: np.ndarray
    state: np.ndarray


class LaneGroup(NamedTuple):
    """Workspace of a thread: initial times and lengths of steps, rows of the state, an auxiliary step, parameters."""

    t0: np.ndarray
    h: np.ndarray
    work: np.ndarray
    aside: np.ndarray
    t_aside: np.ndarray
    h_aside: np.ndarray
    p: np.ndarray
    place: np.ndarray


@compiled
def take_group(starts, even, group, n):
    """Load the next members into the lanes; unused lanes repeat the last member."""
    first, last = group.place[0], group.place[1]
    group.work[:] = 0.0
    for lane in range(LANES):
        i = min(first + lane, last - 1)
        t_span = starts.t_span[i % starts.t_span.shape[0]]
        group.t0[lane], group.h[lane] = t_span[0], (t_span[1] - t_span[0]) / even.n_steps
        for part in range(even.state.shape[0]):
            for k in range(n):
                group.work[even.state[part] * n + k, lane] = starts.y0[i % starts.y0.shape[0], part * n + k]
        for j in range(starts.p.shape[1]):
            group.p[j, lane] = starts.p[i % starts.p.shape[0], j]


@compiled
def open_group(even, group):
    """Run the starting procedure of a scheme that carries more than the state."""
    call_steps_in_lanes(even.opening, group.t0, group.h, 0, 1, group.work, group.p)
    group.place[2] = even.n_opening


@compiled
def store_group(ends, even, group, work, j, n):
    """Store the states of the lanes as the j-th saved states of their members."""
    first, last = group.place[0], group.place[1]
    for lane in range(min(LANES, last - first)):
        for part in range(even.state.shape[0]):
            for k in range(n):
                ends.y[first + lane, j, part * n + k] = work[even.state[part] * n + k, lane]


@compiled
def look_aside(even, group, j):
    """group.aside = the state at save time j, which lies in the next step."""
    for row in range(group.work.shape[0]):
        for lane in range(LANES):
            group.aside[row, lane] = group.work[row, lane]
    theta = even.after[j, 1]
    if theta > 0.0:
        for lane in range(LANES):
            group.t_aside[lane] = group.t0[lane] + group.place[2] * group.h[lane]
            group.h_aside[lane] = theta * group.h[lane]
        call_steps_in_lanes(even.steps, group.t_aside, group.h_aside, 0, 1, group.aside, group.p)


@Kernel
def run_lockstep(even, starts, ends, group, n, most):
    """Equal steps of the members from place[0] to place[1], at most `most` steps; PAUSED if some are left."""
    place, done = group.place, 0
    while place[0] < place[1]:
        if place[2] == 0:
            take_group(starts, even, group, n)
            open_group(even, group)
            place[3] = 0
        while place[2] < even.n_steps or place[3] < even.after.shape[0]:
            count = even.n_steps - place[2]
            if place[3] < even.after.shape[0]:
                count = int(even.after[place[3], 0]) - place[2]
                if count == 0:
                    look_aside(even, group, place[3])
                    store_group(ends, even, group, group.aside, place[3], n)
                    place[3] += 1
                    continue
            if done >= most:
                return PAUSED
            count = min(count, most - done)
            call_steps_in_lanes(even.steps, group.t0, group.h, place[2], count, group.work, group.p)
            place[2] += count
            done += count
        if even.after.shape[0] == 0:
            store_group(ends, even, group, group.work, 0, n)
        place[0] += LANES
        place[2] = 0
    return DONE


class LockstepAdjoint(NamedTuple):
    """Addresses of the sweep and of the adjoints of steps and starting procedure; `segment` steps are stored."""

    sweep: int
    reverse: int
    reverse_opening: int
    segment: int


class MemberGradients(NamedTuple):
    """Gradients of all members with respect to their end states (given), initial states and parameters (computed)."""

    end: np.ndarray
    y0: np.ndarray
    p: np.ndarray


class LaneCheckpoints(NamedTuple):
    """What a thread stores of a group: states at the beginning of segments, states within one, and the gradients."""

    first: np.ndarray
    marks: np.ndarray
    states: np.ndarray
    bar: np.ndarray
    p_bar: np.ndarray
    nothing: np.ndarray


@compiled
def copy_rows(source, first, target, start, count):
    """target[start:] = source[first:], `count` rows."""
    for row in range(count):
        for lane in range(LANES):
            target[start + row, lane] = source[first + row, lane]


@compiled
def put_end_gradients(bars, even, group, kept, n):
    kept.bar[:] = 0.0
    kept.p_bar[:] = 0.0
    for lane in range(LANES):
        i = min(group.place[0] + lane, group.place[1] - 1)
        for part in range(even.state.shape[0]):
            for k in range(n):
                kept.bar[even.state[part] * n + k, lane] = bars.end[i, part * n + k]


@compiled
def take_gradients(bars, even, group, kept, n):
    for lane in range(min(LANES, group.place[1] - group.place[0])):
        i = group.place[0] + lane
        for part in range(even.state.shape[0]):
            for k in range(n):
                bars.y0[i, part * n + k] = kept.bar[even.state[part] * n + k, lane]
        for j in range(bars.p.shape[1]):
            bars.p[i, j] = kept.p_bar[j, lane]


@Kernel
def pull_back(even, back, starts, bars, group, kept, n):
    """Compute gradients of one group of the members from place[0] to place[1]; PAUSED if some are left."""
    rows = group.work.shape[0]
    take_group(starts, even, group, n)
    copy_rows(group.work, 0, kept.first, 0, rows)
    open_group(even, group)
    n_own = even.n_steps - even.n_opening
    n_segments = (n_own + back.segment - 1) // back.segment
    t0, h, p, nothing = group.t0, group.h, group.p, kept.nothing
    for j in range(n_segments):
        copy_rows(group.work, 0, kept.marks, j * rows, rows)
        first = even.n_opening + j * back.segment
        call_steps_in_lanes(even.steps, t0, h, first, min(back.segment, even.n_steps - first), group.work, p)
    put_end_gradients(bars, even, group, kept, n)
    for j in range(n_segments - 1, -1, -1):
        copy_rows(kept.marks, j * rows, group.work, 0, rows)
        first = even.n_opening + j * back.segment
        count = min(back.segment, even.n_steps - first)
        call_sweep_in_lanes(back.sweep, t0, h, first, count, nothing, group.work, kept.states, rows, p)
        call_reverse_in_lanes(back.reverse, t0, h, first, count, nothing, kept.states, kept.bar, kept.p_bar, nothing, p)
    if back.reverse_opening != 0:
        call_reverse_in_lanes(back.reverse_opening, t0, h, 0, 1, nothing, kept.first, kept.bar, kept.p_bar, nothing, p)
    take_gradients(bars, even, group, kept, n)
    group.place[0] += LANES
    return DONE if group.place[0] >= group.place[1] else PAUSED
