"""The contract of the engines: functions of both engines, functions of one engine, records of plans and outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from stepnet.events import Event
from stepnet.schemes.controllers import Controller
from stepnet.solution import Failure, Pieces, Statistics, Status

if TYPE_CHECKING:  # solving an ODE does not import networks
    from stepnet.fields import Depth, Field, HeldWeights
    from stepnet.schemes.step_program import SchemeProgram

NO_STOPS = np.zeros(0)


class FixedSteps(NamedTuple):
    """Steps known in advance: `n_steps` equal steps, or the steps between the times of `grid`."""

    n_steps: int
    grid: np.ndarray | None = None


class AdaptiveSteps(NamedTuple):
    """Steps chosen by the error estimate; `rtol` and `atol` hold one value for each entry of the flat state.

    A step ends at each of the times `stops`, which lie inside the interval, in the direction of integration.
    """

    rtol: np.ndarray
    atol: np.ndarray
    first_step: float | None
    max_step: float
    controller: Controller
    norm: str
    max_steps: int
    stops: np.ndarray = NO_STOPS


class StateStream(NamedTuple):
    """Saved states are passed to `take(t, y)` whenever `capacity` of them have accumulated and another step follows."""

    capacity: int
    take: Callable[[np.ndarray, np.ndarray], None]


class Saving(NamedTuple):
    """Which states to save: those at the times `at`, or else every `every`-th step (0: the final state only)."""

    at: np.ndarray | None
    every: int
    passing: StateStream | None = None


class Plan(NamedTuple):
    """How to step and what to save; all values are validated."""

    stepping: FixedSteps | AdaptiveSteps
    saving: Saving
    events: tuple[Event, ...] = ()
    dense: bool = False
    project: Callable[..., Any] | None = None
    progress: bool = False


class Outcome(NamedTuple):
    """The result of a run: times, flat states (times, entries), status, end time and statistics."""

    t: np.ndarray
    y: np.ndarray
    status: Status
    statistics: Statistics
    failure: Failure | None = None
    t_events: tuple[np.ndarray, ...] = ()
    y_events: tuple[np.ndarray, ...] = ()
    pieces: Pieces | None = None
    t_end: float = float("nan")


class Members(NamedTuple):
    """The members of an ensemble as flat arrays, with one row per member or one row for all of them.

    `paths` holds the Brownian path of each member of a stochastic problem; `increments` (paths, steps, components)
    replace the Brownian paths.
    """

    number: int
    y0: np.ndarray
    args: np.ndarray
    t_span: np.ndarray
    rtol: np.ndarray
    atol: np.ndarray
    save_at: np.ndarray
    paths: np.ndarray | None = None
    increments: np.ndarray | None = None

    def row(self, name: str, i: int) -> np.ndarray:
        """The values of member i under this name."""
        rows = getattr(self, name)
        return rows[i % len(rows)]


class EnsembleOutcome(NamedTuple):
    """The result of an ensemble: states (members, times, entries), and the status and end time of each member.

    `saved` counts the save times that were reached; `rung` says how the members were run, and `reason` why they were
    not run in lanes.
    """

    y: np.ndarray
    t_end: np.ndarray
    status: tuple[Status, ...]
    accepted: np.ndarray
    rejected: np.ndarray
    evaluations: np.ndarray
    saved: np.ndarray
    rung: str
    reason: str
    t_events: tuple[tuple[np.ndarray, ...], ...] = ()
    y_events: tuple[tuple[np.ndarray, ...], ...] = ()
    is_interrupted: bool = False


# ---- engine functions -----------------------------------------------------------------------------------------------
#
# Engines are packages; their functions are the members of these protocols.  Each engine has its own records of
# problems, plans and outcomes, with arrays or tensors.  Parameters of only one engine come last and have defaults.

ProblemT = TypeVar("ProblemT", contravariant=True)
PlanT = TypeVar("PlanT", contravariant=True)
MembersT = TypeVar("MembersT", contravariant=True)
StateT = TypeVar("StateT")
RowsT = TypeVar("RowsT")
WeightsT = TypeVar("WeightsT", contravariant=True)
FoundT = TypeVar("FoundT", covariant=True)


class RunEngine(Protocol[ProblemT, PlanT, FoundT]):
    """Solves one problem.  Implemented by both engines."""

    def run(self, problem: ProblemT, scheme: Any, plan: PlanT) -> FoundT:
        """Solve the problem according to the plan."""


class LinearRun(Protocol[StateT, RowsT]):
    """The steps of a run as maps of rows; `scheme_program` gives their order and their inverse."""

    @property
    def scheme_program(self) -> SchemeProgram: ...

    def spread(self, state: StateT, /) -> RowsT:
        """The rows with which the program `opening` begins."""

    def extract_state(self, rows: RowsT, /) -> StateT:
        """The state of the problem, taken from the rows."""


class LinearisingEngine(Protocol[ProblemT, PlanT, FoundT]):
    """Fixed steps as differentiable maps.  Implemented by both engines."""

    def linearise(self, problem: ProblemT, scheme: Any, plan: PlanT) -> FoundT:
        """Return a `LinearRun`."""


class EnsembleEngine(Protocol[ProblemT, PlanT, MembersT, FoundT]):
    """Solves one problem for many members at once.  Implemented by both engines."""

    def run_ensemble(self, problem: ProblemT, scheme: Any, plan: PlanT, members: MembersT) -> FoundT:
        """The solutions of all members; each member ends independently of the others."""


class LayerStage(Protocol[WeightsT, StateT]):
    """A field integrated by a scheme with equal steps: a part of a net."""

    def forward(self, theta: WeightsT, x: StateT) -> StateT:
        """The final state for an initial state and weights."""


class LayerEngine(Protocol[FoundT]):
    """Runs layers.  Implemented by both engines."""

    def build_stage(
        self, field: Field, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights
    ) -> FoundT:
        """Return a `LayerStage`."""


class SteppingEngine(Protocol[ProblemT, PlanT, FoundT]):
    """A run that the caller advances step by step.  Compiled kernels only: for tensors, call `run` in a loop."""

    def begin(self, problem: ProblemT, scheme: Any, plan: PlanT) -> FoundT:
        """A run at its initial state."""


class IdentifyingEngine(Protocol[ProblemT, PlanT]):
    """Identifies stored runs by hashes that are equal in every process.  Compiled kernels only."""

    def identity(self, problem: ProblemT, scheme: Any, plan: PlanT) -> str:
        """A hash of everything that a run depends on except its initial values."""

    def problem_identity(self, problem: ProblemT) -> str:
        """A hash of a problem with its initial state."""

    def value_identity(self, value: Any) -> str:
        """A hash of any value."""


class ReportingEngine(Protocol):
    """Reports what an engine finds on the machine.  Compiled kernels only."""

    def report(self) -> dict[str, str]:
        """Facts by label."""


COMMON = (RunEngine, LinearisingEngine, EnsembleEngine, LayerEngine)
COMPILED_ONLY = (SteppingEngine, IdentifyingEngine, ReportingEngine)
