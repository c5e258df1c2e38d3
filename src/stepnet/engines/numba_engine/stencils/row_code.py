"""Machine code for one row of a grid: a stencil and linear combinations of rows, in one pass over memory.

    void row(const int64 *taps, const double *tap_weights, const double *column_weights, const double *edges,
             const double *full, const double *rates, const int64 *inputs, const int64 *outputs, const double *weights,
             double *sums, int64 n)

The slope at a point is the sum over the rows at the addresses `taps`, plus the differences along the row itself, which
is the first tap; functions of several rows have their taps, inputs, outputs and edges one after another.  `edges` and
`full` hold the effect of boundary values: at the special columns, and for special rows at all the others.  Vectors and
single numbers use the same fused operations, so that a result does not depend on where in a vector a point lies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import HAS_WIDE_REGISTERS, MachineCode
from stepnet.engines.numba_engine.stencils.axis_bands import AxisBand, find_pairs, is_wrapped

BYTES = 64  # of a vector: two AVX2 registers or one of AVX-512; also of a cache line
LONG_ROW = 64  # points from which vectors begin at cache lines: loads across lines took up to twice as long
GROUP = 2  # rows in the middle that one call computes: it reads the rows between them once
Pairs = tuple[tuple[int, int], ...]
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
    own_input: int = -1  # which input is the row itself


class _Row(NamedTuple):
    """The pointers of one of the rows that a function computes, and its place among them."""

    number: int
    taps: list[str]
    inputs: list[str]
    outputs: list[str]


class _RowWriter:
    """Writes a function of `n_rows` rows one after another.

    Taps in `pairs` have equal weights: their values are added before they are multiplied.
    """

    def __init__(self, shape: RowShape, n_taps: int, band: AxisBand | None, pairs, is_full: bool, n_rows: int):
        self._shape, self._n_taps, self._band, self._is_full = shape, n_taps, band, is_full
        self._pairs, self._n_rows = pairs, n_rows
        self.real = "float" if shape.dtype == "float32" else "double"
        self._size = np.dtype(shape.dtype).itemsize
        self._lanes = BYTES // self._size
        self._vector = f"<{self._lanes} x {self.real}>"
        self._kind, self._suffix = self.real, ""
        self._neighbours: dict[int, tuple[str, ...]] = {}  # of each row: the vectors before, at and behind a point
        self._mask: str | None = None
        self._is_shifting = band is not None and HAS_WIDE_REGISTERS and max(map(abs, band.offsets)) < self._lanes
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

    def _spread(self, kind: str, value: str) -> str:
        """A vector of equal values."""
        one = self._value(f"insertelement <{self._lanes} x {kind}> poison, {kind} {value}, i64 0")
        zeros = f"<{self._lanes} x i32> zeroinitializer"
        return self._value(f"shufflevector <{self._lanes} x {kind}> {one}, <{self._lanes} x {kind}> poison, {zeros}")

    def _use(self, numbers: dict, is_wide: bool, mask: str | None = None) -> None:
        """Which form of the weights the following lines use, and which lanes of vectors exist."""
        self._kind = self._vector if is_wide else self.real
        size = 8 * self._size
        self._suffix = f"v{self._lanes}f{size}" if is_wide else f"f{size}"
        self._numbers, self._mask, self._neighbours = numbers, mask, {}

    def _load(self, pointer: str, index: str, kind: str | None = None) -> str:
        real = self.real if kind is None else kind
        at = self._value(f"getelementptr {real}, ptr {pointer}, i64 {index}")
        wide = self._kind.replace(self.real, real)
        if self._mask is None:
            return self._value(f"load {wide}, ptr {at}, align {4 if real == 'float' else 8}")
        return self._load_masked(at, self._mask, real)

    def _load_masked(self, at: str, mask: str, real: str) -> str:
        wide, width = f"<{self._lanes} x {real}>", 32 if real == "float" else 64
        return self._value(
            f"call {wide} @llvm.masked.load.v{self._lanes}f{width}.p0(ptr {at}, i32 {width // 8}, "
            f"<{self._lanes} x i1> {mask}, {wide} zeroinitializer)"
        )

    def _store(self, value: str, pointer: str, index: str) -> None:
        at = self._value(f"getelementptr {self.real}, ptr {pointer}, i64 {index}")
        if self._mask is None:
            self.lines.append(f"store {self._kind} {value}, ptr {at}, align {self._size}")
        else:
            self.lines.append(
                f"call void @llvm.masked.store.{self._suffix}.p0({self._kind} {value}, ptr {at}, i32 {self._size}, "
                f"<{self._lanes} x i1> {self._mask})"
            )

    def _add(self, x: str, y: str) -> str:
        return self._value(f"fadd {self._kind} {x}, {y}")

    def _multiply_add(self, x: str, y: str, total: str | None) -> str:
        if total is None:
            return self._value(f"fmul {self._kind} {x}, {y}")
        k = self._kind
        return self._value(f"call {k} @llvm.fma.{self._suffix}({k} {x}, {k} {y}, {k} {total})")

    def _load_patch(self, array: str, place: str) -> str:
        """A boundary part, kept in double precision."""
        number = self._load(array, place, "double")
        wide = self._kind.replace("float", "double")
        return number if self.real == "double" else self._value(f"fptrunc {wide} {number} to {self._kind}")

    # ---- the function

    def write(self, name: str) -> str:
        """The complete function."""
        band, shape = self._band, self._shape
        self.lines.append("entry:")
        if shape.is_dot:
            self.lines.append(f"%both = alloca [2 x {self._vector}], align {BYTES}")
        rows = [
            _Row(
                r,
                [self._load_pointer("%taps", r * self._n_taps + k) for k in range(self._n_taps)],
                [self._load_pointer("%inputs", r * shape.n_inputs + k) for k in range(shape.n_inputs)],
                [self._load_pointer("%outputs", r * len(shape.outputs) + k) for k in range(len(shape.outputs))],
            )
            for r in range(self._n_rows)
        ]
        numbers = self._load_numbers()
        wide = {key: self._spread(self.real, value) for key, value in numbers.items()}
        low, high = (band.n_low, band.n_high) if band is not None else (0, 0)
        self.lines.append(f"%stop = sub i64 %n, {high}")
        self._write_head(rows, low, wide)
        self._write_loop(rows, wide)
        self._write_rest(rows, wide)
        self._write_ends(rows, numbers, low, high)
        body = "\n  ".join(self.lines)
        return f"define void @{name}({HEAD}) {{\n  {body}\n  ret void\n}}\n"

    def _load_numbers(self) -> dict[Any, str]:
        """All weights; the point itself is part of the differences along all axes."""
        band, shape = self._band, self._shape
        numbers: dict[Any, str] = {("tap", k): self._load_double("%tap_weights", k) for k in range(self._n_taps)}
        if band is not None:
            numbers |= {("column", k): self._load_double("%column_weights", k) for k in range(len(band.offsets))}
            own = numbers["column", band.offsets.index(0)]
            numbers["own"] = own if self._n_taps == 1 else self._value(f"fadd {self.real} {numbers['tap', 0]}, {own}")
        places = {term.place for terms in shape.sums for term in terms if term.place >= 0}
        numbers |= {("weight", k): self._load_double("%weights", k) for k in sorted(places)}
        return numbers | {("rate", k): self._load_double("%rates", k) for k in range(shape.n_patches)}

    def _write_head(self, rows: list[_Row], low: int, wide: dict) -> None:
        """The points of a long row up to a cache line, the last lanes of a vector; whole vectors begin at `%from`."""
        lanes = self._lanes
        address = self._value(f"ptrtoint ptr {(rows[0].taps or rows[0].outputs)[0]} to i64")
        rest = self._value(f"and i64 {self._value(f'sub i64 {-low * self._size}, {address}')}, {BYTES - 1}")
        is_long = self._value(f"icmp sge i64 %n, {LONG_ROW}")
        before = self._value(f"select i1 {is_long}, i64 {self._value(f'udiv i64 {rest}, {self._size}')}, i64 0")
        self.lines += [
            f"%from = add i64 {low}, {before}", f"%is_behind = icmp slt i64 {low}, %from",
            "br i1 %is_behind, label %head, label %enter", "head:", f"%at_head = sub i64 %from, {lanes}",
        ]  # fmt: skip
        self._use(wide, True, self._select_lanes(self._value(f"sub i64 {lanes - 1}, {before}"), "sgt"))
        self._points(rows, "%at_head", "zero")
        self.lines += ["br label %enter", "enter:"]
        self._begin_dots("%entry", "%head", "begun", ["zeroinitializer"] * len(rows), "zero")

    def _select_lanes(self, bound: str, test: str = "slt") -> str:
        """The mask of the lanes below a bound, or above it."""
        numbers = ", ".join(f"i64 {k}" for k in range(self._lanes))
        return self._value(f"icmp {test} <{self._lanes} x i64> <{numbers}>, {self._spread('i64', bound)}")

    def _write_loop(self, rows: list[_Row], wide: dict) -> None:
        """Whole vectors; with wide registers neighbours in a row are shifted out of aligned vectors."""
        lanes, vector = self._lanes, self._vector
        self.lines += [
            f"%last_whole = sub i64 %stop, {lanes}", f"%last_read = sub i64 %n, {2 * lanes}",
            "%is_less = icmp slt i64 %last_whole, %last_read",
            "%last = select i1 %is_less, i64 %last_whole, i64 %last_read",
            "%any = icmp sle i64 %from, %last", "br i1 %any, label %seed, label %middle", "seed:",
        ]  # fmt: skip
        seeds = [self._seed(row) for row in rows] if self._is_shifting else []
        self.lines += ["br label %wide", "wide:", "%j = phi i64 [ %from, %seed ], [ %j_next, %wide ]"]
        for r, (before, own) in enumerate(seeds):
            self.lines += [
                f"%before{r} = phi {vector} [ {before}, %seed ], [ %own{r}, %wide ]",
                f"%own{r} = phi {vector} [ {own}, %seed ], [ %behind{r}, %wide ]",
            ]
        self._begin_dots("%seed", "%wide", "dots", [f"%begun{r}" for r in range(len(rows))])
        self._use(wide, True)
        if seeds:
            index = self._value(f"add i64 %j, {lanes}")
            for r, row in enumerate(rows):
                behind = self._load(row.taps[0], index)
                self._name(f"%behind{r}", vector, behind)
                self._neighbours[r] = f"%before{r}", f"%own{r}", f"%behind{r}"
        self._points(rows, "%j", "dots")
        self.lines += [
            f"%j_next = add i64 %j, {lanes}", "%more = icmp sle i64 %j_next, %last",
            "br i1 %more, label %wide, label %middle",
        ]  # fmt: skip

    def _seed(self, row: _Row) -> tuple[str, str]:
        """The last points before the first vector, and this vector."""
        reach = max(map(abs, self._band.offsets))
        at = self._value(f"getelementptr {self.real}, ptr {row.taps[0]}, i64 %from")
        own = self._value(f"load {self._vector}, ptr {at}, align {self._size}")
        before = self._value(f"getelementptr {self.real}, ptr {at}, i64 {-self._lanes}")
        flags = ", ".join(f"i1 {'true' if k >= self._lanes - reach else 'false'}" for k in range(self._lanes))
        return self._load_masked(before, f"<{flags}>", self.real), own

    def _write_rest(self, rows: list[_Row], wide: dict) -> None:
        """What is left before the special points at the end of the row."""
        self.lines += ["middle:", "%begin = phi i64 [ %from, %enter ], [ %j_next, %wide ]"]
        self._begin_dots("%enter", "%wide", "dots_all", [f"%begun{r}" for r in range(len(rows))], "dots")
        self.lines += [
            "%rest = icmp slt i64 %begin, %stop", "br i1 %rest, label %tail, label %ends",
            "tail:", "%i = phi i64 [ %begin, %middle ], [ %i_next, %tail ]",
        ]  # fmt: skip
        self._begin_dots("%middle", "%tail", "dot", [f"%dots_all{r}" for r in range(len(rows))])
        self._use(wide, True, self._select_lanes(self._value("sub i64 %stop, %i")))
        self._points(rows, "%i", "dot")
        self.lines += [
            f"%i_next = add i64 %i, {self._lanes}", "%again = icmp slt i64 %i_next, %stop",
            "br i1 %again, label %tail, label %ends", "ends:",
        ]  # fmt: skip
        if self._shape.is_dot:
            for r in range(len(rows)):
                self.lines.append(f"%total{r} = phi {self._vector} [ %dots_all{r}, %middle ], [ %dot{r}_next, %tail ]")

    def _write_ends(self, rows: list[_Row], numbers: dict, low: int, high: int) -> None:
        """The special points of all rows, and the sums of products."""
        self._use(numbers, False)
        for r, row in enumerate(rows):
            total = None
            if self._shape.is_dot:
                reduce = f"@llvm.vector.reduce.fadd.v{self._lanes}f{8 * self._size}"
                total = self._value(f"call {self.real} {reduce}({self.real} 0.0, {self._vector} {self._turn(r, low)})")
            for c in range(low + high):
                index = c if c < low else c - low - high
                at = str(index) if index >= 0 else self._value(f"add i64 %n, {index}")
                total = self._point(row, at, c, total)
            if self._shape.is_dot:
                double = total if self.real == "double" else self._value(f"fpext float {total} to double")
                before = self._value("load double, ptr %sums, align 8")
                self.lines.append(f"store double {self._value(f'fadd double {before}, {double}')}, ptr %sums, align 8")

    def _turn(self, r: int, low: int) -> str:
        """The sums of products of a row with the first point in lane 0, so that they do not depend on addresses."""
        lanes, vector = self._lanes, self._vector
        second = self._value(f"getelementptr {vector}, ptr %both, i64 1")
        for place in ("%both", second):
            self.lines.append(f"store {vector} %total{r}, ptr {place}, align {BYTES}")
        shift = self._value(f"and i64 {self._value(f'sub i64 {low}, %from')}, {lanes - 1}")
        at = self._value(f"getelementptr {self.real}, ptr %both, i64 {shift}")
        return self._value(f"load {vector}, ptr {at}, align {self._size}")

    def _begin_dots(self, entry: str, loop: str, name: str, first: list[str], of: str | None = None) -> None:
        """The running sums of products at the beginning of a block."""
        if self._shape.is_dot:
            for r, value in enumerate(first):
                self.lines.append(
                    f"%{name}{r} = phi {self._vector} [ {value}, {entry} ], [ %{of or name}{r}_next, {loop} ]"
                )

    def _points(self, rows: list[_Row], at: str, dots: str) -> None:
        for r, row in enumerate(rows):
            new = self._point(row, at, None, "zeroinitializer" if dots == "zero" else f"%{dots}{r}")
            if new is not None:
                self._name(f"%{dots}{r}_next", self._kind, new)

    def _name(self, name: str, kind: str, value: str) -> None:
        """Give a value a second name."""
        self.lines.append(f"{name} = select i1 true, {kind} {value}, {kind} {value}")

    def _point(self, row: _Row, at: str, special: int | None, dot: str | None) -> str | None:
        """All values at one point or vector of points; returns the running sum of products."""
        shape, slope = self._shape, None
        if shape.is_slope:
            slope = self._find_slope(row, at, special)
        inputs = [
            self._load_column(row, at, 0) if k == shape.own_input else self._load(pointer, at)
            for k, pointer in enumerate(row.inputs)
        ]
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
                    total = self._add(total, find(term))
                else:
                    total = self._multiply_add(self._numbers["weight", term.place], find(term), total)
            values.append(total)
        for pointer, k in zip(row.outputs, shape.outputs, strict=True):
            self._store(slope if k < 0 else values[k], pointer, at)
        return self._multiply_add(slope, inputs[0], dot) if shape.is_dot else None

    # ---- the slope

    def _find_slope(self, row: _Row, at: str, special: int | None) -> str:
        """The sum over all taps; points that wrap around have the order of summation of all others."""
        band = self._band
        if special is None or is_wrapped(band):
            columns = band.offsets if special is None else band.special[special]
            own = self._load_column(row, at, 0)
            total = self._multiply_add(self._numbers["own"], own, None)
            total = self._sum_taps(row, at, range(1, self._n_taps), total)
            used = {band.offsets.index(0)}
            for j, k in find_pairs(band.offsets, band.interior):
                pair = (self._load_column(row, at, columns[i], special) for i in (j, k))
                total = self._multiply_add(self._numbers["column", j], self._add(*pair), total)
                used |= {j, k}
            for k in range(len(columns)):
                if k not in used:
                    value = self._load_column(row, at, columns[k], special)
                    total = self._multiply_add(self._numbers["column", k], value, total)
        else:
            is_line = self._n_taps == 1  # no axis but the last: the first tap is the row itself
            total = self._sum_taps(row, at, range(1 if is_line else 0, self._n_taps), None)
            place = len(band.offsets) + sum(map(len, band.special[:special]))
            for k, column in enumerate(band.special[special]):
                weight = self._load_double("%column_weights", place + k)
                total = self._multiply_add(weight, self._load_column(row, at, column, special), total)
        return self._add_patches(row, total, at, special)

    def _sum_taps(self, row: _Row, at: str, taps: range, total: str | None) -> str | None:
        """Add other rows; pairs of equal weights take one multiplication."""
        partners = dict(self._pairs)
        seconds = set(partners.values())
        for k in taps:
            if k in seconds:
                continue
            value = self._load(row.taps[k], at)
            if k in partners:
                value = self._add(value, self._load(row.taps[partners[k]], at))
            total = self._multiply_add(self._numbers["tap", k], value, total)
        return total

    def _load_column(self, row: _Row, at: str, offset: int, special: int | None = None) -> str:
        """The point at an offset in the same row, or at a column that a special point reads."""
        if special is not None:
            return self._load(row.taps[0], str(offset) if offset >= 0 else self._value(f"add i64 %n, {offset}"))
        if row.number in self._neighbours:
            before, own, behind = self._neighbours[row.number]
            if offset == 0:
                return own
            first, second, shift = (before, own, self._lanes + offset) if offset < 0 else (own, behind, offset)
            places = ", ".join(f"i32 {shift + i}" for i in range(self._lanes))
            return self._value(
                f"shufflevector {self._vector} {first}, {self._vector} {second}, <{self._lanes} x i32> <{places}>"
            )
        return self._load(row.taps[0], at if offset == 0 else self._value(f"add i64 {at}, {offset}"))

    def _add_patches(self, row: _Row, total: str, at: str, special: int | None) -> str:
        """Add the effect of boundary values."""
        n_ends, n_patches = self._band.n_low + self._band.n_high, self._shape.n_patches
        for g in range(n_patches):
            if special is not None:
                patch = self._load_patch("%edges", str((row.number * n_patches + g) * n_ends + special))
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
    lines = [f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})" for kind, suffix in kinds]
    lines.append(f"declare {real} @llvm.vector.reduce.fadd.v{lanes}f{size}({real}, <{lanes} x {real}>)")
    truth = f"<{lanes} x i1>"
    for each, width in dict.fromkeys(((real, size), ("double", 64))):
        vector, suffix = f"<{lanes} x {each}>", f"v{lanes}f{width}.p0"
        lines.append(f"declare {vector} @llvm.masked.load.{suffix}(ptr, i32, {truth}, {vector})")
        lines.append(f"declare void @llvm.masked.store.{suffix}({vector}, ptr, i32, {truth})")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=64)
def compile_rows(text: str) -> MachineCode:
    """The machine code of row functions, which hold no weights: operators of one form share them."""
    return MachineCode(text, "row")


class RowCode:
    """The functions of a row: for one and for `GROUP` rows in the middle of the grid, and for special rows."""

    def __init__(self, shape: RowShape, n_taps: tuple[int, int], band: AxisBand | None, pairs: Pairs = ()):
        text = declare_intrinsics(shape.dtype)
        for name, n_rows in (("row", 1), ("group", GROUP)):
            text += _RowWriter(shape, n_taps[0], band, pairs, False, n_rows).write(name)
        if n_taps[1]:
            text += _RowWriter(shape, n_taps[1], band, (), shape.n_patches > 0, 1).write("special")
        self._code = compile_rows(text)
        self.address, self.group_address = self._code.address, self._code.find_address("group")
        self.special_address = self._code.find_address("special") if n_taps[1] else self.address
