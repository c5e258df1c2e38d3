"""Step programs on rows that are contiguous in memory, so that a sum is one matrix product.

The transposed program, run backward, consists of pullbacks and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.step_program import (
    LinearSolveCall,
    NoiseRead,
    SlopeCall,
    SolveCall,
    TensorOperation,
    TensorProgram,
    TermGroup,
)
from stepnet.schemes.step_program import Product, Tamed, Term

LENGTHS = 64  # number of step lengths whose weights are cached; uniform grids have a few, which differ in the last bit
Terms = tuple[Term, ...]


class RowFormula(NamedTuple):
    """A new row: a sum of the rows above, or a function of this sum."""

    terms: Terms
    is_called: bool


class MatrixProgram(NamedTuple):
    """A program: a number of given rows, lines that each add a row, and results that are sums of rows."""

    n_given: int
    lines: tuple[RowFormula, ...]
    results: tuple[Terms, ...]

    @property
    def n_calls(self) -> int:
        return sum(line.is_called for line in self.lines)


def _return_input(row: int) -> Terms:
    return (Term(row, 1.0, 0),)


def _list_terms(groups: Sequence[TermGroup]) -> Terms:
    return tuple(
        Term(row, sign * group.weight, group.power)
        for group in groups
        for sign, rows in ((1.0, (group.row, *group.plus)), (-1.0, group.minus))
        for row in rows
    )


def forward(script: TensorProgram) -> MatrixProgram:
    """The program of a script."""
    lines = tuple(_write_line(each) for each in script.operations)
    return MatrixProgram(script.n_rows, lines, tuple(_return_input(row) for row in script.outputs))


def _write_line(operation: TensorOperation) -> RowFormula:
    if isinstance(operation, SlopeCall):
        return RowFormula(_return_input(operation.row), True)
    if isinstance(operation, (NoiseRead, Product, Tamed)):
        raise TypeError("programs with noise are not run as matrices")
    if isinstance(operation, (SolveCall, LinearSolveCall)):
        raise TypeError("programs with implicit stages are not run as matrices")
    return RowFormula(_list_terms(operation), False)  # type: ignore[arg-type]


def stages(script: TensorProgram) -> MatrixProgram:
    """A script up to its last call, without results."""
    program = forward(script)
    end = max((place for place, line in enumerate(program.lines, 1) if line.is_called), default=0)
    return program._replace(lines=program.lines[:end], results=())


def backward(script: TensorProgram) -> MatrixProgram:
    """From the gradients of the results of a script to those of its given rows; pulls back calls in reverse order."""
    program, lines = forward(script), list[RowFormula]()
    users: list[Terms] = [()] * (program.n_given + len(program.lines))

    def use(row: int, term: Term) -> None:
        users[row] = (*users[row], term)

    for place, result in enumerate(program.results):
        use(result[0].row, Term(place, 1.0, 0))
    for row in range(len(users) - 1, program.n_given - 1, -1):
        line, bar = program.lines[row - program.n_given], users[row]
        place = bar[0].row
        if line.is_called or bar != _return_input(place):
            place = len(program.results) + len(lines)
            lines.append(RowFormula(bar, line.is_called))
        for source, weight, power in line.terms:
            use(source, Term(place, weight, power))
    return MatrixProgram(len(program.results), tuple(lines), tuple(users[: program.n_given]))


class RowMatrix:
    """The rows of a program, shaped like a tensor, on which it runs repeatedly."""

    def __init__(self, program: MatrixProgram, like: Tensor):
        n = program.n_given + len(program.lines)
        self.program, self.rows = program, like.new_zeros(n + 1, like.numel())  # the last one is for temporary sums
        self.row, self.seen = self.rows.unbind(), self.rows.view(-1, *like.shape).unbind()
        self.sums: dict[float, list[tuple[Tensor, Tensor] | None]] = {}

    def run(
        self, given: Sequence[Tensor | None], h: float, call: Callable[[Tensor, Tensor], object]
    ) -> list[Tensor | None]:
        """The results, None for an empty sum; `call(x, out)` writes the function of x to `out`."""
        (n, lines, results), row, seen = self.program, self.row, self.seen
        sums = self._sums(h)
        for place, x in enumerate(given):
            if x is not None:
                seen[place].copy_(x)
        for place, (line, product) in enumerate(zip(lines, sums, strict=False), n):
            if product is not None:
                torch.mv(*product, out=row[-1 if line.is_called else place])
            if line.is_called:
                call(seen[line.terms[0].row if product is None else -1], seen[place])
        found: list[Tensor | None] = []
        for terms, product in zip(results, sums[len(lines) :], strict=True):
            if product is not None:
                found.append(torch.mv(*product).view_as(seen[0]))
            else:
                found.append(seen[terms[0].row].clone() if terms else None)
        return found

    def _sums(self, h: float) -> list[tuple[Tensor, Tensor] | None]:
        """For every sum, the rows above it and their weights, whose product it is; None if the sum is a single row."""
        if h in self.sums:
            return self.sums[h]
        if len(self.sums) == LENGTHS:
            self.sums.clear()
        sums = [*(line.terms for line in self.program.lines), *self.program.results]
        self.sums[h] = [
            None if not terms or terms == _return_input(terms[0].row) else self._product(terms, h) for terms in sums
        ]
        return self.sums[h]

    def _product(self, terms: Terms, h: float) -> tuple[Tensor, Tensor]:
        weights = [0.0] * (1 + max(term.row for term in terms))
        for row, weight, power in terms:
            weights[row] += weight * h**power
        return self.rows[: len(weights)].t(), self.rows.new_tensor(weights)
