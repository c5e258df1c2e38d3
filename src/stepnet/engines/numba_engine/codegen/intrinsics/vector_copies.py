"""Copies of short rows as whole vectors; LLVM turns the loop into calls, since it cannot know that rows are apart."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

EIGHT = 8


@intrinsic
def copy_eight(typing_context, source, i, target, j):
    """target[j : j + 8] = source[i : i + 8] for contiguous rows of float64; nothing is checked."""

    def generate(context, builder, signature, arguments):
        rows = (arguments[0], arguments[2])
        places = []
        for kind, row, index in zip((source, target), rows, (arguments[1], arguments[3]), strict=True):
            data = context.make_array(kind)(context, builder, row).data
            entry = cgutils.gep_inbounds(builder, data, index)
            places.append(builder.bitcast(entry, ir.VectorType(ir.DoubleType(), EIGHT).as_pointer()))
        builder.store(builder.load(places[0], align=8), places[1], align=8)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate
