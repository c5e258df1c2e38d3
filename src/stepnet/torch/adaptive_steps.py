"""States at wanted times by steps that an error estimate chooses.

Where a memory is chosen the steps are found first, without gradients, and then they are given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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
from stepnet.engines.torch_engine.rhs.tensor_fields import State, join, part, validate_function
from stepnet.engines.torch_engine.runs.rng_and_autocast import RunContext
from stepnet.schemes.tableau import ExplicitRK
from stepnet.torch.fixed_steps import CheckpointedSolver, Solver
from stepnet.torch.states import TensorProblem

Step = tuple[float, float]
"""Where it begins, and its length."""


class AdaptiveSolve(NamedTuple):
    """A solve whose steps are chosen: of which problem, by which pair, how long, and how the field is called."""

    problem: TensorProblem
    scheme: ExplicitRK
    how: ControlSettings
    manner: EvaluationOptions

    @property
    def fun(self) -> Callable:
        return validate_function(self.problem.field.whole, self.manner.dtype)

    @property
    def y(self) -> Tensor:
        return join(self.problem.field, self.problem.state)

    def given(self, steps: Sequence[Step], t_end: float) -> FixedStepRun:
        """The run with these steps."""
        grid = StepGrid([*(t for t, _ in steps), t_end], [h for _, h in steps])
        return build_fixed_run(self.problem.field, self.scheme, grid, self.manner)

    def reader(self, step: Step, times: Sequence[float], t_end: float) -> Callable[[State], list[State]]:
        """Reads the states at these times inside a step from the one at its beginning."""
        fun, field = self.fun, self.problem.field

        def read(state: State) -> list[State]:
            start = join(field, state)
            slope = evaluate_slope(fun, start, find_sides(step[0], t_end, start, self.how))
            taken = attempt_step(slope, self.scheme, *step, start, slope(step[0], start))
            return [part(field, inside) for inside in map(build_interpolant(self.scheme, taken), times)]

        return read


def solve_adaptive_steps(task: AdaptiveSolve, times: list[float], solver: Solver) -> list[State]:
    """States at the times."""
    return (
        _repeat_steps(task, times, solver) if isinstance(solver, CheckpointedSolver) else _read_on_the_way(task, times)
    )


def _read_on_the_way(task: AdaptiveSolve, times: list[float]) -> list[State]:
    y = task.y
    found = [y]
    for step in iterate_accepted_steps(task.fun, task.scheme, y, times[0], times[-1], task.how):
        inside = _select_inside((step.t, step.h), times, len(found))
        found += map(build_interpolant(task.scheme, step), inside) if inside else []
        y = step.y_new
    return [part(task.problem.field, y) for y in [*found, y]]


def _repeat_steps(task: AdaptiveSolve, times: list[float], solver: CheckpointedSolver) -> list[State]:
    """The same: the steps are found first, and then they are given ones, from the same buffers and random numbers."""
    state, t_end = task.problem.state, times[-1]
    surroundings = RunContext.here(state[0].device, solver.modules)
    with torch.no_grad():
        taken = iterate_accepted_steps(task.fun, task.scheme, task.y.detach(), times[0], t_end, task.how)
        steps = [(step.t, step.h) for step in taken]
    readings = [
        StateRead(i, task.reader(steps[i], inside, t_end), len(inside))
        for i, inside in enumerate(_list_passed_times(steps, times))
        if inside
    ]
    with surroundings.restored():
        return [state, *solver(task.given(steps, t_end), state, [*readings, StateRead(len(steps), read_state)])]


def _list_passed_times(steps: Sequence[Step], times: list[float]) -> Iterator[list[float]]:
    """The wanted times inside every step."""
    done = 1
    for step in steps:
        inside = _select_inside(step, times, done)
        done += len(inside)
        yield inside


def _select_inside(step: Step, times: list[float], first: int) -> list[float]:
    """The wanted times that a step passes, but not the last one, at which steps end."""
    (t, h), last = step, first
    while last < len(times) - 1 and (times[last] - t) / h <= 1.0:
        last += 1
    return times[first:last]
