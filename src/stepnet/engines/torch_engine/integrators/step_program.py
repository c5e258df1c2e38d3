"""Step programs executed on tensors of any device, dtype and shape.

The length h of a step is a number or a scalar tensor.  With a number, a sum costs one fused operation per term; a
tensor need not be read, which graph capture and derivatives with respect to time require.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.implicit_stages import TO_ROUNDING, NewtonSettings, StepSystems
from stepnet.schemes.step_program import (
    COLUMN,
    MATRIX,
    LinearSolve,
    Noise,
    Operation,
    Phi,
    Product,
    Slope,
    Solve,
    StepProgram,
    Sum,
    Tamed,
    Term,
)

Length = float | Tensor
Rows = tuple[Tensor, ...]


class TermGroup(NamedTuple):
    """weight h^power (row_0 + sum of plus - sum of minus)."""

    weight: float
    power: int
    row: int
    plus: tuple[int, ...]
    minus: tuple[int, ...]


@lru_cache(maxsize=1024)
def group_terms(terms: tuple[Term, ...]) -> tuple[TermGroup, ...]:
    """Combine terms of equal weight up to sign: plain sums cost less, especially in the reverse sweep."""
    groups: dict[tuple[float, int], list[Term]] = {}
    for term in terms:
        groups.setdefault((abs(term.weight), term.power), []).append(term)
    return tuple(
        TermGroup(
            first.weight, power, first.row,
            tuple(term.row for term in rest if term.weight == first.weight),
            tuple(term.row for term in rest if term.weight != first.weight),
        )
        for (_, power), (first, *rest) in groups.items()
    )  # fmt: skip


def add(total: Tensor, part: Tensor, weight: float) -> Tensor:
    """total + weight part.

    Inductor (torch 2.13) takes add(x, A @ B, alpha=w) for x + A @ B, so compilers see two operations, which they fuse.
    """
    return total + part * weight if torch.compiler.is_compiling() else total.add(part, alpha=weight)


def sum_groups(rows: Sequence[Tensor], groups: Sequence[TermGroup], h: Length) -> Tensor:
    """The sum of the groups."""
    total: Tensor | None = None
    for weight, power, row, plus, minus in groups:
        part = rows[row]
        for other in plus:
            part = part.add(rows[other])
        for other in minus:
            part = part.sub(rows[other])
        if total is None:
            total = part if power == 0 and weight == 1.0 else part * (weight * h**power)
        elif power == 0:
            total = add(total, part, weight)
        elif isinstance(h, Tensor):
            total = torch.addcmul(total, part, h if power == 1 else h**power, value=weight)
        else:
            total = add(total, part, weight * h**power)
    return total  # type: ignore[return-value]


def combine(rows: Sequence[Tensor], terms: Sequence[Term], h: Length) -> Tensor:
    """sum_j w_j h^(k_j) row_j."""
    return sum_groups(rows, group_terms(tuple(terms)), h)


class SlopeCall(NamedTuple):
    """f_part(time, row) at one of the times of a step."""

    part: int
    row: int
    time: int


class SlopeNode(NamedTuple):
    """Where a slope is evaluated: the time t + c h, and the step whose weights it takes if they are held."""

    c: float
    step: int


class NoiseRead(NamedTuple):
    """The random variable with this number among those of a step."""

    number: int


class SolveCall(NamedTuple):
    """Implicit stages at some of the times of a step."""

    operation: Solve
    times: tuple[int, ...]


class LinearSolveCall(NamedTuple):
    """A linear system with the Jacobian at one of the times of a step."""

    operation: LinearSolve
    time: int


TensorOperation = SlopeCall | SolveCall | LinearSolveCall | NoiseRead | Product | Tamed | Phi | tuple[TermGroup, ...]


class TensorProgram(NamedTuple):
    """A step program prepared for tensors: the distinct nodes of its slopes, its calls and its grouped sums.

    `noise` are the random variables that it reads.
    """

    n_rows: int
    nodes: tuple[SlopeNode, ...]
    operations: tuple[TensorOperation, ...]
    outputs: tuple[int, ...]
    noise: tuple[Noise, ...] = ()


def build_tensor_program(program: StepProgram) -> TensorProgram:
    """Prepare a step program for tensors."""
    nodes = list(dict.fromkeys(node for operation in program.operations for node in _list_nodes(operation)))

    def prepare(each: Operation) -> TensorOperation:
        match each:
            case Slope():
                return SlopeCall(each.part, each.row, nodes.index(SlopeNode(each.c, each.step)))
            case Solve():
                return SolveCall(each, tuple(map(nodes.index, _list_nodes(each))))
            case LinearSolve():
                return LinearSolveCall(each, nodes.index(SlopeNode(0.0, 0)))
            case Sum():
                return group_terms(each.terms)
            case Noise():
                return NoiseRead(program.noise.index(each))
            case Product() | Tamed() | Phi():
                return each

    operations = tuple(map(prepare, program.operations))
    return TensorProgram(program.n_rows, tuple(nodes), operations, program.outputs, program.noise)


def _list_nodes(operation: Operation) -> list[SlopeNode]:
    """Where an operation evaluates right-hand sides."""
    match operation:
        case Slope():
            return [SlopeNode(operation.c, operation.step)]
        case Solve():
            return [SlopeNode(c, operation.step) for c in operation.c]
        case LinearSolve():
            return [SlopeNode(0.0, 0)]
    return []


def multiply_noise(diffusion: Tensor | Callable[[Tensor], Tensor], noise: Tensor, product: Product) -> Tensor:
    """A diffusion times a random variable, for a batch of samples: (batch, n) or (batch, n, m), and (batch, m).

    A diffusion that is available only through products is a function of the vector that it multiplies.
    """
    if product.kind == COLUMN:
        if not isinstance(diffusion, Tensor):
            raise TypeError("this scheme needs single columns of the diffusion: define `g`, not only `g_prod`")
        return diffusion[..., product.column] * noise[..., product.entry, None]
    if not isinstance(diffusion, Tensor):
        return diffusion(noise)
    return torch.einsum("...nm,...m->...n", diffusion, noise) if product.kind == MATRIX else diffusion * noise


def tame(row: Tensor, h: Length) -> Tensor:
    """row / (1 + h |row|), sample by sample."""
    return row / (1.0 + h * torch.linalg.vector_norm(row, dim=-1, keepdim=True))


def execute(
    script: TensorProgram,
    functions: Sequence[Callable[..., Tensor]],
    rows: Sequence[Tensor],
    times: Sequence[Any],
    h: Length,
    noise: Sequence[Tensor] = (),
    newton: NewtonSettings = TO_ROUNDING,
) -> Rows:
    """The rows of the new state; `times` are what the functions take for t + c h, for all nodes.

    `noise` holds the random variables of the step, (batch, components) each, in the order of `StepProgram.noise`;
    `newton` holds the convergence criteria of implicit stages.
    """
    made, systems = list(rows), StepSystems(functions, h, newton)
    for operation in script.operations:
        if isinstance(operation, SlopeCall):
            part, row, time = operation
            made.append(functions[part](times[time], made[row]))
        elif isinstance(operation, SolveCall):
            made.append(systems.solve(operation.operation, [times[i] for i in operation.times], made))
        elif isinstance(operation, LinearSolveCall):
            made.append(systems.solve_linear(operation.operation, times[operation.time], made))
        elif isinstance(operation, NoiseRead):
            made.append(noise[operation.number])
        elif isinstance(operation, Phi):
            linear: Any = functions[-1]
            made.append(linear.apply(operation.terms, h, made[operation.row]))
        elif isinstance(operation, Product):
            made.append(multiply_noise(made[operation.diffusion], made[operation.noise], operation))
        elif isinstance(operation, Tamed):
            made.append(tame(made[operation.row], h))
        else:
            made.append(sum_groups(made, operation, h))
    return tuple([made[row] for row in script.outputs])
