"""Paths of stochastic equations with adaptive steps: one by one, over threads."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, EnsembleOutcome, Members, Outcome, Plan
from stepnet.engines.numba_engine.adjoint.step_sweeps import StepWorkspace, build_program_arrays
from stepnet.engines.numba_engine.codegen.steps.fused_steps import NoiseLayout
from stepnet.engines.numba_engine.ensembles.adaptive_path_kernels import (
    ACCEPTED,
    FRACTION,
    NEXT_STOP,
    REJECTED,
    SAVED,
    AdaptiveClock,
    H,
    PathProgress,
    PathSource,
    T,
    run_adaptive_path,
)
from stepnet.engines.numba_engine.ensembles.ensemble_runs import (
    ChunkRunner,
    ignore_progress,
    member_problem,
    run_chunks,
)
from stepnet.engines.numba_engine.ensembles.path_runs import run_one_by_one
from stepnet.engines.numba_engine.integrators.step_control import build_control_settings
from stepnet.engines.numba_engine.integrators.stepping import FULL, PAUSED, pad_length
from stepnet.engines.numba_engine.random.paths import PathNumbers
from stepnet.engines.numba_engine.random.step_noise import CODE
from stepnet.engines.numba_engine.rhs.ladder import RUNGS, CompiledRHS
from stepnet.engines.numba_engine.rhs.stochastic_parts import build_stochastic_fields, find_product_kind
from stepnet.engines.numba_engine.runs.driver import STATUS
from stepnet.noise import NoiseGrid
from stepnet.problem import SDE
from stepnet.schemes.capabilities import find_estimate_order
from stepnet.schemes.step_program import StepProgram, build_stochastic_pair
from stepnet.solution import Failure, Statistics, Status

ATTEMPTS = 4096  # between two checks for interrupts
SPACE = 1024  # states that are saved between two calls of the kernel
FIRST_FRACTION = 0.01  # of the time span: the first attempt
PATHS_OF_A_CHUNK = 16


class AdaptiveRun(NamedTuple):
    """Drift, diffusion and step program of a run; its steps are chosen by their error estimate."""

    problem: SDE
    fields: tuple[CompiledRHS, ...]
    program: StepProgram
    stepping: AdaptiveSteps
    exponent: float

    @property
    def rung(self) -> str:
        return max((field.rung for field in self.fields), key=RUNGS.index)

    @property
    def reason(self) -> str:
        return "; ".join(field.reason for field in self.fields if field.reason)


class PathRecord(NamedTuple):
    """The saved times and states of a path, the code of its end, and its last position."""

    t: np.ndarray
    y: np.ndarray
    code: int
    now: PathProgress
    exception: BaseException | None = None


def prepare_adaptive_run(problem: SDE, scheme, stepping: AdaptiveSteps) -> AdaptiveRun:
    """The compiled functions and the step program of a run."""
    program = build_stochastic_pair(scheme, find_product_kind(problem))
    fields = build_stochastic_fields(problem, scheme)
    return AdaptiveRun(problem, fields, program, stepping, 1.0 / (find_estimate_order(scheme) + 0.5))


def run_adaptive(problem: SDE, scheme, plan: Plan) -> Outcome:
    """Solve for one path."""
    own, began = prepare_adaptive_run(problem, scheme, cast(AdaptiveSteps, plan.stepping)), time.perf_counter()
    found = _run_path(own, plan.saving.at, plan.saving.every)
    counts, t_end = found.now.counts, float(found.now.numbers[T])
    evaluations = int(counts[ACCEPTED] + counts[REJECTED]) * own.program.n_slopes
    numbers = int(counts[ACCEPTED]), int(counts[REJECTED]), evaluations
    statistics = Statistics(*numbers, own.rung, own.reason, run_time=time.perf_counter() - began)
    status = Status.INTERRUPTED if found.code == PAUSED else STATUS[found.code]
    failure = None
    if status not in (Status.COMPLETED, Status.INTERRUPTED):
        norm = float(np.linalg.norm(found.now.state))
        advice = "" if found.exception else "use larger tolerances, or `steps`"
        failure = Failure(
            t_end, float(found.now.numbers[H]), norm, float("nan"), advice=advice, exception=found.exception
        )
    return Outcome(found.t, found.y, status, statistics, failure, t_end=t_end)


def run_adaptive_ensemble(
    problem: SDE, scheme, plan: Plan, members: Members, workers: int = 1, show=ignore_progress
) -> EnsembleOutcome:
    """Solve for many paths; `members.paths` holds the number of each."""
    own, n_times = prepare_adaptive_run(problem, scheme, cast(AdaptiveSteps, plan.stepping)), members.save_at.shape[1]
    y = np.full((members.number, max(1, n_times), problem.initial.size), np.nan)
    t_end, codes = np.full(members.number, np.nan), np.full(members.number, PAUSED)
    accepted, rejected, saved = (np.zeros(members.number, np.int64) for _ in range(3))

    def run(i: int) -> None:
        found = _run_path(_select_member(own, scheme, members, i), members.save_at[0] if n_times else None, 0)
        counts, number = found.now.counts, len(found.t)
        y[i, :number] = found.y
        if not n_times:
            y[i, 0] = found.now.state
        codes[i], t_end[i] = found.code, found.now.numbers[T]
        accepted[i], rejected[i], saved[i] = counts[ACCEPTED], counts[REJECTED], number

    runner = ChunkRunner(partial(run_one_by_one, run), "one by one", "each path has its own step sizes")
    chunks = [
        (first, min(first + PATHS_OF_A_CHUNK, members.number)) for first in range(0, members.number, PATHS_OF_A_CHUNK)
    ]
    is_whole = run_chunks(runner, chunks, workers, show)
    status = tuple(Status.INTERRUPTED if code == PAUSED else STATUS[code] for code in codes.tolist())
    evaluations = (accepted + rejected) * own.program.n_slopes
    counts = accepted, rejected, evaluations, saved
    return EnsembleOutcome(y, t_end, status, *counts, runner.rung, runner.reason, (), (), not is_whole)


def _select_member(own: AdaptiveRun, scheme, members: Members, i: int) -> AdaptiveRun:
    """The run of one member, with its own path, numbers and tolerances."""
    problem: Any = replace(cast(Any, member_problem(own.problem, members, i)), path=int(members.paths[i]))
    stepping = own.stepping._replace(rtol=members.row("rtol", i), atol=members.row("atol", i))
    if problem.args is own.problem.args:
        return own._replace(problem=problem, stepping=stepping)
    return prepare_adaptive_run(problem, scheme, stepping)


def _run_path(own: AdaptiveRun, wanted: np.ndarray | None, every: int) -> PathRecord:
    """Call the kernel until the path has reached its end; states are collected between the calls."""
    problem, n = own.problem, own.problem.initial.size
    grid = NoiseGrid(problem.t_span, 1 if problem.cells is None else problem.cells)
    layout = NoiseLayout.of(own.program, problem.n_components)
    clock, source = _build_clock(own, grid, wanted, every), _build_source(own, grid, layout)
    now = PathProgress(np.zeros(6, np.int64), np.ones(5), np.array(problem.initial))
    span = problem.t_span[1] - problem.t_span[0]
    now.numbers[FRACTION], now.numbers[T] = 0.0, problem.t_span[0]
    now.numbers[H] = own.stepping.first_step or FIRST_FRACTION * span
    tape = build_program_arrays(own.program, layout)
    how = build_control_settings(own.stepping, own.exponent)
    fields, p = np.array([field.address for field in own.fields], np.int64), own.fields[-1].p
    space = clock.n_wanted + SPACE
    out_t, out_y, code = np.empty(space), np.empty((space, n)), PAUSED
    parts = [(out_t[:0].copy(), out_y[:0].copy())]
    head = (fields, p, tape, _allocate(own.program, layout, tape.weight.size, n), how, source, clock, now)
    _save_beginning(clock, now, problem, out_t, out_y, every)
    try:
        while code in (PAUSED, FULL):
            code = run_adaptive_path(*head, np.zeros(layout.size), out_t, out_y, ATTEMPTS)
            count = now.counts[SAVED]
            parts.append((out_t[:count].copy(), out_y[:count].copy()))
            now.counts[SAVED] = 0
    except KeyboardInterrupt:
        code = PAUSED
    t, y = (np.concatenate(some) for some in zip(*parts, strict=True))
    return PathRecord(t, y, code, now, _find_exception(own.fields))


def _save_beginning(clock, now: PathProgress, problem: SDE, out_t, out_y, every: int) -> None:
    """Save the initial state if required; stops at the initial time are skipped."""
    while clock.times[now.counts[NEXT_STOP]] <= problem.t_span[0]:
        out_t[now.counts[SAVED]], out_y[now.counts[SAVED]] = problem.t_span[0], problem.initial
        now.counts[SAVED] += 1
        now.counts[NEXT_STOP] += 1
    if clock.every > 0:
        out_t[0], out_y[0], now.counts[SAVED] = problem.t_span[0], problem.initial, 1


def _build_clock(own: AdaptiveRun, grid: NoiseGrid, wanted: np.ndarray | None, every: int) -> AdaptiveClock:
    """The stops of a run: save times, and the end of the interval."""
    t0, t1 = own.problem.t_span
    times = np.append(np.zeros(0) if wanted is None else wanted, t1)
    places = grid.locate(times)
    return AdaptiveClock(
        t0,
        (t1 - t0) / (grid.cells * grid.leaves),
        places.cell * grid.leaves + places.leaf,
        places.fraction,
        times,
        0 if wanted is None else len(wanted),
        every if wanted is None else -1,
        own.stepping.max_step,
        own.stepping.max_steps,
    )


def _build_source(own: AdaptiveRun, grid: NoiseGrid, layout: NoiseLayout) -> PathSource:
    problem = own.problem
    return PathSource(
        PathNumbers(np.uint64(problem.seed), grid.cell_length, grid.rounder, grid.levels),
        np.uint64(problem.path),
        problem.n_components,
        np.array([CODE[each.variable] for each in own.program.noise], np.int64),
        np.array([layout.places[each].start for each in own.program.noise], np.int64),
    )


def _allocate(program: StepProgram, layout: NoiseLayout, n_weights: int, n: int) -> StepWorkspace:
    shape = (program.n_rows + len(program.operations) + 1, pad_length(n * max(1, layout.size), np.dtype(float)))
    rows = np.zeros(shape), np.zeros((0, shape[1]))
    return StepWorkspace(*rows, np.zeros(n_weights), np.zeros(0), np.zeros(2), np.zeros(1))


def _find_exception(fields: tuple[CompiledRHS, ...]) -> BaseException | None:
    """The exception that a function in Python raised."""
    found = (callback.exception for field in fields for callback in field.callbacks)
    return next((exception for exception in found if exception is not None), None)
