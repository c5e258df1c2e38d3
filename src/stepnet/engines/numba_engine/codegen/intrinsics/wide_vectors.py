"""Loops with vectors of 512 bits, which LLVM avoids even on processors that support them.

Most code is faster with 256 bits there, because shorter loops have shorter remainders.  Random numbers are not: their
loops are long sequences of arithmetic, and take a third less time with 512.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

WIDTH = '"prefer-vector-width"="512"'


@intrinsic
def prefer_wide_vectors(typing_context):
    """Vectorise the loops of the calling function with 512 bits where the processor has them.

    The function is not inlined, as loops are vectorised after inlining and with the width of the caller.
    """

    def generate(context, builder, signature, arguments):
        attributes = builder.function.attributes
        attributes.add("noinline")
        set.add(attributes, WIDTH)  # llvmlite knows attributes without values only
        return context.get_dummy_value()

    return types.void(), generate
