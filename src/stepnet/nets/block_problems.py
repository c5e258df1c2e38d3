"""Blocks of a net as problems, so that `solve` and its analysis tools apply to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepnet.fields import reference
from stepnet.nets.design import Block
from stepnet.problem import ODE, Partitioned, SecondOrder


def build_problem(block: Block, weights: dict[str, np.ndarray], y0: np.ndarray) -> ODE | Partitioned | SecondOrder:
    """Build the problem of a block with initial state y0 `(width, batch)`; an ODE includes its derivatives."""
    span, kind = (0.0, block.length), block.field.kind

    def now(t: float) -> dict[str, np.ndarray]:
        return {name: block.depth.values(controls, t / block.length) for name, controls in weights.items()}

    def right_hand_side(part: int) -> Callable[[float, np.ndarray], np.ndarray]:
        chain = block.field.chain(part)
        return lambda t, y: reference.evaluate(chain, now(t), t, np.asarray(y))

    if kind == "first":
        chain = block.field.chain(0)
        jvp = lambda t, y, v: reference.tangent(chain, now(t), t, np.asarray(y), np.asarray(v))
        vjp = lambda t, y, w: reference.pullback(chain, now(t), t, np.asarray(y), np.asarray(w)).x
        return ODE(right_hand_side(0), y0, span, jvp=jvp, vjp=vjp, trace=False)
    q, p = np.split(y0, 2)
    if kind == "second":
        return SecondOrder(right_hand_side(1), q, p, span, trace=False)
    return Partitioned(right_hand_side(0), right_hand_side(1), q, p, span, trace=False)
