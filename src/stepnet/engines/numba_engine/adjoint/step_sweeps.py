"""Sweeps over the steps of a run, forward and in reverse: the numerical map and its exact adjoint.

A sweep executes the program of a scheme (`schemes/step_program.py`) step after step and stores the state before each.
In reverse, every step computes its rows again from the stored state and runs the program transposed.  Small traced
problems run in generated code, others in the two kernels here, which call right-hand sides and pullbacks by address.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.fused_steps import find_fused_address, write_reverse, write_sweep
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import accumulate, call_field, call_pullback, call_reverse
from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback
from stepnet.engines.numba_engine.integrators.stepping import pad_length
from stepnet.problem import is_finite
from stepnet.schemes.step_program import Slope, StepProgram

DONE, RAISED = 0, 1
_R, _I, _P = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
SWEEP = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _I, _P)
REVERSE = ctypes.CFUNCTYPE(ctypes.c_int32, _R, _R, _I, _I, _P, _P, _P, _P, _P, _P)


class SweepFailed(ArithmeticError):
    """Steps that cannot be taken; a solve with the same steps knows why."""


class ProgramArrays(NamedTuple):
    """A program as arrays: operation i is the slope of `part[i]`, or (part < 0) the sum of its terms.

    The terms of operation i are `first[i]` to `first[i + 1]`; those that read row r, `use_first[r]` to
    `use_first[r + 1]`, go to the rows `use_row` with the weights of the terms `use_term`.
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


class StepWorkspace(NamedTuple):
    """Room for a step: rows and their gradients, weights times powers of h, gradients with respect to times."""

    work: np.ndarray
    bars: np.ndarray
    weights: np.ndarray
    back: np.ndarray
    times: np.ndarray
    t_bar: np.ndarray


class LossReadSteps(NamedTuple):
    """Steps at which a loss reads the state: `at` (ascending, without repetition), and its gradients (at, rows, n).

    With room in `bars` and `p_bars` the gradients of each stretch between two of them are told apart: what has been
    summed up since the mark after it is stored there, and the next stretch begins with `seeds` alone.
    """

    at: np.ndarray
    seeds: np.ndarray
    bars: np.ndarray
    p_bars: np.ndarray


NO_MARKS = LossReadSteps(np.zeros(0, np.int64), np.zeros((0, 1, 1)), np.zeros((0, 1, 1)), np.zeros((0, 1)))


class StepClock(NamedTuple):
    """The steps of a run: even ones of length h from t0, or those between the times of a grid."""

    t0: float
    h: float
    grid: np.ndarray


@lru_cache(maxsize=256)
def build_program_arrays(program: StepProgram) -> ProgramArrays:
    """The arrays of a program."""
    operations = program.operations
    slopes = [operation if isinstance(operation, Slope) else None for operation in operations]
    terms = [() if isinstance(operation, Slope) else operation.terms for operation in operations]
    flat = [term for some in terms for term in some]
    targets = np.repeat(program.n_rows + np.arange(len(operations)), list(map(len, terms)))
    by_row = np.argsort([term.row for term in flat], kind="stable")
    counts = np.bincount([term.row for term in flat], minlength=program.n_rows + len(operations))
    return ProgramArrays(
        np.array([-1 if slope is None else slope.part for slope in slopes], np.int64),
        np.array([-1 if slope is None else slope.row for slope in slopes], np.int64),
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
    )


@inlined
def find_step_time(clock, index):
    """Beginning and length of a step."""
    if clock.grid.shape[0] > 0:
        return clock.grid[index], clock.grid[index + 1] - clock.grid[index]
    return clock.t0 + index * clock.h, clock.h


@inlined
def scale(tape, weights, back, h):
    """The weights of all terms for a step of length h; `back` in the order in which rows are used."""
    for m in range(tape.weight.shape[0]):
        weights[m] = tape.weight[m] * h ** tape.power[m]
    for m in range(back.shape[0]):
        back[m] = weights[tape.use_term[m]]


@inlined
def execute(fields, p, tape, weights, work, t, h, n):
    """All rows of a step from those of its state; False if a right-hand side raised.  The last row stays zero."""
    zero = work.shape[0] - 1
    for i in range(tape.part.shape[0]):
        out = tape.n_rows + i
        if tape.part[i] < 0:
            accumulate(work, out, zero, weights, tape.term_row, tape.first[i], tape.first[i + 1])
        elif call_field(uintp(fields[tape.part[i]]), t + tape.c[i] * h, work, tape.row[i], out, p, n) != 0:
            return False
    return True


@Kernel
def sweep(fields, p, tape, scratch, clock, first, count, state, states, is_kept, is_back):
    """`count` steps from step `first`; the state before each goes to a row of `states` if it is to be kept.

    A program that undoes steps goes back over them, and what it keeps is what it arrives at.
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
        if not execute(fields, p, tape, scratch.weights, work, t, h, n):
            return RAISED
        for row in range(tape.n_rows):
            for k in range(n):
                state[row, k] = work[tape.outputs[row], k]
                if is_kept and is_back:
                    states[i, row * n + k] = state[row, k]
    return DONE


@inlined
def transpose(pullbacks, p, tape, scratch, t, h, n, p_bar, times):
    """Gradients with respect to all rows of a step from those of its outputs; False if a pullback raised."""
    work, bars, t_bar = scratch.work, scratch.bars, scratch.t_bar
    for j in range(tape.n_rows + tape.part.shape[0]):
        row = tape.n_rows + tape.part.shape[0] - 1 - j
        accumulate(bars, row, row, scratch.back, tape.use_row, tape.use_first[row], tape.use_first[row + 1])
        i = row - tape.n_rows
        if i >= 0 and tape.part[i] >= 0:
            t_bar[0] = 0.0
            at, t_stage = tape.row[i], t + tape.c[i] * h
            if call_pullback(uintp(pullbacks[tape.part[i]]), t_stage, work, at, p, bars, row, t_bar, at, p_bar, n) != 0:
                return False
            times[0] += t_bar[0]
            times[1] += tape.c[i] * t_bar[0]
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
    """Add the gradient that a loss has at mark k."""
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
def reverse(fields, pullbacks, p, tape, scratch, clock, first, count, states, bar, p_bar, t_bars, has_times, marks):
    """The adjoint of the steps of a sweep, the last one first; `bar` is moved, `p_bar` and `t_bars` are added to."""
    n, work, bars, times = bar.shape[1], scratch.work, scratch.bars, scratch.times
    mark = marks.at.shape[0] - 1
    for j in range(count):
        i = count - 1 - j
        for row in range(tape.n_rows):
            for k in range(n):
                work[row, k] = states[i, row * n + k]
        t, h = find_step_time(clock, first + i)
        scale(tape, scratch.weights, scratch.back, h)
        if not execute(fields, p, tape, scratch.weights, work, t, h, n):
            return RAISED
        for row in range(bars.shape[0]):
            for k in range(n):
                bars[row, k] = 0.0
        for row in range(tape.n_rows):
            for k in range(n):
                bars[tape.outputs[row], k] += bar[row, k]
        times[:] = 0.0
        if not transpose(pullbacks, p, tape, scratch, t, h, n, p_bar, times):
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
    """The same by generated code, from mark to mark."""
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


def _at(array: np.ndarray) -> int:
    return array.ctypes.data


class ProgramRunner:
    """One program of a motion on a problem: `forward` over steps of a clock, and `backward` by its adjoint."""

    def __init__(
        self,
        parts: tuple[PartPullback, ...],
        program: StepProgram,
        n: int,
        clock: StepClock,
        has_times: bool,
        is_back: bool = False,
    ):
        self._parts, self._program, self._n, self._clock, self._is_back = parts, program, n, clock, is_back
        fields = tuple(part.field for part in parts)
        self._p = fields[-1].p
        self._fields = np.array([field.address for field in fields], np.int64)
        self._pullbacks = np.array([part.vjp for part in parts], np.int64)
        is_even, m = clock.grid.size == 0, max(1, program.n_slopes)
        are_traced = all(part.trace is not None for part in parts if part.vjp != 0)
        self._sweep = self._reverse = 0
        if are_traced and program.operations:
            write = partial(write_sweep, program, is_even, is_back)
            self._sweep = find_fused_address(fields, program, (is_even, is_back), "sweep", write, m)
            write_back = partial(write_reverse, program, is_even, has_times)
            self._reverse = find_fused_address(fields, program, (is_even, has_times), "reverse", write_back, m)
        self.is_generated = self._sweep != 0
        self._has_times = int(has_times)
        self._room: StepWorkspace | None = None

    def forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None = None) -> None:
        """Move `state` (rows, n) over `count` steps; the states before them go to the rows of `states`."""
        if count == 0 or not self._program.operations:
            return
        clock, kept = self._clock, np.empty((1, state.size)) if states is None else states
        if self._sweep:
            stride = 0 if states is None else state.size
            pointers = (_at(clock.grid), _at(state), _at(kept), stride, _at(self._p))
            SWEEP(self._sweep)(clock.t0, clock.h, first, count, *pointers)
        else:
            head = (self._fields, self._p, build_program_arrays(self._program), self._scratch(), clock, first, count)
            if sweep(*head, state, kept, int(states is not None), int(self._is_back)) != DONE:
                self._explain()
        if not self._is_back and not is_finite(state):
            raise SweepFailed("a state became NaN or infinite")

    def backward(
        self,
        states: np.ndarray,
        first: int,
        count: int,
        bar: np.ndarray,
        sums: GradientSums,
        marks: LossReadSteps = NO_MARKS,
    ) -> None:
        """Move the gradient `bar` (rows, n) back over `count` steps, the states before which are rows of `states`.

        The gradients of `marks`, at steps from `first` on, are added on the way.
        """
        if count == 0 or not self._program.operations:
            return
        clock = self._clock
        if self._reverse and marks.at.size:
            tail = (first, count, states, bar, sums.p, sums.t, marks)
            reverse_generated(self._reverse, self._p, clock, *tail)
            return
        if self._reverse:
            pointers = (clock.grid, states, bar, sums.p, sums.t, self._p)
            REVERSE(self._reverse)(clock.t0, clock.h, first, count, *map(_at, pointers))
            return
        head = (
            self._fields,
            self._pullbacks,
            self._p,
            build_program_arrays(self._program),
            self._scratch(),
            clock,
            first,
            count,
        )
        if reverse(*head, states, bar, sums.p, sums.t, self._has_times, marks) != DONE:
            self._explain()

    def _scratch(self) -> StepWorkspace:
        if self._room is None:
            tape = build_program_arrays(self._program)
            shape = (self._program.n_rows + len(self._program.operations) + 1, pad_length(self._n, np.dtype(float)))
            rows = np.zeros((2, *shape))
            self._room = StepWorkspace(*rows, *np.zeros((2, tape.weight.size)), np.zeros(2), np.zeros(1))
        return self._room

    def _explain(self) -> None:
        """Raise what a right-hand side or a pullback raised."""
        for part in self._parts:
            callbacks = (callback.exception for callback in part.field.callbacks)
            for exception in (part.exception, *callbacks):
                if exception is not None:
                    raise exception
        raise SweepFailed("a right-hand side or its derivative raised an exception")


class GradientSums(NamedTuple):
    """Gradients that are summed up over the steps: with respect to parameters, and to t0 and the scale of time."""

    p: np.ndarray
    t: np.ndarray
