"""Rows of Monte Carlo: `feynman_kac` at 10^4 start points, 10^3 paths and 100 steps in two dimensions.

All contenders use one core; peers work in blocks that fit into the cache, with new normal numbers in every step, as is
usual, or with the same paths from every start point, as we do.  They run a tenth of the points, and their times count
ten times.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import noisy_nets
from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "feynman-kac"
POINTS, PATHS, STEPS = 10_000, 1_000, 100
PART = 10  # of the points for peers: one in so many
BLOCK = 16  # start points at once: 16 x 1000 paths x 2 numbers fit into the second cache
SECONDS = 4.0
OURS, NUMPY, TORCH = "stepnet feynman_kac", "numpy Euler-Maruyama", "torch Euler-Maruyama"
SHARED = ", shared paths"
A, B, C, D = 0.3, 0.2, 0.3, 0.1  # damping and noise of the oscillator


def drift(t, y):
    return [y[1], -y[0] - A * y[1]]


def diffusion(t, y):
    return [B + 0.0 * y[0], C + D * y[1]]


def terminal(y):
    return np.maximum(y[0], 0.0)


def start_points() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(POINTS, 2))


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Seconds for all points, paths and steps."""
    prepared, failed = {}, {}
    for who, prepare in CONTENDERS.items():
        try:
            prepared[who] = prepare()
        except ImportError as exception:
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who in CONTENDERS:
        measured, package = found[who], who.split()[0]
        if isinstance(measured, Exception):
            yield Row(WORKLOAD, who, package, note=first_line(measured))
        else:
            factor = POINTS // len(measured.answer.y)
            yield Row(WORKLOAD, who, package, time=factor * measured.time, calls=measured.calls)
    yield from noisy_nets.rows()


def prepare_stepnet() -> Prepared:
    import stepnet as sn

    sde, x = sn.SDE(drift, diffusion, [0.0, 0.0], (0.0, 1.0)), start_points()
    sn.montecarlo.feynman_kac(sde, terminal, x[:32], steps=STEPS, paths=32)
    call = lambda: sn.montecarlo.feynman_kac(sde, terminal, x, steps=STEPS, paths=PATHS, workers=1)
    return Prepared(call, lambda found: Answer(found.value))


def prepare_numpy(is_shared: bool = False) -> Prepared:
    x, h = start_points()[: POINTS // PART], 1.0 / STEPS

    def call():
        generator = np.random.default_rng(0)
        paths = generator.normal(scale=h**0.5, size=(STEPS, 2, PATHS)) if is_shared else None
        means = np.empty(len(x))
        for first in range(0, len(x), BLOCK):
            part = x[first : first + BLOCK]
            q, v = (np.repeat(part[:, i : i + 1], PATHS, axis=1) for i in range(2))
            for step in range(STEPS):
                dW = h**0.5 * generator.standard_normal((2, *q.shape)) if paths is None else paths[step]
                q_new = q + v * h + B * dW[0]
                v += (-q - A * v) * h + (C + D * v) * dW[1]
                q = q_new
            means[first : first + BLOCK] = np.maximum(q, 0.0).mean(axis=1)
        return means

    return Prepared(call, Answer)


def prepare_torch(is_shared: bool = False) -> Prepared:
    import torch

    torch.set_num_threads(1)
    x, h, real = torch.tensor(start_points()[: POINTS // PART]), 1.0 / STEPS, torch.float64

    def call():
        paths = h**0.5 * torch.randn(STEPS, 2, PATHS, dtype=real) if is_shared else None
        means = torch.empty(len(x), dtype=real)
        with torch.no_grad():
            for first in range(0, len(x), BLOCK):
                part = x[first : first + BLOCK]
                q, v = (part[:, i : i + 1].repeat(1, PATHS) for i in range(2))
                for step in range(STEPS):
                    dW = h**0.5 * torch.randn(2, *q.shape, dtype=real) if paths is None else paths[step]
                    q_new = q + v * h + B * dW[0]
                    v = v + (-q - A * v) * h + (C + D * v) * dW[1]
                    q = q_new
                means[first : first + BLOCK] = torch.clamp(q, min=0.0).mean(1)
        return means

    return Prepared(call, lambda found: Answer(found.numpy()))


CONTENDERS = {
    OURS: prepare_stepnet,
    NUMPY: prepare_numpy,
    TORCH: prepare_torch,
    NUMPY + SHARED: partial(prepare_numpy, is_shared=True),
    TORCH + SHARED: partial(prepare_torch, is_shared=True),
}
