"""A run stepped by hand: one step, or to a given time, stored and gone on with."""

from __future__ import annotations

import time
from math import isqrt

import numpy as np

from stepnet.engines.contract import Adaptive, Given, Plan
from stepnet.engines.numba_engine import diagnosis
from stepnet.engines.numba_engine.compile.cache import source_stamp
from stepnet.engines.numba_engine.driver import FIRST_SLICE, SLICE_SECONDS, STATUS
from stepnet.engines.numba_engine.job import Job
from stepnet.engines.numba_engine.renewal import Renewal, has_mutable_args, is_changeable
from stepnet.engines.numba_engine.stepping import DONE, FULL, PAUSED
from stepnet.engines.numba_engine.trajectory import Trajectory
from stepnet.problem import Problem
from stepnet.solution import Status

MANY = 2**40
ROUNDING = 1e-12  # relative distance at which a time is that of a given step


class Stepper:
    """The arrays of a run and the kernel that moves them; `identity` tells what it is a run of."""

    def __init__(self, job: Job, problem: Problem, plan: Plan, identity: str):
        self._job, self._plan, self._identity = job, plan, identity
        self._trajectory = Trajectory(job, plan)
        self._renewal = Renewal(problem, plan, job.prepare)
        self._may_change = has_mutable_args(problem) or any(is_changeable(field) for field in job.fields)

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

    @property
    def args(self) -> tuple:
        """The arguments of the right-hand side."""
        return self._renewal.problem.args

    @args.setter
    def args(self, args: tuple) -> None:
        self._renewal.set_args(args)
        self._may_change = True

    def _look_around(self) -> None:
        """Notice what the user has changed since the last step."""
        if self._may_change:
            job = self._renewal.current(self._job)
            if job is not self._job:
                self._trajectory.follow(job)
            self._job = job

    def put(self, y: np.ndarray) -> None:
        """Go on from another state."""
        self._job.put(y)

    def is_at(self, t: float) -> bool:
        """Whether the clock shows a time, up to the rounding of whoever wrote it."""
        return bool(np.isfinite(t) and abs(self.t - t) <= ROUNDING * max(abs(t), abs(self.h)))

    def exception(self) -> BaseException | None:
        """What the right-hand side raised."""
        return diagnosis.raised(self._job).exception

    def step(self) -> Status | None:
        """One accepted step; None if all is well, else how the run ended."""
        self._look_around()
        before = int(self._run["step"])
        while int(self._run["step"]) == before:
            code = self._advance(1)
            if code not in (PAUSED, FULL):
                return None if code == DONE and int(self._run["step"]) > before else STATUS[code]
        return None

    def run_to(self, t: float) -> Status | None:
        """Steps up to a time, the last one cut to end there if the steps are adaptive."""
        if not self.is_at(t):
            self._look_around()
        run, end = self._run, float(self._run["t_end"])
        direction = np.sign(end - run["t0"])
        if isinstance(self._plan.stepping, Given):
            return self._run_until(t, direction)
        run["t_end"], run["n_steps"] = t, -1
        try:
            status = self._run_until(t, direction)
        finally:  # Ctrl-C between two slices leaves a run that can go on
            run["t_end"] = end
        if status is None:
            run["n_steps"] = run["step"] if t == end else -1
        return status

    def _run_until(self, t: float, direction: float) -> Status | None:
        """Slices of steps until the clock shows a time or has passed it."""
        is_given, longest = isinstance(self._plan.stepping, Given), FIRST_SLICE
        while (t - self.t) * direction > 0 and not (is_given and self.is_at(t)):
            attempts = min(longest, self._attempts_before(t))
            started = time.perf_counter()
            code = self._advance(attempts)
            if code not in (PAUSED, FULL, DONE):
                return STATUS[code]
            if time.perf_counter() - started < SLICE_SECONDS and attempts == longest:
                longest = 2 * longest
        return None

    def _attempts_before(self, t: float) -> int:
        """Attempts that surely do not pass a time: generated code takes up to that many steps in each of them."""
        stepping = self._plan.stepping
        if isinstance(stepping, Adaptive):
            return MANY
        if stepping.grid is not None:
            return 1
        h = abs(self._run["t_end"] - self._run["t0"]) / stepping.n_steps
        return isqrt(max(1, int(abs(t - self.t) / h) - 1))

    def _advance(self, attempts: int) -> int:
        self._run["slice"] = attempts
        self._run["saved"] = 0
        code = self._job.advance(self._trajectory)
        if code == FULL:
            self._trajectory.grow(self._job)
        return code

    def numbers(self) -> dict[str, np.ndarray]:
        """All that is needed to go on bit for bit."""
        marks = {"stamp": np.array(self._stamp), "identity": np.array(self._identity)}
        return {"run": self._job.run, "work": self._job.work, **marks}

    def restore(self, numbers) -> None:
        """Go on from stored numbers; the problem, the scheme, the machine and the versions must be the same."""
        if not {"run", "work", "stamp", "identity"} <= set(numbers):
            raise ValueError("the file holds no stored integrator; it must have been written by `Integrator.save`")
        if str(numbers["stamp"]) != self._stamp:
            raise ValueError("the stored integrator is from another version, machine or kind of right-hand side")
        if str(numbers["identity"]) != self._identity or numbers["work"].shape != self._job.work.shape:
            raise ValueError("the stored integrator is of another problem, scheme or plan of steps; start it as it was")
        self._job.run[...] = numbers["run"]
        self._job.work[...] = numbers["work"]

    @property
    def _stamp(self) -> str:
        return "-".join((source_stamp(), *(field.rung for field in self._job.fields)))
