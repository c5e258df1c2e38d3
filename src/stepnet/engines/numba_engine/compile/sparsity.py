"""Where the entries of a Jacobian are, and which of its columns can be found together.

Columns that share no row get one colour.  With S_jc = 1 where column j has the colour c,

    B = (df/dy) S,    (df/dy)_ij = B_i,colour(j)    wherever slope i depends on entry j

(Curtis, Powell & Reid, IMA J. Appl. Math. 13, 1974), so a tridiagonal Jacobian costs three products, whatever n is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array

from stepnet.engines.numba_engine.compile.derivatives import RULES
from stepnet.engines.numba_engine.compile.dual import WIDTH
from stepnet.engines.numba_engine.compile.products import Pushforward, points_near
from stepnet.engines.numba_engine.compile.trace import Trace


@dataclass(frozen=True)
class Pattern:
    """Where df/dy may differ from zero, and the colours of its columns.

    `source` is "exact", "given" (by the user) or "detected" (by trying, so another branch may know more).
    """

    sparsity: csr_array
    source: str
    colours: np.ndarray
    n_colours: int


def sparsity_of(tracing: Trace) -> csr_array:
    """Which slopes depend on which entries of the state, read off the graph; sets are the bits of whole numbers.

    Operations without derivatives (comparisons, floor, sign) pass no dependence on.
    """
    graph, reached = tracing.graph, {}
    for number in graph.live(tracing.outputs):
        operation, *operands = graph.nodes[number]
        bits = 1 << operands[0] if operation == "y" else 0
        if operation in RULES:
            for operand in operands:
                bits |= reached[operand]
        reached[number] = bits
    columns = [_positions(reached[output], tracing.n) for output in tracing.outputs]
    starts = np.cumsum([0, *(row.size for row in columns)])
    return csr_array((np.ones(starts[-1], bool), np.concatenate(columns), starts), shape=(len(columns), tracing.n))


def _positions(bits: int, n: int) -> np.ndarray:
    packed = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def detected_sparsity(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
    """Which slopes answer NaN to a tangent NaN, at y and at random points nearby: a numerical detection.

    NaN survives a partial derivative that happens to be zero, but nothing shows what a branch not taken would do.
    """
    n = shape[1]
    found = csr_array(shape, dtype=bool)
    n_points = 0
    for near in (y, *points_near(y)):
        try:
            if not np.any(push.columns(t, near, np.zeros((n, 1)))):  # NaN where the function is not defined
                found, n_points = found + reached_by_nan(push, shape, t, near), n_points + 1
        except Exception:  # outside the domain of the function
            continue
    return found if n_points else csr_array(np.ones(shape, bool))


def reached_by_nan(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
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
        colours, n_colours = colouring(found)
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


def bandwidth(sparsity) -> tuple[int, int]:
    """(lower, upper): the number of diagonals below and above the main one that hold entries."""
    rows, columns = sparsity.nonzero()
    return int(np.max(rows - columns, initial=0)), int(np.max(columns - rows, initial=0))


def colouring(sparsity) -> tuple[np.ndarray, int]:
    """Colours of the columns, such that no two of a colour share a row, and how many there are.

    Greedy, once from left to right and once by falling number of entries; the better of the two.
    """
    by_columns = csc_array(sparsity)
    fullest_first = np.argsort(-np.diff(by_columns.indptr), kind="stable")
    attempts = [_greedy(by_columns, order) for order in (np.arange(by_columns.shape[1]), fullest_first)]
    return min(attempts, key=lambda attempt: attempt[1])


def _greedy(by_columns: csc_array, order: np.ndarray) -> tuple[np.ndarray, int]:
    """Give every column the first colour that none of its rows has seen; sets of colours are bits of whole numbers."""
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
