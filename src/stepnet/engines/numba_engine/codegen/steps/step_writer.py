"""A step of a scheme around the trace of a right-hand side, as lines of straight-line code.

Vectors are lists of values, one for every entry of the state, all of them in registers.
"""

from __future__ import annotations

from typing import Any

from stepnet.engines.numba_engine.codegen.machine_code import LANES, AssemblyWriter
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.schemes.step_program import COLUMN, MATRIX, Noise, Product, Slope, StepProgram, Sum, Tamed

NOISE = "noise_row"  # the random variables of the current step


class GeneratedStep(AssemblyWriter):
    """Vectors are lists of values, one for every entry of the state."""

    def __init__(
        self, traces: list[Trace], is_wide: bool = False, parameters: tuple[str, int] = ("p", 0), lanes: int = LANES
    ):
        super().__init__(is_wide, lanes)
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
        known: dict[str, Any] = {"y": y, "p": self._parameters, "w": w}
        names = {}
        for number in trace.graph.live(outputs):
            operation, *index = trace.graph.nodes[number]
            if operation == "t":
                names[number] = t
            elif operation in known:
                names[number] = known[operation][index[0]]
        return names

    def as_real(self, name: str, integer: str) -> list[str]:
        """Lines that convert an integer to a real number, in every lane."""
        if not self.is_wide:
            return [f"%{name} = sitofp i64 %{integer} to double"]
        blank = f"{self.real} undef"
        return [
            f"%{name}_real = sitofp i64 %{integer} to double",
            f"%{name}_first = insertelement {blank}, double %{name}_real, i32 0",
            f"%{name} = shufflevector {self.real} %{name}_first, {blank}, <{self.lanes} x i32> zeroinitializer",
        ]

    def add(self, x: str, y: str) -> str:
        return self.do("fadd", x, y)

    def multiply(self, x: str, y: str) -> str:
        return self.do("fmul", x, y)

    def add_slopes(self, y: list[str], h: str, weights, slopes: list[list[str]]) -> list[str]:
        """y + h sum_j weights_j slopes_j."""
        used = [(self.literal(float(w)), k) for w, k in zip(weights, slopes, strict=False) if w != 0]
        result = []
        for i, start in enumerate(y):
            total = self.combine(used, i)
            result.append(start if total is None else self.multiply_add(h, total, start))
        return result

    def combine(self, used, i: int) -> str | None:
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

    def execute(self, program: StepProgram, traces, rows: list[list[str]], t: str, h: str, places=None):
        """All rows of a program: those given, and one for each of its operations.

        `places` are the slices of the random variables of a step.
        """
        rows = list(rows)
        for operation in program.operations:
            match operation:
                case Slope():
                    rows.append(self.slopes(traces[operation.part], self.later(t, h, operation.c), rows[operation.row]))
                case Sum():
                    rows.append(self.sum_of(operation, rows, h))
                case Tamed():
                    rows.append(self.tame(rows[operation.row], h))
                case Noise():
                    place = places[operation]
                    rows.append([self.load(NOISE, i) for i in range(place.start, place.stop)])
                case Product():
                    rows.append(self.product_of(operation, rows))
        return rows

    def product_of(self, operation: Product, rows: list[list[str]]) -> list[str]:
        """A diffusion times a random variable."""
        g, z = rows[operation.diffusion], rows[operation.noise]
        if operation.kind == COLUMN:
            return [self.multiply(x, z[operation.entry]) for x in g[operation.column :: len(g) // len(rows[0])]]
        if operation.kind == MATRIX:
            m = len(z)
            return [self.dot(g[i * m : (i + 1) * m], z) for i in range(len(g) // m)]
        return self.times_components(g, z)

    def times_components(self, x: list[str], z: list[str]) -> list[str]:
        """Entry i times component i mod m: there may be several blocks of entries, or one component for all."""
        return [self.multiply(value, z[i % len(z)]) for i, value in enumerate(x)]

    def tame(self, x: list[str], h: str) -> list[str]:
        """x / (1 + h |x|)."""
        divisor = self.multiply_add(h, self.length(x), self.literal(1.0))
        return [self.do("fdiv", entry, divisor) for entry in x]

    def length(self, x: list[str]) -> str:
        """The Euclidean norm of a vector."""
        return self.call("llvm.sqrt.f64", self.dot(x, x))

    def dot(self, x: list[str], y: list[str]) -> str:
        """The inner product of two vectors."""
        total = self.multiply(x[0], y[0])
        for a, b in zip(x[1:], y[1:], strict=True):
            total = self.multiply_add(a, b, total)
        return total

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
            length, value = h, self.combine([(self.literal(term.weight), rows[term.row]) for term in group], i)
        return self.multiply(length, value) if base is None else self.multiply_add(length, value, base)

    def transpose(self, program: StepProgram, traces, rows, bars: dict[int, list[str]], t: str, h: str, times) -> None:
        """Gradients with respect to all rows, from those of the outputs in `bars`; `times` sums those of t and h."""
        for number in range(len(rows) - 1, program.n_rows - 1, -1):
            operation = program.operations[number - program.n_rows]
            if number not in bars:
                continue
            bar = bars.pop(number)
            match operation:
                case Slope():
                    self._transpose_slope(operation, traces[operation.part], rows, bars, bar, t, h, times)
                case Sum():
                    self._transpose_sum(operation, rows, bars, bar, h, times)
                case Tamed():
                    self._transpose_tamed(operation, rows, bars, bar, h, times)
                case Product():
                    self._transpose_product(operation, rows, bars, bar)

    def _transpose_product(self, operation: Product, rows, bars, bar) -> None:
        """The gradient with respect to the diffusion; random variables have none."""
        z = rows[operation.noise]
        if operation.kind == COLUMN:
            zero, m = self.literal(0.0), len(rows[operation.diffusion]) // len(bar)
            found = [
                self.multiply(x, z[operation.entry]) if j == operation.column else zero for x in bar for j in range(m)
            ]
        elif operation.kind == MATRIX:
            found = [self.multiply(x, y) for x in bar for y in z]
        else:
            found = self.times_components(bar, z)
        self.add_to(bars, operation.diffusion, found)

    def _transpose_tamed(self, operation: Tamed, rows, bars, bar, h, times) -> None:
        """bar / d - h (bar . x) / (s d^2) x with s = |x|, d = 1 + h s; the second term is zero where s = 0."""
        x = rows[operation.row]
        size, product = self.length(x), self.dot(bar, x)
        divisor = self.multiply_add(h, size, self.literal(1.0))
        share = self.do("fdiv", product, self.multiply(divisor, divisor))
        is_zero = self.compare("oeq", size, self.literal(0.0))
        factor = self.do("fdiv", self.multiply(h, share), self.select(is_zero, self.literal(1.0), size))
        factor = self.do("fsub", self.literal(0.0), factor)
        found = [self.multiply_add(factor, y, self.do("fdiv", w, divisor)) for w, y in zip(bar, x, strict=True)]
        if times is not None:
            times.at_h.append(self.do("fsub", self.literal(0.0), self.multiply(size, share)))
        self.add_to(bars, operation.row, found)

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
        self.add_to(bars, operation.row, [found.get(1 + i, zero) for i in range(trace.n)])
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

    def add_to(self, bars, row: int, values: list[str]) -> None:
        if row in bars:
            values = [self.add(x, y) for x, y in zip(bars[row], values, strict=True)]
        bars[row] = values


class TimeGradients:
    """Gradients with respect to the beginning and the length of a step, as lists to be summed."""

    def __init__(self):
        self.at_t: list[str] = []
        self.at_h: list[str] = []
