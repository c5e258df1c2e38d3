"""Traces of several parts joined into one trace of the flat state, for code generation and differentiation."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, CompiledRHS
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.problem import Partitioned, Problem, Split

MOST_JOINED = 16  # joint codes cached for one part
_kept: WeakKeyDictionary = WeakKeyDictionary()


def compile_joined(problem: Problem, parts: tuple[CompiledRHS, ...], most: int) -> MachineCode | None:
    """Machine code of all parts together, or None if a part is not traced or the joint trace is too long."""
    codes = [part.keep_alive for part in parts if part.address != 0]
    if not all(isinstance(code, MachineCode) and code.trace is not None for code in codes):
        return None
    traces = [part.keep_alive.trace if part.address != 0 else None for part in parts]
    if sum(len(trace.graph.live(trace.outputs)) for trace in traces if trace is not None) > most:
        return None
    kept = _kept.setdefault(codes[-1], {})
    key = (type(problem), problem.initial.size, *map(id, codes))
    if key not in kept:
        code = MachineCode(write_assembly(trace := join_traces(problem, traces), "f"), "f")
        code.trace = trace
        others = [each for each in codes if each is not codes[-1]]  # the keys are ids, so these must stay alive
        remember(kept, key, (code, others))
        return code
    return kept[key][0]


def remember(kept: dict, key: tuple, value: object) -> None:
    """Cache a value, and drop the oldest one beyond the limit: code lives as long as the fields that use it."""
    kept[key] = value
    while len(kept) > MOST_JOINED:
        kept.pop(next(iter(kept)), None)


def join_traces(problem: Problem, traces: list[Trace | None]) -> Trace:
    """y' of the flat state; a part without a trace is q' = v."""
    graph, n = Graph(MOST_NODES_OF_DERIVATIVES), problem.initial.size
    n_parameters = next(trace.n_parameters for trace in traces if trace is not None)
    if isinstance(problem, Split):
        outputs = copy_trace(graph, traces[0], lambda i: i)
        for trace in traces[1:]:
            terms = copy_trace(graph, trace, lambda i: i)
            outputs = [graph.apply("add", x, y) for x, y in zip(outputs, terms, strict=True)]
        return Trace(graph, outputs, n, n_parameters)
    is_whole = isinstance(problem, Partitioned) and not problem.separable
    half, (dq, dp) = n // 2, traces
    to_p = (lambda i: i) if is_whole else (lambda i: half + i)
    slopes_q = [graph.node("y", half + i) for i in range(half)] if dq is None else copy_trace(graph, dq, to_p)
    return Trace(graph, [*slopes_q, *copy_trace(graph, dp, lambda i: i)], n, n_parameters)


def copy_trace(graph: Graph, trace: Trace, place: Callable[[int], int]) -> list[int]:
    """The outputs of a trace in another graph, where entry i of its state is read from `place(i)`."""
    return copy_nodes(graph, trace.graph, trace.outputs, {"y": lambda i: graph.node("y", place(i))})


def copy_nodes(graph: Graph, source: Graph, outputs: list[int], exchange: dict[str, Callable]) -> list[int]:
    """Copy nodes to another graph; `exchange[name](*index)` is the node there for the input (name, *index)."""
    new: dict[int, int] = {}
    for number in source.live(outputs):
        operation, *rest = source.nodes[number]
        operands = source.operands(number)
        if operation in exchange:
            new[number] = exchange[operation](*rest)
        elif operands:
            new[number] = graph.apply(operation, *(new[operand] for operand in operands))
        else:
            new[number] = graph.node(operation, *rest)
    return [new[number] for number in outputs]
