"""Equal steps of many paths up to their exit from a domain, where a function of time and state changes its sign.

A path that is inside before and after a step may have left the domain in between.  Given both ends, a Brownian motion
with the local diffusion has left it with the probability exp(-2 d0 d1 / (v h)), where d0 and d1 are the values of the
function and v = sum_j (grad d . g_j)^2 is the square of its diffusion (E. Gobet 2000, Stoch. Proc. Appl. 87:167).  Then
d0 and d1 count with opposite signs, by the reflection principle.  Time and state of an exit are
interpolated, and the state is moved to the boundary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.primitives import call_field, call_noisy_sweep_in_lanes, call_watch_in_lanes
from stepnet.engines.numba_engine.ensembles.path_kernels import (
    FIRST,
    IS_DIRECT,
    LAST,
    SAVED,
    STEP,
    begin_group,
    copy_rows,
    count_lanes,
    draw_group,
    find_member,
    finish_group,
    is_finite_lane,
    retire_path,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, EVENT, PAUSED
from stepnet.engines.numba_engine.random.increments import draw_uniform

NEWTON_STEPS = 6
LEAST_EXPONENT = 40.0  # exp(-40) is less than the spacing of uniform numbers


class ExitSearch(NamedTuple):
    """Addresses of the sweep and of the functions of the events, in lanes and at one point; direction and correction.

    See `build_exit_fields`.
    """

    sweep: int
    watch: int
    point: int
    directions: np.ndarray
    has_bridge: np.ndarray


class ExitWorkspace(NamedTuple):
    """States before the steps of a chunk and after it, and there d and v of each event in turn; valid steps.

    `point` has rows for a state and the functions there, `p` is for its parameters.
    """

    states: np.ndarray
    values: np.ndarray
    point: np.ndarray
    p: np.ndarray
    valid: np.ndarray


class MemberExits(NamedTuple):
    """The event that stopped each member, -1 if none, and time and state there."""

    event: np.ndarray
    t: np.ndarray
    y: np.ndarray


@compiled
def find_fraction(exits, e, d0, d1, v, h, seed, path, step):
    """The fraction of a step after which event e occurs, 2.0 if it does not."""
    direction = exits.directions[e]
    is_falling = d0 > 0.0 or (d0 == 0.0 and d1 < 0.0)
    if direction * (-1.0 if is_falling else 1.0) < 0.0:
        return 2.0
    if d0 * d1 < 0.0 or d1 == 0.0:
        return d0 / (d0 - d1) if d0 != d1 else 0.0
    if exits.has_bridge[e] == 0:
        return 2.0
    exponent = 2.0 * d0 * d1 / (v * h)
    if exponent < LEAST_EXPONENT and draw_uniform(seed, path, step, e) < np.exp(-exponent):
        return d0 / (d0 + d1)
    return 2.0


@compiled
def move_to_boundary(exits, space, group, lane, e, t, n):
    """Move the state in `space.point` along the noise until d = 0, by Newton's method."""
    for j in range(space.p.shape[0]):
        space.p[j] = group.p[j, lane]
    first = e * (2 + n)
    for _ in range(NEWTON_STEPS):
        call_field(uintp(exits.point), t, space.point, 0, 1, space.p, n)
        d, v = space.point[1, first], space.point[1, first + 1]
        if not v > 0.0 or not abs(d) > 0.0:
            return
        for k in range(n):
            space.point[0, k] -= d / v * space.point[1, first + 2 + k]


@compiled
def stop_path(starts, ends, found, even, exits, group, space, lane, s, e, theta, n):
    """Stop a path at event e, the fraction theta of a step after step s of the chunk."""
    i, rows, step = find_member(group, lane), even.width, group.place[STEP] + s
    group.retired[lane] = 1
    ends.code[i], ends.accepted[i] = EVENT, step + 1
    found.event[i], found.t[i] = e, starts.t0[0] + (step + theta) * starts.h[0]
    ends.t[i] = found.t[i]
    for k in range(n):
        y0, y1 = space.states[s * rows + k, lane], space.states[(s + 1) * rows + k, lane]
        space.point[0, k] = y0 + theta * (y1 - y0)
    move_to_boundary(exits, space, group, lane, e, found.t[i], n)
    for k in range(n):
        found.y[i, k] = space.point[0, k]
        if even.after.shape[0] == 0:
            ends.y[i, 0, k] = found.y[i, k]


@compiled
def follow_path(noise, starts, ends, found, even, exits, group, space, lane, count, n):
    """Stop or retire a path within a chunk; returns the number of steps after which its states are valid."""
    rows, n_events = even.width, exits.directions.shape[0]
    path, h = starts.paths[find_member(group, lane)], starts.h[0]
    for s in range(count):
        if not is_finite_lane(space.states, (s + 1) * rows, rows, lane):
            retire_path(starts, ends, even, group, lane, group.place[STEP] + s, space.states, s * rows, n)
            return s
        first, theta = -1, 2.0
        for e in range(n_events):
            d0, v = space.values[2 * (s * n_events + e), lane], space.values[2 * (s * n_events + e) + 1, lane]
            d1 = space.values[2 * ((s + 1) * n_events + e), lane]
            other = find_fraction(exits, e, d0, d1, v, h, noise.seed, path, group.place[STEP] + s)
            if other < theta:
                first, theta = e, other
        if first >= 0:
            stop_path(starts, ends, found, even, exits, group, space, lane, s, first, theta, n)
            return s
    return count


@compiled
def store_valid(ends, even, group, space, count, n):
    """Store the states that are to be saved in this chunk, of the paths for which they are valid."""
    rows, place = even.width, group.place
    while place[SAVED] < even.after.shape[0] and even.after[place[SAVED]] <= place[STEP] + count:
        s = even.after[place[SAVED]] - place[STEP]
        for lane in range(count_lanes(group)):
            if s <= space.valid[lane]:
                i = find_member(group, lane)
                for k in range(n):
                    ends.y[i, place[SAVED], k] = space.states[s * rows + k, lane]
                ends.saved[i] += 1
        place[SAVED] += 1


@compiled
def advance_to_exits(noise, starts, ends, found, even, exits, group, space, n):
    """One chunk of steps of the current group, at whose end all paths may be retired."""
    count, rows = min(even.chunk, even.n_steps - group.place[STEP]), even.width
    t0, h, first = starts.t0, starts.h, group.place[STEP]
    draw_group(noise, starts, even, group, count)
    numbers = group.numbers
    if group.place[IS_DIRECT] != 0:
        numbers = group.increments
    states = space.states
    call_noisy_sweep_in_lanes(exits.sweep, t0, h, first, count, space.p, group.work, states, rows, group.p, numbers)
    copy_rows(group.work, 0, states, count * rows, rows)
    call_watch_in_lanes(exits.watch, t0, h, first, count + 1, states, rows, space.values, group.p)
    n_left = 0
    for lane in range(count_lanes(group)):
        space.valid[lane] = -1
        if group.retired[lane] == 0:
            space.valid[lane] = follow_path(noise, starts, ends, found, even, exits, group, space, lane, count, n)
            n_left += 1 - group.retired[lane]
    store_valid(ends, even, group, space, count, n)
    group.place[STEP] = first + count if n_left > 0 else even.n_steps
    return count


@Kernel
def run_to_exits(even, noise, exits, starts, ends, found, group, space, n, most):
    """As `run_paths`, with paths that stop at events."""
    done = 0
    while group.place[FIRST] < group.place[LAST]:
        begin_group(starts, ends, even, group, n)
        while group.place[STEP] < even.n_steps:
            if done >= most:
                return PAUSED
            done += LANES * advance_to_exits(noise, starts, ends, found, even, exits, group, space, n)
        finish_group(ends, even, group, n)
    return DONE
