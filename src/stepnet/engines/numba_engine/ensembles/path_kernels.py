"""Equal steps of many paths of a stochastic equation: groups of 16 paths in two rows of SIMD lanes.

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
from stepnet.engines.numba_engine.random.step_noise import NoiseBuffers, draw_chunk, fill_variables
from stepnet.noise.counters import GROUP

HALVES = GROUP // LANES
FIRST, LAST, STEP, SAVED, IS_LOADED, DRAWN = range(6)


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
    """Workspace of a thread: states of both halves, their copies, parameters, random variables, retired paths."""

    work: np.ndarray
    before: np.ndarray
    p: np.ndarray
    numbers: np.ndarray
    retired: np.ndarray
    buffers: NoiseBuffers
    place: np.ndarray


@compiled
def find_member(group, column):
    """The member in a column; unused columns repeat the last member."""
    return min(group.place[FIRST] + column, group.place[LAST] - 1)


@compiled
def count_columns(group):
    """Columns with members of their own."""
    return min(GROUP, group.place[LAST] - group.place[FIRST])


@compiled
def copy_states(source, target):
    """target = source, row by row."""
    for half in range(source.shape[0]):
        for row in range(source.shape[1]):
            for lane in range(LANES):
                target[half, row, lane] = source[half, row, lane]


@compiled
def load_paths(starts, even, group, n):
    """Load the next members and run the opening."""
    group.work[:] = 0.0
    group.retired[:] = 0
    for column in range(GROUP):
        half, lane, i = column // LANES, column % LANES, find_member(group, column)
        for k in range(n):
            group.work[half, k, lane] = starts.y0[i % starts.y0.shape[0], k]
        for j in range(starts.p.shape[1]):
            group.p[half, j, lane] = starts.p[i % starts.p.shape[0], j]
    for half in range(HALVES):
        call_steps_in_lanes(even.opening, starts.t0, starts.h, 0, 1, group.work[half], group.p[half])


@compiled
def copy_increments(starts, group, count):
    """Copy the given increments of the next steps to the buffers."""
    first = group.place[STEP]
    for column in range(GROUP):
        path = starts.paths[find_member(group, column)]
        for s in range(count):
            for i in range(starts.increments.shape[2]):
                group.buffers.W[s, i, column] = starts.increments[path, first + s, i]


@compiled
def draw_group(noise, starts, even, group, count):
    """The random variables of the next steps; consecutive paths that begin a group share their draws.

    Draws of whole runs are used again if the next members have the same paths.
    """
    size, first = even.n_variables, group.place[STEP]
    path0, n_columns = starts.paths[group.place[FIRST]], count_columns(group)
    is_group, is_given = path0 % GROUP == 0, starts.increments.shape[0] > 0
    for column in range(n_columns):
        is_group = is_group and starts.paths[find_member(group, column)] == path0 + column
    if is_group or is_given:
        if is_group and group.place[DRAWN] == path0:
            return
        if is_given:
            copy_increments(starts, group, count)
        else:
            draw_chunk(noise, path0, first, count, group.buffers)
        for half in range(HALVES):
            for s in range(count):
                rows = slice(s * size, (s + 1) * size)
                fill_variables(noise, group.buffers, s, half * LANES, LANES, group.numbers[half, rows])
        is_whole = is_group and n_columns == GROUP and count == even.n_steps
        group.place[DRAWN] = path0 if is_whole else -1
        return
    group.place[DRAWN] = -1
    drawn = np.int64(-1)
    for column in range(n_columns):
        path = starts.paths[find_member(group, column)]
        half, lane = column // LANES, column % LANES
        if path // GROUP != drawn:
            drawn = path // GROUP
            draw_chunk(noise, drawn * GROUP, first, count, group.buffers)
        for s in range(count):
            rows = slice(s * size, (s + 1) * size)
            fill_variables(noise, group.buffers, s, path % GROUP, 1, group.numbers[half, rows, lane : lane + 1])


@compiled
def take_steps(starts, even, group, s, count):
    """Steps s to s + count of a chunk, in all halves that have members."""
    for half in range(1 if count_columns(group) <= LANES else HALVES):
        numbers = group.numbers[half, s * even.n_variables :]
        first = group.place[STEP] + s
        call_noisy_steps_in_lanes(
            even.steps, starts.t0, starts.h, first, count, group.work[half], group.p[half], numbers
        )


@compiled
def is_finite_column(work, half, lane, rows):
    """Whether all rows of a column are finite."""
    total = 0.0
    for row in range(rows):
        total += work[half, row, lane] - work[half, row, lane]
    return total == 0.0


@compiled
def store_paths(ends, even, group, j, n):
    """Store the states of the columns as the j-th saved states of their members, unless they are not finite."""
    for column in range(count_columns(group)):
        half, lane, i = column // LANES, column % LANES, find_member(group, column)
        if group.retired[column] == 0 and is_finite_column(group.work, half, lane, even.width):
            for k in range(n):
                ends.y[i, j, k] = group.work[half, k, lane]
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
def retire_paths(starts, ends, even, group, count, n):
    """Repeat a chunk step by step, and note the last valid states of the paths that become NaN or infinite."""
    rows = even.width
    copy_states(group.before, group.work)
    for s in range(count):
        copy_states(group.work, group.before)
        take_steps(starts, even, group, s, 1)
        for column in range(count_columns(group)):
            half, lane, i = column // LANES, column % LANES, find_member(group, column)
            if group.retired[column] == 0 and not is_finite_column(group.work, half, lane, rows):
                group.retired[column] = 1
                step = group.place[STEP] + s
                ends.code[i], ends.accepted[i] = NOT_FINITE, step
                ends.t[i] = starts.t0[0] + step * starts.h[0]
                if even.after.shape[0] == 0:
                    for k in range(n):
                        ends.y[i, 0, k] = group.before[half, k, lane]


@compiled
def advance_chunk(noise, starts, ends, even, group, n):
    """One chunk of steps of the current group."""
    count = min(even.chunk, even.n_steps - group.place[STEP])
    draw_group(noise, starts, even, group, count)
    copy_states(group.work, group.before)
    s = 0
    while s < count:
        stop = find_stop(even, group, s, count)
        take_steps(starts, even, group, s, stop - s)
        s = stop
        store_due(ends, even, group, group.place[STEP] + s, n)
    is_valid = True
    for column in range(count_columns(group)):
        is_valid = is_valid and (
            group.retired[column] != 0 or is_finite_column(group.work, column // LANES, column % LANES, even.width)
        )
    if not is_valid:
        retire_paths(starts, ends, even, group, count, n)
    group.place[STEP] += count
    return count


@Kernel
def run_paths(even, noise, starts, ends, group, n, most):
    """Equal steps of the members from place[0] to place[1], about `most` steps; PAUSED if some are left."""
    place, done = group.place, 0
    while place[FIRST] < place[LAST]:
        if place[IS_LOADED] == 0:
            load_paths(starts, even, group, n)
            place[STEP], place[SAVED], place[IS_LOADED] = 0, 0, 1
            store_due(ends, even, group, 0, n)
        while place[STEP] < even.n_steps:
            if done >= most:
                return PAUSED
            done += GROUP * advance_chunk(noise, starts, ends, even, group, n)
        for column in range(count_columns(group)):
            i = find_member(group, column)
            if group.retired[column] == 0:
                ends.code[i], ends.accepted[i] = DONE, even.n_steps
        if even.after.shape[0] == 0:
            store_paths(ends, even, group, 0, n)
        place[FIRST] += count_columns(group)
        place[IS_LOADED] = 0
    return DONE
