"""What the adjoint asks of this engine."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
from stepnet.engines.numba_engine.adjoint.interpolated_adjoint import interpolated_problem
from stepnet.engines.numba_engine.adjoint.step_sweeps import SweepFailed
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.derivatives.augmented_problems import (
    MOST,
    adjoint_problem,
    running_problem,
    tangent_problem,
)
from stepnet.engines.numba_engine.derivatives.jacobian_products import VJP
from stepnet.engines.numba_engine.derivatives.scalar_loss import scalar_of
from stepnet.engines.numba_engine.rhs.arguments import pack, unpack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.integer_arguments import whole_places, with_reals
from stepnet.engines.numba_engine.rhs.ladder import compile_traced, summarise, validate_code
from stepnet.engines.numba_engine.runs.identity import function_key, identity
from stepnet.engines.numba_engine.tracing.trace import trace
from stepnet.errors import NoDerivative
from stepnet.problem import ODE, Problem, Split

__all__ = [
    "EventFunction", "DifferentiableRun", "SweepFailed", "adjoint_problem", "as_argument_rows", "as_arguments",
    "as_block", "function_key", "identity", "interpolated_problem", "running_problem", "scalar_of",
    "tangent_problem", "whole_places", "with_reals",
]  # fmt: skip


def as_arguments(p: np.ndarray, args: tuple, is_known: bool = True) -> tuple:
    """Numbers of a parameter block in the shapes of the arguments; None where they are not known or no floats."""
    return unpack(p, pack(args).slots) if is_known else (None,) * len(args)


def as_argument_rows(p: np.ndarray, args: tuple, is_known: bool = True) -> tuple:
    """The same for an array whose last axis is that of the parameter block."""
    places = as_arguments(np.arange(p.shape[-1], dtype=float), args, is_known)
    return tuple(None if each is None else p[..., np.asarray(each, np.int64)] for each in places)


def as_block(direction, args: tuple) -> np.ndarray:
    """A direction in the space of the arguments, shaped as they are (None where there is none), as a flat block."""
    block = pack(args)
    values = np.zeros(block.values.size)
    for i, (slot, given) in enumerate(zip(block.slots, direction, strict=True)):
        if given is not None and not slot.is_real and np.any(given):
            raise ValueError(
                f"`args[{i}]` = {args[i]!r:.60} is no real number, or is used as an index or a count, so the end state "
                f"has no derivative with respect to it; give None as its direction"
            )
        if given is not None and slot.is_real:
            size, found = int(np.prod(slot.shape)), np.shape(given)
            if found != slot.shape:
                raise ValueError(f"`args` must be directions shaped as the arguments: {slot.shape}, found {found}")
            values[slot.offset : slot.offset + size] = np.ravel(given)
    return values


class EventFunction:
    """g(t, y, *args) of an event, with its derivatives with respect to all of them."""

    def __init__(self, problem: Problem, function):
        shape = problem.y0.shape if isinstance(problem, (ODE, Split)) else problem.q0.shape
        inputs = (shape,) if isinstance(problem, (ODE, Split)) else (shape, shape)
        form = find_call_form(function, problem.args, inputs, (), problem.initial.dtype, "event")
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
