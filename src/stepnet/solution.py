"""Results of solves: trajectory, status and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepnet.problem import SDE, Langevin, Partitioned, Problem, SecondOrder
from stepnet.records import show_fields
from stepnet.validation import array, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Scheme(Protocol):
    """The attributes of a scheme that a solution reports."""

    name: str
    order: int
    reference: str


class Status(Enum):
    """How a run ended; the value is the message shown to the user."""

    COMPLETED = "reached the end of the interval"
    EVENT = "stopped by an event"
    STEP_LIMIT = "used up `max_steps` before the end of the interval"
    NOT_FINITE = "the state or the right-hand side became NaN or infinite"
    NOT_SOLVED = "the equations of an implicit step could not be solved"
    STEP_TOO_SMALL = "the step size fell below the resolution of t"
    FIELD_RAISED = "the right-hand side raised an exception"
    INTERRUPTED = "interrupted by the user"
    EVENTS_ACCUMULATE = "events with a `reset` follow each other without end"


@dataclass(frozen=True)
class Statistics:
    """What a run cost.  `rung` says how the right-hand side was evaluated, `rung_reason` why no faster rung was used.

    `event_rungs` and `event_reasons` say the same for each event, `project_rung` and `project_reason` for `project`.

    `probes` counts those of the `evaluations` that measured stiffness and were not part of a step.

    `stiffness` is h times the spectral radius of the Jacobian at the end, divided by the scheme's real stability
    limit: near 1 the steps were limited by stability (NaN if not measured).

    Parameters
    ----------
    accepted : int
        Steps taken.
    rejected : int
        Attempts that were not accepted.
    evaluations : int
        Evaluations of the right-hand side.
    rung : str
        How the right-hand side was evaluated: "address", "traced", "compiled" or "python".
    rung_reason : str, optional
        Why not by a faster rung.
    compile_time : float, optional
        Seconds spent on tracing and compiling.
    run_time : float, optional
        Seconds spent on the steps.
    stiffness : float, optional
        h times the spectral radius of the Jacobian, divided by the stability limit of the scheme.
    probes : int, optional
        Evaluations that measured stiffness.
    event_rungs, event_reasons : tuple of str, optional
        `rung` and `rung_reason` of each event.
    project_rung, project_reason : str, optional
        `rung` and `rung_reason` of `project`.
    jacobians : int, optional
        Evaluations of df/dy by an implicit scheme.
    factorisations : int, optional
        Factorisations of the matrices of an implicit scheme.
    orders : tuple of int, optional
        Accepted steps of order 1, 2, ... of a scheme of variable order.
    steps_by_scheme : tuple of (str, int), optional
        Accepted steps by each scheme of one that switches.
    switches : tuple of (float, str), optional
        Times at which it switched, and the scheme that took over.
    linear_solver : str, optional
        How an implicit scheme solved its linear systems: "dense", "banded", "sparse" or "gmres".

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=10).statistics.evaluations
    40
    """

    accepted: int
    rejected: int
    evaluations: int
    rung: str
    rung_reason: str = ""
    compile_time: float = 0.0
    run_time: float = 0.0
    stiffness: float = float("nan")
    probes: int = 0
    event_rungs: tuple[str, ...] = ()
    event_reasons: tuple[str, ...] = ()
    project_rung: str = ""
    project_reason: str = ""
    jacobians: int = 0
    factorisations: int = 0
    orders: tuple[int, ...] = ()
    steps_by_scheme: tuple[tuple[str, int], ...] = ()
    switches: tuple[tuple[float, str], ...] = ()
    linear_solver: str = ""

    @property
    def steps(self) -> int:
        """The number of attempted steps."""
        return self.accepted + self.rejected


@dataclass(frozen=True)
class Failure:
    """Where and how a run failed: the last valid time, the step attempted there, and advice.

    `stage` and `component` locate the first slope that is not finite, if there is one.

    Parameters
    ----------
    t : float
        The last valid time.
    h : float
        The size of the step attempted there.
    y_norm : float
        Largest entry of the state there, in absolute value.
    slope_norm : float
        Largest entry of the slope there, in absolute value.
    stage : int, optional
        The stage of the first slope that is not finite.
    component : int, optional
        The entry of that slope.
    stiffness
        As in `Statistics`.
    advice : str, optional
        What to try.
    exception : BaseException, optional
        The exception that the right-hand side raised.

    Examples
    --------
    >>> import stepnet as sn
    >>> blow_up = sn.ODE(lambda t, y: y**2, [1.0], (0.0, 2.0))
    >>> failure = sn.solve(blow_up, "dopri5", check=False).failure
    >>> bool(0.99 < failure.t < 1.01)
    True
    """

    t: float
    h: float
    y_norm: float
    slope_norm: float
    stage: int | None = None
    component: int | None = None
    stiffness: float = float("nan")
    advice: str = ""
    exception: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Dense output: one polynomial for each step, which begins at `t` and has length `h`.

    `data` (steps, rows, entries) holds y, y_new, both slopes and the corrections of the continuous extension.
    """

    t: np.ndarray
    h: np.ndarray
    data: np.ndarray

    __repr__ = show_fields

    def __call__(self, times: np.ndarray) -> np.ndarray:
        """Flat states (*times, entries); NaN at times that are not finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self._evaluate(times)

    def _evaluate(self, times: np.ndarray) -> np.ndarray:
        direction = 1.0 if self.h[0] > 0 else -1.0
        i = np.clip(np.searchsorted(direction * self.t, direction * times, side="right") - 1, 0, len(self.t) - 1)
        h = self.h[i][..., None]
        x = (times - self.t[i])[..., None] / h
        y, y_new, slope, slope_new = (self.data[i, row] for row in range(4))
        m = 1 - x
        ends = m * m * (1 + 2 * x) * y + x * x * (3 - 2 * x) * y_new + h * x * m * (m * slope - x * slope_new)
        correction = np.zeros_like(ends)
        for row in range(self.data.shape[1] - 1, 3, -1):
            correction = correction * (x - 0.5) + self.data[i, row]
        return (ends + (x * m) ** 2 * correction).astype(self.data.dtype)


@dataclass(frozen=True, eq=False)
class Solution:
    """The trajectory of a solve: `t` (times,) and `y` (times, *state), with status, statistics and scheme.

    For `Partitioned`, `SecondOrder` and `Langevin` problems `y` is the flat state and `q`, `p` (or `v`) are views of
    it.  With `dense=True` the solution can be called at any time.  `t_events` and `y_events` hold the times and states
    found for each event.

    Parameters
    ----------
    t : ndarray
        Times of the saved states.
    y : ndarray
        Saved states (times, *state).
    status : Status
        How the run ended.
    message : str
        The same as text.
    statistics : Statistics
        What the run cost.
    scheme : Scheme
        The scheme that was used.
    problem : Problem
        The problem that was solved.
    failure : Failure, optional
        Where and how it failed; None if it did not.
    t_events : tuple of ndarray, optional
        For each event, the times of its zeros.
    y_events : tuple of ndarray, optional
        For each event, the states at those times.
    pieces : Pieces, optional
        The polynomials of dense output, with `dense=True`.
    t_end : float, optional
        The last time that was reached, saved or not.

    Examples
    --------
    >>> import stepnet as sn
    >>> solution = sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5", rtol=1e-8, dense=True)
    >>> solution.status.name, solution.y.shape[1], float(solution(0.5)[0].round(6))
    ('COMPLETED', 1, 0.606531)
    """

    t: np.ndarray
    y: np.ndarray
    status: Status
    message: str
    statistics: Statistics
    scheme: Scheme
    problem: Problem = field(repr=False)
    failure: Failure | None = None
    t_events: tuple[np.ndarray, ...] = ()
    y_events: tuple[np.ndarray, ...] = ()
    pieces: Pieces | None = field(default=None, repr=False)
    t_end: float = float("nan")

    @property
    def success(self) -> bool:
        """Whether the end of the interval or a terminal event was reached."""
        return self.status in (Status.COMPLETED, Status.EVENT)

    def __call__(self, t: ArrayLike) -> np.ndarray:
        """Evaluate the dense output at times inside the interval: (*shape of t, *state)."""
        if self.pieces is None:
            raise ValueError("the solution has no dense output; solve with `dense=True`")
        times = array()("t", t).astype(float)
        first, last = sorted((self.problem.t_span[0], self.t_end))
        if not np.all((times >= first) & (times <= last)):
            raise ValueError(f"`t` must lie between {first} and {last}, where the solution is known, found {t!r:.60}")
        return self.pieces(times).reshape((*times.shape, *self.y.shape[1:]))

    @property
    def q(self) -> np.ndarray:
        """Positions (times, *shape) of a partitioned or second-order problem."""
        return self._half(0)

    @property
    def p(self) -> np.ndarray:
        """Momenta (times, *shape) of a partitioned problem."""
        return self._half(1)

    @property
    def v(self) -> np.ndarray:
        """Velocities (times, *shape) of a second-order problem."""
        return self._half(1)

    def _half(self, which: int) -> np.ndarray:
        if not isinstance(self.problem, (Partitioned, SecondOrder, Langevin)):
            raise AttributeError(f"a solution of {type(self.problem).__name__} has no q, p or v; its state is `.y`")
        shape = self.problem.q0.shape
        n = self.y.shape[1] // 2
        return self.y[:, which * n : (which + 1) * n].reshape(len(self.t), *shape)

    def citation(self) -> str:
        """The reference of the scheme, for citation."""
        return f"{self.scheme.name}: {self.scheme.reference}"

    def __repr__(self) -> str:
        s = self.statistics
        lines = [
            f"Solution by {_describe_scheme(self.scheme, self.problem)}: {self.message}",
            f"  t      {len(self.t)} times" + (f", {self.t[0]:.6g} to {self.t[-1]:.6g}" if len(self.t) else ""),
            f"  y      {self.y.shape} {self.y.dtype}",
            f"  steps  {s.accepted} accepted, {s.rejected} rejected, {s.evaluations} evaluations",
            f"  rung   {_describe_rung(s.rung, s.rung_reason)}",
        ]
        if s.event_rungs:
            lines.append(f"  events {', '.join(map(_describe_rung, s.event_rungs, s.event_reasons))}")
        if s.project_rung:
            lines.append(f"  moved  {_describe_rung(s.project_rung, s.project_reason)}")
        lines.append(f"  time   {s.run_time:.3g} s run, {s.compile_time:.3g} s compile")
        if s.steps_by_scheme:
            shares = ", ".join(f"{count} by {name}" for name, count in s.steps_by_scheme)
            lines.append(f"  shares {shares}; {len(s.switches)} switch{'es' * (len(s.switches) != 1)}")
        if np.isfinite(s.stiffness):
            lines.append(f"  stiff  {s.stiffness:.2g} of the stability limit at the end")
        return "\n".join(lines)


def _describe_scheme(scheme: Any, problem: Problem) -> str:
    """The name of a scheme and its order; for stochastic problems those for their type of noise."""
    if not problem.form.is_stochastic:
        return f"{scheme.name} (order {scheme.order})"
    noise = problem.noise if isinstance(problem, SDE) else "additive"
    found = next((orders for orders in scheme.orders if orders.noise == noise), None)
    return scheme.name if found is None else f"{scheme.name} (strong order {found.strong:g}, weak order {found.weak:g})"


def _describe_rung(rung: str, reason: str) -> str:
    return f"{rung} ({reason})" if reason else rung


@dataclass(frozen=True, eq=False)
class EnsembleSolution:
    """The results of an ensemble: `y` (members, times, *state), with one time, the end, unless `save_at` was given.

    `status`, `t_end`, `accepted`, `rejected` and `evaluations` have one entry per member.  For a member that stopped
    early, `y` is its last valid state, or NaN at the save times after the first `saved` ones, which it did not reach.
    `rung` says how the members were run: in SIMD "lanes", or "one by one" for the given `reason`.

    Parameters
    ----------
    t : ndarray
        Save times, or the end times.
    y : ndarray
        States (members, times, *state).
    t_end : ndarray
        The last time of each member.
    status : tuple of Status
        How each member ended.
    accepted, rejected, evaluations : ndarray
        Counts of each member, as in `Statistics`.
    saved : ndarray
        The number of save times that each member reached.
    rung : str
        "lanes" or "one by one".
    reason : str
        Why not in lanes.
    scheme : Scheme
        The scheme that was used.
    problem : Problem
        The problem with the values that all members share.
    members
        The rows of members, from which `member(i)` builds the problem of one.
    t_events, y_events : tuple of Any, optional
        Times and states of events, for each event and member.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.solve_ensemble(problem, "rk4", y0=[[1.0], [2.0], [3.0]], steps=10).y.shape
    (3, 1, 1)
    """

    t: np.ndarray
    y: np.ndarray
    t_end: np.ndarray
    status: tuple[Status, ...]
    accepted: np.ndarray
    rejected: np.ndarray
    evaluations: np.ndarray
    saved: np.ndarray
    rung: str
    reason: str
    scheme: Scheme
    problem: Problem = field(repr=False)
    members: object = field(repr=False)
    t_events: tuple[Any, ...] = ()
    y_events: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.status)

    @property
    def y_end(self) -> np.ndarray:
        """The last state of every member, (members, *state)."""
        return self.y[:, -1]

    @property
    def success(self) -> np.ndarray:
        """Whether each member reached the end or a terminal event."""
        return np.array([status in (Status.COMPLETED, Status.EVENT) for status in self.status], dtype=bool)

    @property
    def message(self) -> str:
        """How many members ended with each status, as text."""
        return "; ".join(f"{self.status.count(status)} {status.value}" for status in Status if status in self.status)

    def message_of(self, i: int) -> str:
        """How member i ended, as text."""
        n = len(self)
        i = whole(-n, n - 1)("i", i)
        status = self.status[i]
        return status.value if status is Status.COMPLETED else f"{status.value} at t = {self.t_end[i]:.6g}"

    def table(self) -> np.ndarray:
        """A structured array with one record per member: status, t_end, accepted, rejected, evaluations, message."""
        kind = [("status", "U16"), ("t_end", float), ("accepted", int), ("rejected", int), ("evaluations", int)]
        names = [status.name for status in self.status]
        messages = [self.message_of(i) for i in range(len(self))]
        columns = (names, self.t_end, self.accepted, self.rejected, self.evaluations, messages)
        return np.array(list(zip(*columns, strict=True)), dtype=[*kind, ("message", "U96")])

    def __repr__(self) -> str:
        counts = {status: self.status.count(status) for status in Status if status in self.status}
        steps = int(self.accepted.sum() + self.rejected.sum())
        lines = [
            f"EnsembleSolution by {_describe_scheme(self.scheme, self.problem)}: {len(self)} members",
            f"  y      {self.y.shape} {self.y.dtype}",
            f"  steps  {steps} in all" + (f", {steps / len(self):.1f} a member" if len(self) else ""),
            *(f"  {count:<6} {status.value}" for status, count in counts.items()),
            f"  rung   {self.rung}" + (f" ({self.reason})" if self.reason else ""),
        ]
        return "\n".join(lines)
