"""Given steps of functions that are recognised as perceptrons.

Eager mode has a node of autograd for a whole run, and compilers see an operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stepnet.engines.torch_engine.blocks import Course, Tape, written
from stepnet.engines.torch_engine.compilation import mark_constant
from stepnet.engines.torch_engine.fields import Single, State
from stepnet.engines.torch_engine.fixed import (
    PLAIN,
    Fixed,
    Manner,
    Reading,
    choreography,
    fixed_run,
    grid_of_numbers,
    itself,
)
from stepnet.engines.torch_engine.gradients import exact
from stepnet.engines.torch_engine.perceptrons import Perceptron, matrix
from stepnet.engines.torch_engine.surroundings import is_transformed
from stepnet.schemes import catalogue
from stepnet.torch.given_steps import InMemory, Solver, states_by_given_steps
from stepnet.torch.options import numbers_of
from stepnet.torch.recognition import layers_of
from stepnet.torch.states import Posed

DTYPES = (torch.float64, torch.float32)
TIMELESS = Manner(is_timeless=True)


def perceptron_of(
    func, problem: Posed, scheme, t: Tensor, options: dict, manner: Manner, solver: Solver
) -> Perceptron | None:
    """The perceptron that `func` is, if nothing but its numbers and their gradients is asked for."""
    is_plain = type(problem.field) is Single and problem.shapes is None and manner == PLAIN and not t.requires_grad
    if not is_plain or "grid_constructor" in options or _is_watched():
        return None
    if torch.compiler.is_compiling() and not is_operator(scheme, options):
        return None
    layers = layers_of(func)
    if layers is None or not _suits(problem.state[0], layers[0], solver):
        return None
    (*others, last), activations = layers
    matrices = [matrix(each.weight, each.bias, False) for each in others]
    return Perceptron(activations, (*matrices, matrix(last.weight, last.bias, True)))


@mark_constant
def _is_watched() -> bool:
    """Whether somebody wants to see the operations themselves."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return is_transformed() or hooks is not None or torch.is_autocast_enabled("cpu")


def _suits(y: Tensor, linear: Sequence[nn.Linear], solver: Solver) -> bool:
    """Whether state and parameters are plain numbers of one kind on the CPU, all of them with a wanted gradient."""
    parameters = [p for layer in linear for p in (layer.weight, layer.bias) if p is not None]
    if type(y) is not Tensor or y.dtype not in DTYPES or y.ndim == 0 or y.numel() == 0:
        return False
    for p in (y, *parameters):
        if p.dtype != y.dtype or p.device.type != "cpu" or p.layout != torch.strided:
            return False
    if isinstance(solver, InMemory) and solver.is_complete:
        wanted = {id(p) for p in solver.parameters}
        if not all(id(p) in wanted for p in parameters if p.requires_grad):
            return False
    widths = [y.shape[-1], *(layer.weight.shape[0] for layer in linear)]
    return widths[-1] == y.shape[-1] and widths[:-1] == [layer.weight.shape[1] for layer in linear]


def states_of_perceptron(field: Perceptron, y: Tensor, scheme, t: Tensor, options: dict, solver: Solver) -> Tensor:
    """States at the times t, (times, *shape); meanwhile samples are columns with ones below."""
    memory = solver.memory if isinstance(solver, InMemory) else "all"

    def solved(run: Fixed, state: State, readings: Sequence[Reading]) -> list[State]:
        with_others = lambda matrices: run._replace(functions=(Perceptron(field.activations, tuple(matrices)),))
        course = Course(with_others(field.matrices), tuple(readings), field.matrices, with_others)
        return exact(course, memory, state)

    rows = y.reshape(-1, y.shape[-1])
    columns = torch.cat((rows.t(), rows.new_ones(1, rows.shape[0])))
    if torch.compiler.is_compiling():
        found, _ = perceptron_steps(columns, list(field.matrices), t, scheme.name, " ".join(field.activations))
    else:
        problem = Posed(Single(field), (columns,))
        states = states_by_given_steps(problem, scheme, t, options, TIMELESS, solved)
        found = torch.stack([state for (state,) in states])
    return found[:, :-1].transpose(1, 2).reshape(t.shape[0], *y.shape)


# ---- an operator for compilers --------------------------------------------------------------------------------------


def is_operator(scheme, options: dict) -> bool:
    """Whether the operator for compilers has these steps: from time to time, by a scheme that remembers none."""
    if torch.compiler.is_exporting() or "step_size" in options:
        return False
    moves = choreography(scheme, Single(None))  # type: ignore[arg-type]
    return moves.step.n_rows == 1 and moves.opening.n_rows == 1


def _course(matrices: list[Tensor], t: Tensor, name: str, activations: str) -> Course:
    field = Perceptron(tuple(activations.split()), tuple(matrices))
    run = fixed_run(Single(field), catalogue.get(name), grid_of_numbers(numbers_of(t)), TIMELESS)
    readings = tuple(Reading(step, itself) for step in range(1, len(t)))
    return Course(run._replace(functions=(field,)), readings, field.matrices)


@torch.library.custom_op("stepnet::perceptron_steps", mutates_args=())
def perceptron_steps(x: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str) -> list[Tensor]:
    """The states at the times t by one step of the named scheme from each to the next, and those that were kept."""
    course = _course(matrices, t, name, activations)
    tape = written(course, (x,), course.first, course.end)
    return [torch.stack([x, *(state for (state,) in tape.found)]), torch.stack([row for (row,) in tape.before])]


@torch.library.custom_op("stepnet::perceptron_steps_back", mutates_args=())
def perceptron_steps_back(
    kept: Tensor, matrices: list[Tensor], t: Tensor, name: str, activations: str, bars: Tensor
) -> list[Tensor]:
    """Gradients of the first state and of the matrices."""
    course, (first, *later) = _course(matrices, t, name, activations), bars.unbind()
    field = Perceptron(tuple(activations.split()), tuple(matrices))
    tape = Tape(field, range(course.first, course.end), [(row,) for row in kept], (kept[-1],), [])
    (x_bar,), _, gradients = tape.pulled(course, (None,), [(bar,) for bar in later])
    return [x_bar + first, *(each.contiguous() for each in gradients if each is not None)]


@perceptron_steps.register_fake
def _(x, matrices, t, name, activations):
    return [x.new_empty(t.shape[0] - i, *x.shape) for i in range(2)]


@perceptron_steps_back.register_fake
def _(kept, matrices, t, name, activations, bars):
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (kept[0], *matrices)]


def _keep(ctx, inputs, output):
    _, matrices, t, ctx.name, ctx.activations = inputs
    ctx.save_for_backward(output[1], t, *matrices)


def _pull(ctx, bars):
    kept, t, *matrices = ctx.saved_tensors
    x_bar, *gradients = perceptron_steps_back(kept, matrices, t, ctx.name, ctx.activations, bars[0])
    return x_bar, gradients, None, None, None


perceptron_steps.register_autograd(_pull, setup_context=_keep)
