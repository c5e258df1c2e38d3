"""What a user of Numba would write for an ensemble: a loop over members, each stepped by dopri5 for itself."""

from __future__ import annotations

import numpy as np
from numba import njit, prange, set_num_threads

A = np.array(
    [
        [0, 0, 0, 0, 0, 0],
        [1 / 5, 0, 0, 0, 0, 0],
        [3 / 40, 9 / 40, 0, 0, 0, 0],
        [44 / 45, -56 / 15, 32 / 9, 0, 0, 0],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729, 0, 0],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ]
)
E = np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40])


@njit
def slopes(y, rho, dy):
    dy[0] = 10.0 * (y[1] - y[0])
    dy[1] = y[0] * (rho - y[2]) - y[1]
    dy[2] = y[0] * y[1] - 8.0 / 3.0 * y[2]


@njit(parallel=True)
def ends(rhos, t_end, tolerance):
    """End states from (1, 1, 1), and accepted steps in all."""
    found = np.ones((rhos.size, 3))
    accepted = 0
    for i in prange(rhos.size):
        y, K, z = found[i], np.empty((7, 3)), np.empty(3)
        t, h = 0.0, 1e-3
        slopes(y, rhos[i], K[0])
        while t < t_end:
            h = min(h, t_end - t)
            for s in range(1, 7):
                for k in range(3):
                    total = 0.0
                    for j in range(s):
                        total += A[s, j] * K[j, k]
                    z[k] = y[k] + h * total
                slopes(z, rhos[i], K[s])
            error = 0.0
            for k in range(3):
                total = 0.0
                for j in range(7):
                    total += E[j] * K[j, k]
                error += (h * total / (tolerance + tolerance * max(abs(y[k]), abs(z[k])))) ** 2
            error = np.sqrt(error / 3)
            if error <= 1.0:
                t += h
                y[:] = z
                K[0] = K[6]
                accepted += 1
            h *= min(10.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.2))
    return found, accepted


def prepared(rhos: np.ndarray, t_end: float, tolerance: float):
    """A call on one thread, compiled."""
    set_num_threads(1)

    def call():
        return ends(rhos, t_end, tolerance)

    call()
    return call
