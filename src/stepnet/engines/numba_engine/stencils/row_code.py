"""Machine code for one row of a grid: a stencil and linear combinations of rows, in one pass over memory.

    void row(const int64 *taps, const double *tap_weights, const double *column_weights, const double *edges,
             const double *full, const double *rates, const int64 *inputs, const int64 *outputs, const double *weights,
             double *sums, int64 n)

The slope at a point is the sum over the rows at the addresses `taps`, plus the differences along the row itself, which
is the first tap.  `edges` and `full` hold the effect of boundary values: at the special columns, and for special rows
at all the others.  Vectors and single numbers use the same fused operations, so that a result does not depend on where
in a vector a point lies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.stencils.axis_bands import AxisBand

BYTES = 64  # of a vector: two AVX2 registers or one of AVX-512; also of a cache line
LONG_ROW = (
    512  # points from which the vectors of a row begin at cache lines: loads across lines took up to twice as long
)
HEAD = (
    "ptr noalias readonly %taps, ptr noalias readonly %tap_weights, ptr noalias readonly %column_weights, "
    "ptr noalias readonly %edges, ptr noalias readonly %full, ptr noalias readonly %rates, "
    "ptr noalias readonly %inputs, ptr noalias readonly %outputs, ptr noalias readonly %weights, ptr noalias %sums, "
    "i64 %n"
)
SLOPE = "slope"


class RowTerm(NamedTuple):
    """weights[place] times a value (an input, an earlier sum or the slope); place -1 stands for the weight 1."""

    value: tuple[str, int] | str
    place: int


class RowShape(NamedTuple):
    """What a row function computes; sums may use earlier sums, and `outputs` says which of them are stored.

    `n_patches` boundary parts have separate rates.  With `is_dot` the product of the slope and the first input is
    added to sums[0]; with `is_slope` the slope is computed, else there are only sums.
    """

    dtype: str
    is_slope: bool
    n_inputs: int
    sums: tuple[tuple[RowTerm, ...], ...]
    outputs: tuple[int, ...]
    n_patches: int = 0
    is_dot: bool = False


class _RowWriter:
    """Writes one row function."""

    def __init__(self, shape: RowShape, n_taps: int, band: AxisBand | None, is_full: bool):
        self._shape, self._n_taps, self._band, self._is_full = shape, n_taps, band, is_full
        self.real = "float" if shape.dtype == "float32" else "double"
        self._lanes = BYTES // np.dtype(shape.dtype).itemsize
        self._kind, self._suffix = self.real, ""
        self.lines: list[str] = []
        self._count = 0

    def _value(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def _load_double(self, array: str, place: int) -> str:
        """A number of a table, in the precision of the state."""
        at = self._value(f"getelementptr double, ptr {array}, i64 {place}")
        number = self._value(f"load double, ptr {at}, align 8")
        return number if self.real == "double" else self._value(f"fptrunc double {number} to float")

    def _load_pointer(self, array: str, place: int) -> str:
        at = self._value(f"getelementptr i64, ptr {array}, i64 {place}")
        return self._value(f"inttoptr i64 {self._value(f'load i64, ptr {at}, align 8')} to ptr")

    def _spread(self, value: str) -> str:
        one = self._value(f"insertelement <{self._lanes} x {self.real}> poison, {self.real} {value}, i64 0")
        zeros = f"<{self._lanes} x i32> zeroinitializer"
        return self._value(
            f"shufflevector <{self._lanes} x {self.real}> {one}, <{self._lanes} x {self.real}> poison, {zeros}"
        )

    def _use(self, numbers: dict, is_wide: bool) -> None:
        """Which form of the weights the following lines use."""
        self._kind = f"<{self._lanes} x {self.real}>" if is_wide else self.real
        size = 32 if self.real == "float" else 64
        self._suffix = f"v{self._lanes}f{size}" if is_wide else f"f{size}"
        self._numbers = numbers

    def _load(self, pointer: str, index: str) -> str:
        at = self._value(f"getelementptr {self.real}, ptr {pointer}, i64 {index}")
        return self._value(f"load {self._kind}, ptr {at}, align {4 if self.real == 'float' else 8}")

    def _store(self, value: str, pointer: str, index: str) -> None:
        at = self._value(f"getelementptr {self.real}, ptr {pointer}, i64 {index}")
        self.lines.append(f"store {self._kind} {value}, ptr {at}, align {4 if self.real == 'float' else 8}")

    def _multiply_add(self, x: str, y: str, total: str | None) -> str:
        if total is None:
            return self._value(f"fmul {self._kind} {x}, {y}")
        k = self._kind
        return self._value(f"call {k} @llvm.fma.{self._suffix}({k} {x}, {k} {y}, {k} {total})")

    def _load_patch(self, array: str, place: str) -> str:
        """A boundary part, kept in double precision."""
        at = self._value(f"getelementptr double, ptr {array}, i64 {place}")
        wide = self._kind.replace("float", "double")
        number = self._value(f"load {wide}, ptr {at}, align 8")
        return number if self.real == "double" else self._value(f"fptrunc {wide} {number} to {self._kind}")

    # ---- the function

    def write(self, name: str) -> str:
        """The complete function."""
        band, shape = self._band, self._shape
        taps = [self._load_pointer("%taps", k) for k in range(self._n_taps)]
        self._taps, self._mid = taps, taps[0] if taps else None
        self._inputs = [self._load_pointer("%inputs", k) for k in range(shape.n_inputs)]
        self._outputs = [self._load_pointer("%outputs", k) for k in range(len(shape.outputs))]
        numbers = {("tap", k): self._load_double("%tap_weights", k) for k in range(self._n_taps)}
        if band is not None:
            numbers |= {("column", k): self._load_double("%column_weights", k) for k in range(len(band.offsets))}
        places = {term.place for terms in shape.sums for term in terms if term.place >= 0}
        numbers |= {("weight", k): self._load_double("%weights", k) for k in sorted(places)}
        numbers |= {("rate", k): self._load_double("%rates", k) for k in range(shape.n_patches)}
        wide = {key: self._spread(value) for key, value in numbers.items()}
        low, high = (band.n_low, band.n_high) if band is not None else (0, 0)
        zero = f"<{self._lanes} x {self.real}> zeroinitializer"
        self.lines += [
            f"%stop = sub i64 %n, {high}", f"%last = sub i64 %stop, {self._lanes - 1}",
        ]  # fmt: skip
        self._align(low, numbers)
        self.lines += [
            "enter:",
            "%any = icmp slt i64 %from, %last", "br i1 %any, label %wide, label %middle",
            "wide:", "%j = phi i64 [ %from, %enter ], [ %j_next, %wide ]",
        ]  # fmt: skip
        if shape.is_dot:
            self.lines.append(
                f"%dots = phi {zero.rsplit(' ', 1)[0]} [ zeroinitializer, %enter ], [ %dots_next, %wide ]"
            )
        self._use(wide, True)
        self._point("%j", None, "%dots")
        self.lines += [
            f"%j_next = add i64 %j, {self._lanes}", "%more = icmp slt i64 %j_next, %last",
            "br i1 %more, label %wide, label %middle", "middle:",
            "%begin = phi i64 [ %from, %enter ], [ %j_next, %wide ]",
        ]  # fmt: skip
        if shape.is_dot:
            vector = f"<{self._lanes} x {self.real}>"
            self.lines.append(f"%dots_all = phi {vector} [ zeroinitializer, %enter ], [ %dots_next, %wide ]")
            size = 32 if self.real == "float" else 64
            call = (
                f"call {self.real} @llvm.vector.reduce.fadd.v{self._lanes}f{size}({self.real} 0.0, {vector} %dots_all)"
            )
            self.lines.append(f"%dots_sum = {call}")
        self.lines += [
            "%rest = icmp slt i64 %begin, %stop", "br i1 %rest, label %single, label %ends",
            "single:", "%i = phi i64 [ %begin, %middle ], [ %i_next, %single ]",
        ]  # fmt: skip
        if shape.is_dot:
            self.lines.append(f"%dot = phi {self.real} [ %dots_sum, %middle ], [ %dot_next, %single ]")
        self._use(numbers, False)
        self._point("%i", None, "%dot")
        self.lines += [
            "%i_next = add i64 %i, 1", "%again = icmp slt i64 %i_next, %stop",
            "br i1 %again, label %single, label %ends", "ends:",
        ]  # fmt: skip
        total = None
        if shape.is_dot:
            self.lines.append(f"%dot_all = phi {self.real} [ %dots_sum, %middle ], [ %dot_next, %single ]")
            total = "%dot_all"
        for c in range(low + high):
            total = self._point_at_end(c, c if c < low else c - low - high, total)
        if shape.is_dot:
            double = total if self.real == "double" else self._value(f"fpext float {total} to double")
            before = self._value("load double, ptr %sums, align 8")
            self.lines.append(f"store double {self._value(f'fadd double {before}, {double}')}, ptr %sums, align 8")
        body = "\n  ".join(self.lines)
        return f"define void @{name}({HEAD}) {{\n  {body}\n  ret void\n}}\n"

    def _align(self, low: int, numbers: dict) -> None:
        """Compute the points of a long row up to a cache line one by one; vectors begin at `%from`.

        Not with products, whose sum would depend on the address.
        """
        if self._shape.is_dot:
            self.lines += [f"%from = add i64 {low}, 0", "br label %enter"]
            return
        size = np.dtype(self._shape.dtype).itemsize
        address = self._value(f"ptrtoint ptr {self._mid or self._outputs[0]} to i64")
        rest = self._value(f"and i64 {self._value(f'sub i64 {-low * size}, {address}')}, {BYTES - 1}")
        points = self._value(f"udiv i64 {rest}, {size}")
        is_long = self._value(f"icmp sge i64 %n, {LONG_ROW}")
        before = self._value(f"select i1 {is_long}, i64 {points}, i64 0")
        self.lines += [
            f"%from = add i64 {low}, {before}", "br label %test", "test:", f"%peels = icmp slt i64 {low}, %from",
            "br i1 %peels, label %peel, label %enter",
            "peel:", f"%k = phi i64 [ {low}, %test ], [ %k_next, %peel ]",
        ]  # fmt: skip
        self._use(numbers, False)
        self._point("%k", None, None)
        self.lines += [
            "%k_next = add i64 %k, 1", "%peels_on = icmp slt i64 %k_next, %from",
            "br i1 %peels_on, label %peel, label %enter",
        ]  # fmt: skip

    def _point_at_end(self, special: int, index: int, dot: str | None) -> str | None:
        at = str(index) if index >= 0 else self._value(f"add i64 %n, {index}")
        return self._point(at, special, dot)

    def _point(self, at: str, special: int | None, dot: str | None) -> str | None:
        """All values at one point or vector of points; returns the running sum of products."""
        shape, slope = self._shape, None
        if shape.is_slope:
            slope = self._find_slope(at, special)
        inputs = [self._load(pointer, at) for pointer in self._inputs]
        values: list[str] = []

        def find(term: RowTerm) -> str:
            if term.value == SLOPE:
                return slope
            kind, k = cast(tuple[str, int], term.value)
            return inputs[k] if kind == "input" else values[k]

        for terms in shape.sums:
            first = next((i for i, term in enumerate(terms) if term.place < 0), None)
            total = None if first is None else find(terms[first])
            for i, term in enumerate(terms):
                if i == first:
                    continue
                if term.place < 0:
                    total = self._value(f"fadd {self._kind} {total}, {find(term)}")
                else:
                    total = self._multiply_add(self._numbers["weight", term.place], find(term), total)
            values.append(total)
        for pointer, k in zip(self._outputs, shape.outputs, strict=True):
            self._store(slope if k < 0 else values[k], pointer, at)
        if not shape.is_dot:
            return None
        new = self._multiply_add(slope, inputs[0], dot)
        if dot in ("%dots", "%dot"):
            self.lines.append(f"{dot}_next = select i1 true, {self._kind} {new}, {self._kind} {new}")
        return new

    def _find_slope(self, at: str, special: int | None) -> str:
        band, total = self._band, None
        for k, tap in enumerate(self._taps):
            if k == 0 and len(self._taps) == 1:  # no axis but the last: the first tap is the row itself
                continue
            total = self._multiply_add(self._numbers["tap", k], self._load(tap, at), total)
        if special is None:
            for k, offset in enumerate(band.offsets):
                index = at if offset == 0 else self._value(f"add i64 {at}, {offset}")
                total = self._multiply_add(self._numbers["column", k], self._load(self._mid, index), total)
        else:
            place = len(band.offsets) + sum(map(len, band.special[:special]))
            for k, column in enumerate(band.special[special]):
                index = str(column) if column >= 0 else self._value(f"add i64 %n, {column}")
                weight = self._load_double("%column_weights", place + k)
                total = self._multiply_add(weight, self._load(self._mid, index), total)
        return self._add_patches(total, at, special)

    def _add_patches(self, total: str, at: str, special: int | None) -> str:
        """Add the effect of boundary values."""
        n_ends = self._band.n_low + self._band.n_high
        for g in range(self._shape.n_patches):
            if special is not None:
                patch = self._load_patch("%edges", str(g * n_ends + special))
            elif self._is_full:
                start = self._value(f"mul i64 %n, {g}")
                patch = self._load_patch("%full", self._value(f"add i64 {start}, {at}"))
            else:
                continue
            total = self._multiply_add(self._numbers["rate", g], patch, total)
        return total


def declare_intrinsics(dtype: str) -> str:
    """The declarations that row functions need."""
    real, size = ("float", 32) if dtype == "float32" else ("double", 64)
    lanes = BYTES // (size // 8)
    kinds = ((real, f"f{size}"), (f"<{lanes} x {real}>", f"v{lanes}f{size}"))
    fused = "".join(f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})\n" for kind, suffix in kinds)
    return fused + f"declare {real} @llvm.vector.reduce.fadd.v{lanes}f{size}({real}, <{lanes} x {real}>)\n"


def write_row(name: str, shape: RowShape, n_taps: int, band: AxisBand | None, is_full: bool = False) -> str:
    """LLVM assembly of a row function."""
    return _RowWriter(shape, n_taps, band, is_full).write(name)


@lru_cache(maxsize=64)
def compile_rows(text: str) -> MachineCode:
    """The machine code of row functions, which hold no weights: operators of one form share them."""
    return MachineCode(text, "row")


class RowCode:
    """The functions of a row: for rows in the middle of the grid, and for special rows."""

    def __init__(self, shape: RowShape, n_taps: tuple[int, int], band: AxisBand | None):
        text = declare_intrinsics(shape.dtype) + write_row("row", shape, n_taps[0], band)
        if n_taps[1]:
            text += write_row("special", shape, n_taps[1], band, shape.n_patches > 0)
        self._code = compile_rows(text)
        self.address = self._code.address
        self.special_address = self._code.find_address("special") if n_taps[1] else self.address
