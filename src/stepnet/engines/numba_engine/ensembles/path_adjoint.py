"""The adjoint of equal steps of many paths in SIMD lanes, with the noise drawn again.

States at the beginning of every segment of steps are stored, and all states and random variables of one segment at a
time.  The loss of an end state, if it is traced, is evaluated in between.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.primitives import (
    call_field,
    call_noisy_reverse_in_lanes,
    call_noisy_sweep_in_lanes,
    call_reverse_in_lanes,
)
from stepnet.engines.numba_engine.ensembles.path_kernels import (
    FIRST,
    IS_DIRECT,
    LAST,
    STEP,
    copy_rows,
    count_lanes,
    draw_group,
    find_member,
    load_paths,
    take_steps,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, PAUSED

Y_END, VALUE, GRADIENT = range(3)


class PathAdjoint(NamedTuple):
    """Addresses of the sweep and of the adjoints of steps and opening; of the loss and its gradient, 0 if not traced.

    `segment` steps are stored at a time.
    """

    sweep: int
    reverse: int
    reverse_opening: int
    loss: int
    loss_gradient: int
    segment: int


class PathGradients(NamedTuple):
    """Losses and gradients of all members; those with respect to the end states are given if there is no loss."""

    value: np.ndarray
    end: np.ndarray
    y0: np.ndarray
    p: np.ndarray


class SegmentStates(NamedTuple):
    """States at the beginning of segments, states within one, gradients; rows for a loss."""

    marks: np.ndarray
    states: np.ndarray
    bar: np.ndarray
    p_bar: np.ndarray
    loss: np.ndarray
    nothing: np.ndarray


@compiled
def put_gradients(back, bars, group, kept, n):
    """The gradients with respect to the end states in `group.work`."""
    kept.bar[:] = 0.0
    kept.p_bar[:] = 0.0
    for lane in range(count_lanes(group)):
        i = find_member(group, lane)
        if back.loss == 0:
            for k in range(n):
                kept.bar[k, lane] = bars.end[i, k]
        else:
            for k in range(n):
                kept.loss[Y_END, k] = group.work[k, lane]
            call_field(uintp(back.loss), 0.0, kept.loss, Y_END, VALUE, kept.nothing, n)
            call_field(uintp(back.loss_gradient), 0.0, kept.loss, Y_END, GRADIENT, kept.nothing, n)
            bars.value[i] = kept.loss[VALUE, 0]
            for k in range(n):
                kept.bar[k, lane] = kept.loss[GRADIENT, k]


@compiled
def take_gradients(bars, group, kept, n):
    """Gradients of the lanes, to their members."""
    for lane in range(count_lanes(group)):
        i = find_member(group, lane)
        for k in range(n):
            bars.y0[i, k] = kept.bar[k, lane]
        for j in range(bars.p.shape[1]):
            bars.p[i, j] = kept.p_bar[j, lane]


@compiled
def run_to_last_segment(even, back, noise, starts, group, kept, rows):
    """Run forward and store the states at which segments begin; the last segment is only begun."""
    n_segments = (even.n_steps + back.segment - 1) // back.segment
    for j in range(n_segments):
        copy_rows(group.work, 0, kept.marks, j * rows, rows)
        group.place[STEP] = j * back.segment
        if j < n_segments - 1:
            draw_group(noise, starts, even, group, back.segment)
            take_steps(starts, even, group, 0, back.segment)
    return n_segments


@compiled
def pull_back_group(even, back, noise, starts, bars, group, kept, n):
    """Gradients of the next members."""
    rows, t0, h, p = even.width, starts.t0, starts.h, group.p
    load_paths(starts, even, group, n)
    n_segments = run_to_last_segment(even, back, noise, starts, group, kept, rows)
    for j in range(n_segments - 1, -1, -1):
        first = j * back.segment
        count = min(back.segment, even.n_steps - first)
        copy_rows(kept.marks, j * rows, group.work, 0, rows)
        group.place[STEP] = first
        draw_group(noise, starts, even, group, count)
        numbers = group.numbers
        if group.place[IS_DIRECT] != 0:
            numbers = group.increments
        call_noisy_sweep_in_lanes(
            back.sweep, t0, h, first, count, kept.nothing, group.work, kept.states, rows, p, numbers
        )
        if j == n_segments - 1:
            put_gradients(back, bars, group, kept, n)
        call_noisy_reverse_in_lanes(
            back.reverse, t0, h, first, count, kept.nothing, kept.states, kept.bar, kept.p_bar, kept.nothing, p, numbers
        )
    call_reverse_in_lanes(
        back.reverse_opening, t0, h, 0, 1, kept.nothing, kept.marks, kept.bar, kept.p_bar, kept.nothing, p
    )
    take_gradients(bars, group, kept, n)


@Kernel
def pull_back_paths(even, back, noise, starts, bars, group, kept, n, most):
    """Gradients of the members from place[0] to place[1], about `most` steps; PAUSED if some are left."""
    done = 0
    while group.place[FIRST] < group.place[LAST]:
        if done >= most:
            return PAUSED
        pull_back_group(even, back, noise, starts, bars, group, kept, n)
        group.place[FIRST] += LANES
        done += LANES * even.n_steps
    return DONE
