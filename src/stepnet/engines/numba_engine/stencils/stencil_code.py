"""C functions of a linear form: its slopes, their pullback, and whole steps in few passes over memory.

They are short: they compute the rates from the parameters, name the rows, and call the sweep over the grid.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import HEAD, MachineCode, format_literal
from stepnet.engines.numba_engine.codegen.steps.fused_steps import CLOCK, REVERSE, SWEEP
from stepnet.engines.numba_engine.stencils import grid_sweeps as gs
from stepnet.engines.numba_engine.stencils.row_code import SLOPE, RowCode, RowShape, RowTerm
from stepnet.engines.numba_engine.stencils.step_passes import PlacedPass, StepPasses, plan_passes
from stepnet.engines.numba_engine.stencils.sweep_tables import GridTables, build_grid_tables
from stepnet.operators.linear_form import NEGATIVE, POSITIVE, SQUARE, LinearForm, Rate, depends_on_time
from stepnet.schemes.step_program import StepProgram

COPY = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)\n"  # which does nothing for equal addresses
STEPS = "double %t0, double %h, i64 %first, i64 %count, ptr %work, ptr %p"
BLOCKED_BYTES = 12_000_000  # size of a state above which one sweep takes several steps: it does not fit the caches
RING_BYTES = 600_000  # size of all rings of a wavefront, so that they stay in the second-level cache
MOST_LEVELS = 8


class Sweep:
    """A description of passes in memory, with the row functions it calls."""

    def __init__(self, tables: GridTables, passes: StepPasses, dtype: np.dtype, is_dot: bool = False):
        self.tables, self.n_slots = tables, passes.n_slots
        self._codes: list[RowCode] = []
        listed = (*passes.first, *passes.body, *passes.last)
        places = _list_weights(listed)
        header = tables.integers.copy()
        coefficients = np.array(list(places), float).reshape(-1, 2)
        records = [self._record(each, places, dtype, is_dot) for each in listed]
        tail = [*np.ravel(records), *np.ravel(passes.swaps), *np.ravel(passes.last_swaps)]
        at = len(header)
        header[[gs.FIRST, gs.BODY, gs.LAST]] = len(passes.first), len(passes.body), len(passes.last)
        header[[gs.PASSES, gs.SWAPS]] = at, at + len(records) * gs.PASS_SIZE
        header[[gs.N_SWAPS, gs.N_LAST_SWAPS]] = len(passes.swaps), len(passes.last_swaps)
        header[gs.LAST_SWAPS] = header[gs.SWAPS] + 2 * len(passes.swaps)
        header[[gs.N_COEFFICIENTS, gs.COEFFICIENTS]] = len(coefficients), len(tables.numbers)
        self.integers = np.concatenate((header, np.array(tail, np.int64)))
        self.numbers = np.concatenate((tables.numbers, coefficients.ravel()))
        self.n_reals = tables.n_weights + len(coefficients) + gs.MOST_TAPS

    def _record(self, each: PlacedPass, places: dict, dtype: np.dtype, is_dot: bool) -> list[int]:
        sums = tuple(
            tuple(RowTerm(value, -1 if (w, power) == (1.0, 0) else places[w, power]) for value, w, power in terms)
            for terms in each.sums
        )
        is_slope = each.source >= 0
        n_patches = len(self.tables.patch_rates) if is_slope else 0
        shape = RowShape(dtype.name, is_slope, len(each.inputs), sums, each.stored, n_patches, is_dot)
        band, n_taps = (self.tables.band, self.tables.n_taps) if is_slope else (None, (0, 0))
        code = RowCode(shape, n_taps, band)
        self._codes.append(code)
        inputs = [self.n_slots if slot < 0 else slot for slot in each.inputs]
        padded = (*inputs, *[0] * (gs.MOST_INPUTS - len(inputs)))
        outputs = (*each.outputs, *[0] * (gs.MOST_OUTPUTS - len(each.outputs)))
        head = code.address, code.special_address, each.source, len(inputs), len(each.outputs), 0
        return [*head, *padded, *outputs]

    def block(self, levels: int, ring: int, ahead: int, behind: int, is_wrapped: bool, slot: int) -> None:
        """Take `levels` steps at once."""
        places = [gs.BLOCK, gs.RING, gs.AHEAD, gs.BEHIND, gs.IS_WRAPPED, gs.RING_SLOT]
        self.integers[places] = levels, ring, ahead, behind, is_wrapped, slot


def _list_weights(passes) -> dict[tuple[float, int], int]:
    """The places of the weights of sums, by weight and power."""
    pairs = [(w, power) for each in passes for terms in each.sums for _, w, power in terms if (w, power) != (1.0, 0)]
    return {pair: k for k, pair in enumerate(dict.fromkeys(pairs))}


class _StubWriter:
    """Writes a C function that prepares calls of `sweep_rows`."""

    def __init__(self, form: LinearForm):
        integers = f"%integers = alloca [{gs.SCRATCH_INTEGERS} x i64]"
        self.lines = ["%slots = alloca [64 x i64]", integers, "%rates = alloca [64 x double]", "%sums = alloca double"]
        self._form, self._count = form, 0

    def line(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def find_rate(self, rate: Rate) -> str:
        """A rate from the parameters."""
        at = self.line(f"getelementptr double, ptr %p, i64 {rate.argument}")
        value, zero = self.line(f"load double, ptr {at}, align 8"), format_literal(0.0)
        if rate.kind == SQUARE:
            value = self.line(f"fmul double {value}, {value}")
        elif rate.kind in (POSITIVE, NEGATIVE):
            test = self.line(f"fcmp {'ogt' if rate.kind == POSITIVE else 'olt'} double {value}, {zero}")
            value = self.line(f"select i1 {test}, double {value}, double {zero}")
        return self.line(f"fmul double {format_literal(rate.sign)}, {value}")

    def find_rate_derivative(self, rate: Rate) -> str:
        """The derivative of a rate with respect to its parameter."""
        at = self.line(f"getelementptr double, ptr %p, i64 {rate.argument}")
        value, sign = self.line(f"load double, ptr {at}, align 8"), format_literal(rate.sign)
        if rate.kind == SQUARE:
            return self.line(f"fmul double {format_literal(2.0 * rate.sign)}, {value}")
        if rate.kind in (POSITIVE, NEGATIVE):
            how = "ogt" if rate.kind == POSITIVE else "olt"
            test = self.line(f"fcmp {how} double {value}, {format_literal(0.0)}")
            return self.line(f"select i1 {test}, double {sign}, double {format_literal(0.0)}")
        return sign

    def store(self, kind: str, value: str, array: str, k: int) -> None:
        at = self.line(f"getelementptr {kind}, ptr {array}, i64 {k}")
        self.lines.append(f"store {kind} {value}, ptr {at}, align 8")

    def store_rates(self, values: list[str]) -> None:
        for k, value in enumerate(values):
            self.store("double", value, "%rates", k)

    def allocate(self, n_bytes: int) -> str:
        """Memory for rows, which the function frees."""
        return self.line(f"call ptr @calloc(i64 {n_bytes}, i64 1)")

    def put_slots(self, pointers: list[str]) -> None:
        for k, pointer in enumerate(pointers):
            self.store("i64", self.line(f"ptrtoint ptr {pointer} to i64"), "%slots", k)

    def call_sweep(self, sweep: Sweep, h: str, count: str, mode: int = gs.PLAIN) -> None:
        reals = self.line(f"alloca [{sweep.n_reals} x double]")
        table, numbers = (
            self.line(f"inttoptr i64 {array.ctypes.data} to ptr") for array in (sweep.integers, sweep.numbers)
        )
        function = self.line(f"inttoptr i64 {gs.sweep_rows.address()} to ptr")
        arguments = f"ptr %slots, ptr {table}, ptr {numbers}, ptr %rates, ptr %sums, ptr {reals}, ptr %integers"
        self.line(f"call i32 {function}(double {h}, i64 {count}, i64 {mode}, {arguments})")

    def copy_back(self, slot: int, home: str, n_bytes: int) -> None:
        """Copy the rows of a slot to where they belong, unless they are there."""
        at = self.line(f"getelementptr i64, ptr %slots, i64 {slot}")
        found = self.line(f"inttoptr i64 {self.line(f'load i64, ptr {at}, align 8')} to ptr")
        self.copy(home, found, n_bytes)

    def copy(self, target: str, source: str, n_bytes: int) -> None:
        self.lines.append(f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {n_bytes}, i1 false)")

    def function(self, name: str, head: str) -> str:
        body = "\n  ".join(self.lines)
        return f"define i32 @{name}({head}) {{\n  {body}\n  ret i32 0\n}}\n"


ONE_SLOPE = StepPasses((), (), (PlacedPass(0, (), (), (-1,), (1,)),), (), (), 1, 2)
ADDED_SLOPE = StepPasses(
    (), (), (PlacedPass(0, (1,), (((("input", 0), 1.0, 0), (SLOPE, 1.0, 0)),), (0,), (1,)),), (), (), 1, 2
)
WITH_SOURCE = StepPasses(
    (), (), (PlacedPass(0, (-1,), (((SLOPE, 1.0, 0), (("input", 0), 1.0, 0)),), (0,), (1,)),), (), (), 1, 2
)
ADDED_ROW = StepPasses(
    (), (), (PlacedPass(-1, (0, 1), (((("input", 0), 1.0, 0), (("input", 1), 1.0, 0)),), (0,), (1,)),), (), (), 1, 2
)  # fmt: skip
PRODUCT = StepPasses((), (), (PlacedPass(0, (1,), (), (), ()),), (), (), 1, 2)


class StencilCode(MachineCode):
    """The right-hand side of a linear form in machine code, with its pullback and whole steps."""

    def __init__(self, form: LinearForm, tables: GridTables, transposed: GridTables, dtype: np.dtype):
        self.form, self.dtype = form, dtype
        self._tables, self._transposed = tables, transposed
        self._sweeps = [Sweep(tables, ONE_SLOPE if form.source is None else WITH_SOURCE, dtype)]
        writer = _StubWriter(form)
        writer.store_rates([writer.find_rate(rate) for rate in self._list_rates(tables)])
        writer.put_slots(["%y", "%dy", *self._point_at_source(writer)])
        writer.call_sweep(self._sweeps[0], format_literal(0.0), "1")
        super().__init__(writer.function("f", HEAD["f"]), "f", may_keep=False)

    @staticmethod
    def _list_rates(tables: GridTables) -> list[Rate]:
        return [*(term.rate for term in tables.form.terms), *tables.patch_rates]

    def _point_at_source(self, writer: _StubWriter) -> list[str]:
        if self.form.source is None:
            return []
        return [writer.line(f"getelementptr double, ptr %p, i64 {self.form.source}")]

    def build_pullback(self) -> MachineCode:
        """vjp: the transposed stencil, and for each rate the product of w with the terms that it multiplies."""
        writer, form = _StubWriter(self.form), self.form
        added = Sweep(self._transposed, ADDED_SLOPE, self.dtype)
        product = Sweep(self._tables, PRODUCT, self.dtype, is_dot=True)
        self._sweeps += [added, product]
        writer.store_rates([writer.find_rate(rate) for rate in self._list_rates(self._transposed)])
        writer.put_slots(["%w", "%y_bar"])
        writer.call_sweep(added, format_literal(0.0), "1")
        writer.put_slots(["%y", "%w"])
        rates = self._list_rates(self._tables)
        for k, rate in enumerate(dict.fromkeys(rates)):
            slope = writer.find_rate_derivative(rate)
            test = writer.line(f"fcmp une double {slope}, {format_literal(0.0)}")
            writer.lines += [f"br i1 {test}, label %product{k}, label %done{k}", f"product{k}:"]
            writer.store_rates([format_literal(float(each == rate)) for each in rates])
            writer.store("double", format_literal(0.0), "%sums", 0)
            writer.call_sweep(product, format_literal(0.0), "1")
            total = writer.line("load double, ptr %sums, align 8")
            share = writer.line(f"fmul double {slope}, {total}")
            at = writer.line(f"getelementptr double, ptr %p_bar, i64 {rate.argument}")
            before = writer.line(f"load double, ptr {at}, align 8")
            writer.lines.append(f"store double {writer.line(f'fadd double {before}, {share}')}, ptr {at}, align 8")
            writer.lines += [f"br label %done{k}", f"done{k}:"]
        if form.source is not None:
            row = Sweep(self._tables, ADDED_ROW, self.dtype)
            self._sweeps.append(row)
            writer.put_slots(["%w", writer.line(f"getelementptr double, ptr %p_bar, i64 {form.source}")])
            writer.call_sweep(row, format_literal(0.0), "1")
        code = MachineCode(writer.function("vjp", HEAD["vjp"]), "vjp", may_keep=False)
        code.keep_alive = self
        return code

    def find_steps(self, program: StepProgram, rows: tuple[int, ...], spare: int, stride: int) -> int:
        """The address of many equal steps of a program on rows of `work`, 0 if it has none.

        `rows` hold the state, those from `spare` on are free: as many as `count_spare_rows` says.
        """
        key = (program, rows, spare, stride)
        if key not in self.fused:
            self.fused[key] = self._build_steps(program, rows, spare, stride)
        return self.fused[key].address

    def _build_steps(self, program: StepProgram, rows, spare: int, stride: int) -> MachineCode:
        passes, form, writer = find_passes(program, self.form.source is not None), self.form, _StubWriter(self.form)
        sweep, size = Sweep(self._tables, passes, self.dtype), self.dtype.itemsize
        n_rings = self._block(sweep, passes)
        n_free = passes.n_slots - passes.n_states
        places = [*rows, *range(spare, spare + n_free)]
        pointers = [writer.line(f"getelementptr i8, ptr %work, i64 {row * stride * size}") for row in places]
        rings = [writer.line(f"getelementptr i8, ptr %work, i64 {(spare + n_free) * stride * size}")] * n_rings
        writer.store_rates([writer.find_rate(rate) for rate in self._list_rates(self._tables)])
        source = self._point_at_source(writer)
        writer.put_slots([*pointers, *source, *rings])
        writer.call_sweep(sweep, "%h", "%count")
        for i in range(passes.n_states):
            writer.copy_back(i, pointers[i], _count(form) * size)
        self._sweeps.append(sweep)
        return MachineCode(COPY + writer.function("steps", STEPS), "steps", may_keep=False)

    def find_sweeps(self, program: StepProgram) -> tuple[int, int]:
        """The addresses of `sweep` and `reverse` of `fused_steps` for steps of one pass, else 0.

        All terms must have the same rate c.  With slopes c L y of states y, the gradient with respect to c is the
        sum of <L' y_bar, y> h, so the reverse sweep takes one pass per step, too.
        """
        form, passes = self.form, find_passes(program, self.form.source is not None)
        rates = set(self._list_rates(self._tables))
        is_one = passes is not None and _is_one_pass(passes) and passes.body[0].sums[-1:] == passes.body[0].sums
        if not is_one or len(rates) > 1 or self._tables.patch_rates or form.source is not None:
            return 0, 0
        if program not in self.fused:
            self.fused[program] = self._build_sweep(passes), self._build_reverse(passes, rates.pop())
        return tuple(code.address for code in self.fused[program])

    def _build_sweep(self, passes: StepPasses) -> MachineCode:
        writer, n_bytes = _StubWriter(self.form), _count(self.form) * self.dtype.itemsize
        sweep = Sweep(self._tables, passes, self.dtype)
        self._sweeps.append(sweep)
        scratch = writer.allocate(n_bytes)
        writer.store_rates([writer.find_rate(rate) for rate in self._list_rates(self._tables)])
        writer.put_slots(["%state", scratch, "%states"])
        writer.store("i64", str(n_bytes), "%slots", 3)
        test = writer.line("icmp eq i64 %stride, 0")
        writer.lines += [f"br i1 {test}, label %plain, label %keeping", "plain:"]
        writer.call_sweep(sweep, "%h", "%count")
        writer.copy_back(0, "%state", n_bytes)
        writer.lines += ["br label %end", "keeping:"]
        writer.copy("%states", "%state", n_bytes)
        writer.call_sweep(sweep, "%h", "%count", gs.KEEP)
        writer.lines += ["br label %end", "end:", f"call void @free(ptr {scratch})"]
        return MachineCode(COPY + writer.function("sweep", CLOCK.replace("h0", "h") + SWEEP), "sweep", may_keep=False)

    def _build_reverse(self, passes: StepPasses, rate: Rate) -> MachineCode:
        writer, n_bytes = _StubWriter(self.form), _count(self.form) * self.dtype.itemsize
        ((terms),) = passes.body[0].sums
        moved = tuple(("input" if value != SLOPE else SLOPE, w, power) for value, w, power in terms)
        sums = tuple((("input", 1) if value == "input" else SLOPE, w, power) for value, w, power in moved)
        sweep = Sweep(
            self._transposed, StepPasses((), (), (PlacedPass(0, (2, 0), (sums,), (0,), (1,)),), (), (), 1, 4),
            self.dtype, is_dot=True,
        )  # fmt: skip
        self._sweeps.append(sweep)
        scratch = writer.allocate(n_bytes)
        writer.store_rates([format_literal(1.0)] * len(self._list_rates(self._transposed)))
        writer.put_slots(["%bar", scratch, "%states"])
        writer.store("i64", str(n_bytes), "%slots", 3)
        writer.store("double", format_literal(0.0), "%sums", 0)
        length = writer.line(f"fmul double %h, {writer.find_rate(rate)}")
        writer.call_sweep(sweep, length, "%count", gs.REVERSE)
        writer.copy_back(0, "%bar", n_bytes)
        weight = next(w for value, w, _ in moved if value == SLOPE)
        slope = writer.line(f"fmul double %h, {writer.find_rate_derivative(rate)}")
        total = writer.line("load double, ptr %sums, align 8")
        share = writer.line(f"fmul double {total}, {writer.line(f'fmul double {slope}, {format_literal(weight)}')}")
        at = writer.line(f"getelementptr double, ptr %p_bar, i64 {rate.argument}")
        new = writer.line(f"fadd double {share}, {writer.line(f'load double, ptr {at}, align 8')}")
        writer.lines += [f"store double {new}, ptr {at}, align 8", f"call void @free(ptr {scratch})"]
        head = CLOCK.replace("h0", "h") + REVERSE
        return MachineCode(COPY + writer.function("reverse", head), "reverse", may_keep=False)

    def count_spare_rows(self, program: StepProgram) -> int | None:
        """The rows of workspace that steps of a program need besides the state; None if there are no such steps."""
        passes = find_passes(program, self.form.source is not None)
        if passes is None or any(
            len(each.inputs) > gs.MOST_INPUTS or len(each.outputs) > gs.MOST_OUTPUTS
            for each in (*passes.first, *passes.body, *passes.last)
        ):
            return None
        return passes.n_slots - passes.n_states + int(self._can_block(passes))

    def _can_block(self, passes: StepPasses) -> bool:
        """Whether a step is one pass over a large plane, so that several steps can be taken in one sweep."""
        form, n_bytes = self.form, _count(self.form) * self.dtype.itemsize
        return _is_one_pass(passes) and len(form.shape) == 2 and form.source is None and n_bytes >= BLOCKED_BYTES

    def _block(self, sweep: Sweep, passes: StepPasses) -> int:
        """Choose the number of steps in one sweep; returns the number of slots for rings, 0 or 1."""
        (band,) = self._tables.row_bands if len(self.form.shape) == 2 else (None,)
        if not self._can_block(passes):
            return 0
        is_wrapped = all(term.extension.rules is None for term in self.form.terms if term.extension.axis == -2)
        moves = list(band.offsets)
        if not is_wrapped:
            count = len(band.special)
            for r, columns in enumerate(band.special):
                i = r if r < band.n_low else r - count
                moves += [j - i for j in columns if (j < 0) == (i < 0)]
        ahead, behind = max(moves), -min(moves)
        ring = ahead + behind + 1
        size = ring * self.form.shape[1] * self.dtype.itemsize
        levels = min(MOST_LEVELS, 1 + RING_BYTES // size)
        if levels < 2:
            return 0
        sweep.block(levels, ring, ahead, behind, is_wrapped, passes.n_slots)
        return 1


find_passes = lru_cache(maxsize=256)(plan_passes)


def _is_one_pass(passes: StepPasses) -> bool:
    """Whether a step computes one new state from one old one in a single pass."""
    inputs = passes.body[0].inputs
    return len(passes.body) == 1 and not passes.first and passes.n_states == 1 and inputs in ((), (0,))


def _count(form: LinearForm) -> int:
    return int(np.prod(form.shape))


def build_stencil_code(form: LinearForm | None, dtype: np.dtype) -> StencilCode | None:
    """The machine code of a linear form; None if its boundary values depend on time or its grid is too small."""
    dtype = np.dtype(dtype)
    if form is None or dtype.name not in ("float32", "float64") or depends_on_time(form):
        return None
    if form.source is not None and dtype.name == "float32":
        return None
    tables = build_grid_tables(form, dtype)
    transposed = build_grid_tables(form, dtype, is_transposed=True)
    return None if tables is None or transposed is None else StencilCode(form, tables, transposed, dtype)
