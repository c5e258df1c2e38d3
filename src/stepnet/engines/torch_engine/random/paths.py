"""Brownian increments and space-time Levy areas between any times, as tensors (paths, components).

Times, and everything computed from them, are Python numbers; tensors are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

from torch import Tensor

from stepnet.engines.torch_engine.random.increments import draw_areas, draw_increments, draw_node, quantise
from stepnet.noise import bridge
from stepnet.noise.grid import NoiseGrid


class TensorNoise(NamedTuple):
    """The Brownian paths to evaluate."""

    grid: NoiseGrid
    seed: int
    paths: Tensor
    dimension: int


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


def evaluate(noise: TensorNoise, a: float, b: float) -> tuple[Tensor, Tensor]:
    """W(b) - W(a) and the space-time Levy area of [a, b], a < b."""
    (cell0, leaf0, r0), (cell1, leaf1, r1) = (_locate(noise.grid, t) for t in (a, b))
    if leaf1 == 0 and r1 == 0.0:
        cell1, leaf1 = cell1 - 1, noise.grid.leaves
    if cell0 == cell1:
        return _evaluate_in_cell(noise, cell0, (leaf0, r0), (leaf1, r1))
    total = _walk(noise, _root(cell0), _draw_cell(noise, cell0), (leaf0, r0), is_suffix=True)
    for cell in range(cell0 + 1, cell1):
        total = _append(total, _draw_cell(noise, cell))
    total = _append(total, _walk(noise, _root(cell1), _draw_cell(noise, cell1), (leaf1, r1), is_suffix=False))
    return total.W, total.H


def _locate(grid: NoiseGrid, t: float) -> tuple[int, int, float]:
    cell, leaf, fraction = grid.locate(t)
    return int(cell), int(leaf), float(fraction)


def _root(cell: int) -> Node:
    return Node(cell, 1, 0, 0)


def _draw_cell(noise: TensorNoise, cell: int) -> CellPart:
    what = noise.grid, noise.seed, noise.paths, noise.dimension, cell
    return CellPart(draw_increments(*what), draw_areas(*what), float(noise.grid.leaves))


def _append(one: CellPart | None, other: CellPart | None) -> CellPart:
    """Join adjacent intervals, one of which may be missing."""
    if one is None or other is None:
        return one or other  # type: ignore[return-value]
    W, H = bridge.join(*one, *other)
    return CellPart(W, H, one.length + other.length)


def _halve(noise: TensorNoise, node: Node, part: CellPart) -> tuple[tuple[Node, CellPart], tuple[Node, CellPart]]:
    h, half = noise.grid.cell_length * 2.0**-node.level, 0.5 * part.length
    Z, N = draw_node(noise.seed, noise.paths, noise.dimension, node.cell, node.number)
    kick, twist = sqrt(h / 16.0) * Z, sqrt(h / 48.0) * N
    W1 = quantise((0.5 * part.W + 1.5 * part.H) + kick, noise.grid)
    H_both = 0.25 * part.H - 0.5 * kick
    left = Node(node.cell, 2 * node.number, node.level + 1, node.begin)
    right = Node(node.cell, 2 * node.number + 1, node.level + 1, node.begin + int(half))
    return (left, CellPart(W1, H_both + twist, half)), (right, CellPart(part.W - W1, H_both - twist, half))


def _divide(noise: TensorNoise, node: Node, part: CellPart, r: float) -> tuple[CellPart, CellPart]:
    """Divide a leaf at its fraction r; see `stepnet.noise.bridge.divide`."""
    h, s = noise.grid.cell_length * 2.0**-noise.grid.levels, 1.0 - r
    Z, N = draw_node(noise.seed, noise.paths, noise.dimension, node.cell, node.number)
    D = 1.0 - 3.0 * (r * s)
    kick, twist = sqrt(h * (r * s * D)) * Z, sqrt(h * (r * s * (s * s)) / (12.0 * D)) * N
    W1 = quantise((r * part.W + 6.0 * (r * s) * part.H) + kick, noise.grid)
    weighted = part.H - 0.5 * (6.0 * (r * s) * part.H + kick)
    H1 = r * r / D * weighted + twist
    return CellPart(W1, H1, r), CellPart(part.W - W1, (weighted - r * H1) / s, s)


def _walk(noise: TensorNoise, node: Node, part: CellPart, target: tuple[int, float], is_suffix: bool) -> CellPart:
    """The interval from a time in a node to the end of the node (or from its beginning to the time)."""
    leaf, r = target
    total: CellPart | None = None
    join: Callable[[CellPart], CellPart] = (
        (lambda some: _append(some, total)) if is_suffix else (lambda some: _append(total, some))
    )
    while True:
        edge = node.begin if is_suffix else node.begin + int(part.length)
        if leaf == edge and r == 0.0:
            return join(part)
        if node.level == noise.grid.levels:
            return join(_divide(noise, node, part, r)[is_suffix])
        left, right = _halve(noise, node, part)
        middle = right[0].begin
        is_right = leaf >= middle if is_suffix else leaf > middle or (leaf == middle and r > 0.0)
        if is_right != is_suffix:
            total = join((left if is_right else right)[1])
        node, part = right if is_right else left


def _evaluate_in_cell(
    noise: TensorNoise, cell: int, a: tuple[int, float], b: tuple[int, float]
) -> tuple[Tensor, Tensor]:
    """W and H between two times of one cell."""
    last = b[0] if b[1] > 0.0 else b[0] - 1  # the leaf that ends at the second time or contains it
    node, part = _root(cell), _draw_cell(noise, cell)
    while True:
        if (a, b) == ((node.begin, 0.0), (node.begin + int(part.length), 0.0)):
            return part.W, part.H
        if node.level == noise.grid.levels:
            return _evaluate_in_leaf(noise, node, part, a[1], b[1])
        left, right = _halve(noise, node, part)
        middle = right[0].begin
        if last >= middle > a[0]:
            one = _walk(noise, *left, a, is_suffix=True)
            total = _append(one, _walk(noise, *right, b, is_suffix=False))
            return total.W, total.H
        node, part = left if last < middle else right


def _evaluate_in_leaf(noise: TensorNoise, node: Node, part: CellPart, r0: float, r1: float) -> tuple[Tensor, Tensor]:
    """W and H between two fractions of one leaf, where r1 = 0 is its end."""
    until = part if r1 == 0.0 else _divide(noise, node, part, r1)[0]
    if r0 == 0.0:
        return until.W, until.H
    return bridge.remove(*until, *_divide(noise, node, part, r0)[0])
