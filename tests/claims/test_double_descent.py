"""Random features with the least norm: the error peaks where there are as many features as samples, then falls again.

Belkin, Hsu, Ma & Mandal (2019), Proc. Natl. Acad. Sci. 116:15849; digits of MNIST and cosine features as there.
"""

from __future__ import annotations

import data
import numpy as np
import pytest
from claims.measured import SEEDS, show

from stepnet import training

SAMPLES, WIDTH = 1000, 5.0
SHARES = (0.1, 0.2, 0.3, 0.5, 0.9, 0.98, 1.0, 1.02, 1.1, 2, 20)
RIDGE = 0.1


def errors(seed: int) -> tuple[np.ndarray, float]:
    """Mean squared errors (shares, 2), learnt and held; and the held one with a ridge where the others peak."""
    learnt, held = data.mnist(0.4, seed)
    random, found, ridged = np.random.default_rng(seed), [], np.nan
    y, held_y = np.eye(10)[learnt.y[:SAMPLES]], np.eye(10)[held.y]
    for share in SHARES:
        n = round(share * SAMPLES)
        W, b = random.normal(size=(784, n)) / WIDTH, random.uniform(0, 2 * np.pi, n)
        F, held_F = np.cos(learnt.x[:SAMPLES] @ W + b), np.cos(held.x @ W + b)
        least = np.linalg.lstsq(F, y, rcond=None)[0]
        found.append([squared(F @ least - y), squared(held_F @ least - held_y)])
        if share == 1.0:
            best = np.hstack([training.Projected("mse", 1, RIDGE).readout(F, column[:, None]) for column in y.T])
            ridged = squared(held_F @ best[:-1] + best[-1] - held_y)
    return np.array(found), ridged


def squared(residuals: np.ndarray) -> float:
    return float(np.mean(np.sum(residuals**2, axis=1)))


@pytest.mark.slow
def test_the_error_peaks_at_as_many_features_as_samples_and_falls_below_its_first_minimum():
    found, ridged = zip(*(errors(seed) for seed in SEEDS), strict=True)
    learnt, held = np.stack(found)[..., 0], np.stack(found)[..., 1]
    below = SHARES.index(0.9)
    medians = show(
        "peak within 2 % of N = n, at least 1000 times the first minimum; then below it; a ridge takes the peak away",
        {
            "features per sample at the peak": [SHARES[i] for i in held.argmax(axis=1)],
            "error at the first minimum": held[:, :below].min(axis=1),
            "error at the peak": held.max(axis=1),
            "error of 20 features per sample": held[:, -1],
            "error at N = n with a ridge": ridged,
            "largest error of what was learnt, N >= n": learnt[:, SHARES.index(1.0) :].max(axis=1),
        },
    )
    assert abs(medians["features per sample at the peak"] - 1) <= 0.02
    assert medians["error at the peak"] >= 1000 * medians["error at the first minimum"]
    assert medians["error of 20 features per sample"] < medians["error at the first minimum"]
    assert medians["error at N = n with a ridge"] < medians["error at the first minimum"]
    assert learnt[:, SHARES.index(1.0) :].max() < 1e-20
