"""What came out: the trajectory, how the run ended, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from stepnet.problem import Partitioned, Problem, SecondOrder


class Scheme(Protocol):
    """What a solution tells of its scheme."""

    name: str
    order: int
    reference: str


class Status(Enum):
    """How a run ended; the value is the sentence a user reads."""

    COMPLETED = "reached the end of the interval"
    STEP_LIMIT = "used up `max_steps` before the end of the interval"
    NOT_FINITE = "the state or the right-hand side became NaN or infinite"
    STEP_TOO_SMALL = "the step became too small for the clock"
    FIELD_RAISED = "the right-hand side raised an exception"
    INTERRUPTED = "interrupted by the user"


@dataclass(frozen=True)
class Statistics:
    """What a run cost.  `rung` tells how the right-hand side was called and `rung_reason` why not faster.

    `stiffness` is h times the spectral radius of the Jacobian at the end, divided by the scheme's real stability
    limit: near 1 the steps were limited by stability (NaN where it was not measured).
    """

    accepted: int
    rejected: int
    evaluations: int
    rung: str
    rung_reason: str = ""
    compile_time: float = 0.0
    run_time: float = 0.0
    stiffness: float = float("nan")

    @property
    def steps(self) -> int:
        """All attempted steps."""
        return self.accepted + self.rejected


@dataclass(frozen=True)
class Failure:
    """Where and how a run failed: the last valid time, the step tried there, and what to try next.

    `stage` and `component` point at the first slope that is not finite, where there is one.
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
class Solution:
    """The trajectory of a solve: `t` (times,) and `y` (times, *state), with status, statistics and scheme.

    For `Partitioned` and `SecondOrder` problems `y` is the flat state and `q`, `p` (or `v`) are views of it.
    """

    t: np.ndarray
    y: np.ndarray
    status: Status
    message: str
    statistics: Statistics
    scheme: Scheme
    problem: Problem = field(repr=False)
    failure: Failure | None = None

    @property
    def success(self) -> bool:
        """Whether the end of the interval was reached."""
        return self.status is Status.COMPLETED

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
        if not isinstance(self.problem, (Partitioned, SecondOrder)):
            raise AttributeError(f"a solution of {type(self.problem).__name__} has no q, p or v; its state is `.y`")
        shape = self.problem.q0.shape
        n = self.y.shape[1] // 2
        return self.y[:, which * n : (which + 1) * n].reshape(len(self.t), *shape)

    def citation(self) -> str:
        """What to cite: the paper of the scheme."""
        return f"{self.scheme.name}: {self.scheme.reference}"

    def __repr__(self) -> str:
        s = self.statistics
        lines = [
            f"Solution by {self.scheme.name} (order {self.scheme.order}): {self.message}",
            f"  t      {len(self.t)} times, {self.t[0]:.6g} to {self.t[-1]:.6g}",
            f"  y      {self.y.shape} {self.y.dtype}",
            f"  steps  {s.accepted} accepted, {s.rejected} rejected, {s.evaluations} evaluations",
            f"  rung   {s.rung}" + (f" ({s.rung_reason})" if s.rung_reason else ""),
            f"  time   {s.run_time:.3g} s run, {s.compile_time:.3g} s compile",
        ]
        if np.isfinite(s.stiffness):
            lines.append(f"  stiff  {s.stiffness:.2g} of the stability limit at the end")
        return "\n".join(lines)
