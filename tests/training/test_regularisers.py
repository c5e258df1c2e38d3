"""Regularisers of stability: gradients are exact, values agree with closed forms, and training reduces them."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import training
from stepnet.training import JacobianFrobenius, KineticEnergy, LogNorm, Objective

RANDOM = np.random.default_rng(3)
X, LABELS = RANDOM.normal(size=(30, 2)), RANDOM.integers(0, 2, 30)
SLOPE = 1e-6  # relative, of central differences in one direction
quiet = {"workers": 1}

REGULARISERS = [KineticEnergy(0.3), JacobianFrobenius(0.2, probes=3), LogNorm(0.5, margin=-0.2)]
NETS = {
    "resnet": lambda: sn.nets.resnet(2, 2, 4, 5, **quiet),
    "parabolic": lambda: sn.nets.parabolic(2, 2, 4, 5, **quiet),
    "hamiltonian": lambda: sn.nets.hamiltonian(2, 2, 4, 5, **quiet),
    "images": lambda: sn.nets.resnet(2, 2, 3, 4, activation="gelu", scheme="rk4", **quiet),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("regulariser", REGULARISERS, ids=lambda each: type(each).__name__)
def test_gradients_are_those_of_differences(name, regulariser):
    net = NETS[name]()
    theta, direction, eps = net.theta.copy(), RANDOM.normal(size=net.theta.size), 1e-5
    _, gradient = regulariser.at(net, X)
    values = []
    for sign in (1, -1):
        net.put(theta + sign * eps * direction)
        values.append(regulariser.at(net, X)[0])
    assert gradient @ direction == pytest.approx((values[0] - values[1]) / (2 * eps), rel=SLOPE, abs=1e-8)


def linear_net(K):
    net = sn.nets.Net(sn.nets.Design((sn.nets.Block(sn.fields.residual(sn.fields.dense(2), "identity"), "euler", 1),)),
                      **quiet)  # fmt: skip
    net.weights["blocks.0.K"][...], net.weights["blocks.0.b"][...] = K, 0
    return net


def test_values_of_a_linear_step_are_closed_forms():
    K = RANDOM.normal(size=(2, 2))
    net = linear_net(K)
    assert KineticEnergy(1.0).at(net, X)[0] == pytest.approx(0.5 * np.mean(np.sum((X @ K.T) ** 2, axis=1)), rel=1e-12)
    J = np.eye(2) + K
    estimate = JacobianFrobenius(1.0, probes=400).at(net, X)[0]
    spread = 2 * abs(J[:, 0] @ J[:, 1]) / np.sqrt(400 * len(X))  # of |J v|^2 with signs v, a standard error
    assert abs(2 * estimate - np.sum(J**2)) < 5 * spread
    mu = np.linalg.eigvalsh((K + K.T) / 2)[-1]
    assert LogNorm(1.0, margin=mu - 0.5).at(net, X)[0] == pytest.approx(0.25, rel=1e-12)


def test_antisymmetric_weights_have_no_logarithmic_norm():
    value, gradient = LogNorm(1.0).at(sn.nets.antisymmetric(2, 2, 4, 5, **quiet), X)
    assert value == pytest.approx(0, abs=1e-20)
    assert not gradient.any()


@pytest.mark.parametrize("regulariser", [KineticEnergy(0.3), JacobianFrobenius(0.3), LogNorm(1.0)],
                         ids=lambda each: type(each).__name__)  # fmt: skip
def test_training_obeys_them(regulariser):
    """Both by mini-batches and on all data the regulariser ends smaller than without it."""
    ends = []
    for some in ((), (regulariser,)):
        net = NETS["resnet"]()
        objective = Objective(net, "cross_entropy", regularisers=some)
        data = training.Data(X, LABELS)
        training.train(objective, data, training.Recipe(training.Adam(0.02), epochs=10, batch_size=10))
        run = training.minimise(objective, data, training.LBFGS(20))
        net.put(run.theta)
        ends.append(regulariser.at(net, X)[0])
    assert ends[1] < 0.7 * ends[0]


def test_objectives_add_them_everywhere():
    net, data = NETS["resnet"](), training.Data(X, LABELS)
    plain, full = Objective(net, "cross_entropy"), Objective(net, "cross_entropy", regularisers=REGULARISERS)
    theta, more = net.theta.copy(), [each.at(net, X) for each in REGULARISERS]
    value, slope = sum(value for value, _ in more), sum(gradient for _, gradient in more)
    assert full.value(theta, data)[0] == pytest.approx(plain.value(theta, data)[0] + value)
    np.testing.assert_allclose(full.gradient(theta, data).gradient, plain.gradient(theta, data).gradient + slope)
    near = full.expansion(theta, data)
    assert near.value == pytest.approx(full.gradient(theta, data).value)
    np.testing.assert_allclose(near.gradient, full.gradient(theta, data).gradient, atol=1e-12)


def test_projected_weights_have_bounded_norms():
    """The projection is the nearest: matrices within are unchanged, singular values beyond are cut."""
    net = sn.nets.resnet(2, 2, 4, 6, **quiet)
    projection = training.spectral_projection(training.Adam(0.1), net, 0.7)
    objective = Objective(net, "cross_entropy")
    training.train(objective, training.Data(X, LABELS), training.Recipe(projection, epochs=5, batch_size=10))
    norms = np.linalg.norm(net.weights["blocks.0.K"], ord=2, axis=(1, 2))
    assert (norms <= 0.7 * (1 + 1e-12)).all()
    assert (norms > 0.69).any()
    np.testing.assert_allclose(projection.project(net.theta), net.theta, atol=1e-14)
    assert not np.array_equal(net.weights["opening.K"], np.minimum(net.weights["opening.K"], 0))  # not projected
    assert sn.stability.certificate(net).blocks[0].numerical_ranges[:, 1].max() <= 0.7 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LogNorm().at(sn.nets.parabolic_cnn((4, 4), (2,), 2, outputs=2), np.ones((1, 16))), "`net` must have"),
        (lambda: KineticEnergy().at(sn.nets.resnet(2, 2, 4, 5, diffusion=0.1), X), "`model` must have no noise"),
        (lambda: KineticEnergy(-1.0), "`strength`"),
        (lambda: JacobianFrobenius(probes=0), "`probes`"),
        (lambda: Objective(NETS["resnet"](), "mse", regularisers=[3]), r"`regularisers\[0\]` must be"),
        (lambda: training.spectral_projection("adam", NETS["resnet"](), -1.0), "`bound`"),
        (lambda: training.spectral_projection("adam", 3, 1.0), "`net` must be"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
