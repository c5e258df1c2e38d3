"""A run stepped by hand: one step, or to a given time, stored and gone on with."""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import Adaptive, Plan
from stepnet.engines.numba_engine.compile.cache import source_stamp
from stepnet.engines.numba_engine.driver import STATUS, Trajectory
from stepnet.engines.numba_engine.job import Job
from stepnet.engines.numba_engine.stepping import DONE, EVENT, FULL, PAUSED
from stepnet.solution import Status


class Stepper:
    """The arrays of a run and the kernel that moves them."""

    def __init__(self, job: Job, plan: Plan):
        self._job, self._plan = job, plan
        self._trajectory = Trajectory(job, plan)

    @property
    def t(self) -> float:
        return float(self._run["t"])

    @property
    def h(self) -> float:
        return float(self._run["h"])

    @property
    def y(self) -> np.ndarray:
        """A copy of the flat state."""
        return self._job.state

    @property
    def counts(self) -> tuple[int, int, int]:
        """Accepted and rejected steps, evaluations."""
        return int(self._run["step"]), int(self._run["rejected"]), int(self._run["evaluations"])

    @property
    def is_finished(self) -> bool:
        return self._run["t"] == self._run["t_end"]

    @property
    def _run(self):
        return self._job.run[0]

    def put(self, y: np.ndarray) -> None:
        """Go on from another state."""
        real = y.view(self._job.real_dtype).reshape(self._job.rows, -1)
        self._job.work[: self._job.rows, : real.shape[1]] = real
        self._run["has_slope"] = 0

    def step(self) -> Status | None:
        """One accepted step; None if all is well, else how the run ended."""
        before = int(self._run["step"])
        while int(self._run["step"]) == before:
            code = self._advance(1)
            if code not in (PAUSED, FULL):
                return None if code == DONE and int(self._run["step"]) > before else STATUS[code]
        return None

    def run_to(self, t: float) -> Status | None:
        """Steps up to a time, the last one cut to end there if the steps are adaptive."""
        run, end = self._run, float(self._run["t_end"])
        if isinstance(self._plan.stepping, Adaptive):
            run["t_end"], run["n_steps"] = t, -1
        while (t - run["t"]) * np.sign(end - run["t0"]) > 0:
            code = self._advance(2**40 if isinstance(self._plan.stepping, Adaptive) else 1)
            if code == EVENT or code not in (PAUSED, FULL, DONE):
                run["t_end"] = end
                return STATUS[code]
        if isinstance(self._plan.stepping, Adaptive):
            run["t_end"] = end
            run["n_steps"] = run["step"] if t == end else -1
        return None

    def _advance(self, attempts: int) -> int:
        self._run["slice"] = attempts
        self._run["saved"] = 0
        code = self._job.advance(self._trajectory)
        if code == FULL:
            self._trajectory.grow(self._job)
        return code

    def numbers(self) -> dict[str, np.ndarray]:
        """All that is needed to go on bit for bit."""
        watch = () if self._job.watch is None else self._job.watch.values
        return {"run": self._job.run, "work": self._job.work, "watch": np.array(watch), "stamp": np.array(self._stamp)}

    def restore(self, numbers) -> None:
        """Go on from stored numbers; the problem, the scheme, the machine and the versions must be the same."""
        if str(numbers["stamp"]) != self._stamp:
            raise ValueError("the stored integrator is from another version, machine or kind of right-hand side")
        if numbers["work"].shape != self._job.work.shape:
            raise ValueError("the stored integrator is of another problem or scheme: its arrays have other shapes")
        self._job.run[...] = numbers["run"]
        self._job.work[...] = numbers["work"]
        if self._job.watch is not None:
            self._job.watch.values[...] = numbers["watch"]

    @property
    def _stamp(self) -> str:
        return "-".join((source_stamp(), *(field.rung for field in self._job.fields)))
