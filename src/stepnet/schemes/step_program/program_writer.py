"""Programs written operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stepnet.schemes.exponential import PhiTerm
from stepnet.schemes.step_program.operations import (
    COLUMN,
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
from stepnet.schemes.tableau import Butcher


class ProgramWriter:
    """Appends operations; equal ones are shared."""

    def __init__(self, n_rows: int, operations: Iterable[Operation] = ()) -> None:
        self.n_rows = n_rows
        self.operations = list(operations)

    def _row(self, operation: Operation) -> int:
        if operation not in self.operations:
            self.operations.append(operation)
        return self.n_rows + self.operations.index(operation)

    def slope(self, part: int, row: int, c: float, step: int = 0) -> int:
        return self._row(Slope(part, row, float(c), step))

    def solve(
        self, part: int, row: int, A: Any, c: Any, b: Any = (1.0,), A_hat: Any = (), step: int = 0
    ) -> int:  # fmt: skip
        """The row of implicit stages."""
        first, second = (tuple(map(_floats, each)) for each in (A, A_hat))
        return self._row(Solve(part, row, first, _floats(c), _floats(b), second, step))

    def linear_solve(self, part: int, base: int, row: int, gamma: float, delta: float = 0.0) -> int:
        """The row of a linear system with the Jacobian at `base`."""
        return self._row(LinearSolve(part, base, row, float(gamma), float(delta)))

    def phi(self, row: int, terms: Iterable[PhiTerm]) -> int:
        """The row of a function of the linear part times a row."""
        return self._row(Phi(row, tuple((float(term.weight), int(term.k), float(term.c)) for term in terms)))

    def sum(self, terms: Iterable[tuple[Any, ...]]) -> int:
        """The row of a sum; a single row with the weight 1 is that row itself."""
        kept = tuple(Term(row, float(weight), power) for row, weight, power in terms if weight != 0)
        return kept[0].row if len(kept) == 1 and kept[0][1:] == (1.0, 0) else self._row(Sum(kept))

    def add_slopes(self, row: int, slopes: Iterable[int], weights: Iterable[float]) -> int:
        """row + h sum_j weights_j slopes_j."""
        return self.sum([(row, 1.0, 0), *((k, w, 1) for k, w in zip(slopes, weights, strict=False))])

    def noise(self, variable: str, is_paired: bool = False) -> int:
        """The row of a random variable."""
        return self._row(Noise(variable, is_paired))

    def noise_of(self, diffusion: int, variable: str, kind: str, is_paired: bool = False) -> int:
        """The row of a diffusion times a random variable."""
        return self._row(Product(diffusion, self.noise(variable, is_paired), kind))

    def column_of(self, diffusion: int, column: int, noise: Noise, entry: int) -> int:
        """The row of a column of a diffusion times one number of a random variable."""
        return self._row(Product(diffusion, self._row(noise), COLUMN, column, entry))

    def tame(self, row: int) -> int:
        """The row of row / (1 + h |row|)."""
        return self._row(Tamed(row))

    def runge_kutta_step(
        self, table: Butcher, row: int, part: int = 0, clock: float = 0.0, length: float = 1.0, step: int = 0
    ) -> int:
        """One step of the given length (in units of h); stages that nothing depends on are omitted."""
        if np.triu(table.A, 1).any():
            A, c = length * table.A, clock + length * table.c
            return self.add_slopes(row, [self.solve(part, row, A, c, length * table.b, step=step)], [1.0])
        needed = _find_needed_stages(table)
        k: dict[int, int] = {}
        for i in needed:
            stage, c = (
                self.add_slopes(row, k.values(), (length * table.A[i, j] for j in k)),
                clock + table.c[i] * length,
            )
            own = length * table.A[i, i]
            k[i] = self.solve(part, stage, [[own]], [c], step=step) if own else self.slope(part, stage, c, step)
        return self.add_slopes(row, k.values(), (length * table.b[i] for i in k))

    def program(self, outputs: Iterable[int], steps: int = 1) -> StepProgram:
        return StepProgram(self.n_rows, tuple(self.operations), tuple(outputs), steps)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _find_needed_stages(table: Butcher) -> list[int]:
    needed = {i for i in range(len(table.b)) if table.b[i] != 0}
    for i in range(len(table.b) - 1, -1, -1):
        if i in needed:
            needed |= {j for j in range(i) if table.A[i, j] != 0}
    return sorted(needed)


def write_nothing(n_rows: int) -> StepProgram:
    return StepProgram(n_rows, (), tuple(range(n_rows)), 0)
