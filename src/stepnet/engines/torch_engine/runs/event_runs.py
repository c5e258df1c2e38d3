"""Solves that end at an event.

Under a memory policy the event is found first, without gradients, and the steps up to it are then repeated as fixed
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from math import ceil, inf
from typing import Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.events import SolutionPiece, combine, find_first_zero, link
from stepnet.engines.torch_engine.integrators.explicit_rk import StepError, build_interpolant, iterate_accepted_steps
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    EvaluationOptions,
    StateRead,
    build_endless_grid,
    build_fixed_run,
    read_each_state,
    read_numbers,
    read_states_at,
)
from stepnet.engines.torch_engine.integrators.step_control import MAX_STEPS
from stepnet.engines.torch_engine.rhs.tensor_fields import State, join, split, validate_function
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem
from stepnet.engines.torch_engine.runs.adaptive_runs import AdaptiveSolve, Step
from stepnet.engines.torch_engine.runs.fixed_runs import (
    CheckpointedSolver,
    Solver,
    choose_interpolation,
    read_states_after,
)
from stepnet.engines.torch_engine.runs.rng_and_autocast import RunContext


def solve_until_event(
    task: AdaptiveSolve, t: Tensor, event_fn: Callable[..., Any], options: dict[str, Any], solver: Solver
) -> tuple[Tensor, Any]:
    """Time of the event, and the states at t[0] and there; t[1] gives the direction of the search."""
    t0, far = _validate_span(t, options)
    steps = list[Step]()

    def pieces() -> Iterator[SolutionPiece]:
        for step in iterate_accepted_steps(task.fun, task.scheme, task.y, t0, far, task.how):
            steps.append((step.t, step.h))
            yield SolutionPiece(step.t, step.t + step.h, step.y_new, partial(build_interpolant, task.scheme, step))

    def again(time: float) -> State:
        at_event = StateRead(len(steps) - 1, task.reader(steps[-1], [time], far))
        solve = solver if len(steps) > 1 else read_states_at
        (end,) = solve(task.fix_steps(steps, far), task.problem.state, [at_event])
        return end

    return _end_at_event(task.problem, task.fun, t, event_fn, pieces(), _repeat(again, task.problem, solver))


def solve_steps_until_event(
    problem: TensorProblem,
    scheme: Any,
    t: Tensor,
    event_fn: Callable[..., Any],
    options: dict[str, Any],
    evaluation: EvaluationOptions,
    solver: Solver,
) -> tuple[Tensor, Any]:
    """As `solve_until_event` by equal steps, between which the solution is linear or cubic."""
    t0, far = _validate_span(t, options)
    if "step_size" not in options:
        raise ValueError(f"`event_fn` with fixed steps of {scheme.name} needs `step_size` in `options`")
    h = float(options["step_size"])
    n_steps = int(min(options.get("max_num_steps", MAX_STEPS), ceil(min(abs(far - t0) / h, 2.0**53))))
    grid = build_endless_grid(t0, h if far > t0 else -h)
    between, done = choose_interpolation(options), 0
    inside = lambda before, after, time: between(problem, before, after, (grid.t[done - 1], grid.t[done], time))
    read = lambda before, after: lambda time: join(problem.field, inside(before, after, time))

    def pieces() -> Iterator[SolutionPiece]:
        nonlocal done
        run, before = build_fixed_run(problem.field, scheme, grid, evaluation), problem.state
        for done, after in islice(read_each_state(run, scheme, problem.state), n_steps):
            yield SolutionPiece(
                grid.t[done - 1], grid.t[done], join(problem.field, after), partial(read, before, after)
            )
            before = after

    def again(time: float) -> State:
        before, after = read_states_after(problem, scheme, grid, [done - 1, done], evaluation, solver)
        return inside(before, after, time)

    fun = validate_function(problem.field.whole, evaluation.dtype)
    return _end_at_event(problem, fun, t, event_fn, pieces(), _repeat(again, problem, solver))


def _repeat(again: Callable[[float], State], problem: TensorProblem, solver: Solver) -> Callable[[float], State] | None:
    """`again` with the present buffers and random numbers; None if nothing needs to be repeated."""
    if not isinstance(solver, CheckpointedSolver):
        return None
    context = RunContext.capture(problem.state[0].device, solver.modules)

    def repeated(time: float) -> State:
        with context.restore_context():
            return again(time)

    return repeated


def _end_at_event(
    problem: TensorProblem,
    fun: Callable[..., Any],
    t: Tensor,
    event_fn: Callable[..., Any],
    pieces: Iterable[SolutionPiece],
    again: Callable[[float], State] | None,
) -> tuple[Tensor, Any]:
    """Time and states; with `again`, which recomputes the state at the event, pieces need no gradients."""
    t0, y = float(t[0].detach()), join(problem.field, problem.state)
    g = combine(problem.convert_function(event_fn), t0, y)
    with torch.set_grad_enabled(torch.is_grad_enabled() and again is None):
        time, inside = _find_first_zero(g, t0, y, pieces)
    if time == t0:  # the time of an event at t0 is constant
        return t[0].detach(), problem.trajectory([problem.state, problem.state])
    end = inside(time) if again is None else join(problem.field, again(time))
    at_event, y_event = link(fun, g, time, end)
    return at_event.to(t.dtype), problem.trajectory([problem.state, split(problem.field, y_event)])


def _find_first_zero(
    g: Callable[..., Any], t0: float, y: Tensor, pieces: Iterable[SolutionPiece]
) -> tuple[float, Callable[[float], Tensor]]:
    try:
        return find_first_zero(g, t0, y, pieces)
    except StepError as error:
        raise StepError(
            f"`event_fn` had no zero before the steps ended: {error}; check that it changes sign along the "
            "solution, or give a later `t_max` or more `max_num_steps`"
        ) from error


def _validate_span(t: Tensor, options: dict[str, Any]) -> tuple[float, float]:
    """The beginning and the end of the search: `t_max`, or none."""
    if len(t) != 2:
        raise ValueError(
            f"`t` must be the first time and one that shows the direction of the search, found {len(t)} times"
        )
    t0, t1 = read_numbers(t)
    far = float(options.get("t_max", inf if t1 > t0 else -inf))
    if not (far - t0) * (t1 - t0) > 0:
        raise ValueError(f"`t_max` must lie in the direction of the search from {t0}, found {far}")
    return t0, far
