"""Products of small matrices with tiles, in registers: rows of a product, and sums of products over all columns.

The result for a column depends only on that column and the shapes, so the bits of a sample do not depend on its batch.

Products in registers leave the memory bus idle, so every iteration of a loop prefetches one cache line that is needed
soon.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.blas import PLAIN, TRANSPOSED, call_gemm
from stepnet.engines.numba_engine.codegen.compiler_facts import find_cpu_name
from stepnet.engines.numba_engine.codegen.intrinsics.tiles import write_outer_product, write_tile_product
from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined

TILE = 64
SMALL = 64  # channels up to which products stay in registers; beyond, BLAS is faster
WIDE, SHORT = 512 if find_cpu_name() == "znver4" else SMALL, 1024
"""Limits on channels and on columns below which products stay in registers too.  On Zen 4 they run at peak performance,
BLAS at 0.9 of it or less; longer rows evict each other from the cache, whereas BLAS copies them first."""


class ProductContext(NamedTuple):
    """The address of BLAS's matrix product, and the beginning and end of the memory to prefetch."""

    gemm: int
    ahead: np.ndarray


# ---- rows of a product ----------------------------------------------------------------------------------------------


_one_row, _two_rows, _four_rows = (write_tile_product(n, TILE) for n in (1, 2, 4))


@compiled
def multiply(ahead, W, w0, row, column, x, x0, n_in, out, o0, n_out, columns, b0):
    """out = b + W x for channels of `columns` entries, with W[o, i] at w0 + o row + i column; b = 0 if b0 < 0."""
    soon, stop = ahead[0], ahead[1]
    for tile in range(0, columns, TILE):
        o = 0
        while o + 4 <= n_out:
            place, b = o * columns + tile, b0 + o * columns + tile if b0 >= 0 else b0
            soon = _four_rows(out, o0 + place, columns, W, w0 + o * row, row, column, n_in, x, x0 + tile, b, soon, stop)
            o += 4
        if o + 2 <= n_out:
            place, b = o * columns + tile, b0 + o * columns + tile if b0 >= 0 else b0
            soon = _two_rows(out, o0 + place, columns, W, w0 + o * row, row, column, n_in, x, x0 + tile, b, soon, stop)
            o += 2
        if o < n_out:
            place, b = o * columns + tile, b0 + o * columns + tile if b0 >= 0 else b0
            soon = _one_row(out, o0 + place, columns, W, w0 + o * row, row, column, n_in, x, x0 + tile, b, soon, stop)
    ahead[0] = soon


@inlined
def is_small(n_in, n_out, columns):
    """Whether a product is computed in registers."""
    widest = max(n_in, n_out)
    return widest <= SMALL or (widest <= WIDE and columns <= SHORT)


@inlined
def mix(machine, W, w0, c_in, is_transposed, x, x0, n_in, out, o0, n_out, columns, is_added):
    """out (+)= W x, or W' x, for channels of `columns` entries; W is `(rows, c_in)` in both cases."""
    if is_small(n_in, n_out, columns):
        row, column = (1, c_in) if is_transposed else (c_in, 1)
        multiply(machine.ahead, W, w0, row, column, x, x0, n_in, out, o0, n_out, columns, o0 if is_added else -1)
    else:
        kind, beta = TRANSPOSED if is_transposed else PLAIN, out.dtype.type(1.0 if is_added else 0.0)
        call_gemm(machine.gemm, PLAIN, kind, columns, n_out, n_in, x, x0, columns, W, w0, c_in, beta, out, o0, columns)


# ---- sums over columns ----------------------------------------------------------------------------------------------


_outer_44, _outer_42, _outer_41 = (write_outer_product(4, n) for n in (4, 2, 1))
_outer_24, _outer_22, _outer_21 = (write_outer_product(2, n) for n in (4, 2, 1))
_outer_14, _outer_12, _outer_11 = (write_outer_product(1, n) for n in (4, 2, 1))


def _strip(four, two, one):
    """Some rows of W_bar, for all its columns."""

    @inlined
    def strip(W_bar, w0, z, z0, v, v0, n_in, columns, soon, stop):
        i = 0
        while i + 4 <= n_in:
            soon = four(W_bar, w0 + i, n_in, z, z0, v, v0 + i * columns, columns, soon, stop)
            i += 4
        if i + 2 <= n_in:
            soon = two(W_bar, w0 + i, n_in, z, z0, v, v0 + i * columns, columns, soon, stop)
            i += 2
        if i < n_in:
            soon = one(W_bar, w0 + i, n_in, z, z0, v, v0 + i * columns, columns, soon, stop)
        return soon

    return strip


_four_strips, _two_strips, _one_strip = (
    _strip(_outer_44, _outer_42, _outer_41), _strip(_outer_24, _outer_22, _outer_21),
    _strip(_outer_14, _outer_12, _outer_11),
)  # fmt: skip


@compiled
def add_products(ahead, z, z0, n_out, v, v0, n_in, columns, W_bar, w0):
    """W_bar += z v' over all columns."""
    soon, stop = ahead[0], ahead[1]
    o = 0
    while o + 4 <= n_out:
        soon = _four_strips(W_bar, w0 + o * n_in, z, z0 + o * columns, v, v0, n_in, columns, soon, stop)
        o += 4
    if o + 2 <= n_out:
        soon = _two_strips(W_bar, w0 + o * n_in, z, z0 + o * columns, v, v0, n_in, columns, soon, stop)
        o += 2
    if o < n_out:
        soon = _one_strip(W_bar, w0 + o * n_in, z, z0 + o * columns, v, v0, n_in, columns, soon, stop)
    ahead[0] = soon


@inlined
def add_outer(machine, z, z0, n_out, v, v0, n_in, columns, W_bar, w0):
    """W_bar += z v' over all columns; W_bar is `(n_out, n_in)`."""
    if is_small(n_in, n_out, columns):
        add_products(machine.ahead, z, z0, n_out, v, v0, n_in, columns, W_bar, w0)
    else:
        one = W_bar.dtype.type(1.0)
        call_gemm(
            machine.gemm, TRANSPOSED, PLAIN, n_in, n_out, columns, v, v0, columns, z, z0, columns, one, W_bar, w0, n_in
        )
