"""Rows of nets with noise: a training step beside torch, and probabilities by levels of depth beside plain paths.

The net has width 32 and 50 layers; a step sees 256 samples with 4 paths each, in single precision on one core.  The
times of probabilities are those for equal standard errors: each time is multiplied by its mean squared error over that
of the plain paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

STEP, PREDICT = "training with noise", "probabilities with noise"
OURS, TORCH = "stepnet Objective.gradient", "torch Euler-Maruyama layers"
PLAIN, LEVELLED = "stepnet plain paths", "stepnet levels of depth"
WIDTH, DEPTH, BATCH, PATHS, SIGMA, LENGTH = 32, 50, 256, 4, 0.2, 2.0
STEPS, LEVELS, ERROR, POINTS = 64, 5, 5e-3, 200
SECONDS = 3.0


def rows() -> Iterator[Row]:
    """Seconds of a step, and of the probabilities of a batch at equal error."""
    yield from _time(STEP, {OURS: prepare_step, TORCH: prepare_torch_step})
    yield from _time(PREDICT, {PLAIN: lambda: prepare_levels(1), LEVELLED: lambda: prepare_levels(LEVELS)})


def _time(workload: str, contenders: dict[str, Any]) -> Iterator[Row]:
    prepared, failed = {}, {}
    for who, prepare in contenders.items():
        try:
            prepared[who] = prepare()
        except ImportError as exception:
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who in contenders:
        measured, package = found[who], who.split()[0]
        if isinstance(measured, Exception):
            yield Row(workload, who, package, note=first_line(measured))
        else:
            factor = 1.0 if workload == STEP else measured.answer.y[0] / ERROR**2
            yield Row(workload, who, package, time=factor * measured.time, calls=measured.calls)


def samples() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)


def prepare_step() -> Prepared:
    from stepnet import nets, training

    net = nets.resnet(WIDTH, 10, WIDTH, DEPTH, length=LENGTH, diffusion=SIGMA, activation="relu", workers=1)
    net = net.astype(np.float32)
    labels = np.arange(BATCH) % 10
    objective = training.Objective(net, "cross_entropy", paths=PATHS, noise=nets.SampleNoise(1))
    data = training.Data(samples(), labels, keys=np.arange(BATCH))
    call = lambda: objective.gradient(net.theta, data)
    return Prepared(call, lambda found: Answer(np.zeros(0)))


def prepare_torch_step() -> Prepared:
    import torch

    torch.set_num_threads(1)
    opening, readout = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 10)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    parameters = [p for each in (opening, readout, *layers) for p in each.parameters()]
    x, labels, h = torch.tensor(samples()).repeat(PATHS, 1), torch.arange(BATCH).repeat(PATHS) % 10, LENGTH / DEPTH

    def call():
        y = opening(x)
        for layer in layers:
            y = y + h * torch.relu(layer(y)) + SIGMA * h**0.5 * torch.randn_like(y)
        loss = torch.nn.functional.cross_entropy(readout(y), labels)
        return torch.autograd.grad(loss, parameters)

    return Prepared(call, lambda found: Answer(np.zeros(0)))


def prepare_levels(levels: int) -> Prepared:
    from stepnet.estimators import FeynmanKacClassifier

    random = np.random.default_rng(0)
    X = random.uniform(-1.0, 1.0, (400, 2))
    model = FeynmanKacClassifier(
        width=WIDTH, steps=STEPS, epochs=5, rate=0.02, diffusion=0.5, smoothness=1e-3, random_state=0, levels=levels,
        error=ERROR,
    ).fit(X, (X[:, 0] * X[:, 1] > 0).astype(int))  # fmt: skip
    call = lambda: model._average(X[:POINTS])[0]
    return Prepared(call, lambda found: Answer(np.array([np.mean(found.standard_error.max(axis=1) ** 2)])))
