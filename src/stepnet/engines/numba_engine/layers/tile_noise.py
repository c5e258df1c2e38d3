"""The Brownian paths of the samples on some tiles, as the kernels of `layer_kernels` read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers.layer_kernels import LayerNoise
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.noise import NoiseGrid


class TileNoise(NamedTuple):
    """A seed, the number of the path of each sample `(tiles, TILE)`, and the cells of the base grid (None: steps).

    Fewer steps than cells see the same paths: the increment of a step is the sum of those of its cells.
    """

    seed: int
    paths: np.ndarray
    cells: int | None = None


NO_NOISE = LayerNoise(np.uint64(0), 0.0, 0.0, 1, np.zeros((1, TILE), np.int64))


def group_noise(noise: TileNoise | None, steps: int, length: float, group: int) -> LayerNoise:
    """The noise of tiles that run side by side in groups; tiles that fill up the last group have path 0."""
    if noise is None:
        return NO_NOISE
    cells = steps if noise.cells is None else noise.cells
    grid = NoiseGrid((0.0, length), cells, levels=0)
    n = -(-len(noise.paths) // group)
    paths = np.zeros((n * group, TILE), np.int64)
    paths[: len(noise.paths)] = noise.paths
    scale, joined = float(np.sqrt(grid.cell_length)), cells // steps
    return LayerNoise(np.uint64(noise.seed), scale, grid.rounder, joined, paths.reshape(n, group * TILE))
