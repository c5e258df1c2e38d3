"""Brownian increments and space-time Levy areas of any intervals, as a kernel bit-identical to the NumPy reference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact, exact_function
from stepnet.engines.numba_engine.codegen.intrinsics.normals import ZERO, U, convert_to_normals, draw_words
from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument
from stepnet.engines.numba_engine.random.increments import divide, halve, join, pack_last_word, quantise, remove
from stepnet.noise import evaluation
from stepnet.noise.counters import CELL_AREA, CELL_INCREMENT, GROUP, HALF_GROUP, NODE
from stepnet.noise.grid import Positions
from stepnet.noise.reference import BrownianPaths

BLOCK = 1024  # intervals per kernel call


class PathNumbers(NamedTuple):
    """What the draws of all intervals have in common."""

    seed: np.uint64
    length: float
    rounder: float
    levels: int


class Stream(NamedTuple):
    """One component of one path; its draws in a cell are a function of the node."""

    path: np.uint64
    component: int


@exact
def draw_node(noise, stream, cell, node):
    """Two normal numbers of a node."""
    last = pack_last_word(NODE, stream.component, stream.path)
    a, b = draw_words(U(node), U(cell), stream.path, last, noise.seed)
    return convert_to_normals(a, b)


@exact
def draw_cell_normal(noise, stream, kind, cell):
    """The normal number of a cell, from a draw shared by two paths."""
    path = np.int64(stream.path)
    pair = U(path // GROUP * HALF_GROUP + path % HALF_GROUP)
    a, b = draw_words(ZERO, U(cell), pair, pack_last_word(kind, stream.component, pair), noise.seed)
    x, y = convert_to_normals(a, b)
    return x if path % GROUP < HALF_GROUP else y


@exact_function
def draw_cell(noise, stream, cell):
    """W and H of a whole cell."""
    W = quantise(np.sqrt(noise.length) * draw_cell_normal(noise, stream, CELL_INCREMENT, cell), noise.rounder)
    return W, np.sqrt(noise.length / 12.0) * draw_cell_normal(noise, stream, CELL_AREA, cell)


@exact_function
def halve_node(noise, stream, cell, node, level, W, H):
    """W and H of both halves."""
    h = noise.length * 2.0**-level
    Z, N = draw_node(noise, stream, cell, node)
    return halve(W, H, np.sqrt(h / 16.0) * Z, np.sqrt(h / 48.0) * N, noise.rounder)


@exact_function
def divide_leaf(noise, stream, cell, node, r, W, H):
    """W and H before and after the fraction r of a leaf."""
    h = noise.length * 2.0**-noise.levels
    Z, N = draw_node(noise, stream, cell, node)
    rs = r * (1.0 - r)
    D = 1.0 - 3.0 * rs
    kick = np.sqrt(h * (rs * D)) * Z
    twist = np.sqrt(h * (rs * ((1.0 - r) * (1.0 - r))) / (12.0 * D)) * N
    return divide(W, H, r, kick, twist, noise.rounder)


@exact
def append(W1, H1, length1, W2, H2, length2):
    """Join two adjacent intervals, either of which may be empty."""
    if length1 == 0.0:
        return W2, H2, length2
    if length2 == 0.0:
        return W1, H1, length1
    W, H = join(W1, H1, length1, W2, H2, length2)
    return W, H, length1 + length2


@exact_function
def walk_to_end(noise, stream, cell, node, level, leaf, r, W, H):
    """W and H from a time in a node to its end; `leaf` counts from the beginning of the node."""
    total, area, length = 0.0, 0.0, 0.0
    while level <= noise.levels:
        size = 1 << (noise.levels - level)
        if leaf == 0 and r == 0.0:
            return append(W, H, float(size), total, area, length)
        if level == noise.levels:
            W1, H1, W2, H2 = divide_leaf(noise, stream, cell, node, r, W, H)
            return append(W2, H2, 1.0 - r, total, area, length)
        W1, H1, W2, H2 = halve_node(noise, stream, cell, node, level, W, H)
        half = size >> 1
        if leaf < half:
            total, area, length = append(W2, H2, float(half), total, area, length)
            W, H, node = W1, H1, 2 * node
        else:
            W, H, node, leaf = W2, H2, 2 * node + 1, leaf - half
        level += 1
    return total, area, length


@exact_function
def walk_from_start(noise, stream, cell, node, level, leaf, r, W, H):
    """W and H from the beginning of a node to a time in it; `leaf` counts from the beginning of the node."""
    total, area, length = 0.0, 0.0, 0.0
    while level <= noise.levels:
        size = 1 << (noise.levels - level)
        if leaf == size and r == 0.0:
            return append(total, area, length, W, H, float(size))
        if level == noise.levels:
            W1, H1, W2, H2 = divide_leaf(noise, stream, cell, node, r, W, H)
            return append(total, area, length, W1, H1, r)
        W1, H1, W2, H2 = halve_node(noise, stream, cell, node, level, W, H)
        half = size >> 1
        if leaf > half or (leaf == half and r > 0.0):
            total, area, length = append(total, area, length, W1, H1, float(half))
            W, H, node, leaf = W2, H2, 2 * node + 1, leaf - half
        else:
            W, H, node = W1, H1, 2 * node
        level += 1
    return total, area, length


@exact_function
def evaluate_in_leaf(noise, stream, cell, node, r0, r1, is_whole, W, H):
    """W and H between two fractions of one leaf; the second is its end if `is_whole`."""
    length = 1.0
    W1, H1 = W, H
    if not is_whole:
        W1, H1, _, _ = divide_leaf(noise, stream, cell, node, r1, W, H)
        length = r1
    if r0 == 0.0:
        return W1, H1
    W0, H0, _, _ = divide_leaf(noise, stream, cell, node, r0, W, H)
    return remove(W1, H1, length, W0, H0, r0)


@exact_function
def evaluate_in_cell(noise, stream, cell, leaf0, r0, leaf1, r1):
    """W and H between two times of one cell; the second may be its end, which is the leaf 2^levels."""
    last = leaf1 if r1 > 0.0 else leaf1 - 1  # the leaf that ends at the second time or contains it
    W, H = draw_cell(noise, stream, cell)
    node, level, begin = 1, 0, 0
    while True:
        size = 1 << (noise.levels - level)
        if begin == leaf0 and begin + size == leaf1 and r0 == 0.0 and r1 == 0.0:
            return W, H
        if level == noise.levels:
            return evaluate_in_leaf(noise, stream, cell, node, r0, r1, r1 == 0.0, W, H)
        W1, H1, W2, H2 = halve_node(noise, stream, cell, node, level, W, H)
        middle = begin + (size >> 1)
        level += 1
        if last < middle:
            W, H, node = W1, H1, 2 * node
        elif leaf0 >= middle:
            W, H, node, begin = W2, H2, 2 * node + 1, middle
        else:
            a, A, p = walk_to_end(noise, stream, cell, 2 * node, level, leaf0 - begin, r0, W1, H1)
            b, B, q = walk_from_start(noise, stream, cell, 2 * node + 1, level, leaf1 - middle, r1, W2, H2)
            W, H, _ = append(a, A, p, b, B, q)
            return W, H


@exact_function
def evaluate_interval(noise, stream, cell0, leaf0, r0, cell1, leaf1, r1):
    """W and H between two times, the second later."""
    leaves = 1 << noise.levels
    if leaf1 == 0 and r1 == 0.0:
        cell1, leaf1 = cell1 - 1, leaves
    if cell0 == cell1:
        return evaluate_in_cell(noise, stream, cell0, leaf0, r0, leaf1, r1)
    W, H = draw_cell(noise, stream, cell0)
    total, area, length = walk_to_end(noise, stream, cell0, 1, 0, leaf0, r0, W, H)
    for cell in range(cell0 + 1, cell1):
        W, H = draw_cell(noise, stream, cell)
        total, area, length = append(total, area, length, W, H, float(leaves))
    W, H = draw_cell(noise, stream, cell1)
    a, A, p = walk_from_start(noise, stream, cell1, 1, 0, leaf1, r1, W, H)
    W, H, _ = append(total, area, length, a, A, p)
    return W, H


@Kernel
def evaluate_intervals(noise, paths, cells, leaves, fractions, W, H):
    """W and H, (intervals, paths, components), of intervals between the columns of cells, leaves and fractions."""
    for k in range(W.shape[0]):
        cell0, leaf0, r0 = cells[k, 0], leaves[k, 0], fractions[k, 0]
        cell1, leaf1, r1 = cells[k, 1], leaves[k, 1], fractions[k, 1]
        is_empty = cell1 < cell0 or (cell1 == cell0 and (leaf1 < leaf0 or (leaf1 == leaf0 and r1 <= r0)))
        for i in range(W.shape[1]):
            for j in range(W.shape[2]):
                if is_empty:
                    W[k, i, j], H[k, i, j] = 0.0, 0.0
                    continue
                stream = Stream(U(paths[i]), j)
                W[k, i, j], H[k, i, j] = evaluate_interval(noise, stream, cell0, leaf0, r0, cell1, leaf1, r1)


def evaluate(noise: BrownianPaths, start: Positions, end: Positions) -> tuple[np.ndarray, np.ndarray]:
    """W and H over intervals, bit-identical to `stepnet.noise.reference.evaluate`."""
    grid = noise.grid
    numbers = PathNumbers(np.uint64(noise.seed), grid.cell_length, grid.rounder, grid.levels)
    cells, leaves, fractions = (np.array(pair).T.copy() for pair in zip(start, end, strict=True))
    paths = as_argument(noise.paths, np.int64)
    W = np.empty((len(cells), len(paths), noise.dimension))
    H = np.empty_like(W)
    for first in range(0, len(W), BLOCK):
        part = slice(first, first + BLOCK)
        evaluate_intervals(numbers, paths, cells[part], leaves[part], fractions[part], W[part], H[part])
    return W, H


evaluation.register(evaluate)
