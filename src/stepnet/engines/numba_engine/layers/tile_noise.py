"""The Brownian paths of the samples on some tiles, as the kernels of `layer_kernels` read them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers.layer_kernels import LayerNoise
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.paired_noise import COMPONENTS
from stepnet.noise import NoiseGrid
from stepnet.noise.counters import HALF_GROUP, locate_in_pair


class TileNoise(NamedTuple):
    """A seed, the number of the path of each sample `(tiles, TILE)`, and the cells of the base grid (None: steps).

    Fewer steps than cells use the same paths: the increment of a step is the sum of those of its cells.
    """

    seed: int
    paths: np.ndarray
    cells: int | None = None


NO_NOISE = LayerNoise(
    np.uint64(0), 0.0, 0.0, 1, np.zeros((1, TILE), np.int64), np.zeros((1, 0), np.int64), np.zeros((2, 0), np.uint64)
)


def group_noise(noise: TileNoise | None, steps: int, length: float, group: int) -> LayerNoise:
    """The noise of tiles that run side by side in groups; tiles that fill up the last group have any paths."""
    if noise is None:
        return NO_NOISE
    cells = steps if noise.cells is None else noise.cells
    n = -(-len(noise.paths) // group)
    paths = fill_paths(n * group * TILE).reshape(n * group, TILE)
    paths[: len(noise.paths)] = noise.paths
    paths = paths.reshape(n, group * TILE)
    scale, rounder = _find_scale(length, cells)
    pairs = _find_pairs(paths)
    words = np.empty((2, max(group * TILE, COMPONENTS * pairs.shape[1])), np.uint64)
    return LayerNoise(np.uint64(noise.seed), scale, rounder, cells // steps, paths, pairs, words)


def fill_paths(samples: int) -> np.ndarray:
    """Paths for columns without a sample: neighbours share a draw."""
    return np.arange(samples) % 2 * HALF_GROUP


def _find_pairs(paths: np.ndarray) -> np.ndarray:
    """The draws of the columns 2 j and 2 j + 1 of each group, if all of these share one; else (groups, 0)."""
    first = paths[:, ::2]
    if not np.array_equal(paths[:, 1::2], first + HALF_GROUP) or (first & HALF_GROUP).any():
        return np.zeros((len(paths), 0), np.int64)
    return np.ascontiguousarray(locate_in_pair(first)[0])


@lru_cache(maxsize=64)
def _find_scale(length: float, cells: int) -> tuple[float, float]:
    """The root of the length of a cell, and the rounding constant of the grid."""
    grid = NoiseGrid((0.0, length), cells, levels=0)
    return float(np.sqrt(grid.cell_length)), grid.rounder
