"""What an engine gets and gives: `run(problem, scheme, plan) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from stepnet.events import Event
from stepnet.problem import Problem
from stepnet.schemes.controllers import Controller
from stepnet.solution import Failure, Pieces, Statistics, Status

NO_STOPS = np.zeros(0)


class FixedSteps(NamedTuple):
    """Steps known beforehand: `n_steps` even ones, or those between the times of `grid`."""

    n_steps: int
    grid: np.ndarray | None = None


class AdaptiveSteps(NamedTuple):
    """Steps chosen by the error estimate; `rtol` and `atol` hold one number for every entry of the flat state.

    A step ends at each of the times `stops`, which lie inside the interval in the direction of integration.
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
    """Saved states are handed on by `take(t, y)` as soon as there are `room` of them and a further step is to come."""

    room: int
    take: Callable[[np.ndarray, np.ndarray], None]


class Saving(NamedTuple):
    """What to keep: the states at the times `at`, or else those of every `every`-th step (0: the end only)."""

    at: np.ndarray | None
    every: int
    passing: StateStream | None = None


class Plan(NamedTuple):
    """How to step and what to keep, every number checked."""

    stepping: FixedSteps | AdaptiveSteps
    saving: Saving
    events: tuple[Event, ...] = ()
    dense: bool = False
    project: Callable | None = None
    progress: bool = False


class Outcome(NamedTuple):
    """What a run left: times, flat states (times, entries), how it ended, where, and what it cost."""

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
    """The members of an ensemble, one row each or one row for all of them, as flat arrays of numbers."""

    number: int
    y0: np.ndarray
    args: np.ndarray
    t_span: np.ndarray
    rtol: np.ndarray
    atol: np.ndarray
    save_at: np.ndarray

    def row(self, name: str, i: int) -> np.ndarray:
        """What member i has under this name."""
        rows = getattr(self, name)
        return rows[i % len(rows)]


class EnsembleOutcome(NamedTuple):
    """What an ensemble left: states (members, times, entries), and for each member where and how it ended.

    `saved` counts the wanted times that were reached; `rung` says how the members were run, `reason` why not in lanes.
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


class Engine(Protocol):
    """Both engines are modules that offer this."""

    def run(self, problem: Problem, scheme: object, plan: Plan) -> Outcome: ...
