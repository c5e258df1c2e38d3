"""Whole steps of small traced problems as straight-line code: stages, sums and right-hand side in registers.

A kernel that calls a right-hand side by address writes every stage to memory and reads it back, which for three
unknowns costs as much as the arithmetic.  Where a trace is short, the step is generated around it instead, with the
coefficients as literals; kernels call this code in place of their own stages.

    int32 attempt(double t, double t_low, double h, double *work, const double *p)              one step of a pair
    int32 steps  (double t0, double h, int64 first, int64 count, double *work, const double *p)    many even steps
    int32 sweep  (double t0, double h, int64 first, int64 count, const double *grid, double *state, double *states,
                  int64 stride, const double *p)                   many steps, the state before each of them stored
    int32 reverse(double t0, double h, int64 first, int64 count, const double *grid, const double *states,
                  double *bar, double *p_bar, double *t_bars, const double *p)         their adjoint, last step first

The last two go over even steps, or over those between the times in `grid`.  `bar` is the gradient with respect to the
state, `p_bar` and `t_bars` (that of t0, and sum (t_n - t0) t_n_bar + h_n h_n_bar) are added to.

The last three also run in lanes, where every number, t0 and h included, is a row of as many as there are lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from stepnet.engines.numba_engine.compile.field import Field
from stepnet.engines.numba_engine.compile.lane_functions import with_definitions
from stepnet.engines.numba_engine.compile.machine_code import LANES, Code, Writer
from stepnet.engines.numba_engine.compile.trace import Trace
from stepnet.schemes.programs import Program, Slope, Sum
from stepnet.schemes.tableau import ExplicitRK

LONGEST = 1200  # operations of a step; beyond, the calls are no longer what takes the time
ATTEMPT = "double %t, double %t_low, double %h, ptr noalias %work, ptr noalias readonly %p"
CLOCK = "double %t0, double %h0, "
CLOCKS = "ptr noalias readonly %t0_row, ptr noalias readonly %h0_row, "  # one in every lane
STEPS = "i64 %first, i64 %count, ptr noalias %work, ptr noalias readonly %p"
SWEEP = (
    "i64 %first, i64 %count, ptr noalias readonly %grid, ptr noalias %state, ptr noalias %states, i64 %stride, "
    "ptr noalias readonly %p"
)
REVERSE = (
    "i64 %first, i64 %count, ptr noalias readonly %grid, ptr noalias readonly %states, ptr noalias %bar, "
    "ptr noalias %p_bar, ptr noalias %t_bars, ptr noalias readonly %p"
)

_kept: WeakKeyDictionary = WeakKeyDictionary()


def fused_address(
    fields: tuple[Field, ...], source, variant, which: str, make_writer, n_evaluations: int, longest: int = LONGEST
) -> int:
    """The address of generated code around the traces of `fields`, or 0 if they are too long or not traced.

    `make_writer()` gives the function that writes it, from the scheme or program `source`; `variant` tells apart what
    else the code depends on.  A part that is no function (q' = v) has no trace.
    """
    codes = [field.keep_alive for field in fields if field.address != 0]
    if not all(isinstance(code, Code) and code.trace is not None for code in codes):
        return 0
    kept = _kept.setdefault(codes[-1], {})
    key = (which, id(source), variant, *map(id, codes))
    if key not in kept:
        traces = [field.keep_alive.trace if field.address != 0 else None for field in fields]
        code = _code(traces, which, make_writer, n_evaluations, longest)
        kept.setdefault(key, (code, source, codes[:-1]))  # what an id names must live; of two threads the first wins
    code = kept[key][0]
    return 0 if code is None else code.address


def _code(traces, which: str, make_writer, n_evaluations: int, longest: int) -> Code | None:
    most = max(len(trace.graph.live(trace.outputs)) for trace in traces if trace is not None)
    return None if n_evaluations * most > longest else Code(make_writer()(traces), which)


class Step(Writer):
    """Vectors are lists of values, one for every entry of the state."""

    def __init__(self, traces: list[Trace], is_wide: bool = False, parameters: tuple[str, int] = ("p", 0)):
        super().__init__(is_wide)
        array, offset = parameters
        self._parameters: dict[int, str] = {}
        self._gradients: dict[int, list[int | None]] = {}
        used = (node[1] for trace in traces if trace is not None for node in trace.graph.nodes if node[0] == "p")
        for j in sorted(set(used)):
            self._parameters[j] = self.load(array, offset + j)

    def slopes(self, trace: Trace, t: str, y: list[str]) -> list[str]:
        """The right-hand side at a time and a state."""
        return self.compute(trace.graph, trace.outputs, self.inputs(trace, trace.outputs, t, y))

    def inputs(self, trace: Trace, outputs: list[int], t: str, y: list[str], w: list[str] | None = None) -> dict:
        """Values of the inputs that some outputs depend on."""
        known = {"y": y, "p": self._parameters, "w": w}
        names = {}
        for number in trace.graph.live(outputs):
            operation, *index = trace.graph.nodes[number]
            if operation == "t":
                names[number] = t
            elif operation in known:
                names[number] = known[operation][index[0]]
        return names

    def as_real(self, name: str, integer: str) -> list[str]:
        """Lines that make a real number of an integer, in every lane."""
        if not self.is_wide:
            return [f"%{name} = sitofp i64 %{integer} to double"]
        blank = f"{self.real} undef"
        return [
            f"%{name}_real = sitofp i64 %{integer} to double",
            f"%{name}_first = insertelement {blank}, double %{name}_real, i32 0",
            f"%{name} = shufflevector {self.real} %{name}_first, {blank}, <{LANES} x i32> zeroinitializer",
        ]

    def add(self, x: str, y: str) -> str:
        return self.do("fadd", x, y)

    def multiply(self, x: str, y: str) -> str:
        return self.do("fmul", x, y)

    def moved(self, y: list[str], h: str, weights, slopes: list[list[str]]) -> list[str]:
        """y + h sum_j weights_j slopes_j."""
        used = [(self.literal(float(w)), k) for w, k in zip(weights, slopes, strict=False) if w != 0]
        result = []
        for i, start in enumerate(y):
            total = self.combined(used, i)
            result.append(start if total is None else self.multiply_add(h, total, start))
        return result

    def combined(self, used, i: int) -> str | None:
        total = None
        for weight, slope in used:
            total = self.multiply(weight, slope[i]) if total is None else self.multiply_add(weight, slope[i], total)
        return total

    def load_rows(self, array: str, rows, stride: int, n: int) -> list[list[str]]:
        return [[self.load(array, row * stride + i) for i in range(n)] for row in rows]

    def store_rows(self, values: list[list[str]], array: str, rows, stride: int, offset: int = 0) -> None:
        for row, value in zip(rows, values, strict=True):
            for i, entry in enumerate(value):
                self.store(entry, array, offset + row * stride + i)

    def later(self, t: str, h: str, fraction: float) -> str:
        """t + fraction h."""
        return t if fraction == 0 else self.multiply_add(self.literal(fraction), h, t)

    def power(self, h: str, exponent: int) -> str:
        """h to a small whole power."""
        if exponent < 0:
            return self.do("fdiv", self.literal(1.0), self.power(h, -exponent))
        return h if exponent == 1 else self.multiply(h, self.power(h, exponent - 1))

    def execute(self, program: Program, traces, rows: list[list[str]], t: str, h: str) -> list[list[str]]:
        """All rows of a program: those given, and one for each of its operations."""
        rows = list(rows)
        for operation in program.operations:
            if isinstance(operation, Slope):
                rows.append(self.slopes(traces[operation.part], self.later(t, h, operation.c), rows[operation.row]))
            else:
                rows.append(self.sum_of(operation, rows, h))
        return rows

    def sum_of(self, operation: Sum, rows: list[list[str]], h: str) -> list[str]:
        """Terms of equal powers of h together: base + h (w_1 k_1 + w_2 k_2 + ...)."""
        powers = sorted({term.power for term in operation.terms})
        groups = {power: [term for term in operation.terms if term.power == power] for power in powers}
        result = []
        for i in range(len(rows[0])):
            total = None
            for power, group in groups.items():
                total = self.group_sum(group, rows, i, h if power == 0 else self.power(h, power), total)
            result.append(total)
        return result

    def group_sum(self, group, rows, i: int, h: str, base: str | None) -> str:
        """base + h^k sum_j w_j row_j[i]."""
        if group[0].power == 0:
            for term in group:
                value = rows[term.row][i]
                if base is None:
                    base = value if term.weight == 1 else self.multiply(self.literal(term.weight), value)
                else:
                    base = self.multiply_add(self.literal(term.weight), value, base)
            return base
        if len(group) == 1:
            length, value = self.multiply(self.literal(group[0].weight), h), rows[group[0].row][i]
        else:
            length, value = h, self.combined([(self.literal(term.weight), rows[term.row]) for term in group], i)
        return self.multiply(length, value) if base is None else self.multiply_add(length, value, base)

    def transpose(self, program: Program, traces, rows, bars: dict[int, list[str]], t: str, h: str, times) -> None:
        """Gradients with respect to all rows, from those of the outputs in `bars`; `times` sums those of t and h."""
        for number in range(len(rows) - 1, program.n_rows - 1, -1):
            operation = program.operations[number - program.n_rows]
            if number not in bars:
                continue
            bar = bars.pop(number)
            if isinstance(operation, Slope):
                self._transpose_slope(operation, traces[operation.part], rows, bars, bar, t, h, times)
            else:
                self._transpose_sum(operation, rows, bars, bar, h, times)

    def _transpose_slope(self, operation: Slope, trace: Trace, rows, bars, bar, t, h, times) -> None:
        t_stage, y = self.later(t, h, operation.c), rows[operation.row]
        if id(trace) not in self._gradients:
            self._gradients[id(trace)] = trace.gradient()
        gradient = self._gradients[id(trace)]
        wanted = [i for i, node in enumerate(gradient) if node is not None and (i > 0 or times is not None)]
        names = self.inputs(trace, [gradient[i] for i in wanted], t_stage, y, bar)
        found = dict(zip(wanted, self.compute(trace.graph, [gradient[i] for i in wanted], names), strict=True))
        if 0 in found and times is not None:
            times.at_t.append(found[0])
            times.at_h.append(self.multiply(self.literal(operation.c), found[0]))
        zero = self.literal(0.0)
        self._add_to(bars, operation.row, [found.get(1 + i, zero) for i in range(trace.n)])
        for j in range(trace.n_parameters):
            if 1 + trace.n + j in found:
                self.store(found[1 + trace.n + j], "p_bar", j, is_sum=True)

    def _transpose_sum(self, operation: Sum, rows, bars, bar, h, times) -> None:
        for term in operation.terms:
            if term.power == 0:
                factor = self.literal(term.weight)
            else:
                factor = self.multiply(self.literal(term.weight), self.power(h, term.power))
                if times is not None:
                    product = self.multiply(self.literal(0.0), bar[0])
                    for x, y in zip(rows[term.row], bar, strict=True):
                        product = self.multiply_add(x, y, product)
                    slope = self.literal(term.weight * term.power)
                    if term.power != 1:
                        slope = self.multiply(slope, self.power(h, term.power - 1))
                    times.at_h.append(self.multiply(slope, product))
            if term.row in bars:
                bars[term.row] = [self.multiply_add(factor, x, y) for x, y in zip(bar, bars[term.row], strict=True)]
            else:
                is_one = term.power == 0 and term.weight == 1
                bars[term.row] = bar if is_one else [self.multiply(factor, x) for x in bar]

    def _add_to(self, bars, row: int, values: list[str]) -> None:
        if row in bars:
            values = [self.add(x, y) for x, y in zip(bars[row], values, strict=True)]
        bars[row] = values


class _Times:
    """Gradients with respect to the beginning and the length of a step, as lists to be summed."""

    def __init__(self):
        self.at_t: list[str] = []
        self.at_h: list[str] = []


def write_attempt(scheme: ExplicitRK, rows, stride: int) -> Callable[[list[Trace]], str]:
    """Assembly of one step of a pair: stages into their rows, the new state, the error estimates."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        table, s = scheme.butcher, len(scheme.b)
        step = Step(traces)
        (y,) = step.load_rows("work", [rows.Y], stride, trace.n)
        k = step.load_rows("work", [rows.K], stride, trace.n)
        stage = y
        for i in range(1, s):
            stage = step.moved(y, "%h", table.A[i], k)
            offset = step.multiply_add(step.literal(float(table.c[i])), "%h", "%t_low")
            k.append(step.slopes(trace, step.add("%t", offset), stage))
            step.store_rows([k[i]], "work", [rows.K + i], stride)
        is_fsal = table.c[-1] == 1 and tuple(table.A[-1]) == tuple(table.b)
        new = stage if is_fsal else step.moved(y, "%h", table.b, k)
        step.store_rows([new], "work", [rows.Y_NEW], stride)
        zero = [step.literal(0.0)] * trace.n
        for m, hat in enumerate(scheme.embedded):
            weights = [b - b_hat for b, b_hat in zip(scheme.b, hat.b, strict=True)]
            step.store_rows([step.moved(zero, "%h", weights, k)], "work", [rows.ERROR + m], stride)
        return function("attempt", ATTEMPT, step.lines)

    return write


def write_steps(program: Program, rows: Sequence[int], stride: int, is_wide: bool = False) -> Callable[[list], str]:
    """Assembly of many even steps, the state in registers throughout; `rows` of `work` hold it."""

    def write(traces) -> str:
        step, n = _timed_step(traces, is_wide), _size(traces)

        def body(t, h, state):
            made = step.execute(program, traces, state, t, h)
            return [made[row] for row in program.outputs]

        first = step.load_rows("work", rows, stride, n)
        lines, new = _loop(step, first, body, is_even=True)
        step.lines = lines
        step.store_rows(new, "work", rows, stride)
        return _timed_function("steps", STEPS, step)

    return write


def write_sweep(program: Program, is_even: bool, is_back: bool, is_wide: bool = False) -> Callable[[list], str]:
    """Assembly of many steps that stores the state before each of them, `stride` numbers apart (0: not at all).

    A program that undoes steps goes back over them, and what it stores is what it arrives at.
    """

    def write(traces) -> str:
        step, n = _timed_step(traces, is_wide), _size(traces)
        rows = range(program.n_rows)

        def body(t, h, state):
            step.lines.append("%place = mul i64 %i, %stride")
            step.lines.append(f"%kept = getelementptr {step.real}, ptr %states, i64 %place")
            made = step.execute(program, traces, state, t, h)
            new = [made[row] for row in program.outputs]
            step.store_rows(new if is_back else state, "kept", rows, n)
            return new

        first = step.load_rows("state", rows, n, n)
        lines, new = _loop(step, first, body, is_even, is_back)
        step.lines = lines
        step.store_rows(new, "state", rows, n)
        return _timed_function("sweep", SWEEP, step)

    return write


def write_reverse(program: Program, is_even: bool, has_times: bool, is_wide: bool = False) -> Callable[[list], str]:
    """Assembly of the adjoint of many steps, the gradient in registers; stages are computed again from each state."""

    def write(traces) -> str:
        step, n = _timed_step(traces, is_wide), _size(traces)
        rows, zero = range(program.n_rows), step.literal(0.0)

        def body(t, h, bar):
            step.lines.append(f"%place = mul i64 %i, {program.n_rows * n}")
            step.lines.append(f"%kept = getelementptr {step.real}, ptr %states, i64 %place")
            made = step.execute(program, traces, step.load_rows("kept", rows, n, n), t, h)
            bars: dict[int, list[str]] = {}
            for row, value in zip(program.outputs, bar, strict=True):
                step._add_to(bars, row, value)
            times = _Times() if has_times else None
            step.transpose(program, traces, made, bars, t, h, times)
            if times is not None:
                _store_times(step, times, t, h)
            return [bars.get(row, [zero] * n) for row in rows]

        first = step.load_rows("bar", rows, n, n)
        lines, new = _loop(step, first, body, is_even, is_backward=True)
        step.lines = lines
        step.store_rows(new, "bar", rows, n)
        return _timed_function("reverse", REVERSE, step)

    return write


def _store_times(step: Step, times: _Times, t: str, h: str) -> None:
    elapsed = step.do("fsub", t, "%t0")
    for value in times.at_t:
        step.store(value, "t_bars", 0, is_sum=True)
        step.store(step.multiply(elapsed, value), "t_bars", 1, is_sum=True)
    for value in times.at_h:
        step.store(step.multiply(h, value), "t_bars", 1, is_sum=True)


def _size(traces) -> int:
    return next(trace.n for trace in traces if trace is not None)


def _timed_step(traces, is_wide: bool) -> Step:
    """A step with the names %t0 and %h0 for its clock."""
    step = Step(traces, is_wide)
    if is_wide:
        step.lines += [f"%{name} = load {step.real}, ptr %{name}_row, align 8" for name in ("t0", "h0")]
    return step


def _timed_function(name: str, head: str, step: Step) -> str:
    if step.is_wide:
        return with_definitions(function(name, CLOCKS + head, step.lines))
    return function(name, CLOCK + head, step.lines)


def _loop(step: Step, first: list[list[str]], body, is_even: bool, is_backward: bool = False):
    """A loop over `count` steps, whose state of some rows stays in registers; its lines, and the last state."""
    before, step.lines = step.lines, []
    n = len(first[0])
    state = [[f"%s{row}_{i}" for i in range(n)] for row in range(len(first))]
    if is_even:
        t, h = step.multiply_add("%step", "%h0", "%t0"), "%h0"
    else:
        step.lines.append("%here = getelementptr double, ptr %grid, i64 %index")
        t = step.load("here", 0)
        h = step.do("fsub", step.load("here", 1), t)
    new = body(t, h, state)
    inside, step.lines = step.lines, []
    phis = [
        f"{name} = phi {step.real} [ {old}, %entry ], [ {value}, %loop ]"
        for names, olds, values in zip(state, first, new, strict=True)
        for name, old, value in zip(names, olds, values, strict=True)
    ]
    counter = ["%last = sub i64 %count, 1", "%i = sub i64 %last, %j"] if is_backward else ["%i = add i64 %j, 0"]
    lines = [
        *before, "br label %entry", "entry:", "br label %loop", "loop:",
        "%j = phi i64 [ 0, %entry ], [ %j_next, %loop ]", *phis, *counter,
        "%index = add i64 %first, %i", *step.as_real("step", "index"), *inside,
        "%j_next = add i64 %j, 1", "%more = icmp slt i64 %j_next, %count", "br i1 %more, label %loop, label %done",
        "done:",
    ]  # fmt: skip
    return lines, new


def function(name: str, head: str, lines: list[str], result: str = "i32 0") -> str:
    body = "\n  ".join(lines)
    return f"define {result.split()[0]} @{name}({head}) {{\n  {body}\n  ret {result}\n}}\n"
