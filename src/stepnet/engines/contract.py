"""What an engine gets and gives: `run(problem, scheme, plan) -> Outcome`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepnet.problem import Problem
from stepnet.schemes.controllers import Controller
from stepnet.solution import Failure, Statistics, Status


@dataclass(frozen=True, eq=False)
class Plan:
    """How to step and what to keep, every number checked.

    `grid` holds the times of given steps; otherwise `n_steps` is the number of even ones, or None for steps chosen
    by the error estimate with `rtol` and `atol` (one number per entry of the state).  `save_at` holds wanted times;
    otherwise every `save_every`-th step is kept (0: the end only).
    """

    n_steps: int | None
    grid: np.ndarray | None
    rtol: np.ndarray | None
    atol: np.ndarray | None
    first_step: float | None
    max_step: float
    controller: Controller
    norm: str
    save_at: np.ndarray | None
    save_every: int
    max_steps: int
    progress: bool

    @property
    def is_adaptive(self) -> bool:
        return self.n_steps is None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run left: times, flat states (times, entries), how it ended and what it cost."""

    t: np.ndarray
    y: np.ndarray
    status: Status
    statistics: Statistics
    failure: Failure | None = None


class Engine(Protocol):
    """Both engines are modules that offer this."""

    def run(self, problem: Problem, scheme: object, plan: Plan) -> Outcome: ...
