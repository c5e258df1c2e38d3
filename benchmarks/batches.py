"""Rows of a batch on tensors with per-sample step sizes: Lorenz, eager mode, no gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "batch"
SAMPLES, T_END, TOLERANCE, EXACT = 1000, 10.0, 1e-6, 1e-9
SECONDS = 6.0
OURS, TORCHODE = "stepnet dopri5, per sample", "torchode Dopri5, per sample"


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Both at equal tolerances; the error is the median over samples of the largest of the end state (chaos)."""
    import torch

    torch.set_num_threads(1)
    prepared, failed = {}, {}
    for who, prepare in ((OURS, stepnet), (TORCHODE, torchode)):
        try:
            prepared[who] = prepare()
        except ImportError as exception:
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who in (OURS, TORCHODE):
        measured, package = found[who], who.split()[0]
        if isinstance(measured, Exception):
            yield Row(WORKLOAD, who, package, TOLERANCE, note=first_line(measured))
            continue
        y, accepted, rejected, *_ = measured.answer
        error = float(np.median(np.abs(y - exact()).max(axis=1)))
        yield Row(
            WORKLOAD, who, package, TOLERANCE, time=measured.time, error=error, accepted=accepted, rejected=rejected,
            calls=measured.calls,
        )  # fmt: skip


def start():
    """Samples around the attractor."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return 5 * torch.randn(SAMPLES, 3, dtype=torch.float64, generator=generator) + torch.tensor([0.0, 0.0, 25.0])


def lorenz(t, y):
    import torch

    x, v, z = y.unbind(-1)
    return torch.stack((10.0 * (v - x), x * (28.0 - z) - v, x * v - 8.0 / 3.0 * z), -1)


@cache
def exact() -> np.ndarray:
    import torch

    import stepnet.torch as snt

    times = torch.tensor([0.0, T_END], dtype=torch.float64)
    return snt.solve(lorenz, start(), times, rtol=EXACT, atol=EXACT, method="dop853").y_end.numpy()


def stepnet() -> Prepared:
    import torch

    import stepnet.torch as snt

    y0, times = start(), torch.tensor([0.0, T_END], dtype=torch.float64)

    def call():
        with torch.no_grad():
            return snt.solve(lorenz, y0, times, rtol=TOLERANCE, atol=TOLERANCE)

    return Prepared(call, lambda s: Answer(s.y_end.numpy(), int(s.accepted.sum()), int(s.rejected.sum())))


def torchode() -> Prepared:
    import torch
    import torchode as to

    term = to.ODETerm(lorenz)
    controller = to.IntegralController(atol=TOLERANCE, rtol=TOLERANCE, term=term)
    solver = to.AutoDiffAdjoint(to.Dopri5(term=term), controller)
    y0, t0 = start(), torch.zeros(SAMPLES, dtype=torch.float64)
    problem = to.InitialValueProblem(y0=y0, t_start=t0, t_end=t0 + T_END)

    def call():
        with torch.no_grad():
            return solver.solve(problem)

    def read(solution):
        tried, accepted = int(solution.stats["n_steps"].sum()), int(solution.stats["n_accepted"].sum())
        return Answer(solution.ys[:, -1].numpy(), accepted, tried - accepted)

    return Prepared(call, read)
