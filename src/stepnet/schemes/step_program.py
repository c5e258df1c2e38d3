"""Steps of schemes as straight-line programs: evaluations of parts, implicit stages, and linear combinations of rows.

Generated code and derivatives depend on a scheme only through its program.  Rows are vectors; the first ones hold the
state, and each operation appends a row.  A slope is f(t + c h, row), a sum is sum_j w_j h^(k_j) row_j, a tamed row is
row / (1 + h |row|); implicit stages are solved for their slopes; a step with noise reads random variables and
multiplies a diffusion by them.  Run in reverse, with each operation transposed, a program is the exact adjoint of its
step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.explicit import DOP853, RK4, VERNER65
from stepnet.schemes.exponential import ExponentialRK, PhiTerm
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.stochastic import PAIRED, ReversibleHeun, StochasticRK, TamedEuler
from stepnet.schemes.tableau import Butcher, ExplicitRK
from stepnet.schemes.weak import WeakRK

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


@lru_cache(maxsize=256)
def build_scheme_program(scheme: Any, n_parts: int, is_sum: bool, is_second_order: bool) -> SchemeProgram:
    """Build the programs of a scheme for a problem of one part, partitioned (q, p), or a sum of parts."""
    if isinstance(scheme, Multistep):
        return _write_multistep(scheme)
    if isinstance(scheme, SemiImplicitBDF):
        return _write_semi_implicit(scheme)
    if isinstance(scheme, FixedBDF):
        return _write_fixed_bdf(scheme)
    if isinstance(scheme, Rosenbrock):
        return SchemeProgram(_write_nothing(1), _write_rosenbrock(scheme), (0,))
    if isinstance(scheme, ExponentialRK):
        return SchemeProgram(_write_nothing(1), _write_exponential(scheme), (0,))
    if isinstance(scheme, AdditiveRK):
        step = _write_additive(scheme) if is_sum else _write_runge_kutta(scheme.implicit_table)
        return SchemeProgram(_write_nothing(1), step, (0,))
    if isinstance(scheme, PartitionedRK):
        return SchemeProgram(_write_nothing(1), _write_pair(scheme), (0,))
    if not isinstance(scheme, Splitting):
        return SchemeProgram(_write_nothing(1), _write_runge_kutta(scheme.butcher), (0,))
    if is_sum:
        return SchemeProgram(_write_nothing(1), _write_sum_of_flows(scheme, n_parts), (0,))
    return _write_drifts_and_kicks(scheme, is_second_order)


@lru_cache(maxsize=256)
def build_held_program(scheme: Any, is_second_order: bool) -> SchemeProgram:
    """Build the programs for weights that are constant over each step and jump between steps.

    A one-step scheme does not reuse a slope of the previous step, which was evaluated with other weights.
    """
    if isinstance(scheme, Splitting):
        return _write_drifts_and_kicks(scheme, is_second_order, can_carry=False)
    return build_scheme_program(scheme, 1, False, is_second_order)


def find_inner_scheme(order: int) -> ExplicitRK:
    """The Runge-Kutta scheme for the flows of a sum, at least as accurate as the splitting."""
    return RK4 if order <= 4 else VERNER65 if order <= 6 else DOP853


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

    def moved(self, row: int, slopes: Iterable[int], weights: Iterable[float]) -> int:
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

    def tamed(self, row: int) -> int:
        """The row of row / (1 + h |row|)."""
        return self._row(Tamed(row))

    def runge_kutta_step(
        self, table: Butcher, row: int, part: int = 0, clock: float = 0.0, length: float = 1.0, step: int = 0
    ) -> int:
        """One step of the given length (in units of h); stages that nothing depends on are omitted."""
        if np.triu(table.A, 1).any():
            A, c = length * table.A, clock + length * table.c
            return self.moved(row, [self.solve(part, row, A, c, length * table.b, step=step)], [1.0])
        needed = _find_needed_stages(table)
        k: dict[int, int] = {}
        for i in needed:
            stage, c = self.moved(row, k.values(), (length * table.A[i, j] for j in k)), clock + table.c[i] * length
            own = length * table.A[i, i]
            k[i] = self.solve(part, stage, [[own]], [c], step=step) if own else self.slope(part, stage, c, step)
        return self.moved(row, k.values(), (length * table.b[i] for i in k))

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


def _write_nothing(n_rows: int) -> StepProgram:
    return StepProgram(n_rows, (), tuple(range(n_rows)), 0)


def _write_runge_kutta(table: Butcher) -> StepProgram:
    writer = ProgramWriter(1)
    return writer.program([writer.runge_kutta_step(table, 0)])


def _write_pair(scheme: PartitionedRK) -> StepProgram:
    """All stages of (q, p) together, on one row."""
    writer = ProgramWriter(1)
    return writer.program([writer.moved(0, [writer.solve(0, 0, scheme.A, scheme.c, scheme.b, scheme.A_hat)], [1.0])])


def _write_rosenbrock(scheme: Rosenbrock) -> StepProgram:
    """In the transformed form, with stages v = u / h."""
    writer, arrays, form, gamma = ProgramWriter(1), scheme.arrays, scheme.transformed, scheme.gamma
    v: list[int] = []
    for i in range(len(scheme.b)):
        slope = writer.slope(0, writer.moved(0, v, form.a[i]), arrays.c[i])
        row = writer.sum([(slope, gamma, 0), *((u, gamma * C, 0) for u, C in zip(v, form.C[i], strict=False))])
        v.append(writer.linear_solve(0, 0, row, gamma, gamma * arrays.d[i]))
    return writer.program([writer.moved(0, v, form.m)])


def _write_additive(scheme: AdditiveRK) -> StepProgram:
    writer = ProgramWriter(1)
    return writer.program([_write_additive_step(writer, scheme, 0)])


def _write_additive_step(writer: ProgramWriter, scheme: AdditiveRK, row: int, clock: int = 0) -> int:
    """Stage by stage: the part 1 of the problem is implicit, then the part 0 is evaluated at the stage."""
    explicit, implicit = scheme.explicit_table, scheme.implicit_table
    f: list[int] = []
    g: list[int] = []

    def move(to_f: Any, to_g: Any) -> int:
        return writer.moved(row, (*f, *g), (*to_f[: len(f)], *to_g[: len(g)]))

    for i, c in enumerate(clock + implicit.c):
        own, base = implicit.A[i, i], move(explicit.A[i], implicit.A[i])
        g.append(writer.solve(1, base, [[own]], [c]) if own else writer.slope(1, base, c))
        stage = writer.moved(base, [g[-1]], [own])
        f.append(writer.slope(0, stage, c))
    return move(explicit.b, implicit.b)


def _write_exponential(scheme: ExponentialRK) -> StepProgram:
    """Stages in turn; the part 0 of the problem is explicit, the other one linear."""
    writer = ProgramWriter(1)
    k: list[int] = []

    def advance(c: float, coefficients: Any) -> int:
        start = writer.phi(0, (PhiTerm(1.0, 0, c),)) if c else 0
        alike: dict[Any, list[int]] = {}
        for slope, terms in zip(k, coefficients, strict=True):
            if terms:
                alike.setdefault(terms, []).append(slope)
        sums = ((writer.sum([(row, 1.0, 0) for row in rows]), terms) for terms, rows in alike.items())
        return writer.moved(start, [writer.phi(row, terms) for row, terms in sums], [1.0] * len(alike))

    for c, coefficients in zip(scheme.c, scheme.A, strict=True):
        k.append(writer.slope(0, advance(c, coefficients), c))
    return writer.program([advance(1.0, scheme.b)])


def _write_sum_of_flows(scheme: Splitting, n_parts: int) -> StepProgram:
    """Each flow by one step of the inner scheme; each part has its own time."""
    writer, row, clocks = ProgramWriter(1), 0, [0.0] * n_parts
    table = find_inner_scheme(scheme.order).butcher
    for part, fraction in scheme.sequence(n_parts):
        row = writer.runge_kutta_step(table, row, part, clocks[part], fraction)
        clocks[part] += fraction
    return writer.program([row])


def _write_drifts_and_kicks(scheme: Splitting, is_second_order: bool, can_carry: bool = True) -> SchemeProgram:
    """q' = dq(t, p), p' = dp(t, q), the slope of q being p itself for second-order problems.

    If `can_carry`, a scheme that ends with the part it begins with receives the slope of that part from the previous
    step and passes it on.
    """
    flows = scheme.sequence()
    first, last = flows[0][0], flows[-1][0]
    is_carried = can_carry and first == last and not (is_second_order and first == 0)
    n_rows = 3 if is_carried else 2

    def slope_of(writer: ProgramWriter, part: int, rows: list[int], clocks: Any) -> int:
        return rows[1] if part == 0 and is_second_order else writer.slope(part, rows[1 - part], clocks[1 - part])

    def with_slope(writer: ProgramWriter, rows: list[int], clocks: Any) -> list[int]:
        return [*rows, slope_of(writer, first, rows, clocks)] if is_carried else rows

    opening, step, back = ProgramWriter(n_rows), ProgramWriter(n_rows), ProgramWriter(n_rows)
    rows, clocks, done = [0, 1], [0.0, 0.0], []
    for i, (part, fraction) in enumerate(flows):
        slope = 2 if i == 0 and is_carried else slope_of(step, part, rows, clocks)
        done.append((part, fraction, tuple(clocks)))
        rows[part] = step.moved(rows[part], [slope], [fraction])
        clocks[part] += fraction
    undone = [0, 1]
    for i, (part, fraction, before) in enumerate(reversed(done)):
        slope = 2 if i == 0 and is_carried else slope_of(back, part, undone, before)
        undone[part] = back.moved(undone[part], [slope], [-fraction])
    return SchemeProgram(
        opening.program(with_slope(opening, [0, 1], (0.0, 0.0)), 0),
        step.program(with_slope(step, rows, clocks)),
        (0, 1),
        back.program(with_slope(back, undone, (0.0, 0.0))),
    )


def _write_multistep(scheme: Multistep) -> SchemeProgram:
    """The starting procedure is the opening; states and slopes of earlier steps are passed on.

    Rows: y_n, y_(n-1), ...; then f_n, f_(n-1), ...; a second-order problem has its velocity after them.
    """
    is_second = scheme.derivative == 2
    part, n_states, n_slopes, started = int(is_second), len(scheme.alpha), len(scheme.beta), scheme.n_steps - 1
    n_rows = n_states + n_slopes + is_second
    opening = ProgramWriter(n_rows)
    states, velocity = [0], n_rows - 1
    for j in range(started):
        if isinstance(scheme.starter, Splitting):
            new, velocity = _write_kick_drift_kick(opening, scheme.starter, states[0], velocity, j)
        else:
            new = opening.runge_kutta_step(scheme.starter.butcher, states[0], clock=j, step=j)
        states.insert(0, new)
    slopes = [opening.slope(part, states[j], started - j, started - j) for j in range(n_slopes)]
    if is_second and _ends_with_a_drift(scheme.starter):  # its velocity is that of the drift, not of the end
        velocity = _write_end_velocity(opening, states[0], states[1], slopes[0])
    begun = [*states[:n_states], *slopes, *([velocity] if is_second else [])]
    state = (0, n_rows - 1) if is_second else (0,)
    back = _write_two_steps_back(scheme) if n_states == 2 and n_slopes == 1 and scheme.alpha[1] != 0 else None
    return SchemeProgram(opening.program(begun, started), _write_multistep_step(scheme, n_states, 1), state, back)


def _write_semi_implicit(scheme: SemiImplicitBDF) -> SchemeProgram:
    """Rows: y_n, y_(n-1), ...; then the slopes of the explicit part at all of them but the first."""
    k = scheme.n_steps
    opening, states = ProgramWriter(2 * k - 1), [0]
    for j in range(k - 1):
        states.insert(0, _write_additive_step(opening, scheme.starter, states[0], j))
    slopes = [opening.slope(0, states[j], k - 1 - j) for j in range(1, k)]
    step = ProgramWriter(2 * k - 1)
    f = [step.slope(0, 0, 0.0), *range(k, 2 * k - 1)]
    terms = [(row, a, 0) for row, a in enumerate(scheme.alpha)]
    base = step.sum([*terms, *((row, b, 1) for row, b in zip(f, scheme.beta, strict=True))])
    new = step.moved(base, [step.solve(1, base, [[scheme.gamma]], [1.0])], [scheme.gamma])
    begun, moved = opening.program([*states, *slopes], k - 1), step.program([new, *range(k - 1), *f[: k - 1]])
    return SchemeProgram(begun, moved, (0,))


def _write_fixed_bdf(scheme: FixedBDF) -> SchemeProgram:
    """Rows: y_n, y_(n-1), ..."""
    k = scheme.n_steps
    opening, states = ProgramWriter(k), [0]
    for j in range(k - 1):
        states.insert(0, opening.runge_kutta_step(scheme.starter.butcher, states[0], clock=j, step=j))
    step = ProgramWriter(k)
    base = step.sum((row, a, 0) for row, a in enumerate(scheme.alpha))
    new = step.moved(base, [step.solve(0, base, [[scheme.gamma]], [1.0])], [scheme.gamma])
    return SchemeProgram(opening.program(states, k - 1), step.program([new, *range(k - 1)]), (0,))


def build_window(scheme: Multistep) -> SchemeProgram:
    """A multistep scheme as a one-step scheme: its state consists of all earlier states it uses, the latest first.

    The opening computes their slopes.  A second-order problem has a velocity with every state.
    """
    is_second, n, n_slopes = scheme.derivative == 2, scheme.n_steps, len(scheme.beta)
    opening = ProgramWriter(n + n_slopes + is_second * n)
    slopes = [opening.slope(int(is_second), j, -j, -j) for j in range(n_slopes)]
    velocities = list(range(n + n_slopes, opening.n_rows))
    state = [row for pair in zip(range(n), velocities, strict=True) for row in pair] if is_second else range(n)
    return SchemeProgram(
        opening.program([*range(n), *slopes, *velocities], 0), _write_multistep_step(scheme, n, n), tuple(state)
    )  # fmt: skip


def build_long_window(scheme: Multistep, factor: int) -> SchemeProgram | None:
    """A step `factor` times as long on a window with unchanged spacing of states; None if none is known."""
    numbers = scheme.derivative, scheme.alpha, scheme.beta
    if numbers == (1, (0.0, 1.0), (2.0,)):
        return SchemeProgram(_write_nothing(2), _write_long_midpoint(factor), (0, 1))
    if numbers == (2, (2.0, -1.0), (1.0,)):
        return SchemeProgram(_write_nothing(4), _write_long_leapfrog(1 / factor), (0, 1, 2, 3))
    return None


def _write_long_midpoint(factor: int) -> StepProgram:
    """A step of Verlet's for x' = f(z), z' = f(x), x and z being every other state.

    The two-step midpoint rule is the leapfrog of this system, so errors of alternating sign propagate backward in time
    in both.
    """
    step, apart = ProgramWriter(2), 1 / factor
    z = step.moved(1, [step.slope(0, 0, 0.0)], [0.5 + apart])
    x = step.moved(0, [step.slope(0, z, 0.5)], [1.0])
    slope = step.slope(0, x, 1.0)
    if factor % 2 == 0:
        return step.program([x, step.moved(z, [slope], [0.5 - apart])])
    z = step.moved(z, [slope], [0.5])
    return step.program([z, step.moved(x, [step.slope(0, z, 1.0)], [-apart])])


def _write_long_leapfrog(apart: float) -> StepProgram:
    """Verlet's step from q and its velocity, (q - q_old) / (apart h) + apart h a / 2; rows are q, v, q_old, v_old."""
    step = ProgramWriter(4)
    slope = step.slope(1, 0, 0.0)
    half = step.sum([(0, 1 / apart, -1), (2, -1 / apart, -1), (slope, 0.5 * (apart + 1), 1)])
    q = step.moved(0, [half], [1.0])
    slope = step.slope(1, q, 1.0)
    v = step.moved(half, [slope], [0.5])
    old = step.sum([(q, 1.0, 0), (v, -apart, 1), (slope, 0.5 * apart**2, 2)])
    slopes = [slope, step.slope(1, old, 1.0 - apart)]
    return step.program([q, v, old, step.moved(v, slopes, [-0.5 * apart] * 2)])


def _write_multistep_step(scheme: Multistep, n_states: int, n_velocities: int) -> StepProgram:
    """A step that passes on `n_states` states, their slopes, and `n_velocities` velocities."""
    is_second, n_slopes = scheme.derivative == 2, len(scheme.beta)
    step = ProgramWriter(n_states + n_slopes + is_second * n_velocities)
    y, f = list(range(n_states)), list(range(n_states, n_states + n_slopes))
    terms = [(row, a, 0) for row, a in zip(y, scheme.alpha, strict=False)]
    new = step.sum([*terms, *((row, b, scheme.derivative) for row, b in zip(f, scheme.beta, strict=True))])
    slope = step.slope(int(is_second), new, 1.0, step=1)  # for the next step
    moved = [new, *y[:-1], slope, *f[:-1]]
    if is_second:
        velocity = _write_end_velocity(step, new, 0, slope)
        moved += [velocity, *range(n_states + n_slopes, step.n_rows - 1)]
    return step.program(moved)


def _ends_with_a_drift(starter: Any) -> bool:
    return isinstance(starter, Splitting) and starter.sequence()[-1][0] == 0


def _write_end_velocity(writer: ProgramWriter, new: int, old: int, slope: int) -> int:
    """(q_(n+1) - q_n) / h + h a_(n+1) / 2."""
    return writer.sum([(new, 1.0, -1), (old, -1.0, -1), (slope, 0.5, 1)])


def _write_kick_drift_kick(writer: ProgramWriter, scheme: Splitting, q: int, v: int, clock: int) -> tuple[int, int]:
    """A step of a splitting scheme on q'' = a(t, q); a final kick has the slope of the next step's first kick."""
    moved = float(clock)
    for part, fraction in scheme.sequence():
        if part == 0:
            q, moved = writer.moved(q, [v], [fraction]), moved + fraction
        else:
            v = writer.moved(v, [writer.slope(1, q, moved, int(moved))], [fraction])
    return q, v


def _write_two_steps_back(scheme: Multistep) -> StepProgram:
    """y_(n-1) from y_(n+1) and y_n; time is that of step n."""
    is_second = scheme.derivative == 2
    part, power, (a0, a1), (b0,) = int(is_second), scheme.derivative, scheme.alpha, scheme.beta
    writer = ProgramWriter(4 if is_second else 3)
    slope = writer.slope(part, 1, 0.0)
    old = writer.sum([(0, 1 / a1, 0), (1, -a0 / a1, 0), (slope, -b0 / a1, power)])
    moved = [1, old, slope]
    if is_second:
        moved.append(writer.sum([(1, 1.0, -1), (old, -1.0, -1), (slope, 0.5, 1)]))
    return writer.program(moved)


def append_noise(scheme_program: SchemeProgram, scale: float, part: int | None) -> SchemeProgram:
    """Steps of a scheme, each followed by y <- y + scale g(t + h, y) dW, elementwise (Lie-Trotter splitting).

    g is the part `part` of the problem, or 1 without it.  Partitioned rows (q, p) become (q, p + scale g(t + h, q) dW),
    which has an exact inverse.  The steps must pass on nothing but the state.
    """
    step, back = scheme_program.step, scheme_program.back
    writer = ProgramWriter(step.n_rows, step.operations)
    outputs = list(step.outputs)
    outputs[-1] = _write_noise(writer, outputs, scale, part)
    undone = None
    if back is not None and (part is None or step.n_rows > 1):
        undone = _write_before(ProgramWriter(step.n_rows), scale, part, back)
    return scheme_program._replace(step=writer.program(outputs), back=undone)


def _write_noise(writer: ProgramWriter, rows: list[int], scale: float, part: int | None) -> int:
    """The last of the rows with noise, whose diffusion depends on the first one."""
    if part is None:
        noise = writer.noise("W")
    else:
        noise = writer.noise_of(writer.slope(part, rows[0], 1.0), "W", ELEMENTWISE)
    return writer.sum([(rows[-1], 1.0, 0), (noise, scale, 0)])


def _write_before(writer: ProgramWriter, scale: float, part: int | None, program: StepProgram) -> StepProgram:
    """Remove the noise of a step, then run a program."""
    rows = list(range(program.n_rows))
    rows[-1] = _write_noise(writer, rows, -scale, part)
    for operation in program.operations:
        if isinstance(operation, Slope):
            rows.append(writer.slope(operation.part, rows[operation.row], operation.c, operation.step))
        elif isinstance(operation, Sum):
            rows.append(writer.sum([(rows[term.row], term.weight, term.power) for term in operation.terms]))
    return writer.program([rows[row] for row in program.outputs])


@lru_cache(maxsize=256)
def build_stochastic_program(scheme: Any, kind: str, n_components: int = 1) -> SchemeProgram:
    """Build the programs of a stochastic scheme for diffusions that are multiplied elementwise, by one number, or as a
    matrix with `n_components` columns.
    """
    if isinstance(scheme, ReversibleHeun):
        return _write_reversible_heun(kind)
    if isinstance(scheme, TamedEuler):
        step = _write_tamed_euler(kind)
    elif isinstance(scheme, WeakRK):
        step = _write_weak_columns(scheme, n_components) if kind == MATRIX else _write_weak_together(scheme, kind)
    else:
        step = _write_stochastic_runge_kutta(scheme, kind)
    return SchemeProgram(_write_nothing(1), step, (0,))


@lru_cache(maxsize=256)
def build_stochastic_pair(scheme: StochasticRK, kind: str) -> StepProgram:
    """Build a step with its error estimates, of drift and of noise, which are outputs only: rows 1 and 2."""
    return _write_stochastic_runge_kutta(scheme, kind, has_estimate=True)


def _write_stochastic_runge_kutta(scheme: StochasticRK, kind: str, has_estimate: bool = False) -> StepProgram:
    """Stages in turn; those that nothing depends on are omitted."""
    writer = ProgramWriter(3 if has_estimate else 1)
    f: dict[int, int] = {}
    g: dict[int, int] = {}

    def list_terms(weights_f: Any, weights_g: Any) -> list[tuple[int, float, int]]:
        drifts = [(slope(i), w, 1) for i, w in enumerate(weights_f) if w != 0]
        noises = [
            (writer.noise_of(diffusion(i), x, kind), w, 0) for x, row in weights_g for i, w in enumerate(row) if w != 0
        ]
        return [*noises, *drifts]

    def combine(weights_f: Any, weights_g: Any, weights_derivative: Any = ()) -> int:
        terms = [(derive(x), w, 0) for x, w in weights_derivative if w != 0]
        return writer.sum([(0, 1.0, 0), *list_terms(weights_f, weights_g), *terms])

    def derive(x: str) -> int:
        """The derivative of the diffusion along itself, times a random variable."""
        derivative = writer.slope(DIFFUSION_DERIVATIVE, 0, 0.0)
        return writer.noise_of(derivative, x, kind, kind == MATRIX and x in PAIRED)

    def slope(i: int) -> int:
        if i not in f:
            own, weights_g = scheme.A0[i][i], [(x, B[i]) for x, B in scheme.B0]
            row = combine(scheme.A0[i][:i], weights_g, [(x, weights[i]) for x, weights in scheme.gamma0])
            c = scheme.c0[i]
            f[i] = writer.solve(DRIFT, row, [[own]], [c]) if own else writer.slope(DRIFT, row, c)
        return f[i]

    def diffusion(i: int) -> int:
        if i not in g:
            g[i] = writer.slope(DIFFUSION, combine(scheme.A1[i], [(x, B[i]) for x, B in scheme.B1]), scheme.c1[i])
        return g[i]

    new = combine(scheme.alpha, scheme.beta)
    if scheme.gamma:
        new = writer.sum([(new, 1.0, 0), *((derive(x), w, 0) for x, w in scheme.gamma)])
    if not has_estimate:
        return writer.program([new])
    alpha, beta = _subtract_embedded(scheme)
    return writer.program([new, writer.sum(list_terms(alpha, ())), writer.sum(list_terms((), beta))])


def _subtract_embedded(scheme: StochasticRK) -> tuple[Any, Any]:
    """The weights of a scheme minus those of the embedded one."""
    embedded = scheme.embedded
    if embedded is None:
        raise ValueError(f"{scheme.name} has no error estimate")
    others = dict(embedded.beta)
    beta = [(x, _subtract(row, others.get(x, (0.0,) * len(row)))) for x, row in scheme.beta]
    return _subtract(scheme.alpha, embedded.alpha), beta


def _subtract(x: Iterable[float], y: Iterable[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(x, y, strict=True))


def _write_tamed_euler(kind: str) -> StepProgram:
    writer = ProgramWriter(1)
    noise = writer.noise_of(writer.slope(DIFFUSION, 0, 0.0), "W", kind)
    return writer.program(
        [writer.sum([(0, 1.0, 0), (noise, 1.0, 0), (writer.tamed(writer.slope(DRIFT, 0, 0.0)), 1.0, 1)])]
    )


def _write_weak_together(scheme: WeakRK, kind: str) -> StepProgram:
    """Stages of all components at once: a component of the noise does not change the diffusion of another one."""
    writer = ProgramWriter(1)
    f: list[int] = []
    g: list[int] = []
    for i in range(len(scheme.alpha)):
        drifts = [(k, w, 1) for k, w in zip(f, scheme.A1[i], strict=False)]
        noises = [(writer.noise_of(k, "sqrt(h)", kind), w, 0) for k, w in zip(g, scheme.B1[i], strict=False) if w != 0]
        g.append(writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *noises, *drifts]), scheme.c1[i]))
        drifts = [(k, w, 1) for k, w in zip(f, scheme.A0[i], strict=False)]
        noises = [(writer.noise_of(k, "V", kind), w, 0) for k, w in zip(g, scheme.B0[i], strict=False) if w != 0]
        f.append(writer.slope(DRIFT, writer.sum([(0, 1.0, 0), *noises, *drifts]), scheme.c0[i]))
    noises = [(writer.noise_of(k, "V", kind), w, 0) for k, w in zip(g, scheme.beta1, strict=True)]
    noises += [(writer.noise_of(k, "V2", kind), 0.5 * w, 0) for k, w in zip(g, scheme.beta2, strict=True) if w != 0]
    return writer.program(
        [writer.sum([(0, 1.0, 0), *noises, *((k, w, 1) for k, w in zip(f, scheme.alpha, strict=True))])]
    )


def _write_weak_columns(scheme: WeakRK, m: int) -> StepProgram:
    """Stages of each component k of the noise, from which the column k of the diffusion is used."""
    writer, s = ProgramWriter(1), len(scheme.alpha)
    f: list[int] = []
    g: list[list[int]] = []  # by stage and component
    V, root, pairs = Noise("V"), Noise("sqrt(h)"), Noise("V2", True)

    def add_columns(stages: Any, weights: Any, noise: Noise, factor: float = 1.0) -> list[tuple[int, float, int]]:
        """sum_j sum_k w_j g^k(stage j of k) X_k."""
        return [
            (writer.column_of(rows[k], k, noise, k * (m + 1) if noise.is_paired else k), factor * w, 0)
            for rows, w in zip(stages, weights, strict=False) if w != 0 for k in range(m)
        ]  # fmt: skip

    def list_drifts(weights: Any) -> list[tuple[int, float, int]]:
        return [(k, w, 1) for k, w in zip(f, weights, strict=False)]

    for i in range(s):
        drifts = list_drifts(scheme.A1[i])
        own = [
            [(writer.column_of(rows[k], k, root, k), w, 0) for rows, w in zip(g, scheme.B1[i], strict=False) if w != 0]
            for k in range(m)
        ]
        g.append([writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *some, *drifts]), scheme.c1[i]) for some in own])
        terms = [*add_columns(g, scheme.B0[i], V), *list_drifts(scheme.A0[i])]
        f.append(writer.slope(DRIFT, writer.sum([(0, 1.0, 0), *terms]), scheme.c0[i]))
    hats = []
    for weights in scheme.B2:
        others = [
            [(writer.column_of(g[j][i], i, pairs, k * m + i), 0.5 * w, 0) for j, w in enumerate(weights) if w != 0
             for i in range(m) if i != k]
            for k in range(m)
        ]  # fmt: skip
        hats.append([writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *some]), 0.0) for some in others])
    terms = [
        *add_columns(g, scheme.beta1, V), *add_columns(g, scheme.beta2, pairs, 0.5),
        *add_columns(hats, scheme.beta3, V), *add_columns(hats, scheme.beta4, root),
    ]  # fmt: skip
    return writer.program([writer.sum([(0, 1.0, 0), *terms, *list_drifts(scheme.alpha)])])


def _write_reversible_heun(kind: str) -> SchemeProgram:
    """Rows are y and z; the drift and the diffusion at z are evaluated again in the next step."""

    def average(writer: ProgramWriter, y: int, z: int, z_new: int, c: float, sign: float) -> int:
        slopes = [writer.slope(DRIFT, z, c), writer.slope(DRIFT, z_new, 1.0 - c)]
        spreads = [writer.slope(DIFFUSION, z, c), writer.slope(DIFFUSION, z_new, 1.0 - c)]
        noises = [(writer.noise_of(g, "W", kind), 0.5 * sign, 0) for g in spreads]
        return writer.sum([(y, 1.0, 0), *noises, *((f, 0.5 * sign, 1) for f in slopes)])

    def move(writer: ProgramWriter, c: float, sign: float) -> StepProgram:
        noise = writer.noise_of(writer.slope(DIFFUSION, 1, c), "W", kind)
        z = writer.sum([(0, 2.0, 0), (1, -1.0, 0), (noise, sign, 0), (writer.slope(DRIFT, 1, c), sign, 1)])
        return writer.program([average(writer, 0, 1, z, c, sign), z])

    opening = StepProgram(2, (), (0, 0), 0)
    return SchemeProgram(opening, move(ProgramWriter(2), 0.0, 1.0), (0,), move(ProgramWriter(2), 1.0, -1.0))
