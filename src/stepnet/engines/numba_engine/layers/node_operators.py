"""Layer operations other than products: sums of rows, and sparse operators on nodes.

A tile is `(features, TILE)`: its columns are samples.  All numbers are in flat arrays, addressed by offsets.
"""

from __future__ import annotations

from stepnet.engines.numba_engine.codegen.intrinsics.tiles import write_entrywise
from stepnet.engines.numba_engine.codegen.kernels import inlined
from stepnet.engines.numba_engine.layers.matrix_products import TILE

_added, _scaled, _summed, _product, _added_product = (
    write_entrywise(formula, TILE)
    for formula in (
        lambda a, b, c, v, w: a + v * b,
        lambda a, b, c, v, w: v * b,
        lambda a, b, c, v, w: v.kit.both(v, b, w, c),
        lambda a, b, c, v, w: b * c,
        lambda a, b, c, v, w: a + b * c,
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
def set_product(memory, out, one, other, n, zero):
    _product(memory, out, one, other, n, zero, zero)


@inlined
def add_product(memory, out, one, other, n, zero):
    _added_product(memory, out, one, other, n, zero, zero)


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
