"""Solves that end at an event.

Where a memory is chosen the event is found first, without gradients, and then the steps up to it are given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from math import inf

import torch
from torch import Tensor

from stepnet.engines.torch_engine.events import Piece, combined, first_zero, linked
from stepnet.engines.torch_engine.explicit_rk import accepted_steps, interpolant
from stepnet.engines.torch_engine.fields import State, checked, joined, parted
from stepnet.engines.torch_engine.fixed import Manner, Reading, each_state, endless_grid, fixed_run, states_at
from stepnet.torch.chosen_steps import Chosen, Step
from stepnet.torch.given_steps import Solver, between_steps, states_after
from stepnet.torch.options import numbers_of
from stepnet.torch.states import Posed

MOST_STEPS = 1_000_000


def until_event(task: Chosen, t: Tensor, event_fn, solver: Solver):
    """Time of the event, and the states at t[0] and there; t[1] says in which direction to look."""
    t0, t1 = _span(t)
    far, steps = inf if t1 > t0 else -inf, list[Step]()

    def pieces():
        for step in accepted_steps(task.fun, task.scheme, task.y, t0, far, task.how):
            steps.append((step.t, step.h))
            yield Piece(step.t, step.t + step.h, step.y_new, partial(interpolant, task.scheme, step))

    def again(time: float) -> State:
        at_event = Reading(len(steps) - 1, task.reader(steps[-1], [time], far))
        solve = solver if len(steps) > 1 else states_at
        (end,) = solve(task.given(steps, far), task.problem.state, [at_event])
        return end

    return _ended(task.problem, task.fun, t, event_fn, pieces(), None if solver is states_at else again)


def until_event_of_steps(problem: Posed, scheme, t: Tensor, event_fn, options: dict, manner: Manner, solver: Solver):
    """The same by even steps, between which the solution is a line or a cubic."""
    t0, t1 = _span(t)
    if "step_size" not in options:
        raise ValueError(f"`event_fn` with the given steps of {scheme.name} wants `step_size` in `options`; give it")
    grid = endless_grid(t0, float(options["step_size"]) * (1.0 if t1 > t0 else -1.0))
    between, done = between_steps(options), 0
    inside = lambda before, after, time: between(problem, before, after, (grid.t[done - 1], grid.t[done], time))
    read = lambda before, after: lambda time: joined(problem.field, inside(before, after, time))

    def pieces():
        nonlocal done
        run, before = fixed_run(problem.field, scheme, grid, manner), problem.state
        for done, after in islice(each_state(run, scheme, problem.state), MOST_STEPS):
            yield Piece(grid.t[done - 1], grid.t[done], joined(problem.field, after), partial(read, before, after))
            before = after

    def again(time: float) -> State:
        before, after = states_after(problem, scheme, grid, [done - 1, done], manner, solver)
        return inside(before, after, time)

    fun = checked(problem.field.whole, manner.dtype)
    return _ended(problem, fun, t, event_fn, pieces(), None if solver is states_at else again)


def _ended(
    problem: Posed, fun: Callable, t: Tensor, event_fn, pieces: Iterable[Piece], again: Callable[[float], State] | None
):
    """Time and states; with `again`, which finds the state at the event once more, pieces need no gradients."""
    t0, y = float(t[0].detach()), joined(problem.field, problem.state)
    g = combined(problem.called(event_fn), t0, y)
    with torch.set_grad_enabled(torch.is_grad_enabled() and again is None):
        time, inside = first_zero(g, t0, y, pieces)
    if time == t0:  # an event that is already there does not move
        return t[0].detach(), problem.trajectory([problem.state, problem.state])
    end = inside(time) if again is None else joined(problem.field, again(time))
    at_event, y_event = linked(fun, g, time, end)
    return at_event.to(t.dtype), problem.trajectory([problem.state, parted(problem.field, y_event)])


def _span(t: Tensor) -> list[float]:
    if len(t) != 2:
        raise ValueError(f"`t` must be the first time and one that shows the direction for an event, found {len(t)}")
    return numbers_of(t)
