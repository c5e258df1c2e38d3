"""Going on from the state that an event asks for."""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.events import Watch, is_crossing
from stepnet.engines.numba_engine.job import Job
from stepnet.engines.numba_engine.renewal import Renewal
from stepnet.engines.numba_engine.trajectory import Trajectory
from stepnet.events import Event
from stepnet.problem import ODE, Problem, Split


def went_on(job: Job, plan: Plan, problem: Problem, trajectory: Trajectory, renewal: Renewal) -> Job | None:
    """Put the state that the last event asks for; None if it ends the run instead.

    The reset may have changed what functions of the run read; then the answer is a job that knows.
    """
    run = job.run[0]
    who = int(trajectory.watch.which[run["n_found"] - 1])
    if plan.events[who].reset is None:
        return None
    t, old = float(run["t"]), job.state
    new = _state_after(plan.events[who], t, old, problem)
    job.put(new)
    job = renewal.current(job)
    trajectory.follow(job)
    _begin_anew(trajectory.watch, job.fields[1 : 1 + len(plan.events)], t, old, new, who)
    trajectory.keep_reset(job, t, new, plan.saving.every)
    return job


def _state_after(event: Event, t: float, state: np.ndarray, problem: Problem) -> np.ndarray:
    """The flat state that an event asks to go on with."""
    shape = problem.y0.shape if isinstance(problem, (ODE, Split)) else state.shape
    asked = np.asarray(event.reset(t, state.reshape(shape), *problem.args))  # type: ignore[misc]
    if asked.shape != shape or asked.dtype.kind not in "biufc" or not np.all(np.isfinite(asked)):
        numbers = f"{state.size} finite number{'s' * (state.size != 1)}"
        raise ValueError(f"`reset` of an event must return {numbers} of shape {shape}, found {asked!r:.80}")
    if asked.dtype.kind == "c" and state.dtype.kind != "c":
        raise TypeError("`reset` of an event returned complex numbers for a real state")
    return asked.astype(state.dtype).ravel()


def _begin_anew(watch: Watch, fields, t: float, old: np.ndarray, new: np.ndarray, who: int) -> None:
    """Values of the events at the new state; the one that has just crossed stays so if it was not moved.

    One that crosses at the very same time keeps its value from before, to be found in the next step.
    """
    watch.falling[...] = 0
    for e, g in enumerate(fields):
        value, before = g(t, new)[0].real, g(t, old)[0].real
        if e == who:
            watch.values[e] = 0.0 if value == before else value
        elif not is_crossing.py_func(watch.values[e], before, watch.directions[e]):
            watch.values[e] = value
