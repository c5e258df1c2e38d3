"""Approximate Levy areas of general noise as tensors, (paths, components, components).

The twin of `stepnet.noise.levy_area`, which has the formulas and references.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.engines.torch_engine.random.normals import convert_to_normals, draw_words
from stepnet.engines.torch_engine.random.paths import Position, TensorNoise
from stepnet.noise.counters import GROUP, HALF_GROUP, LEVY_AREA
from stepnet.noise.levy_area import MEAN_VARIANCE


def approximate_levy_area(
    noise: TensorNoise, start: Position, end: Position, h: float, W: Tensor, H: Tensor, is_conditional: bool = True
) -> Tensor:
    """A_ij over the interval of length h between two positions, given its increments and space-time areas."""
    m = noise.dimension
    Z = _draw_for_areas(noise, start, end).reshape(-1, m, m)
    H2 = H * H
    of_pairs = H2[:, :, None] + H2[:, None, :]
    deviation = torch.sqrt(h * h / 20.0 + h / 5.0 * of_pairs) if is_conditional else MEAN_VARIANCE**0.5 * h
    upper = torch.triu(deviation * Z, 1)
    known = H[:, :, None] * W[:, None, :] - W[:, :, None] * H[:, None, :]
    return known + (upper - upper.mT)


def _draw_for_areas(noise: TensorNoise, start: Position, end: Position) -> Tensor:
    """Normals with the ends of the interval as their key, (paths, pairs of components)."""
    device, paths = noise.paths.device, noise.paths[:, None]
    low, high = draw_words((start.leaf, start.cell, end.leaf, end.cell), noise.seed, device)[:2]
    pair = (paths // GROUP) * HALF_GROUP + paths % HALF_GROUP
    components = torch.arange(noise.dimension**2, device=device)
    counter = 0, 0, pair & 0xFFFFFFFF, (pair >> 32) | (components << 8) | (LEVY_AREA << 24)
    first, second = convert_to_normals(draw_words(counter, (low, high), device))
    return torch.where(paths % GROUP < HALF_GROUP, first, second)
