"""Code whose products are not fused into sums, so that its bits are those of NumPy; and numbers as their bits."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.kernels import NO_WRAPPERS, OPTIONS

exact = njit(**{**OPTIONS, "fastmath": False}, **NO_WRAPPERS, forceinline=True)
"""As `inlined`, without contraction: instructions keep the flags of their function when it is inlined."""

exact_function = njit(**{**OPTIONS, "fastmath": False}, **NO_WRAPPERS, forceinline=False)
"""As `compiled`, for larger functions."""


@intrinsic
def to_bits(typing_context, x):
    """The bits of a float64 as a uint64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@intrinsic
def from_bits(typing_context, n):
    """The float64 of 64 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate
