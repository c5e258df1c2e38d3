"""Continuing a run from the state to which an event resets it."""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.integrators.events import (
    TINY,
    EventState,
    estimate_rounding,
    is_crossing,
    sign_ahead,
    sign_ahead_curved,
)
from stepnet.engines.numba_engine.integrators.stepping import ACCUMULATED, EVENT, PAUSED
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.engines.numba_engine.runs.recompilation import Recompilation
from stepnet.engines.numba_engine.runs.trajectory import TrajectoryBuffer
from stepnet.events import Event
from stepnet.problem import Problem, state_shape

MOST_AT_ONCE, AT_ONCE = 100, 1e-12  # this many events within this time, relative to t, count as an accumulation point


def go_on(
    job: Job, plan: Plan, problem: Problem, trajectory: TrajectoryBuffer, renewal: Recompilation | None
) -> tuple[int, Job]:
    """Apply the reset of the last event: PAUSED; EVENT if it ends the run, ACCUMULATED if events accumulate.

    The reset may have changed what functions of the run read; the job returned takes this into account.
    """
    run, watch = job.run[0], trajectory.watch
    who = int(watch.which[run["n_found"] - 1])
    if plan.events[who].reset is None or renewal is None:
        return EVENT, job
    if _is_accumulating(run, watch):
        return ACCUMULATED, job
    t, old = float(run["t"]), job.state
    new = _state_after(plan.events[who], t, old, problem)
    job.put(new)
    job = renewal.current(job)
    trajectory.follow(job)
    _begin_anew(job, trajectory.watch, len(plan.events), old, new, who)
    if job.choose_step is not None and t != job.run[0]["t_end"]:
        job.choose_step()
    trajectory.keep_reset(job, t, new, plan.saving.every)
    return PAUSED, job


def _is_accumulating(run, watch: EventState) -> bool:
    """Whether the time has not advanced over the last events, as where the bounces of a ball accumulate."""
    n, t = int(run["n_found"]), float(run["t"])
    if n < MOST_AT_ONCE:
        return False
    return abs(t - watch.t[n - MOST_AT_ONCE]) <= AT_ONCE * max(abs(t), abs(float(run["t0"])))


def _state_after(event: Event, t: float, state: np.ndarray, problem: Problem) -> np.ndarray:
    """The flat state that the reset of an event returns."""
    shape = state_shape(problem)
    asked = np.asarray(event.reset(t, state.reshape(shape), *problem.args))
    if asked.shape != shape or asked.dtype.kind not in "biufc" or not np.all(np.isfinite(asked)):
        numbers = f"{state.size} finite number{'s' * (state.size != 1)}"
        raise ValueError(f"`reset` of an event must return {numbers} of shape {shape}, found {asked!r:.80}")
    if asked.dtype.kind == "c" and state.dtype.kind != "c":
        raise TypeError("`reset` of an event returned complex numbers for a real state")
    return asked.astype(state.dtype).ravel()


def _begin_anew(job: Job, watch: EventState, n: int, old: np.ndarray, new: np.ndarray, who: int) -> None:
    """Set the values of the events at the new state.

    The event that has just crossed gets the sign that it has from here on.  Others that are zero up to rounding keep
    their sign, and so does one that crosses at the same time, which is found in the next step.
    """
    t = float(job.run[0]["t"])
    watch.falling[...], watch.rates[...] = 0, np.nan
    for e, g in enumerate(job.fields[1 : 1 + n]):
        value, before = g(t, new)[0].real, g(t, old)[0].real
        if e == who:
            _begin_at_zero(job, watch, e, value, before, (old, new))
        elif np.sign(value) == np.sign(watch.values[e]) or not (
            is_crossing.py_func(watch.values[e], before, watch.directions[e])
            or abs(value) <= estimate_rounding(g, t, new)
        ):
            watch.values[e] = value


def _begin_at_zero(job: Job, watch: EventState, e: int, value: float, before: float, states) -> None:
    """Set the value of the event that has just crossed, at the state after its reset.

    If the reset makes its rate zero but does not prevent the solution from crossing zero, the event is found again at
    once, and the run does not advance.
    """
    (t, t_end), (slope, g), (old, new) = job.run[["t", "t_end"]][0], (job.fields[0], job.fields[1 + e]), states
    span = float(t), float(t_end)
    noise = max(estimate_rounding(g, span[0], new), 2 * abs(before))
    watch.values[e], watch.noise[e] = value, noise
    if value != before and abs(value) > noise:
        return
    watch.noise[e] = max(noise, 2 * abs(value))
    if watch.touches[e] > 0.0:
        watch.values[e] = 0.0
        return
    watch.values[e] = TINY * _sign_after(slope, g, span, old, new, noise)


def _sign_after(slope, g, span: tuple[float, float], old: np.ndarray, new: np.ndarray, noise: float) -> float:
    """The sign of an event after its reset, or its sign before if its rate is zero and it would cross zero."""
    sign = sign_ahead(slope, g, span, new, noise)
    if sign != 0.0:
        return sign
    sign, through = sign_ahead_curved(slope, g, span, new, noise), sign_ahead(slope, g, span, old, noise)
    return -through if sign == through else sign
