"""The Brownian paths of the samples on some tiles, as the kernels of `layer_kernels` read them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers.layer_kernels import LayerNoise
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.noise import NoiseGrid


class TileNoise(NamedTuple):
    """A seed, the number of the path of each sample `(tiles, TILE)`, and the cells of the base grid (None: steps).

    Fewer steps than cells use the same paths: the increment of a step is the sum of those of its cells.
    """

    seed: int
    paths: np.ndarray
    cells: int | None = None


NO_NOISE = LayerNoise(np.uint64(0), 0.0, 0.0, 1, np.zeros((1, TILE), np.int64), np.zeros((2, TILE), np.uint64))


def group_noise(noise: TileNoise | None, steps: int, length: float, group: int) -> LayerNoise:
    """The noise of tiles that run side by side in groups; tiles that fill up the last group have path 0."""
    if noise is None:
        return NO_NOISE
    cells = steps if noise.cells is None else noise.cells
    n = -(-len(noise.paths) // group)
    paths = np.zeros((n * group, TILE), np.int64)
    paths[: len(noise.paths)] = noise.paths
    scale, rounder = _find_scale(length, cells)
    words = np.empty((2, group * TILE), np.uint64)
    return LayerNoise(np.uint64(noise.seed), scale, rounder, cells // steps, paths.reshape(n, group * TILE), words)


@lru_cache(maxsize=64)
def _find_scale(length: float, cells: int) -> tuple[float, float]:
    """The root of the length of a cell, and the rounding constant of the grid."""
    grid = NoiseGrid((0.0, length), cells, levels=0)
    return float(np.sqrt(grid.cell_length)), grid.rounder
