"""`solve` and `start`: the public functions that integrate one problem."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepnet.engines.contract import NO_STOPS, AdaptiveSteps, Outcome, Plan, Saving, StateStream
from stepnet.errors import Interrupted, SolveFailed, StiffnessWarning
from stepnet.events import Event
from stepnet.problem import (
    ODE,
    SDE,
    Langevin,
    Partitioned,
    Problem,
    SecondOrder,
    Split,
    state_shape,
    validate_args,
    validate_state,
)
from stepnet.records import build_record, explain_arguments, validate_number
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import takes_changed_states
from stepnet.schemes.controllers import Controller
from stepnet.solution import Solution, Status
from stepnet.solving.planning import (
    AdaptiveOptions,
    plan_saving,
    plan_steps,
    require_match,
    validate_events,
    validate_projection,
)
from stepnet.storage.atomic_files import validate_path, write_file
from stepnet.storage.stored_arrays import read_npz, report_damage

STORED = ("run", "work", "stamp", "identity")  # arrays of a stored integrator
STIFF = 0.8  # of the stability limit


@explain_arguments()
def solve(
    problem: Problem,
    scheme: Any = None,
    *,
    steps: ArrayLike | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller: Controller | str | None = None,
    norm: str | None = None,
    save_at: ArrayLike | None = None,
    save_every: int = 1,
    dense: bool = False,
    events: Event | Callable[..., Any] | Sequence[Event | Callable[..., Any]] = (),
    project: Callable[..., Any] | None = None,
    max_steps: int | None = None,
    path: int | None = None,
    progress: bool = False,
    check: bool = True,
) -> Solution:
    """Integrate a problem from the beginning to the end of its time span.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder, Split, SDE or Langevin
        What to solve.
    scheme : record or str, optional
        A scheme or its name, such as "dopri5", "rk4" or "verlet"; see `schemes.names()`.  By default it is "tsit5", and
        "verlet" for fixed `steps` of a `SecondOrder` or separable `Partitioned` problem; for an `SDE` "euler_maruyama"
        (Ito) or "stochastic_heun" (Stratonovich), for a `Langevin` problem "baoab".
    steps : int or array_like, optional
        The number of equal steps, or an array of step times from t0 to t1.  Without it the steps are adaptive, which
        needs a pair.
    rtol, atol : float or array_like, optional
        Relative and absolute tolerance of adaptive steps, scalar or one per entry of the state (1e-6 and 1e-9; for an
        `SDE` 1e-3 and 1e-6).
    first_step, max_step : float, optional
        Size of the first adaptive step, and the largest size allowed.
    controller : Controller or str, optional
        Step-size controller: "I" (default), "PI" (default for an `SDE`) or "PID".
    norm : {"rms", "max"}, optional
        Norm of the error estimate: root mean square (default) or maximum.
    save_at : array_like, optional
        Save times, in the direction of integration.  The steps do not depend on them, except those of an `SDE`, whose
        save times must be step times; adaptive steps end at each of them.
    save_every : int, optional
        Save the first state, every k-th and the last; 0 saves the end only.
    dense : bool, optional
        Store a polynomial per step, so that the solution can be called at any time: the scheme's continuous extension,
        or the cubic Hermite polynomial.
    events : Event, callable, or a sequence of them, optional
        Functions whose zeros are located; see `Event`.
    project : callable, optional
        `project(t, y, *args)` returns the state that replaces y after each step, for example its projection onto an
        invariant.
    max_steps : int, optional
        Maximum number of attempted steps of an adaptive run (ten million).
    path : int, optional
        Which Brownian path of an `SDE`, instead of `problem.path`.
    progress : bool, optional
        Show a progress bar.
    check : bool, optional
        Raise `SolveFailed` or `Interrupted` if the end is not reached; if False, return the part that was computed.

    Returns
    -------
    Solution

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "tsit5", rtol=1e-9).y[-1].round(8)
    array([0.36787944])
    """
    scheme = find_scheme(problem, scheme, steps)
    if path is not None:
        if not isinstance(problem, (SDE, Langevin)):
            raise TypeError(f"`path` is for an `SDE` or `Langevin`, found {type(problem).__name__}")
        problem = replace(problem, path=path)
    if dense and problem.form.is_stochastic:
        raise ValueError(
            f"`dense` is not available for {type(problem).__name__}: its paths are not polynomials; give `save_at` or "
            f"more `steps`"
        )
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    watched, moved = validate_events(scheme, events, steps is not None), validate_projection(scheme, project)
    kept = plan_saving(problem, save_at, save_every)
    stepping = plan_steps(problem, scheme, steps, choices, any(event.terminal for event in watched))
    plan = Plan(stepping, kept, watched, bool(dense), moved, bool(progress))
    return _solve(problem, scheme, plan, check)


def solve_streaming(
    problem: Problem,
    scheme: Any,
    steps: Any,
    choices: AdaptiveOptions,
    passing: StateStream,
    events: Any = (),
    stops: np.ndarray = NO_STOPS,
) -> Solution:
    """Solve and pass states to `passing` as they are computed; only the last ones, not yet passed on, are returned.

    An adaptive run ends a step at each of the times `stops`, which lie inside the time span.
    """
    stepping = plan_steps(problem, scheme, steps, choices)
    if isinstance(stepping, AdaptiveSteps):
        if problem.form.is_stochastic:
            raise ValueError(
                "`steps` are needed for derivatives of an `SDE`; to differentiate an adaptive run, solve with "
                "`cells=1` and give the times of its solution as `steps`"
            )
        stepping = stepping._replace(stops=stops)
    return _solve(problem, scheme, Plan(stepping, Saving(None, 1, passing), events))


def _solve(problem: Problem, scheme: Any, plan: Plan, check: bool = True) -> Solution:
    solution = _as_solution(problem, scheme, import_engine().run(problem, scheme, plan))
    if check and solution.status is Status.INTERRUPTED:
        raise Interrupted(solution)
    if check and solution.failure is not None:
        raise SolveFailed(solution) from solution.failure.exception
    stiffness = solution.statistics.stiffness
    if stiffness > STIFF and solution.success:
        advice = "the problem is stiff; an implicit scheme such as rodas5p or a stabilised one would need far fewer"
        message = f"the steps of {scheme.name} were limited by stability ({stiffness:.2g} of the limit): {advice}"
        warnings.warn(message, StiffnessWarning, stacklevel=4)
    return solution


@explain_arguments()
def start(
    problem: Problem,
    scheme: Any = None,
    *,
    steps: ArrayLike | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller: Controller | str | None = None,
    norm: str | None = None,
    max_steps: int | None = None,
    restore: str | PathLike[str] | None = None,
) -> Integrator:
    """Return an integrator that is advanced step by step; the arguments are those of `solve`.

    `restore` is the path of a file written by `Integrator.save`: the run continues from there, bit for bit on the same
    machine with the same versions.

    Parameters
    ----------
    problem, scheme, steps, rtol, atol, first_step, max_step, controller, norm, max_steps
        As in `solve`.
    restore : str or path, optional
        A file written by `Integrator.save`.

    Returns
    -------
    Integrator

    Examples
    --------
    >>> import stepnet as sn
    >>> run = sn.start(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=10)
    >>> run.step()
    Integrator by rk4 at t = 0.1 of 1, h = 0.1, 1 steps
    """
    scheme = find_scheme(problem, scheme, steps)
    if problem.form.is_stochastic:
        raise TypeError(f"`start` does not take {type(problem).__name__}; solve it in parts with `save_at`")
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    plan = Plan(plan_steps(problem, scheme, steps, choices, may_be_endless=True), plan_saving(problem, None, 0))
    integrator = Integrator(problem, scheme, plan)
    if restore is not None:
        integrator._restore(restore)
    return integrator


class Integrator:
    """A run in progress, which can be inspected, advanced, changed and stored.

    Parameters
    ----------
    problem : Problem
        What to solve.
    scheme : scheme
        The scheme.
    plan : Plan
        The validated numbers of the run.

    Examples
    --------
    >>> import stepnet as sn
    >>> run = sn.start(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=10)
    >>> run.t, run.y
    (0.0, array([1.]))
    """

    def __init__(self, problem: Problem, scheme: Any, plan: Plan):
        self.problem, self.scheme = problem, find_scheme(problem, scheme)
        if not isinstance(plan, Plan):
            raise TypeError(f"`plan` must be a Plan, found {type(plan).__name__}; `start` builds one")
        self._stepper = import_engine().begin(problem, self.scheme, plan)
        self._end = problem.t_span[1]

    @property
    def t(self) -> float:
        """The time reached."""
        return self._stepper.t

    @property
    def h(self) -> float:
        """The length of the next step."""
        return self._stepper.h

    @property
    def y(self) -> np.ndarray:
        """The state; assign to it to continue from another one."""
        return self._stepper.y.reshape(self._shape)

    @y.setter
    def y(self, value: ArrayLike) -> None:
        if not takes_changed_states(self.scheme):
            raise ValueError(
                f"{self.scheme.name} continues from its history, so the state cannot be set; call `start` again"
            )
        self._stepper.put(validate_state("y", value, self._shape, self._stepper.y.dtype).ravel())

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the right-hand side; assign to them to continue with others of the same types and shapes.

        An argument that is an array, a list or an object may also be changed in place.
        """
        return self._stepper.args

    @args.setter
    def args(self, value: tuple[Any, ...]) -> None:
        if not takes_changed_states(self.scheme):
            raise ValueError(
                f"{self.scheme.name} continues from slopes of the old `args`, so they cannot be set; call `start` again"
            )
        self._stepper.args = validate_args(value, self._stepper.args)

    @property
    def is_finished(self) -> bool:
        """Whether the end of the time span has been reached."""
        return self._stepper.is_finished

    @property
    def steps(self) -> int:
        """The number of accepted steps so far."""
        return self._stepper.counts[0]

    def step(self) -> Integrator:
        """Take one step."""
        if self.is_finished:
            raise ValueError(
                f"the integrator is at the end of its time span, t = {self.t:g}; call `start` again to continue"
            )
        return self._raise_if_failed(self._stepper.step())

    def run_to(self, t: float) -> Integrator:
        """Advance to time `t`: adaptive steps end exactly there, fixed ones must have it among their times."""
        t = validate_number("t", t, "[-inf, inf]")
        low, high = sorted((self.t, self._end))
        if not (low <= t <= high or self._stepper.is_at(t)):
            raise ValueError(f"`t` must lie between {self.t:g} and {self._end:g}, found {t!r}")
        self._raise_if_failed(self._stepper.run_to(float(t)))
        if not self._stepper.is_at(t):
            raise ValueError(f"`t` = {t:g} is not among the times of the fixed steps; the integrator is at {self.t:g}")
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Store the state of the run in an .npz file, replaced atomically: a killed process leaves the old file.

        The right-hand side must be identifiable by its value: one that holds a pointer or an open file is refused.
        """
        file, numbers = validate_path("path", path), self._stepper.numbers()
        write_file(file, lambda stream: np.savez(stream, **numbers))

    def _restore(self, path: str | PathLike[str]) -> None:
        file = validate_path("restore", path)
        with report_damage(file, "a stored integrator, written by `Integrator.save`"):
            self._stepper.restore(read_npz(file, STORED))

    @property
    def _shape(self) -> tuple[int, ...]:
        return state_shape(self.problem)

    def _raise_if_failed(self, status: Status | None) -> Integrator:
        if status is not None and status is not Status.COMPLETED:
            cause = self._stepper.exception() if status is Status.FIELD_RAISED else None
            raise RuntimeError(f"{status.value} at t = {self.t:g}, h = {self.h:.3g}") from cause
        return self

    def __repr__(self) -> str:
        return (
            f"Integrator by {self.scheme.name} at t = {self.t:g} of {self._end:g}, h = {self.h:.3g}, {self.steps} steps"
        )


@cache
def import_engine() -> Any:
    """Import the engine of compiled kernels, only when something is solved, because it loads Numba."""
    from stepnet.engines import numba_engine

    return numba_engine


def find_scheme(problem: Any, scheme: Any, steps: Any = None) -> Any:
    """Return the scheme, given as record or name, or the default; refuse one that cannot run the problem."""
    if not isinstance(problem, (ODE, Partitioned, SecondOrder, Split, SDE, Langevin)):
        wanted = "an ODE, Partitioned, SecondOrder, Split, SDE or Langevin"
        raise TypeError(f"`problem` must be {wanted}, found {type(problem).__name__}")
    scheme = catalogue.get(_choose_default_scheme(problem, steps) if scheme is None else scheme)
    require_match(problem, scheme)
    return scheme


def _choose_default_scheme(problem: Problem, steps: Any) -> str:
    """An adaptive pair; for fixed steps of a separable partitioned or second-order problem a symplectic scheme.

    For a stochastic problem the simplest scheme of its calculus.
    """
    if isinstance(problem, Langevin):
        return "baoab"
    if isinstance(problem, SDE):
        return "euler_maruyama" if problem.calculus == "ito" else "stochastic_heun"
    return "verlet" if steps is not None and problem.form.has_separate_halves else "tsit5"


def _as_solution(problem: Problem, scheme: Any, outcome: Outcome) -> Solution:
    y = outcome.y.reshape(len(outcome.t), *state_shape(problem))
    message = outcome.status.value
    failure = outcome.failure
    if failure is not None:
        message += f" at t = {failure.t:.6g}"
        if failure.stage is not None and failure.component is not None:
            message += f": slope {failure.component} is not finite in stage {failure.stage + 1}, h = {failure.h:.3g}"
        if failure.advice:
            message += f"; {failure.advice}"
    shape = y.shape[1:]
    return build_record(
        Solution,
        t=outcome.t,
        y=y,
        status=outcome.status,
        message=message,
        statistics=outcome.statistics,
        scheme=scheme,
        problem=problem,
        failure=failure,
        t_events=outcome.t_events,
        y_events=tuple([found.reshape(len(found), *shape) for found in outcome.y_events]),
        pieces=outcome.pieces,
        t_end=outcome.t_end,
    )
