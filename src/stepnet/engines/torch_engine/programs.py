"""Programs of slopes and sums executed on tensors, whatever their device, dtype and shape.

The length h of a step is a number or a tensor without dimensions.  With a number a sum costs one fused operation for
each of its terms; a tensor may be one that nobody has read yet, which graphs, capture and derivatives in time want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.schemes.programs import Program, Slope, Term

Length = float | Tensor
Rows = tuple[Tensor, ...]


def combination(rows: Sequence[Tensor], terms: Sequence[Term], h: Length) -> Tensor:
    """sum_j w_j h^(k_j) row_j."""
    first, *rest = terms
    total = rows[first.row]
    if first[1:] != (1.0, 0):
        total = total * (first.weight * h**first.power)
    for row, weight, power in rest:
        if not isinstance(h, Tensor):
            total = torch.add(total, rows[row], alpha=weight * h**power)
        elif power == 0:
            total = torch.add(total, rows[row], alpha=weight)
        else:
            total = torch.addcmul(total, rows[row], h if power == 1 else h**power, value=weight)
    return total


def nodes_of(program: Program) -> tuple[float, ...]:
    """The different c of its slopes f(t + c h, ...)."""
    return tuple(dict.fromkeys(operation.c for operation in program.operations if isinstance(operation, Slope)))


def execute(
    program: Program, functions: Sequence[Callable], rows: Sequence, times: Mapping[float, Any], h: Length
) -> Rows:
    """The rows of the new state; `times` holds for every node c what the functions take for t + c h."""
    made = list(rows)
    for operation in program.operations:
        if isinstance(operation, Slope):
            made.append(functions[operation.part](times[operation.c], made[operation.row]))
        else:
            made.append(combination(made, operation.terms, h))
    return tuple(made[row] for row in program.outputs)
