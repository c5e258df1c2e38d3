"""Events, dense output and projection for schemes without a continuous extension.

The family's kernel takes the steps; a second kernel processes them with the cubic Hermite polynomial between their
ends, at the cost of one evaluation of the whole right-hand side per step.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np

from stepnet.engines.contract import FixedSteps, Outcome, Plan, Saving
from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.dense_output import Y_NEW, K, build_cubic_tables
from stepnet.engines.numba_engine.integrators.events import build_event_state
from stepnet.engines.numba_engine.integrators.step_output import OutputBuffers, build_output_request, complete, is_full
from stepnet.engines.numba_engine.integrators.stepping import DONE, FULL, PAUSED
from stepnet.engines.numba_engine.rhs.problem_parts import build_fields, force_python
from stepnet.engines.numba_engine.runs.job import ELSEWHERE, Job, allocate_work, create_run_state
from stepnet.engines.numba_engine.runs.trajectory import make_no_pieces
from stepnet.problem import Problem
from stepnet.solution import Status

BLOCK, SHORT_BLOCK = 1024, 64  # steps taken before they are processed; after a reset the remaining ones are taken again
MOST_NUMBERS = 2**20  # in a block
COUNTS = ("evaluations", "jacobians", "factorisations")


@Kernel
def look_at_steps(field, p, tables, needs, work, run_, first, count, t, y, out):
    """Process `count` steps from step `first` on, whose ends are the rows of `t` and `y`; PAUSED after the last."""
    run = run_[0]
    while run.step < first + count:
        if stepping.is_full(run, out.t) or is_full(needs, run, out):
            return FULL
        i = run.step - first
        for k in range(run.reals):
            work[Y_NEW, k] = y[i, k]
        status = complete(field, p, tables, needs, False, work, 1, t[i], t[i] - run.t, run, out)
        if status != DONE:
            return status
    return DONE if run.step == run.n_steps else PAUSED


class JobSteps:
    """The steps of a family's job, taken block by block."""

    def __init__(self, job: Job, size: int):
        prefix = 0 if job.prefix is None else len(job.prefix[0]) - 1  # steps already taken by the starting procedure
        width = job.rows * int(job.run[0]["reals"])
        size = max(1, min(size, MOST_NUMBERS // max(width, 1)))
        capacity = max(size, prefix)
        self.job, self.first, self._size, self._code = job, 0, size, PAUSED
        self.t, self.y = np.empty(capacity), np.empty((capacity, width), job.real_dtype)
        if job.prefix is not None:
            self.t[:prefix] = job.prefix[0][1:]
            self.y[:prefix] = job.prefix[1][1:].view(job.real_dtype)
        piece_t, pieces = make_no_pieces(job.real_dtype)
        self._output = SimpleNamespace(t=self.t, y=self.y, watch=job.watch, piece_t=piece_t, pieces=pieces)

    @property
    def reached(self) -> int:
        """The number of steps the family has taken."""
        return int(self.job.run[0]["step"])

    def take(self, most: int) -> None:
        """Take the next block."""
        run = self.job.run[0]
        self.first = self.reached
        run["slice"], run["saved"] = min(most, self._size), 0
        self._code = self.job.advance(self._output)

    def go_back_to(self, run, state: np.ndarray) -> None:
        """Continue from another state, inside a step if an event has ended it early."""
        if self._code not in (DONE, PAUSED):  # later steps have failed and left undefined values
            self.job.work[...] = 0
            for callback in (callback for field in self.job.fields for callback in field.callbacks):
                callback.exception = None
        self.job.put(state)
        for name in ("step", "t", "is_cut"):
            self.job.run[0][name] = run[name]
        run["is_cut"] = 0

    def ending(self, run) -> int:
        """The code that the family's kernel returned after its last block."""
        if self._code in (DONE, PAUSED):
            return PAUSED
        run["part"] = ELSEWHERE
        return self._code


def prepare(problem: Problem, scheme, plan: Plan, prepare_steps) -> Job:
    """A job that runs the family's job, built by `prepare_steps`, and processes its steps."""
    moves = is_moving(plan)
    inner_plan = Plan(_fix_times(problem, cast(FixedSteps, plan.stepping)) if moves else plan.stepping, Saving(None, 1))
    size = 1 if plan.project is not None else SHORT_BLOCK if moves else BLOCK
    field, watched, moved = build_fields(problem, plan)
    is_shared = any(part.callbacks for part in (*watched, *moved)) and bool(field.callbacks)
    own = force_python(problem, plan, field.reason)[0] if is_shared else problem
    steps = JobSteps(prepare_steps(own, scheme, inner_plan), size)
    work, run = allocate_work(problem.initial, 1, K + 2), create_run_state(problem, plan)
    tables = build_cubic_tables(work.dtype)
    watch = build_event_state(plan, field, (*watched, *moved), problem, run["reals"].item(), work.dtype)

    def look(out):
        needs = build_output_request(plan, out.watch, moved, is_aside=False)
        block = (steps.first, steps.reached - steps.first, steps.t, steps.y)
        output = OutputBuffers(out.t, out.y, out.piece_t, out.pieces)
        code = look_at_steps(field.address, field.p, tables, needs, work, run, *block, output)
        return steps.ending(run[0]) if code == PAUSED else code

    def go(out):
        until, code = run[0]["step"] + run[0]["slice"], PAUSED
        while code == PAUSED and run[0]["step"] < until:
            if moves and run[0]["has_slope"] == 0:
                steps.go_back_to(run[0], job.state)
            if run[0]["step"] == steps.reached:
                steps.take(int(run[0]["slice"]))
            code = look(out)
        for name in COUNTS:
            run[0][name] += steps.job.run[0][name]
            steps.job.run[0][name] = 0
        return code

    fields = (field, *watched, *moved, *steps.job.fields)
    slopes = steps.job.stage_slopes
    job = Job(go, run, work, 1, fields, problem.initial.dtype, slopes, watch, rows_per_piece=4, inner=steps.job)
    return job


def is_moving(plan: Plan) -> bool:
    """Whether the plan may replace states that the scheme has computed."""
    return plan.project is not None or any(event.reset is not None for event in plan.events)


def insert_save_times(outcome: Outcome, plain: Outcome, problem: Problem) -> Outcome:
    """Replace the saved states by those of a plain run over the same steps, which have the accuracy of the scheme."""
    t0, t1 = problem.t_span
    reached = (outcome.t_end - plain.t) * (1.0 if t1 >= t0 else -1.0) >= 0
    cost, more = outcome.statistics, plain.statistics
    ending = plain if plain.status is Status.INTERRUPTED else outcome
    return outcome._replace(
        t=plain.t[reached],
        y=plain.y[reached],
        status=ending.status,
        failure=ending.failure,
        statistics=replace(
            cost, evaluations=cost.evaluations + more.evaluations, run_time=cost.run_time + more.run_time
        ),
    )


def _fix_times(problem: Problem, stepping_plan: FixedSteps) -> FixedSteps:
    """Equal steps given by their times, because generated code cannot shorten a step."""
    if stepping_plan.grid is not None:
        return stepping_plan
    t0, t1 = problem.t_span
    n = stepping_plan.n_steps
    grid = t0 + np.arange(n + 1) * ((t1 - t0) / n)
    grid[-1] = t1
    return stepping_plan._replace(grid=grid)
