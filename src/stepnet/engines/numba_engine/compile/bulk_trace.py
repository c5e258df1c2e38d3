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
from stepnet.engines.numba_engine.compile.trace import run_on_symbols, trace

MOST_ONE_BY_ONE = 80_000  # nodes of loops in Python over the unknowns: about a second


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
