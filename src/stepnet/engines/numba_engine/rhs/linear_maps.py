"""Functions of the linear part of a problem, sum_m w_m phi_(k_m)(c_m h L), as one C function that is called by address.

The argument for time encodes the map and the operation: 3 m applies map m, 3 m + 1 its transpose, and 3 m + 2 its
derivative h d/dh.  Matrices are applied by a kernel, symbols by Fourier transforms in Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray

from stepnet.engines.numba_engine.codegen.kernels import FieldKernel
from stepnet.engines.numba_engine.rhs.callback import Callback
from stepnet.problem import Linear
from stepnet.schemes.phi_functions import PhiTerms, differentiate_phi, sum_phi, sum_phi_of_matrix

MOST_ENTRIES = 4_000_000  # of a matrix; larger problems should use Fourier transforms


class LinearMaps(NamedTuple):
    """The C function of the maps and its parameters; the address 0 stands for none."""

    address: int
    p: np.ndarray
    callbacks: tuple[Callback, ...] = ()


NO_MAPS = LinearMaps(0, np.zeros(1))


def build_linear_maps(
    linear: Linear, maps: tuple[PhiTerms, ...], h: float, size: int, with_lengths: bool
) -> LinearMaps:
    """The maps for steps of length h on a flat state; their derivatives by h only `with_lengths`."""
    if linear.symbol is not None:
        return _use_transforms(linear.symbol, maps, h, size, with_lengths)
    if linear.n**2 > MOST_ENTRIES:
        raise ValueError(
            f"the matrix of a `Linear` part has {linear.n} x {linear.n} entries, and exponential schemes need dense "
            f"functions of it; use a spectral operator on a periodic grid, or an IMEX scheme such as kencarp4"
        )
    L = linear.matrix.toarray() if hasattr(linear.matrix, "toarray") else linear.matrix
    tables = [sum_phi_of_matrix(h * L, terms) for terms in maps]
    if with_lengths:
        tables += [sum_phi_of_matrix(h * L, differentiate_phi(terms)) for terms in maps]
    block = np.concatenate(([float(linear.n), float(len(maps))], *(table.ravel() for table in tables)))
    return LinearMaps(_apply_matrices.address(np.dtype(float)), block)


@FieldKernel
def _apply_matrices(number, x_, y_, p_, size):
    """y = M x for every component of a state."""
    head = carray(p_, (2,))
    n, count, code = int(head[0]), int(head[1]), int(number)
    m, kind = code // 3, code % 3
    block = carray(p_, (2 + (2 * count if kind == 2 else count) * n * n,))
    first = 2 + (m + (count if kind == 2 else 0)) * n * n
    M = block[first : first + n * n].reshape(n, n)
    x, y = carray(x_, (size,)), carray(y_, (size,))
    for start in range(0, size, n):
        if kind == 1:
            for i in range(n):
                y[start + i] = 0.0
            for j in range(n):
                w = x[start + j]
                for i in range(n):
                    y[start + i] += M[j, i] * w
        else:
            for i in range(n):
                total = 0.0
                for j in range(n):
                    total += M[i, j] * x[start + j]
                y[start + i] = total
    return np.int32(0)


def _use_transforms(
    symbol: np.ndarray, maps: tuple[PhiTerms, ...], h: float, size: int, with_lengths: bool
) -> LinearMaps:
    """The same by real Fourier transforms, which store only the independent half of the coefficients."""
    grid, axes = symbol.shape[1:], tuple(range(-(symbol.ndim - 1), 0))
    z = h * symbol[..., : grid[-1] // 2 + 1]
    factors = [sum_phi(z, terms) for terms in maps]
    slopes = [sum_phi(z, differentiate_phi(terms)) for terms in maps] if with_lengths else []
    conjugates = [factor.conj() for factor in factors]
    shape = (size // symbol.size, *symbol.shape)

    def evaluate(number, x, y):
        m, kind = divmod(int(number), 3)
        factor = (factors, conjugates, slopes)[kind][m]
        y[...] = np.fft.irfftn(factor * np.fft.rfftn(x.reshape(shape), axes=axes), s=grid, axes=axes).ravel()

    callback = Callback(evaluate, (size,), (size,), np.dtype(float))
    return LinearMaps(callback.address, np.zeros(1), (callback,))
