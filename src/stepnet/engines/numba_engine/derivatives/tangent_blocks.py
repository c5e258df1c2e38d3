"""Runs of a state with many tangents by equal steps, whose coefficients are computed once for all tangents."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.codegen.steps.fused_steps import find_fused_address
from stepnet.engines.numba_engine.codegen.steps.tangent_steps import (
    COLUMNS,
    TangentSplit,
    is_written,
    split_trace,
    write_tangent_steps,
)
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field
from stepnet.problem import ODE
from stepnet.schemes.capabilities import admits_lanes
from stepnet.schemes.step_program import StepProgram, build_scheme_program

LONGEST = 6000  # operations of a step
SLICE_OPERATIONS = 1e8  # on eight tangents in one call, about 50 ms
ALIGNMENT = 64
NUMBER, COUNT, ARRAY = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, NUMBER, NUMBER, COUNT, COUNT, ARRAY, ARRAY, COUNT, ARRAY, ARRAY)


class TangentBlock:
    """Equal steps of a state y (n,) and tangents V (n, tangents), as `write_tangent_steps` takes them."""

    def __init__(self, field: CompiledRHS, address: int, split: TangentSplit, program: StepProgram, tangents: int):
        n, self._field, self._call = len(split.slopes), field, SIGNATURE(address)
        self._groups, self._tangents, self._p = -(-tangents // COLUMNS), tangents, np.array(field.p, float)
        self._y, self._shared = np.zeros(n), np.zeros(max(1, len(split.shared) * program.n_slopes))
        size, item = 2 * self._groups * n * COLUMNS, self._y.itemsize
        raw = np.zeros(size + ALIGNMENT // item)
        start = -raw.ctypes.data % ALIGNMENT // item
        self._v = raw[start : start + size].reshape(2, self._groups, n, COLUMNS)
        self._columns = np.zeros((n, self._groups * COLUMNS))
        places = [each.ctypes.data for each in (self._y, self._v, self._shared, self._p)]
        self._places = (*places[:2], self._groups, *places[2:])
        self._most = max(1, int(SLICE_OPERATIONS / (split.size * program.n_slopes * self._groups)))

    def advance(
        self, y: np.ndarray, V: np.ndarray, t_span: tuple[float, float], steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The state and the tangents after equal steps through a time span."""
        n, h = len(y), (t_span[1] - t_span[0]) / steps
        self._columns[:, : self._tangents] = V
        self._y[:], self._v[0] = y, self._columns.reshape(n, self._groups, COLUMNS).swapaxes(0, 1)
        for first in range(0, steps, self._most):
            count = min(self._most, steps - first)
            self._call(t_span[0], h, first, count, *self._places)
        found = self._v[steps % 2].swapaxes(0, 1).reshape(n, -1)
        return self._y.copy(), found[:, : self._tangents]


def build_tangent_block(both: Any, scheme: Any, tangents: int) -> TangentBlock | None:
    """A block for a problem of a state with its tangent (`tangent_problem`); None where its steps cannot be written."""
    if not isinstance(both, ODE) or not admits_lanes(scheme, both.form, is_fixed=True):
        return None
    program = build_scheme_program(scheme, 1, is_sum=False, is_second_order=False)
    field = build_full_field(both)
    code = field.keep_alive
    if program.opening.operations or not is_written(program.step) or not isinstance(code, MachineCode):
        return None
    split = None if code.trace is None else split_trace(code.trace)
    if split is None:
        return None
    write = partial(write_tangent_steps, program.step, split)
    address = find_fused_address((field,), program.step, "block", "tangents", write, program.step.n_slopes, LONGEST)
    return TangentBlock(field, address, split, program.step, tangents) if address else None
