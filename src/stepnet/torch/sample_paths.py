"""The Brownian paths of the samples of a batch of tensors: the same as those of `stepnet.nets`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine import SampleDraws
from stepnet.nets.design import Block
from stepnet.nets.sample_noise import SampleNoise, validate_noise

DEFAULT_NOISE = SampleNoise()


class BlockPaths(NamedTuple):
    """The seed of a block, the number of the path of each sample, and the noise from which they come."""

    seed: int
    paths: Tensor
    noise: SampleNoise


def has_noise(block: Block) -> bool:
    """Whether the steps of a block have noise."""
    diffusion = block.field.diffusion
    return block.scheme is not None and diffusion is not None and diffusion.scale > 0


def find_paths(x: Tensor, noise: SampleNoise | None) -> tuple[Tensor, SampleNoise]:
    """The paths of samples `(batch, features)`; default keys are hashes, which are computed on the host."""
    noise = validate_noise(noise) or DEFAULT_NOISE
    rows = x.detach() if noise.keys is None else x.detach()[:, :0]
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    return torch.from_numpy(noise.find_paths(rows.cpu().numpy())).to(x.device), noise


def draw_paths(block: Block, x: Tensor, noise: SampleNoise | BlockPaths | None) -> SampleDraws:
    """What the steps of a block draw for a batch; by default with the seed of the first stage of a net."""
    if not isinstance(noise, BlockPaths):
        paths, own = find_paths(x, noise)
        noise = BlockPaths(own.find_seed(0), paths, own)
    return SampleDraws(noise.seed, noise.paths, noise.noise.find_cells(block.steps))
