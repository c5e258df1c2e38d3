"""The positions of the entries of a Jacobian, and which of its columns can be computed together.

Columns that share no row get one colour.  With S_jc = 1 where column j has the colour c,

    B = (df/dy) S,    (df/dy)_ij = B_i,colour(j)    wherever slope i depends on entry j

(Curtis, Powell & Reid, IMA J. Appl. Math. 13, 1974), so a tridiagonal Jacobian costs three products, whatever n is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array

from stepnet.engines.numba_engine.array_tracing.loops import LoopPhase, Loops, list_places
from stepnet.engines.numba_engine.codegen.dual_numbers import WIDTH
from stepnet.engines.numba_engine.derivatives.graph_derivatives import RULES
from stepnet.engines.numba_engine.derivatives.jacobian_products import Pushforward, choose_points_near
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.trace import Trace

MOST_ENTRIES = 10_000_000  # of a matrix that is still worth storing as sparse


@dataclass(frozen=True)
class Pattern:
    """Where df/dy may differ from zero, and the colours of its columns.

    `source` is "exact", "given" (by the user) or "detected" (numerically, so another branch may have more entries).
    """

    sparsity: csr_array
    source: str
    colours: np.ndarray
    n_colours: int


def find_sparsity(tracing: Trace | Loops, n: int) -> csr_array:
    """Which slopes depend on which of the n entries of the state, read off the graph.

    Operations without derivatives (comparisons, floor, sign) propagate no dependence.
    """
    if isinstance(tracing, Loops):
        return _find_sparsity_of_loops(tracing, n)
    leaves = [node[1] if node[0] == "y" else None for node in tracing.graph.nodes]
    columns = [_positions(bits, n) for bits in _find_leaves(tracing.graph, tracing.outputs, leaves)]
    starts = np.cumsum([0, *(row.size for row in columns)])
    return csr_array((np.ones(starts[-1], bool), np.concatenate(columns), starts), shape=(len(columns), n))


def _find_leaves(graph: Graph, outputs: list[int], leaves: Sequence[int | None]) -> list[int]:
    """The leaves that outputs depend on; `leaves` maps nodes to leaf numbers, and sets are bits of integers."""
    reached: dict[int, int] = {}
    for number in graph.live(outputs):
        operation, *operands = graph.nodes[number]
        bits = 0 if leaves[number] is None else 1 << leaves[number]
        if operation in RULES:
            for operand in operands:
                bits |= reached[operand]
        reached[number] = bits
    return [reached[output] for output in outputs]


def _find_sparsity_of_loops(loops: Loops, n: int) -> csr_array:
    """The same from loops: the state entries that slopes read directly or through stored values."""
    kept = csr_array((loops.n_kept, n), dtype=bool)
    for phase in loops.phases:
        n_rows = loops.n_kept if phase.array == "kept" else phase.count
        direct, through = (
            _find_reads(phase, name, (n_rows, size)) for name, size in (("y", n), ("kept", loops.n_kept))
        )
        if np.diff(kept.indptr)[through.indices].sum() > MOST_ENTRIES:
            raise ValueError(f"the Jacobian has more than {MOST_ENTRIES:.0e} entries; supply `jac` or work with `jvp`")
        found = direct + through @ kept
        kept = kept + found if phase.array == "kept" else kept
    return csr_array(found)


def _find_reads(phase: LoopPhase, name: str, shape: tuple[int, int]) -> csr_array:
    """Which entries of an array the loops of a phase read for which of their results."""
    rows, columns = [np.empty(0, int)], [np.empty(0, int)]
    for body in phase.bodies:
        nodes = body.graph.nodes
        inputs = [number for number in body.graph.live(body.outputs) if nodes[number][0] == name]
        leaves: list[int | None] = [None] * len(nodes)
        for k, number in enumerate(inputs):
            leaves[number] = k
        for place, bits in zip(body.places, _find_leaves(body.graph, body.outputs, leaves), strict=True):
            for k in _positions(bits, len(inputs)):
                rows.append(list_places(place, body.counts))
                columns.append(list_places(nodes[inputs[k]][1], body.counts))
    entries = np.concatenate(rows), np.concatenate(columns)
    return csr_array((np.ones(entries[0].size, bool), entries), shape=shape)


def _positions(bits: int, n: int) -> np.ndarray:
    packed = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def detect_sparsity(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
    """Which slopes become NaN for a NaN tangent, at y and at random points nearby: a numerical detection.

    NaN propagates through a partial derivative that happens to be zero, but a branch that is not taken stays unseen.
    """
    n = shape[1]
    found = csr_array(shape, dtype=bool)
    n_points = 0
    for near in (y, *choose_points_near(y)):
        try:
            if not np.any(push.columns(t, near, np.zeros((n, 1)))):  # NaN where the function is not defined
                found, n_points = found + search_by_nan(push, shape, t, near), n_points + 1
        except Exception:  # outside the domain of the function
            continue
    return found if n_points else csr_array(np.ones(shape, bool))


def search_by_nan(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
    """Search groups of columns, then the eighths of the groups found, and so on.

    Groups that share no row are searched together, so a banded Jacobian takes O(log n) products.
    """
    n_rows, n = shape
    found, width = csr_array(np.ones((n_rows, 1), bool)), WIDTH  # rows and groups of `width` columns
    while width < n:
        width *= WIDTH
    while width > 1:
        width //= WIDTH
        part = np.arange(n) // width
        colours, n_colours = colour_columns(found)
        reached = np.empty((n_colours, n_rows, WIDTH), bool)
        for colour in range(n_colours):
            members = np.flatnonzero(colours[part // WIDTH] == colour)
            seeds = np.zeros((n, WIDTH))
            seeds[members, part[members] % WIDTH] = np.nan
            reached[colour] = np.isnan(push.columns(t, y, seeds))
        rows, groups = found.nonzero()
        which, eighths = np.nonzero(reached[colours[groups], rows])
        entries = (np.ones(which.size, bool), (rows[which], WIDTH * groups[which] + eighths))
        found = csr_array(entries, shape=(n_rows, part[-1] + 1))
    return found


def find_bandwidth(sparsity) -> tuple[int, int]:
    """(lower, upper): the number of diagonals below and above the main one that hold entries."""
    rows, columns = sparsity.nonzero()
    return int(np.max(rows - columns, initial=0)), int(np.max(columns - rows, initial=0))


def colour_columns(sparsity) -> tuple[np.ndarray, int]:
    """Colours of the columns, such that no two columns of a colour share a row, and their number.

    Greedy, once from left to right and once by decreasing number of entries; the better of the two is returned.
    """
    by_columns = csc_array(sparsity)
    fullest_first = np.argsort(-np.diff(by_columns.indptr), kind="stable")
    attempts = [_colour_greedily(by_columns, order) for order in (np.arange(by_columns.shape[1]), fullest_first)]
    return min(attempts, key=lambda attempt: attempt[1])


def _colour_greedily(by_columns: csc_array, order: np.ndarray) -> tuple[np.ndarray, int]:
    """Give every column the first colour that none of its rows has; sets of colours are bits of integers."""
    seen = [0] * by_columns.shape[0]
    colours = np.zeros(by_columns.shape[1], int)
    starts, indices = by_columns.indptr.tolist(), by_columns.indices.tolist()
    for column in order.tolist():
        rows = indices[starts[column] : starts[column + 1]]
        taken = 0
        for row in rows:
            taken |= seen[row]
        first_free = ~taken & (taken + 1)
        for row in rows:
            seen[row] |= first_free
        colours[column] = first_free.bit_length() - 1
    return colours, int(colours.max(initial=0)) + 1
