"""Sweeps over the steps of a run, forward and in reverse: the numerical map and its exact adjoint.

A sweep executes the step program of a scheme (`schemes/step_program.py`) step by step and stores the state before each
step.  In reverse, every step recomputes its rows from the stored state and executes the transposed program.  Small
traced problems run in generated code, others in the two kernels here, which call right-hand sides and pullbacks by
address.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from math import isqrt
from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.adjoint.implicit_operations import (
    NONE,
    SolveArrays,
    SolveWorkspace,
    allocate_solve_workspace,
    build_solve_arrays,
    execute_implicit,
    transpose_implicit,
)
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import accumulate, call_field, call_pullback, call_reverse
from stepnet.engines.numba_engine.codegen.steps.fused_steps import (
    NO_NOISE,
    NoiseLayout,
    find_fused_address,
    write_reverse,
    write_sweep,
)
from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback, compile_directional_pullback
from stepnet.engines.numba_engine.integrators.stepping import pad_length
from stepnet.engines.numba_engine.random.step_noise import PathNoise
from stepnet.engines.numba_engine.rhs.linear_maps import NO_MAPS, build_linear_maps
from stepnet.engines.numba_engine.rhs.stencil_steps import find_stencil
from stepnet.problem import Linear, is_finite
from stepnet.schemes.step_program import (
    COLUMN,
    ELEMENTWISE,
    MATRIX,
    SCALAR,
    LinearSolve,
    Noise,
    Phi,
    Product,
    Slope,
    Solve,
    StepProgram,
    Sum,
    Tamed,
)

DONE, RAISED = 0, 1
_R, _I, _P = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
SWEEP = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _I, _P)
REVERSE = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _P, _P, _P)
NOISY_SWEEP = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _I, _P, _P)
NOISY_REVERSE = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _P, _P, _P, _P)
NOISE_CHUNK = 1024  # steps whose random variables are held at once
SLICE_SECONDS = 0.05  # between two checks for Ctrl-C
WORK_AT_FIRST = 2**16  # numbers that the first slice processes; of implicit steps, products in a factorisation
DETERMINISTIC, DRAW, TIMES_COMPONENTS, TIMES_MATRIX, TIMES_COLUMN, TAME, IMPLICIT, LINEAR_MAP = range(8)
PRODUCT_CODE = {
    ELEMENTWISE: TIMES_COMPONENTS, SCALAR: TIMES_COMPONENTS, MATRIX: TIMES_MATRIX, COLUMN: TIMES_COLUMN
}  # fmt: skip
NO_NUMBERS = np.zeros((1, 0))


class SweepFailed(ArithmeticError):
    """Steps that cannot be taken; a solve with the same steps reports the reason."""


class StepNotSolved(SweepFailed):
    """An implicit step whose equations could not be solved."""


class ProgramArrays(NamedTuple):
    """A step program as arrays: operation i is the slope of `part[i]`, or (part < 0) the sum of its terms.

    Where `code[i]` is not 0, it reads `length[i]` random variables from `first_variable[i]` on, multiplies row
    `row[i]` by the random variables in row `factor[i]` (a column: `column[i]` by the number `entry[i]`), tames it, or
    applies the function `factor[i]` of the linear part.

    The terms of operation i are `first[i]` to `first[i + 1]`.  The terms that read row r, `use_first[r]` to
    `use_first[r + 1]`, contribute to the rows `use_row` with the weights of the terms `use_term`.
    """

    part: np.ndarray
    row: np.ndarray
    c: np.ndarray
    first: np.ndarray
    term_row: np.ndarray
    weight: np.ndarray
    power: np.ndarray
    use_first: np.ndarray
    use_row: np.ndarray
    use_term: np.ndarray
    outputs: np.ndarray
    n_rows: int
    code: np.ndarray
    factor: np.ndarray
    first_variable: np.ndarray
    length: np.ndarray
    column: np.ndarray
    entry: np.ndarray


class ImplicitSteps(NamedTuple):
    """The implicit operations of a program, the pullbacks of their parts, and those of the derivatives of the parts.

    `maps` is the address of the functions of the linear part, or 0; `has_lengths` says that they have derivatives.
    """

    solves: SolveArrays
    pullbacks: np.ndarray
    second: np.ndarray
    scratch: SolveWorkspace
    maps: int
    maps_p: np.ndarray
    has_lengths: int


class StepWorkspace(NamedTuple):
    """Workspace of a step: rows and their gradients, weights times powers of h, gradients with respect to times."""

    work: np.ndarray
    bars: np.ndarray
    weights: np.ndarray
    back: np.ndarray
    times: np.ndarray
    t_bar: np.ndarray


class LossReadSteps(NamedTuple):
    """Steps at which a loss reads the state: `at` (ascending, distinct), and its gradients (at, rows, n).

    If `bars` and `p_bars` are not empty, the gradients of each interval between two marks are kept separately: the sums
    since the following mark are stored there, and the next interval begins with `seeds` alone.
    """

    at: np.ndarray
    seeds: np.ndarray
    bars: np.ndarray
    p_bars: np.ndarray


NO_MARKS = LossReadSteps(np.zeros(0, np.int64), np.zeros((0, 1, 1)), np.zeros((0, 1, 1)), np.zeros((0, 1)))


class StepClock(NamedTuple):
    """The steps of a run: equal ones of length h from t0, or those between the times of a grid."""

    t0: float
    h: float
    grid: np.ndarray


def build_program_arrays(program: StepProgram, noise: NoiseLayout = NO_NOISE) -> ProgramArrays:
    """The arrays of a program."""
    return _build_arrays(program, tuple((each, place.start, place.stop) for each, place in noise.places.items()))


@lru_cache(maxsize=256)
def _build_arrays(program: StepProgram, variables: tuple[tuple[Noise, int, int], ...]) -> ProgramArrays:
    operations, places = program.operations, {each: (start, stop - start) for each, start, stop in variables}
    slopes = [operation if isinstance(operation, Slope) else None for operation in operations]
    terms = [operation.terms if isinstance(operation, Sum) else () for operation in operations]
    products = [operation if isinstance(operation, Product) else None for operation in operations]
    noises = [places.get(operation, (-1, 0)) if isinstance(operation, Noise) else (-1, 0) for operation in operations]
    lengths = [_count_columns(program, product, noises) if product else 0 for product in products]
    flat = [term for some in terms for term in some]
    targets = np.repeat(program.n_rows + np.arange(len(operations)), list(map(len, terms)))
    by_row = np.argsort([term.row for term in flat], kind="stable")
    counts = np.bincount([term.row for term in flat], minlength=program.n_rows + len(operations))
    codes = [
        _find_code(operation) if product is None else PRODUCT_CODE[product.kind]
        for operation, product in zip(operations, products, strict=True)
    ]
    rows = [_find_row(operation) for operation in operations]
    return ProgramArrays(
        np.array([-1 if slope is None else slope.part for slope in slopes], np.int64),
        np.array(rows, np.int64),
        np.array([0.0 if slope is None else slope.c for slope in slopes]),
        np.cumsum([0, *map(len, terms)]),
        np.array([term.row for term in flat], np.int64),
        np.array([term.weight for term in flat], np.float64),
        np.array([term.power for term in flat], np.int64),
        np.cumsum([0, *counts]),
        targets[by_row],
        by_row,
        np.array(program.outputs, np.int64),
        program.n_rows,
        np.array(codes, np.int64),
        np.array([_find_factor(program, operation) for operation in operations], np.int64),
        np.array([start for start, _ in noises], np.int64),
        np.array([length or other for (_, length), other in zip(noises, lengths, strict=True)], np.int64),
        np.array([product.column if product else 0 for product in products], np.int64),
        np.array([product.entry if product else 0 for product in products], np.int64),
    )


def _find_code(operation) -> int:
    """The code of an operation other than a product."""
    if isinstance(operation, (Solve, LinearSolve)):
        return IMPLICIT
    if isinstance(operation, Phi):
        return LINEAR_MAP
    return TAME if isinstance(operation, Tamed) else DRAW if isinstance(operation, Noise) else DETERMINISTIC


def _find_factor(program: StepProgram, operation) -> int:
    """The row of the random variables of a product, or the number of a function of the linear part."""
    if isinstance(operation, Phi):
        return program.linear_maps.index(operation.terms)
    return operation.noise if isinstance(operation, Product) else -1


def _find_row(operation) -> int:
    """The row that an operation other than a sum reads."""
    if isinstance(operation, (Slope, Tamed, Solve, LinearSolve, Phi)):
        return operation.row
    return operation.diffusion if isinstance(operation, Product) else -1


def _count_columns(program: StepProgram, product: Product, noises: list[tuple[int, int]]) -> int:
    """The columns of the diffusion of a product, if it is a matrix."""
    at = product.noise - program.n_rows
    is_paired = product.kind == COLUMN and program.operations[at].is_paired
    return isqrt(noises[at][1]) if is_paired else noises[at][1]


@inlined
def find_step_time(clock, index):
    """Initial time and length of a step."""
    if clock.grid.shape[0] > 0:
        return clock.grid[index], clock.grid[index + 1] - clock.grid[index]
    return clock.t0 + index * clock.h, clock.h


@inlined
def scale(tape, weights, back, h):
    """The weights of all terms for a step of length h; `back` holds them in the order in which rows are used."""
    for m in range(tape.weight.shape[0]):
        weights[m] = tape.weight[m] * h ** tape.power[m]
    for m in range(back.shape[0]):
        back[m] = weights[tape.use_term[m]]


@inlined
def apply_nonlinear(tape, i, work, noise, h, n):
    """Row i of a program: random variables of the step, a diffusion times some of them, or a tamed row."""
    out, m, code = tape.n_rows + i, tape.length[i], tape.code[i]
    g, z = tape.row[i], tape.factor[i]
    if code == DRAW:
        for k in range(m):
            work[out, k] = noise[tape.first_variable[i] + k]
    elif code == TIMES_COMPONENTS:
        for k in range(n):
            work[out, k] = work[g, k] * work[z, k % m]
    elif code == TIMES_COLUMN:
        for k in range(n):
            work[out, k] = work[g, k * m + tape.column[i]] * work[z, tape.entry[i]]
    elif code == TAME:
        divisor = 1.0 + h * find_norm(work, g, n)
        for k in range(n):
            work[out, k] = work[g, k] / divisor
    else:
        for k in range(n):
            total = 0.0
            for j in range(m):
                total += work[g, k * m + j] * work[z, j]
            work[out, k] = total


@inlined
def find_norm(work, row, n):
    """The Euclidean norm of a row."""
    total = 0.0
    for k in range(n):
        total += work[row, k] * work[row, k]
    return np.sqrt(total)


@inlined
def transpose_tamed(work, bars, row, out, h, n):
    """Add the gradient with respect to the row that is tamed; returns that with respect to h."""
    size, product = find_norm(work, row, n), 0.0
    for k in range(n):
        product += bars[out, k] * work[row, k]
    divisor = 1.0 + h * size
    share = product / (divisor * divisor)
    factor = h * share / size if size > 0.0 else 0.0
    for k in range(n):
        bars[row, k] += bars[out, k] / divisor - factor * work[row, k]
    return -size * share


@inlined
def transpose_product(tape, i, work, bars, n):
    """Add the gradient with respect to the diffusion of a product."""
    out, m, code = tape.n_rows + i, tape.length[i], tape.code[i]
    g, z = tape.row[i], tape.factor[i]
    if code == TIMES_COMPONENTS:
        for k in range(n):
            bars[g, k] += bars[out, k] * work[z, k % m]
    elif code == TIMES_COLUMN:
        for k in range(n):
            bars[g, k * m + tape.column[i]] += bars[out, k] * work[z, tape.entry[i]]
    elif code == TIMES_MATRIX:
        for k in range(n):
            for j in range(m):
                bars[g, k * m + j] += bars[out, k] * work[z, j]


@inlined
def execute(fields, p, tape, weights, work, t, h, n, noise):
    """All rows of a step from those of its state; False if a right-hand side raised.  The last row stays zero."""
    zero = work.shape[0] - 1
    for i in range(tape.part.shape[0]):
        out = tape.n_rows + i
        if tape.code[i] != DETERMINISTIC:
            apply_nonlinear(tape, i, work, noise, h, n)
        elif tape.part[i] < 0:
            accumulate(work, out, zero, weights, tape.term_row, tape.first[i], tape.first[i + 1])
        elif call_field(uintp(fields[tape.part[i]]), t + tape.c[i] * h, work, tape.row[i], out, p, n) != 0:
            return False
    return True


@inlined
def execute_all(fields, p, tape, implicit, weights, work, t, h, n, noise):
    """As `execute`, with implicit operations and functions of the linear part."""
    if implicit.solves.part.shape[0] == 0 and implicit.maps == 0:
        return execute(fields, p, tape, weights, work, t, h, n, noise)
    zero, solves = work.shape[0] - 1, implicit.solves
    implicit.scratch.factored[0] = NONE
    for i in range(tape.part.shape[0]):
        out, m = tape.n_rows + i, solves.index[i]
        if m >= 0:
            field, pullback = fields[solves.part[m]], implicit.pullbacks[solves.part[m]]
            if not execute_implicit(field, pullback, p, solves, m, work, out, implicit.scratch, t, h, n):
                return False
        elif tape.code[i] == LINEAR_MAP:
            number = 3.0 * tape.factor[i]
            if call_field(uintp(implicit.maps), number, work, tape.row[i], out, implicit.maps_p, n) != 0:
                return False
        elif tape.code[i] != DETERMINISTIC:
            apply_nonlinear(tape, i, work, noise, h, n)
        elif tape.part[i] < 0:
            accumulate(work, out, zero, weights, tape.term_row, tape.first[i], tape.first[i + 1])
        elif call_field(uintp(fields[tape.part[i]]), t + tape.c[i] * h, work, tape.row[i], out, p, n) != 0:
            return False
    return True


@Kernel
def sweep(fields, p, tape, implicit, scratch, clock, first, count, state, states, is_kept, is_back, noise):
    """Take `count` steps from step `first`; if `is_kept`, the state before each goes to a row of `states`.

    The rows of `noise` are the random variables of the steps; ordinary steps have none.

    A program that inverts steps runs backward over them, and stores the states it reaches.
    """
    n, work = state.shape[1], scratch.work
    for j in range(count):
        i = count - 1 - j if is_back else j
        for row in range(tape.n_rows):
            for k in range(n):
                work[row, k] = state[row, k]
                if is_kept and not is_back:
                    states[i, row * n + k] = state[row, k]
        t, h = find_step_time(clock, first + i)
        scale(tape, scratch.weights, scratch.back[:0], h)
        if not execute_all(fields, p, tape, implicit, scratch.weights, work, t, h, n, noise[i % noise.shape[0]]):
            return RAISED
        for row in range(tape.n_rows):
            for k in range(n):
                state[row, k] = work[tape.outputs[row], k]
                if is_kept and is_back:
                    states[i, row * n + k] = state[row, k]
    return DONE


@inlined
def transpose(pullbacks, p, tape, implicit, scratch, t, h, n, p_bar, times):
    """Gradients with respect to all rows of a step from those of its outputs; False if a pullback raised."""
    work, bars, t_bar = scratch.work, scratch.bars, scratch.t_bar
    for j in range(tape.n_rows + tape.part.shape[0]):
        row = tape.n_rows + tape.part.shape[0] - 1 - j
        accumulate(bars, row, row, scratch.back, tape.use_row, tape.use_first[row], tape.use_first[row + 1])
        i = row - tape.n_rows
        if i >= 0 and tape.code[i] == IMPLICIT:
            m = implicit.solves.index[i]
            part = implicit.solves.part[m]
            head = (p, implicit.solves, m, work, bars, row, implicit.scratch, t, h, n, p_bar, times)
            if not transpose_implicit(pullbacks[part], implicit.second[part], *head):
                return False
        elif i >= 0 and tape.code[i] == LINEAR_MAP:
            if not transpose_map(implicit, 3.0 * tape.factor[i], work, bars, tape.row[i], row, h, n, times):
                return False
        elif i >= 0 and tape.code[i] == TAME:
            times[1] += transpose_tamed(work, bars, tape.row[i], row, h, n)
        elif i >= 0 and tape.code[i] != DETERMINISTIC:
            transpose_product(tape, i, work, bars, n)
        elif i >= 0 and tape.part[i] >= 0:
            t_bar[0] = 0.0
            at, t_stage = tape.row[i], t + tape.c[i] * h
            if call_pullback(uintp(pullbacks[tape.part[i]]), t_stage, work, at, p, bars, row, t_bar, at, p_bar, n) != 0:
                return False
            times[0] += t_bar[0]
            times[1] += tape.c[i] * t_bar[0]
    return True


@inlined
def transpose_map(implicit, number, work, bars, row, out, h, n, times):
    """Add the gradients of a function of the linear part to those of its row and of h; False if it raised."""
    maps, p, aside = uintp(implicit.maps), implicit.maps_p, implicit.scratch.bars
    for k in range(n):
        aside[0, k] = bars[out, k]
    if call_field(maps, number + 1.0, aside, 0, 1, p, n) != 0:
        return False
    for k in range(n):
        bars[row, k] += aside[1, k]
    if implicit.has_lengths:
        for k in range(n):
            aside[0, k] = work[row, k]
        if call_field(maps, number + 2.0, aside, 0, 1, p, n) != 0:
            return False
        for k in range(n):
            times[1] += aside[1, k] * bars[out, k] / h
    return True


@inlined
def find_length_gradient(tape, scratch, h, n):
    """The gradient with respect to the length of a step through the weights of its sums."""
    total = 0.0
    for i in range(tape.part.shape[0]):
        for m in range(tape.first[i], tape.first[i + 1]):
            if tape.power[m] != 0:
                product = 0.0
                for k in range(n):
                    product += scratch.work[tape.term_row[m], k] * scratch.bars[tape.n_rows + i, k]
                total += tape.weight[m] * tape.power[m] * h ** (tape.power[m] - 1) * product
    return total


@inlined
def pass_mark(marks, k, bar, p_bar):
    """Add the gradient of the loss at mark k."""
    is_apart = marks.bars.shape[0] > 0
    for row in range(bar.shape[0]):
        for i in range(bar.shape[1]):
            if is_apart:
                marks.bars[k, row, i] = bar[row, i]
                bar[row, i] = 0.0
            bar[row, i] += marks.seeds[k, row, i]
    if is_apart:
        for i in range(p_bar.shape[0]):
            marks.p_bars[k, i] = p_bar[i]
            p_bar[i] = 0.0


@Kernel
def reverse(
    fields,
    pullbacks,
    p,
    tape,
    implicit,
    scratch,
    clock,
    first,
    count,
    states,
    bar,
    p_bar,
    t_bars,
    has_times,
    marks,
    noise,
):
    """The adjoint of the steps of a sweep, last step first; updates `bar`, and adds to `p_bar` and `t_bars`."""
    n, work, bars, times = bar.shape[1], scratch.work, scratch.bars, scratch.times
    mark = marks.at.shape[0] - 1
    for j in range(count):
        i = count - 1 - j
        for row in range(tape.n_rows):
            for k in range(n):
                work[row, k] = states[i, row * n + k]
        t, h = find_step_time(clock, first + i)
        scale(tape, scratch.weights, scratch.back, h)
        if not execute_all(fields, p, tape, implicit, scratch.weights, work, t, h, n, noise[i % noise.shape[0]]):
            return RAISED
        bars[:] = 0.0
        for row in range(tape.n_rows):
            for k in range(n):
                bars[tape.outputs[row], k] += bar[row, k]
        times[:] = 0.0
        if not transpose(pullbacks, p, tape, implicit, scratch, t, h, n, p_bar, times):
            return RAISED
        for row in range(tape.n_rows):
            for k in range(n):
                bar[row, k] = bars[row, k]
        if has_times:
            times[1] += find_length_gradient(tape, scratch, h, n)
            t_bars[0] += times[0]
            t_bars[1] += (t - clock.t0) * times[0] + h * times[1]
        if mark >= 0 and marks.at[mark] == first + i:
            pass_mark(marks, mark, bar, p_bar)
            mark -= 1
    return DONE


@Kernel
def reverse_generated(address, p, clock, first, count, states, bar, p_bar, t_bars, marks):
    """As `reverse`, by generated code, from mark to mark."""
    stop, n_marks = first + count, marks.at.shape[0]
    for j in range(n_marks + 1):
        mark = n_marks - 1 - j
        at = marks.at[mark] if mark >= 0 else first
        if at < stop:
            rows = states[at - first :]
            call_reverse(address, clock.t0, clock.h, at, stop - at, clock.grid, rows, bar, p_bar, t_bars, p)
        if mark >= 0:
            pass_mark(marks, mark, bar, p_bar)
        stop = at
    return DONE


def _take_address(array: np.ndarray) -> int:
    return array.ctypes.data


UNIT_MASS = np.zeros((0, 0))


class ProgramRunner:
    """One step program on a problem: `forward` over the steps of a clock, and `backward` by its adjoint."""

    def __init__(
        self,
        parts: tuple[PartPullback, ...],
        program: StepProgram,
        n: int,
        clock: StepClock,
        has_times: bool,
        is_back: bool = False,
        noise: PathNoise | None = None,
        linear: Linear | None = None,
        mass: np.ndarray = UNIT_MASS,
    ):
        self._maps, self._mass = NO_MAPS, mass
        if linear is not None and program.linear_maps:
            self._maps = build_linear_maps(linear, program.linear_maps, clock.h, n, has_times)
        self._noise = noise if program.noise else None
        self._layout = NO_NOISE if self._noise is None else self._noise.layout
        self._parts, self._program, self._n, self._clock, self._is_back = parts, program, n, clock, is_back
        fields = tuple(part.field for part in parts)
        self._p = fields[-1].p
        self._fields = np.array([field.address for field in fields], np.int64)
        self._pullbacks = np.array([part.vjp for part in parts], np.int64)
        is_even, m = clock.grid.size == 0, max(1, program.n_slopes)
        are_traced = all(part.trace is not None for part in parts if part.vjp != 0)
        self._sweep = self._reverse = 0
        if are_traced and program.operations and not program.is_implicit and not program.linear_maps:
            layout, size = self._layout, self._layout.size
            write = partial(write_sweep, program, is_even, is_back, noise=layout)
            self._sweep = find_fused_address(fields, program, (is_even, is_back, size), "sweep", write, m)
        code = find_stencil(fields)
        if code is not None and is_even and not has_times and not is_back:
            self._sweep, self._reverse = code.find_sweeps(program)
        elif self._sweep and any(part.vjp for part in parts):
            write_back = partial(write_reverse, program, is_even, has_times, noise=layout)
            self._reverse = find_fused_address(fields, program, (is_even, has_times, size), "reverse", write_back, m)
        self.is_generated = self._sweep != 0
        self._has_times = int(has_times)
        self._workspace: StepWorkspace | None = None
        self._solving: ImplicitSteps | None = None

    @property
    def n_solve_evaluations(self) -> int:
        """Evaluations of right-hand sides by the implicit operations so far."""
        return 0 if self._solving is None else int(self._solving.scratch.evaluations[0])

    def forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None = None) -> None:
        """Advance `state` (rows, n) over `count` steps; the states before them go to the rows of `states`."""
        if count == 0:
            return
        if not self._program.operations:
            state[:] = state[list(self._program.outputs)]
            return
        for at, part in self._split(first, count, self._is_back):
            kept = None if states is None else states[at - first : at - first + part]
            self._forward(state, at, part, kept)
        if not self._is_back and not is_finite(state):
            raise SweepFailed("a state became NaN or infinite")

    def _split(self, first: int, count: int, is_back: bool) -> Iterator[tuple[int, int]]:
        """Steps in chunks whose random variables are held at once, or, without any, of about `SLICE_SECONDS`."""
        if self._noise is not None:
            starts = range(first, first + count, NOISE_CHUNK)
            yield from ((at, min(NOISE_CHUNK, first + count - at)) for at in (reversed(starts) if is_back else starts))
            return
        work = self._n ** (3 if self._program.is_implicit else 1)
        done, size = 0, max(1, WORK_AT_FIRST // max(1, work))
        while done < count:
            part, began = min(size, count - done), time.perf_counter()
            yield first + (count - done - part if is_back else done), part
            done += part
            size = max(1, int(part * min(8.0, SLICE_SECONDS / max(time.perf_counter() - began, 1e-9))))

    def _forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None) -> None:
        clock, kept = self._clock, np.empty((1, state.size)) if states is None else states
        numbers = NO_NUMBERS if self._noise is None else self._noise.draw(first, count)
        if self._sweep:
            stride = 0 if states is None else state.size
            head = (_take_address(clock.grid), _take_address(state), _take_address(kept), stride)
            tail = (_take_address(self._p), *(() if self._noise is None else (_take_address(numbers),)))
            function = SWEEP if self._noise is None else NOISY_SWEEP
            function(self._sweep)(clock.t0, clock.h, first, count, *head, *tail)
        else:
            tape = build_program_arrays(self._program, self._layout)
            arguments = (self._fields, self._p, tape, self._implicit(), self._scratch(), clock, first, count)
            if sweep(*arguments, state, kept, int(states is not None), int(self._is_back), numbers) != DONE:
                self._explain()

    def backward(
        self,
        states: np.ndarray,
        first: int,
        count: int,
        bar: np.ndarray,
        sums: GradientSums,
        marks: LossReadSteps = NO_MARKS,
    ) -> None:
        """Pull the gradient `bar` (rows, n) back over `count` steps; the rows of `states` are the states before them.

        The gradients of `marks`, at steps from `first` on, are added at their steps.
        """
        if count == 0:
            return
        if not self._program.operations:
            self._transpose_copies(bar)
            return
        for at, part in self._split(first, count, is_back=True):
            some = slice(*np.searchsorted(marks.at, (at, at + part)))
            own = LossReadSteps(*(each[some] for each in marks))
            self._backward(states[at - first : at - first + part], at, part, bar, sums, own)

    def _transpose_copies(self, bar: np.ndarray) -> None:
        """The adjoint of a program that only copies rows."""
        given = bar.copy()
        bar[:] = 0.0
        for row, source in enumerate(self._program.outputs):
            bar[source] += given[row]

    def _backward(
        self, states: np.ndarray, first: int, count: int, bar: np.ndarray, sums: GradientSums, marks: LossReadSteps
    ) -> None:
        clock = self._clock
        numbers = NO_NUMBERS if self._noise is None else self._noise.draw(first, count)
        if self._reverse and self._noise is None and marks.at.size:
            tail = (first, count, states, bar, sums.p, sums.t, marks)
            reverse_generated(self._reverse, self._p, clock, *tail)
            return
        if self._reverse and not marks.at.size:
            pointers = (clock.grid, states, bar, sums.p, sums.t, self._p, *(() if self._noise is None else (numbers,)))
            function = REVERSE if self._noise is None else NOISY_REVERSE
            function(self._reverse)(clock.t0, clock.h, first, count, *map(_take_address, pointers))
            return
        tape = build_program_arrays(self._program, self._layout)
        numbers_of_parts = (self._fields, self._pullbacks, self._p, tape, self._implicit())
        head = (*numbers_of_parts, self._scratch(), clock, first, count)
        if reverse(*head, states, bar, sums.p, sums.t, self._has_times, marks, numbers) != DONE:
            self._explain()

    def _scratch(self) -> StepWorkspace:
        if self._workspace is None:
            tape = build_program_arrays(self._program, self._layout)
            widest = self._n * max(1, self._layout.size)  # of a diffusion
            shape = (self._program.n_rows + len(self._program.operations) + 1, pad_length(widest, np.dtype(float)))
            rows = np.zeros((2, *shape))
            self._workspace = StepWorkspace(*rows, *np.zeros((2, tape.weight.size)), np.zeros(2), np.zeros(1))
        return self._workspace

    def _implicit(self) -> ImplicitSteps:
        if self._solving is None:
            second = np.zeros(len(self._parts), np.int64)
            if any(isinstance(operation, LinearSolve) for operation in self._program.operations):
                self._second = tuple(compile_directional_pullback(part) for part in self._parts)
                second[:] = [code.address for code in self._second]
            scratch = allocate_solve_workspace(self._program, self._n, self._p.size, self._mass)
            numbers = (build_solve_arrays(self._program), self._pullbacks, second, scratch)
            self._solving = ImplicitSteps(*numbers, self._maps.address, self._maps.p, self._has_times)
        return self._solving

    def _explain(self) -> None:
        """Raise the exception of a right-hand side or a pullback."""
        for part in self._parts:
            callbacks = (callback.exception for callback in part.field.callbacks)
            for exception in (part.exception, *callbacks):
                if exception is not None:
                    raise exception
        if self._program.is_implicit:
            raise StepNotSolved("the equations of an implicit step could not be solved")
        raise SweepFailed("a right-hand side or its derivative raised an exception")


class GradientSums(NamedTuple):
    """Gradients summed over the steps: with respect to parameters, and to t0 and the scale of time."""

    p: np.ndarray
    t: np.ndarray
