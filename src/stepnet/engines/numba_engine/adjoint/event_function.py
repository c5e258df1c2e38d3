"""The function of an event and its derivatives."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.derivatives.augmented_problems import MOST, refuse_singular_mass
from stepnet.engines.numba_engine.derivatives.jacobian_products import VJP
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.ladder import compile_traced, summarise, validate_code
from stepnet.engines.numba_engine.tracing.trace import trace
from stepnet.errors import NoDerivative
from stepnet.problem import Problem, list_part_shapes


class EventFunction:
    """g(t, y, *args) of an event, and its derivatives with respect to all of them."""

    def __init__(self, problem: Problem, function):
        refuse_singular_mass(problem, "`event`")
        form = find_call_form(function, problem.args, list_part_shapes(problem), (), problem.initial.dtype, "event")
        self._block, self._n = pack(problem.args), problem.initial.size
        try:
            traced = trace(form, self._block, MOST)
            self._value = validate_code(compile_traced(traced), form, self._block, problem.t_span, problem.initial)
        except Exception as exception:
            raise NoDerivative(f"`event` could not be traced: {summarise(exception)}") from None
        self._pullback = MachineCode(write_assembly(traced, "vjp"), "vjp")

    def value(self, t: float, y: np.ndarray) -> float:
        out, y = np.empty(1), np.ascontiguousarray(y)
        SIGNATURE(self._value.address)(t, *_pointers(y, out, self._block.values), self._n)
        return float(out[0])

    def gradient(self, t: float, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """dg/dt, dg/dy, dg/dp."""
        t_bar, y_bar, p_bar = np.zeros(1), np.zeros(self._n), np.zeros(self._block.values.size)
        y, one = np.ascontiguousarray(y), np.ones(1)
        pointers = _pointers(y, self._block.values, one, t_bar, y_bar, p_bar)
        VJP(self._pullback.address)(t, *pointers, self._n)
        return float(t_bar[0]), y_bar, p_bar


def _pointers(*arrays: np.ndarray) -> tuple[int, ...]:
    return tuple(array.ctypes.data for array in arrays)
