"""Machine code for loops: f, jvp and vjp with the signatures of `machine_code`."""

from __future__ import annotations

import math

from stepnet.engines.numba_engine.array_tracing.loops import LoopBody, LoopPhase, Loops
from stepnet.engines.numba_engine.codegen.machine_code import (
    HEAD,
    AssemblyWriter,
    MachineCode,
    format_literal,
    write_assembly,
)
from stepnet.engines.numba_engine.derivatives.graph_derivatives import pullback, pushforward
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace

START = {"add": 0.0, "max": -math.inf, "min": math.inf}  # of reductions
INPUTS = ("t", "y", "p", "kept")


def compile_trace(traced: Trace | Loops, which: str) -> MachineCode:
    """f, jvp or vjp of a trace, straight-line or as loops."""
    return (
        compile_loops(traced, which) if isinstance(traced, Loops) else MachineCode(write_assembly(traced, which), which)
    )


def compile_loops(loops: Loops, which: str) -> MachineCode:
    """f, jvp or vjp; the code keeps its loops and the constants it reads."""
    writer = _LoopWriter(loops)
    if which == "vjp":
        writer.backward()
    else:
        writer.forward(with_tangents=which == "jvp")
    code = MachineCode(writer.function(which), which, may_keep=False)  # it contains the address of its constants
    code.loops = loops
    return code


class _LoopWriter(AssemblyWriter):
    """Writes phases; an index (base, strides) stands for base + sum_k stride_k i_k with the loop counters i_k."""

    def __init__(self, loops: Loops):
        super().__init__()
        self._loops = loops
        self._n_loops = 0
        self._counters: list[str] = []
        self._offsets: dict[tuple, str] = {}
        self._rows = 1  # of stored values: themselves, and their tangents or gradients

    def function(self, which: str) -> str:
        """The complete function around the code written so far."""
        head, tail, m = [f"%table = inttoptr i64 {self._loops.table.ctypes.data} to ptr"], [], self._loops.n_kept
        if m > 0:
            head += [
                f"%kept = call noalias ptr @calloc(i64 {m * self._rows}, i64 8)",
                f"%kept_{'bar' if which == 'vjp' else 'dot'} = getelementptr double, ptr %kept, i64 {m}",
                "%none = icmp eq ptr %kept, null", "br i1 %none, label %full, label %begin",
                "full:", "ret i32 1", "begin:",
            ]  # fmt: skip
            tail = ["call void @free(ptr %kept)"]
        body = "\n  ".join((*head, *self.lines, *tail))
        return f"define i32 @{which}({HEAD[which]}) {{\n  {body}\n  ret i32 0\n}}\n"

    # ---- loops

    def at(self, array: str, place) -> str:
        base, strides = place if isinstance(place, tuple) else (place, ())
        if strides not in self._offsets:
            terms = zip(strides, self._counters, strict=True) if any(strides) else ()
            total = ""
            for stride, counter in terms:
                if stride != 0:
                    term = counter if stride == 1 else self.line(f"mul nsw i64 {counter}, {stride}")
                    total = self.line(f"add nsw i64 {total}, {term}") if total else term
            self._offsets[strides] = total
        offset = self._offsets[strides]
        index = self.line(f"add nsw i64 {offset}, {base}") if offset else base
        return super().at(array, index)

    def _open(self, counts: tuple[int, ...]) -> None:
        self._offsets = {}
        for _ in counts:
            self._n_loops += 1
            k = self._n_loops
            self._counters.append(f"%i{k}")
            self.lines += [f"br label %before{k}", f"before{k}:", f"br label %loop{k}", f"loop{k}:",
                           f"%i{k} = phi i64 [ 0, %before{k} ], [ %next{k}, %again{k} ]"]  # fmt: skip

    def _close(self, counts: tuple[int, ...]) -> None:
        for count in reversed(counts):
            k = self._counters.pop()[2:]
            self.lines += [
                f"br label %again{k}", f"again{k}:", f"%next{k} = add nuw nsw i64 %i{k}, 1",
                f"%more{k} = icmp slt i64 %next{k}, {count}", f"br i1 %more{k}, label %loop{k}, label %done{k}",
                f"done{k}:",
            ]  # fmt: skip
        self._offsets = {}

    # ---- computations

    def forward(self, with_tangents: bool) -> None:
        """All phases; with tangents, the last phase stores only tangents."""
        self._rows = 2 if with_tangents else 1
        for phase in self._loops.phases:
            self._start(phase, with_tangents)
            for body in phase.bodies:
                self._open(body.counts)
                if not with_tangents:
                    self._store_all(body, body.outputs, phase.array, phase.operation)
                else:
                    tangents = pushforward(body.graph, body.outputs, _list_seeds(body))
                    if phase.array == "kept":
                        self._store_all(body, body.outputs, "kept", phase.operation)
                    self._store_all(body, tangents, "kept_dot" if phase.array == "kept" else "out", phase.operation)
                self._close(body.counts)

    def _start(self, phase: LoopPhase, with_tangents: bool) -> None:
        """Initialise reductions: sums start at zero, as fresh memory is; maxima and minima at an infinity."""
        if phase.operation in ("max", "min"):
            if with_tangents:
                raise CannotTrace("it takes the largest or smallest of many numbers")
            self._open((phase.count,))
            self.store(format_literal(START[phase.operation]), "kept", (phase.first, (1,)))
            self._close((phase.count,))

    def _store_all(self, body: LoopBody, nodes: list[int], array: str, operation: str) -> None:
        for value, place in zip(self.compute(body.graph, nodes), body.places, strict=True):
            if operation == "add":
                self.store(self.line(f"fadd reassoc double {self.load(array, place)}, {value}"), array, place)
            elif operation:
                self.store(getattr(self, f"_write_{operation}")(self.load(array, place), value), array, place)
            else:
                self.store(value, array, place)

    def backward(self) -> None:
        """Compute the stored values, then gradients from the last phase to the first."""
        for phase in self._loops.phases[:-1]:
            self._start(phase, with_tangents=True)
            for body in phase.bodies:
                self._open(body.counts)
                self._store_all(body, body.outputs, "kept", phase.operation)
                self._close(body.counts)
        self._rows = 2
        for phase in reversed(self._loops.phases):
            for body in phase.bodies:
                self._open(body.counts)
                self._pull_back(body, "kept_bar" if phase.array == "kept" else "w")
                self._close(body.counts)

    def _pull_back(self, body: LoopBody, array: str) -> None:
        graph = body.graph
        weights = [graph.node(array, place) for place in body.places]
        inputs = _list_inputs(body)
        bars = pullback(graph, body.outputs, weights, inputs)
        wanted = [(bar, node) for bar, node in zip(bars, inputs, strict=True) if bar is not None]
        for value, (_, node) in zip(self.compute(graph, [bar for bar, _ in wanted]), wanted, strict=True):
            name, *place = graph.nodes[node]
            self.store(value, f"{name}_bar", place[0] if place else 0, is_sum=True)


def _list_inputs(body: LoopBody) -> list[int]:
    return [node for node in body.graph.live(body.outputs) if body.graph.nodes[node][0] in INPUTS]


def _list_seeds(body: LoopBody) -> dict[int, int]:
    """Map each input node to its tangent."""
    found = {}
    for node in _list_inputs(body):
        name, *place = body.graph.nodes[node]
        found[node] = body.graph.node(f"{name}_dot", *place)
    return found
