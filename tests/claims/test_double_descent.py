"""Random features with the least norm: the error peaks where there are as many features as samples, then falls again.

Belkin, Hsu, Ma & Mandal (2019), Proc. Natl. Acad. Sci. 116:15849, with digits of MNIST and random Fourier features, as
here; the numbers of samples and features, the thresholds and the ridge are ours.
"""

from __future__ import annotations

import data
import numpy as np
import pytest
from claims.measured import SEEDS, show

from stepnet import training

SAMPLES, WIDTH = 1000, 5.0
SHARES = (0.1, 0.2, 0.3, 0.5, 0.9, 0.98, 1.0, 1.02, 1.1, 2, 20)
DRAWS = 9  # of features where the error peaks: one over the square of the least singular value, which has a long tail
RIDGE = 0.1


class Task:
    """Digits to learn from and digits to test with; features are a function of (seed, number of them, draw)."""

    def __init__(self, seed: int):
        learnt, held = data.mnist(0.4, seed)
        self.seed, self.x, self.held = seed, learnt.x[:SAMPLES], held.x
        self.y, self.held_y = np.eye(10)[learnt.y[:SAMPLES]], np.eye(10)[held.y]

    def features(self, n: int, draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng((self.seed, n, draw))
        W, b = random.normal(size=(784, n)) / WIDTH, random.uniform(0, 2 * np.pi, n)
        return np.cos(self.x @ W + b), np.cos(self.held @ W + b)

    def errors(self, n: int, draw: int = 0) -> tuple[float, float]:
        """Mean squared errors of the least-norm fit, learnt and held."""
        F, held_F = self.features(n, draw)
        least = np.linalg.lstsq(F, self.y, rcond=None)[0]
        return squared(F @ least - self.y), squared(held_F @ least - self.held_y)

    def error_with_a_ridge(self) -> float:
        F, held_F = self.features(SAMPLES)
        best = np.hstack([training.Projected("mse", 1, RIDGE).readout(F, column[:, None]) for column in self.y.T])
        return squared(held_F @ best[:-1] + best[-1] - self.held_y)


def squared(residuals: np.ndarray) -> float:
    return float(np.mean(np.sum(residuals**2, axis=1)))


@pytest.mark.slow
def test_the_error_peaks_at_as_many_features_as_samples_and_falls_below_its_first_minimum():
    tasks = [Task(seed) for seed in SEEDS]
    found = np.array([[task.errors(round(share * SAMPLES)) for share in SHARES] for task in tasks])
    learnt, held = found[..., 0], found[..., 1]
    below = SHARES.index(0.9)
    medians = show(
        "the paper: a peak where features equal samples, then a second descent.  Our thresholds: within 2 % of N = n, "
        "at least 1000 times the first minimum; 20 n features below it; a ridge takes the peak away",
        {
            "features per sample at the peak": [SHARES[i] for i in held.argmax(axis=1)],
            "error at the first minimum": held[:, :below].min(axis=1),
            f"error at N = n, {DRAWS} draws each": [task.errors(SAMPLES, n)[1] for task in tasks for n in range(DRAWS)],
            "error of 20 features per sample": held[:, -1],
            "error at N = n with a ridge": [task.error_with_a_ridge() for task in tasks],
            "largest error of what was learnt, N >= n": learnt[:, SHARES.index(1.0) :].max(axis=1),
        },
    )
    assert abs(medians["features per sample at the peak"] - 1) <= 0.02
    assert medians[f"error at N = n, {DRAWS} draws each"] >= 1000 * medians["error at the first minimum"]
    assert medians["error of 20 features per sample"] < medians["error at the first minimum"]
    assert medians["error at N = n with a ridge"] < medians["error at the first minimum"]
    assert learnt[:, SHARES.index(1.0) :].max() < 1e-20
