"""From records to the numbers that runs over layers read: stage times, and the controls of weights that count there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepnet.engines.torch_engine.fixed import Choreography
from stepnet.fields import Depth


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
