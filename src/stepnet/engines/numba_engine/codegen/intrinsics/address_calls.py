"""Calls of C functions at addresses that are known when the code runs, and arrays at such addresses."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I32, I64, REAL = ir.IntType(32), ir.IntType(64), ir.DoubleType()


@intrinsic
def call_rhs_at(typing_context, address, t, y, dy, p, n):
    """status = f(t, y, dy, p, n) on bare addresses."""
    signature = types.int32(types.int64, types.float64, types.uintp, types.uintp, types.uintp, types.int64)
    return signature, _generate_call


@intrinsic
def call_vjp_at(typing_context, address, t, y, p, w, t_bar, y_bar, p_bar, n):
    """status = vjp(t, y, p, w, t_bar, y_bar, p_bar, n) on bare addresses."""
    signature = types.int32(types.int64, types.float64, *[types.uintp] * 6, types.int64)
    return signature, _generate_call


@intrinsic
def call_jvp_at(typing_context, address, t, y, p, t_dot, y_dot, p_dot, out, n):
    """status = jvp(t, y, p, t_dot, y_dot, p_dot, out, n) on bare addresses."""
    pointer, real = types.uintp, types.float64
    signature = types.int32(types.int64, real, pointer, pointer, real, pointer, pointer, pointer, types.int64)

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(I32, [REAL, I64, I64, REAL, I64, I64, I64, I64])
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])

    return signature, generate


@intrinsic
def call_jvp8_at(typing_context, address, t, y, y_dot, out, p, n):
    """status = jvp8(t, y, y_dot, out, p, n) on bare addresses."""
    signature = types.int32(types.int64, types.float64, *[types.uintp] * 4, types.int64)
    return signature, _generate_call


def _generate_call(context, builder, signature, arguments):
    """Call the function at the first argument with a time and integers."""
    address, t, *integers = arguments
    function = ir.FunctionType(I32, [REAL, *[I64] * len(integers)])
    return builder.call(builder.inttoptr(address, function.as_pointer()), [t, *integers])


@intrinsic
def view_reals(typing_context, address):
    """The float64 numbers at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], REAL.as_pointer())

    return types.CPointer(types.float64)(address), generate
