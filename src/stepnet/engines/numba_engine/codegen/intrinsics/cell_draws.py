"""Normal numbers of 16 paths in many cells, or of many groups of 16 paths in one cell, with several draws at a time."""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.compiler_facts import find_cpu_features
from stepnet.engines.numba_engine.codegen.intrinsics.exact_vectors import I64, Bundle, count_up, fill, spread, store
from stepnet.engines.numba_engine.codegen.intrinsics.normals import write_keys, write_normals, write_words
from stepnet.noise.bridge import quantise
from stepnet.noise.counters import GROUP, HALF_GROUP

AT_ONCE = 4 if find_cpu_features().get("avx512f", False) else 1
"""Vectors of 8 numbers that are computed together; four of 512 bits have enough registers, and hide all latencies."""

LANES = count_up(HALF_GROUP)
NUMBER_BYTES = 8


class DrawWriter:
    """Writes draws of 16 paths, two vectors of normal numbers each; `tag` is the last word of counters of low paths."""

    def __init__(self, builder, seed, tag, scale, rounder):
        self.builder, self.tag = builder, tag
        self.scale, self.rounder, key = (spread(builder, each, HALF_GROUP) for each in (scale, rounder, seed))
        self.keys = write_keys(Bundle(builder, [key]))

    def write(self, pairs: list, cells: list) -> tuple[Bundle, Bundle]:
        """Rounded products of the scale and the numbers; `pairs` holds the first pair of each group."""
        builder, count = self.builder, len(pairs)
        lasts = [builder.or_(builder.lshr(pair, I64(32)), self.tag) for pair in pairs]
        c1, c2, c3 = (Bundle(builder, [spread(builder, x, HALF_GROUP) for x in each]) for each in (cells, pairs, lasts))
        lanes, zero = Bundle(builder, [LANES] * count), Bundle(builder, [fill(LANES.type, 0)] * count)
        keys = [(Bundle(builder, k0.values * count), Bundle(builder, k1.values * count)) for k0, k1 in self.keys]
        x, y = write_normals(*write_words(zero, c1, c2 + lanes, c3, keys))
        scale, rounder = Bundle(builder, [self.scale] * count), Bundle(builder, [self.rounder] * count)
        return quantise(scale * x, rounder), quantise(scale * y, rounder)


def _write_loops(context, builder, arguments, out_type, varies_in_cells: bool) -> None:
    """Loops over all items: as many as possible together, then the rest one by one."""
    seed, tag, path0, first_cell, stride, count, scale, rounder, out, start, step = arguments
    writer = DrawWriter(builder, seed, tag, scale, rounder)
    data = builder.ptrtoint(context.make_array(out_type)(context, builder, out).data, I64)
    data = builder.add(data, builder.mul(start, I64(NUMBER_BYTES)))
    pair0, step = builder.lshr(path0, I64(1)), builder.mul(step, I64(NUMBER_BYTES))
    together = builder.sub(count, builder.srem(count, I64(AT_ONCE)))
    for begin, end, size in ((I64(0), together, AT_ONCE), (together, count, 1)):
        with cgutils.for_range_slice(builder, begin, end, I64(size), intp=I64) as (item, _):
            items = [builder.add(item, I64(i)) for i in range(size)]
            pairs, cells = [pair0] * size, [first_cell] * size
            if varies_in_cells:
                cells = [builder.add(first_cell, builder.mul(stride, each)) for each in items]
            else:
                pairs = [builder.add(pair0, builder.mul(stride, each)) for each in items]
            x, y = writer.write(pairs, cells)
            for each, *numbers in zip(items, x.values, y.values, strict=True):
                store(builder, builder.add(data, builder.mul(each, step)), numbers)


def _require_contiguous(out) -> None:
    """Numbers are stored at offsets in memory."""
    if out.layout != "C":
        raise TypingError(f"normal numbers are drawn into arrays in C order, not {out}")


def _build_signature(out):
    return types.void(
        types.uint64, types.uint64, *[types.int64] * 4, types.float64, types.float64, out, types.int64, types.int64
    )  # fmt: skip


@intrinsic
def write_cells(typing_context, seed, tag, path0, cell0, stride, count, scale, rounder, out, start, step):
    """Numbers of 16 paths in the cells cell0, cell0 + stride, ..., from out.flat[start] on, every `step` numbers."""
    _require_contiguous(out)

    def generate(context, builder, signature, arguments):
        _write_loops(context, builder, arguments, out, varies_in_cells=True)
        return context.get_dummy_value()

    return _build_signature(out), generate


@intrinsic
def write_groups(typing_context, seed, tag, path0, cell, count, scale, rounder, out, start):
    """Numbers of `count` groups of 16 paths in one cell, from out.flat[start] on."""
    _require_contiguous(out)

    def generate(context, builder, signature, arguments):
        seed, tag, path0, cell, count, scale, rounder, numbers, start = arguments
        steps = I64(HALF_GROUP), I64(GROUP)
        all_arguments = seed, tag, path0, cell, steps[0], count, scale, rounder, numbers, start, steps[1]
        _write_loops(context, builder, all_arguments, out, varies_in_cells=False)
        return context.get_dummy_value()

    integers, reals = [types.int64] * 3, [types.float64] * 2
    return types.void(types.uint64, types.uint64, *integers, *reals, out, types.int64), generate
