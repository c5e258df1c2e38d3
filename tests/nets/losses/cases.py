"""Every loss of the catalogue with numbers, outputs and targets to try it on."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from stepnet.nets import losses

BATCH, OUTPUTS = 7, 4


@dataclass(frozen=True, eq=False)
class Case:
    loss: losses.Loss
    targets: np.ndarray

    def __str__(self) -> str:
        return f"{self.loss!r}-{'x'.join(map(str, self.targets.shape))}"


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def outputs() -> np.ndarray:
    return np.random.default_rng(8).normal(scale=1.5, size=(BATCH, OUTPUTS))


def probabilities() -> np.ndarray:
    return generator().dirichlet(np.ones(OUTPUTS), BATCH)


def _cases():
    random = generator()
    real = random.normal(scale=1.5, size=(BATCH, OUTPUTS)) + 0.3
    labels = random.integers(0, OUTPUTS, BATCH)
    answers, counts = random.integers(0, 2, (BATCH, OUTPUTS)), random.poisson(2.0, (BATCH, OUTPUTS))
    between, teacher = random.uniform(size=(BATCH, OUTPUTS)), random.normal(size=(BATCH, OUTPUTS))
    weights, pair = [0.5, 2.0, 1.0, 3.0], [0.5, 3.0]
    for name in ("mse", "mae", "quantile"):
        yield losses.get(name), real
    yield losses.quantile(0.9), real
    yield from ((losses.huber(delta), real) for delta in (0.5, 1.0))
    yield from ((losses.tukey(c), real) for c in (1.5, 4.685))
    for alpha in (-inf, -20.0, -2.0, 0.0, 1e-9, 0.5, 1.0, 1.5, 2 - 1e-9, 2.0, 2 + 1e-9, 3.0, inf):
        yield losses.barron(alpha, 2.0), real
    yield losses.poisson(), counts
    yield losses.gaussian_nll(), real[:, : OUTPUTS // 2]
    for targets in (labels, probabilities()):
        for smoothing, temperature in ((0.0, 1.0), (0.2, 1.0), (0.1, 3.0)):
            yield losses.cross_entropy(smoothing, temperature), targets
        yield losses.get("cross_entropy", class_weights=weights, smoothing=0.1), targets
        for focus in (0.0, 0.5, 1.0, 2.0):
            yield losses.get("focal", focus=focus, class_weights=weights), targets
    for targets in (answers, between):
        yield losses.binary_cross_entropy(), targets
        yield losses.get("binary_cross_entropy", smoothing=0.1, class_weights=pair), targets
        yield losses.get("binary_focal", focus=2.0, class_weights=pair), targets
    yield losses.kl(), probabilities()
    yield losses.distillation(3.0), teacher
    yield losses.distillation(3.0, hard=0.3), np.hstack((teacher, labels[:, None]))


CASES = [Case(*each) for each in _cases()]
