"""Formulas on several machine vectors at once, instruction by instruction, whose products are never fused into sums.

Every operation is emitted for all vectors of a `Bundle` in turn.  Their chains of operations are independent, and the
processor, which looks ahead by about a hundred instructions only, works on all of them at the same time.  Numba marks
all operations of functions that may fuse products, so that only those decorated with `exact` may contain bundles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

I32, I64, REAL = ir.IntType(32), ir.IntType(64), ir.DoubleType()


class Bundle:
    """Vectors, or single numbers, of float64 or uint64; operations with Python numbers apply to all entries."""

    __array_ufunc__ = None  # operations of NumPy numbers with bundles are those of bundles

    def __init__(self, builder, values: list):
        self.builder, self.values = builder, values

    @property
    def type(self):
        return self.values[0].type

    def _map(self, write: Callable, *others: Any) -> Bundle:
        columns = [other.values if isinstance(other, Bundle) else self._repeat(other) for other in others]
        return Bundle(self.builder, [write(*each) for each in zip(self.values, *columns, strict=True)])

    def _repeat(self, number) -> list:
        return [fill(self.type, number)] * len(self.values)

    def __and__(self, other):
        return self._map(self.builder.and_, other)

    def __or__(self, other):
        return self._map(self.builder.or_, other)

    def __xor__(self, other):
        return self._map(self.builder.xor, other)

    def __lshift__(self, count):
        return self._map(self.builder.shl, count)

    def __rshift__(self, count):
        return self._map(self.builder.lshr, count)

    def _choose(self, of_reals: str, of_integers: str) -> Callable:
        return getattr(self.builder, of_reals if is_real(self.type) else of_integers)

    def __add__(self, other):
        return self._map(self._choose("fadd", "add"), other)

    def __sub__(self, other):
        return self._map(self._choose("fsub", "sub"), other)

    def __mul__(self, other):
        return self._map(self._choose("fmul", "mul"), other)

    def __truediv__(self, other):
        return self._map(self.builder.fdiv, other)

    __radd__, __rmul__, __rand__, __ror__, __rxor__ = __add__, __mul__, __and__, __or__, __xor__

    def __rsub__(self, other):
        return self._map(lambda x, y: self._choose("fsub", "sub")(y, x), other)

    def find_set(self, bit: int) -> list:
        """Where a bit is set, for each vector: conditions of `exchange`."""
        nothing = fill(self.type, 0)
        return [self.builder.icmp_unsigned("!=", value, nothing) for value in (self & bit).values]

    def bitcast(self) -> Bundle:
        """The bits of float64 as uint64, and the other way round."""
        kind = I64 if is_real(self.type) else REAL
        target = ir.VectorType(kind, self.type.count) if isinstance(self.type, ir.VectorType) else kind
        return self._map(lambda x: self.builder.bitcast(x, target))

    def sqrt(self) -> Bundle:
        suffix = f"v{self.type.count}f64" if isinstance(self.type, ir.VectorType) else "f64"
        kind = ir.FunctionType(self.type, [self.type])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.sqrt.{suffix}")
        return self._map(lambda x: self.builder.call(function, [x]))


def is_real(kind) -> bool:
    return (kind.element if isinstance(kind, ir.VectorType) else kind) == REAL


def fill(kind, number) -> ir.Constant:
    """A constant of a type, the same in all entries."""
    value = float(number) if is_real(kind) else int(number)
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def count_up(count: int) -> ir.Constant:
    """The uint64 vector 0, 1, 2, ..."""
    return ir.Constant(ir.VectorType(I64, count), list(range(count)))


def store(builder, address, vectors: list) -> None:
    """Store vectors of float64 one after the other, at an address that is a multiple of 8."""
    place = builder.inttoptr(address, vectors[0].type.as_pointer())
    for i, vector in enumerate(vectors):
        builder.store(vector, builder.gep(place, [I64(i)]), align=8)


def spread(builder, number, count: int):
    """A vector of `count` equal numbers."""
    kind = ir.VectorType(number.type, count)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, count), [0] * count))


def exchange(conditions: list, x: Bundle, y: Bundle) -> tuple[Bundle, Bundle]:
    """(y, x) where the conditions hold, else (x, y)."""
    choose = x.builder.select
    first = [choose(*each) for each in zip(conditions, y.values, x.values, strict=True)]
    second = [choose(*each) for each in zip(conditions, x.values, y.values, strict=True)]
    return Bundle(x.builder, first), Bundle(x.builder, second)
