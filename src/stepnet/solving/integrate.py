"""`solve` and `start`: the ways in."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np

from stepnet.engines.contract import NO_STOPS, AdaptiveSteps, Outcome, Plan, Saving, StateStream
from stepnet.errors import Interrupted, SolveFailed, StiffnessWarning
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split, state_shape, validate_args, validate_state
from stepnet.records import explain_arguments, validate_number
from stepnet.schemes import catalogue
from stepnet.schemes.multistep import Multistep
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
    scheme=None,
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
    project=None,
    max_steps: int | None = None,
    progress: bool = False,
    check: bool = True,
) -> Solution:
    """Integrate a problem from the beginning to the end of its time span.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        What to solve.
    scheme : record or str, optional
        A scheme or its name, such as "dopri5", "rk4" or "verlet"; see `schemes.names()`.  By default it is "tsit5", and
        "verlet" for fixed `steps` of a `SecondOrder` or separable `Partitioned` problem.
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
        Keep the polynomials of all steps, so that the solution can be called at any time: the scheme's own continuous
        extension, or the cubic Hermite polynomial.
    events : Event, callable, or a sequence of them, optional
        Functions whose zeros are found; see `Event`.
    project : callable, optional
        `project(t, y, *args)` returns the state to go on with after every step: onto an invariant, to positive values.
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
    scheme = find_scheme(problem, scheme, steps)
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    watched, moved = validate_events(scheme, events), validate_projection(scheme, project)
    kept = plan_saving(problem, save_at, save_every)
    stepping = plan_steps(problem, scheme, steps, choices, any(event.terminal for event in watched))
    plan = Plan(stepping, kept, watched, bool(dense), moved, bool(progress))
    return _solve(problem, scheme, plan, check)


def solve_streaming(
    problem: Problem,
    scheme,
    steps,
    choices: AdaptiveOptions,
    passing: StateStream,
    events=(),
    stops: np.ndarray = NO_STOPS,
) -> Solution:
    """`solve` for callers who take states as they pass; only the last ones, which were not handed on, are returned.

    A step of an adaptive run ends at each of the times `stops`, which lie inside the time span.
    """
    stepping = plan_steps(problem, scheme, steps, choices)
    if isinstance(stepping, AdaptiveSteps):
        stepping = stepping._replace(stops=stops)
    return _solve(problem, scheme, Plan(stepping, Saving(None, 1, passing), events))


def _solve(problem: Problem, scheme, plan: Plan, check: bool = True) -> Solution:
    solution = _as_solution(problem, scheme, import_engine().run(problem, scheme, plan))
    if check and solution.status is Status.INTERRUPTED:
        raise Interrupted(solution)
    if check and solution.failure is not None:
        raise SolveFailed(solution) from solution.failure.exception
    stiffness = solution.statistics.stiffness
    if stiffness > STIFF and solution.success:
        advice = "the problem is stiff, and an implicit or stabilised scheme would need far fewer"
        message = f"the steps of {scheme.name} were limited by stability ({stiffness:.2g} of the limit): {advice}"
        warnings.warn(message, StiffnessWarning, stacklevel=4)
    return solution


@explain_arguments()
def start(
    problem: Problem,
    scheme=None,
    *,
    steps=None,
    rtol=None,
    atol=None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller=None,
    norm: str | None = None,
    max_steps: int | None = None,
    restore=None,
) -> Integrator:
    """An integrator to step by hand, with the arguments of `solve`.

    `restore` names a file written by `Integrator.save`: the run goes on from there, bit for bit on the same machine and
    versions.
    """
    scheme = find_scheme(problem, scheme, steps)
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    plan = Plan(plan_steps(problem, scheme, steps, choices, may_be_endless=True), plan_saving(problem, None, 0))
    integrator = Integrator(problem, scheme, plan)
    if restore is not None:
        integrator._restore(restore)
    return integrator


class Integrator:
    """A run in progress: look at it, step it, change its state, store it."""

    def __init__(self, problem: Problem, scheme, plan: Plan):
        self.problem, self.scheme = problem, find_scheme(problem, scheme)
        if not isinstance(plan, Plan):
            raise TypeError(f"`plan` must be a Plan, found {type(plan).__name__}; `start` makes one")
        self._stepper = import_engine().begin(problem, scheme, plan)
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
        """The state; set it to go on from another one."""
        return self._stepper.y.reshape(self._shape)

    @y.setter
    def y(self, value) -> None:
        if isinstance(self.scheme, Multistep):
            raise ValueError(
                f"{self.scheme.name} goes on from its history, so the state cannot be set; start anew instead"
            )
        self._stepper.put(validate_state("y", value, self._shape, self._stepper.y.dtype).ravel())

    @property
    def args(self) -> tuple:
        """The arguments of the right-hand side; set them to go on with other ones of the same kinds and shapes.

        An argument that is an array, a list or an object may also be changed in place.
        """
        return self._stepper.args

    @args.setter
    def args(self, value) -> None:
        if isinstance(self.scheme, Multistep):
            raise ValueError(
                f"{self.scheme.name} goes on from slopes of the old `args`, so they cannot be set; start anew instead"
            )
        self._stepper.args = validate_args(value, self._stepper.args)

    @property
    def is_finished(self) -> bool:
        """Whether the end of the time span is reached."""
        return self._stepper.is_finished

    @property
    def steps(self) -> int:
        """Accepted steps so far."""
        return self._stepper.counts[0]

    def step(self) -> Integrator:
        """Take one step."""
        if self.is_finished:
            raise ValueError(f"the integrator is at the end of its time span, t = {self.t:g}; start anew to go on")
        return self._checked(self._stepper.step())

    def run_to(self, t: float) -> Integrator:
        """Step until time `t`; adaptive steps end exactly there, given ones must have it among their times."""
        t = validate_number("t", t, "[-inf, inf]")
        low, high = sorted((self.t, self._end))
        if not (low <= t <= high or self._stepper.is_at(t)):
            raise ValueError(f"`t` must lie between {self.t:g} and {self._end:g}, found {t!r}")
        self._checked(self._stepper.run_to(float(t)))
        if not self._stepper.is_at(t):
            raise ValueError(f"`t` = {t:g} is not among the times of the given steps; the integrator is at {self.t:g}")
        return self

    def save(self, path) -> None:
        """Store all numbers of the run in an .npz file, which is replaced at once: a killed process leaves the old one.

        The right-hand side must be told from others by its value: one that holds a pointer or an open file is refused.
        """
        file, numbers = validate_path("path", path), self._stepper.numbers()
        write_file(file, lambda stream: np.savez(stream, **numbers))  # type: ignore[arg-type]

    def _restore(self, path) -> None:
        file = validate_path("restore", path)
        with report_damage(file, "a stored integrator, written by `Integrator.save`"):
            self._stepper.restore(read_npz(file, STORED))

    @property
    def _shape(self) -> tuple[int, ...]:
        return state_shape(self.problem)

    def _checked(self, status: Status | None) -> Integrator:
        if status is not None and status is not Status.COMPLETED:
            cause = self._stepper.exception() if status is Status.FIELD_RAISED else None
            raise RuntimeError(f"{status.value} at t = {self.t:g}, h = {self.h:.3g}") from cause
        return self

    def __repr__(self) -> str:
        return (
            f"Integrator by {self.scheme.name} at t = {self.t:g} of {self._end:g}, h = {self.h:.3g}, {self.steps} steps"
        )


@cache
def import_engine():
    """The engine of compiled kernels; it loads Numba, so only when something is solved."""
    from stepnet.engines import numba_engine

    return numba_engine


def find_scheme(problem, scheme, steps=None):
    """The scheme by object or name, or the default of the problem, if it can run it."""
    if not isinstance(problem, (ODE, Partitioned, SecondOrder, Split)):
        raise TypeError(f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {type(problem).__name__}")
    scheme = catalogue.get(_choose_default_scheme(problem, steps) if scheme is None else scheme)
    require_match(problem, scheme)
    return scheme


def _choose_default_scheme(problem: Problem, steps) -> str:
    """An adaptive pair; with fixed steps a symplectic scheme, if the problem has positions and velocities apart."""
    is_separable = isinstance(problem, SecondOrder) or (isinstance(problem, Partitioned) and problem.separable)
    return "verlet" if steps is not None and is_separable else "tsit5"


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
        y_events=tuple([found.reshape(len(found), *shape) for found in outcome.y_events]),
        pieces=outcome.pieces,
        t_end=outcome.t_end,
    )
