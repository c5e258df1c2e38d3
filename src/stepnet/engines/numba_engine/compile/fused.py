"""Whole steps of small traced problems as straight-line code: stages, sums and right-hand side in registers.

A kernel that calls a right-hand side by address writes every stage to memory and reads it back, which for three
unknowns costs as much as the arithmetic.  Where a trace is short, the step is generated around it instead, with the
coefficients as literals; kernels call `attempt` or `steps` in place of their own stages.

    int32 attempt(double t, double t_low, double h, double *work, const double *p)        one step of a pair
    int32 steps(double t0, double h, int64 first, int64 count, double *work, const double *p)   many even steps
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from stepnet.engines.numba_engine.compile.field import Field
from stepnet.engines.numba_engine.compile.machine_code import Code, Writer, literal
from stepnet.engines.numba_engine.compile.trace import Trace
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK

LONGEST = 1200  # operations of a step; beyond, the calls are no longer what takes the time
ATTEMPT = "double %t, double %t_low, double %h, ptr noalias %work, ptr noalias readonly %p"
STEPS = "double %t0, double %h, i64 %first, i64 %count, ptr noalias %work, ptr noalias readonly %p"

_kept: WeakKeyDictionary = WeakKeyDictionary()


def fused_address(fields: tuple[Field, ...], scheme, variant, which: str, make_writer, n_evaluations: int) -> int:
    """The address of generated code around the traces of `fields`, or 0 if they are too long or not traced.

    `make_writer()` gives the function that writes it; `variant` tells apart what else the code depends on.
    """
    codes = [field.keep_alive for field in fields if field.address != 0]
    if not all(isinstance(code, Code) and code.trace is not None for code in codes):
        return 0
    kept = _kept.setdefault(codes[-1], {})
    key = (which, id(scheme), variant, *map(id, codes))
    if key not in kept:
        traces = [code.trace for code in codes]
        kept[key] = (
            _code(traces, which, make_writer, n_evaluations),
            scheme,
            codes[:-1],
        )  # what an id names must live on
    code = kept[key][0]
    return 0 if code is None else code.address


def _code(traces, which: str, make_writer, n_evaluations: int) -> Code | None:
    if n_evaluations * max(len(trace.graph.live(trace.outputs)) for trace in traces) > LONGEST:
        return None
    return Code(make_writer()(traces), which)


class _Step(Writer):
    """Vectors are lists of values, one for every entry of the state."""

    def __init__(self, traces: list[Trace]):
        super().__init__()
        self._parameters: dict[int, str] = {}
        for j in sorted({node[1] for trace in traces for node in trace.graph.nodes if node[0] == "p"}):
            self._parameters[j] = self.load("p", j)

    def slopes(self, trace: Trace, t: str, y: list[str]) -> list[str]:
        """The right-hand side at a time and a state."""
        names = {}
        for number in trace.graph.live(trace.outputs):
            operation, *index = trace.graph.nodes[number]
            if operation == "t":
                names[number] = t
            elif operation == "y":
                names[number] = y[index[0]]
            elif operation == "p":
                names[number] = self._parameters[index[0]]
        return self.compute(trace.graph, trace.outputs, names)

    def add(self, x: str, y: str) -> str:
        return self.line(f"fadd contract double {x}, {y}")

    def multiply(self, x: str, y: str) -> str:
        return self.line(f"fmul contract double {x}, {y}")

    def moved(self, y: list[str], h: str, weights, slopes: list[list[str]]) -> list[str]:
        """y + h sum_j weights_j slopes_j."""
        used = [(literal(float(w)), k) for w, k in zip(weights, slopes, strict=False) if w != 0]
        result = []
        for i, start in enumerate(y):
            total = self.combined(used, i)
            result.append(start if total is None else self.add(start, self.multiply(h, total)))
        return result

    def combined(self, used, i: int) -> str | None:
        total = None
        for weight, slope in used:
            term = self.multiply(weight, slope[i])
            total = term if total is None else self.add(total, term)
        return total

    def load_row(self, row: int, stride: int, n: int) -> list[str]:
        return [self.load("work", row * stride + i) for i in range(n)]

    def store_row(self, values: list[str], row: int, stride: int) -> None:
        for i, value in enumerate(values):
            self.store(value, "work", row * stride + i)

    def later(self, t: str, h: str, fraction: float) -> str:
        """t + fraction h."""
        return t if fraction == 0 else self.add(t, self.multiply(literal(fraction), h))


def write_attempt(scheme: ExplicitRK, rows, stride: int) -> Callable[[list[Trace]], str]:
    """Assembly of one step of a pair: stages into their rows, the new state, the error estimates."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        table, s = scheme.butcher, len(scheme.b)
        step = _Step(traces)
        y = step.load_row(rows.Y, stride, trace.n)
        k = [step.load_row(rows.K, stride, trace.n)]
        stage = y
        for i in range(1, s):
            stage = step.moved(y, "%h", table.A[i], k)
            offset = step.add("%t_low", step.multiply(literal(float(table.c[i])), "%h"))
            k.append(step.slopes(trace, step.add("%t", offset), stage))
            step.store_row(k[i], rows.K + i, stride)
        is_fsal = table.c[-1] == 1 and tuple(table.A[-1]) == tuple(table.b)
        step.store_row(stage if is_fsal else step.moved(y, "%h", table.b, k), rows.Y_NEW, stride)
        zero = [literal(0.0)] * trace.n
        for m, hat in enumerate(scheme.embedded):
            weights = [b - b_hat for b, b_hat in zip(scheme.b, hat.b, strict=True)]
            step.store_row(step.moved(zero, "%h", weights, k), rows.ERROR + m, stride)
        return _function("attempt", ATTEMPT, step.lines)

    return write


def write_steps(scheme: ExplicitRK, used: int, rows, stride: int) -> Callable[[list[Trace]], str]:
    """Assembly of many even steps of an explicit scheme, the state in registers throughout."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        table = scheme.butcher
        step = _Step(traces)

        def body(t: str, y: list[str]) -> list[str]:
            k: list[list[str]] = []
            for i in range(used):
                k.append(step.slopes(trace, step.later(t, "%h", float(table.c[i])), step.moved(y, "%h", table.A[i], k)))
            return step.moved(y, "%h", table.b, k)

        return _loop(step, [(rows.Y, trace.n)], stride, body)

    return write


def write_splitting_steps(scheme: Splitting, is_second_order: bool, rows, stride: int) -> Callable[[list[Trace]], str]:
    """Assembly of many even steps of drifts and kicks; a slope is computed again only when its state has moved."""

    def write(traces: list[Trace]) -> str:
        n = traces[-1].n
        step = _Step(traces)
        flows = scheme.sequence()
        is_reused = flows[0][0] == flows[-1][0] and not (is_second_order and flows[0][0] == 0)

        def body(t: str, state: list[str]) -> list[str]:
            q, p, slope = state[:n], state[n : 2 * n], {flows[0][0]: state[2 * n :]} if is_reused else {}
            clocks = [t, t]
            for part, fraction in flows:
                other = 1 - part
                if part not in slope:
                    if part == 0 and is_second_order:
                        slope[0] = p
                    else:
                        slope[part] = step.slopes(
                            traces[part if len(traces) == 2 else 0], clocks[other], p if part == 0 else q
                        )
                length = step.multiply(literal(fraction), "%h")
                moved = [
                    step.add(x, step.multiply(length, k))
                    for x, k in zip(q if part == 0 else p, slope[part], strict=True)
                ]
                q, p = (moved, p) if part == 0 else (q, moved)
                clocks[part] = step.add(clocks[part], length)
                slope.pop(other, None)
            return [*q, *p, *(slope[flows[0][0]] if is_reused else [])]

        blocks = [(rows.Q, n), (rows.P, n)]
        if is_reused:
            blocks.append((rows.DQ if flows[0][0] == 0 else rows.DP, n))
        return _loop(step, blocks, stride, body)

    return write


def _loop(step: _Step, blocks, stride: int, body) -> str:
    """A loop over `count` steps whose state, the rows in `blocks`, stays in registers."""
    first = [value for row, n in blocks for value in step.load_row(row, stride, n)]
    before, step.lines = step.lines, []
    state = [f"%s{i}" for i in range(len(first))]
    new = body(step.add("%t0", step.multiply("%step", "%h")), state)
    inside, step.lines = step.lines, []
    offset = 0
    for row, n in blocks:
        step.store_row(new[offset : offset + n], row, stride)
        offset += n
    phis = [
        f"{name} = phi double [ {old}, %entry ], [ {value}, %loop ]"
        for name, old, value in zip(state, first, new, strict=True)
    ]
    lines = [
        *before, "br label %entry", "entry:", "br label %loop", "loop:",
        "%i = phi i64 [ 0, %entry ], [ %i_next, %loop ]", *phis,
        "%index = add i64 %first, %i", "%step = sitofp i64 %index to double", *inside,
        "%i_next = add i64 %i, 1", "%more = icmp slt i64 %i_next, %count", "br i1 %more, label %loop, label %done",
        "done:", *step.lines,
    ]  # fmt: skip
    return _function("steps", STEPS, lines)


def _function(name: str, head: str, lines: list[str]) -> str:
    body = "\n  ".join(lines)
    return f"define i32 @{name}({head}) {{\n  {body}\n  ret i32 0\n}}\n"
