"""Equal steps of many paths of a stochastic equation: groups of 16 paths, one in each SIMD lane.

Random variables are drawn for a chunk of steps at a time and dropped afterwards.  A path whose state becomes NaN or
infinite is retired: its chunk is repeated step by step to find the last valid state, and the other paths continue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.primitives import call_noisy_steps_in_lanes, call_steps_in_lanes
from stepnet.engines.numba_engine.integrators.stepping import DONE, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.random.step_noise import NoiseBuffers, draw_chunk, fill_variables, is_only_increment

FIRST, LAST, STEP, SAVED, IS_LOADED, IS_DIRECT, DRAWN = range(7)


class PathSteps(NamedTuple):
    """Addresses of opening and steps, their number, steps at which states are saved, numbers of a state, variables.

    A state has `width` numbers: those of the problem first, then what the scheme carries from step to step.
    """

    opening: int
    steps: int
    n_steps: int
    after: np.ndarray
    width: int
    n_variables: int
    chunk: int


class PathStarts(NamedTuple):
    """Initial states and parameters, one row each or one for all; the path of each member; t0 and h in every lane.

    `increments` (paths, steps, components) replace the Brownian paths unless they are empty.
    """

    y0: np.ndarray
    p: np.ndarray
    paths: np.ndarray
    t0: np.ndarray
    h: np.ndarray
    increments: np.ndarray


class PathGroup(NamedTuple):
    """Workspace of a thread: states, their copies, parameters, random variables, retired paths.

    `place` holds the next and the last member, the step, the number of saved states, whether members are loaded,
    whether `increments`, a view of those in `buffers`, are the random variables of the steps instead of `numbers`, and
    the first of the paths whose draws of the whole run are there, -1 if none.
    """

    work: np.ndarray
    before: np.ndarray
    p: np.ndarray
    numbers: np.ndarray
    increments: np.ndarray
    retired: np.ndarray
    buffers: NoiseBuffers
    place: np.ndarray


@compiled
def find_member(group, lane):
    """The member in a lane; unused lanes repeat the last member."""
    return min(group.place[FIRST] + lane, group.place[LAST] - 1)


@compiled
def count_lanes(group):
    """The number of lanes that hold distinct members."""
    return min(LANES, group.place[LAST] - group.place[FIRST])


@compiled
def copy_rows(source, first, target, start, count):
    """target[start:] = source[first:], `count` rows."""
    for row in range(count):
        for lane in range(LANES):
            target[start + row, lane] = source[first + row, lane]


@compiled
def load_paths(starts, even, group, n):
    """Load the next members and run the opening."""
    group.work[:] = 0.0
    group.retired[:] = 0
    for lane in range(LANES):
        i = find_member(group, lane)
        for k in range(n):
            group.work[k, lane] = starts.y0[i % starts.y0.shape[0], k]
        for j in range(starts.p.shape[1]):
            group.p[j, lane] = starts.p[i % starts.p.shape[0], j]
    call_steps_in_lanes(even.opening, starts.t0, starts.h, 0, 1, group.work, group.p)


@compiled
def is_group_of_draws(starts, group):
    """Whether the members are consecutive paths that begin a group of draws."""
    path0 = starts.paths[group.place[FIRST]]
    found = path0 % LANES == 0
    for lane in range(count_lanes(group)):
        found = found and starts.paths[find_member(group, lane)] == path0 + lane
    return found


@compiled
def copy_increments(starts, group, count):
    """Copy the given increments of the next steps to the buffers."""
    first = group.place[STEP]
    for lane in range(LANES):
        path = starts.paths[find_member(group, lane)]
        for s in range(count):
            for i in range(starts.increments.shape[2]):
                group.buffers.W[s, i, lane] = starts.increments[path, first + s, i]


@compiled
def convert_buffers(noise, even, group, count):
    """The random variables of the next steps from the buffers, unless the buffers already hold them in this form."""
    size, is_direct = even.n_variables, is_only_increment(noise)
    group.place[IS_DIRECT] = 1 if is_direct else 0
    if not is_direct:
        for s in range(count):
            fill_variables(noise, group.buffers, s, 0, LANES, group.numbers[s * size : (s + 1) * size])


@compiled
def draw_group(noise, starts, even, group, count):
    """The random variables of the next steps; consecutive paths that begin a group share their draws.

    Draws of whole runs are used again if the next members have the same paths.
    """
    path0, is_group = starts.paths[group.place[FIRST]], is_group_of_draws(starts, group)
    if is_group and group.place[DRAWN] == path0:
        return
    group.place[DRAWN] = -1
    if starts.increments.shape[0] > 0:
        copy_increments(starts, group, count)
        convert_buffers(noise, even, group, count)
    elif is_group:
        draw_chunk(noise, path0, group.place[STEP], count, group.buffers)
        convert_buffers(noise, even, group, count)
    else:
        draw_one_by_one(noise, starts, even, group, count)
    if is_group and count_lanes(group) == LANES and count == even.n_steps:
        group.place[DRAWN] = path0


@compiled
def draw_one_by_one(noise, starts, even, group, count):
    """The random variables of the next steps of any paths; neighbours share the draws of their group."""
    size, first = even.n_variables, group.place[STEP]
    group.place[IS_DIRECT] = 0
    drawn = np.int64(-1)
    for lane in range(count_lanes(group)):
        path = starts.paths[find_member(group, lane)]
        if path // LANES != drawn:
            drawn = path // LANES
            draw_chunk(noise, drawn * LANES, first, count, group.buffers)
        for s in range(count):
            rows = slice(s * size, (s + 1) * size)
            fill_variables(noise, group.buffers, s, path % LANES, 1, group.numbers[rows, lane : lane + 1])


@compiled
def take_steps(starts, even, group, s, count):
    """Steps s to s + count of a chunk."""
    numbers, first = group.numbers, group.place[STEP] + s
    if group.place[IS_DIRECT] != 0:
        numbers = group.increments
    numbers = numbers[s * even.n_variables :]
    call_noisy_steps_in_lanes(even.steps, starts.t0, starts.h, first, count, group.work, group.p, numbers)


@compiled
def is_finite_lane(work, first, rows, lane):
    """Whether some rows of a lane are finite."""
    total = 0.0
    for row in range(first, first + rows):
        total += work[row, lane] - work[row, lane]
    return total == 0.0


@compiled
def store_paths(ends, even, group, j, n):
    """Store the states of the lanes as the j-th saved states of their members, unless they are not finite."""
    for lane in range(count_lanes(group)):
        i = find_member(group, lane)
        if group.retired[lane] == 0 and is_finite_lane(group.work, 0, even.width, lane):
            for k in range(n):
                ends.y[i, j, k] = group.work[k, lane]
            ends.saved[i] += 1


@compiled
def store_due(ends, even, group, step, n):
    """Store the states that are to be saved after this step."""
    while group.place[SAVED] < even.after.shape[0] and even.after[group.place[SAVED]] == step:
        store_paths(ends, even, group, group.place[SAVED], n)
        group.place[SAVED] += 1


@compiled
def find_stop(even, group, s, count):
    """The step of the chunk at which the next state is saved, or its end."""
    stop = count
    if group.place[SAVED] < even.after.shape[0]:
        stop = min(count, even.after[group.place[SAVED]] - group.place[STEP])
    return max(stop, s + 1)


@compiled
def retire_path(starts, ends, even, group, lane, step, states, first, n):
    """Retire a path whose next state is not finite, and note its last state, the rows of `states` from `first` on."""
    i = find_member(group, lane)
    group.retired[lane] = 1
    ends.code[i], ends.accepted[i] = NOT_FINITE, step
    ends.t[i] = starts.t0[0] + step * starts.h[0]
    if even.after.shape[0] == 0:
        for k in range(n):
            ends.y[i, 0, k] = states[first + k, lane]


@compiled
def retire_paths(starts, ends, even, group, count, n):
    """Repeat a chunk step by step to find the last valid states of the paths that become NaN or infinite."""
    rows = even.width
    copy_rows(group.before, 0, group.work, 0, rows)
    for s in range(count):
        copy_rows(group.work, 0, group.before, 0, rows)
        take_steps(starts, even, group, s, 1)
        for lane in range(count_lanes(group)):
            if group.retired[lane] == 0 and not is_finite_lane(group.work, 0, rows, lane):
                retire_path(starts, ends, even, group, lane, group.place[STEP] + s, group.before, 0, n)


@compiled
def advance_chunk(noise, starts, ends, even, group, n):
    """One chunk of steps of the current group."""
    count, rows = min(even.chunk, even.n_steps - group.place[STEP]), even.width
    draw_group(noise, starts, even, group, count)
    copy_rows(group.work, 0, group.before, 0, rows)
    s = 0
    while s < count:
        stop = find_stop(even, group, s, count)
        take_steps(starts, even, group, s, stop - s)
        s = stop
        store_due(ends, even, group, group.place[STEP] + s, n)
    is_valid = True
    for lane in range(count_lanes(group)):
        is_valid = is_valid and (group.retired[lane] != 0 or is_finite_lane(group.work, 0, rows, lane))
    if not is_valid:
        retire_paths(starts, ends, even, group, count, n)
    group.place[STEP] += count
    return count


@compiled
def finish_group(ends, even, group, n):
    """Record the ends of the paths that were not retired, and go on to the next members."""
    for lane in range(count_lanes(group)):
        i = find_member(group, lane)
        if group.retired[lane] == 0:
            ends.code[i], ends.accepted[i] = DONE, even.n_steps
    if even.after.shape[0] == 0:
        store_paths(ends, even, group, 0, n)
    group.place[FIRST] += count_lanes(group)
    group.place[IS_LOADED] = 0


@compiled
def begin_group(starts, ends, even, group, n):
    """Load the next members, unless they are loaded."""
    if group.place[IS_LOADED] == 0:
        load_paths(starts, even, group, n)
        group.place[STEP], group.place[SAVED], group.place[IS_LOADED] = 0, 0, 1
        store_due(ends, even, group, 0, n)


@Kernel
def run_paths(even, noise, starts, ends, group, n, most):
    """Equal steps of the members from place[0] to place[1], about `most` steps; PAUSED if some are left."""
    done = 0
    while group.place[FIRST] < group.place[LAST]:
        begin_group(starts, ends, even, group, n)
        while group.place[STEP] < even.n_steps:
            if done >= most:
                return PAUSED
            done += LANES * advance_chunk(noise, starts, ends, even, group, n)
        finish_group(ends, even, group, n)
    return DONE
