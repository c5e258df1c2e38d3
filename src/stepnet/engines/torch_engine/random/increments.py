"""Noise of many paths as tensors, (paths, components): cells, their refinements, and discrete variables.

Path numbers are an int64 tensor, whose device is that of the results.  Cells, nodes and steps are Python integers, or
int64 tensors (k,) of several of them, and results are (k, paths, components) then.  A seed is a number or a scalar
tensor that is not read.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from stepnet.engines.torch_engine.random.normals import Words, convert_to_normals, draw_words
from stepnet.noise import discrete
from stepnet.noise.counters import CELL_AREA, CELL_INCREMENT, GROUP, HALF_GROUP, NODE, THREE_POINT, TWO_POINT
from stepnet.noise.grid import NoiseGrid

Seed = int | Tensor
Number = int | Tensor


def _pack_counter(
    stream: int, path: Tensor, dimension: int, cell: Number, node: Number = 0
) -> tuple[Number, Number, Tensor, Tensor]:
    components = torch.arange(dimension, device=path.device)
    path = path[:, None]
    return _spread(node), _spread(cell), path & 0xFFFFFFFF, (path >> 32) | (components << 8) | (stream << 24)


def _spread(number: Number) -> Number:
    """Several numbers as the first of three axes."""
    return number.reshape(-1, 1, 1) if isinstance(number, Tensor) else number


def _draw(stream: int, seed: Seed, path: Tensor, dimension: int, cell: Number, node: Number = 0) -> Words:
    return draw_words(_pack_counter(stream, path, dimension, cell, node), seed, path.device)


def _draw_shared_normals(stream: int, seed: Seed, paths: Tensor, dimension: int, cell: Number) -> Tensor:
    """Normal numbers of a cell; two paths share a draw."""
    pair = (paths // GROUP) * HALF_GROUP + paths % HALF_GROUP
    first, second = convert_to_normals(_draw(stream, seed, pair, dimension, cell))
    return torch.where((paths % GROUP < HALF_GROUP)[:, None], first, second)


def quantise(x: Tensor, grid: NoiseGrid) -> Tensor:
    """The nearest multiple of the quantum; compilers might simplify the addition of a large number."""
    return torch.round(x * (1.0 / grid.quantum)) * grid.quantum


def draw_increments(grid: NoiseGrid, seed: Seed, paths: Tensor, dimension: int, cell: Number) -> Tensor:
    """W of a cell."""
    return quantise(sqrt(grid.cell_length) * _draw_shared_normals(CELL_INCREMENT, seed, paths, dimension, cell), grid)


def draw_areas(grid: NoiseGrid, seed: Seed, paths: Tensor, dimension: int, cell: Number) -> Tensor:
    """H of a cell."""
    return sqrt(grid.cell_length / 12.0) * _draw_shared_normals(CELL_AREA, seed, paths, dimension, cell)


def draw_node(seed: Seed, paths: Tensor, dimension: int, cell: Number, node: Number) -> tuple[Tensor, Tensor]:
    """Two normal numbers for a halving inside a cell."""
    return convert_to_normals(_draw(NODE, seed, paths, dimension, cell, node))


def draw_two_point(seed: Seed, paths: Tensor, dimension: int, step: Number) -> Tensor:
    """-1 or 1."""
    return torch.where(_draw_single_words(TWO_POINT, seed, paths, dimension, step) < 2**31, -1.0, 1.0).double()


def draw_three_point(seed: Seed, paths: Tensor, dimension: int, step: Number) -> Tensor:
    """-sqrt(3), 0 or sqrt(3)."""
    word = _draw_single_words(THREE_POINT, seed, paths, dimension, step)
    sign = (word >= 2**32 - discrete.SIXTH).double() - (word < discrete.SIXTH).double()
    return discrete.ROOT_3 * sign


def _draw_single_words(stream: int, seed: Seed, paths: Tensor, dimension: int, step: Number) -> Tensor:
    """One word per path and component; four paths share a draw."""
    words = _draw(stream, seed, paths // discrete.PATHS_OF_A_DRAW, dimension, step)
    place = (paths % discrete.PATHS_OF_A_DRAW)[:, None]
    lower, upper = torch.where(place == 0, words[0], words[1]), torch.where(place == 2, words[2], words[3])
    return torch.where(place < 2, lower, upper)
