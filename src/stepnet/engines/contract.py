"""What an engine gets and gives: `run(problem, scheme, plan) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from stepnet.events import Event
from stepnet.problem import Problem
from stepnet.schemes.controllers import Controller
from stepnet.solution import Failure, Pieces, Statistics, Status


class Given(NamedTuple):
    """Steps known beforehand: `n_steps` even ones, or those between the times of `grid`."""

    n_steps: int
    grid: np.ndarray | None = None


class Adaptive(NamedTuple):
    """Steps chosen by the error estimate; `rtol` and `atol` hold one number for every entry of the flat state."""

    rtol: np.ndarray
    atol: np.ndarray
    first_step: float | None
    max_step: float
    controller: Controller
    norm: str
    max_steps: int


class Passing(NamedTuple):
    """Saved states are handed on by `take(t, y)` as soon as there are `room` of them and a further step is to come."""

    room: int
    take: Callable[[np.ndarray, np.ndarray], None]


class Saving(NamedTuple):
    """What to keep: the states at the times `at`, or else those of every `every`-th step (0: the end only)."""

    at: np.ndarray | None
    every: int
    passing: Passing | None = None


class Plan(NamedTuple):
    """How to step and what to keep, every number checked."""

    stepping: Given | Adaptive
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


class Engine(Protocol):
    """Both engines are modules that offer this."""

    def run(self, problem: Problem, scheme: object, plan: Plan) -> Outcome: ...
