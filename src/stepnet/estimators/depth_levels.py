"""Means over paths by levels of depth: coarse levels are the same net with fewer, longer steps.

E[P_L] = E[P_0] + sum_l E[P_l - P_(l-1)], where the paths of a difference use the same Brownian motion (M. B. Giles,
2008, Oper. Res. 56:607).  The finest level is the net itself, so that only the number of paths limits the accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stepnet.estimators.path_means import MOST_PATHS, Evaluate, PathMeans, average_over_paths, average_samples
from stepnet.fields import HeldWeights
from stepnet.nets import Block, Net, SampleNoise

PILOT = 32  # paths of each level for the first estimate of the variances of a sample
PATHS_OF_A_LEVEL = 2**40


class DepthLevel(NamedTuple):
    """What is averaged on a level, and the cost of one path relative to the finest net."""

    evaluate: Evaluate
    cost: float


def coarsen(net: Net, factor: int) -> Net:
    """The net with `factor` times fewer steps; weights that are held over a step become their means over the steps."""
    blocks = []
    for block in net.design.blocks:
        if block.steps % factor:
            raise ValueError(f"`levels` must divide the {block.steps} steps of a block by two, found {block.steps}")
        depth = block.depth
        if isinstance(depth, HeldWeights) and depth.controls == block.steps:
            depth = HeldWeights(depth.controls // factor)
        blocks.append(Block(block.field, block.scheme, block.steps // factor, block.length, depth))
    design = replace(net.design, blocks=tuple(blocks))
    found = Net(design, dtype=net.dtype, workers=net.workers, memory=net.memory, layout=net.layout)
    for name, weights in found.weights.items():
        before = net.weights[name]
        if before.shape != weights.shape:
            before = before.reshape(len(weights), factor, *before.shape[1:]).mean(axis=1)
        weights[...] = before
    return found


def build_levels(net: Net, number: int, read: Callable[[np.ndarray], np.ndarray]) -> list[DepthLevel]:
    """The levels of a net, the coarsest first; `read` maps its outputs to what is averaged."""
    steps = {block.steps for block in net.design.blocks}
    if len(steps) != 1:
        raise ValueError(f"`levels` needs blocks with equally many steps, found {sorted(steps)}")
    (finest,) = steps
    if finest % 2 ** (number - 1):
        raise ValueError(f"`levels` = {number} needs steps that are a multiple of {2 ** (number - 1)}, found {finest}")
    nets = [coarsen(net, 2**k) for k in range(number - 1, 0, -1)] + [net]
    found = []
    for level, own in enumerate(nets):
        below, cells = (nets[level - 1] if level else None), finest >> (number - 1 - level)
        cost = cells / finest * (1.5 if level else 1.0)
        found.append(DepthLevel(_build_difference(own, below, read, cells, level * PATHS_OF_A_LEVEL), cost))
    return found


def _build_difference(
    net: Net, below: Net | None, read: Callable[[np.ndarray], np.ndarray], cells: int, offset: int
) -> Evaluate:
    def evaluate(x: np.ndarray, noise: SampleNoise) -> np.ndarray:
        own = replace(noise, path=np.asarray(noise.path) + offset, cells=cells)
        found = read(net(x, noise=own))
        return found if below is None else found - read(below(x, noise=own))

    return evaluate


def average_over_levels(
    levels: list[DepthLevel], X: np.ndarray, noise: SampleNoise, paths: int, error: float | None
) -> PathMeans:
    """The sum of the means of all levels, with the standard error that `paths` paths of the net have, or `error`.

    Variances are those of a pilot run.  On each level a sample gets 1, 2, 4, ... times as many paths as in the pilot
    run, chosen by its own variances alone.
    """
    pilots = [average_over_paths(level.evaluate, X, noise, PILOT) for level in levels]
    variances = np.array([pilot.standard_error**2 * PILOT for pilot in pilots])  # (levels, n, columns)
    costs = np.array([level.cost for level in levels])[:, None]
    if error is None:  # the variance on the coarsest level is about that on the finest
        limit = np.maximum(variances[0], variances.sum(axis=0) / len(levels)) / paths
    else:
        limit = np.full(X.shape[:1] + variances.shape[2:], error**2)
    worst = np.argmax(variances.sum(axis=0) / np.where(limit > 0, limit, np.inf), axis=1)
    rows = np.arange(len(X))
    V, target = variances[:, rows, worst], limit[rows, worst]
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.sqrt(V / costs) * np.sum(np.sqrt(V * costs), axis=0) / target
    doublings = np.ceil(np.log2(np.maximum(np.nan_to_num(wanted, nan=0.0, posinf=0.0) / PILOT, 1.0))).astype(int)
    counts = np.minimum(PILOT << doublings, MOST_PATHS)
    found = [
        average_samples(level.evaluate, X, noise, count, pilot)
        for level, count, pilot in zip(levels, counts, pilots, strict=True)
    ]
    return PathMeans(
        np.sum([each.mean for each in found], axis=0),
        np.sqrt(np.sum([each.standard_error**2 for each in found], axis=0)),
        counts.min(axis=0),
        (counts * costs).sum(axis=0),
    )
