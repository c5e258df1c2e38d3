"""Operations that Numba lacks: calling a right-hand side by address, and linear combinations of rows in registers.

All vectors of a solve are rows of one array `work` (rows, padded length), so that kernels refer to rows instead of
addresses.  Rows are padded with zeros to a whole number of registers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

REGISTER_BYTES = 32  # AVX2; wider registers gain nothing here, because memory bandwidth limits the sums

I32, I64, BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
CONTRACT = ("contract",)


def _row(context, builder, array_type, array, index):
    """The address of row `index` of a C-ordered two-dimensional array, as an integer."""
    struct = context.make_array(array_type)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, struct.strides)[0]
    return builder.add(builder.ptrtoint(struct.data, I64), builder.mul(index, stride))


@intrinsic
def call_field(typing_context, address, t, work, row_in, row_out, p, n):
    """status = field(t, work[row_in], work[row_out], p, n) for the C function `field` at `address`."""
    signature = types.int32(types.uintp, types.float64, work, types.intp, types.intp, p, types.int64)

    def generate(context, builder, signature, arguments):
        address, t, work_value, row_in, row_out, p_value, n = arguments
        function = ir.FunctionType(I32, [ir.DoubleType(), BYTES, BYTES, BYTES, I64])
        pointer = builder.inttoptr(address, function.as_pointer())
        y = builder.inttoptr(_row(context, builder, work, work_value, row_in), BYTES)
        dy = builder.inttoptr(_row(context, builder, work, work_value, row_out), BYTES)
        parameters = builder.bitcast(context.make_array(p)(context, builder, p_value).data, BYTES)
        return builder.call(pointer, [t, y, dy, parameters, n])

    return signature, generate


@intrinsic
def call_entries(typing_context, address, t, work, row, values, p, n):
    """status = entries(t, work[row], values, p, n), the C function of a Jacobian, for a one-dimensional `values`."""
    signature = types.int32(types.uintp, types.float64, work, types.intp, values, p, types.int64)

    def generate(context, builder, signature, arguments):
        address, t, work_value, row, values_value, p_value, n = arguments
        function = ir.FunctionType(I32, [ir.DoubleType(), BYTES, BYTES, BYTES, I64])
        y = builder.inttoptr(_row(context, builder, work, work_value, row), BYTES)
        others = [_pointer(context, builder, *pair) for pair in ((values, values_value), (p, p_value))]
        return builder.call(builder.inttoptr(address, function.as_pointer()), [t, y, *others, n])

    return signature, generate


@intrinsic
def call_attempt(typing_context, address, t, t_low, h, work, p):
    """One generated step of a pair, `attempt` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, types.float64, types.float64, types.float64, work, p)

    def generate(context, builder, signature, arguments):
        address, t, t_low, h, work_value, p_value = arguments
        real = ir.DoubleType()
        function = ir.FunctionType(I32, [real, real, real, BYTES, BYTES])
        pointer = builder.inttoptr(address, function.as_pointer())
        pointers = (_pointer(context, builder, work, work_value), _pointer(context, builder, p, p_value))
        return builder.call(pointer, [t, t_low, h, *pointers])

    return signature, generate


@intrinsic
def call_steps(typing_context, address, t0, h, first, count, work, p):
    """Many generated equal steps, `steps` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, types.float64, types.float64, types.int64, types.int64, work, p)

    def generate(context, builder, signature, arguments):
        address, t0, h, first, count, work_value, p_value = arguments
        real = ir.DoubleType()
        function = ir.FunctionType(I32, [real, real, I64, I64, BYTES, BYTES])
        pointer = builder.inttoptr(address, function.as_pointer())
        pointers = (_pointer(context, builder, work, work_value), _pointer(context, builder, p, p_value))
        return builder.call(pointer, [t0, h, first, count, *pointers])

    return signature, generate


@intrinsic
def call_reverse(typing_context, address, t0, h, first, count, grid, states, bar, p_bar, t_bars, p):
    """The adjoint of many steps, `reverse` of codegen/steps/fused_steps.py."""
    real, arrays = types.float64, (grid, states, bar, p_bar, t_bars, p)
    signature = types.int32(types.int64, real, real, types.int64, types.int64, *arrays)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_lane_attempts(typing_context, address, rows, most):
    """Attempts in all lanes, `attempts` of codegen/steps/lane_steps.py; returns their number."""
    signature = types.int64(types.int64, rows, types.int64)

    def generate(context, builder, signature, arguments):
        address, rows_value, most = arguments
        pointer = builder.inttoptr(address, ir.FunctionType(I64, [BYTES, I64]).as_pointer())
        return builder.call(pointer, [_pointer(context, builder, rows, rows_value), most])

    return signature, generate


@intrinsic
def call_steps_in_lanes(typing_context, address, t0, h, first, count, work, p):
    """Many generated equal steps in all lanes, `steps` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, work, p)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_noisy_steps_in_lanes(typing_context, address, t0, h, first, count, work, p, noise):
    """The same with the random variables of the steps."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, work, p, noise)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_sweep_in_lanes(typing_context, address, t0, h, first, count, grid, state, states, stride, p):
    """The same with states stored, `sweep` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, grid, state, states, types.int64, p)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_reverse_in_lanes(typing_context, address, t0, h, first, count, grid, states, bar, p_bar, t_bars, p):
    """Their adjoint, `reverse` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, grid, states, bar, p_bar, t_bars, p)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_noisy_sweep_in_lanes(typing_context, address, t0, h, first, count, grid, state, states, stride, p, noise):
    """`sweep` with the random variables of the steps."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, grid, state, states, types.int64, p, noise)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_noisy_reverse_in_lanes(
    typing_context, address, t0, h, first, count, grid, states, bar, p_bar, t_bars, p, noise
):
    """`reverse` with the random variables of the steps."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, grid, states, bar, p_bar, t_bars, p, noise)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


@intrinsic
def call_watch_in_lanes(typing_context, address, t0, h, first, count, states, stride, values, p):
    """Functions of many states, `watch` of codegen/steps/fused_steps.py."""
    signature = types.int32(types.int64, t0, h, types.int64, types.int64, states, types.int64, values, p)

    def generate(context, builder, signature, arguments):
        return _call_address(context, builder, signature, arguments)

    return signature, generate


def _call_address(context, builder, signature, arguments):
    """Call the address in the first argument with numbers by value and arrays as pointers."""
    is_array = [isinstance(kind, types.Array) for kind in signature.args[1:]]
    numbers = [ir.DoubleType() if isinstance(kind, types.Float) else I64 for kind in signature.args[1:]]
    kinds = [BYTES if array else number for array, number in zip(is_array, numbers, strict=True)]
    function = ir.FunctionType(I32, kinds)
    pointer = builder.inttoptr(arguments[0], function.as_pointer())
    values = zip(is_array, signature.args[1:], arguments[1:], strict=True)
    given = [_pointer(context, builder, kind, value) if array else value for array, kind, value in values]
    return builder.call(pointer, given)


@intrinsic
def call_pullback(typing_context, address, t, work, row, p, bars, row_w, t_bar, row_bar, p_bar, n):
    """status = vjp(t, work[row], p, bars[row_w], t_bar, bars[row_bar], p_bar, n), which adds to the bars."""
    signature = types.int32(
        types.uintp, types.float64, work, types.intp, p, bars, types.intp, t_bar, types.intp, p_bar, types.int64
    )

    def generate(context, builder, signature, arguments):
        address, t, work_value, row, p_value, bars_value, row_w, t_value, row_bar, p_bar_value, n = arguments
        function = ir.FunctionType(I32, [ir.DoubleType(), *[BYTES] * 6, I64])
        pointer = builder.inttoptr(address, function.as_pointer())
        y = builder.inttoptr(_row(context, builder, work, work_value, row), BYTES)
        w = builder.inttoptr(_row(context, builder, bars, bars_value, row_w), BYTES)
        y_bar = builder.inttoptr(_row(context, builder, bars, bars_value, row_bar), BYTES)
        others = [_pointer(context, builder, *pair) for pair in ((p, p_value), (t_bar, t_value), (p_bar, p_bar_value))]
        return builder.call(pointer, [t, y, others[0], w, others[1], y_bar, others[2], n])

    return signature, generate


def _pointer(context, builder, array_type, array):
    return builder.bitcast(context.make_array(array_type)(context, builder, array).data, BYTES)


class _Registers:
    """Generates the loops over one row of `work`, register by register."""

    def __init__(self, context, builder, work_type, work_value):
        self.context, self.builder, self.work_type, self.work_value = context, builder, work_type, work_value
        self.size = work_type.dtype.bitwidth // 8
        self.width = REGISTER_BYTES // self.size
        self.real = context.get_value_type(work_type.dtype)
        self.vector = ir.VectorType(self.real, self.width)
        shape = cgutils.unpack_tuple(builder, context.make_array(work_type)(context, builder, work_value).shape)
        self.row_bytes = builder.mul(shape[1], I64(self.size))

    def row(self, index):
        return _row(self.context, self.builder, self.work_type, self.work_value, index)

    def offsets(self):
        return cgutils.for_range_slice(self.builder, I64(0), self.row_bytes, I64(REGISTER_BYTES), intp=I64)

    def load(self, address, kind=None):
        kind = kind or self.vector
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), typ=kind)
        value.align = self.size
        return value

    def store(self, value, address):
        stored = self.builder.store(value, self.builder.inttoptr(address, self.vector.as_pointer()))
        stored.align = self.size

    def constant(self, value):
        return ir.Constant(self.vector, [value] * self.width)

    def spread(self, scalar):
        blank = ir.Constant(self.vector, ir.Undefined)
        lane0 = self.builder.insert_element(blank, scalar, I32(0))
        return self.builder.shuffle_vector(lane0, blank, ir.Constant(ir.VectorType(I32, self.width), [0] * self.width))

    def fuse(self, x, y, z):
        return self.builder.fadd(self.builder.fmul(x, y, flags=CONTRACT), z, flags=CONTRACT)


@intrinsic
def combine(typing_context, work, out, base, h, weights, i, first, count):
    """work[out] = work[base] + h * sum_{j < count} weights[i, j] * work[first + j].

    The sum stays in a register while j runs, for one register of the state after the other.  This makes one generic
    kernel as fast as a hand-written scheme, for three unknowns as for a million.
    """
    signature = types.void(work, types.intp, types.intp, types.float64, weights, types.intp, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        work_value, out, base, h, weights_value, i, first, count = arguments
        r = _Registers(context, builder, work, work_value)
        out_row, base_row, first_row = r.row(out), r.row(base), r.row(first)
        weight_row = _row(context, builder, weights, weights_value, i)
        step = r.spread(h if r.real == ir.DoubleType() else builder.fptrunc(h, r.real))
        total, column = cgutils.alloca_once(builder, r.vector), cgutils.alloca_once(builder, I64)
        weight_bytes = builder.mul(count, I64(r.size))
        with r.offsets() as (offset, _):
            builder.store(r.constant(0.0), total)
            builder.store(builder.add(first_row, offset), column)
            with cgutils.for_range_slice(builder, I64(0), weight_bytes, I64(r.size), intp=I64) as (j, _):
                weight = r.spread(r.load(builder.add(weight_row, j), r.real))
                address = builder.load(column)
                builder.store(r.fuse(weight, r.load(address), builder.load(total)), total)
                builder.store(builder.add(address, r.row_bytes), column)
            result = r.fuse(step, builder.load(total), r.load(builder.add(base_row, offset)))
            r.store(result, builder.add(out_row, offset))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def accumulate(typing_context, work, out, base, weights, rows, first, last):
    """work[out] = work[base] + sum_{first <= j < last} weights[j] * work[rows[j]], for arbitrary rows of `work`."""
    signature = types.void(work, types.intp, types.intp, weights, rows, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        work_value, out, base, weights_value, rows_value, first, last = arguments
        r = _Registers(context, builder, work, work_value)
        out_row, base_row, zero_row = r.row(out), r.row(base), r.row(I64(0))
        weight = builder.ptrtoint(context.make_array(weights)(context, builder, weights_value).data, I64)
        row = builder.ptrtoint(context.make_array(rows)(context, builder, rows_value).data, I64)
        total = cgutils.alloca_once(builder, r.vector)
        with r.offsets() as (offset, _):
            start = builder.add(zero_row, offset)
            builder.store(r.load(builder.add(base_row, offset)), total)
            with cgutils.for_range_slice(builder, first, last, I64(1), intp=I64) as (j, _):
                place = builder.mul(j, I64(8))
                w = r.spread(r.load(builder.add(weight, place), r.real))
                number = r.load(builder.add(row, place), I64)
                term = r.load(builder.add(start, builder.mul(number, r.row_bytes)))
                builder.store(r.fuse(w, term, builder.load(total)), total)
            r.store(builder.load(total), builder.add(out_row, offset))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def copy_row(typing_context, work, source, target):
    """work[target] = work[source]."""
    signature = types.void(work, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        work_value, source, target = arguments
        r = _Registers(context, builder, work, work_value)
        source_row, target_row = r.row(source), r.row(target)
        with r.offsets() as (offset, _):
            r.store(r.load(builder.add(source_row, offset)), builder.add(target_row, offset))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def is_finite_row(typing_context, work, row):
    """Whether a row holds neither NaN nor infinity: x - x is 0 for every other number."""
    signature = types.boolean(work, types.intp)

    def generate(context, builder, signature, arguments):
        work_value, row = arguments
        r = _Registers(context, builder, work, work_value)
        start = r.row(row)
        total = cgutils.alloca_once_value(builder, r.constant(0.0))
        with r.offsets() as (offset, _):
            x = r.load(builder.add(start, offset))
            builder.store(builder.fadd(builder.load(total), builder.fsub(x, x)), total)
        is_zero = builder.fcmp_ordered("==", builder.load(total), r.constant(0.0))
        bits = builder.bitcast(is_zero, ir.IntType(r.width))
        return builder.icmp_unsigned("==", bits, ir.Constant(ir.IntType(r.width), -1))

    return signature, generate
