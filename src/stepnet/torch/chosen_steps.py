"""States at wanted times by steps that an error estimate chooses.

Where a memory is chosen the steps are found first, without gradients, and then they are given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.explicit_rk import accepted_steps, attempt, interpolant, sides, slope_at
from stepnet.engines.torch_engine.fields import State, checked, joined, parted
from stepnet.engines.torch_engine.fixed import Fixed, Grid, Manner, Reading, fixed_run, itself
from stepnet.engines.torch_engine.step_control import How
from stepnet.engines.torch_engine.surroundings import Surroundings
from stepnet.schemes.tableau import ExplicitRK
from stepnet.torch.given_steps import InMemory, Solver
from stepnet.torch.states import Posed

Step = tuple[float, float]
"""Where it begins, and its length."""


class Chosen(NamedTuple):
    """A solve whose steps are chosen: of which problem, by which pair, how long, and how the field is called."""

    problem: Posed
    scheme: ExplicitRK
    how: How
    manner: Manner

    @property
    def fun(self) -> Callable:
        return checked(self.problem.field.whole, self.manner.dtype)

    @property
    def y(self) -> Tensor:
        return joined(self.problem.field, self.problem.state)

    def given(self, steps: Sequence[Step], t_end: float) -> Fixed:
        """The run with these steps."""
        grid = Grid([*(t for t, _ in steps), t_end], [h for _, h in steps])
        return fixed_run(self.problem.field, self.scheme, grid, self.manner)

    def reader(self, step: Step, times: Sequence[float], t_end: float) -> Callable[[State], list[State]]:
        """Reads the states at these times inside a step from the one at its beginning."""
        fun, field = self.fun, self.problem.field

        def read(state: State) -> list[State]:
            start = joined(field, state)
            slope = slope_at(fun, start, sides(step[0], t_end, start, self.how))
            taken = attempt(slope, self.scheme, *step, start, slope(step[0], start))
            return [parted(field, inside) for inside in map(interpolant(self.scheme, taken), times)]

        return read


def states_by_chosen_steps(task: Chosen, times: list[float], solver: Solver) -> list[State]:
    """States at the times."""
    return _again(task, times, solver) if isinstance(solver, InMemory) else _on_the_way(task, times)


def _on_the_way(task: Chosen, times: list[float]) -> list[State]:
    y = task.y
    found = [y]
    for step in accepted_steps(task.fun, task.scheme, y, times[0], times[-1], task.how):
        inside = _inside((step.t, step.h), times, len(found))
        found += map(interpolant(task.scheme, step), inside) if inside else []
        y = step.y_new
    return [parted(task.problem.field, y) for y in [*found, y]]


def _again(task: Chosen, times: list[float], solver: InMemory) -> list[State]:
    """The same: the steps are found first, and then they are given ones, from the same buffers and random numbers."""
    state, t_end = task.problem.state, times[-1]
    surroundings = Surroundings.here(state[0].device, solver.modules)
    with torch.no_grad():
        taken = accepted_steps(task.fun, task.scheme, task.y.detach(), times[0], t_end, task.how)
        steps = [(step.t, step.h) for step in taken]
    readings = [
        Reading(i, task.reader(steps[i], inside, t_end), len(inside))
        for i, inside in enumerate(_passed(steps, times))
        if inside
    ]
    with surroundings.restored():
        return [state, *solver(task.given(steps, t_end), state, [*readings, Reading(len(steps), itself)])]


def _passed(steps: Sequence[Step], times: list[float]) -> Iterator[list[float]]:
    """The wanted times inside every step."""
    done = 1
    for step in steps:
        inside = _inside(step, times, done)
        done += len(inside)
        yield inside


def _inside(step: Step, times: list[float], first: int) -> list[float]:
    """The wanted times that a step passes, but not the last one, at which steps end."""
    (t, h), last = step, first
    while last < len(times) - 1 and (times[last] - t) / h <= 1.0:
        last += 1
    return times[first:last]
