"""From records to the numbers that runs over layers read: stage times, and which control values of the weights count."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.torch_engine.programs import nodes_of
from stepnet.fields import Depth
from stepnet.schemes.programs import Motion, Program


class Moment(NamedTuple):
    """A stage time, the first control of the weights there, and the weights of that one and the following ones."""

    t: float
    first: int
    basis: tuple[float, ...]


Moments = dict[float, Moment]


class Timetable(NamedTuple):
    """The length of a step, and by node c the moments t + c h of the opening, of every step, and of every step back."""

    h: float
    opening: Moments
    steps: tuple[Moments, ...]
    back: tuple[Moments, ...]


def moments_at(depth: Depth, times, length: float) -> list[Moment]:
    """The moments of these times."""
    first, basis = depth.basis(np.asarray(times) / length)
    found = zip(times, first.tolist(), basis.tolist(), strict=True)
    return [Moment(float(t), j, tuple(weights)) for t, j, weights in found]


def timetable(motion: Motion, steps: int, length: float, depth: Depth) -> Timetable:
    """Of even steps from 0 to `length`."""
    h = length / steps

    def of(program: Program, first: int, last: int) -> tuple[Moments, ...]:
        nodes = nodes_of(program)
        times = [(step + c) * h for step in range(first, last) for c in nodes]
        found = iter(moments_at(depth, times, length))
        return tuple({c: next(found) for c in nodes} for _ in range(first, last))

    back = of(motion.back, 0, steps) if motion.back else ()
    return Timetable(h, of(motion.opening, 0, 1)[0], of(motion.step, 0, steps), back)
