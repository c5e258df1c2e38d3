"""From records to the numbers that runs over layers read: stage times, and the controls of weights that count there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.engines.torch_engine.fixed import Choreography
from stepnet.fields import Depth
from stepnet.fields.depth import NEAR


class Moment(NamedTuple):
    """A stage time, the first control of the weights there, and the weights of that one and the following ones."""

    t: float
    first: int
    basis: tuple[float, ...]


def moments_at(depth: Depth, times: Sequence[float], length: float) -> list[Moment]:
    """The moments of these times."""
    first, basis = depth.basis(np.asarray(times) / length)
    found = zip(times, first.tolist(), basis.tolist(), strict=True)
    return [Moment(float(t), j, tuple(weights)) for t, j, weights in found]


class Timetable(NamedTuple):
    """For every step its length, and the moments t + c h by node c."""

    h: tuple[float, ...]
    moments: tuple[dict[float, Moment], ...]


def timetable(moves: Choreography, steps: int, length: float, depth: Depth) -> Timetable:
    """Of even steps from 0 to `length`; the opening is at the first one."""
    h, first = length / steps, moves.opening.nodes
    nodes = tuple(dict.fromkeys((*moves.step.nodes, *(moves.back.nodes if moves.back else ()))))
    moments = iter(moments_at(depth, [(step + c) * h for step in range(steps) for c in nodes], length))
    found = [{c: next(moments) for c in nodes} for _ in range(steps)]
    found[0] |= dict(zip(first, moments_at(depth, [c * h for c in first], length), strict=True))
    return Timetable((h,) * steps, tuple(found))


def basis_at(depth: Depth, s: Tensor) -> tuple[Tensor, Tensor]:
    """The controls that count at 0 <= s <= 1, a tensor without dimensions, and their weights, differentiable in s.

    `Depth.basis` for times that have no value yet; rounding in s may not move it over a knot.
    """
    p, n, s = depth.degree, depth.intervals, s.clamp(0.0, 1.0)
    near = max(NEAR, 4 * n * torch.finfo(s.dtype).eps)
    first = (s.detach() * n + near).floor().long().clamp(max=n - 1)
    knots = torch.arange(-p, n + p + 1, dtype=s.dtype, device=s.device).clamp(0, n) / n
    near_by = knots[first + torch.arange(2 * p + 1, device=s.device)]  # a single place would be read as a number
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
