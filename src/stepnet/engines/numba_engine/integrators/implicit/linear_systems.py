"""Dense and banded linear systems inside kernels: LU factorisation with partial pivoting, in place.

A dense matrix is an array (n, n).  A banded one with `lower` and `upper` diagonals is an array
(n, 2 lower + upper + 1) that holds entry (i, j) at (i, j - i + lower); the last `lower` columns receive what pivoting
fills in.  Functions take real and complex numbers; `lower` < 0 stands for a dense matrix.
"""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined

DENSE = -1  # `lower` of a dense matrix


@inlined
def find_size(x):
    """|re x| + |im x|, which chooses pivots without square roots."""
    return abs(x.real) + abs(x.imag)


@compiled
def factorise(M, pivots, lower, upper):
    """Replace a matrix by its factors; False if it is singular or not finite."""
    n = M.shape[0]
    for k in range(n):
        last_row = n if lower < 0 else min(n, k + lower + 1)
        last_column = n if lower < 0 else min(n, k + lower + upper + 1)
        shift = 0 if lower < 0 else lower  # entry (i, j) is at column j + shift - i, or j
        best, pivot = -1.0, k
        for i in range(k, last_row):
            size = find_size(M[i, k if lower < 0 else k - i + shift])
            if size > best:
                best, pivot = size, i
        if not (best > 0.0 and np.isfinite(best)):
            return False
        pivots[k] = pivot
        if lower < 0:
            if pivot != k:
                for j in range(n):
                    M[k, j], M[pivot, j] = M[pivot, j], M[k, j]
            for i in range(k + 1, n):
                if M[i, k] != 0.0:
                    factor = M[i, k] / M[k, k]
                    M[i, k] = factor
                    for j in range(k + 1, n):
                        M[i, j] -= factor * M[k, j]
        else:
            if pivot != k:
                for j in range(k, last_column):
                    a, b = j - k + shift, j - pivot + shift
                    M[k, a], M[pivot, b] = M[pivot, b], M[k, a]
            for i in range(k + 1, last_row):
                factor = M[i, k - i + shift] / M[k, shift]
                M[i, k - i + shift] = factor
                for j in range(k + 1, last_column):
                    M[i, j - i + shift] -= factor * M[k, j - k + shift]
    return True


@compiled
def solve_factorised(M, pivots, x, lower, upper):
    """Replace x by M^-1 x, for the factors of a matrix."""
    n = M.shape[0]
    if lower < 0:
        for k in range(n):  # all exchanges first: they moved whole rows
            pivot = pivots[k]
            if pivot != k:
                x[k], x[pivot] = x[pivot], x[k]
        for i in range(n):
            total = x[i]
            for j in range(i):
                total -= M[i, j] * x[j]
            x[i] = total
        for i in range(n - 1, -1, -1):
            total = x[i]
            for j in range(i + 1, n):
                total -= M[i, j] * x[j]
            x[i] = total / M[i, i]
        return
    for k in range(n):  # exchanges moved only the entries right of the diagonal
        pivot = pivots[k]
        if pivot != k:
            x[k], x[pivot] = x[pivot], x[k]
        for i in range(k + 1, min(n, k + lower + 1)):
            x[i] -= M[i, k - i + lower] * x[k]
    for i in range(n - 1, -1, -1):
        total = x[i]
        for j in range(i + 1, min(n, i + lower + upper + 1)):
            total -= M[i, j - i + lower] * x[j]
        x[i] = total / M[i, lower]


@compiled
def solve_transposed(M, pivots, x):
    """Replace x by M'^-1 x, for the factors of a dense matrix."""
    n = M.shape[0]
    for i in range(n):
        total = x[i]
        for j in range(i):
            total -= M[j, i] * x[j]
        x[i] = total / M[i, i]
    for i in range(n - 1, -1, -1):
        total = x[i]
        for j in range(i + 1, n):
            total -= M[j, i] * x[j]
        x[i] = total
    for k in range(n - 1, -1, -1):
        pivot = pivots[k]
        if pivot != k:
            x[k], x[pivot] = x[pivot], x[k]
