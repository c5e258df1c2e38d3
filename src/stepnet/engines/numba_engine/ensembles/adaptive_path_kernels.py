"""Adaptive steps of one path of a stochastic equation.

Steps end at dyadic times and at the times `stops`.  The increments of an attempt are those of the Brownian path, a
function of seed, path and interval, so a rejected attempt has no effect on them: the shorter one uses the same path.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.adjoint.step_sweeps import execute, scale
from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled, inlined
from stepnet.engines.numba_engine.integrators.step_control import growth, scaled_norm, shrinkage
from stepnet.engines.numba_engine.integrators.stepping import (
    DONE,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.random.paths import PathNumbers, Stream, evaluate_interval
from stepnet.engines.numba_engine.random.step_noise import convert_variable

LEAF, ACCEPTED, REJECTED, NEXT_STOP, WAS_REJECTED, SAVED = range(6)
FRACTION, T, H, ERROR_1, ERROR_2 = range(5)
PARTS_OF_STEP = 32  # a step may be shortened by 1/32 to end at a coarser dyadic time, which needs fewer draws
LEAST_ERROR = 1e-4  # lower bound of the errors that the controller stores
Y = 0  # the row of the state


class PathSource(NamedTuple):
    """The Brownian path of a run, and which random variables a step has."""

    numbers: PathNumbers
    path: np.uint64
    n_components: int
    codes: np.ndarray
    offsets: np.ndarray


class AdaptiveClock(NamedTuple):
    """Beginning, end and length of the leaves of time, the stops as leaves, fractions and times, limits.

    The last stop is the end.  States are saved at the first `n_wanted` stops, or after every `every`-th step.
    """

    t0: float
    leaf_length: float
    leaves: np.ndarray
    fractions: np.ndarray
    times: np.ndarray
    n_wanted: int
    every: int
    max_step: float
    max_steps: int


class PathProgress(NamedTuple):
    """The position of a run: whole numbers, real numbers, and the state."""

    counts: np.ndarray
    numbers: np.ndarray
    state: np.ndarray


class ControlMemory(NamedTuple):
    """What the controller stores from attempt to attempt."""

    error_1: float
    error_2: float
    was_rejected: int


class StateSize(NamedTuple):
    """Entries of the state, all real."""

    n: int
    reals: int


@compiled
def choose_end(clock, now):
    """Leaf, fraction and time of the end of the next attempt, and whether it is a stop."""
    leaf, fraction = now.counts[LEAF], now.numbers[FRACTION]
    stop = now.counts[NEXT_STOP]
    length = min(now.numbers[H], clock.max_step) / clock.leaf_length
    distance = (clock.leaves[stop] - leaf) + (clock.fractions[stop] - fraction)
    if length >= distance:
        return clock.leaves[stop], clock.fractions[stop], clock.times[stop], True
    whole = max(1, int(length))
    part = 1
    while 2 * part * PARTS_OF_STEP <= whole:
        part *= 2
    end = max((leaf + whole) // part * part, leaf + 1)
    if end > clock.leaves[stop] or (end == clock.leaves[stop] and clock.fractions[stop] == 0.0):
        return clock.leaves[stop], clock.fractions[stop], clock.times[stop], True
    return end, 0.0, clock.t0 + end * clock.leaf_length, False


@compiled
def draw_variables(source, now, leaf, fraction, h, out):
    """The random variables of an attempt."""
    levels, mask = source.numbers.levels, (1 << source.numbers.levels) - 1
    first, root = now.counts[LEAF], np.sqrt(h)
    for j in range(source.n_components):
        W, area = evaluate_interval(
            source.numbers, Stream(source.path, j), first >> levels, first & mask, now.numbers[FRACTION],
            leaf >> levels, leaf & mask, fraction,
        )  # fmt: skip
        for k in range(source.codes.shape[0]):
            out[source.offsets[k] + j] = convert_variable(source.codes[k], W, area, 0.0, h, root)


@compiled
def is_finite_row(work, row, n):
    """Whether all entries of a row are finite."""
    total = 0.0
    for k in range(n):
        total += work[row, k] - work[row, k]
    return total == 0.0


@compiled
def store(now, t, n, out_t, out_y):
    """Append the state to the saved ones."""
    i = now.counts[SAVED]
    out_t[i] = t
    for k in range(n):
        out_y[i, k] = now.state[k]
    now.counts[SAVED] = i + 1


@compiled
def accept(clock, how, now, work, new, error, h, end, n, out_t, out_y):
    """Move to the end of an attempt, save the state if it is due, and choose the length of the next one."""
    leaf, fraction, t, is_stop = end
    memory = ControlMemory(now.numbers[ERROR_1], now.numbers[ERROR_2], now.counts[WAS_REJECTED])
    longer = h * growth(error, memory, how.controller)
    now.numbers[H] = max(longer, now.numbers[H]) if is_stop else longer  # a stop may have shortened the step
    now.numbers[ERROR_2], now.numbers[ERROR_1] = now.numbers[ERROR_1], max(error, LEAST_ERROR)
    now.counts[WAS_REJECTED] = 0
    now.counts[ACCEPTED] += 1
    now.counts[LEAF], now.numbers[FRACTION], now.numbers[T] = leaf, fraction, t
    for k in range(n):
        now.state[k] = work[new, k]
    is_saved = False
    while now.counts[NEXT_STOP] < clock.times.shape[0] and is_stop and clock.times[now.counts[NEXT_STOP]] <= t:
        if now.counts[NEXT_STOP] < clock.n_wanted:
            store(now, clock.times[now.counts[NEXT_STOP]], n, out_t, out_y)
        now.counts[NEXT_STOP] += 1
        is_saved = now.counts[NEXT_STOP] == clock.times.shape[0] and clock.every >= 0
    if is_saved or (clock.every > 0 and now.counts[ACCEPTED] % clock.every == 0):
        store(now, t, n, out_t, out_y)


@inlined
def find_error(work, outputs, how, n):
    """The scaled norm of |estimate of the drift| + |estimate of the noise|, NaN if the new state is not finite."""
    new, drift, noise = outputs[0], outputs[1], outputs[2]
    if not is_finite_row(work, new, n):
        return np.nan
    for k in range(n):
        work[drift, k] = abs(work[drift, k]) + abs(work[noise, k])
    return scaled_norm(work, drift, Y, new, how.atol, how.rtol, how.norm, StateSize(n, n))


@Kernel
def run_adaptive_path(fields, p, tape, scratch, how, source, clock, now, variables, out_t, out_y, most):
    """Take at most `most` attempts; PAUSED if the end is not reached, FULL if there is no space to save states."""
    n, work = now.state.shape[0], scratch.work
    for _ in range(most):
        if now.counts[NEXT_STOP] == clock.times.shape[0]:
            return DONE
        if now.counts[ACCEPTED] + now.counts[REJECTED] >= clock.max_steps:
            return STEP_LIMIT
        if now.counts[SAVED] + clock.n_wanted + 1 > out_t.shape[0]:
            return FULL
        end = choose_end(clock, now)
        h = end[2] - now.numbers[T]
        draw_variables(source, now, end[0], end[1], h, variables)
        for k in range(n):
            work[Y, k] = now.state[k]
        scale(tape, scratch.weights, scratch.back[:0], h)
        if not execute(fields, p, tape, scratch.weights, work, now.numbers[T], h, n, variables):
            return FIELD_RAISED
        error = find_error(work, tape.outputs, how, n)
        if error <= 1.0:
            accept(clock, how, now, work, tape.outputs[0], error, h, end, n, out_t, out_y)
            continue
        now.counts[REJECTED] += 1
        now.counts[WAS_REJECTED] = 1
        if h < 1.5 * clock.leaf_length:
            return STEP_TOO_SMALL if np.isfinite(error) else NOT_FINITE
        now.numbers[H] = h * shrinkage(error, how.controller)
    return DONE if now.counts[NEXT_STOP] == clock.times.shape[0] else PAUSED
