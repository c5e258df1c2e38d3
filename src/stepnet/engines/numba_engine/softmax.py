"""Logarithms of probabilities and entropies, row by row in one pass."""

from __future__ import annotations

from math import exp, log1p

import numpy as np

from stepnet.engines.numba_engine.compile.cache import Kernel


@Kernel
def _entropies(z, q, l, p, terms):  # noqa: E741
    """The largest term is kept out of the sum of each row and joined by log1p, so that 1 - p keeps its digits."""
    zero = z.dtype.type(0.0)
    for i in range(z.shape[0]):
        best = 0
        for c in range(1, z.shape[1]):
            if z[i, best] == z[i, best] and not z[i, c] <= z[i, best]:  # the first undefined number stays the best
                best = c
        top, total = z[i, best], zero
        for c in range(z.shape[1]):
            shifted = zero if z[i, c] == top else z[i, c] - top
            l[i, c] = shifted
            p[i, c] = exp(shifted)
            if c != best:
                total += p[i, c]
        rest, share, sum_of_terms = log1p(total), 1 / (1 + total), zero
        for c in range(z.shape[1]):
            l[i, c] -= rest
            p[i, c] *= share
            if q[i, c] != 0:
                sum_of_terms -= q[i, c] * l[i, c]
        terms[i] = sum_of_terms
    return 0


def _rows(z: np.ndarray, real: np.dtype) -> np.ndarray:
    rows = z.reshape(-1, z.shape[-1])
    return rows if rows.flags.carray and rows.dtype == real else np.array(rows, real)


def entropies(z: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p, p = softmax(z) and -sum_c q_c log p_c over the last axis; infinite numbers are limits of large ones."""
    real = np.dtype(np.float32 if z.dtype == np.float32 else np.float64)
    rows, weights = _rows(z, real), _rows(q, real)
    l, p, terms = np.empty_like(rows), np.empty_like(rows), np.empty(len(rows), real)  # noqa: E741
    _entropies(real, rows, weights, l, p, terms)
    return l.reshape(z.shape), p.reshape(z.shape), terms.reshape(z.shape[:-1])
