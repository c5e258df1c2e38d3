"""What the adjoint asks of this engine."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.compile.arguments import pack, unpacked
from stepnet.engines.numba_engine.compile.augmented import adjoint_problem, running_problem, tangent_problem
from stepnet.engines.numba_engine.compile.products import VJP
from stepnet.engines.numba_engine.compile.pullbacks import parts_of
from stepnet.engines.numba_engine.compile.scalar import Scalar, checked_value
from stepnet.engines.numba_engine.identity import identity
from stepnet.engines.numba_engine.sweep import Linearised, Sums
from stepnet.problem import Problem

__all__ = [
    "Linearised", "Scalar", "Sums", "adjoint_problem", "as_arguments", "as_block", "checked_value", "identity",
    "pullback", "running_problem", "tangent_problem",
]  # fmt: skip


def as_arguments(p: np.ndarray, args: tuple) -> tuple:
    """Numbers of a parameter block in the shapes of the arguments; None for those that are no floats."""
    return unpacked(p, pack(args).slots)


def as_block(direction, args: tuple) -> np.ndarray:
    """A direction in the space of the arguments, shaped as they are (None where there is none), as a flat block."""
    block = pack(args)
    values = np.zeros(block.values.size)
    for slot, given in zip(block.slots, direction, strict=True):
        if given is not None:
            size = int(np.prod(slot.shape))
            values[slot.offset : slot.offset + size] = np.ravel(given)
    return values


def pullback(problem: Problem, differences: bool = False):
    """`(t, y, w) -> (w df/dy, w df/dp)` of the flat state, for calls from Python."""
    (part,) = parts_of(problem, is_joined=True, differences=differences)
    call, p = VJP(part.vjp), part.field.p

    def product(t: float, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, w = np.ascontiguousarray(y), np.ascontiguousarray(w)
        t_bar, y_bar, p_bar = np.zeros(1), np.zeros(y.size), np.zeros(p.size)
        if call(t, *(array.ctypes.data for array in (y, p, w, t_bar, y_bar, p_bar)), y.size) != 0:
            raise part.exception or FloatingPointError(f"the derivative of the right-hand side raised at t = {t:g}")
        return y_bar, p_bar

    return product
