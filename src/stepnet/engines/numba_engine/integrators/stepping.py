"""What the kernels of all families share: the state of a run, the clock, and saving.

A kernel is called again and again with the same arrays and goes on where it stopped, so a run can be cut into slices
anywhere without changing a bit.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, get_type_hints

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import inlined
from stepnet.engines.numba_engine.codegen.primitives import REGISTER_BYTES

# What a kernel answers.  The first four ask the driver to do something and call again; the rest end the run.
PAUSED, FULL, EVENT, BROKEN, DONE, STEP_LIMIT, NOT_FINITE, STEP_TOO_SMALL, FIELD_RAISED, ACCUMULATED = range(10)


class RunState(NamedTuple):
    """The numbers of a run: where it is, how it goes on, what it has cost."""

    n: int = 0  # entries of the state, as the right-hand side counts them
    reals: int = 0  # real numbers in one row of `work`: n, or 2 n for a complex state
    t: float = 0.0  # time is t + t_low
    t_low: float = 0.0
    t0: float = 0.0
    t_end: float = 0.0
    t_scale: float = 0.0  # times are known to the rounding of this number: |t0| for even steps, 0 for given times
    h: float = 0.0
    h_max: float = 0.0
    h_tried: float = 0.0  # of the last attempt
    step: int = 0  # accepted steps
    n_steps: int = -1  # how many there will be, where that is known
    rejected: int = 0
    evaluations: int = 0
    max_steps: int = 0
    slice: int = 0  # attempts in this call
    error_1: float = 1.0  # error norms of the last two accepted steps
    error_2: float = 1.0
    h_least: float = 0.0  # shorter adaptive steps are refused even at t = 0, where the spacing of numbers says nothing
    is_checked: int = 0  # whether attempts that are not finite are shown to the driver
    has_slope: int = 0  # the slope at the beginning of the step is known
    was_rejected: int = 0
    stride: int = 64  # most steps at once in generated code
    per_step: int = 0  # evaluations in one of them
    next_stop: int = 0  # of the times at which a step must end
    is_cut: int = 0  # an event ended the step early, the next one is the rest of it
    theta: float = 0.0  # where in the step that was
    n_found: int = 0  # events
    nan_event: int = 0  # 1 + the first event that was NaN; -1 once the driver has looked at it
    t_nan: float = 0.0
    n_pieces: int = 0  # of dense output
    save_every: int = 0
    next_save: int = 0
    saved: int = 0
    part: int = 0  # where a right-hand side raised: which one, in which stage, at what time, on which row
    stage: int = 0
    t_stage: float = 0.0
    row_in: int = 0


KINDS = {int: "q", float: "d"}  # of eight bytes each
RUN = np.dtype([(name, KINDS[kind]) for name, kind in get_type_hints(RunState).items()], align=True)
"""The same as kernels see and change it: an array of one record."""

LAYOUT = Struct("".join(KINDS[kind] for kind in get_type_hints(RunState).values()))
"""The same in bytes, which is the quickest way to fill one."""

ROUNDING = 1e-15  # relative distance at which two times are the same


@inlined
def grid_time(run, grid, step):
    """Time of step `step` on a given grid, or on an even one without accumulating rounding."""
    if grid.shape[0] > 0:
        return grid[step]
    if step == run.n_steps:
        return run.t_end
    return run.t0 + step * run.h


@inlined
def step_length(run, grid, step):
    """Length of the step that begins at time `step`."""
    if grid.shape[0] > 0:
        return grid[step + 1] - grid[step]
    return run.h


@inlined
def save(work, row, count, t, run, out_t, out_y):
    """Append `count` rows, one after the other, to what the caller gets."""
    i = run.saved
    out_t[i] = t
    for part in range(count):
        for k in range(run.reals):
            out_y[i, part * run.reals + k] = work[row + part, k]
    run.saved = i + 1


@inlined
def saves_every(run):
    """Whether the step just taken is to be saved: every k-th and the last one."""
    if run.save_every < 0:
        return False
    if run.step == run.n_steps:
        return True
    return run.save_every > 0 and run.step % run.save_every == 0


@inlined
def is_full(run, out_t):
    """Whether the next step may find no room to be saved."""
    return run.save_every >= 0 and run.saved == out_t.shape[0]


@inlined
def is_due(run, save_at, t_new):
    """Whether a wanted time lies in the step that ends at `t_new`."""
    if run.next_save >= save_at.shape[0]:
        return False
    slack = ROUNDING * max(abs(t_new), run.t_scale)
    return (save_at[run.next_save] - t_new) * np.sign(run.t_end - run.t0) <= slack


@inlined
def is_at_step_end(run, t, t_new):
    """Whether a wanted time is the end of the step, up to rounding."""
    return abs(t - t_new) <= ROUNDING * max(abs(t_new), run.t_scale)


@inlined
def is_inside(run, save_at, t_new):
    """Whether the next wanted time lies in the step that ends at `t_new`, but not at its end."""
    return is_due(run, save_at, t_new) and not is_at_step_end(run, save_at[run.next_save], t_new)


@inlined
def save_wanted(work, row, count, run, save_at, out_t, out_y):
    """Save rows as the state at the next wanted time."""
    save(work, row, count, save_at[run.next_save], run, out_t, out_y)
    run.next_save += 1


@inlined
def find_next_step(run, grid):
    """Beginning, end and length of the next of the given steps; it begins at an event if one has cut it."""
    t_new = grid_time(run, grid, run.step + 1)
    if run.is_cut:
        run.is_cut = 0
        return run.t, t_new, t_new - run.t
    run.t = grid_time(run, grid, run.step)
    return run.t, t_new, step_length(run, grid, run.step)


@inlined
def count_steps_ahead(run):
    """How many steps can be taken before one is to be saved, the run ends or the slice is over."""
    count = min(run.n_steps - run.step, run.stride, run.slice)
    if run.save_every > 0:
        count = min(count, run.save_every - run.step % run.save_every)
    return count


@inlined
def finish_step(work, row, count, t_new, run, save_at, out_t, out_y):
    """The step is taken: move the clock, and save the state in `row` if it is wanted."""
    while is_due(run, save_at, t_new):
        save_wanted(work, row, count, run, save_at, out_t, out_y)
    run.t = t_new
    run.step += 1
    if saves_every(run):
        save(work, row, count, t_new, run, out_t, out_y)


@inlined
def note_exception(run, part, stage, t, row):
    """Note where a right-hand side raised."""
    run.part = part
    run.stage = stage
    run.t_stage = t
    run.row_in = row
    return FIELD_RAISED


def pad_length(reals: int, dtype: np.dtype) -> int:
    """Length of a row: the state rounded up to whole registers."""
    lanes = REGISTER_BYTES // np.dtype(dtype).itemsize
    return max(lanes, -(-reals // lanes) * lanes)
