"""Tables for runs over layers, built from records: stage times, and the control values of weights used there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.fixed_steps import CompiledScheme
from stepnet.engines.torch_engine.integrators.step_program import SlopeNode
from stepnet.fields import Depth, HeldWeights
from stepnet.fields.depth import NEAR


class StageControls(NamedTuple):
    """A stage time, the index of the first control value there, and the coefficients from that one on."""

    t: float
    first: int
    basis: tuple[float, ...]


class StageTable(NamedTuple):
    """The length of every step, and its stage controls by node."""

    h: tuple[float, ...]
    moments: tuple[dict[SlopeNode, StageControls], ...]


def build_stage_table(moves: CompiledScheme, steps: int, length: float, depth: Depth | HeldWeights) -> StageTable:
    """The table of equal steps from 0 to `length`; the starting procedure begins at the first one."""
    h = length / steps
    nodes = tuple(dict.fromkeys((*moves.step.nodes, *(moves.back.nodes if moves.back else ()))))
    moments = iter(_list_moments(depth, [(step, node) for step in range(steps) for node in nodes], h, length))
    found = [{node: next(moments) for node in nodes} for _ in range(steps)]
    first = moves.opening.nodes
    found[0] |= dict(zip(first, _list_moments(depth, [(0, node) for node in first], h, length), strict=True))
    return StageTable((h,) * steps, tuple(found))


def _list_moments(
    depth: Depth | HeldWeights, places: Sequence[tuple[int, SlopeNode]], h: float, length: float
) -> list[StageControls]:
    """The stage controls of nodes in steps."""
    times = np.array([(step + node.c) * h for step, node in places])
    middles = np.array([(step + node.step + 0.5) * h for step, node in places])
    first, basis = depth.stage_basis(times / length, middles / length)
    found = zip(times.tolist(), first.tolist(), basis.tolist(), strict=True)
    return [StageControls(t, j, tuple(weights)) for t, j, weights in found]


def evaluate_basis(depth: Depth | HeldWeights, s: Tensor) -> tuple[Tensor, Tensor]:
    """The control values used at 0 <= s <= 1, a scalar tensor, and their coefficients, differentiable in s.

    `Depth.basis` for times without a value; rounding of s must not move it over a knot.
    """
    p, n, s = depth.degree, depth.intervals, s.clamp(0.0, 1.0)
    near = max(NEAR, 4 * n * torch.finfo(s.dtype).eps)
    first = (s.detach() * n + near).floor().long().clamp(max=n - 1)
    knots = torch.arange(-p, n + p + 1, dtype=s.dtype, device=s.device).clamp(0, n) / n
    near_by = knots[first + torch.arange(2 * p + 1, device=s.device)]  # a single index would be read as a number
    weights = [torch.ones_like(s)]
    for d in range(1, p + 1):
        grown = [torch.zeros_like(s)] * (d + 1)
        for j in range(d):
            right, left = near_by[p + j + 1], near_by[p + j + 1 - d]
            share = weights[j] / (right - left)
            grown[j] = grown[j] + (right - s) * share
            grown[j + 1] = grown[j + 1] + (s - left) * share
        weights = grown
    return first + torch.arange(p + 1, device=s.device), torch.stack(weights)
