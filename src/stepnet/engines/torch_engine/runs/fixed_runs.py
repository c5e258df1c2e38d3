"""States at save times by fixed steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.checkpoints.budget import Memory
from stepnet.engines.torch_engine.adjoint.autograd_node import solve_exactly, solve_exactly_for_all
from stepnet.engines.torch_engine.adjoint.step_blocks import TapedRun
from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.integrators.explicit_rk import evaluate_slope
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    EvaluationOptions,
    FixedStepRun,
    StateRead,
    StepGrid,
    build_even_grid,
    build_fixed_run,
    build_grid_of_numbers,
    build_grid_of_tensor,
    read_numbers,
    read_state,
    read_states_at,
    split_at_opening,
)
from stepnet.engines.torch_engine.rhs.tensor_fields import State, join, split, validate_function
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem
from stepnet.schemes.capabilities import takes_uneven_steps

EVEN = 1e-5  # relative difference of step lengths that float32 times can cause
Solver = Callable[[FixedStepRun, State, Sequence[StateRead]], list[State]]


@dataclass(frozen=True)
class CheckpointedSolver:
    """A solver with exact gradients of the state and of these parameters, under a memory policy.

    Unless the list of parameters is complete, other tensors that the functions depend on are searched for.  `modules`
    have the buffers that the functions change.
    """

    parameters: tuple[Tensor, ...]
    memory: Memory
    modules: tuple[torch.nn.Module, ...] = ()
    is_complete: bool = True

    def __call__(self, run: FixedStepRun, state: State, readings: Sequence[StateRead]) -> list[State]:
        taped = TapedRun(run, tuple(readings), self.parameters, modules=self.modules)
        return (solve_exactly if self.is_complete else solve_exactly_for_all)(taped, self.memory, state)


def solve_fixed_steps(
    problem: TensorProblem,
    scheme: Any,
    t: Tensor,
    options: dict[str, Any],
    evaluation: EvaluationOptions,
    solver: Solver,
) -> list[State]:
    """States at the times t."""
    constructed = _construct_grid(problem, t, options)
    if constructed is t and "step_size" not in options:
        real = problem.state[0].real.dtype
        grid = build_grid_of_numbers(read_numbers(t)) if is_readable(t) else build_grid_of_tensor(t.to(real))
        _require_even(scheme, grid)
        return read_states_after(problem, scheme, grid, range(len(t)), evaluation, solver)
    if t.requires_grad:
        raise ValueError(
            "`t` can require a gradient only if each step goes from one time to the next; leave out `step_size`"
        )
    times = read_numbers(t)
    nodes = build_even_grid(times, options["step_size"]) if "step_size" in options else read_numbers(constructed)
    if nodes[0] != times[0] or nodes[-1] != times[-1]:
        raise ValueError(f"`grid_constructor` must give times from {times[0]} to {times[-1]}, found {nodes[:6]}")
    _require_even(scheme, build_grid_of_numbers(nodes))
    between, grid = choose_interpolation(options), build_grid_of_numbers(nodes)
    return read_between_nodes(
        nodes, times, lambda steps: read_states_after(problem, scheme, grid, steps, evaluation, solver),
        lambda *states_and_times: between(problem, *states_and_times),
    )  # fmt: skip


def read_between_nodes(
    nodes: Sequence[float],
    times: Sequence[float],
    read_after: Callable[[Sequence[int]], list[State]],
    between: Callable[[State, State, tuple[float, float, float]], State],
) -> list[State]:
    """States at times from those at the nodes around them, by an interpolation where a time is not a node.

    `read_after` returns the states after some numbers of steps, ascending.
    """
    ends = _find_nodes(len(nodes), *nodes, *times)
    wanted = sorted({*ends, *(i - 1 for i, time in zip(ends, times, strict=True) if nodes[i] != time)})
    found = dict(zip(wanted, read_after(wanted), strict=True))
    return [
        found[i] if nodes[i] == time else between(found[i - 1], found[i], (nodes[i - 1], nodes[i], time))
        for i, time in zip(ends, times, strict=True)
    ]


@build_from_constants
def _find_nodes(n: int, *nodes_and_times: float) -> list[int]:
    """The first of n nodes that is not before each time."""
    nodes, times = nodes_and_times[:n], nodes_and_times[n:]
    sign = 1.0 if nodes[-1] > nodes[0] else -1.0
    ordered = [sign * node for node in nodes]
    return [bisect_left(ordered, sign * time) for time in times]


def read_states_after(
    problem: TensorProblem,
    scheme: Any,
    grid: StepGrid,
    steps: Sequence[int],
    evaluation: EvaluationOptions,
    solver: Solver,
) -> list[State]:
    """States after these steps; those inside the starting procedure of a multistep scheme come from a separate run."""
    if steps[0] == 0:
        return [problem.state, *read_states_after(problem, scheme, grid, steps[1:], evaluation, solver)]
    run = build_fixed_run(problem.field, scheme, grid, evaluation)
    starting, early, late = split_at_opening(run, scheme, [StateRead(step, read_state) for step in steps])
    first = read_states_at(starting, problem.state, early) if early else []
    return [*first, *(solver(run, problem.state, late) if late else [])]


def is_readable(t: Tensor) -> bool:
    """Whether times may be read as numbers: they are on the host, and neither differentiated nor traced."""
    return type(t) is Tensor and t.device.type == "cpu" and not (torch.compiler.is_compiling() or t.requires_grad)


def _construct_grid(problem: TensorProblem, t: Tensor, options: dict[str, Any]) -> Tensor:
    """The times at which steps end: t itself, unless `options` construct them."""
    if "grid_constructor" not in options:
        return t
    y = join(problem.field, problem.state)
    given = t.to(y.device)
    nodes = options["grid_constructor"](problem.field.whole, y, given)
    return t if nodes is given else nodes


def _require_even(scheme: Any, grid: StepGrid) -> None:
    if not takes_uneven_steps(scheme) and not isinstance(grid.h[0], Tensor):
        lengths = [abs(h) for h in grid.h]
        low, high = min(lengths), max(lengths)
        if high - low > EVEN * high:
            raise ValueError(f"{scheme.name} is a scheme for equal steps, found steps from {low} to {high}")


# ---- between steps --------------------------------------------------------------------------------------------------


def choose_interpolation(options: dict[str, Any]) -> Callable[..., State]:
    """The interpolation between fixed steps."""
    if options.get("interp", "linear") == "linear":
        return lambda problem, *states_and_times: interpolate_linear(*states_and_times)
    return _interpolate_cubic


def interpolate_linear(before: State, after: State, times: tuple[float, float, float]) -> State:
    """The straight line between two states, at the last of (start, end, t)."""
    start, end, t = times
    theta = (t - start) / (end - start)
    return tuple(torch.lerp(a, b, theta) for a, b in zip(before, after, strict=True))


def _interpolate_cubic(problem: TensorProblem, before: State, after: State, times: tuple[float, float, float]) -> State:
    """The cubic Hermite polynomial with the states and slopes at both ends."""
    start, end, t = times
    h, x = end - start, (t - start) / (end - start)
    a, b = join(problem.field, before), join(problem.field, after)
    slope = evaluate_slope(validate_function(problem.field.whole), a)
    k = h * (x * (1 - x) ** 2 * slope(start, a) - x**2 * (1 - x) * slope(end, b))
    return split(problem.field, (1 - x) ** 2 * (1 + 2 * x) * a + x**2 * (3 - 2 * x) * b + k)
