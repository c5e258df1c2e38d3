"""Machine code compiled again when user code that ran in between has changed what a right-hand side reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.rhs.problem_parts import force_python, read_values
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem, restart, state_shape

MOST_TIMES = 3  # recompilations; for values that change more often Python is cheaper
REASON = "run in Python: what it reads changes during the run"


class Recompilation:
    """Watches what the functions of a run read; `prepare(problem, scheme, plan)` builds its job."""

    def __init__(self, problem: Problem, scheme, plan: Plan, prepare: Callable[..., Job]):
        self._problem, self._scheme, self._plan, self._prepare = problem, scheme, plan, prepare
        self._key = read_values(problem, plan)
        self._times = 0

    @property
    def problem(self) -> Problem:
        return self._problem

    def set_args(self, args: tuple) -> None:
        """Use other arguments from now on."""
        self._problem = replace(self._problem, args=args)

    def current(self, job: Job) -> Job:
        """The job, or one that continues from its state with machine code for the present values."""
        key = read_values(self._problem, self._plan)
        if key == self._key and self._is_current(job):
            if any(is_changeable(field) for field in job.fields if field.callbacks):
                job.run["has_slope"] = 0  # the slope may have changed
            return job
        is_known = key[0] == self._key[0]  # numerical arguments do not change the code
        self._key = key
        self._times += not is_known
        rungs = {field.rung for field in job.fields}
        if self._times > MOST_TIMES or ("compiled" in rungs and not is_known):
            self._problem, self._plan = force_python(self._problem, self._plan, REASON)
        return self._continue_job(job)

    def _is_current(self, job: Job) -> bool:
        """Whether machine code that reads external values still agrees with Python."""
        run = job.run[0]
        span, state = (float(run["t"]), float(run["t_end"])), job.state
        half = state.size // job.rows
        return all(
            field.comparison.agrees_somewhere(span, state[:half] if job.rows == 2 else state)
            for field in job.fields[:1]
            if field.comparison is not None and is_changeable(field)
        )

    def _continue_job(self, job: Job) -> Job:
        state = job.state.reshape(state_shape(self._problem))
        here = restart(self._problem, state, (job.run["t"].item(), self._problem.t_span[1]))
        new = self._prepare(here, self._scheme, self._plan)
        new.run[...], new.work[...] = job.run, job.work
        new.run["has_slope"] = 0
        return new


def is_changeable(field) -> bool:
    """Whether the function of a field may give other values after user code has run."""
    reach = field.reach
    return reach is not None and bool(reach.opaque or reach.reads_objects or reach.reads_variables)


def has_mutable_args(problem: Problem) -> bool:
    """Whether there are arguments other than numbers, which the user may change in place."""
    return any(type(value) not in (float, int, bool, complex) for value in problem.args)
