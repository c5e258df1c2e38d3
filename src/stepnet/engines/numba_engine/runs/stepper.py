"""A run advanced by the user: by one step, or to a given time; it can be stored and continued."""

from __future__ import annotations

import time
from math import isfinite, isqrt

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Plan
from stepnet.engines.numba_engine.codegen.disk_cache import source_stamp
from stepnet.engines.numba_engine.integrators.stepping import DONE, FULL, PAUSED
from stepnet.engines.numba_engine.runs import diagnosis
from stepnet.engines.numba_engine.runs.driver import SLICE_SECONDS, STATUS, choose_first_slice
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.engines.numba_engine.runs.recompilation import Recompilation, has_mutable_args, is_changeable
from stepnet.engines.numba_engine.runs.trajectory import TrajectoryBuffer
from stepnet.errors import NoIdentity
from stepnet.solution import Status
from stepnet.storage.stored_arrays import require_array

MANY = 2**40
ROUNDING = 1e-12  # relative distance below which a time is that of a fixed step
STORED = ("run", "work", "stamp", "identity")
PROGRESS = (
    "t", "t_low", "h", "h_tried", "step", "n_steps", "rejected", "evaluations", "error_1", "error_2", "has_slope",
    "was_rejected", "jacobian_age", "jacobians", "factorisations", "order", "equal_steps", "h_history", "failures",
    "method", "since_switch", "n_switches", "steepness",
)  # fmt: skip  # what changes from step to step; everything else follows from the problem and the plan
MOST_COUNTED = 2**62
FLOATS = ("t", "t_low", "h", "h_tried", "error_1", "error_2", "h_history", "steepness")
COUNTS = (
    "rejected",
    "evaluations",
    "jacobians",
    "factorisations",
    "equal_steps",
    "failures",
    "since_switch",
    "n_switches",
)


class Stepper:
    """The arrays of a run and the kernel that advances them; `identity` is that of the run, or why there is none."""

    def __init__(self, job: Job, renewal: Recompilation, plan: Plan, identity: str | NoIdentity):
        self._job, self._plan, self._identity = job, plan, identity
        self._trajectory = TrajectoryBuffer(job, plan)
        self._renewal = renewal
        self._may_change = has_mutable_args(renewal.problem) or any(is_changeable(field) for field in job.fields)

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
        """Numbers of accepted steps, rejected steps and evaluations."""
        return int(self._run["step"]), int(self._run["rejected"]), int(self._run["evaluations"])

    @property
    def is_finished(self) -> bool:
        return bool(self._run["t"] == self._run["t_end"])

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
        """Detect what the user has changed since the last step."""
        if self._may_change:
            job = self._renewal.current(self._job)
            if job is not self._job:
                self._trajectory.follow(job)
            self._job = job

    def put(self, y: np.ndarray) -> None:
        """Continue from another state."""
        self._job.put(y)

    def is_at(self, t: float) -> bool:
        """Whether the run is at a time, up to rounding."""
        return bool(np.isfinite(t) and abs(self.t - t) <= ROUNDING * max(abs(t), abs(self.h)))

    def exception(self) -> BaseException | None:
        """The exception that the right-hand side raised."""
        return diagnosis.find_user_exception(self._job).exception

    def step(self) -> Status | None:
        """Take one accepted step; None on success, else how the run ended."""
        self._look_around()
        before = int(self._run["step"])
        while int(self._run["step"]) == before:
            code = self._advance(1)
            if code not in (PAUSED, FULL):
                return None if code == DONE and int(self._run["step"]) > before else STATUS[code]
        return None

    def run_to(self, t: float) -> Status | None:
        """Advance to a time; the last step is shortened to end there if the steps are adaptive."""
        if not self.is_at(t):
            self._look_around()
        run, end = self._run, float(self._run["t_end"])
        direction = np.sign(end - run["t0"])
        if isinstance(self._plan.stepping, FixedSteps):
            return self._run_until(t, direction)
        run["t_end"], run["n_steps"] = t, -1
        try:
            status = self._run_until(t, direction)
        finally:  # Ctrl-C between two slices leaves a run that can be continued
            run["t_end"] = end
        if status is None:
            run["n_steps"] = run["step"] if t == end else -1
        return status

    def _run_until(self, t: float, direction: float) -> Status | None:
        """Run slices until a time is reached or passed."""
        is_given, longest = isinstance(self._plan.stepping, FixedSteps), choose_first_slice(self._job)
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
        """Attempts that certainly do not pass a time: in generated code each takes up to as many steps as attempts."""
        stepping = self._plan.stepping
        if isinstance(stepping, AdaptiveSteps):
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
        return diagnosis.correct_code(self._job, code)

    def numbers(self) -> dict[str, np.ndarray]:
        """Everything needed to continue bit for bit."""
        marks = {"stamp": np.array(self._stamp), "identity": np.array(self._known_identity)}
        return {"run": self._job.run, "work": self._job.work, **marks}

    def restore(self, numbers: dict[str, np.ndarray]) -> None:
        """Continue from stored numbers; the problem, the scheme, the machine and the versions must be the same."""
        if not set(STORED) <= set(numbers):
            raise ValueError("the file holds no stored integrator; it must have been written by `Integrator.save`")
        if str(numbers["stamp"]) != self._stamp:
            raise ValueError("the stored integrator is from another version, machine or kind of right-hand side")
        if str(numbers["identity"]) != self._known_identity:
            raise ValueError(
                "the stored integrator is of another problem, scheme or plan of steps; start it with the same arguments"
            )
        job = self._job
        work = require_array("`work` of the stored integrator", numbers["work"], job.work.shape, job.work.dtype, False)
        if not np.isfinite(work[: job.rows]).all():
            raise ValueError("the state of the stored integrator must be finite")
        run = require_array("`run` of the stored integrator", numbers["run"], job.run.shape, job.run.dtype, False)[0]
        require_progress(run, job.run[0], self._plan.stepping)
        for name in PROGRESS:
            job.run[0][name] = run[name]
        job.work[...] = work

    @property
    def _known_identity(self) -> str:
        if isinstance(self._identity, NoIdentity):
            raise self._identity
        return self._identity

    @property
    def _stamp(self) -> str:
        return "-".join((source_stamp(), *(field.rung for field in self._job.fields)))


def require_progress(run, fresh, stepping: FixedSteps | AdaptiveSteps) -> None:
    """Refuse stored numbers that a run of this plan cannot have reached; `fresh` is the same run at its beginning."""
    t0, t_end = float(fresh["t0"]), float(fresh["t_end"])
    step, direction = int(run["step"]), np.sign(t_end - t0)
    floats = [float(run[name]) for name in FLOATS]
    t, t_low, h = floats[:3]
    _demand(all(map(isfinite, floats)), "its numbers must be finite")
    _demand(min(t0, t_end) <= t <= max(t0, t_end), f"t must lie between {t0:g} and {t_end:g}, found {t:g}")
    _demand(abs(t_low) <= ROUNDING * max(abs(t), abs(t_end - t0)), f"t_low must be a rounding error, found {t_low:g}")
    _demand(h * direction > 0 or t0 == t_end, f"h must point from {t0:g} to {t_end:g}, found {h:g}")
    _demand(run["error_1"] > 0 and run["error_2"] > 0, "errors of steps must be positive")
    for name in COUNTS:
        _demand(0 <= run[name] < MOST_COUNTED, f"{name} must be a count, found {run[name]}")
    for name in ("has_slope", "was_rejected"):
        _demand(run[name] in (0, 1), f"{name} must be 0 or 1, found {run[name]}")
    _demand(run["jacobian_age"] in (0, 1, 2), f"jacobian_age must be 0, 1 or 2, found {run['jacobian_age']}")
    _demand(fresh["step"] <= step < MOST_COUNTED, f"step must be a count of at least {fresh['step']}, found {step}")
    _require_choices(run, fresh)
    if isinstance(stepping, FixedSteps):
        n, grid = stepping.n_steps, stepping.grid
        _demand(run["n_steps"] == n and step <= n, f"there are {n} steps, found step {step} of {run['n_steps']}")
        wanted = t_end if step == n else t0 + step * float(fresh["h"]) if grid is None else float(grid[step])
        _demand(abs(t - wanted) <= ROUNDING * max(abs(t), abs(t_end - t0)), f"t must be {wanted:g}, found {t:g}")
    else:
        _demand(run["n_steps"] in (-1, step), f"n_steps must be -1 or {step}, found {run['n_steps']}")
        _demand(abs(h) <= fresh["h_max"], f"h must be at most {fresh['h_max']:g}, found {h:g}")


def _require_choices(run, fresh) -> None:
    """Refuse an order or a scheme that a scheme of variable order, or one that switches, cannot have chosen."""
    highest, h = int(fresh["highest_order"]), float(run["h_history"])
    _demand(0 <= run["order"] <= highest, f"order must be between 0 and {highest}, found {run['order']}")
    _demand(run["order"] == 0 or h != 0, "h_history must not be 0 if there is a history")
    kinds = (0, 1) if fresh["may_switch"] else (int(fresh["method"]),)
    _demand(run["method"] in kinds, f"method must be one of {kinds}, found {run['method']}")


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(f"`run` of the stored integrator: {what}")
