"""Solves that end at an event.

Where a memory is chosen the event is found first, without gradients, and then the steps up to it are given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from math import ceil, inf

import torch
from torch import Tensor

from stepnet.engines.torch_engine.events import Piece, combined, first_zero, linked
from stepnet.engines.torch_engine.explicit_rk import StepError, accepted_steps, interpolant
from stepnet.engines.torch_engine.fields import State, checked, joined, parted
from stepnet.engines.torch_engine.fixed import Manner, Reading, each_state, endless_grid, fixed_run, states_at
from stepnet.engines.torch_engine.surroundings import Surroundings
from stepnet.torch.chosen_steps import Chosen, Step
from stepnet.torch.given_steps import InMemory, Solver, between_steps, states_after
from stepnet.torch.options import MAX_STEPS, numbers_of
from stepnet.torch.states import Posed


def until_event(task: Chosen, t: Tensor, event_fn, options: dict, solver: Solver):
    """Time of the event, and the states at t[0] and there; t[1] says in which direction to look."""
    t0, far = _span(t, options)
    steps = list[Step]()

    def pieces():
        for step in accepted_steps(task.fun, task.scheme, task.y, t0, far, task.how):
            steps.append((step.t, step.h))
            yield Piece(step.t, step.t + step.h, step.y_new, partial(interpolant, task.scheme, step))

    def again(time: float) -> State:
        at_event = Reading(len(steps) - 1, task.reader(steps[-1], [time], far))
        solve = solver if len(steps) > 1 else states_at
        (end,) = solve(task.given(steps, far), task.problem.state, [at_event])
        return end

    return _ended(task.problem, task.fun, t, event_fn, pieces(), _repeated(again, task.problem, solver))


def until_event_of_steps(problem: Posed, scheme, t: Tensor, event_fn, options: dict, manner: Manner, solver: Solver):
    """The same by even steps, between which the solution is a line or a cubic."""
    t0, far = _span(t, options)
    if "step_size" not in options:
        raise ValueError(f"`event_fn` with the given steps of {scheme.name} wants `step_size` in `options`; give it")
    h = float(options["step_size"])
    n_steps = int(min(options.get("max_num_steps", MAX_STEPS), ceil(min(abs(far - t0) / h, 2.0**53))))
    grid = endless_grid(t0, h if far > t0 else -h)
    between, done = between_steps(options), 0
    inside = lambda before, after, time: between(problem, before, after, (grid.t[done - 1], grid.t[done], time))
    read = lambda before, after: lambda time: joined(problem.field, inside(before, after, time))

    def pieces():
        nonlocal done
        run, before = fixed_run(problem.field, scheme, grid, manner), problem.state
        for done, after in islice(each_state(run, scheme, problem.state), n_steps):
            yield Piece(grid.t[done - 1], grid.t[done], joined(problem.field, after), partial(read, before, after))
            before = after

    def again(time: float) -> State:
        before, after = states_after(problem, scheme, grid, [done - 1, done], manner, solver)
        return inside(before, after, time)

    fun = checked(problem.field.whole, manner.dtype)
    return _ended(problem, fun, t, event_fn, pieces(), _repeated(again, problem, solver))


def _repeated(again: Callable[[float], State], problem: Posed, solver: Solver) -> Callable[[float], State] | None:
    """`again` from the buffers and random numbers of now; None if nothing has to be found again."""
    if not isinstance(solver, InMemory):
        return None
    surroundings = Surroundings.here(problem.state[0].device, solver.modules)

    def repeated(time: float) -> State:
        with surroundings.restored():
            return again(time)

    return repeated


def _ended(
    problem: Posed, fun: Callable, t: Tensor, event_fn, pieces: Iterable[Piece], again: Callable[[float], State] | None
):
    """Time and states; with `again`, which finds the state at the event once more, pieces need no gradients."""
    t0, y = float(t[0].detach()), joined(problem.field, problem.state)
    g = combined(problem.called(event_fn), t0, y)
    with torch.set_grad_enabled(torch.is_grad_enabled() and again is None):
        time, inside = _first_zero(g, t0, y, pieces)
    if time == t0:  # an event that is already there does not move
        return t[0].detach(), problem.trajectory([problem.state, problem.state])
    end = inside(time) if again is None else joined(problem.field, again(time))
    at_event, y_event = linked(fun, g, time, end)
    return at_event.to(t.dtype), problem.trajectory([problem.state, parted(problem.field, y_event)])


def _first_zero(g: Callable, t0: float, y: Tensor, pieces: Iterable[Piece]):
    try:
        return first_zero(g, t0, y, pieces)
    except StepError as error:
        raise StepError(
            f"`event_fn` was not zero before the steps ended: {error}; see that it changes its sign along the "
            "solution, or give a later `t_max` or more `max_num_steps`"
        ) from error


def _span(t: Tensor, options: dict) -> tuple[float, float]:
    """Where the search begins and where it ends: at `t_max`, or nowhere."""
    if len(t) != 2:
        raise ValueError(f"`t` must be the first time and one that shows the direction for an event, found {len(t)}")
    t0, t1 = numbers_of(t)
    far = float(options.get("t_max", inf if t1 > t0 else -inf))
    if not (far - t0) * (t1 - t0) > 0:
        raise ValueError(f"`t_max` must lie in the direction of the search from {t0}, found {far}")
    return t0, far
