"""Programs of slopes and sums executed on tensors, whatever their device, dtype and shape.

The length h of a step is a number or a tensor without dimensions.  With a number a sum costs one fused operation for
each of its terms; a tensor may be one that nobody has read yet, which graphs, capture and derivatives in time want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.schemes.step_program import Slope, StepProgram, Term

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
    """A sum with terms of equal weight, up to sign, put together: plain sums cost less, above all on the way back."""
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
    """Where a slope looks at its function: the time t + c h, and the step whose weights it takes if they are held."""

    c: float
    step: int


class TensorProgram(NamedTuple):
    """A program made ready for tensors: the different nodes of its slopes, and calls and grouped sums."""

    n_rows: int
    nodes: tuple[SlopeNode, ...]
    operations: tuple[SlopeCall | tuple[TermGroup, ...], ...]
    outputs: tuple[int, ...]


def build_tensor_program(program: StepProgram) -> TensorProgram:
    """A program made ready."""
    slopes = [operation for operation in program.operations if isinstance(operation, Slope)]
    nodes = list(dict.fromkeys(SlopeNode(slope.c, slope.step) for slope in slopes))
    operations = tuple(
        SlopeCall(each.part, each.row, nodes.index(SlopeNode(each.c, each.step))) if isinstance(each, Slope)
        else group_terms(each.terms)
        for each in program.operations
    )  # fmt: skip
    return TensorProgram(program.n_rows, tuple(nodes), operations, program.outputs)


def execute(script: TensorProgram, functions: Sequence[Callable], rows: Sequence, times: Sequence, h: Length) -> Rows:
    """The rows of the new state; `times` are what the functions take for t + c h, for all nodes."""
    made = list(rows)
    for operation in script.operations:
        if isinstance(operation, SlopeCall):
            part, row, time = operation
            made.append(functions[part](times[time], made[row]))
        else:
            made.append(sum_groups(made, operation, h))
    return tuple([made[row] for row in script.outputs])
