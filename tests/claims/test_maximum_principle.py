"""Successive approximations by the maximum principle on sin x, from weights near zero.

Li, Chen, Tai & E (2017), arXiv:1710.09513: five copies of x, 20 residual layers, their sum.
"""

from __future__ import annotations

import numpy as np
import pytest
from claims.measured import SEEDS, show

from stepnet import fields, nets, training
from stepnet.fields import Chain, Fixed, Layer
from stepnet.training import LBFGS, MSA, SGD, Adam

WIDTH, LAYERS, LENGTH = 5, 20, 5.0
X = np.linspace(-np.pi, np.pi, 100)[:, None]
WAVE = training.Data(X, np.sin(X))


def objective(seed: int) -> training.Objective:
    copies = Chain((Layer(Fixed("copies", 1, np.ones((WIDTH, 1))), None, None),))
    total = Chain((Layer(Fixed("sum", 1, np.ones((1, WIDTH))), None, None),))
    block = nets.Block(fields.residual(fields.dense(WIDTH)), "euler", LAYERS, LENGTH)
    theta = np.random.default_rng(seed).normal(scale=0.005, size=LAYERS * (WIDTH**2 + WIDTH))
    net = nets.Net(nets.Design((block,), copies, total), theta, workers=1)
    return training.Objective(net, "mse", nets.penalties.l2(1e-3))


def sweeps(method, seed: int) -> np.ndarray:
    return training.minimise(objective(seed), WAVE, method).history


def steps(optimiser, seed: int) -> np.ndarray:
    return training.train(objective(seed), WAVE, training.Recipe(optimiser, epochs=500)).history["loss"]


@pytest.mark.slow
def test_twenty_adapted_sweeps_do_more_than_500_steps_of_gradient_descent():
    adapted = np.array([sweeps(MSA(30), seed) for seed in SEEDS])
    fixed = np.array([sweeps(MSA(30, rho=1.0, growth=1), seed) for seed in SEEDS])
    basic = np.array([sweeps(MSA(10, rho=0.0, growth=1), seed) for seed in SEEDS])
    sgd, adam = (np.array([steps(optimiser, seed) for seed in SEEDS]) for optimiser in (SGD(0.1), Adam(0.005)))
    medians = show(
        "E-MSA: 20 sweeps below 500 steps of Adam; SGD stands still from its second step on; rho = 0 jumps by 100 "
        "times; a fixed rho = 1 leaves the basin, an adapted one does not.  L-BFGS on the whole net is better still",
        {
            "adapted rho, 5 sweeps": adapted[:, 4],
            "adapted rho, 20 sweeps": adapted[:, 19],
            "adapted rho, 30 sweeps": adapted[:, 29],
            "rho = 1, best of 30 sweeps": fixed.min(axis=1),
            "rho = 1, worst after the best": [row[row.argmin() :].max() for row in fixed],
            "rho = 0, largest over smallest in 10 sweeps": basic.max(axis=1) / basic.min(axis=1),
            "SGD, 2 steps": sgd[:, 1],
            "SGD, 500 steps": sgd[:, -1],
            "Adam, 5 steps": adam[:, 4],
            "Adam, 500 steps": adam[:, -1],
            "L-BFGS, 100 steps": [sweeps(LBFGS(100), seed)[-1] for seed in SEEDS],
        },
    )
    assert (np.diff(adapted, axis=1) <= 0).all()
    assert medians["adapted rho, 20 sweeps"] < medians["Adam, 500 steps"]
    assert medians["adapted rho, 5 sweeps"] < 0.1 * medians["Adam, 5 steps"]
    assert medians["SGD, 500 steps"] > 0.9 * medians["SGD, 2 steps"]
    assert medians["adapted rho, 20 sweeps"] < 0.5 * medians["SGD, 500 steps"]
    assert medians["rho = 0, largest over smallest in 10 sweeps"] > 100
    assert medians["rho = 1, worst after the best"] > 2 * medians["rho = 1, best of 30 sweeps"]
    assert medians["L-BFGS, 100 steps"] < medians["adapted rho, 30 sweeps"]
