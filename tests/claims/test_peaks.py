"""Peaks: five bands of height of a surface, learnt from 5000 points by levels of depth.

Data and training by levels as in Haber & Ruthotto (2017), Inverse Problems 34:014004; the accuracy is ours.
"""

from __future__ import annotations

import data
import pytest
from claims.measured import SEEDS, accuracy, show

from stepnet import nets, training

LEVELS = 3


@pytest.mark.slow
def test_levels_of_depth_reach_98_percent():
    reached = []
    for seed in SEEDS:
        learnt, held = data.peaks(1000, 200, seed=seed)
        net = nets.antisymmetric(2, 5, 8, 8, length=5.0, seed=seed, workers=1)
        objective = training.Objective(net, "cross_entropy", nets.penalties.l2(1e-5), smoothness=1e-5)
        deepest, _ = training.multilevel(objective, learnt, training.LBFGS(200), levels=LEVELS)
        reached.append(accuracy(deepest, held))
    medians = show("antisymmetric, 8 channels, 8 to 32 layers; our threshold is 98 %", {"accuracy": reached})
    assert medians["accuracy"] >= 0.98
