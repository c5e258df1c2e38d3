"""What layers are made of besides products: sums of rows, and sparse operators on nodes.

A tile is `(features, TILE)`: its columns are samples.  All numbers are in flat arrays, places are offsets into them.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.kernels import inlined
from stepnet.engines.numba_engine.codegen.vectors import VectorWriter
from stepnet.engines.numba_engine.layers.matrix_products import TILE


def _write_entrywise(formula):
    """The function below for a formula of the entries a of `out`, b of `one` and c of `other`, and of v and w."""

    @intrinsic
    def run(typing_context, memory, out, one, other, n, v, w):
        """out = formula over n entries, a whole number of tiles."""
        whole, real = types.int64, memory.dtype
        signature = types.void(memory, whole, whole, whole, whole, real, real)

        def generate(context, builder, signature, arguments):
            memory_, *rows, n, v, w = arguments
            kit = VectorWriter(context, builder, real, TILE)
            starts = [kit.address(memory, memory_, row) for row in rows]
            v, w = kit.spread(v), kit.spread(w)
            with kit.over(n) as place:
                a, b, c = (kit.load(builder.add(start, place)) for start in starts)
                kit.store(formula(a, b, c, v, w), builder.add(starts[0], place))
            return context.get_dummy_value()

        return signature, generate

    return run


_added, _scaled, _summed = (
    _write_entrywise(formula)
    for formula in (
        lambda a, b, c, v, w: a + v * b,
        lambda a, b, c, v, w: v * b,
        lambda a, b, c, v, w: v.kit.both(v, b, w, c),
    )
)


@inlined
def add_scaled(memory, out, row, n, weight):
    _added(memory, out, row, row, n, weight, weight)


@inlined
def set_scaled(memory, out, row, n, weight):
    _scaled(memory, out, row, row, n, weight, weight)


@inlined
def set_sum(memory, out, one, other, n, v, w):
    _summed(memory, out, one, other, n, v, w)


@inlined
def set_zero(memory, out, n):
    memory[out : out + n] = 0.0


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
