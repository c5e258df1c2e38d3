"""Runs a job slice by slice, so that kernels need not handle Ctrl-C, progress or growing storage."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from math import isfinite

import numpy as np
from tqdm import tqdm

from stepnet.engines.contract import Outcome, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.integrators.stepping import (
    ACCUMULATED,
    BROKEN,
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    NOT_SOLVED,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.rhs.ladder import RUNGS, CompiledRHS
from stepnet.engines.numba_engine.runs import diagnosis
from stepnet.engines.numba_engine.runs.event_resets import go_on
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.engines.numba_engine.runs.recompilation import Recompilation
from stepnet.engines.numba_engine.runs.trajectory import TrajectoryBuffer
from stepnet.problem import Problem
from stepnet.records import build_record
from stepnet.solution import Failure, Statistics, Status

SLICE_SECONDS = 0.05
FIRST_SLICE, MOST_AT_FIRST = 32, 2**16
FIRST_SECONDS = 0.01
NUMBERS_AT_FIRST = 2**20  # numbers that the attempts of the first slice process at least
TO_GO_ON = (PAUSED, FULL, EVENT, BROKEN)
EVALUATIONS = 10  # per attempt, approximately
STATUS = {
    DONE: Status.COMPLETED,
    EVENT: Status.EVENT,
    STEP_LIMIT: Status.STEP_LIMIT,
    NOT_FINITE: Status.NOT_FINITE,
    STEP_TOO_SMALL: Status.STEP_TOO_SMALL,
    FIELD_RAISED: Status.FIELD_RAISED,
    NOT_SOLVED: Status.NOT_SOLVED,
    ACCUMULATED: Status.EVENTS_ACCUMULATE,
}


class StartFailed(Exception):
    """A run failed before its first step, or in its starting procedure; `.outcome` is what it computed."""

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.status.value)
        self.outcome = outcome

    def wanted(self, plan: Plan) -> Outcome:
        """The part of the outcome that the plan asks for."""
        every = plan.saving.every
        kept = slice(0, 0) if plan.saving.at is not None else slice(None, None, every) if every else slice(-1, None)
        return self.outcome._replace(t=self.outcome.t[kept], y=self.outcome.y[kept])


def refuse_start(problem: Problem, reason: str) -> Outcome:
    """The outcome of a run that cannot begin: no states, and the reason as advice."""
    t0, y = problem.t_span[0], problem.initial
    failure = Failure(t=t0, h=0.0, y_norm=float(np.linalg.norm(y)), slope_norm=float("nan"), advice=reason)
    return Outcome(
        np.zeros(0), np.zeros((0, y.size)), Status.NOT_SOLVED, Statistics(0, 0, 0, "python"), failure, t_end=t0
    )  # fmt: skip


def drive(job: Job, problem: Problem, plan: Plan, scheme, prepare: Callable[..., Job] | None = None) -> Outcome:
    """Call the kernel until the run ends, and return what was computed, even after a failure.

    `prepare(problem, scheme, plan)` builds such a job again, for plans with resets.
    """
    trajectory = TrajectoryBuffer(job, plan)
    started, loaded = time.perf_counter(), Kernel.seconds
    code = DONE
    if problem.t_span[0] != problem.t_span[1]:
        code, job = _run_slices(job, problem, plan, trajectory, lambda: Recompilation(problem, scheme, plan, prepare))
    loading = Kernel.seconds - loaded
    elapsed = time.perf_counter() - started - loading
    status = Status.INTERRUPTED if code == PAUSED else STATUS[code]
    if status is not Status.COMPLETED:
        trajectory.keep_last(job)
    t_events, y_events = trajectory.events(job, len(plan.events))
    step, rejected, t_end, before = [job.run[name].item() for name in ("step", "rejected", "t", "evaluations")]
    failure, stiffness = diagnosis.explain(job, scheme, plan, status)
    evaluations = job.run["evaluations"].item()
    slopes, watched, moved = _group_by_purpose(job.fields, plan)
    n_calls, rung, reason = _describe_origin(slopes)
    statistics = build_record(
        Statistics,
        accepted=step,
        rejected=rejected,
        evaluations=n_calls * evaluations,
        rung=rung,
        rung_reason=reason,
        compile_time=sum([field.compile_time for field in job.fields]) + loading,
        run_time=elapsed,
        stiffness=stiffness,
        jacobians=job.run["jacobians"].item(),
        factorisations=job.run["factorisations"].item(),
        probes=evaluations - before,
        event_rungs=tuple([field.rung for field in watched]),
        event_reasons=tuple([field.reason for field in watched]),
        project_rung=moved[0].rung if moved else "",
        project_reason=moved[0].reason if moved else "",
        **({} if job.describe_choices is None else job.describe_choices()),
        linear_solver=job.linear_solver if job.inner is None else job.inner.linear_solver,
    )
    saved, pieces = trajectory.result(job.dtype), trajectory.dense_output(job) if plan.dense else None
    return Outcome(*saved, status, statistics, failure, t_events, y_events, pieces, t_end)


def _group_by_purpose(fields: tuple[CompiledRHS, ...], plan: Plan) -> tuple[tuple[CompiledRHS, ...], ...]:
    """The fields of the right-hand side, the events and the projection; the latter follow the first field of a job."""
    events = 1 + len(plan.events)
    moved = events + (plan.project is not None)
    return fields[:1] + fields[moved:], fields[1:events], fields[events:moved]


def _describe_origin(fields: tuple[CompiledRHS, ...]) -> tuple[int, str, str]:
    """Calls of the user's functions per evaluation, the slowest rung, and the reason for it."""
    if len(fields) == 1:
        return fields[0].n_calls, fields[0].rung, fields[0].reason
    reasons = dict.fromkeys(field.reason for field in fields if field.reason)
    rung = max((field.rung for field in fields), key=RUNGS.index)
    return max(field.n_calls for field in fields), rung, "; ".join(reasons)


def _run_slices(
    job: Job, problem: Problem, plan: Plan, trajectory: TrajectoryBuffer, renew: Callable[[], Recompilation]
) -> tuple[int, Job]:
    """The code of the last slice, where PAUSED means interrupted, and the job, which a reset may have replaced."""
    try:
        code, attempts = PAUSED, choose_first_slice(job)
        if not plan.progress and not any(field.callbacks for field in job.fields):
            attempts = _choose_first_attempts(job)
            code, seconds = _run_slice(job, trajectory, attempts)
            if code not in TO_GO_ON:
                return diagnosis.correct_code(job, code), job
            attempts = _choose_next_attempts(attempts, seconds)
        renewal = renew() if any(event.reset for event in plan.events) else None
        with _catch_interrupts(job) as is_stopped, _open_progress_bar(job.run[0], plan.progress) as show:
            while code in TO_GO_ON:
                code, next_job = _handle_request(code, job, problem, plan, trajectory, renewal)
                if next_job is not job:
                    _listen(next_job, is_stopped)
                    job = next_job
                if code != PAUSED:
                    return code, job
                if is_stopped():
                    return PAUSED, job
                code, seconds = _run_slice(job, trajectory, attempts)
                attempts = _choose_next_attempts(attempts, seconds)
                show(job.run[0])
            return _separate_interrupts(diagnosis.correct_code(job, code), job, is_stopped()), job
    except KeyboardInterrupt:  # from another handler, or before ours was installed
        return PAUSED, job


def _handle_request(
    code: int, job: Job, problem: Problem, plan: Plan, trajectory: TrajectoryBuffer, renewal: Recompilation | None
) -> tuple[int, Job]:
    """Handle the kernel's request; PAUSED to call it again, else how the run ends; and the job to continue with."""
    if code == FULL:
        trajectory.grow(job)
    if code == EVENT:
        return go_on(job, plan, problem, trajectory, renewal)
    if code == BROKEN:
        return diagnosis.correct_code(job, code), job
    return PAUSED, job


def _choose_first_attempts(job: Job) -> int:
    """Attempts in the first slice: many if evaluations are cheap, so that a short run needs no further setup."""
    seconds = EVALUATIONS * sum([field.cost for field in job.fields])
    return max(choose_first_slice(job), min(MOST_AT_FIRST, int(FIRST_SECONDS / max(seconds, 1e-9))))


def choose_first_slice(job: Job) -> int:
    """Attempts in the first slice at any cost of an evaluation: one for long states, for quick interrupts."""
    return min(FIRST_SLICE, max(1, NUMBERS_AT_FIRST // max(1, job.work.size)))


def _run_slice(job: Job, trajectory: TrajectoryBuffer, attempts: int) -> tuple[int, float]:
    """Run one slice; return its code and the seconds it took."""
    job.run["slice"] = attempts
    started = time.perf_counter()
    code = job.advance(trajectory)
    if trajectory.watch is not None and job.run["nan_event"].item() > 0 and diagnosis.does_event_raise(job):
        code = FIELD_RAISED
    return code, time.perf_counter() - started


def _choose_next_attempts(attempts: int, seconds: float) -> int:
    """Number of attempts for the next slice, if the last ones took `seconds`."""
    factor = SLICE_SECONDS / max(seconds, 1e-6)
    return int(min(max(1, attempts * min(factor, 64)), 2**40))


def _separate_interrupts(code: int, job: Job, is_stopped: bool) -> int:
    """Separate interrupts from exceptions of the right-hand side."""
    is_interrupt = any(isinstance(c.exception, KeyboardInterrupt) for f in job.fields for c in f.callbacks)
    return PAUSED if code == FIELD_RAISED and (is_stopped or is_interrupt) else code


def _listen(job: Job, is_pressed) -> None:
    """Make every Python right-hand side check the flag."""
    for field in job.fields:
        for callback in field.callbacks:
            callback.is_stopped = is_pressed


@contextmanager
def _catch_interrupts(job: Job):
    """Ctrl-C sets a flag that is checked between slices and before every call of a Python right-hand side."""
    pressed: list[bool] = []
    is_pressed = partial(bool, pressed)  # an empty list is false
    _listen(job, is_pressed)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield is_pressed
        return

    def press(number, frame):
        if pressed:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for a slow right-hand side
        pressed.append(True)

    signal.signal(signal.SIGINT, press)
    try:
        yield is_pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _open_progress_bar(run, is_wanted: bool):
    """A progress bar over simulated time with the step size, updated after every slice."""
    if not is_wanted:
        yield lambda run: None
        return
    span = abs(float(run["t_end"] - run["t0"]))
    total = span if isfinite(span) else None
    layout = "{l_bar}{bar}| t {n:.4g}/{total:.4g} [{elapsed}<{remaining}, {rate_fmt}{postfix}]" if total else None
    with tqdm(total=total, bar_format=layout, unit="t") as bar:

        def show(run):
            bar.n = abs(float(run["t"] - run["t0"]))
            bar.set_postfix_str(f"h={abs(float(run['h'])):.2g}, {int(run['step'])} steps")

        yield show
