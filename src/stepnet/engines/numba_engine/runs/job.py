"""A run being prepared: the arrays that its kernel works on, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Plan
from stepnet.engines.numba_engine.integrators.events import EventState
from stepnet.engines.numba_engine.integrators.step_control import LEAST_STEP
from stepnet.engines.numba_engine.integrators.stepping import LAYOUT, RUN, RunState, pad_length
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.problem import Problem

NO_TIMES = np.zeros(0)
LONGEST = 1e300  # step: an infinite one leads nowhere
ELSEWHERE = -1  # `part` of a run whose inner job knows where a right-hand side raised


class StageSlopes(NamedTuple):
    """The slopes of a stage, and what right-hand side `part` of a job was given there."""

    slopes: np.ndarray
    t: float
    y: np.ndarray
    part: int = 0


class Job(NamedTuple):
    """`advance(trajectory)` runs one slice and returns a code of `stepping`; the state is the first `rows` of `work`.

    `prefix` holds times and flat states saved before the kernel begins, if not just the initial state.
    `stage_slopes(t, y, h)` yields the `StageSlopes` of one step in Python, to find out what went wrong.
    `inner` is the job that takes the steps, if this one only looks into them.
    `choose_step()` chooses the length of the next step as at the beginning, where steps are adaptive.
    """

    advance: Callable
    run: np.ndarray
    work: np.ndarray
    rows: int
    fields: tuple[CompiledRHS, ...]
    dtype: np.dtype
    stage_slopes: Callable
    watch: EventState | None = None
    rows_per_piece: int = 0
    prefix: tuple[np.ndarray, np.ndarray] | None = None
    inner: Job | None = None
    choose_step: Callable | None = None

    @property
    def real_dtype(self) -> np.dtype:
        return self.work.dtype

    @property
    def state(self) -> np.ndarray:
        """A copy of the current flat state."""
        reals = self.run["reals"].item()
        return self.work[: self.rows, :reals].ravel().view(self.dtype).copy()

    def put(self, state: np.ndarray) -> None:
        """Go on from another flat state."""
        real = state.view(self.real_dtype).reshape(self.rows, -1)
        self.work[: self.rows, : real.shape[1]] = real
        self.run[0]["has_slope"] = 0


def allocate_work(initial: np.ndarray, rows: int, total_rows: int) -> np.ndarray:
    """Zeroed rows for a run, the flat initial state spread over the first `rows` of them."""
    real = initial.view(initial.real.dtype)
    reals = real.size // rows
    work = np.zeros((total_rows, pad_length(reals, real.dtype)), real.dtype)
    for row in range(rows):
        work[row, :reals] = real[row * reals : (row + 1) * reals]
    return work


def create_run_state(problem: Problem, plan: Plan, rows: int = 1) -> np.ndarray:
    """The record of a run at its beginning."""
    initial = problem.initial
    n, is_complex = initial.size // rows, initial.dtype.kind == "c"
    every = plan.saving.every if plan.saving.at is None else -1
    t0, t_end = problem.t_span
    limits = _find_limits(plan.stepping, t0, t_end)
    numbers = RunState(n, 2 * n if is_complex else n, t=t0, t0=t0, t_end=t_end, save_every=every, **limits)
    return np.frombuffer(bytearray(LAYOUT.pack(*numbers)), RUN)


def _find_limits(stepping: FixedSteps | AdaptiveSteps, t0: float, t_end: float) -> dict:
    """How long the steps are and how many, as far as that is known."""
    if isinstance(stepping, AdaptiveSteps):
        h_least = LEAST_STEP * (abs(t_end - t0) if isfinite(t_end) else 1.0)
        return {"h_max": min(stepping.max_step, LONGEST), "max_steps": stepping.max_steps, "h_least": h_least}
    n_steps, is_even = stepping.n_steps, stepping.grid is None
    return {"n_steps": n_steps, "h": (t_end - t0) / n_steps, "t_scale": abs(t0) if is_even else 0.0}


def find_grid(plan: Plan) -> np.ndarray:
    """The times of given steps; empty for even ones."""
    grid = plan.stepping.grid
    return NO_TIMES if grid is None else grid


def find_wanted_times(plan: Plan) -> np.ndarray:
    """The times to save at; empty if steps are saved."""
    return NO_TIMES if plan.saving.at is None else plan.saving.at
