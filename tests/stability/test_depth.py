"""Depth refinement, gradients over depth, robustness and adjoint safety of nets."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import training
from stepnet.stability import adjoint_safety, depth_refinement, gradient_norms, robustness

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(60, 2))
ROUNDING = 1e-12  # relative, of gradients computed in two ways

quiet = {"workers": 1}


def ellipses(n):
    """An inner disc and a ring around it, squeezed; Haber & Ruthotto (2017)."""
    labels, angle = np.arange(n) % 2, RANDOM.uniform(0, 2 * np.pi, n)
    radius = labels + RANDOM.uniform(0, 1, n)
    return np.stack((radius * np.cos(angle), 0.4 * radius * np.sin(angle)), axis=1), labels


def train_smooth(net, points, labels):
    objective = training.Objective(net, "cross_entropy", smoothness=1e-2)
    run = training.minimise(objective, training.Data(points, labels), training.LBFGS(40))
    net.put(run.theta)
    return net


# ---- depth refinement -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [sn.nets.hamiltonian, sn.nets.antisymmetric])
def test_nets_trained_with_smooth_weights_are_odes(build):
    """From weights that are equal in all layers, with the roughness in depth as a penalty."""
    points, labels = ellipses(200)
    net = build(2, 2, 4, 100, length=2.0, **quiet)
    for name, value in net.weights.items():
        if name.startswith("blocks"):
            value[...] = value[0]
    found = depth_refinement(train_smooth(net, points, labels), points, labels)
    assert found.is_ode
    assert found.verdict.startswith("an ODE")
    assert found.variation < 0.5
    assert min(found.accuracies) > 0.85
    assert np.ptp(found.accuracies) < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_plain_residual_nets_with_random_weights_are_no_odes(seed):
    found = depth_refinement(sn.nets.resnet(2, 2, 6, 10, length=10.0, seed=seed, **quiet), X)
    assert not found.is_ode
    assert found.verdict.startswith("not an ODE")
    assert found.variation > 1  # neighbouring weights are independent


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("heun2", 2), ("rk4", 4)])
def test_changes_decrease_with_the_order_of_the_scheme(scheme, order):
    """Of weights that are a polynomial in depth."""
    net = sn.nets.resnet(2, 2, 6, 24, length=2.0, degree=3, controls=4, scheme=scheme, **quiet)
    assert depth_refinement(net, X).observed_order == pytest.approx(order, abs=0.35)  # asymptotic only


# ---- gradients over depth -------------------------------------------------------------------------------------------


def test_gradient_norms_are_those_of_the_net():
    net = sn.nets.resnet(2, 3, 5, 12, **quiet)
    found = gradient_norms(net, X)
    gradient = net.gradient(X, end_gradient=net(X)).x
    assert found.gradients[0] == pytest.approx(np.linalg.norm(gradient, axis=1).mean(), rel=ROUNDING)
    assert found.states[0] == pytest.approx(np.linalg.norm(X, axis=1).mean(), rel=ROUNDING)
    assert found.gradients[-1] == pytest.approx(np.linalg.norm(net(X), axis=1).mean(), rel=ROUNDING)
    assert len(found.layers) == 14
    assert len(found.gradients) == len(found.states) == 15


def test_gradients_vanish_and_explode_where_the_field_decays_and_grows():
    """The example of two unknowns and 20 layers with growing, decaying and rotating weights."""
    growth = {}
    for name, K in (("grow", [[2, -2], [0, 2]]), ("decay", [[-2, 0], [2, -2]]), ("turn", [[0, -1], [1, 0]])):
        block = sn.nets.Block(sn.fields.residual(sn.fields.dense(2)), "euler", 20, 2.0)
        net = sn.nets.Net(sn.nets.Design((block,)), **quiet)
        net.weights["blocks.0.K"][...], net.weights["blocks.0.b"][...] = K, 0
        growth[name] = gradient_norms(net, 0.01 * X).growth
    assert growth["grow"] > 10
    assert growth["decay"] < 0.1
    assert growth["turn"] == pytest.approx(1.01**10, rel=1e-2)  # |1 + ih| in each step, up to the curvature of tanh


# ---- robustness -----------------------------------------------------------------------------------------------------


def halves(x):
    return np.stack([-x[:, 0], x[:, 0]], axis=1)


def slope(x, labels):
    return np.stack([np.where(labels == 1, -1.0, 1.0), np.zeros(len(x))], axis=1)


def test_attacks_on_a_half_plane_have_their_known_accuracy():
    labels, radii = (X[:, 0] > 0).astype(int), [0.0, 0.3, 1.0]
    found = robustness(halves, X, labels, radii, gradient=slope)
    wanted = [np.mean(np.abs(X[:, 0]) > r) for r in radii]
    np.testing.assert_array_equal(found.accuracies[1], wanted)  # FGSM
    np.testing.assert_array_equal(found.accuracies[2], wanted)  # projected gradients reach the same corner
    assert (found.accuracies[0] >= found.accuracies[1]).all()


def test_noise_is_not_the_draw_of_the_inputs():
    """Inputs of the same seed would only be stretched, which changes no sign."""
    points = np.random.default_rng(0).normal(size=(2000, 2))
    found = robustness(halves, points, (points[:, 0] > 0).astype(int), [0.0, 1.0], attacks=["gaussian"])
    assert found.accuracies[0, 0] == 1
    assert found.accuracies[0, 1] == pytest.approx(0.75, abs=0.05)  # arctan: 1 - 1/4; five standard errors


def test_gradients_of_nets_estimators_and_functions_agree():
    from stepnet.estimators import NetClassifier

    points, labels = ellipses(120)
    net = train_smooth(sn.nets.resnet(2, 2, 4, 6, **quiet), points, labels)
    radii = [0.0, 0.1, 0.3]
    own = robustness(net, points, labels, radii)
    assert own.accuracies[0, 0] > 0.85
    assert (own.accuracies[1:, 2] < own.accuracies[0, 2]).all()  # attacks are worse than noise

    def differentiate(x, y):
        loss = sn.nets.losses.get("cross_entropy")
        return net.gradient(x, lambda out: (loss.at(out, y).value, loss.at(out, y).gradient)).x

    np.testing.assert_array_equal(robustness(net.__call__, points, labels, radii, gradient=differentiate).accuracies,
                                  own.accuracies)  # fmt: skip
    names = np.array(["in", "out"])[labels]
    model = NetClassifier(width=4, steps=4, epochs=20, random_state=0).fit(points, names)
    found = robustness(model, points, names, radii)
    assert found.accuracies[1, 0] == model.score(points, names)
    assert found.accuracies[1, 2] < found.accuracies[0, 2]


def test_a_net_with_noise_is_attacked_through_its_paths():
    net = sn.nets.resnet(2, 2, 4, 5, diffusion=0.1, **quiet)
    found = robustness(net, X, RANDOM.integers(0, 2, 60), [0.0, 0.5], paths=4)
    assert found.accuracies.shape == (3, 2)
    assert (found.accuracies[1:, 1] <= found.accuracies[1:, 0]).all()


# ---- adjoint safety -------------------------------------------------------------------------------------------------


def test_reversible_nets_are_safe_and_contracting_ones_are_not():
    assert adjoint_safety(sn.nets.hamiltonian(2, 2, 4, 20, **quiet), x=X[:3]).is_safe
    stiff = sn.nets.parabolic(2, 2, 4, 40, length=40.0, initialisation="stable", **quiet)
    found = adjoint_safety(stiff, x=X[:3])
    assert not found.is_safe
    assert found.verdict.startswith("block 0: the continuous adjoint is unsafe")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: depth_refinement(sn.nets.mlp(2, 2, 4, 2), X), "`net` must have blocks with a scheme"),
        (lambda: depth_refinement(sn.nets.resnet(2, 2, 4, 5, diffusion=0.1), X), "`net` must have no noise"),
        (lambda: depth_refinement(halves, X), "`net` must be a Net"),
        (lambda: gradient_norms(sn.nets.resnet(2, 2, 4, 5, degree=1), X), "must have weights held"),
        (lambda: robustness(halves, X, np.zeros(60), [0.1]), "`gradient` is needed"),
        (lambda: robustness(halves, X, np.zeros(6), [0.1]), "`labels` must be one for each"),
        (lambda: robustness(halves, X, np.zeros(60), [-0.1]), "`radii` must be finite"),
        (lambda: robustness(3, X, np.zeros(60), [0.1]), "`model` must be"),
        (lambda: adjoint_safety(sn.nets.mlp(2, 2, 4, 2)), "`x`, inputs"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_single_output_is_a_class_by_its_sign():
    net = sn.nets.hamiltonian(2, 1, 4, 8, length=1.0, **quiet)
    labels = (net(X)[:, 0] > 0).astype(int)
    assert 0 < labels.mean() < 1
    found = robustness(net, X, labels, [0.0, 3.0])
    assert (found.accuracies[:, 0] == 1).all()
    assert (found.accuracies[:, 1] < 1).all()
    assert depth_refinement(net, X, labels).accuracies[0] == 1.0


def test_attacks_on_a_classifier_with_one_output_follow_its_loss():
    from stepnet.estimators import NetClassifier

    names = np.where(X[:, 0] > 0, "right", "left")
    how = {"width": 4, "steps": 4, "rate": 0.05, "epochs": 40, "random_state": 0}
    model = NetClassifier(loss="binary_cross_entropy", **how).fit(X, names)
    found = robustness(model, X, names, [0.0, 1.0], attacks=["fgsm", "pgd"])
    assert (found.accuracies[:, 0] == model.score(X, names)).all()
    assert (found.accuracies[:, 1] < found.accuracies[:, 0]).all()


def test_several_steps_of_an_attack_are_stronger_than_one():
    """A projected attack that is weaker than one step has lost gradients, for instance where inputs were clipped."""
    from sklearn.datasets import load_digits

    from stepnet.estimators import NetClassifier

    images, labels = load_digits(n_class=4, return_X_y=True)
    images = images / 16.0
    how = {"width": 12, "steps": 6, "rate": 0.02, "epochs": 8, "scale": False, "random_state": 0}
    model = NetClassifier(**how).fit(images[:400], labels[:400])
    found = robustness(model, images[400:], labels[400:], [0.05, 0.1, 0.15, 0.2], attacks=["fgsm", "pgd"], steps=20)
    one, several = found.accuracies
    assert (several <= one).all()
    assert several[-1] < 0.5 < model.score(images[400:], labels[400:])
