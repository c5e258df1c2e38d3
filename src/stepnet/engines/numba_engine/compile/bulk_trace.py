"""Run a right-hand side once on long arrays of symbols, and keep what it did as loops."""

from __future__ import annotations

from math import prod

import numpy as np

from stepnet.engines.numba_engine.compile.arguments import Block
from stepnet.engines.numba_engine.compile.array_stand_ins import replaced_modules
from stepnet.engines.numba_engine.compile.bulk import Bulk
from stepnet.engines.numba_engine.compile.entries import Entries, nodes_of, unset
from stepnet.engines.numba_engine.compile.form import Form
from stepnet.engines.numba_engine.compile.graph import TooManyNodes
from stepnet.engines.numba_engine.compile.loops import Loops, loops_of
from stepnet.engines.numba_engine.compile.symbols import CannotTrace
from stepnet.engines.numba_engine.compile.trace import Trace, run_on_symbols, trace

MOST_NODES = 2500  # beyond this straight-line code is slower than loops
MOST_UNKNOWNS = 400  # beyond this it is no faster, and compiles in seconds where loops take milliseconds
MOST_ONE_BY_ONE = 80_000  # nodes of loops in Python over the unknowns: about a second


def trace_short_or_loops(form: Form, block: Block) -> Trace | Loops:
    """A short trace of few unknowns, else loops; a short one of many if it cannot be had as loops."""
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


def trace_loops(form: Form, block: Block) -> Loops:
    """The loops of a long right-hand side: from its arrays or, if it goes through the unknowns itself, from each."""
    try:
        return loops_of(*_in_bulk(form, block))
    except TooManyNodes:
        traced = trace(form, block, MOST_ONE_BY_ONE)
        return loops_of(*Bulk.of(traced.graph, traced.outputs))


def _in_bulk(form: Form, block: Block) -> tuple[Bulk, np.ndarray]:
    """The graph, and the nodes of the slopes."""
    bulk = Bulk()

    def make(name: str, offset: int, shape: tuple[int, ...]) -> Entries:
        if name == "dy":
            return unset(bulk, shape)
        if shape == () and form.is_in_place and name == "y":
            shape = (1,)
        numbers = bulk.leaf(name, offset + np.arange(prod(shape)).reshape(shape))
        numbers.flags.writeable = False
        return Entries(bulk, numbers)

    slopes = run_on_symbols(form, block, replaced_modules(bulk), make)
    numbers = nodes_of(bulk, slopes).ravel()
    if numbers.size != form.n_out:
        raise CannotTrace(f"it returned {numbers.size} slopes for {form.n_out} entries")
    if numbers.min() < 0:
        raise CannotTrace("it left an entry unset")
    return bulk, numbers
