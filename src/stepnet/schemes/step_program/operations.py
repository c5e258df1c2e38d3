"""Operations of a step on rows, and programs of them.

Rows are vectors; the first ones hold the state, and each operation appends a row.  A slope is f(t + c h, row), a sum is
sum_j w_j h^(k_j) row_j, a tamed row is row / (1 + h |row|); implicit stages are solved for their slopes; a step with
noise reads random variables and multiplies a diffusion by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

DRIFT, DIFFUSION, DIFFUSION_DERIVATIVE = range(3)  # parts of a stochastic problem


class Slope(NamedTuple):
    """f_part(t + c h, row); weights held over steps are those of the step `step` after the current one."""

    part: int
    row: int
    c: float
    step: int = 0


class Solve(NamedTuple):
    """sum_i b_i K_i with the slopes K_i = f_part(t + c_i h, row + h sum_j A_ij K_j) of one stage or of coupled ones.

    Its transpose solves u_i = b_i bar + h sum_j A_ji J_j' u_j with the Jacobians J_j at the solved stages; the gradient
    with respect to the row is sum_i J_i' u_i, and those with respect to time and parameters follow likewise.  The
    second half of a state (q, p) has the matrix `A_hat` in place of A, if there is one.  Weights held over steps are
    those of the step `step` after the current one.
    """

    part: int
    row: int
    A: tuple[tuple[float, ...], ...]
    c: tuple[float, ...]
    b: tuple[float, ...] = (1.0,)
    A_hat: tuple[tuple[float, ...], ...] = ()
    step: int = 0


class LinearSolve(NamedTuple):
    """x with (I - gamma h J) x = row + delta h df/dt, where J = df_part/dy and df/dt are those at (t, base).

    Its transpose solves (I - gamma h J)' u = bar; u is the gradient with respect to the row, and the gradient of
    u . (gamma h J x + delta h df/dt) with respect to (t, y, p), x held fixed, is added to those of base, t and p.
    """

    part: int
    base: int
    row: int
    gamma: float
    delta: float = 0.0


class Phi(NamedTuple):
    """sum_m w_m phi_(k_m)(c_m h L) row with the linear part L of the problem; `terms` hold (w, k, c).

    Its transpose has L' in place of L, and h d/dh phi_k(c h L) = phi_(k-1)(c h L) - k phi_k(c h L) for k > 0.
    """

    row: int
    terms: tuple[tuple[float, int, float], ...]


class Term(NamedTuple):
    """weight h^power row."""

    row: int
    weight: float
    power: int = 1


class Sum(NamedTuple):
    """The sum of its terms."""

    terms: tuple[Term, ...]


class Tamed(NamedTuple):
    """row / (1 + h |row|) with the Euclidean norm over all entries of the row.

    Its transpose, with s = |row| and d = 1 + h s, is bar / d - h (bar . row) / (s d^2) row; the second term is zero
    where s = 0.
    """

    row: int


class Noise(NamedTuple):
    """A random variable of the step, by its name in `schemes.stochastic.VARIABLES`: one number for each component.

    With `is_paired` there is one for each pair (i, j) of m components, at i m + j.
    """

    variable: str
    is_paired: bool = False


class Product(NamedTuple):
    """A diffusion times a random variable: elementwise, times one number, or matrix times vector.

    Of the kind "column" it is the column `column` of a matrix (n, m) times the number `entry` of the random variable.
    """

    diffusion: int
    noise: int
    kind: str
    column: int = 0
    entry: int = 0


ELEMENTWISE, SCALAR, MATRIX, COLUMN = "elementwise", "scalar", "matrix", "column"
Operation = Slope | Solve | LinearSolve | Phi | Sum | Tamed | Noise | Product


@dataclass(frozen=True)
class StepProgram:
    """`operations` on `n_rows` rows of state; the new state is in the rows `outputs`, `steps` steps later."""

    n_rows: int
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    steps: int = 1

    @cached_property
    def noise(self) -> tuple[Noise, ...]:
        """The random variables that a step reads."""
        return tuple(operation for operation in self.operations if isinstance(operation, Noise))

    @cached_property
    def n_slopes(self) -> int:
        """Evaluations of right-hand sides."""
        return sum(isinstance(operation, Slope) for operation in self.operations)

    @cached_property
    def linear_maps(self) -> tuple[tuple[tuple[float, int, float], ...], ...]:
        """The terms of the distinct functions of the linear part that a step applies."""
        return tuple(dict.fromkeys(operation.terms for operation in self.operations if isinstance(operation, Phi)))

    @cached_property
    def is_implicit(self) -> bool:
        """Whether a step solves systems of equations."""
        return any(isinstance(operation, (Solve, LinearSolve)) for operation in self.operations)


class SchemeProgram(NamedTuple):
    """The programs of a scheme: `opening` once, then `step` repeatedly.

    `state` are the rows of a program that hold the state of the problem; the others are slopes and earlier steps that a
    step needs, which the opening computes.  `back` inverts a step (up to rounding), None if there is no inverse.
    """

    opening: StepProgram
    step: StepProgram
    state: tuple[int, ...]
    back: StepProgram | None = None
