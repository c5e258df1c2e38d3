"""Run a right-hand side once on symbols and record its operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from stepnet.engines.numba_engine.derivatives.graph_derivatives import pullback, pushforward
from stepnet.engines.numba_engine.rhs.call_form import handles_exceptions
from stepnet.engines.numba_engine.tracing.function_copies import Copies
from stepnet.engines.numba_engine.tracing.function_key import reach
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.numpy_substitutes import MATH, NUMPY, Shim
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace, Symbol, SymbolArray, as_symbols, number


def collect_replacements(numpy: Shim, own_math: Shim) -> dict[int, object]:
    """The substitutes of NumPy, math and their functions, by the id of the original."""
    modules = {id(np): numpy, id(math): own_math, id(np.linalg): numpy.linalg}
    functions = {
        id(getattr(module, name)): own
        for module, stand_in in ((math, own_math), (np, numpy))
        for name, own in vars(stand_in).items()
        if hasattr(module, name) and callable(own)
    }
    return {**modules, **functions}


REPLACED = collect_replacements(NUMPY, MATH)


@dataclass(frozen=True)
class Trace:
    """The graph of a right-hand side: `outputs` are the nodes of its slopes; inputs are ("t",), ("y", i), ("p", j)."""

    graph: Graph
    outputs: list[int]
    n: int
    n_parameters: int

    @property
    def size(self) -> int:
        """The number of operations that the slopes need."""
        return len(self.graph.live(self.outputs))

    @property
    def inputs(self) -> list[int]:
        """t, then the state, then the parameters."""
        names = [("t",), *(("y", i) for i in range(self.n)), *(("p", j) for j in range(self.n_parameters))]
        return [self.graph.node(*name) for name in names]

    def tangent(self) -> list[int]:
        """Tangents of the slopes for the tangents ("t_dot",), ("y_dot", i), ("p_dot", j) of the inputs."""
        seeds = {}
        for node in self.inputs:
            name, *index = self.graph.nodes[node]
            seeds[node] = self.graph.node(f"{name}_dot", *index)
        return pushforward(self.graph, self.outputs, seeds)

    def gradient(self) -> list[int | None]:
        """Gradients of sum_i w_i slope_i with respect to the inputs, where w_i are the inputs ("w", i)."""
        weights = [self.graph.node("w", i) for i in range(len(self.outputs))]
        return pullback(self.graph, self.outputs, weights, self.inputs)


def trace(form, block, most: int) -> Trace:
    """Trace a right-hand side; raises any exception of the run, usually `CannotTrace` or `TooManyNodes`."""
    graph = Graph(most)
    slopes = run_on_symbols(form, block, REPLACED, partial(_make_inputs, graph, form.is_in_place))
    flat = np.ravel(np.asarray(as_symbols(slopes), dtype=object))
    if flat.size != form.n_out:
        raise CannotTrace(f"it returned {flat.size} slopes for {form.n_out} entries")
    return Trace(graph, [_number(graph, value) for value in flat], form.n_in, block.values.size)


def run_on_symbols(form, block, replaced: dict, make):
    """Run a right-hand side on symbols; returns what it returns or fills.

    `make(name, offset, shape)` gives the symbols of an input ("t", "y" or "p"), or an array to be filled ("dy").
    """
    original = getattr(form.function, "py_func", form.function)
    if handles_exceptions(original):
        raise CannotTrace("it handles exceptions, and straight-line code raises none")
    before = reach(original, block.constants)
    if before.opaque:
        raise CannotTrace(before.opaque)
    copies = Copies(replaced)
    function = copies.of(original)
    t, states, offset = make("t", 0, ()), [], 0
    for shape in form.inputs:
        states.append(make("y", offset, shape))
        offset += prod(shape)
    if form.is_in_place:
        slopes = make("dy", 0, form.output or (1,))
        extra = (make("p", 0, (block.values.size,)),) if form.takes_parameters else ()
        function(t, *states, slopes, *extra)
    else:
        slopes = function(t, *states, *[_make_argument(slot, block, copies, make) for slot in block.slots])
    if not copies.are_unchanged() or reach(original, block.constants).key != before.key:
        raise CannotTrace("it changes something outside itself")
    return slopes


def _number(graph: Graph, value) -> int:
    if isinstance(value, Symbol):
        return number(value).number
    if value is None or np.ndim(value) != 0:
        raise CannotTrace("it left an entry unset" if value is None else "it returned nested arrays")
    return graph.constant(float(value))


def _make_inputs(graph: Graph, is_in_place: bool, name: str, offset: int, shape: tuple[int, ...]):
    """The symbols of an input; a scalar is an array if the function writes in place."""
    if name == "dy":
        return np.full(shape, None, dtype=object).view(SymbolArray)
    if name == "t":
        return Symbol(graph, graph.node("t"))
    symbols = np.empty(prod(shape), dtype=object)
    for i in range(symbols.size):
        symbols[i] = Symbol(graph, graph.node(name, offset + i))
    if shape == ():
        return symbols.view(SymbolArray) if is_in_place else symbols[0]
    symbols.flags.writeable = name != "p"  # a trace would not record stores into the arguments
    return symbols.reshape(shape).view(SymbolArray)


def _make_argument(slot, block, copies: Copies, make):
    """A float argument as a symbol, an array as an array of symbols; integers and booleans as they are."""
    if slot.kind == "float" or (slot.kind == "array" and not slot.is_complex):
        return make("p", slot.offset, slot.shape)
    if slot.kind == "int":
        return int(block.values[slot.offset])
    if slot.kind == "bool":
        return bool(block.values[slot.offset])
    if slot.kind == "constant":
        return copies.of(block.args[slot.offset])
    raise CannotTrace("it takes complex arguments")
