"""Brownian increments and space-time Levy areas in NumPy: the reference that engines reproduce bit for bit.

A cell has (W, H) from its own draw.  Inside it, the interval that contains a time is halved until the time is an
endpoint or the last level is reached; then the last interval, a leaf, is divided at the time.  An interval [a, b] is
the rest of a's cell, the cells between, and the beginning of b's cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepnet.noise import bridge
from stepnet.noise.counters import CELL_AREA, CELL_INCREMENT, NODE, locate_in_pair, pack_counter
from stepnet.noise.grid import NoiseGrid, Positions
from stepnet.noise.normals import convert_to_normals
from stepnet.noise.philox import draw_words


class BrownianPaths(NamedTuple):
    """Brownian paths of one seed and grid, with `dimension` components each."""

    grid: NoiseGrid
    seed: int
    paths: np.ndarray
    dimension: int


class Intervals(NamedTuple):
    """W and H of intervals, (intervals, paths, components), and their lengths in leaves, (intervals, 1, 1)."""

    W: np.ndarray
    H: np.ndarray
    length: np.ndarray


def draw_shared_normals(noise: BrownianPaths, stream: int, cells: np.ndarray) -> np.ndarray:
    """Normal numbers of cells, (cells, paths, components)."""
    pair, half = locate_in_pair(noise.paths)
    counter = pack_counter(stream, pair[:, None], np.arange(noise.dimension), cells[:, None, None])
    first, second = convert_to_normals(draw_words(counter, noise.seed))
    return np.where(half[:, None] == 0, first, second)


def draw_cells(noise: BrownianPaths, cells: np.ndarray) -> Intervals:
    """W and H of whole cells."""
    h = noise.grid.cell_length
    W = draw_cell_increments(noise, cells)
    H = np.sqrt(h / 12.0) * draw_shared_normals(noise, CELL_AREA, cells)
    return Intervals(W, H, np.full((len(cells), 1, 1), float(noise.grid.leaves)))


def draw_cell_increments(noise: BrownianPaths, cells: np.ndarray) -> np.ndarray:
    """W only of whole cells."""
    z = draw_shared_normals(noise, CELL_INCREMENT, cells)
    return bridge.quantise(np.sqrt(noise.grid.cell_length) * z, noise.grid.rounder)


def _draw_nodes(noise: BrownianPaths, cells: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two normal numbers for each halving; nodes are numbered 1; 2, 3; 4, 5, 6, 7; ... level by level."""
    components = np.arange(noise.dimension)
    counter = pack_counter(NODE, noise.paths[:, None], components, cells[:, None, None], nodes[:, None, None])
    return convert_to_normals(draw_words(counter, noise.seed))


def evaluate(noise: BrownianPaths, start: Positions, end: Positions) -> tuple[np.ndarray, np.ndarray]:
    """W and H over the intervals from `start` to `end`, (intervals, paths, components); empty ones have zeros."""
    shape = len(start.cell), len(noise.paths), noise.dimension
    W, H = np.zeros(shape), np.zeros(shape)
    is_later = (end.leaf > start.leaf) | ((end.leaf == start.leaf) & (end.fraction > start.fraction))
    rows = np.flatnonzero((end.cell > start.cell) | ((end.cell == start.cell) & is_later))
    a, b = (Positions(*(each[rows] for each in side)) for side in (start, end))
    b = _count_from_left(noise.grid, b)
    parting, is_node = _find_parting(noise.grid, a, b)
    first = _walk(noise, a, parting, is_suffix=True)
    last = _walk(noise, b, parting, is_suffix=False, is_skipped=is_node)
    for row in np.flatnonzero(b.cell - a.cell > 1):
        _join_cells(noise, first, int(row), np.arange(a.cell[row] + 1, b.cell[row]))
    total = _join(first, last)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = bridge.remove(last.W, last.H, last.length, first.W, first.H, first.length)
    is_in_one = ((parting > noise.grid.levels)[:, None, None]) & (first.length > 0.0)
    W[rows] = np.where(is_in_one, rest[0], total.W)
    H[rows] = np.where(is_in_one, rest[1], total.H)
    return W, H


def _count_from_left(grid: NoiseGrid, b: Positions) -> Positions:
    """Represent ends at the beginning of a cell as the end of the previous cell, its leaf 2^levels."""
    is_end = (b.leaf == 0) & (b.fraction == 0.0)
    return Positions(b.cell - is_end, np.where(is_end, grid.leaves, b.leaf), b.fraction)


def _find_parting(grid: NoiseGrid, a: Positions, b: Positions) -> tuple[np.ndarray, np.ndarray]:
    """The last level on which one node contains both ends, and whether [a, b] is a node itself.

    -1: in different cells; levels + 1: in one leaf.  If [a, b] is a node of level l, it is l - 1.
    """
    last = np.where(b.fraction > 0.0, b.leaf, b.leaf - 1)
    different = np.where(a.cell == b.cell, a.leaf ^ last, 0)
    bits = np.frexp(different.astype(np.float64))[1].astype(np.int64)  # of the number
    parting = np.where(a.cell == b.cell, grid.levels - bits, -1)
    size = np.int64(1) << bits
    is_whole = (a.fraction == 0.0) & (b.fraction == 0.0) & (b.leaf - a.leaf == size) & (a.cell == b.cell)
    parting = np.where((different == 0) & (a.cell == b.cell), grid.levels + 1, parting)
    return np.where(is_whole, grid.levels - bits - 1, parting), is_whole


def _walk(noise: BrownianPaths, target: Positions, parting: Any, is_suffix: bool, is_skipped: Any = False) -> Intervals:
    """The interval between each target and the end (or beginning) of its cell, restricted to below the parting."""
    grid, n = noise.grid, len(target.cell)
    shape = n, len(noise.paths), noise.dimension
    total = Intervals(np.zeros(shape), np.zeros(shape), np.zeros((n, 1, 1)))
    left = np.flatnonzero(~np.broadcast_to(is_skipped, n))  # unfinished queries
    now = draw_cells(noise, target.cell[left])
    node, offset = np.ones(len(left), np.int64), target.leaf[left]
    for level in range(grid.levels + 1):
        size, is_below = 1 << (grid.levels - level), level > parting[left]
        is_done = is_below & (target.fraction[left] == 0.0) & (offset == (0 if is_suffix else size))
        _add(total, left[is_done], _pick(now, is_done), is_suffix)
        left, now, node, offset = left[~is_done], _pick(now, ~is_done), node[~is_done], offset[~is_done]
        if len(left) == 0 or level == grid.levels:
            break
        halves = _halve(noise, now, target.cell[left], node, level)
        is_right = offset >= size // 2
        if not is_suffix:
            is_right &= (offset > size // 2) | (target.fraction[left] > 0.0)
        sibling, now = _choose(is_right, *halves), _choose(~is_right, *halves)
        is_part = (is_right != is_suffix) & is_below[~is_done]
        _add(total, left[is_part], _pick(sibling, is_part), is_suffix)
        node, offset = 2 * node + is_right, offset - is_right * (size // 2)
    is_after = is_suffix & (parting[left] <= grid.levels)
    _add_parts_of_leaves(noise, total, now, target, left, node, is_after)
    return total


def _add_parts_of_leaves(
    noise: BrownianPaths, total: Intervals, now: Intervals, target: Any, left: Any, node: Any, is_after: Any
) -> None:
    """Divide leaves at the times inside them, and add the part before (or after).

    Where both ends are in one leaf, the parts before them are, even if they are empty or the whole leaf.
    """
    r = target.fraction[left]
    is_inside = r > 0.0
    rows = left[is_inside]
    parts = _divide(noise, _pick(now, is_inside), r[is_inside][:, None, None], target.cell[rows], node[is_inside])
    _add(total, rows, _choose(~is_after[is_inside], *parts), bool(np.any(is_after)))
    is_whole = ~is_inside & (target.leaf[left] == _end_of_leaf(noise.grid, node))
    _add(total, left[is_whole], _pick(now, is_whole), True)


def _end_of_leaf(grid: NoiseGrid, node: np.ndarray) -> np.ndarray:
    """The number of the leaf after a node on the last level."""
    return node - grid.leaves + 1


def _halve(noise: BrownianPaths, now: Intervals, cell: Any, node: Any, level: int) -> tuple[Intervals, Intervals]:
    h = noise.grid.cell_length * 2.0**-level
    Z, N = _draw_nodes(noise, cell, node)
    kick, twist = np.sqrt(h / 16.0) * Z, np.sqrt(h / 48.0) * N
    W1, H1, W2, H2 = bridge.halve(now.W, now.H, kick, twist, noise.grid.rounder)
    return Intervals(W1, H1, 0.5 * now.length), Intervals(W2, H2, 0.5 * now.length)


def _divide(noise: BrownianPaths, now: Intervals, r: Any, cell: Any, node: Any) -> tuple[Intervals, Intervals]:
    h = noise.grid.cell_length * 2.0**-noise.grid.levels
    Z, N = _draw_nodes(noise, cell, node)
    rs = r * (1.0 - r)
    D = 1.0 - 3.0 * rs
    kick = np.sqrt(h * (rs * D)) * Z
    twist = np.sqrt(h * (rs * ((1.0 - r) * (1.0 - r))) / (12.0 * D)) * N
    W1, H1, W2, H2 = bridge.divide(now.W, now.H, r, kick, twist, noise.grid.rounder)
    return Intervals(W1, H1, r), Intervals(W2, H2, 1.0 - r)


def _join_cells(noise: BrownianPaths, total: Intervals, row: int, cells: np.ndarray) -> None:
    """Append cells to the interval of a row, one by one."""
    drawn = draw_cells(noise, cells)
    for i in range(len(cells)):
        _add(total, np.array([row]), _pick(drawn, np.array([i])), False)


def _join(one: Intervals, other: Intervals) -> Intervals:
    """Join adjacent intervals, either of which may be empty."""
    with np.errstate(divide="ignore", invalid="ignore"):
        W, H = bridge.join(one.W, one.H, one.length, other.W, other.H, other.length)
    H = np.where(one.length == 0.0, other.H, np.where(other.length == 0.0, one.H, H))
    return Intervals(W, H, one.length + other.length)


def _add(total: Intervals, rows: np.ndarray, some: Intervals, is_in_front: bool) -> None:
    """Join adjacent intervals before (or after) those of the rows."""
    old = _pick(total, rows)
    new = _join(some, old) if is_in_front else _join(old, some)
    for whole, part in zip(total, new, strict=True):
        whole[rows] = part


def _pick(some: Intervals, which: np.ndarray) -> Intervals:
    return Intervals(*(each[which] for each in some))


def _choose(is_first: np.ndarray, one: Intervals, other: Intervals) -> Intervals:
    return Intervals(*(np.where(is_first[:, None, None], x, y) for x, y in zip(one, other, strict=True)))
