"""One run of every family of kernels, for tests of their common properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from problems import coupled_ode, coupled_partitioned, coupled_second_order, coupled_split2, coupled_split3

import stepnet as sn

T_END = 2.0


@dataclass(frozen=True)
class Family:
    """A scheme, a problem it runs, and how: `how` goes to `solve`."""

    label: str
    scheme: str
    problem: Callable[[], object]
    how: dict = field(default_factory=dict)

    @property
    def order(self) -> int:
        return sn.schemes.get(self.scheme).order

    def solve(self, problem=None, **how) -> sn.Solution:
        return sn.solve(self.problem() if problem is None else problem, self.scheme, **{**self.how, **how})


FIXED = [
    Family("explicit", "rk4", coupled_ode, {"steps": 40}),
    Family("first same as last", "dopri5", coupled_ode, {"steps": 40}),
    Family("low storage", "carpenter_kennedy54", coupled_ode, {"steps": 40}),
    Family("stabilised", "rkl2", coupled_ode, {"steps": 40}),
    Family("partitioned", "ruth3", coupled_partitioned, {"steps": 40}),
    Family("partitioned, slope used twice", "verlet", coupled_partitioned, {"steps": 40}),
    Family("second order", "yoshida4", coupled_second_order, {"steps": 40}),
    Family("split in two", "strang", coupled_split2, {"steps": 40}),
    Family("split in three", "yoshida4", coupled_split3, {"steps": 40}),
    Family("multistep", "ab4", coupled_ode, {"steps": 40}),
    Family("multistep of second order", "leapfrog_two_step", coupled_second_order, {"steps": 40}),
]
ADAPTIVE = [
    Family("adaptive, first same as last", "dopri5", coupled_ode),
    Family("adaptive", "fehlberg45", coupled_ode, {"rtol": 1e-8}),
    Family("adaptive, two estimates", "dop853", coupled_ode, {"rtol": 1e-9}),
    Family("adaptive, joined parts", "bosh3", coupled_partitioned),
]

every_family = pytest.mark.parametrize("family", FIXED + ADAPTIVE, ids=lambda family: family.label)
every_fixed_family = pytest.mark.parametrize("family", FIXED, ids=lambda family: family.label)
every_adaptive_family = pytest.mark.parametrize("family", ADAPTIVE, ids=lambda family: family.label)


def truth(problem, times) -> np.ndarray:
    """Flat states at increasing (or decreasing) times to rounding, by steps that end at those times: no `save_at`."""
    states, y = [], problem
    for start, end in zip((problem.t_span[0], *times[:-1]), times, strict=True):
        if start != end:
            steps = 1 + int(abs(end - start) / 0.01)  # an error of order 0.01^8, far below rounding
            piece = sn.solve(with_span(y, (start, end)), "dop853", steps=steps, save_every=0)
            y = with_state(y, piece.y[-1])
        states.append(y.initial)
    return np.array(states)


def with_span(problem, t_span):
    return replace(problem, t_span=t_span)


def with_state(problem, y):
    """The problem begun from the flat state `y`."""
    match problem:
        case sn.Partitioned():
            q, p = np.split(np.ravel(y), 2)
            return replace(problem, q0=q.reshape(problem.q0.shape), p0=p.reshape(problem.p0.shape))
        case sn.SecondOrder():
            q, v = np.split(np.ravel(y), 2)
            return replace(problem, q0=q.reshape(problem.q0.shape), v0=v.reshape(problem.v0.shape))
    return replace(problem, y0=np.reshape(y, problem.y0.shape))
