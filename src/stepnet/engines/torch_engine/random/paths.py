"""Brownian increments and space-time Levy areas between any times, as tensors (paths, components).

Times, and everything computed from them, are Python numbers; tensors are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.random.increments import (
    Seed,
    draw_areas,
    draw_increments,
    draw_node,
    quantise,
)
from stepnet.noise import bridge
from stepnet.noise.grid import NoiseGrid

DRAW_ENTRIES = 2**16  # entries of a tensor that holds several draws, which cost little more than one


class TensorNoise(NamedTuple):
    """The Brownian paths to evaluate.

    `W` and `H`, if given, are the increments and areas of the first cell, which is the only one then.
    """

    grid: NoiseGrid
    seed: Seed
    paths: Tensor
    dimension: int
    W: Tensor | None = None
    H: Tensor | None = None

    @property
    def n_entries(self) -> int:
        """The entries of a tensor of one draw."""
        return len(self.paths) * self.dimension


class Position(NamedTuple):
    """A time: its cell, the leaf of the cell, and the fraction of the leaf."""

    cell: int
    leaf: int
    fraction: float


class CellPart(NamedTuple):
    """W and H of an interval and its length in leaves."""

    W: Tensor
    H: Tensor
    length: float


class Node(NamedTuple):
    """An interval that can be halved: its cell, its number in the cell, its level and the first of its leaves."""

    cell: int
    number: int
    level: int
    begin: int


Normals = tuple[Tensor, Tensor]


class NodeNormals:
    """Normal numbers of nodes; those whose use is known in advance are drawn together."""

    def __init__(self, noise: TensorNoise, targets: Sequence[Position]):
        self.noise, self.drawn = noise, dict[tuple[int, int], Normals]()
        keys = list(dict.fromkeys(key for target in targets for key in _list_nodes(noise.grid, target)))
        size = max(1, DRAW_ENTRIES // max(1, noise.n_entries))
        if size > 1:
            for first in range(0, len(keys), size):
                self._draw(keys[first : first + size])

    def _draw(self, keys: list[tuple[int, int]]) -> None:
        device = self.noise.paths.device
        cells, nodes = (torch.tensor(numbers, device="cpu").to(device) for numbers in zip(*keys, strict=True))
        pairs = draw_node(self.noise.seed, self.noise.paths, self.noise.dimension, cells, nodes)
        self.drawn.update(zip(keys, zip(*(each.unbind() for each in pairs), strict=True), strict=True))

    def of(self, node: Node) -> Normals:
        """The two numbers of a node."""
        found = self.drawn.get((node.cell, node.number))
        return found or draw_node(self.noise.seed, self.noise.paths, self.noise.dimension, node.cell, node.number)


def _list_nodes(grid: NoiseGrid, target: Position) -> Iterator[tuple[int, int]]:
    """The nodes that are divided to reach a time, as (cell, number)."""
    cell, leaf, r = target
    inside = leaf if r > 0.0 else leaf - 1  # nodes that end at the time are halved as long as others begin there
    for level in range(grid.levels + 1):
        size = 1 << (grid.levels - level)
        if r == 0.0 and leaf % size == 0:
            return
        yield cell, (1 << level) + inside // size


@build_from_constants
def locate_times(t0: float, t1: float, cells: int, levels: int, *times: float) -> tuple[Position, ...]:
    """The positions of times on a grid."""
    cell, leaf, fraction = NoiseGrid((t0, t1), cells, levels).locate(times)
    return tuple(map(Position, cell.tolist(), leaf.tolist(), fraction.tolist()))


def locate(grid: NoiseGrid, times: Sequence[float]) -> tuple[Position, ...]:
    """The positions of times on a grid, as numbers."""
    return locate_times(*grid.t_span, grid.cells, grid.levels, *times)


def evaluate(noise: TensorNoise, a: float, b: float) -> tuple[Tensor, Tensor]:
    """W(b) - W(a) and the space-time Levy area of [a, b], a < b."""
    return evaluate_between(noise, *locate(noise.grid, (a, b)))


def evaluate_between(noise: TensorNoise, start: Position, end: Position) -> tuple[Tensor, Tensor]:
    """W and H between two positions, the second later; zeros if they are equal."""
    if start == end:
        zeros = torch.zeros(len(noise.paths), noise.dimension, dtype=torch.float64, device=noise.paths.device)
        return zeros, zeros
    if end.leaf == 0 and end.fraction == 0.0:
        end = Position(end.cell - 1, noise.grid.leaves, 0.0)
    normals = NodeNormals(noise, (start, end))
    if start.cell == end.cell:
        return _evaluate_in_cell(normals, start, end)
    cells = _draw_cells(noise, start.cell, end.cell + 1)
    total = _walk(normals, _root(start.cell), next(cells), start, is_suffix=True)
    for cell in range(start.cell + 1, end.cell):  # noqa: B007  the cells are counted
        total = _append(total, next(cells))
    total = _append(total, _walk(normals, _root(end.cell), next(cells), end, is_suffix=False))
    return total.W, total.H


def _root(cell: int) -> Node:
    return Node(cell, 1, 0, 0)


def _draw_cells(noise: TensorNoise, first: int, last: int) -> Iterator[CellPart]:
    """W and H of the cells first..last."""
    size = max(1, DRAW_ENTRIES // max(1, noise.n_entries))
    length = float(noise.grid.leaves)
    for begin in range(first, last, size):
        cells = torch.arange(begin, min(begin + size, last), device=noise.paths.device)
        W, H = draw_cell_increments(noise, cells), draw_cell_areas(noise, cells)
        yield from (CellPart(W[i], H[i], length) for i in range(min(size, last - begin)))


def draw_cell_increments(noise: TensorNoise, cells: Tensor) -> Tensor:
    """W of several cells, (cells, paths, components)."""
    if noise.W is not None:
        return noise.W[None]
    return draw_increments(noise.grid, noise.seed, noise.paths, noise.dimension, cells)


def draw_cell_areas(noise: TensorNoise, cells: Tensor) -> Tensor:
    """H of several cells, (cells, paths, components)."""
    if noise.H is not None:
        return noise.H[None]
    return draw_areas(noise.grid, noise.seed, noise.paths, noise.dimension, cells)


def _append(one: CellPart | None, other: CellPart | None) -> CellPart:
    """Join adjacent intervals, one of which may be missing."""
    if one is None or other is None:
        return one or other  # type: ignore[return-value]
    W, H = bridge.join(*one, *other)
    return CellPart(W, H, one.length + other.length)


def _halve(normals: NodeNormals, node: Node, part: CellPart) -> tuple[tuple[Node, CellPart], tuple[Node, CellPart]]:
    grid = normals.noise.grid
    h, half = grid.cell_length * 2.0**-node.level, 0.5 * part.length
    Z, N = normals.of(node)
    kick, twist = sqrt(h / 16.0) * Z, sqrt(h / 48.0) * N
    W1 = quantise((0.5 * part.W + 1.5 * part.H) + kick, grid)
    H_both = 0.25 * part.H - 0.5 * kick
    left = Node(node.cell, 2 * node.number, node.level + 1, node.begin)
    right = Node(node.cell, 2 * node.number + 1, node.level + 1, node.begin + int(half))
    return (left, CellPart(W1, H_both + twist, half)), (right, CellPart(part.W - W1, H_both - twist, half))


def _divide(normals: NodeNormals, node: Node, part: CellPart, r: float) -> tuple[CellPart, CellPart]:
    """Divide a leaf at its fraction r; see `stepnet.noise.bridge.divide`."""
    grid = normals.noise.grid
    h, s = grid.cell_length * 2.0**-grid.levels, 1.0 - r
    Z, N = normals.of(node)
    D = 1.0 - 3.0 * (r * s)
    kick, twist = sqrt(h * (r * s * D)) * Z, sqrt(h * (r * s * (s * s)) / (12.0 * D)) * N
    W1 = quantise((r * part.W + 6.0 * (r * s) * part.H) + kick, grid)
    weighted = part.H - 0.5 * (6.0 * (r * s) * part.H + kick)
    H1 = r * r / D * weighted + twist
    return CellPart(W1, H1, r), CellPart(part.W - W1, (weighted - r * H1) / s, s)


def _walk(normals: NodeNormals, node: Node, part: CellPart, target: Position, is_suffix: bool) -> CellPart:
    """The interval from a time in a node to the end of the node (or from its beginning to the time)."""
    _, leaf, r = target
    total: CellPart | None = None
    join: Callable[[CellPart], CellPart] = (
        (lambda some: _append(some, total)) if is_suffix else (lambda some: _append(total, some))
    )
    while True:
        edge = node.begin if is_suffix else node.begin + int(part.length)
        if leaf == edge and r == 0.0:
            return join(part)
        if node.level == normals.noise.grid.levels:
            return join(_divide(normals, node, part, r)[is_suffix])
        left, right = _halve(normals, node, part)
        middle = right[0].begin
        is_right = leaf >= middle if is_suffix else leaf > middle or (leaf == middle and r > 0.0)
        if is_right != is_suffix:
            total = join((left if is_right else right)[1])
        node, part = right if is_right else left


def _evaluate_in_cell(normals: NodeNormals, start: Position, end: Position) -> tuple[Tensor, Tensor]:
    """W and H between two times of one cell."""
    noise = normals.noise
    last = end.leaf if end.fraction > 0.0 else end.leaf - 1  # the leaf that ends at the second time or contains it
    node, part = _root(start.cell), next(_draw_cells(noise, start.cell, start.cell + 1))
    while True:
        bounds = (node.begin, 0.0), (node.begin + int(part.length), 0.0)
        if (start[1:], end[1:]) == bounds:
            return part.W, part.H
        if node.level == noise.grid.levels:
            return _evaluate_in_leaf(normals, node, part, start.fraction, end.fraction)
        left, right = _halve(normals, node, part)
        middle = right[0].begin
        if last >= middle > start.leaf:
            one = _walk(normals, *left, start, is_suffix=True)
            total = _append(one, _walk(normals, *right, end, is_suffix=False))
            return total.W, total.H
        node, part = left if last < middle else right


def _evaluate_in_leaf(normals: NodeNormals, node: Node, part: CellPart, r0: float, r1: float) -> tuple[Tensor, Tensor]:
    """W and H between two fractions of one leaf, where r1 = 0 is its end."""
    until = part if r1 == 0.0 else _divide(normals, node, part, r1)[0]
    if r0 == 0.0:
        return until.W, until.H
    return bridge.remove(*until, *_divide(normals, node, part, r0)[0])
