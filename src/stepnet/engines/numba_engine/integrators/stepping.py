"""What the kernels of all families share: the state of a run, its time, and saving.

A kernel is called repeatedly with the same arrays and continues where it stopped, so a run can be divided into slices
anywhere without changing a bit of the result.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, get_type_hints

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import inlined
from stepnet.engines.numba_engine.codegen.primitives import REGISTER_BYTES

# Codes returned by a kernel.  The first four ask the driver to act and call again; the others end the run.
PAUSED, FULL, EVENT, BROKEN, DONE, STEP_LIMIT, NOT_FINITE, STEP_TOO_SMALL, FIELD_RAISED, ACCUMULATED = range(10)
NOT_SOLVED = 10  # the equations of an implicit step


class RunState(NamedTuple):
    """The numbers of a run: position, step control and counters."""

    n: int = 0  # entries of the state, as the right-hand side counts them
    reals: int = 0  # real numbers in one row of `work`: n, or 2 n for a complex state
    t: float = 0.0  # time is t + t_low
    t0: float = 0.0
    t_end: float = 0.0
    t_scale: float = 0.0  # times are accurate to the rounding of this number: |t0| for equal steps, 0 for given times
    h: float = 0.0
    h_max: float = 0.0
    h_least: float = 0.0  # minimum length of an adaptive step at t = 0, where the spacing of numbers gives no bound
    n_steps: int = -1  # total number of steps, if known
    max_steps: int = 0
    save_every: int = 0
    t_low: float = 0.0
    h_tried: float = 0.0  # of the last attempt
    step: int = 0  # accepted steps
    rejected: int = 0
    evaluations: int = 0
    slice: int = 0  # attempts in this call
    error_1: float = 1.0  # error norms of the last two accepted steps
    error_2: float = 1.0
    is_checked: int = 0  # whether attempts that are not finite are reported to the driver
    has_slope: int = 0  # whether the slope at the beginning of the step is known
    was_rejected: int = 0
    stride: int = 64  # maximum number of steps in one call of generated code
    per_step: int = 0  # evaluations per step of generated code
    next_stop: int = 0  # index of the next time at which a step must end
    is_cut: int = 0  # an event ended the step early; the next step is its remainder
    theta: float = 0.0  # position of that event in the step
    n_found: int = 0  # events
    nan_event: int = 0  # 1 + index of the first event that was NaN; -1 once the driver has handled it
    t_nan: float = 0.0
    n_pieces: int = 0  # of dense output
    next_save: int = 0
    saved: int = 0
    jacobians: int = 0  # evaluations of df/dy
    factorisations: int = 0
    jacobian_age: int = 0  # of the stored df/dy: 1 if it is that of the current state, 2 if older, 0 if there is none
    h_factorised: float = 0.0  # step length of the stored factors; 0 if there are none
    order: int = 0  # of the next step of a scheme of variable order; 0 if it has no history
    equal_steps: int = 0  # steps of equal length and order since the last change
    h_history: float = 0.0  # length of the steps of the history
    failures: int = 0  # rejections in a row
    method: int = 0  # which of two schemes takes the next step
    since_switch: int = 0  # steps since the last switch
    n_switches: int = 0
    highest_order: int = 0
    may_switch: int = 0
    steepness: float = 0.0  # estimate of the norm of df/dy
    rate: float = 0.0  # slowest convergence of Newton's iteration in the last step
    part: int = 0  # where a right-hand side raised: which part, stage, time and row
    stage: int = 0
    t_stage: float = 0.0
    row_in: int = 0


KINDS = {int: "q", float: "d"}  # of eight bytes each
RUN = np.dtype([(name, KINDS[kind]) for name, kind in get_type_hints(RunState).items()], align=True)
"""`RunState` as kernels read and modify it: an array of one record."""

BLANK = Struct("".join(KINDS[kind] for kind in get_type_hints(RunState).values())).pack(*RunState())
"""The default `RunState` in bytes."""

BEGINNING = Struct("".join(KINDS[kind] for kind in get_type_hints(RunState).values())[:12])
"""The first numbers of a run, which its problem and plan set."""

ROUNDING = 1e-15  # relative distance below which two times are equal


@inlined
def grid_time(run, grid, step):
    """Time of step `step` on a given grid, or on a uniform one without accumulated rounding."""
    if grid.shape[0] > 0:
        return grid[step]
    if step == run.n_steps:
        return run.t_end
    return run.t0 + step * run.h


@inlined
def step_length(run, grid, step):
    """Length of the step with index `step`."""
    if grid.shape[0] > 0:
        return grid[step + 1] - grid[step]
    return run.h


@inlined
def save(work, row, count, t, run, out_t, out_y):
    """Append `count` consecutive rows to the saved states."""
    i = run.saved
    out_t[i] = t
    for part in range(count):
        for k in range(run.reals):
            out_y[i, part * run.reals + k] = work[row + part, k]
    run.saved = i + 1


@inlined
def saves_every(run):
    """Whether the step just taken is saved: every k-th and the last one."""
    if run.save_every < 0:
        return False
    if run.step == run.n_steps:
        return True
    return run.save_every > 0 and run.step % run.save_every == 0


@inlined
def is_full(run, out_t):
    """Whether there may be no space to save the next step."""
    return run.save_every >= 0 and run.saved == out_t.shape[0]


@inlined
def is_due(run, save_at, t_new):
    """Whether a save time lies in the step that ends at `t_new`."""
    if run.next_save >= save_at.shape[0]:
        return False
    slack = ROUNDING * max(abs(t_new), run.t_scale)
    return (save_at[run.next_save] - t_new) * np.sign(run.t_end - run.t0) <= slack


@inlined
def is_at_step_end(run, t, t_new):
    """Whether a save time is the end of the step, up to rounding."""
    return abs(t - t_new) <= ROUNDING * max(abs(t_new), run.t_scale)


@inlined
def is_inside(run, save_at, t_new):
    """Whether the next save time lies in the step that ends at `t_new`, but not at its end."""
    return is_due(run, save_at, t_new) and not is_at_step_end(run, save_at[run.next_save], t_new)


@inlined
def save_wanted(work, row, count, run, save_at, out_t, out_y):
    """Save rows as the state at the next save time."""
    save(work, row, count, save_at[run.next_save], run, out_t, out_y)
    run.next_save += 1


@inlined
def find_next_step(run, grid):
    """Beginning, end and length of the next fixed step; it begins at an event if one ended the last step early."""
    t_new = grid_time(run, grid, run.step + 1)
    if run.is_cut:
        run.is_cut = 0
        return run.t, t_new, t_new - run.t
    run.t = grid_time(run, grid, run.step)
    return run.t, t_new, step_length(run, grid, run.step)


@inlined
def count_steps_ahead(run):
    """The number of steps that can be taken before one is saved, the run ends or the slice is over."""
    count = min(run.n_steps - run.step, run.stride, run.slice)
    if run.save_every > 0:
        count = min(count, run.save_every - run.step % run.save_every)
    return count


@inlined
def finish_step(work, row, count, t_new, run, save_at, out_t, out_y):
    """Finish a step: advance the time, and save the state in `row` if required."""
    while is_due(run, save_at, t_new):
        save_wanted(work, row, count, run, save_at, out_t, out_y)
    run.t = t_new
    run.step += 1
    if saves_every(run):
        save(work, row, count, t_new, run, out_t, out_y)


@inlined
def note_exception(run, part, stage, t, row):
    """Record where a right-hand side raised."""
    run.part = part
    run.stage = stage
    run.t_stage = t
    run.row_in = row
    return FIELD_RAISED


def pad_length(reals: int, dtype: np.dtype) -> int:
    """Length of a row: the state rounded up to whole SIMD registers."""
    lanes = REGISTER_BYTES // np.dtype(dtype).itemsize
    return max(lanes, -(-reals // lanes) * lanes)
