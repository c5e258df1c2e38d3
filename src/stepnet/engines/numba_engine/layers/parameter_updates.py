"""Updates of a flat parameter vector in a single pass."""

from __future__ import annotations

from math import sqrt

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument


@Kernel
def _adam(theta, gradient, mean, squares, new, new_mean, new_squares, beta1, beta2, keep, rate, scale, eps):
    one = theta.dtype.type(1.0)
    for i in range(theta.shape[0]):
        g = gradient[i]
        m = beta1 * mean[i] + (one - beta1) * g
        s = beta2 * squares[i] + (one - beta2) * g * g
        new_mean[i], new_squares[i] = m, s
        new[i] = keep * theta[i] - rate * m / (sqrt(s) * scale + eps)
    return 0


def adam(theta, gradient, mean, squares, numbers) -> tuple[np.ndarray, ...]:
    """keep theta - rate m / (scale sqrt(s) + eps), m and s; `numbers` are beta1, beta2, keep, rate, scale, eps."""
    real = theta.dtype
    arrays = [as_argument(each, real) for each in (theta, gradient, mean, squares)]
    found = tuple(np.empty_like(arrays[0]) for _ in range(3))
    _adam(*arrays, *found, *map(real.type, numbers))
    return found
