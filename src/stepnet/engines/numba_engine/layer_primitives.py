"""What layers are made of: products of matrices by BLAS or in registers, on flat arrays and offsets into them.

A tile is `(features, TILE)`: its columns are samples.  Whatever is computed of a column depends on nothing but that
column and the tile's shape, so the bits of a sample do not depend on the batch it comes in.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stepnet.engines.numba_engine.compile.cache import inlined

TILE = 64
SMALL = 16  # channels up to which products stay in registers; beyond, BLAS is faster
VECTOR_BYTES = 64
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
PLAIN, TRANSPOSED = 78, 84  # N and T
FREE_ORDER = ("contract", "reassoc")


def _address(context, builder, array_type, array, offset, size):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.add(builder.ptrtoint(data, I64), builder.mul(offset, I64(size)))


@intrinsic
def call_gemm(typing_context, address, ta, tb, m, n, k, A, a0, lda, B, b0, ldb, beta, C, c0, ldc):
    """C = op(A) op(B) + beta C in Fortran's order, by the BLAS function at `address`."""
    real, whole = C.dtype, types.int64
    signature = types.void(types.uintp, *[whole] * 5, A, whole, whole, B, whole, whole, real, C, whole, whole)

    def generate(context, builder, signature, arguments):
        address, ta, tb, m, n, k, A_, a0, lda, B_, b0, ldb, beta, C_, c0, ldc = arguments
        kind = context.get_value_type(real)
        size = real.bitwidth // 8

        def by_reference(value, narrow=I32):
            slot = cgutils.alloca_once(builder, narrow)
            builder.store(builder.trunc(value, narrow) if narrow in (I32, I8) else value, slot)
            return slot

        def matrix(array_type, array, offset):
            return builder.inttoptr(_address(context, builder, array_type, array, offset, size), kind.as_pointer())

        one = cgutils.alloca_once_value(builder, ir.Constant(kind, 1.0))
        values = [
            by_reference(ta, I8), by_reference(tb, I8), by_reference(m), by_reference(n), by_reference(k), one,
            matrix(A, A_, a0), by_reference(lda), matrix(B, B_, b0), by_reference(ldb),
            by_reference(beta, kind), matrix(C, C_, c0), by_reference(ldc),
        ]  # fmt: skip
        function = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(address, function.as_pointer()), values)
        return context.get_dummy_value()

    return signature, generate


class _Vectors:
    """Loads and stores of vectors."""

    def __init__(self, context, builder, real):
        self.builder, self.kind, self.size = builder, context.get_value_type(real), real.bitwidth // 8
        self.width = VECTOR_BYTES // self.size
        self.vector = ir.VectorType(self.kind, self.width)
        self.zero = ir.Constant(self.vector, [0.0] * self.width)

    def load(self, address, kind=None):
        kind = kind or self.vector
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), typ=kind)
        value.align = self.size
        return value

    def store(self, value, address):
        self.builder.store(value, self.builder.inttoptr(address, self.vector.as_pointer())).align = self.size

    def spread(self, scalar):
        lane0 = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(lane0, lane0, ir.Constant(ir.VectorType(I32, self.width), [0] * self.width))

    def fused(self, x, y, z):
        return self.builder.fadd(self.builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


@intrinsic
def row_of_product(typing_context, out, o0, W, w0, w_stride, n, x, x0, x_stride, is_added):
    """out[m] (+)= sum_{i < n} W[i] x[i, l] for the columns l of a tile, in registers."""
    whole = types.int64
    signature = types.void(out, whole, W, whole, whole, whole, x, whole, whole, types.boolean)

    def generate(context, builder, signature, arguments):
        out_, o0, W_, w0, w_stride, n, x_, x0, x_stride, is_added = arguments
        v = _Vectors(context, builder, out.dtype)
        row = _address(context, builder, out, out_, o0, v.size)
        weight = _address(context, builder, W, W_, w0, v.size)
        column = _address(context, builder, x, x_, x0, v.size)
        weight_bytes, column_bytes = builder.mul(w_stride, I64(v.size)), builder.mul(x_stride, I64(v.size))
        places = [I64(VECTOR_BYTES * j) for j in range(TILE // v.width)]
        totals = [cgutils.alloca_once_value(builder, v.zero) for _ in places]
        with builder.if_then(is_added):
            for place, total in zip(places, totals, strict=True):
                builder.store(v.load(builder.add(row, place)), total)
        with cgutils.for_range(builder, n, intp=I64) as loop:
            w = v.spread(v.load(builder.add(weight, builder.mul(loop.index, weight_bytes)), v.kind))
            start = builder.add(column, builder.mul(loop.index, column_bytes))
            for place, total in zip(places, totals, strict=True):
                builder.store(v.fused(w, v.load(builder.add(start, place)), builder.load(total)), total)
        for place, total in zip(places, totals, strict=True):
            v.store(builder.load(total), builder.add(row, place))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def dot_of_rows(typing_context, x, x0, y, y0, n):
    """sum_l x[m] y[m] over n entries, a whole number of tiles."""
    signature = x.dtype(x, types.int64, y, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        x_, x0, y_, y0, n = arguments
        v = _Vectors(context, builder, x.dtype)
        one, other = _address(context, builder, x, x_, x0, v.size), _address(context, builder, y, y_, y0, v.size)
        totals = [cgutils.alloca_once_value(builder, v.zero) for _ in range(2)]
        length = builder.mul(n, I64(v.size))
        with cgutils.for_range_slice(builder, I64(0), length, I64(2 * VECTOR_BYTES), intp=I64) as (offset, _):
            for j, total in enumerate(totals):
                place = builder.add(offset, I64(j * VECTOR_BYTES))
                term = v.load(builder.add(one, place)), v.load(builder.add(other, place))
                builder.store(v.fused(*term, builder.load(total)), total)
        return _total(builder, v, builder.fadd(*map(builder.load, totals)))

    return signature, generate


@intrinsic
def add_four_dots(typing_context, out, o0, x, x0, y, y0, y_stride, n):
    """out[j] += sum_l x[l] y[j, l] for four rows j; the entries of x are loaded once for all of them."""
    signature = types.void(out, types.int64, x, types.int64, y, types.int64, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        out_, o0, x_, x0, y_, y0, y_stride, n = arguments
        v = _Vectors(context, builder, x.dtype)
        one, other = _address(context, builder, x, x_, x0, v.size), _address(context, builder, y, y_, y0, v.size)
        stride = builder.mul(y_stride, I64(v.size))
        rows = [builder.add(other, builder.mul(stride, I64(j))) for j in range(4)]
        totals = [cgutils.alloca_once_value(builder, v.zero) for _ in rows]
        length = builder.mul(n, I64(v.size))
        with cgutils.for_range_slice(builder, I64(0), length, I64(VECTOR_BYTES), intp=I64) as (offset, _):
            value = v.load(builder.add(one, offset))
            for row, total in zip(rows, totals, strict=True):
                builder.store(v.fused(value, v.load(builder.add(row, offset)), builder.load(total)), total)
        kind = ir.VectorType(v.kind, 4)
        sums = ir.Constant(kind, ir.Undefined)
        for j, total in enumerate(totals):
            sums = builder.insert_element(sums, _total(builder, v, builder.load(total)), I32(j))
        place = builder.inttoptr(_address(context, builder, out, out_, o0, v.size), kind.as_pointer())
        before = builder.load(place, typ=kind)
        before.align = v.size
        builder.store(builder.fadd(before, sums), place).align = v.size
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def sum_of_row(typing_context, x, x0, n):
    """sum_l x[m] over n entries, a whole number of tiles."""
    signature = x.dtype(x, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        x_, x0, n = arguments
        v = _Vectors(context, builder, x.dtype)
        start = _address(context, builder, x, x_, x0, v.size)
        total = cgutils.alloca_once_value(builder, v.zero)
        length = builder.mul(n, I64(v.size))
        with cgutils.for_range_slice(builder, I64(0), length, I64(VECTOR_BYTES), intp=I64) as (offset, _):
            builder.store(builder.fadd(builder.load(total), v.load(builder.add(start, offset))), total)
        return _total(builder, v, builder.load(total))

    return signature, generate


def _total(builder, v: _Vectors, value):
    """The sum of a vector's entries, by halves."""
    width, lanes = v.width, value
    while width > 1:
        width //= 2
        kind = ir.VectorType(I32, width)
        low = builder.shuffle_vector(lanes, lanes, ir.Constant(kind, list(range(width))))
        high = builder.shuffle_vector(lanes, lanes, ir.Constant(kind, list(range(width, 2 * width))))
        lanes = builder.fadd(low, high)
    return builder.extract_element(lanes, I32(0))


@inlined
def mix(blas, W, w0, c_in, is_transposed, x, x0, n_in, out, o0, n_out, columns, is_added):
    """out (+)= W x, or W' x, for channels of `columns` entries; W is `(rows, c_in)` in both cases."""
    if n_in <= SMALL and n_out <= SMALL:
        row, column = (1, c_in) if is_transposed else (c_in, 1)
        for block in range(0, columns, TILE):
            for o in range(n_out):
                row_of_product(
                    out, o0 + o * columns + block, W, w0 + o * row, column, n_in, x, x0 + block, columns, is_added
                )
    else:
        kind, beta = TRANSPOSED if is_transposed else PLAIN, out.dtype.type(1.0 if is_added else 0.0)
        call_gemm(blas, PLAIN, kind, columns, n_out, n_in, x, x0, columns, W, w0, c_in, beta, out, o0, columns)


@inlined
def add_outer(blas, z, z0, n_out, v, v0, n_in, columns, W_bar, w0):
    """W_bar += z v' over all columns; W_bar is `(n_out, n_in)`."""
    if n_in <= SMALL and n_out <= SMALL:
        for o in range(n_out):
            fours = n_in // 4 * 4
            for i in range(0, fours, 4):
                add_four_dots(W_bar, w0 + o * n_in + i, z, z0 + o * columns, v, v0 + i * columns, columns, columns)
            for i in range(fours, n_in):
                W_bar[w0 + o * n_in + i] += dot_of_rows(z, z0 + o * columns, v, v0 + i * columns, columns)
    else:
        one = W_bar.dtype.type(1.0)
        call_gemm(blas, TRANSPOSED, PLAIN, n_in, n_out, columns, v, v0, columns, z, z0, columns, one, W_bar, w0, n_in)


@inlined
def spread_nodes(ptr, ind, val, p0, e0, nodes_out, nodes_in, channels, x, x0, out, o0, is_added):
    """out[c, i] (+)= sum_j P[i, j] x[c, j] for the rows of a sparse operator."""
    for c in range(channels):
        for i in range(nodes_out):
            target = o0 + (c * nodes_out + i) * TILE
            row = out[target : target + TILE]
            if not is_added:
                for m in range(TILE):
                    row[m] = 0.0
            for e in range(ptr[p0 + i], ptr[p0 + i + 1]):
                source = x0 + (c * nodes_in + ind[e0 + e]) * TILE
                weight, column = val[e0 + e], x[source : source + TILE]
                for m in range(TILE):
                    row[m] += weight * column[m]
