"""Block coordinate descent, and training by levels of depth."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from training.models import Steps, TwoLayer, blobs, waves

from stepnet import training
from stepnet.nets import penalties
from stepnet.training import LBFGS, Data, GaussNewton, Objective, Part, TrustRegion

AGREE = 1e-12
ROUNDING = 1e-14


def logistic() -> Objective:
    return Objective(TwoLayer(2, 0, 3), "cross_entropy", penalties.l2(0.1))


def two_layers() -> Objective:
    return Objective(TwoLayer(2, 4, 3), "cross_entropy", penalties.l2(1e-2), smoothness=1e-3)


def thirds(n: int) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(0).permutation(n), 3)


def test_a_part_has_the_derivatives_of_the_whole_by_what_is_free():
    whole, data = two_layers(), blobs()
    theta = np.array(whole.model.theta)
    everything = whole.expansion(theta, data)
    for indices in thirds(theta.size):
        v = np.random.default_rng(1).normal(size=indices.size)
        wide = np.zeros(theta.size)
        wide[indices] = v
        part = Objective(Part(whole.model, indices), whole.loss, whole.penalty, whole.smoothness)
        here = part.expansion(theta[indices], data)
        np.testing.assert_allclose(here.gradient, everything.gradient[indices], atol=AGREE)
        np.testing.assert_allclose(here.product(v), everything.product(wide)[indices], atol=AGREE)
    np.testing.assert_array_equal(whole.model.theta, theta)


@pytest.mark.parametrize("method", [LBFGS(10), GaussNewton(5), GaussNewton(5, control=TrustRegion())], ids=repr)
def test_the_objective_does_not_rise_and_the_model_keeps_the_end(method):
    objective, data = two_layers(), blobs()
    start = objective.value(objective.model.theta, data)[0]
    found = training.block_coordinate(objective, data, thirds(objective.model.theta.size), method, sweeps=6)
    assert (np.diff([start, *found.history]) <= ROUNDING).all()
    assert found.history[-1] < 0.8 * start
    assert found.value == found.history[-1]
    np.testing.assert_array_equal(objective.model.theta, found.theta)


def test_blocks_find_the_one_minimum_of_a_convex_objective():
    objective, data = logistic(), blobs()
    found = training.block_coordinate(objective, data, thirds(9), LBFGS(50, tol=1e-10), sweeps=40)
    best = training.minimise(logistic(), data, LBFGS(500, tol=1e-10))
    np.testing.assert_allclose(found.theta, best.theta, atol=1e-6)
    assert np.abs(found.gradient).max() < 1e-6


def test_blocks_of_a_net_are_found_by_their_names():
    net = Steps(2, 3)
    named = training.blocks_by_name(net)
    assert list(named) == ["blocks.0", "blocks.1", "blocks.2"]
    np.testing.assert_array_equal(named["blocks.1"], [4, 5, 6, 7])
    found = training.block_coordinate(Objective(net, "mse"), waves(), method=LBFGS(5), sweeps=2)
    assert found.history[1] < found.history[0]


def test_a_refined_net_goes_on_where_the_shorter_one_ended():
    """A rotation by 1.2: levels begin near the end of the one before, nearer as steps get shorter."""
    x = np.random.default_rng(2).normal(scale=0.5, size=(80, 2))
    turn = np.array([[np.cos(1.2), -np.sin(1.2)], [np.sin(1.2), np.cos(1.2)]])
    data, shortest = Data(x, x @ turn.T), Objective(Steps(2, 2), "mse")
    untrained = shortest.value(np.zeros(8), data)[0]
    net, minima = training.multilevel(shortest, data, LBFGS(60), levels=4)
    assert [level.theta.size for level in minima] == [8, 16, 32, 64]
    assert net.steps == 16
    np.testing.assert_array_equal(net.theta, minima[-1].theta)
    gaps = []
    for level, (coarse, fine) in enumerate(pairwise(minima)):
        longer = Steps(2, 2 ** (level + 1), coarse.theta).refine()
        start = Objective(longer, "mse").value(longer.theta, data)[0]
        assert fine.value < start < 0.5 * untrained
        gaps.append(start - coarse.value)
    assert gaps[2] < gaps[1] < gaps[0]


@pytest.mark.parametrize(("blocks", "message"), [
    ([np.arange(8)], "each of the 9 parameters once, found 8 indices"),
    ([np.arange(9), np.arange(2)], "found 11 indices"),
    ([], "found 0 indices"),
    ([np.ones(9, bool)], "`blocks` must be whole numbers"),
])  # fmt: skip
def test_blocks_that_do_not_cover_the_parameters_are_refused(blocks, message):
    with pytest.raises((ValueError, TypeError), match=message):
        training.block_coordinate(logistic(), blobs(), blocks)


def test_no_sweeps_leave_the_parameters():
    objective = logistic()
    before = np.array(objective.model.theta)
    found = training.block_coordinate(objective, blobs(), thirds(9), sweeps=0)
    np.testing.assert_array_equal(found.theta, before)
    with pytest.raises(ValueError, match="`levels` must be at least 1"):
        training.multilevel(objective, blobs(), levels=0)
