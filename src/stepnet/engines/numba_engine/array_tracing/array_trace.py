"""Run a right-hand side once on symbolic arrays and record its operations as loops."""

from __future__ import annotations

from math import prod

import numpy as np

from stepnet.engines.numba_engine.array_tracing.array_graph import ArrayGraph
from stepnet.engines.numba_engine.array_tracing.array_substitutes import replace_modules
from stepnet.engines.numba_engine.array_tracing.array_symbols import NodeArray, as_nodes, make_unset
from stepnet.engines.numba_engine.array_tracing.loops import Loops, build_loops
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock
from stepnet.engines.numba_engine.rhs.call_form import CallForm
from stepnet.engines.numba_engine.tracing.graph import TooManyNodes
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace, run_on_symbols, trace

MOST_NODES = 2500  # beyond this straight-line code is slower than loops
MOST_UNKNOWNS = 400  # beyond this it is no faster, and takes seconds to compile where loops take milliseconds
MOST_ONE_BY_ONE = 80_000  # nodes of Python loops over the unknowns: about a second


def trace_short_or_loops(form: CallForm, block: ArgumentBlock) -> Trace | Loops:
    """A short trace for few unknowns, else loops; a short trace for many unknowns if loops fail."""
    if form.n_in <= MOST_UNKNOWNS:
        try:
            return trace(form, block, MOST_NODES)
        except TooManyNodes:
            return trace_loops(form, block)
    try:
        return trace_loops(form, block)
    except (CannotTrace, TooManyNodes) as reason:
        try:
            return trace(form, block, MOST_NODES)
        except TooManyNodes:
            raise reason from None


def trace_loops(form: CallForm, block: ArgumentBlock) -> Loops:
    """The loops of a long right-hand side: from array operations or, if it loops over unknowns, from scalar nodes."""
    try:
        return build_loops(*_run_on_entries(form, block))
    except TooManyNodes:
        traced = trace(form, block, MOST_ONE_BY_ONE)
        return build_loops(*ArrayGraph.of(traced.graph, traced.outputs))


def _run_on_entries(form: CallForm, block: ArgumentBlock) -> tuple[ArrayGraph, np.ndarray]:
    """The graph and the nodes of the slopes."""
    bulk = ArrayGraph()

    def make(name: str, offset: int, shape: tuple[int, ...]) -> NodeArray:
        if name == "dy":
            return make_unset(bulk, shape)
        if shape == () and form.is_in_place and name == "y":
            shape = (1,)
        numbers = bulk.leaf(name, offset + np.arange(prod(shape)).reshape(shape))
        numbers.flags.writeable = False
        return NodeArray(bulk, numbers)

    slopes = run_on_symbols(form, block, replace_modules(bulk), make)
    numbers = as_nodes(bulk, slopes).ravel()
    if numbers.size != form.n_out:
        raise CannotTrace(f"it returned {numbers.size} slopes for {form.n_out} entries")
    if numbers.min() < 0:
        raise CannotTrace("it left an entry unset")
    return bulk, numbers
