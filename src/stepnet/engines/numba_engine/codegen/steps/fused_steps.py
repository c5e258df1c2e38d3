"""Whole steps of small traced problems as straight-line code: stages, sums and right-hand side in registers.

A kernel that calls a right-hand side by address writes every stage to memory and reads it back, which for three
unknowns costs as much as the arithmetic.  Where a trace is short, the step is generated around it instead, with the
coefficients as literals; kernels call this code in place of their own stages.

    int32 attempt(double t, double t_low, double h, double *work, const double *p)              one step of a pair
    int32 steps  (double t0, double h, int64 first, int64 count, double *work, const double *p)    many equal steps
    int32 sweep  (double t0, double h, int64 first, int64 count, const double *grid, double *state, double *states,
                  int64 stride, const double *p)                   many steps, the state before each of them stored
    int32 reverse(double t0, double h, int64 first, int64 count, const double *grid, const double *states,
                  double *bar, double *p_bar, double *t_bars, const double *p)         their adjoint, last step first
    int32 watch  (double t0, double h, int64 first, int64 count, const double *states, int64 stride, double *values,
                  const double *p)                                                functions of the states before steps

`sweep` and `reverse` take equal steps, or those between the times in `grid`.  `bar` is the gradient with respect
to the state, `p_bar` and `t_bars` (that of t0, and sum (t_n - t0) t_n_bar + h_n h_n_bar) accumulate.

Steps with noise take one more argument, `const double *noise`, the random variables of one step after the other.

All but `attempt` also run in lanes, where every number, t0 and h included, is a row with one number per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import ref

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.codegen.steps.lane_functions import add_definitions
from stepnet.engines.numba_engine.codegen.steps.step_writer import NOISE, GeneratedStep, TimeGradients
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.schemes.step_program import Noise, StepProgram
from stepnet.schemes.tableau import ExplicitRK

LONGEST = 1200  # operations of a step; in longer steps the overhead of calls is negligible
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
WATCH = (
    "i64 %first, i64 %count, ptr noalias readonly %states, i64 %stride, ptr noalias %values, ptr noalias readonly %p"
)
NOISE_ARGUMENT = ", ptr noalias readonly %noise"


class NoiseLayout(NamedTuple):
    """The slices of the random variables of a step among `size` numbers."""

    places: dict[Noise, slice]
    size: int

    @classmethod
    def of(cls, program: StepProgram, n_components: int) -> NoiseLayout:
        """Variables have one number for each component, or for each pair of components."""
        places, size = {}, 0
        for each in program.noise:
            length = n_components**2 if each.is_paired else n_components
            places[each], size = slice(size, size + length), size + length
        return cls(places, size)


NO_NOISE = NoiseLayout({}, 0)


def find_fused_address(
    fields: tuple[CompiledRHS, ...],
    source,
    variant,
    which: str,
    make_writer,
    n_evaluations: int,
    longest: int = LONGEST,
) -> int:
    """The address of generated code around the traces of `fields`, or 0 if they are too long or not traced.

    `make_writer()` gives the function that writes it, from the scheme or program `source`; `variant` identifies
    everything else that the code depends on.  A part that is not a function (q' = v) has no trace.
    """
    codes = [field.keep_alive for field in fields if field.address != 0]
    key = (which, id(source), variant, *map(id, codes))
    kept = getattr(codes[-1], "fused", {})
    if key not in kept:
        if not all(isinstance(code, MachineCode) and code.trace is not None for code in codes):
            return 0
        traces = [field.keep_alive.trace if field.address != 0 else None for field in fields]
        code = _find_code(traces, which, make_writer, n_evaluations, longest)
        forget = partial(_forget, ref(codes[-1]), key)  # before an id is reused
        others = [ref(each, forget) for each in codes[:-1] if each is not codes[-1]]
        kept.setdefault(key, (code, source, others))  # of two threads the first wins
    code = kept[key][0]
    return 0 if code is None else code.address


def _forget(owner: ref, key: tuple, _: ref) -> None:
    """Drop generated code when one of the codes it was made from is freed, which a run keeps alive."""
    code = owner()
    if code is not None:
        code.fused.pop(key, None)


def _find_code(traces, which: str, make_writer, n_evaluations: int, longest: int) -> MachineCode | None:
    most = max(len(trace.graph.live(trace.outputs)) for trace in traces if trace is not None)
    return None if n_evaluations * most > longest else MachineCode(make_writer()(traces), which)


def write_attempt(scheme: ExplicitRK, rows, stride: int) -> Callable[[list[Trace]], str]:
    """Assembly of one step of a pair: stages into their rows, the new state, the error estimates."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        table, s = scheme.butcher, len(scheme.b)
        step = GeneratedStep(traces)
        (y,) = step.load_rows("work", [rows.Y], stride, trace.n)
        k = step.load_rows("work", [rows.K], stride, trace.n)
        stage = y
        for i in range(1, s):
            stage = step.add_slopes(y, "%h", table.A[i], k)
            offset = step.multiply_add(step.literal(float(table.c[i])), "%h", "%t_low")
            k.append(step.slopes(trace, step.add("%t", offset), stage))
            step.store_rows([k[i]], "work", [rows.K + i], stride)
        new = stage if scheme.is_fsal else step.add_slopes(y, "%h", table.b, k)
        step.store_rows([new], "work", [rows.Y_NEW], stride)
        zero = [step.literal(0.0)] * trace.n
        for m, hat in enumerate(scheme.embedded):
            weights = [b - b_hat for b, b_hat in zip(scheme.b, hat.b, strict=True)]
            step.store_rows([step.add_slopes(zero, "%h", weights, k)], "work", [rows.ERROR + m], stride)
        return write_function("attempt", ATTEMPT, step.lines)

    return write


def write_steps(
    program: StepProgram, rows: Sequence[int], stride: int, is_wide: bool = False, noise: NoiseLayout = NO_NOISE
) -> Callable[[list], str]:
    """Assembly of many equal steps, with the state in registers throughout; `rows` of `work` hold it."""

    def write(traces) -> str:
        step, n = _write_timed_step(traces, is_wide), _count_nodes(traces)

        def body(t, h, state):
            _locate_noise(step, noise)
            made = step.execute(program, traces, state, t, h, noise.places)
            return [made[row] for row in program.outputs]

        first = step.load_rows("work", rows, stride, n)
        lines, new = _write_loop(step, first, body, is_even=True)
        step.lines = lines
        step.store_rows(new, "work", rows, stride)
        return _write_timed_function("steps", STEPS, step, noise)

    return write


def write_sweep(
    program: StepProgram, is_even: bool, is_back: bool, is_wide: bool = False, noise: NoiseLayout = NO_NOISE
) -> Callable[[list], str]:
    """Assembly of many steps that stores the state before each of them, `stride` numbers apart (0: not at all).

    A program that inverts steps runs over them in reverse order and stores the states that it reaches.
    """

    def write(traces) -> str:
        step, n = _write_timed_step(traces, is_wide), _count_nodes(traces)
        rows = range(program.n_rows)

        def body(t, h, state):
            step.lines.append("%place = mul i64 %i, %stride")
            step.lines.append(f"%kept = getelementptr {step.real}, ptr %states, i64 %place")
            _locate_noise(step, noise)
            made = step.execute(program, traces, state, t, h, noise.places)
            new = [made[row] for row in program.outputs]
            step.store_rows(new if is_back else state, "kept", rows, n)
            return new

        first = step.load_rows("state", rows, n, n)
        lines, new = _write_loop(step, first, body, is_even, is_back)
        step.lines = lines
        step.store_rows(new, "state", rows, n)
        return _write_timed_function("sweep", SWEEP, step, noise)

    return write


def write_reverse(
    program: StepProgram, is_even: bool, has_times: bool, is_wide: bool = False, noise: NoiseLayout = NO_NOISE
) -> Callable[[list], str]:
    """Assembly of the adjoint of many steps, the gradient in registers; stages are computed again from each state."""

    def write(traces) -> str:
        step, n = _write_timed_step(traces, is_wide), _count_nodes(traces)
        rows, zero = range(program.n_rows), step.literal(0.0)

        def body(t, h, bar):
            step.lines.append(f"%place = mul i64 %i, {program.n_rows * n}")
            step.lines.append(f"%kept = getelementptr {step.real}, ptr %states, i64 %place")
            _locate_noise(step, noise)
            made = step.execute(program, traces, step.load_rows("kept", rows, n, n), t, h, noise.places)
            bars: dict[int, list[str]] = {}
            for row, value in zip(program.outputs, bar, strict=True):
                step.add_to(bars, row, value)
            times = TimeGradients() if has_times else None
            step.transpose(program, traces, made, bars, t, h, times)
            if times is not None:
                _store_times(step, times, t, h)
            return [bars.get(row, [zero] * n) for row in rows]

        first = step.load_rows("bar", rows, n, n)
        lines, new = _write_loop(step, first, body, is_even, is_backward=True)
        step.lines = lines
        step.store_rows(new, "bar", rows, n)
        return _write_timed_function("reverse", REVERSE, step, noise)

    return write


def write_watch() -> Callable[[list], str]:
    """Assembly in lanes of functions of time and state, evaluated at the states before many equal steps."""

    def write(traces) -> str:
        (trace,), step = traces, _write_timed_step(traces, is_wide=True)

        def body(t, h, state):
            step.lines.append("%place = mul i64 %i, %stride")
            step.lines.append(f"%kept = getelementptr {step.real}, ptr %states, i64 %place")
            (y,) = step.load_rows("kept", [0], trace.n, trace.n)
            step.lines.append(f"%value_place = mul i64 %i, {len(trace.outputs)}")
            step.lines.append(f"%found = getelementptr {step.real}, ptr %values, i64 %value_place")
            step.store_rows([step.slopes(trace, t, y)], "found", [0], 0)
            return state

        step.lines, _ = _write_loop(step, [[step.literal(0.0)]], body, is_even=True)
        return _write_timed_function("watch", WATCH, step, NO_NOISE)

    return write


def _store_times(step: GeneratedStep, times: TimeGradients, t: str, h: str) -> None:
    elapsed = step.do("fsub", t, "%t0")
    for value in times.at_t:
        step.store(value, "t_bars", 0, is_sum=True)
        step.store(step.multiply(elapsed, value), "t_bars", 1, is_sum=True)
    for value in times.at_h:
        step.store(step.multiply(h, value), "t_bars", 1, is_sum=True)


def _count_nodes(traces) -> int:
    return next(trace.n for trace in traces if trace is not None)


def _write_timed_step(traces, is_wide: bool) -> GeneratedStep:
    """A step with the names %t0 and %h0 for its time and length."""
    step = GeneratedStep(traces, is_wide)
    if is_wide:
        step.lines += [f"%{name} = load {step.real}, ptr %{name}_row, align 8" for name in ("t0", "h0")]
    return step


def _locate_noise(step: GeneratedStep, noise: NoiseLayout) -> None:
    """Lines that locate the random variables of step %i."""
    if noise.size:
        step.lines.append(f"%noise_place = mul i64 %i, {noise.size}")
        step.lines.append(f"%{NOISE} = getelementptr {step.real}, ptr %noise, i64 %noise_place")


def _write_timed_function(name: str, head: str, step: GeneratedStep, noise: NoiseLayout) -> str:
    head += NOISE_ARGUMENT if noise.size else ""
    if step.is_wide:
        return add_definitions(write_function(name, CLOCKS + head, step.lines))
    return write_function(name, CLOCK + head, step.lines)


def _write_loop(step: GeneratedStep, first: list[list[str]], body, is_even: bool, is_backward: bool = False):
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


def write_function(name: str, head: str, lines: list[str], result: str = "i32 0") -> str:
    body = "\n  ".join(lines)
    return f"define {result.split()[0]} @{name}({head}) {{\n  {body}\n  ret {result}\n}}\n"
