"""Blocks of a net as plain problems, so that every solver and study applies to them."""

from __future__ import annotations

import numpy as np

from stepnet.fields import reference
from stepnet.nets.design import Block
from stepnet.problem import ODE, Partitioned, SecondOrder


def problem_of(block: Block, weights: dict[str, np.ndarray], y0: np.ndarray) -> ODE | Partitioned | SecondOrder:
    """y' = f(t, y), or its kin, from the state y0 `(width, batch)`."""
    depth, span = block.depth, (0.0, block.length)

    def right_hand_side(part: int):
        chain = block.field.chain(part)

        def slope(t, y):
            now = {name: depth.values(controls, t / block.length) for name, controls in weights.items()}
            return reference.evaluate(chain, now, t, np.asarray(y))

        return slope

    if block.field.kind == "first":
        return ODE(right_hand_side(0), y0, span, trace=False)
    q, p = np.split(y0, 2)
    if block.field.kind == "second":
        return SecondOrder(right_hand_side(1), q, p, span, trace=False)
    return Partitioned(right_hand_side(0), right_hand_side(1), q, p, span, trace=False)
