"""Operations on tiles in registers: rows of a product, sums of products over all columns, entrywise formulas.

Every iteration of a loop over a product prefetches one line of the data that follow, as memory is otherwise idle.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.vectors import I64, Prefetch, VectorWriter

WHOLE = types.int64


def write_tile_product(rows: int, tile: int):
    """Generate the function below for this number of rows at once; a tile has `tile` columns."""

    @intrinsic
    def product(typing_context, out, o0, stride, W, w0, w_row, w_column, n, x, x0, b0, soon, stop):
        """out[r] = b[r] + sum_{i < n} W[r, i] x[i] for the columns of a tile; rows lie `stride` apart.

        Rows b lie in `out` as well; there are none if b0 < 0.  The memory from `soon` to `stop` is
        prefetched meanwhile; the result is the index from which to continue.
        """
        signature = WHOLE(out, WHOLE, WHOLE, W, *[WHOLE] * 4, x, *[WHOLE] * 4)

        def generate(context, builder, signature, arguments):
            out_, o0, stride, W_, w0, w_row, w_column, n, x_, x0, b0, soon, stop = arguments
            kit = VectorWriter(context, builder, out.dtype)
            vectors = min(tile // kit.width, 16 // rows)
            ahead, fetched = Prefetch(kit, kit.address(x, x_, soon), soon, stop), I64(0)
            weight, column = kit.address(W, W_, w0), kit.address(x, x_, x0)
            row_bytes, column_bytes, stride = kit.bytes(w_row), kit.bytes(w_column), kit.bytes(stride)
            first = kit.address(out, out_, o0)
            weights = [builder.add(weight, builder.mul(row_bytes, I64(r))) for r in range(rows)]
            targets, starts = (
                [builder.add(each, builder.mul(stride, I64(r))) for r in range(rows)]
                for each in (first, kit.address(out, out_, b0))
            )
            cells = [(r, j) for r in range(rows) for j in range(vectors)]
            totals = kit.allocate_sums(len(cells))
            for block in range(0, tile, vectors * kit.width):
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
                    ahead.prefetch(builder.add(fetched, loop.index))
                    for r in range(rows):
                        w = kit.load_spread(builder.add(weights[r], along))
                        for j in range(vectors):
                            totals[r * vectors + j] = totals[r * vectors + j] + w * values[j]
                for c, (r, j) in enumerate(cells):
                    kit.store(totals[c], builder.add(targets[r], places[j]))
                fetched = builder.add(fetched, n)
            return ahead.find_index_after(fetched)

        return signature, generate

    return product


def write_outer_product(rows: int, columns: int):
    """Generate the function below for this number of rows and columns of W_bar at once."""

    @intrinsic
    def outer(typing_context, W_bar, w0, w_row, z, z0, v, v0, stride, soon, stop):
        """W_bar[r, c] += sum_l z[r, l] v[c, l] over all entries of a row; rows lie `stride` apart.

        The memory from `soon` to `stop` is prefetched meanwhile; the result is the index from which to continue.
        """
        signature = WHOLE(W_bar, WHOLE, WHOLE, z, WHOLE, v, *[WHOLE] * 4)

        def generate(context, builder, signature, arguments):
            W_, w0, w_row, z_, z0, v_, v0, n, soon, stop = arguments
            kit = VectorWriter(context, builder, W_bar.dtype)
            one, other, stride = kit.address(z, z_, z0), kit.address(v, v_, v0), kit.bytes(n)
            ones = [builder.add(one, builder.mul(stride, I64(r))) for r in range(rows)]
            others = [builder.add(other, builder.mul(stride, I64(c))) for c in range(columns)]
            totals, ahead = kit.allocate_sums(rows * columns), Prefetch(kit, kit.address(v, v_, soon), soon, stop)
            with kit.loop_over(n) as place:
                ahead.prefetch(kit.lines(place))
                left = [kit.load(builder.add(row, place)) for row in ones]
                right = [kit.load(builder.add(row, place)) for row in others]
                for r in range(rows):
                    for c in range(columns):
                        totals[r * columns + c] = totals[r * columns + c] + left[r] * right[c]
            weight, row_bytes = kit.address(W_bar, W_, w0), kit.bytes(w_row)
            for r in range(rows):
                sums = kit.totals([totals[r * columns + c] for c in range(columns)])
                kit.add_to_memory(sums, builder.add(weight, builder.mul(row_bytes, I64(r))))
            return ahead.find_index_after(kit.lines(stride))

        return signature, generate

    return outer


def write_entrywise(formula, tile: int):
    """Generate the function below for a formula of the entries a of `out`, b of `one`, c of `other`, and of v and w."""

    @intrinsic
    def run(typing_context, memory, out, one, other, n, v, w):
        """out = formula over n entries, a whole number of tiles."""
        whole, real = types.int64, memory.dtype
        signature = types.void(memory, whole, whole, whole, whole, real, real)

        def generate(context, builder, signature, arguments):
            memory_, *rows, n, v, w = arguments
            kit = VectorWriter(context, builder, real, tile)
            starts = [kit.address(memory, memory_, row) for row in rows]
            v, w = kit.spread(v), kit.spread(w)
            with kit.loop_over(n) as place:
                a, b, c = (kit.load(builder.add(start, place)) for start in starts)
                kit.store(formula(a, b, c, v, w), builder.add(starts[0], place))
            return context.get_dummy_value()

        return signature, generate

    return run
