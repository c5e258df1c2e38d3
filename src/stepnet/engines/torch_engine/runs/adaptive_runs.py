"""States at save times by adaptive steps.

Under a memory policy the steps are found first, without gradients, and then repeated as fixed steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.explicit_rk import (
    attempt_step,
    build_interpolant,
    evaluate_slope,
    find_sides,
    iterate_accepted_steps,
)
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    EvaluationOptions,
    FixedStepRun,
    StateRead,
    StepGrid,
    build_fixed_run,
    read_state,
)
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.engines.torch_engine.rhs.tensor_fields import State, build_pair_function, join, split
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem
from stepnet.engines.torch_engine.runs.fixed_runs import CheckpointedSolver, Solver
from stepnet.engines.torch_engine.runs.rng_and_autocast import RunContext
from stepnet.schemes.tableau import ExplicitRK

Step = tuple[float, float]
"""Initial time and length of a step."""


class AdaptiveSolve(NamedTuple):
    """An adaptive solve: problem, pair, step control, and how the field is called."""

    problem: TensorProblem
    scheme: ExplicitRK
    how: ControlSettings
    evaluation: EvaluationOptions

    @property
    def fun(self) -> Callable[..., Any]:
        return build_pair_function(self.problem.field, self.scheme, self.evaluation.dtype)

    @property
    def y(self) -> Tensor:
        return join(self.problem.field, self.problem.state)

    def fix_steps(self, steps: Sequence[Step], t_end: float) -> FixedStepRun:
        """The run with these steps as fixed steps."""
        grid = StepGrid([*(t for t, _ in steps), t_end], [h for _, h in steps])
        return build_fixed_run(self.problem.field, self.scheme, grid, self.evaluation)

    def reader(self, step: Step, times: Sequence[float], t_end: float) -> Callable[[State], list[State]]:
        """A function that computes the states at these times inside a step from the state at its beginning."""
        fun, field = self.fun, self.problem.field

        def read(state: State) -> list[State]:
            start = join(field, state)
            slope = evaluate_slope(fun, start, find_sides(step[0], t_end, start, self.how))
            taken = attempt_step(slope, self.scheme, *step, start, slope(step[0], start))
            return [split(field, inside) for inside in map(build_interpolant(self.scheme, taken), times)]

        return read


def solve_adaptive_steps(task: AdaptiveSolve, times: list[float], solver: Solver) -> list[State]:
    """States at the times."""
    return (
        _repeat_steps(task, times, solver) if isinstance(solver, CheckpointedSolver) else _read_on_the_way(task, times)
    )


def solve_densely(task: AdaptiveSolve, start: float, end: float) -> Callable[[float], State]:
    """The solution from start to end as a function of time; all steps are kept with their stages."""
    steps = list(iterate_accepted_steps(task.fun, task.scheme, task.y, start, end, task.how))
    inside = cache(lambda i: build_interpolant(task.scheme, steps[i]))
    sign = 1.0 if end > start else -1.0
    ends = [sign * (step.t + step.h) for step in steps[:-1]]
    return lambda time: split(task.problem.field, inside(bisect_left(ends, sign * time))(time))


def _read_on_the_way(task: AdaptiveSolve, times: list[float]) -> list[State]:
    y = task.y
    found = [y]
    for step in iterate_accepted_steps(task.fun, task.scheme, y, times[0], times[-1], task.how):
        inside = _select_inside((step.t, step.h), times, len(found))
        found += map(build_interpolant(task.scheme, step), inside) if inside else []
        y = step.y_new
    return [split(task.problem.field, y) for y in [*found, y]]


def _repeat_steps(task: AdaptiveSolve, times: list[float], solver: CheckpointedSolver) -> list[State]:
    """Find the steps first, then repeat them as fixed steps, with the same buffers and random numbers."""
    state, t_end = task.problem.state, times[-1]
    context = RunContext.capture(state[0].device, solver.modules)
    with torch.no_grad():
        taken = iterate_accepted_steps(task.fun, task.scheme, task.y.detach(), times[0], t_end, task.how)
        steps = [(step.t, step.h) for step in taken]
    readings = [
        StateRead(i, task.reader(steps[i], inside, t_end), len(inside))
        for i, inside in enumerate(_list_passed_times(steps, times))
        if inside
    ]
    with context.restore_context():
        return [state, *solver(task.fix_steps(steps, t_end), state, [*readings, StateRead(len(steps), read_state)])]


def _list_passed_times(steps: Sequence[Step], times: list[float]) -> Iterator[list[float]]:
    """The save times inside every step."""
    done = 1
    for step in steps:
        inside = _select_inside(step, times, done)
        done += len(inside)
        yield inside


def _select_inside(step: Step, times: list[float], first: int) -> list[float]:
    """The save times that a step passes, except the last one, at which steps end."""
    (t, h), last = step, first
    while last < len(times) - 1 and (times[last] - t) / h <= 1.0:
        last += 1
    return times[first:last]
