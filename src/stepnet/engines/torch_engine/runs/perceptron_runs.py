"""Fixed steps of functions that are recognised as perceptrons.

In eager mode a whole run is one node of autograd; under `torch.compile` it is a custom operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.engines.torch_engine.adjoint.autograd_node import solve_exactly
from stepnet.engines.torch_engine.adjoint.step_blocks import PerceptronTape, TapedRun, record
from stepnet.engines.torch_engine.codegen.compilation import mark_constant
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    PLAIN,
    EvaluationOptions,
    FixedStepRun,
    StateRead,
    build_fixed_run,
    build_grid_of_numbers,
    find_compiled_scheme,
    read_numbers,
    read_state,
)
from stepnet.engines.torch_engine.rhs.perceptron_recognition import find_layers
from stepnet.engines.torch_engine.rhs.perceptrons import Perceptron, build_matrix
from stepnet.engines.torch_engine.rhs.tensor_fields import SingleField, State
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem
from stepnet.engines.torch_engine.runs.fixed_runs import CheckpointedSolver, Solver, solve_fixed_steps
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_transformed
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import is_implicit

DTYPES = (torch.float64, torch.float32)
TIMELESS = EvaluationOptions(is_timeless=True)


def find_perceptron(
    func: Any,
    problem: TensorProblem,
    scheme: Any,
    t: Tensor,
    options: dict[str, Any],
    evaluation: EvaluationOptions,
    solver: Solver,
) -> Perceptron | None:
    """The perceptron that `func` is, if only its values and gradients are needed."""
    is_plain = (
        type(problem.field) is SingleField and problem.shapes is None and evaluation == PLAIN and not t.requires_grad
    )
    if not is_plain or is_implicit(scheme) or "grid_constructor" in options or _is_watched():
        return None
    if torch.compiler.is_compiling() and not is_operator(scheme, options):
        return None
    layers = find_layers(func)
    if layers is None or not _is_suitable(problem.state[0], layers[0], solver):
        return None
    (*others, last), activations = layers
    matrices = [build_matrix(each.weight, each.bias, False) for each in others]
    return Perceptron(activations, (*matrices, build_matrix(last.weight, last.bias, True)))


@mark_constant
def _is_watched() -> bool:
    """Whether transformations, hooks for saved tensors or autocast act on the individual operations."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return is_transformed() or hooks is not None or torch.is_autocast_enabled("cpu")


def _is_suitable(y: Tensor, linear: Sequence[nn.Linear], solver: Solver) -> bool:
    """Whether state and parameters are CPU tensors of one dtype and matching shapes, and no gradient is excluded."""
    parameters = [p for layer in linear for p in (layer.weight, layer.bias) if p is not None]
    if type(y) is not Tensor or y.dtype not in DTYPES or y.ndim == 0 or y.numel() == 0:
        return False
    for p in (y, *parameters):
        if p.dtype != y.dtype or p.device.type != "cpu" or p.layout != torch.strided:
            return False
    if isinstance(solver, CheckpointedSolver) and solver.is_complete:
        wanted = {id(p) for p in solver.parameters}
        if not all(id(p) in wanted for p in parameters if p.requires_grad):
            return False
    widths = [y.shape[-1], *(layer.weight.shape[0] for layer in linear)]
    return widths[-1] == y.shape[-1] and widths[:-1] == [layer.weight.shape[1] for layer in linear]


def solve_perceptron(
    field: Perceptron, y: Tensor, scheme: Any, t: Tensor, options: dict[str, Any], solver: Solver
) -> Tensor:
    """States at the times t, (times, *shape); during the run samples are columns with ones appended."""
    memory = solver.memory if isinstance(solver, CheckpointedSolver) else "all"

    def solved(run: FixedStepRun, state: State, readings: Sequence[StateRead]) -> list[State]:
        with_others = lambda matrices: run._replace(functions=(Perceptron(field.activations, tuple(matrices)),))
        taped = TapedRun(with_others(field.matrices), tuple(readings), field.matrices, with_others)
        return solve_exactly(taped, memory, state)

    rows = y.reshape(-1, y.shape[-1])
    columns = torch.cat((rows.t(), rows.new_ones(1, rows.shape[0])))
    if torch.compiler.is_compiling():
        found, _ = run_perceptron_steps(columns, list(field.matrices), t, scheme.name, " ".join(field.activations))
    else:
        problem = TensorProblem(SingleField(field), (columns,))
        states = solve_fixed_steps(problem, scheme, t, options, TIMELESS, solved)
        found = torch.stack([state for (state,) in states])
    return found[:, :-1].transpose(1, 2).reshape(t.shape[0], *y.shape)


# ---- an operator for compilers --------------------------------------------------------------------------------------


def is_operator(scheme: Any, options: dict[str, Any]) -> bool:
    """Whether the operator for compilers covers these steps: from save time to save time, by a one-step scheme."""
    if torch.compiler.is_exporting() or "step_size" in options:
        return False
    moves = find_compiled_scheme(scheme, SingleField(None))  # type: ignore[arg-type]
    return moves.step.n_rows == 1 and moves.opening.n_rows == 1


def _build_run(matrices: list[Tensor], t: Tensor, name: str, activations: str) -> TapedRun:
    field = Perceptron(tuple(activations.split()), tuple(matrices))
    run = build_fixed_run(SingleField(field), catalogue.get(name), build_grid_of_numbers(read_numbers(t)), TIMELESS)
    readings = tuple(StateRead(step, read_state) for step in range(1, len(t)))
    return TapedRun(run._replace(functions=(field,)), readings, field.matrices)


@torch.library.custom_op("stepnet::perceptron_steps", mutates_args=())
def run_perceptron_steps(x: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str) -> list[Tensor]:
    """The states at the times t, with one step of the named scheme between consecutive times, and the states kept."""
    taped = _build_run(matrices, t, name, activations)
    tape = record(taped, (x,), taped.first, taped.end)
    return [torch.stack([x, *(state for (state,) in tape.found)]), torch.stack([row for (row,) in tape.before])]


@torch.library.custom_op("stepnet::perceptron_steps_back", mutates_args=())
def pull_back_perceptron_steps(
    kept: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str, bars: Tensor
) -> list[Tensor]:
    """Gradients of the first state and of the matrices."""
    taped, (first, *later) = _build_run(matrices, t, name, activations), bars.unbind()
    field = Perceptron(tuple(activations.split()), tuple(matrices))
    tape = PerceptronTape(field, range(taped.first, taped.end), [(row,) for row in kept], (kept[-1],), [])
    (x_bar,), _, gradients = tape.pull_back(taped, (None,), [(bar,) for bar in later])
    return [x_bar + first, *(each.contiguous() for each in gradients if each is not None)]


@run_perceptron_steps.register_fake
def _(x: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str) -> list[Tensor]:
    return [x.new_empty(t.shape[0] - i, *x.shape) for i in range(2)]


@pull_back_perceptron_steps.register_fake
def _(kept: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str, bars: Tensor) -> list[Tensor]:
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (kept[0], *matrices)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, matrices, t, ctx.name, ctx.activations = inputs
    ctx.save_for_backward(output[1], t, *matrices)


def _pull(ctx: Any, bars: Any) -> tuple[Any, ...]:
    kept, t, *matrices = ctx.saved_tensors
    x_bar, *gradients = pull_back_perceptron_steps(kept, matrices, t, ctx.name, ctx.activations, bars[0])
    return x_bar, gradients, None, None, None


run_perceptron_steps.register_autograd(_pull, setup_context=_keep)
