"""`solve`: the way in."""

from __future__ import annotations

import warnings

from stepnet.engines.contract import Outcome, Plan
from stepnet.errors import Interrupted, SolveFailed, StiffnessWarning
from stepnet.planning import adaptive_steps, events_of, given_steps, require_match, saving
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split
from stepnet.schemes import catalogue
from stepnet.solution import Solution, Status

STIFF = 0.8  # of the stability limit


def solve(
    problem: Problem,
    scheme,
    *,
    steps=None,
    rtol=None,
    atol=None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller=None,
    norm: str | None = None,
    save_at=None,
    save_every: int = 1,
    dense: bool = False,
    events=(),
    max_steps: int | None = None,
    progress: bool = False,
    check: bool = True,
) -> Solution:
    """Integrate a problem from the beginning to the end of its time span.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        What to solve.
    scheme : record or str
        A scheme or its name, such as "dopri5", "rk4" or "verlet"; see `schemes.names()`.
    steps : int or array_like, optional
        The number of even steps, or the times of given ones (from t0 to t1).  Without it a pair chooses its own steps.
    rtol, atol : float or array_like, optional
        Tolerances of adaptive steps, for all entries of the state or one each (1e-6 and 1e-9).
    first_step, max_step : float, optional
        Length of the first adaptive step, and of the longest.
    controller : Controller or str, optional
        How the error chooses the next step: "I" (default), "PI" or "PID".
    norm : {"rms", "max"}, optional
        Norm of the error over the state: root mean square (default) or maximum.
    save_at : array_like, optional
        Times to save at, in the direction of integration.  The steps do not depend on them.
    save_every : int, optional
        Save every k-th step, the first and the last; 0 saves the end only.
    dense : bool, optional
        Keep the polynomials of all steps, so that the solution can be called at any time.
    events : Event, callable, or a sequence of them, optional
        Functions whose zeros are found; see `Event`.
    max_steps : int, optional
        Most attempted steps of an adaptive run (ten million).
    progress : bool, optional
        Show a bar.
    check : bool, optional
        Raise `SolveFailed` or `Interrupted` if the end is not reached; otherwise return the part that was.

    Returns
    -------
    Solution
    """
    if not isinstance(problem, (ODE, Partitioned, SecondOrder, Split)):
        raise TypeError(f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {type(problem).__name__}")
    scheme = catalogue.get(scheme)
    require_match(problem, scheme)
    how = {
        "rtol": rtol,
        "atol": atol,
        "first_step": first_step,
        "max_step": max_step,
        "controller": controller,
        "norm": norm,
        "max_steps": max_steps,
    }
    stepping = adaptive_steps(problem, scheme, **how) if steps is None else given_steps(problem, scheme, steps, how)
    watched = events_of(scheme, events, dense)
    plan = Plan(stepping, saving(problem, save_at, save_every), watched, bool(dense), bool(progress))
    from stepnet.engines import numba_engine  # loads Numba, so only when something is solved

    solution = _as_solution(problem, scheme, numba_engine.run(problem, scheme, plan))
    if check and solution.status is Status.INTERRUPTED:
        raise Interrupted(solution)
    if check and solution.failure is not None:
        raise SolveFailed(solution) from solution.failure.exception
    stiffness = solution.statistics.stiffness
    if solution.success and stiffness > STIFF:
        advice = "the problem is stiff, and an implicit or stabilised scheme would need far fewer"
        message = f"the steps of {scheme.name} were limited by stability ({stiffness:.2g} of the limit): {advice}"
        warnings.warn(message, StiffnessWarning, stacklevel=2)
    return solution


def _as_solution(problem: Problem, scheme, outcome: Outcome) -> Solution:
    y = outcome.y
    if isinstance(problem, (ODE, Split)):
        y = y.reshape(len(outcome.t), *problem.y0.shape)
    message = outcome.status.value
    failure = outcome.failure
    if failure is not None:
        message += f" at t = {failure.t:.6g}"
        if failure.stage is not None and failure.component is not None:
            message += f": slope {failure.component} is not finite in stage {failure.stage + 1}, h = {failure.h:.3g}"
        if failure.advice:
            message += f"; {failure.advice}"
    shape = y.shape[1:]
    return Solution(
        t=outcome.t,
        y=y,
        status=outcome.status,
        message=message,
        statistics=outcome.statistics,
        scheme=scheme,
        problem=problem,
        failure=failure,
        t_events=outcome.t_events,
        y_events=tuple(found.reshape(len(found), *shape) for found in outcome.y_events),
        pieces=outcome.pieces,
    )
