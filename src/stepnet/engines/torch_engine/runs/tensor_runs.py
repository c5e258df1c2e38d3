"""One run on tensors: by fixed or by adaptive steps, to the last save time or to an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from stepnet.engines.torch_engine.integrators.fixed_steps import (
    PLAIN,
    EvaluationOptions,
    FixedStepRun,
    build_fixed_run,
    build_grid_of_tensor,
    read_numbers,
    read_states_at,
)
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.engines.torch_engine.rhs.tensor_fields import SingleField, State, join, split, validate_function
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem
from stepnet.engines.torch_engine.runs.adaptive_runs import AdaptiveSolve, solve_adaptive_steps
from stepnet.engines.torch_engine.runs.event_runs import solve_steps_until_event, solve_until_event
from stepnet.engines.torch_engine.runs.fixed_runs import Solver, solve_fixed_steps
from stepnet.engines.torch_engine.runs.perceptron_runs import find_perceptron, solve_perceptron


class TensorPlan(NamedTuple):
    """Save times t, of which the first is the initial time; step control, and how the run is differentiated.

    Steps are adaptive with `how`; without it they are fixed, as `options` say (`step_size`, `grid_constructor`,
    `interp`), from save time to save time by default.  With `event`, a function of (t, state), the run ends at its
    first zero, and t[1] only gives the direction.
    """

    t: Tensor
    how: ControlSettings | None = None
    evaluation: EvaluationOptions = PLAIN
    options: dict[str, Any] = {}  # noqa: RUF012  never modified
    event: Callable[..., Any] | None = None
    solver: Solver = read_states_at


def run(problem: TensorProblem, scheme: Any, plan: TensorPlan) -> Any:
    """The states at the save times, in the user's form; with an event, preceded by its time."""
    return _run_fixed(problem, scheme, plan) if plan.how is None else _run_adaptive(problem, scheme, plan, plan.how)


def linearise(problem: TensorProblem, scheme: Any, plan: TensorPlan) -> FixedStepRun:
    """The steps of a scheme from save time to save time, each of which autograd differentiates."""
    return build_fixed_run(problem.field, scheme, build_grid_of_tensor(plan.t), plan.evaluation)


def _run_fixed(problem: TensorProblem, scheme: Any, plan: TensorPlan) -> Any:
    t, _, evaluation, options, event, solver = plan
    if event is not None:
        return solve_steps_until_event(_begin(problem, t), scheme, t, event, options, evaluation, solver)
    function = problem.field.fun if isinstance(problem.field, SingleField) else None
    field = find_perceptron(function, problem, scheme, t, options, evaluation, solver)
    if field is not None:
        return solve_perceptron(field, problem.state[0], scheme, t, options, solver)
    return problem.trajectory(solve_fixed_steps(problem, scheme, t, options, evaluation, solver))


def _run_adaptive(problem: TensorProblem, scheme: Any, plan: TensorPlan, how: ControlSettings) -> Any:
    t, _, evaluation, options, event, solver = plan
    task = AdaptiveSolve(_begin(problem, t), scheme, how, evaluation)
    if event is not None:
        return solve_until_event(task, t, event, options, solver)
    times = read_numbers(t)
    _, *later = solve_adaptive_steps(task._replace(how=how._replace(marks=tuple(times))), times, solver)
    ends = [_shift(problem, state, time, 1.0) for state, time in zip(later, t[1:], strict=True)]
    return problem.trajectory([problem.state, *ends])


def _begin(problem: TensorProblem, t: Tensor) -> TensorProblem:
    return replace(problem, state=_shift(problem, problem.state, t[0], -1.0))


def _shift(problem: TensorProblem, state: State, t: Tensor, sign: float) -> State:
    """Attach the derivative of the solution with respect to t, if t requires a gradient: steps use plain numbers."""
    if not t.requires_grad:
        return state
    y = join(problem.field, state)
    return split(
        problem.field,
        y + sign * validate_function(problem.field.whole)(t.detach().to(y.real.dtype), y) * (t - t.detach()),
    )
