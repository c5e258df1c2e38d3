"""`track`: run a problem and pass its states to trackers without storing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepnet.problem import Problem
from stepnet.records import explain_arguments
from stepnet.solving.integrate import Integrator, start
from stepnet.solving.planning import validate_times
from stepnet.validation import having, optional, sequence, whole

A_TRACKER = having("take", "close", what="a tracker")


@explain_arguments()
def track(
    problem: Problem,
    scheme: Any,
    trackers: Sequence[Any],
    *,
    steps: Any = None,
    every: int | None = None,
    save_at: Any = None,
    rtol: Any = None,
    atol: Any = None,
    restore: Any = None,
) -> Integrator:
    """Solve a problem and pass its states to trackers as they are computed; no state is stored.

    Parameters
    ----------
    problem, scheme, steps, rtol, atol
        As in `solve`; a stochastic problem is refused.
    trackers : sequence
        Such as those of `stepnet.trackers`: objects with `take(t, y)`, which stops the run by returning True and must
        copy y to keep it, and `close()`, which is called at the end, also after an error.
    every : int, optional
        Pass the first state, then one state per `every` steps, and the last; 1 by default.
    save_at : array_like, optional
        Pass the states at these times instead; fixed steps must have them among their times.
    restore : str or path, optional
        As in `start`.

    Returns
    -------
    Integrator
        At the end of the run, or where a tracker stopped it.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 100.0))
    >>> sn.track(problem, "rk4", [sn.trackers.SteadyState(1e-6)], steps=1000, every=10).t < 20.0
    True
    """
    shown = sequence(A_TRACKER)("trackers", trackers)
    times = None if save_at is None else validate_times("save_at", save_at, problem.t_span)
    every = optional(whole(1))("every", every)
    if times is not None and every is not None:
        raise TypeError("give either `every` or `save_at`, found both")
    run = start(problem, scheme, steps=steps, rtol=rtol, atol=atol, restore=restore)
    if times is None and steps is not None:
        times = _list_times(problem, steps, every or 1)
    try:
        if times is None:
            _show(run, shown, _advance(run, every or 1))
        else:
            _show(run, shown, (run.run_to(t) for t in times if _is_ahead(run, t)))
    finally:
        for tracker in shown:
            tracker.close()
    return run


def _list_times(problem: Problem, steps: Any, every: int) -> np.ndarray:
    """The times of the first state, of one state per `every` fixed steps, and of the last."""
    t0, t1 = problem.t_span
    times = np.asarray(steps, float) if np.ndim(steps) else t0 + (t1 - t0) / steps * np.arange(steps + 1)
    times = np.append(times[:-1:every], times[-1])
    times[-1] = t1
    return times


def _is_ahead(run: Integrator, t: float) -> bool:
    """Whether a restored run has not passed t."""
    return (t - run.t) * (run.problem.t_span[1] - run.problem.t_span[0]) >= 0.0


def _advance(run: Integrator, every: int) -> Iterator[Integrator]:
    """Yield the first state, one state per `every` steps, and the last."""
    yield run
    while not run.is_finished:
        for _ in range(every):
            if not run.is_finished:
                run.step()
        yield run


def _show(run: Integrator, trackers: Sequence[Any], stops: Iterator[Integrator]) -> None:
    for at in stops:
        answers = [tracker.take(at.t, at.y) for tracker in trackers]  # every tracker sees every state
        if any(answers):
            return
