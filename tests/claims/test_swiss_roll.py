"""Swiss roll: levels of depth against the deepest net at once, for the same number of layers evaluated.

Training by levels is that of Haber & Ruthotto (2017), Inverse Problems 34:014004, and Chang et al. (2018),
arXiv:1710.10348; the data are made as by the code of the former.  The comparison and all numbers are ours.
"""

from __future__ import annotations

import data
import numpy as np
import pytest
from claims.measured import accuracy, show

from stepnet import fields, nets, training

FIRST, LEVELS, ITERATIONS, LENGTH = 16, 4, 100, 20.0
SEEDS = range(9)  # single runs are a matter of luck, and of the last bits
LEARNT, HELD = data.swiss_roll()


def antisymmetric(steps, seed):
    return nets.antisymmetric(2, 2, 4, steps, length=LENGTH, opening="augment", seed=seed, workers=1)


def verlet(steps, seed):
    """The dynamics of the Hamiltonian net of 2017, by Verlet's scheme, with weights piecewise constant in depth."""
    field = fields.staggered(fields.dense(4))
    return nets.compose_net(
        field, "verlet", steps, 2, 2, length=LENGTH, degree=0, opening="augment", seed=seed, workers=1
    )


def resnet(steps, seed):
    return nets.resnet(2, 2, 4, steps, length=LENGTH, opening="augment", seed=seed, workers=1)


def objective(net):
    return training.Objective(net, "cross_entropy", nets.penalties.l2(1e-4), smoothness=5e-4)


def both(make, seed) -> tuple[float, float]:
    """Accuracies by levels, and at once with at least as much work."""
    net, minima = training.multilevel(objective(make(FIRST, seed)), LEARNT, training.LBFGS(ITERATIONS), levels=LEVELS)
    work = sum(minimum.gradients * FIRST * 2**level for level, minimum in enumerate(minima))
    deepest = FIRST * 2 ** (LEVELS - 1)
    direct = make(deepest, seed)
    training.minimise(objective(direct), LEARNT, training.LBFGS(-(-work // deepest)))
    return accuracy(net, HELD), accuracy(direct, HELD)


@pytest.mark.slow
def test_levels_of_depth_unroll_it_and_the_deepest_net_at_once_is_a_matter_of_luck():
    rows = {}
    for make in (antisymmetric, verlet, resnet):
        found = np.array([both(make, seed) for seed in SEEDS])
        rows[f"{make.__name__}, 16 to 128 layers"], rows[f"{make.__name__}, 128 layers at once"] = found.T
    medians = show(
        "our thresholds: by levels antisymmetric at least 94 %, Verlet 98 %; Verlet and ResNet at once 10 points lower",
        rows,
    )
    assert medians["antisymmetric, 16 to 128 layers"] >= 0.94
    assert medians["verlet, 16 to 128 layers"] >= 0.98
    for name in ("verlet", "resnet"):
        assert medians[f"{name}, 16 to 128 layers"] > medians[f"{name}, 128 layers at once"] + 0.1
