"""Training on nets themselves: mini-batches, all data at once, levels of depth, a projected read-out."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import training

SEEDS = (0, 1, 2)


def ellipses(count: int, seed: int) -> training.Data:
    """An ellipse inside a ring, which no line divides."""
    random = np.random.default_rng(seed)
    labels, angle = np.arange(count) % 2, random.uniform(0, 2 * np.pi, count)
    radius = np.where(labels == 0, random.uniform(0.0, 0.5, count), random.uniform(0.8, 1.3, count))
    return training.Data(np.stack((1.5 * radius * np.cos(angle), radius * np.sin(angle)), axis=1), labels)


TRAIN, HELD = ellipses(400, 10), ellipses(400, 11)


def net(seed: int, outputs: int | None = 2, steps: int = 8):
    return sn.nets.hamiltonian(2, outputs, width=8, steps=steps, length=4.0, seed=seed, workers=1)


def accuracy(model) -> float:
    return float(np.mean(np.argmax(model(HELD.x), axis=1) == HELD.y))


def test_mini_batches_teach_a_net_the_ellipses():
    reached = []
    for seed in SEEDS:
        model = net(seed)
        recipe = training.Recipe(training.Adam(0.05), epochs=40, batch_size=50, seed=seed)
        run = training.train(training.Objective(model, "cross_entropy"), TRAIN, recipe)
        assert run.history["loss"][-1] < run.history["loss"][0]
        reached.append(accuracy(model))
    print(f"held-out accuracies {reached}")
    assert np.median(reached) >= 0.97


@pytest.mark.parametrize("method", [training.LBFGS(60), training.GaussNewton(iterations=25, cg_iterations=8)])
def test_all_data_at_once(method):
    model = net(0)
    found = training.minimise(training.Objective(model, "cross_entropy"), TRAIN, method)
    assert np.isfinite(found.value)
    assert accuracy(model) >= 0.95


def test_levels_of_depth_go_on_where_the_coarse_net_ended():
    objective = training.Objective(net(0, steps=4), "cross_entropy")
    model, minima = training.multilevel(objective, TRAIN, training.LBFGS(30), levels=2)
    assert [block.steps for block in model.design.blocks] == [8]
    assert max(minimum.value for minimum in minima) < 0.1
    assert accuracy(model) >= 0.95


def test_a_projected_read_out_needs_the_features_only():
    model = net(0, outputs=None)
    projected = training.Projected("cross_entropy", outputs=2, ridge=1e-3)
    found = training.minimise(training.Objective(model, projected), TRAIN, training.LBFGS(30))
    first = projected.at(net(0, outputs=None)(TRAIN.x), TRAIN.y).value
    assert found.value < 0.5 * first
