"""Equal steps of a state with many tangents: the state is computed once, and the tangents eight side by side.

    int32 tangents(double t0, double h, int64 first, int64 count, double *y, double *v, int64 groups, double *shared,
                   const double *p)

`v` holds two copies (groups, n, 8) of the tangents: those before a step are in the first copy for an even number of
steps so far, and those after it in the other one.  A step of the tangents is linear, with coefficients that depend on
the state alone; these are left in `shared`, from which instructions read them into all lanes.

Operations on tangents are written in the order in which their results are needed, depth first, and not stage by stage:
where a slope depends on few entries, as on grids, most values then stay in registers from stage to stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from stepnet.engines.numba_engine.codegen.steps.fused_steps import write_function
from stepnet.engines.numba_engine.codegen.steps.lane_functions import add_definitions
from stepnet.engines.numba_engine.codegen.steps.step_writer import GeneratedStep
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.schemes.step_program import Slope, StepProgram, Sum

COLUMNS = 8  # tangents side by side: one AVX-512 register, so that the rows of a step stay in the first-level cache
LINEAR = frozenset(("add", "sub", "mul", "div", "neg"))
HEAD = (
    "double %t0, double %h0, i64 %first, i64 %count, ptr noalias %y, ptr noalias %v, i64 %groups, ptr noalias %shared, "
    "ptr noalias readonly %p"
)
WIDE = f"<{COLUMNS} x double>"


class TangentSplit(NamedTuple):
    """A trace of a state and its tangent in two parts.

    `slopes` and `shared` are nodes of the trace that depend on the state alone; `tangents` are nodes of `graph`, whose
    inputs are the entries ("y", i) of a tangent and the values ("kept", j) of `shared`.
    """

    slopes: list[int]
    shared: list[int]
    graph: Graph
    tangents: list[int]
    size: int  # operations on a tangent


_splits: WeakKeyDictionary[Graph, TangentSplit | None] = WeakKeyDictionary()


def split_trace(trace: Trace) -> TangentSplit | None:
    """Divide a trace by what depends on the tangent; None if operations on it are not linear arithmetic."""
    if trace.graph not in _splits:
        _splits[trace.graph] = _split_trace(trace)
    return _splits[trace.graph]


def _split_trace(trace: Trace) -> TangentSplit | None:
    n, source = trace.n // 2, trace.graph
    graph = Graph(source.most)
    places: dict[int, int] = {}
    new: dict[int, int] = {}

    def find(number: int) -> int:
        if number in new:
            return new[number]
        if source.nodes[number][0] == "const":
            return graph.node(*source.nodes[number])
        return graph.node("kept", places.setdefault(number, len(places)))

    for number in source.live(trace.outputs[n:]):
        operation, *rest = source.nodes[number]
        operands = source.operands(number)
        if operation == "y" and rest[0] >= n:
            new[number] = graph.node("y", rest[0] - n)
        elif any(operand in new for operand in operands):
            if operation not in LINEAR:
                return None
            new[number] = graph.apply(operation, *map(find, operands))
    tangents = list(map(find, trace.outputs[n:]))
    return TangentSplit(trace.outputs[:n], list(places), graph, tangents, len(graph.live(tangents)))


def is_written(program: StepProgram) -> bool:
    """Whether steps of a program can be written: slopes and sums of a state of one row."""
    return program.n_rows == 1 and all(isinstance(operation, (Slope, Sum)) for operation in program.operations)


def write_tangent_steps(program: StepProgram, split: TangentSplit) -> Callable[[list[Trace]], str]:
    """Assembly of many equal steps of a state and its tangents."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        base = GeneratedStep(traces)
        before, base.lines = base.lines, []
        _write_state(base, program, trace, split)
        wide = GeneratedStep([], is_wide=True, lanes=COLUMNS)
        wide.skip_names(base)
        _write_tangents(wide, program, split)
        return add_definitions(write_function("tangents", HEAD, _join_loops(before, base, wide, len(split.tangents))))

    return write


def _write_state(step: GeneratedStep, program: StepProgram, trace: Trace, split: TangentSplit) -> None:
    """A step of the state, and the coefficients of all slopes of the tangents."""
    t, wanted = step.multiply_add("%step", "%h0", "%t0"), [*split.slopes, *split.shared]
    rows, place = step.load_rows("y", [0], 0, len(split.slopes)), 0
    for operation in program.operations:
        if isinstance(operation, Sum):
            rows.append(step.sum_of(operation, rows, "%h0"))
            continue
        t_stage = step.later(t, "%h0", operation.c)  # type: ignore[arg-type]  # equal steps have one number
        names = step.inputs(trace, wanted, t_stage, rows[operation.row])
        found = step.compute(trace.graph, wanted, names)
        rows.append(found[: len(split.slopes)])
        for value in found[len(split.slopes) :]:
            step.store(value, "shared", place)
            place += 1
    step.store_rows([rows[program.outputs[0]]], "y", [0], 0)


def _write_tangents(step: GeneratedStep, program: StepProgram, split: TangentSplit) -> None:
    """A step of eight tangents."""
    rows, place = step.load_rows("old", [0], 0, len(split.tangents)), 0
    for operation in program.operations:
        if isinstance(operation, Sum):
            rows.append(step.sum_of(operation, rows, "%h_wide"))
            continue
        names = {}
        for number in split.graph.live(split.tangents):
            kind, *index = split.graph.nodes[number]
            if kind == "y":
                names[number] = rows[operation.row][index[0]]
            elif kind == "kept":
                names[number] = _read_into_lanes(step, place + index[0])
        rows.append(step.compute(split.graph, split.tangents, names))
        place += len(split.shared)
    step.store_rows([rows[program.outputs[0]]], "new", [0], 0)
    step.lines = order_depth_first(step.lines)


def _read_into_lanes(step: GeneratedStep, place: int) -> str:
    """A number of `shared` in every lane, which is an operand of instructions on AVX-512."""
    number = step.line(f"getelementptr double, ptr %shared, i64 {place}")
    number = step.line(f"load double, ptr {number}, align 8")
    return _spread_value(step, number)


def _spread_value(step: GeneratedStep, value: str) -> str:
    first = step.line(f"insertelement {WIDE} undef, double {value}, i32 0")
    return step.line(f"shufflevector {WIDE} {first}, {WIDE} undef, <{COLUMNS} x i32> zeroinitializer")


def order_depth_first(lines: list[str]) -> list[str]:
    """The lines that stores need, each before its first use and as late as possible; stores keep their order."""
    places = {line.split(" = ")[0]: k for k, line in enumerate(lines) if " = " in line}
    needs = [[places[name] for name in re.findall(r"%v\d+", line.partition(" = ")[2] or line)] for line in lines]
    ordered: list[str] = []
    done: set[int] = set()
    for k, line in enumerate(lines):
        waiting = [k] if line.startswith("store") else []
        while waiting:
            missing = [need for need in needs[waiting[-1]] if need not in done]
            if missing:
                waiting.extend(reversed(missing))
                continue
            last = waiting.pop()
            if last not in done:
                done.add(last)
                ordered.append(lines[last])
    return ordered


def _join_loops(before: list[str], base: GeneratedStep, wide: GeneratedStep, n: int) -> list[str]:
    """The loop over steps, and in it the loop over groups of tangents."""
    return [
        *before, f"%h_first = insertelement {WIDE} undef, double %h0, i32 0",
        f"%h_wide = shufflevector {WIDE} %h_first, {WIDE} undef, <{COLUMNS} x i32> zeroinitializer",
        f"%copy = mul i64 %groups, {n}", "br label %entry", "entry:", "br label %loop", "loop:",
        "%j = phi i64 [ 0, %entry ], [ %j_next, %next ]", "%index = add i64 %first, %j", *base.as_real("step", "index"),
        *base.lines, "%is_odd = and i64 %index, 1", "%is_even = xor i64 %is_odd, 1",
        "%old_copy = mul i64 %is_odd, %copy", "%new_copy = mul i64 %is_even, %copy", "br label %group", "group:",
        "%g = phi i64 [ 0, %loop ], [ %g_next, %group ]", f"%place = mul i64 %g, {n}",
        "%old_place = add i64 %old_copy, %place", "%new_place = add i64 %new_copy, %place",
        f"%old = getelementptr {WIDE}, ptr %v, i64 %old_place", f"%new = getelementptr {WIDE}, ptr %v, i64 %new_place",
        *wide.lines, "%g_next = add i64 %g, 1", "%has_more = icmp slt i64 %g_next, %groups",
        "br i1 %has_more, label %group, label %next", "next:", "%j_next = add i64 %j, 1",
        "%more = icmp slt i64 %j_next, %count", "br i1 %more, label %loop, label %done", "done:",
    ]  # fmt: skip
