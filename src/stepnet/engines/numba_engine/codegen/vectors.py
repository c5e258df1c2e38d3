"""Formulas written as machine vectors: the same Python code emits the instructions for scalars and vectors.

A `Vector` stands for a value in registers; adding two of them emits an addition.  Products are fused into sums where
the processor supports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils

VECTOR_BYTES = 64  # the size of a cache line
I32, I64 = ir.IntType(32), ir.IntType(64)
FUSED = ("contract",)


class Vector:
    """A vector of numbers in registers, or one number."""

    def __init__(self, kit: VectorWriter, value):
        self.kit, self.value = kit, value

    def _write_binary(self, instruction: str, x, y) -> Vector:
        x, y = self.kit.whole(x), self.kit.whole(y)
        return Vector(self.kit, getattr(self.kit.builder, instruction)(x.value, y.value, flags=FUSED))

    def __add__(self, other):
        return self._write_binary("fadd", self, other)

    def __sub__(self, other):
        return self._write_binary("fsub", self, other)

    def __mul__(self, other):
        return self._write_binary("fmul", self, other)

    def __truediv__(self, other):
        return self._write_binary("fdiv", self, other)

    def __radd__(self, other):
        return self._write_binary("fadd", other, self)

    def __rsub__(self, other):
        return self._write_binary("fsub", other, self)

    def __rmul__(self, other):
        return self._write_binary("fmul", other, self)

    def __rtruediv__(self, other):
        return self._write_binary("fdiv", other, self)

    def __neg__(self):
        return Vector(self.kit, self.kit.builder.fneg(self.value))

    def __abs__(self):
        return self.kit.call("fabs", self)

    def __gt__(self, other):
        return self.kit.builder.fcmp_ordered(">", self.value, self.kit.whole(other).value)

    def power_of_two(self, digits: int) -> Vector:
        """2^k where the lowest bits are k plus the exponent bias; `digits` is the number of mantissa bits."""
        bits = self.kit.builder.bitcast(self.value, self.kit.integers)
        count = ir.Constant(self.kit.integers, [digits] * self.kit.width if self.kit.width > 1 else digits)
        return Vector(self.kit, self.kit.builder.bitcast(self.kit.builder.shl(bits, count), self.kit.type))


class VectorWriter:
    """Emits loads, stores and loops of vectors of one type; `width` 1 is for single numbers."""

    def __init__(self, context, builder, real, width: int | None = None):
        self.context, self.builder, self.real = context, builder, real
        self.kind, self.size = context.get_value_type(real), real.bitwidth // 8
        self.width = width or VECTOR_BYTES // self.size
        is_wide = self.width > 1
        integer = ir.IntType(real.bitwidth)
        self.type = ir.VectorType(self.kind, self.width) if is_wide else self.kind
        self.integers = ir.VectorType(integer, self.width) if is_wide else integer
        self.suffix = f"v{self.width}f{real.bitwidth}" if is_wide else f"f{real.bitwidth}"

    # ---- values -----------------------------------------------------------------------------------------------------

    def whole(self, x) -> Vector:
        """A vector from a Python number, or the vector itself."""
        if isinstance(x, Vector):
            return x
        return Vector(self, ir.Constant(self.type, [float(x)] * self.width if self.width > 1 else float(x)))

    def spread(self, scalar) -> Vector:
        """A number in all entries."""
        if self.width == 1:
            return Vector(self, scalar)
        lane0 = self.builder.insert_element(ir.Constant(self.type, ir.Undefined), scalar, I32(0))
        places = ir.Constant(ir.VectorType(I32, self.width), [0] * self.width)
        return Vector(self, self.builder.shuffle_vector(lane0, lane0, places))

    def call(self, name: str, *arguments: Vector) -> Vector:
        """Call an LLVM intrinsic."""
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.{self.suffix}")
        return Vector(self, self.builder.call(function, [each.value for each in arguments]))

    def select(self, condition, x, y) -> Vector:
        return Vector(self, self.builder.select(condition, self.whole(x).value, self.whole(y).value))

    def both(self, a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
        """a b + c d, where the second product is fused; LLVM's own choice would depend on the surrounding code."""
        return self.call("fmuladd", c, d, a * b)

    def apply_sign(self, x: Vector, sign: Vector) -> Vector:
        """sign x for sign = 1 or -1, without a multiplication, because the multipliers are busy."""
        bits, other = (self.builder.bitcast(each.value, self.integers) for each in (x, sign))
        digits = 8 * self.size - 1
        first = ir.Constant(self.integers, [-(2**digits)] * self.width if self.width > 1 else -(2**digits))
        turned = self.builder.xor(bits, self.builder.and_(other, first))
        return Vector(self, self.builder.bitcast(turned, self.type))

    def smaller(self, x, y) -> Vector:
        """The minimum; x if it is NaN."""
        return self.select(self.whole(x) > y, y, x)

    def larger(self, x, y) -> Vector:
        """The maximum; x if it is NaN."""
        return self.select(self.whole(y) > x, y, x)

    def totals(self, vectors: list[Vector]) -> ir.Value:
        """The sums of the entries of some vectors (a power of two of them, at most the width), as one vector.

        Vectors are added in pairs with interleaved entries until one is left, whose halves are then added.
        """
        width, values = self.width, [each.value for each in vectors]
        while len(values) > 1:
            n = len(vectors) // len(values)  # vectors that are interleaved so far
            ones = [side * width + k + i for k in range(0, width, 2 * n) for side in (0, 1) for i in range(n)]
            others = [i + n for i in ones]
            values = [self._add_entries(x, y, ones, others) for x, y in zip(values[::2], values[1::2], strict=True)]
        value, left = values[0], width
        while left > len(vectors):
            left //= 2
            value = self._add_entries(value, value, list(range(left)), list(range(left, 2 * left)))
        return value

    def _add_entries(self, x, y, ones: list[int], others: list[int]):
        """The entries `ones` of two vectors plus the entries `others`."""
        first, second = (
            self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(places)), places))
            for places in (ones, others)
        )
        return self.builder.fadd(first, second)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def address(self, array_type, array, offset):
        """The address of an entry of a flat array."""
        data = self.context.make_array(array_type)(self.context, self.builder, array).data
        return self.builder.add(self.builder.ptrtoint(data, I64), self.bytes(offset))

    def bytes(self, count):
        """The size of `count` numbers in bytes."""
        return self.builder.mul(count, I64(self.size))

    def load(self, address) -> Vector:
        return Vector(self, self._load_as(address, self.type))

    def load_spread(self, address) -> Vector:
        return self.spread(self._load_as(address, self.kind))

    def _load_as(self, address, kind):
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), typ=kind)
        value.align = self.size
        return value

    def store(self, vector: Vector, address) -> None:
        place = self.builder.inttoptr(address, self.type.as_pointer())
        self.builder.store(vector.value, place).align = self.size

    def fetch(self, address) -> None:
        """Prefetch an address into the second-level cache."""
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        reading, level, data = I32(0), I32(2), I32(1)
        self.builder.call(function, [self.builder.inttoptr(address, pointer), reading, level, data])

    def add_to_memory(self, sums, address) -> None:
        """Add a vector of any length to memory."""
        place = self.builder.inttoptr(address, sums.type.as_pointer())
        before = self.builder.load(place, typ=sums.type)
        before.align = self.size
        self.builder.store(self.builder.fadd(before, sums), place).align = self.size

    # ---- control ----------------------------------------------------------------------------------------------------

    @contextmanager
    def loop_over(self, count) -> Iterator[ir.Value]:
        """A loop over the vectors of `count` numbers; yields their offsets in bytes."""
        step = I64(self.width * self.size)
        with cgutils.for_range_slice(self.builder, I64(0), self.bytes(count), step, intp=I64) as (offset, _):
            yield offset

    def cases(self, number, choices: dict) -> Iterator[tuple]:
        """Iterate over the choices; the code written for each of them runs where `number` is its key."""
        after = self.builder.append_basic_block("after")
        switch = self.builder.switch(number, after)
        for key, value in choices.items():
            block = self.builder.append_basic_block(f"case{key}")
            switch.add_case(I64(key), block)
            self.builder.position_at_end(block)
            yield key, value
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def lines(self, n):
        """The number of cache lines in n bytes."""
        return self.builder.udiv(n, I64(VECTOR_BYTES))

    def allocate_sums(self, count: int) -> LoopVectors:
        """Sums in registers, initially zero."""
        return LoopVectors(self, count)


class LoopVectors:
    """Vectors that a loop updates."""

    def __init__(self, kit: VectorWriter, count: int):
        self._kit = kit
        self._places = [cgutils.alloca_once(kit.builder, kit.type) for _ in range(count)]
        for i in range(count):
            self[i] = kit.whole(0.0)

    def __getitem__(self, i: int) -> Vector:
        return Vector(self._kit, self._kit.builder.load(self._places[i]))

    def __setitem__(self, i: int, vector: Vector) -> None:
        self._kit.builder.store(vector.value, self._places[i])


class Prefetch:
    """Prefetches memory from an address on line by line, unless its index `soon` is beyond `stop`."""

    def __init__(self, kit: VectorWriter, address, soon, stop):
        self._kit, self._address, self._soon = kit, address, soon
        is_wanted = kit.builder.icmp_signed("<", soon, stop)
        self._line = kit.builder.select(is_wanted, I64(VECTOR_BYTES // kit.size), I64(0))

    def prefetch(self, number) -> None:
        """Prefetch one of the lines."""
        self._kit.fetch(self._kit.builder.add(self._address, self._kit.bytes(self._skip_lines(number))))

    def find_index_after(self, count):
        """The index after `count` lines."""
        return self._kit.builder.add(self._soon, self._skip_lines(count))

    def _skip_lines(self, lines):
        return self._kit.builder.mul(lines, self._line)
