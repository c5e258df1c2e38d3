"""A run being prepared: the arrays that its kernel works on, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepnet.engines.contract import Given, Plan
from stepnet.engines.numba_engine.compile.field import Field
from stepnet.engines.numba_engine.events import Watch
from stepnet.engines.numba_engine.stepping import RUN, padded
from stepnet.problem import Problem

ELSEWHERE = -1  # `part` of a run whose inner job knows where a right-hand side raised


@dataclass(frozen=True, eq=False)
class Job:
    """`advance(trajectory)` runs one slice and returns a code of `stepping`; the state is the first `rows` of `work`.

    `prefix` holds times and flat states saved before the kernel begins, if not just the initial state.
    `stage_slopes(t, y, h)` yields the slopes of the stages of one step in Python, to find out what went wrong.
    `inner` is the job that takes the steps, if this one only looks into them.
    """

    advance: Callable
    run: np.ndarray
    work: np.ndarray
    rows: int
    fields: tuple[Field, ...]
    dtype: np.dtype
    stage_slopes: Callable
    watch: Watch | None = None
    rows_per_piece: int = 0
    prefix: tuple[np.ndarray, np.ndarray] | None = None
    inner: Job | None = None

    @property
    def real_dtype(self) -> np.dtype:
        return self.work.dtype

    @property
    def state(self) -> np.ndarray:
        """A copy of the current flat state."""
        reals = self.run[0]["reals"]
        return self.work[: self.rows, :reals].ravel().view(self.dtype).copy()

    def put(self, state: np.ndarray) -> None:
        """Go on from another flat state."""
        real = state.view(self.real_dtype).reshape(self.rows, -1)
        self.work[: self.rows, : real.shape[1]] = real
        self.run[0]["has_slope"] = 0


def new_work(initial: np.ndarray, rows: int, total_rows: int) -> np.ndarray:
    """Zeroed rows for a run, the flat initial state spread over the first `rows` of them."""
    real = initial.view(initial.real.dtype)
    reals = real.size // rows
    work = np.zeros((total_rows, padded(reals, real.dtype)), real.dtype)
    work[:rows, :reals] = real.reshape(rows, reals)
    return work


def new_run(problem: Problem, plan: Plan, rows: int = 1) -> np.ndarray:
    """The record of a run at its beginning."""
    run = np.zeros(1, RUN)
    state, r = problem.initial, run[0]
    r["n"] = state.size // rows
    r["reals"] = r["n"] * (2 if state.dtype.kind == "c" else 1)
    r["t0"], r["t_end"] = problem.t_span
    r["t"] = r["t0"]
    if isinstance(plan.stepping, Given):
        r["n_steps"] = plan.stepping.n_steps
        r["h"] = (r["t_end"] - r["t0"]) / plan.stepping.n_steps
        r["t_scale"] = abs(r["t0"]) if plan.stepping.grid is None else 0.0
    else:
        r["n_steps"], r["h_max"], r["max_steps"] = -1, plan.stepping.max_step, plan.stepping.max_steps
    r["error_1"] = r["error_2"] = 1.0
    r["stride"] = 64
    r["save_every"] = plan.saving.every if plan.saving.at is None else -1
    return run


def grid_of(plan: Plan) -> np.ndarray:
    """The times of given steps; empty for even ones."""
    grid = plan.stepping.grid
    return np.zeros(0) if grid is None else grid


def wanted_times(plan: Plan) -> np.ndarray:
    """The times to save at; empty if steps are saved."""
    return np.zeros(0) if plan.saving.at is None else plan.saving.at
