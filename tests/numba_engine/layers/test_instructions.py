"""Instructions of layers execute their program, and the peephole passes change only their number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scheme_names import FIXED_STEPS

from stepnet.engines.numba_engine.layers.instructions import (
    DTYPES,
    SLOPE,
    SUM,
    ZERO,
    Instruction,
    drop_copies,
    fuse_sums,
    tabulate,
    write_forward,
    write_reverse,
)
from stepnet.engines.numba_engine.layers.tables import _find_passed
from stepnet.problem import ProblemForm
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import _build_program, accepts, is_implicit, needs_linear_part
from stepnet.schemes.step_program import Slope

N, H = 3, 0.3
EXPLICIT = [  # compiled layers refuse implicit steps, and have no linear part
    name for name in FIXED_STEPS if not (is_implicit(catalogue.get(name)) or needs_linear_part(catalogue.get(name)))
]
CASES = [(name, form) for name in EXPLICIT for form in ProblemForm if accepts(catalogue.get(name), form)]


def lay_out(program):
    """Rows of a program as `tables` lays them out: what is handed on lies in the next state."""
    passed = _find_passed(program)
    return SimpleNamespace(
        n_rows=program.n_rows + len(program.operations),
        passed=passed,
        copied=[j for j, row in enumerate(program.outputs) if passed.get(row) != j],
        finals=set(),
        slopes=[i for i, operation in enumerate(program.operations) if isinstance(operation, Slope)],
    )


class Machine:
    """Runs instructions on vectors; slope i is multiplication by a matrix of its own."""

    def __init__(self, rows):
        generator = np.random.default_rng(0)
        self.rows = rows
        self.matrices = generator.standard_normal((len(rows.slopes), N, N))
        self.values = {}

    def place(self, row):
        return self.rows.n_rows + self.rows.passed[row] if row in self.rows.passed else row

    def get(self, row):
        return self.values[self.place(row)]

    def set(self, row, value):
        self.values[self.place(row)] = value

    def forward(self, code, state):
        self.values = dict(enumerate(state))
        for o in code:
            if o.kind == SLOPE:
                self.set(o.out, self.matrices[o.slope] @ self.get(o.one))
                if o.is_added:
                    self.set(o.total, o.v * self.get(o.other) + o.w * self.get(o.out))
            elif o.kind == SUM:
                self.set(o.out, o.v * self.get(o.one) + o.w * self.get(o.other))
            else:
                self.set(o.out, (self.get(o.out) if o.is_added else 0.0) + o.v * self.get(o.one))
        return np.array([self.values[self.rows.n_rows + j] for j in range(len(state))])

    def reverse(self, code, bars):
        self.values = {self.rows.n_rows + j: bar for j, bar in enumerate(bars)}
        for o in code:
            if o.kind == SLOPE:
                begin = self.get(o.other) if o.is_added else 0.0
                self.set(o.out, begin + self.matrices[o.slope].T @ (o.v * self.get(o.total)))
            elif o.kind == ZERO:
                self.set(o.out, np.zeros(N))
            else:
                self.set(o.out, (self.get(o.out) if o.is_added else 0.0) + o.v * self.get(o.one))
        return np.array([self.values[j] for j in range(len(bars))])


def run_program(program, matrices, state):
    """The program itself, operation by operation."""
    rows, slope = list(state), 0
    for operation in program.operations:
        if isinstance(operation, Slope):
            rows.append(matrices[slope] @ rows[operation.row])
            slope += 1
        else:
            rows.append(sum(term.weight * H**term.power * rows[term.row] for term in operation.terms))
    return np.array([rows[row] for row in program.outputs])


@pytest.mark.parametrize(("name", "form"), CASES, ids=[f"{name}-{form.name}" for name, form in CASES])
def test_passes_keep_the_map_and_its_transpose(name, form):
    program = _build_program(catalogue.get(name), form).step
    rows = lay_out(program)
    machine, generator = Machine(rows), np.random.default_rng(1)
    x, w = generator.standard_normal((2, program.n_rows, N))
    forward, reverse = write_forward(program, rows, H), write_reverse(program, rows, H)
    y = run_program(program, machine.matrices, x)
    size = np.abs(y).max()
    for code in (forward, fuse_sums(forward)):
        np.testing.assert_allclose(machine.forward(code, x), y, rtol=0, atol=1e-12 * size)
    x_bar = machine.reverse(reverse, w)
    np.testing.assert_allclose(np.vdot(x_bar, x), np.vdot(w, y), rtol=1e-10, atol=1e-10 * size)
    np.testing.assert_allclose(
        machine.reverse(drop_copies(reverse), w), x_bar, rtol=0, atol=1e-12 * np.abs(x_bar).max()
    )


def test_passes_shorten_the_code():
    """By one instruction for every slope that goes into a sum at once, and every gradient that is a multiple."""
    program = _build_program(catalogue.get("euler"), ProblemForm.FIRST).step
    rows = lay_out(program)
    forward, reverse = write_forward(program, rows, H), write_reverse(program, rows, H)
    assert [o.kind for o in forward] == [SLOPE, SUM]
    assert [o.kind for o in fuse_sums(forward)] == [SLOPE]
    assert len(drop_copies(reverse)) < len(reverse)


def test_a_slope_goes_into_one_sum_only():
    first, second = Instruction(SUM, 2, 0, 1, v=1.0, w=2.0), Instruction(SUM, 3, 0, 1, v=1.0, w=3.0)
    fused = fuse_sums([Instruction(SLOPE, 1, 0), first, second])
    assert fused == [Instruction(SLOPE, 1, 0, 0, 0, 1, 2, 1.0, 2.0), second]


@pytest.mark.parametrize("real", DTYPES, ids=str)
def test_records_hold_what_instructions_say(real):
    one = Instruction(SUM, 1, 2, 3, 4, 1, 6, 0.5, 0.25)
    table = tabulate([one], real)
    assert Instruction(*table[0].tolist()) == one
    assert table.dtype is DTYPES[real]
    assert table.dtype["v"] == real
