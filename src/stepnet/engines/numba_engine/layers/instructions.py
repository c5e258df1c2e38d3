"""The instructions of a program and of its transpose, as the kernels of `layer_kernels` read them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from stepnet.engines.numba_engine.layers import layer_kernels
from stepnet.schemes.step_program import Slope, StepProgram


class ProgramRows(Protocol):
    """The rows of a program: those that lie in the next state, that are copied there, that are read at the end."""

    n_rows: int
    passed: dict[int, int]
    copied: list[int]
    finals: set[int]
    slopes: list[int]


def write_forward(program: StepProgram, rows: ProgramRows, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and sums; rows of the state that are handed on are copied at the end.

    A slope k and the sum v y + w k that follows it are one instruction: (SLOPE, k, x, y, number, 1, sum), v, w.
    """
    code: list[list] = []
    slope = 0
    for i, operation in enumerate(program.operations):
        out = program.n_rows + i
        if isinstance(operation, Slope):
            code.append([layer_kernels.SLOPE, out, operation.row, 0, slope, 0, 0, 0.0, 0.0])
            slope += 1
            continue
        terms = [(term.row, term.weight * h**term.power) for term in operation.terms]
        if len(terms) == 1:
            code.append([layer_kernels.SCALED, out, terms[0][0], 0, 0, 0, 0, terms[0][1], 0.0])
        elif code and code[-1][:2] == [layer_kernels.SLOPE, terms[1][0]] and terms[0][0] != terms[1][0]:
            code[-1][3], code[-1][5:] = terms[0][0], [1, out, terms[0][1], terms[1][1]]
        else:
            (one, v), (other, w) = terms[:2]
            code.append([layer_kernels.SUM, out, one, other, 0, 0, 0, v, w])
        code += [[layer_kernels.SCALED, out, row, 0, 0, 1, 0, weight, 0.0] for row, weight in terms[2:]]
    code += [[layer_kernels.SCALED, rows.n_rows + j, program.outputs[j], 0, 0, 0, 0, 1.0, 0.0] for j in rows.copied]
    return _as_arrays(code)


def write_reverse(program: StepProgram, rows: ProgramRows, h: float) -> tuple[np.ndarray, np.ndarray]:
    """The program transposed.  A gradient is set where it is first met, and added to from then on.

    The pullback of a slope, x_bar = b + K' (v f), is (SLOPE, x, k, b, number, whether there is a b, f), v: f is the
    gradient of k, or what that is a multiple of; b is x_bar itself, or what that is a copy of.
    """
    code: list[list] = []
    met: set[int] = set()

    def add(target, source, weight):
        code.append([layer_kernels.SCALED, target, source, 0, 0, int(target in met), 0, weight, 0.0])
        met.add(target)

    def taken(target, weight=None):
        """What the row was set to, if nothing touched either since then: that is left out.  Else the row itself."""
        touched = set()
        for k in range(len(code) - 1, -1, -1):
            kind, out, source, _, _, is_added, _, v, _ = code[k]
            if kind != layer_kernels.SCALED or target in touched:
                break
            if out == target and not is_added and source not in touched and weight in (None, v):
                del code[k]
                return source, v
            touched |= {out, source} if source == target else {out}  # its reader needs the row itself
        return target, 1.0

    met |= {*rows.passed, *rows.finals}
    for j in rows.copied:
        add(program.outputs[j], rows.n_rows + j, 1.0)
    slope = len(rows.slopes)
    for i in range(len(program.operations) - 1, -1, -1):
        operation, out = program.operations[i], program.n_rows + i
        is_slope = isinstance(operation, Slope)
        slope -= is_slope
        if out not in met:
            continue
        if is_slope:
            source, weight = taken(out)
            begin, _ = taken(operation.row, 1.0)
            is_begun = int(operation.row in met)
            code.append([layer_kernels.SLOPE, operation.row, out, begin, slope, is_begun, source, weight, 0.0])
            met.add(operation.row)
        else:
            for term in operation.terms:
                add(term.row, out, term.weight * h**term.power)
    code += [[layer_kernels.ZERO, row, 0, 0, 0, 0, 0, 0.0, 0.0] for row in range(program.n_rows) if row not in met]
    return _as_arrays(code)


def _as_arrays(code) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(code, float).reshape(-1, 9)
    return table[:, :7].astype(np.int64), np.ascontiguousarray(table[:, 7:])
