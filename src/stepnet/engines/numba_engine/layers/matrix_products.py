"""Products of small matrices with tiles, in registers: rows of a product, and sums of products over all columns.

Whatever is computed of a column depends on nothing but that column and the shapes, so the bits of a sample do not
depend on the batch it comes in.

Registers are all that products need, so memory has nothing to do meanwhile: every turn of a loop asks for one line of
what is wanted soon.
"""

from __future__ import annotations

from typing import NamedTuple

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.blas import PLAIN, TRANSPOSED, call_gemm
from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined
from stepnet.engines.numba_engine.codegen.vectors import I64, Prefetch, VectorWriter

TILE = 64
SMALL = 64  # channels up to which products stay in registers; beyond, BLAS is faster
WIDE, SHORT = 512 if llvm.get_host_cpu_name() == "znver4" else SMALL, 1024
"""Channels up to which they do so with few columns.  On Zen 4 they run at the processor's limit, BLAS at 0.9 of it or
less; longer rows push each other out of the cache, where BLAS copies them first."""
WHOLE = types.int64


class ProductContext(NamedTuple):
    """The address of BLAS's product, and what of the memory is wanted soon: where that goes on, and where it ends."""

    gemm: int
    ahead: np.ndarray


# ---- rows of a product ----------------------------------------------------------------------------------------------


def _write_rows(rows: int):
    """The function below for so many rows at once."""

    @intrinsic
    def product(typing_context, out, o0, stride, W, w0, w_row, w_column, n, x, x0, b0, soon, stop):
        """out[r] = b[r] + sum_{i < n} W[r, i] x[i] for the columns of a tile; rows lie `stride` apart.

        Rows b lie in `out` as well; there are none if b0 < 0.  The memory from `soon` to `stop` is asked for on the
        way; where that is to go on is the result.
        """
        signature = WHOLE(out, WHOLE, WHOLE, W, *[WHOLE] * 4, x, *[WHOLE] * 4)

        def generate(context, builder, signature, arguments):
            out_, o0, stride, W_, w0, w_row, w_column, n, x_, x0, b0, soon, stop = arguments
            kit = VectorWriter(context, builder, out.dtype)
            vectors = min(TILE // kit.width, 16 // rows)
            ahead, asked = Prefetch(kit, kit.address(x, x_, soon), soon, stop), I64(0)
            weight, column = kit.address(W, W_, w0), kit.address(x, x_, x0)
            row_bytes, column_bytes, stride = kit.bytes(w_row), kit.bytes(w_column), kit.bytes(stride)
            first = kit.address(out, out_, o0)
            weights = [builder.add(weight, builder.mul(row_bytes, I64(r))) for r in range(rows)]
            targets, starts = (
                [builder.add(each, builder.mul(stride, I64(r))) for r in range(rows)]
                for each in (first, kit.address(out, out_, b0))
            )
            cells = [(r, j) for r in range(rows) for j in range(vectors)]
            totals = kit.growing(len(cells))
            for block in range(0, TILE, vectors * kit.width):
                places = [I64((block + j * kit.width) * kit.size) for j in range(vectors)]
                for c in range(len(cells)):
                    totals[c] = kit.whole(0.0)
                with builder.if_then(builder.icmp_signed(">=", b0, I64(0))):
                    for c, (r, j) in enumerate(cells):
                        totals[c] = kit.load(builder.add(starts[r], places[j]))
                with cgutils.for_range(builder, n, intp=I64) as loop:
                    start = builder.add(column, builder.mul(loop.index, stride))
                    values = [kit.load(builder.add(start, place)) for place in places]
                    along = builder.mul(loop.index, column_bytes)
                    ahead.ask(builder.add(asked, loop.index))
                    for r in range(rows):
                        w = kit.load_spread(builder.add(weights[r], along))
                        for j in range(vectors):
                            totals[r * vectors + j] = totals[r * vectors + j] + w * values[j]
                for c, (r, j) in enumerate(cells):
                    kit.store(totals[c], builder.add(targets[r], places[j]))
                asked = builder.add(asked, n)
            return ahead.after(asked)

        return signature, generate

    return product


_one_row, _two_rows, _four_rows = (_write_rows(n) for n in (1, 2, 4))


@compiled
def multiply(ahead, W, w0, row, column, x, x0, n_in, out, o0, n_out, columns, b0):
    """out = b + W x for channels of `columns` entries, W[o, i] being at w0 + o row + i column; b = 0 if b0 < 0."""
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
    """Whether a product stays in registers."""
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


def _write_outer(rows: int, columns: int):
    """The function below for so many rows and columns of W_bar at once."""

    @intrinsic
    def outer(typing_context, W_bar, w0, w_row, z, z0, v, v0, stride, soon, stop):
        """W_bar[r, c] += sum_l z[r, l] v[c, l] over all entries of a row; rows lie `stride` apart.

        The memory from `soon` to `stop` is asked for on the way; where that is to go on is the result.
        """
        signature = WHOLE(W_bar, WHOLE, WHOLE, z, WHOLE, v, *[WHOLE] * 4)

        def generate(context, builder, signature, arguments):
            W_, w0, w_row, z_, z0, v_, v0, n, soon, stop = arguments
            kit = VectorWriter(context, builder, W_bar.dtype)
            one, other, stride = kit.address(z, z_, z0), kit.address(v, v_, v0), kit.bytes(n)
            ones = [builder.add(one, builder.mul(stride, I64(r))) for r in range(rows)]
            others = [builder.add(other, builder.mul(stride, I64(c))) for c in range(columns)]
            totals, ahead = kit.growing(rows * columns), Prefetch(kit, kit.address(v, v_, soon), soon, stop)
            with kit.over(n) as place:
                ahead.ask(kit.lines(place))
                left = [kit.load(builder.add(row, place)) for row in ones]
                right = [kit.load(builder.add(row, place)) for row in others]
                for r in range(rows):
                    for c in range(columns):
                        totals[r * columns + c] = totals[r * columns + c] + left[r] * right[c]
            weight, row_bytes = kit.address(W_bar, W_, w0), kit.bytes(w_row)
            for r in range(rows):
                sums = kit.totals([totals[r * columns + c] for c in range(columns)])
                kit.add_to_memory(sums, builder.add(weight, builder.mul(row_bytes, I64(r))))
            return ahead.after(kit.lines(stride))

        return signature, generate

    return outer


_outer_44, _outer_42, _outer_41 = (_write_outer(4, n) for n in (4, 2, 1))
_outer_24, _outer_22, _outer_21 = (_write_outer(2, n) for n in (4, 2, 1))
_outer_14, _outer_12, _outer_11 = (_write_outer(1, n) for n in (4, 2, 1))


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
