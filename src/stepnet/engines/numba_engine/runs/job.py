"""A prepared run: the arrays that its kernel works on, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Plan
from stepnet.engines.numba_engine.integrators.events import EventState
from stepnet.engines.numba_engine.integrators.step_control import LEAST_STEP
from stepnet.engines.numba_engine.integrators.stepping import BEGINNING, BLANK, RUN, pad_length
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.problem import Problem

NO_TIMES = np.zeros(0)
LONGEST = 1e300  # largest step length, which must be finite
ELSEWHERE = -1  # `part` of a run whose inner job records where a right-hand side raised


class StageSlopes(NamedTuple):
    """The slopes of a stage, and the arguments of right-hand side `part` of a job there."""

    slopes: np.ndarray
    t: float
    y: np.ndarray
    part: int = 0


class Job(NamedTuple):
    """`advance(trajectory)` runs one slice and returns a code of `stepping`; the state is the first `rows` of `work`.

    `prefix` holds times and flat states saved before the kernel begins, if not just the initial state.
    `stage_slopes(t, y, h)` yields the `StageSlopes` of one step in Python, to diagnose failures.
    `inner` is the job that takes the steps, if this one only processes them.
    `choose_step()` chooses the length of the next adaptive step as at the beginning of a run.
    `describe_choices()` returns entries of `Statistics` about orders and schemes that the run chose itself.
    `linear_solver` says how an implicit scheme solves its linear systems.
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
    describe_choices: Callable | None = None
    linear_solver: str = ""

    @property
    def real_dtype(self) -> np.dtype:
        return self.work.dtype

    @property
    def state(self) -> np.ndarray:
        """A copy of the current flat state."""
        reals = self.run["reals"].item()
        return self.work[: self.rows, :reals].ravel().view(self.dtype).copy()

    def put(self, state: np.ndarray) -> None:
        """Continue from another flat state."""
        real = state.view(self.real_dtype).reshape(self.rows, -1)
        self.work[: self.rows, : real.shape[1]] = real
        self.run[0]["has_slope"] = 0


def allocate_work(initial: np.ndarray, rows: int, total_rows: int) -> np.ndarray:
    """Zeroed rows for a run, with the flat initial state in the first `rows` of them."""
    real = initial.view(initial.real.dtype)
    reals = real.size // rows
    work = np.zeros((total_rows, pad_length(reals, real.dtype)), real.dtype)
    work[:rows, :reals] = real if rows == 1 else real.reshape(rows, reals)
    return work


def create_run_state(problem: Problem, plan: Plan, rows: int = 1) -> np.ndarray:
    """The `RunState` record at the beginning of a run."""
    initial = problem.initial
    n, is_complex = initial.size // rows, initial.dtype.kind == "c"
    every = plan.saving.every if plan.saving.at is None else -1
    t0, t_end = problem.t_span
    run = bytearray(BLANK)
    BEGINNING.pack_into(
        run, 0, n, 2 * n if is_complex else n, t0, t0, t_end, *_find_limits(plan.stepping, t0, t_end), every
    )
    return np.frombuffer(run, RUN)


def _find_limits(stepping: FixedSteps | AdaptiveSteps, t0: float, t_end: float) -> tuple:
    """`t_scale`, `h`, `h_max`, `h_least`, `n_steps` and `max_steps` of a run, where known."""
    if isinstance(stepping, AdaptiveSteps):
        h_least = LEAST_STEP * (abs(t_end - t0) if isfinite(t_end) else 1.0)
        return 0.0, 0.0, min(stepping.max_step, LONGEST), h_least, -1, stepping.max_steps
    n_steps, is_even = stepping.n_steps, stepping.grid is None
    return abs(t0) if is_even else 0.0, (t_end - t0) / n_steps, 0.0, 0.0, n_steps, 0


def find_grid(plan: Plan) -> np.ndarray:
    """The times of fixed steps; empty for equal steps."""
    grid = plan.stepping.grid if isinstance(plan.stepping, FixedSteps) else None
    return NO_TIMES if grid is None else grid


def find_save_times(plan: Plan) -> np.ndarray:
    """The save times; empty if steps are saved."""
    return NO_TIMES if plan.saving.at is None else plan.saving.at
