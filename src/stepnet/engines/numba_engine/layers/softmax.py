"""Cross-entropies of classes, row by row in one pass."""

from __future__ import annotations

from math import exp, log1p
from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument


class Entropies(NamedTuple):
    """log p and p = softmax(z), -sum_c q_c log p_c, and its gradient with respect to z, p sum_c q_c - q."""

    logarithms: np.ndarray
    shares: np.ndarray
    terms: np.ndarray
    gradient: np.ndarray


@Kernel
def _entropies(z, q, l, p, terms, gradient):  # noqa: E741
    """The largest term of each row is kept out of the sum and added by log1p, so that 1 - p is accurate."""
    zero = z.dtype.type(0.0)
    for i in range(z.shape[0]):
        best = 0
        for c in range(1, z.shape[1]):
            if z[i, best] == z[i, best] and not z[i, c] <= z[i, best]:  # the first NaN stays the best
                best = c
        top, total = z[i, best], zero
        for c in range(z.shape[1]):
            shifted = zero if z[i, c] == top else z[i, c] - top
            l[i, c] = shifted
            p[i, c] = exp(shifted)
            if c != best:
                total += p[i, c]
        rest, share, sum_of_terms, mass = log1p(total), 1 / (1 + total), zero, zero
        for c in range(z.shape[1]):
            l[i, c] -= rest
            p[i, c] *= share
            mass += q[i, c]
            if q[i, c] != 0:
                sum_of_terms -= q[i, c] * l[i, c]
        terms[i] = sum_of_terms
        for c in range(z.shape[1]):
            gradient[i, c] = p[i, c] * mass - q[i, c]
    return 0


@Kernel
def _class_entropies(z, labels, gradient, value, share):
    """As `_entropies` for one class per row, times `share`; returns the first row with an unknown class, or -1."""
    zero, total = z.dtype.type(0.0), 0.0
    for i in range(z.shape[0]):
        own, best = labels[i], 0
        if own < 0 or own >= z.shape[1]:
            return i
        for c in range(1, z.shape[1]):
            if z[i, best] == z[i, best] and not z[i, c] <= z[i, best]:
                best = c
        top, others = z[i, best], zero
        for c in range(z.shape[1]):
            gradient[i, c] = exp(zero if z[i, c] == top else z[i, c] - top)
            if c != best:
                others += gradient[i, c]
        part = share / (1 + others)
        for c in range(z.shape[1]):
            gradient[i, c] *= part
        gradient[i, own] -= share
        total += log1p(others) - (zero if z[i, own] == top else z[i, own] - top)
    value[0] = share * total
    return -1


@Kernel
def _mark(labels, q):
    """Set a one for the class of each row; returns the first row with an unknown class, or -1."""
    for i in range(q.shape[0]):
        if labels[i] < 0 or labels[i] >= q.shape[1]:
            return i
        q[i, labels[i]] = 1.0
    return -1


def _real(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)


def _rows(z: np.ndarray, real: np.dtype) -> np.ndarray:
    return as_argument(z.reshape(-1, z.shape[-1]), real)


def entropies(z: np.ndarray, q: np.ndarray) -> Entropies:
    """Cross-entropies over the last axis; infinite values are treated as limits of large ones."""
    real = _real(z.dtype)
    rows, weights = _rows(z, real), _rows(q, real)
    (l, p, gradient), terms = np.empty((3, *rows.shape), real), np.empty(len(rows), real)  # noqa: E741
    _entropies(rows, weights, l, p, terms, gradient)
    if z.ndim == 2 and z.dtype == real:
        return Entropies(l, p, terms, gradient)
    l, p, gradient = (each.reshape(z.shape).astype(z.dtype, copy=False) for each in (l, p, gradient))  # noqa: E741
    return Entropies(l, p, terms.reshape(z.shape[:-1]).astype(z.dtype, copy=False), gradient)


def class_entropies(z: np.ndarray, labels: np.ndarray, share: float) -> tuple[float, np.ndarray] | None:
    """share times the sum of -log p of each row's class, and its gradient; None for cases that need closer checks."""
    real, is_plain = z.dtype, labels.dtype == np.int64 and labels.shape == z.shape[:1]
    if not (is_plain and labels.flags.carray and z.flags.carray and real in (np.float32, np.float64)):
        return None
    gradient, value = np.empty_like(z), np.empty(1)
    wrong = _class_entropies(z, labels, gradient, value, real.type(share))
    return (float(value[0]), gradient) if wrong < 0 else None


def one_hot(labels: np.ndarray, classes: int, dtype: np.dtype) -> tuple[np.ndarray, int]:
    """Rows of zeros with a one for the class, and the first row with an unknown class, or -1."""
    real = _real(dtype)
    q = np.zeros((len(labels), classes), real)
    wrong = _mark(as_argument(labels), q)
    return q.astype(dtype, copy=False), wrong
