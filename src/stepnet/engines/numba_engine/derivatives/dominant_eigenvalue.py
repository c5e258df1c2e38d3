"""The dominant eigenvalue of the Jacobian, by a power iteration on differences of the right-hand side."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.codegen.primitives import call_field

# Rows of `work`: the state, its slope, a direction, the state displaced along it, and the slope there.
Y, SLOPE, DIRECTION, MOVED, IMAGE = range(5)
ITERATIONS = 40


@Kernel
def find_dominant(field, p, work, t, n, reals, distance, result):
    """result = (|J v|, v'J v) for the direction v iterated from work[DIRECTION]; returns 1 on failure."""
    if call_field(field, t, work, Y, SLOPE, p, n) != 0:
        return 1
    for _ in range(ITERATIONS):
        length = 0.0
        for k in range(reals):
            length += work[DIRECTION, k] ** 2
        length = np.sqrt(length)
        if not (np.isfinite(length) and length > 0.0):
            return 1
        for k in range(reals):
            work[DIRECTION, k] /= length
            work[MOVED, k] = work[Y, k] + distance * work[DIRECTION, k]
        if call_field(field, t, work, MOVED, IMAGE, p, n) != 0:
            return 1
        square = product = 0.0
        for k in range(reals):
            image = (work[IMAGE, k] - work[SLOPE, k]) / distance
            square += image * image
            product += image * work[DIRECTION, k]
            work[DIRECTION, k] = image
        result[0], result[1] = np.sqrt(square), product
    return 0
