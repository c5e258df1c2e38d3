"""Successive approximations: the Hamiltonians of layers against the objective and plain NumPy, rho, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from training.models import TwoLayer, blobs, waves

import stepnet as sn
from stepnet import nets, training
from stepnet.nets import penalties
from stepnet.nets.layer_decomposition import LayerDecomposition
from stepnet.training import LBFGS, MSA, Data, Objective
from stepnet.training.maximum_principle import build_hamiltonian, build_trajectory

ROUNDING = 1e-13
MIXED = 1e-8  # what two central differences, one inside the other, leave

MODELS = {
    "resnet": lambda **o: nets.resnet(2, 3, 4, 3, length=2.0, **o),
    "midpoint": lambda **o: nets.resnet(2, 3, 4, 3, scheme="midpoint", **o),
    "antisymmetric": lambda **o: nets.antisymmetric(2, 3, 4, 3, damping=0.1, **o),
    "parabolic": lambda **o: nets.parabolic(2, 3, 4, 3, **o),
    "rk4": lambda **o: nets.resnet(2, 3, 4, 3, scheme="rk4", **o),
    "hamiltonian": lambda **o: nets.hamiltonian(2, 3, 4, 3, length=2.0, **o),
    "verlet": lambda **o: nets.hamiltonian(2, 3, 4, 3, scheme="verlet", **o),
    "hyperbolic": lambda **o: nets.hyperbolic(2, 3, 4, 3, **o),
    "mlp": lambda **o: nets.mlp(2, 3, 4, 3, **o),
    "augmented": lambda **o: nets.resnet(2, 3, 4, 3, opening="augment", **o),
}
QUICK = ("resnet", "hamiltonian", "midpoint", "verlet")  # the others take longer and show the same
every_model = pytest.mark.parametrize("name", MODELS)


def case(name: str, **options) -> tuple[Objective, Data, np.ndarray]:
    net = MODELS[name](seed=1, **options)
    theta = net.theta + np.random.default_rng(2).normal(scale=0.3, size=net.theta.size).astype(net.dtype)
    return Objective(net, "cross_entropy", penalties.l2(1e-2)), blobs(70), theta


@every_model
def test_the_gradient_of_the_hamiltonians_is_minus_that_of_the_objective(name):
    objective, data, theta = case(name)
    parts = LayerDecomposition(objective.model)
    here, wanted = build_trajectory(parts, objective, theta, data), objective.gradient(theta, data)
    assert here.value == pytest.approx(wanted.value, rel=ROUNDING)
    np.testing.assert_allclose(here.gradient, wanted.gradient, atol=ROUNDING)
    for rho in (0.0, 2.0):  # at the trajectory itself the terms with rho are flat
        for n, layer in enumerate(parts.layers):
            slope = build_hamiltonian(parts, objective.penalty, here, n, theta[layer.places], rho).gradient
            np.testing.assert_allclose(slope, -wanted.gradient[layer.places], atol=ROUNDING)


@every_model
def test_the_gradient_of_an_augmented_hamiltonian_is_that_of_differences(name):
    objective, data, theta = case(name)
    parts, random, s = LayerDecomposition(objective.model), np.random.default_rng(3), 1e-5
    here = build_trajectory(parts, objective, theta, data)
    for n, layer in enumerate(parts.layers):
        away = theta[layer.places] + random.normal(scale=0.2, size=layer.places.size)

        def value(w, n=n):
            return build_hamiltonian(parts, objective.penalty, here, n, w, 1.7).value

        slope = build_hamiltonian(parts, objective.penalty, here, n, away, 1.7).gradient
        for e in np.eye(away.size)[:12]:
            assert (value(away + s * e) - value(away - s * e)) / (2 * s) == pytest.approx(slope @ e, abs=MIXED)


def test_an_augmented_hamiltonian_is_its_formula_in_plain_numpy():
    """A residual step x + h tanh(K x + b) written out, with p, states and costates of its neighbours."""
    net, data, h, rho = nets.resnet(None, None, 2, 3, length=1.5, seed=4), waves(), 0.5, 0.7
    theta, random = np.array(net.theta), np.random.default_rng(0)
    K, b = net.weights["blocks.0.K"], net.weights["blocks.0.b"]
    x, p = [data.x], [-2 / data.y.shape[1] * (net(data.x) - data.y)]  # of the mean of squares, times samples
    for n in range(3):
        x.append(x[-1] + h * np.tanh(x[-1] @ K[n].T + b[n]))
    for n in (2, 1, 0):
        p.append(p[-1] + h * (p[-1] * (1 - np.tanh(x[n] @ K[n].T + b[n]) ** 2)) @ K[n])
    p.reverse()
    parts, objective = LayerDecomposition(net), Objective(net, "mse", penalties.l2(0.1))
    here = build_trajectory(parts, objective, theta, data)
    for n in range(3):
        W, c = K[n] + random.normal(scale=0.3, size=(2, 2)), b[n] + random.normal(scale=0.3, size=2)
        s = np.tanh(x[n] @ W.T + c)
        f, slope = x[n] + h * s, p[n + 1] + h * (p[n + 1] * (1 - s**2)) @ W
        plain = np.sum(p[n + 1] * f) / len(data) - 0.05 * (np.sum(W**2) + np.sum(c**2))
        wanted = plain - rho / 2 * (np.sum((x[n + 1] - f) ** 2) + np.sum((p[n] - slope) ** 2)) / len(data)
        found = build_hamiltonian(parts, objective.penalty, here, n, np.concatenate((W.ravel(), c)), rho)
        assert (found.value, found.plain) == (pytest.approx(wanted, rel=ROUNDING), pytest.approx(plain, rel=ROUNDING))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_the_objective_never_rises_and_the_model_keeps_the_end(name):
    objective, data, theta = case(name)
    start = objective.value(theta, data)[0]
    found = training.minimise(objective, data, MSA(15), theta=theta)
    assert (np.diff([start, *found.history]) <= 0).all()
    assert found.value == found.history[-1] < 0.8 * start
    np.testing.assert_array_equal(objective.model.theta, found.theta)
    here = objective.gradient(found.theta, data)
    assert found.value == pytest.approx(here.value, rel=ROUNDING)
    np.testing.assert_allclose(found.gradient, here.gradient, atol=ROUNDING)


def test_sweeps_of_a_linear_net_with_a_penalty_end_at_the_minimum_of_lbfgs():
    data = blobs()
    found, wanted = (
        training.minimise(Objective(nets.mlp(2, 3, 2, 1, activation="identity", seed=0), "cross_entropy",
                                    penalties.l2(0.5)), data, method)
        for method in (MSA(300, rho=0.1, tol=1e-7), LBFGS(1000, tol=1e-9))
    )  # fmt: skip
    assert found.converged, found.message
    assert found.value == pytest.approx(wanted.value, rel=1e-8)


def test_sweeps_do_not_depend_on_threads_and_are_the_same_again():
    ends = []
    for workers in (1, 2, 2):
        objective, data, theta = case("resnet", workers=workers)
        ends.append(training.minimise(objective, data, MSA(4), theta=theta).theta)
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])


def test_single_precision_falls_too():
    objective, data, theta = case("resnet", dtype=np.float32)
    found = training.minimise(objective, data, MSA(8), theta=theta)
    assert found.theta.dtype == np.float32
    assert found.history[-1] < 0.8 * objective.value(theta, data)[0]


def test_convolutions_images_and_sample_weights():
    random = np.random.default_rng(0)
    images, labels = random.normal(size=(20, 1, 4, 4)), np.arange(20) % 2
    net = nets.parabolic_cnn((4, 4), (2, 3), 2, outputs=2, activation="tanh", seed=0)
    data = Data(images + labels[:, None, None, None], labels, np.linspace(0.5, 1.5, 20))
    objective = Objective(net, "cross_entropy")
    here = build_trajectory(LayerDecomposition(net), objective, np.array(net.theta), data)
    np.testing.assert_allclose(here.gradient, objective.gradient(net.theta, data).gradient, atol=ROUNDING)
    found = training.minimise(objective, data, MSA(10))
    assert found.history[-1] < 0.8 * here.value


def test_a_fixed_rho_takes_every_sweep_and_keeps_the_best():
    objective, data, theta = case("resnet")
    found = training.minimise(objective, data, MSA(10, rho=0.0, growth=1), theta=theta)
    assert np.nanmax(np.diff(found.history)) > 0
    assert found.value <= np.nanmin(found.history)
    assert np.isfinite(found.theta).all()


def test_no_sweeps_leave_the_parameters():
    objective, data, theta = case("resnet")
    found = training.minimise(objective, data, MSA(0), theta=theta)
    np.testing.assert_array_equal(found.theta, theta)
    assert not found.converged


def test_a_start_that_is_not_finite_is_refused():
    objective, data, theta = case("resnet")
    with pytest.raises(ValueError, match="the objective is not finite at the initial parameters"):
        training.minimise(objective, data, MSA(1), theta=theta * 1e300)


def test_the_bar_shows_the_loss_and_rho(capsys):
    objective, data, theta = case("resnet")
    training.minimise(objective, data, MSA(2), theta=theta, progress=True)
    shown = capsys.readouterr().err
    assert "loss=" in shown
    assert "rho=" in shown


def test_levels_of_depth_and_estimators_take_it():
    objective, data, _ = case("resnet")
    net, minima = training.multilevel(objective, data, MSA(5), levels=2)
    assert net.design.blocks[0].steps == 6
    assert minima[1].value < minima[0].value
    fitted = sn.estimators.NetClassifier("resnet", width=4, steps=3, optimiser=MSA(10), random_state=0).fit(
        data.x, data.y
    )
    assert fitted.score(data.x, data.y) > 0.7


@pytest.mark.parametrize(("call", "message"), [
    (lambda: MSA(-1), "`iterations` must be at least 0, found -1"),
    (lambda: MSA(inner=0), "`inner` must be at least 1"),
    (lambda: MSA(rho=-1.0), r"`rho` must be a number in \[0, inf\), found -1"),
    (lambda: MSA(growth=0.5), r"`growth` must be a number in \[1, inf\)"),
    (lambda: MSA(rho=0.0), "`rho` must be positive to grow, found 0; the basic method is `rho=0, growth=1`"),
    (lambda: minimise(nets.hamiltonian(2, 3, 4, 3, degree=0)), "'symplectic_euler_drift' reads those of the next step"),
    (lambda: minimise(nets.resnet(2, 3, 4, 3, scheme="rk4", degree=0)), "'rk4' reads those of the next step"),
    (lambda: minimise(nets.midpoint_net(2, 3, 4, 3)), "blocks.0 must have a one-step scheme .* 'midpoint_two_step'"),
    (lambda: minimise(nets.resnet(2, 3, 4, 3, degree=1)), r"weights held over each step .* degree=1"),
    (lambda: minimise(nets.resnet(2, 3, 4, 3, controls=1)), r"weights held over each step .* for 3 steps"),
    (lambda: minimise(nets.neural_ode(2, 3, [4], 1, has_time=True)), "must not depend on time"),
    (lambda: minimise(TwoLayer(2, 4, 3)), "the model must be a Net .* found TwoLayer"),
    (lambda: minimise(nets.resnet(2, 3, 4, 3), smoothness=0.1), "`smoothness` must be 0, found 0.1"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def minimise(model, **options):
    return training.minimise(Objective(model, "cross_entropy", **options), blobs(), MSA(1))
