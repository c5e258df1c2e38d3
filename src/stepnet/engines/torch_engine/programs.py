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

from stepnet.schemes.programs import Program, Slope, Term

Length = float | Tensor
Rows = tuple[Tensor, ...]


class Group(NamedTuple):
    """weight h^power (row_0 + sum of plus - sum of minus)."""

    weight: float
    power: int
    row: int
    plus: tuple[int, ...]
    minus: tuple[int, ...]


@lru_cache(maxsize=1024)
def grouped(terms: tuple[Term, ...]) -> tuple[Group, ...]:
    """A sum with terms of equal weight, up to sign, put together: plain sums cost less, above all on the way back."""
    groups: dict[tuple[float, int], list[Term]] = {}
    for term in terms:
        groups.setdefault((abs(term.weight), term.power), []).append(term)
    return tuple(
        Group(
            first.weight, power, first.row,
            tuple(term.row for term in rest if term.weight == first.weight),
            tuple(term.row for term in rest if term.weight != first.weight),
        )
        for (_, power), (first, *rest) in groups.items()
    )  # fmt: skip


def added(total: Tensor, part: Tensor, weight: float) -> Tensor:
    """total + weight part.

    Inductor (torch 2.13) takes add(x, A @ B, alpha=w) for x + A @ B, so compilers see two operations, which they fuse.
    """
    return total + part * weight if torch.compiler.is_compiling() else total.add(part, alpha=weight)


def summed(rows: Sequence[Tensor], groups: Sequence[Group], h: Length) -> Tensor:
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
            total = added(total, part, weight)
        elif isinstance(h, Tensor):
            total = torch.addcmul(total, part, h if power == 1 else h**power, value=weight)
        else:
            total = added(total, part, weight * h**power)
    return total  # type: ignore[return-value]


def combination(rows: Sequence[Tensor], terms: Sequence[Term], h: Length) -> Tensor:
    """sum_j w_j h^(k_j) row_j."""
    return summed(rows, grouped(tuple(terms)), h)


class Call(NamedTuple):
    """f_part(time, row) at one of the times of a step."""

    part: int
    row: int
    time: int


class Node(NamedTuple):
    """Where a slope looks at its function: the time t + c h, and the step whose weights it takes if they are held."""

    c: float
    step: int


class Script(NamedTuple):
    """A program made ready for tensors: the different nodes of its slopes, and calls and grouped sums."""

    n_rows: int
    nodes: tuple[Node, ...]
    operations: tuple[Call | tuple[Group, ...], ...]
    outputs: tuple[int, ...]


def script_of(program: Program) -> Script:
    """A program made ready."""
    slopes = [operation for operation in program.operations if isinstance(operation, Slope)]
    nodes = list(dict.fromkeys(Node(slope.c, slope.step) for slope in slopes))
    operations = tuple(
        Call(each.part, each.row, nodes.index(Node(each.c, each.step))) if isinstance(each, Slope)
        else grouped(each.terms)
        for each in program.operations
    )  # fmt: skip
    return Script(program.n_rows, tuple(nodes), operations, program.outputs)


def execute(script: Script, functions: Sequence[Callable], rows: Sequence, times: Sequence, h: Length) -> Rows:
    """The rows of the new state; `times` are what the functions take for t + c h, for all nodes."""
    made = list(rows)
    for operation in script.operations:
        if isinstance(operation, Call):
            part, row, time = operation
            made.append(functions[part](times[time], made[row]))
        else:
            made.append(summed(made, operation, h))
    return tuple([made[row] for row in script.outputs])
