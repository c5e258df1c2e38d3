"""A net on a graph as a model whose samples are nodes: its outputs, its derivatives, its training."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import RING

from stepnet import fields, nets, training

CHANNELS, STEPS, LENGTH = 4, 3, 0.9
INPUTS = np.random.default_rng(0).normal(size=(RING.shape[0], 2))
NODES = np.array([3, 0, 3])


def model(**options):
    return nets.NodeModel(nets.node_net(RING, 2, 3, CHANNELS, STEPS, length=LENGTH, **options), INPUTS)


def plainly(net) -> np.ndarray:
    """The outputs (nodes, channels) of a residual net, by the formula."""
    w = net.weights
    P = fields.graph(RING, 1).operators[0].toarray()
    y = np.tanh(INPUTS @ w["opening.K"][0].T + w["opening.b"])
    for K, b in zip(w["blocks.0.K"], w["blocks.0.b"], strict=True):
        y = y + LENGTH / STEPS * np.tanh(P @ y @ K[0].T + b)
    return y @ w["readout.W"][0].T + w["readout.b"]


def loss(outputs):
    return float(np.sum(np.sin(outputs))), np.cos(outputs)


def test_outputs_at_nodes_are_those_of_the_formula():
    found = model()
    found.put(found.theta + 0.1 * np.random.default_rng(1).normal(size=found.theta.size))
    np.testing.assert_allclose(found(NODES), plainly(found.net)[NODES], rtol=1e-12, atol=1e-13)
    states = found.features(NODES)
    assert states.shape == (STEPS + 1, 3, CHANNELS)
    w = found.net.weights
    np.testing.assert_allclose(states[0], np.tanh(INPUTS @ w["opening.K"][0].T + w["opening.b"])[NODES], rtol=1e-12)
    np.testing.assert_allclose(states[-1] @ w["readout.W"][0].T + w["readout.b"], found(NODES), rtol=1e-12)


@pytest.mark.parametrize("dynamics", ["residual", "hamiltonian", "parabolic", "hyperbolic"])
def test_derivatives_are_those_of_differences(dynamics):
    """Central differences at h = 1e-5 are right to about 1e-9."""
    found = model(dynamics=dynamics)
    pulled = found.gradient(NODES, loss)
    assert pulled.value == pytest.approx(loss(found(NODES))[0], rel=1e-14)
    np.testing.assert_array_equal(pulled.outputs, found(NODES))
    theta, h = found.theta.copy(), 1e-5
    rows = []
    for unit in np.eye(theta.size):
        ends = []
        for sign in (1, -1):
            found.put(theta + sign * h * unit)
            ends.append(found(NODES))
        rows.append((ends[0] - ends[1]) / (2 * h))
    found.put(theta)
    jacobian = np.stack(rows)  # (parameters, nodes, channels)
    wanted = np.tensordot(jacobian, np.cos(found(NODES)), 2)
    np.testing.assert_allclose(pulled.theta, wanted, rtol=1e-7, atol=1e-8)
    v, weights = np.random.default_rng(2).normal(size=theta.size), 1 + np.arange(9).reshape(3, 3)
    product = found.gauss_newton(NODES, v, lambda push: weights * push)
    wanted = np.tensordot(jacobian, weights * np.tensordot(v, jacobian, 1), 2)
    np.testing.assert_allclose(product, wanted, rtol=1e-6, atol=1e-7)


def test_the_gradient_by_the_inputs_has_their_shape():
    found = model()
    bar = found.gradient(NODES, loss).x
    moved = INPUTS.copy()
    moved[2, 1] += 1e-6
    other = nets.NodeModel(found.net, moved)
    slope = (loss(other(NODES))[0] - loss(found(NODES))[0]) / 1e-6
    assert bar.shape == INPUTS.shape
    assert bar[2, 1] == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("method", ["lbfgs", "gauss_newton"])
def test_two_known_nodes_teach_two_rings_joined_by_an_edge(method):
    n = 8
    ring = np.roll(np.eye(n), 1, axis=1)
    adjacency = np.kron(np.eye(2), ring + ring.T)
    adjacency[0, n] = adjacency[n, 0] = 1.0
    labels = np.repeat([0, 1], n)
    net = nets.node_net(adjacency, 2 * n, 2, 8, 6, dynamics="parabolic", filter="adjacency", length=3.0)
    learner = nets.NodeModel(net, np.eye(2 * n))
    objective = training.Objective(learner, "cross_entropy", nets.penalties.l2(1e-3), smoothness=1e-3)
    known = np.array([4, 12])
    before = objective.value(learner.theta, training.Data(known, labels[known]))[0]
    found = training.minimise(objective, training.Data(known, labels[known]), method)
    assert found.value < 0.5 * before
    assert np.array_equal(np.argmax(learner(known), axis=1), labels[known])
    assert learner.refine()(known).shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nets.NodeModel(model().net, INPUTS.T), "`inputs` must be \\(nodes, channels\\)"),
        (lambda: nets.NodeModel(model().net, INPUTS[:, :1]), "found the shape"),
        (lambda: model()([0.5]), "`nodes` must be whole numbers"),
        (lambda: model()([[0]]), "`nodes` must be whole numbers"),
        (lambda: model()([-1]), "`nodes` must be below"),
        (lambda: model()([99]), "found 99 to 99"),
        (lambda: nets.node_net(RING, 2, 3, 5, 3, dynamics="hamiltonian"), "`channels` must be even"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
