"""Long systems as loops: what a right-hand side does to many unknowns, learned from what it does to few.

A method of lines does the same to every unknown but a few at the ends.  Traced at two small sizes m1 and m2, it falls
into runs of slopes with equal formulas, whose ends, and the offsets of the entries they read, are linear in the size;
continued to n unknowns, each run is a loop.  The result is compared with Python at n unknowns before it is
used, so a function that is not of this kind costs a moment and does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepnet.engines.numba_engine.compile.arguments import Block
from stepnet.engines.numba_engine.compile.form import Form
from stepnet.engines.numba_engine.compile.machine_code import HEAD, Writer
from stepnet.engines.numba_engine.compile.symbols import CannotTrace
from stepnet.engines.numba_engine.compile.trace import Trace, trace

PERIOD = 48  # sizes differ by this and have the same remainder: halves, thirds, ... of n are whole together
MOST_RUNS = 24
LONG = "it takes more operations than straight-line code is good for"
MOST_NODES_OF_SMALL = 20_000


@dataclass(frozen=True)
class Run:
    """Slopes i = start, ..., stop - 1 have one formula, which reads the entries i + reads[0], i + reads[1], ..."""

    start: int
    stop: int
    formula: tuple
    reads: tuple[int, ...]


def rolled_assembly(form: Form, block: Block) -> str:
    """LLVM assembly of loops for a long one-dimensional state; raises `CannotTrace` if its slopes are no such runs."""
    if len(form.inputs) != 1 or len(form.output) != 1 or form.n_in <= 3 * PERIOD:
        raise CannotTrace(f"{LONG}, and its state is no long vector")
    sizes = [k * PERIOD + form.n_in % PERIOD for k in (1, 2)]
    small, larger = (trace(replace(form, inputs=((m,),), output=(m,)), block, MOST_NODES_OF_SMALL) for m in sizes)
    runs, others = runs_of(small), runs_of(larger)
    if len(runs) != len(others) or len(runs) > MOST_RUNS:
        raise CannotTrace(f"{LONG}, and its slopes are not alike")
    times = (form.n_in - sizes[0]) // PERIOD
    longs = [_continued(run, other, times) for run, other in zip(runs, others, strict=True)]
    _require_inside(longs, form.n_in)
    pairs = zip(runs, longs, strict=True)
    body = "\n  ".join(line for k, (run, long) in enumerate(pairs) for line in _Loop(k).written(small, run, long))
    return f"define i32 @f({HEAD['f']}) {{\n  {body}\n  ret i32 0\n}}\n"


def runs_of(tracing: Trace) -> list[Run]:
    """Neighbours with equal formulas, read relative to their own place, together."""
    runs: list[Run] = []
    for i, output in enumerate(tracing.outputs):
        formula, entries = _formula(tracing, output)
        reads = tuple(j - i for j in entries)
        if runs and (runs[-1].formula, runs[-1].reads) == (formula, reads):
            runs[-1] = replace(runs[-1], stop=i + 1)
        else:
            runs.append(Run(i, i + 1, formula, reads))
    return runs


def _formula(tracing: Trace, output: int) -> tuple[tuple, list[int]]:
    """A slope's operations, in order and with places for the entries of the state, and these entries."""
    graph, places, formula, entries = tracing.graph, {}, [], []
    stack = [output]
    while stack:
        node = stack.pop()
        operation, *operands = graph.nodes[node]
        if node in places:
            formula.append(("again", places[node]))
        elif operation == "y":
            places[node] = len(formula)
            formula.append(("y",))
            entries.append(operands[0])
        else:
            places[node] = len(formula)
            formula.append((operation, *(() if graph.operands(node) else operands)))
            stack.extend(graph.operands(node))
    return tuple(formula), entries


def _continued(run: Run, other: Run, times: int) -> Run:
    """The run at n unknowns, from those at m and m + PERIOD."""
    if run.formula != other.formula:
        raise CannotTrace(f"{LONG}, and its slopes depend on the number of unknowns")

    def line(first, second):
        return first + times * (second - first)

    reads = tuple(line(a, b) for a, b in zip(run.reads, other.reads, strict=True))
    return Run(line(run.start, other.start), line(run.stop, other.stop), run.formula, reads)


def _require_inside(runs: list[Run], n: int) -> None:
    """The loops must set every slope once and read no entry beyond the state."""
    ends = [0, *(run.stop for run in runs)]
    is_whole = [run.start for run in runs] == ends[:-1] and ends[-1] == n and all(r.start < r.stop for r in runs)
    is_inside = all(run.start + j >= 0 and run.stop - 1 + j < n for run in runs for j in run.reads)
    if not (is_whole and is_inside):
        raise CannotTrace(f"{LONG}, and its slopes are not alike")


class _Loop(Writer):
    """One run: a loop over i whose loads are relative to i."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number
        self.reads: dict[int, int] = {}

    def line(self, text: str) -> str:
        self._count += 1
        name = f"%r{self.number}v{self._count}"
        self.lines.append(f"{name} = {text}")
        return name

    def load(self, array: str, index: int) -> str:
        return super().load(array, self._place(self.reads[index]) if array == "y" else index)

    def _place(self, offset: int) -> str:
        return self.line(f"add nsw i64 %i{self.number}, {offset}")

    def written(self, tracing: Trace, run: Run, long: Run) -> list[str]:
        k, output = self.number, tracing.outputs[run.start]
        self.reads = dict(zip(_formula(tracing, output)[1], long.reads, strict=True))
        (value,) = self.compute(tracing.graph, [output])
        self.store(value, "dy", self._place(0))
        return [
            f"br label %head{k}", f"head{k}:", f"br label %loop{k}", f"loop{k}:",
            f"%i{k} = phi i64 [ {long.start}, %head{k} ], [ %next{k}, %loop{k} ]", *self.lines,
            f"%next{k} = add nuw nsw i64 %i{k}, 1", f"%more{k} = icmp slt i64 %next{k}, {long.stop}",
            f"br i1 %more{k}, label %loop{k}, label %done{k}", f"done{k}:",
        ]  # fmt: skip
