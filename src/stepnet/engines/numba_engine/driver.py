"""Runs a job slice by slice, so that Ctrl-C, progress and growing storage need nothing inside the kernels."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
from tqdm import tqdm

from stepnet.engines.contract import Given, Outcome, Plan
from stepnet.engines.numba_engine import diagnosis
from stepnet.engines.numba_engine import events as event_search
from stepnet.engines.numba_engine.compile.field import RUNGS
from stepnet.engines.numba_engine.job import Job, wanted_times
from stepnet.engines.numba_engine.stepping import (
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.events import Event
from stepnet.problem import ODE, Problem, Split
from stepnet.solution import Pieces, Statistics, Status

SLICE_SECONDS = 0.05
FIRST_SLICE = 32
STATUS = {
    DONE: Status.COMPLETED,
    EVENT: Status.EVENT,
    STEP_LIMIT: Status.STEP_LIMIT,
    NOT_FINITE: Status.NOT_FINITE,
    STEP_TOO_SMALL: Status.STEP_TOO_SMALL,
    FIELD_RAISED: Status.FIELD_RAISED,
}


def drive(job: Job, problem: Problem, plan: Plan, scheme) -> Outcome:
    """Call the kernel until the run ends; returns what was reached, whatever happened."""
    trajectory = Trajectory(job, plan)
    started = time.perf_counter()
    code = DONE if job.run[0]["t0"] == job.run[0]["t_end"] else _loop(job, problem, plan, trajectory)
    elapsed = time.perf_counter() - started
    status = Status.INTERRUPTED if code == PAUSED else STATUS[code]
    if status is not Status.COMPLETED:
        trajectory.keep_last(job)
    t_events, y_events = trajectory.events(job, len(plan.events))
    run = job.run[0]
    before = int(run["evaluations"])
    failure, stiffness = diagnosis.explain(job, scheme, plan, status)
    statistics = Statistics(
        accepted=int(run["step"]),
        rejected=int(run["rejected"]),
        evaluations=int(run["evaluations"]),
        rung=max((field.rung for field in job.fields), key=RUNGS.index),
        rung_reason="; ".join(field.reason for field in job.fields if field.reason),
        compile_time=sum(field.compile_time for field in job.fields),
        run_time=elapsed,
        stiffness=stiffness,
        probes=int(run["evaluations"]) - before,
    )
    saved, pieces = trajectory.result(job.dtype), trajectory.dense_output(job) if plan.dense else None
    return Outcome(*saved, status, statistics, failure, t_events, y_events, pieces, float(run["t"]))


def _loop(job: Job, problem: Problem, plan: Plan, trajectory: Trajectory) -> int:
    """The code of the last slice; PAUSED means interrupted."""
    run = job.run[0]
    try:
        code, attempts = PAUSED, FIRST_SLICE
        if not any(field.callbacks for field in job.fields) and not plan.progress:
            code, attempts = _slice(job, trajectory, _first_attempts(job))
            if code not in (PAUSED, FULL, EVENT):
                return code
        with _interrupts(job) as is_stopped, _progress_bar(run, plan.progress) as show:
            while code in (PAUSED, FULL, EVENT):
                if code == FULL:
                    trajectory.grow(job)
                if code == EVENT and not trajectory.reset(job, plan, problem):
                    return EVENT
                if is_stopped():
                    return PAUSED
                code, attempts = _slice(job, trajectory, attempts)
                show(run)
            return _told_apart(code, job, is_stopped())
    except KeyboardInterrupt:  # from a handler that is not ours, or before ours was there
        return PAUSED


def _first_attempts(job: Job) -> int:
    """Attempts for the first slice: many if evaluations are cheap, so that a short run needs nothing set up.

    An evaluation is taken to cost what it cost in Python, so this errs on the side of few.
    """
    cost = sum(field.cost for field in job.fields)
    return FIRST_SLICE if cost > 1e-4 else 1024


def _slice(job: Job, trajectory: Trajectory, attempts: int) -> tuple[int, int]:
    """Run one slice; its code, and how many attempts make the next one take the time of a slice."""
    job.run[0]["slice"] = attempts
    started = time.perf_counter()
    code = job.advance(trajectory)
    factor = SLICE_SECONDS / max(time.perf_counter() - started, 1e-6)
    return code, int(min(max(1, attempts * min(factor, 64)), 2**40))


def _told_apart(code: int, job: Job, is_stopped: bool) -> int:
    """An exception that is an interrupt is not a failure of the right-hand side."""
    is_interrupt = any(isinstance(c.exception, KeyboardInterrupt) for f in job.fields for c in f.callbacks)
    return PAUSED if code == FIELD_RAISED and (is_stopped or is_interrupt) else code


def _initial_rows(job: Job, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The initial state, as often as it is wanted."""
    run = job.run[0]
    is_end = run["t0"] == run["t_end"]
    wanted = wanted_times(plan)
    if plan.saving.at is None:
        count = int(plan.saving.every > 0 or is_end)
    else:
        count = np.count_nonzero(wanted == run["t0"])
    return np.full(count, run["t0"]), np.tile(job.state, (count, 1))


class Trajectory:
    """Rows for the kernel to fill, grown by doubling where their number is not known beforehand."""

    def __init__(self, job: Job, plan: Plan):
        self._run = job.run[0]
        prefix = _initial_rows(job, plan) if job.prefix is None else job.prefix
        self._has_wanted_times = plan.saving.at is not None
        width = job.rows * int(self._run["reals"])
        capacity = _capacity(plan)
        try:
            self.t = np.empty(capacity)
            self.y = np.empty((capacity, width), job.real_dtype)
        except MemoryError:
            size = capacity * width * job.real_dtype.itemsize / 2**30
            raise MemoryError(
                f"saving {capacity} states takes {size:.0f} GiB; use `save_every` or `save_at` to save fewer"
            ) from None
        rows = len(prefix[0])
        self.t[:rows] = prefix[0]
        self.y[:rows] = prefix[1].view(job.real_dtype).reshape(rows, width)
        self._run["saved"] = rows
        self._run["next_save"] = rows
        self.watch = job.watch
        room = 256 if plan.dense else 0
        self.piece_t = np.empty((room, 2))
        self.pieces = np.empty((room, job.rows_per_piece * width), job.real_dtype)

    def grow(self, job: Job) -> None:
        """Twice the room for whatever is full."""
        run = self._run
        if run["saved"] == len(self.t) and not self._has_wanted_times:
            self.t = np.concatenate((self.t, np.empty_like(self.t)))
            self.y = np.concatenate((self.y, np.empty_like(self.y)))
        if run["n_pieces"] == len(self.piece_t):
            self.piece_t = np.concatenate((self.piece_t, np.empty_like(self.piece_t)))
            self.pieces = np.concatenate((self.pieces, np.empty_like(self.pieces)))
        if self.watch is not None and event_search.is_crowded(self.watch, int(run["n_found"])):
            self.watch = event_search.grown(self.watch)

    def reset(self, job: Job, plan: Plan, problem) -> bool:
        """Put the state that the last event asks for; False if it ends the run instead."""
        run = self._run
        who = int(self.watch.which[run["n_found"] - 1])
        if plan.events[who].reset is None:
            return False
        t, old = float(run["t"]), job.state
        new = _reset_state(plan.events[who], t, old, problem)
        self._look_again(job, t, old, new, who)
        job.put(new)
        if plan.saving.at is None and plan.saving.every > 0:
            if run["saved"] == len(self.t):
                self.grow(job)
            self.t[run["saved"]], self.y[run["saved"]] = t, new.view(job.real_dtype)
            run["saved"] += 1
        elif plan.saving.at is None and run["saved"]:  # the end, and it is this one
            self.y[run["saved"] - 1] = new.view(job.real_dtype)
        return True

    def _look_again(self, job: Job, t: float, old: np.ndarray, new: np.ndarray, who: int) -> None:
        """Events begin anew at the new state; the one that has just crossed stays so if it was not moved.

        One that crosses at the very same time is left as it was before, to be found in the next step.
        """
        is_crossing, watch = event_search.is_crossing.py_func, self.watch
        for e, g in enumerate(job.fields[1 : 1 + len(watch.values)]):
            value, before = g(t, new)[0].real, g(t, old)[0].real
            if e == who:
                watch.values[e] = 0.0 if value == before else value
            elif not is_crossing(watch.values[e], before, watch.directions[e]):
                watch.values[e] = value

    def events(self, job: Job, count: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Times and flat states of the zeros of each event."""
        if count == 0:
            return (), ()
        n = int(self._run["n_found"])
        which, t, y = self.watch.which[:n], self.watch.t[:n], self.watch.y[:n].view(job.dtype)
        return tuple(t[which == e] for e in range(count)), tuple(y[which == e] for e in range(count))

    def dense_output(self, job: Job) -> Pieces:
        """The polynomials of all steps; a constant one if there was none."""
        n = int(self._run["n_pieces"])
        if n == 0:
            data = np.zeros((1, 4, job.state.size), job.dtype)
            data[0, :2] = job.state
            return Pieces(np.array([float(self._run["t"])]), np.ones(1), data)
        data = self.pieces[:n].reshape(n, job.rows_per_piece, -1).view(job.dtype).copy()
        return Pieces(self.piece_t[:n, 0].copy(), self.piece_t[:n, 1].copy(), data)

    def keep_last(self, job: Job) -> None:
        """Append the last valid state of a run that ended early, unless only wanted times are kept."""
        saved = int(self._run["saved"])
        if self._has_wanted_times or (saved and self.t[saved - 1] == self._run["t"]):
            return
        if saved == len(self.t):
            self.grow(job)
        self.t[saved] = self._run["t"]
        self.y[saved] = job.state.view(job.real_dtype)
        self._run["saved"] += 1

    def result(self, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Times and flat states; a view if hardly any room was left over."""
        saved = int(self._run["saved"])
        t, y = self.t[:saved], self.y[:saved].view(dtype)
        return (t, y) if 2 * saved > len(self.t) else (t.copy(), y.copy())


def _reset_state(event: Event, t: float, state: np.ndarray, problem: Problem) -> np.ndarray:
    """The flat state that an event asks to go on with."""
    shape = problem.y0.shape if isinstance(problem, (ODE, Split)) else state.shape
    asked = np.asarray(event.reset(t, state.reshape(shape), *problem.args))  # type: ignore[misc]
    if asked.shape != shape or not np.all(np.isfinite(asked)):
        raise ValueError(
            f"`reset` of an event must return {state.size} finite number{'s' * (state.size != 1)} of shape {shape}, "
            f"found {asked!r:.80}"
        )
    if asked.dtype.kind == "c" and state.dtype.kind != "c":
        raise TypeError("`reset` of an event returned complex numbers for a real state")
    return asked.astype(state.dtype).ravel()


def _capacity(plan: Plan) -> int:
    """How many states will be saved, or a first guess."""
    every = plan.saving.every
    if plan.saving.at is not None:
        return len(plan.saving.at)
    if isinstance(plan.stepping, Given):
        return plan.stepping.n_steps // every + 2 if every else 1
    return 256 if every else 1


@contextmanager
def _interrupts(job: Job):
    """Ctrl-C sets a flag that is looked at between slices, and before every call of a Python right-hand side."""
    pressed: list[bool] = []
    is_pressed = partial(bool, pressed)  # an empty list is false
    for field in job.fields:
        for callback in field.callbacks:
            callback.is_stopped = is_pressed
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
def _progress_bar(run, is_wanted: bool):
    """A bar over simulated time with the step size, updated after every slice."""
    if not is_wanted:
        yield lambda run: None
        return
    total = abs(float(run["t_end"] - run["t0"]))
    layout = "{l_bar}{bar}| t {n:.4g}/{total:.4g} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
    with tqdm(total=total, bar_format=layout, unit="t") as bar:

        def show(run):
            bar.n = abs(float(run["t"] - run["t0"]))
            bar.set_postfix_str(f"h={abs(float(run['h'])):.2g}, {int(run['step'])} steps")

        yield show
