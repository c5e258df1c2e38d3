"""Every loss of the catalogue in the estimators that it suits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import d2_pinball_score, log_loss
from sklearn.preprocessing import StandardScaler

from stepnet import training
from stepnet.estimators import NetClassifier, NetRegressor
from stepnet.nets import losses
from stepnet.nets.losses import Meaning

CHOSEN = {"width": 8, "steps": 4, "epochs": 60, "rate": 0.01, "random_state": 0}
RANDOM = np.random.default_rng(0)
WAVES = RANDOM.uniform(-1, 1, (300, 2))
RATES = np.exp(1.5 + WAVES[:, 0] - WAVES[:, 1])
SHARES = 1 / (1 + np.exp(-4 * WAVES.sum(axis=1)))
THREE = np.exp(3 * np.column_stack((WAVES, WAVES[:, 0] * WAVES[:, 1])))
THREE /= THREE.sum(axis=1, keepdims=True)
TARGETS = {
    "real numbers": 100 + 30 * np.sin(2 * WAVES[:, 0]) + 20 * WAVES[:, 1],
    "counts": RANDOM.poisson(10 * RATES),
    "answers": SHARES,
    "classes": THREE,
    "probabilities": THREE,
}
NOT_OF_CLASSES = {"gaussian_nll", "distillation"}  # refused below


def blobs(classes: int):
    X, y = make_blobs(180, centers=[[0, 0], [3, 0], [0, 3]][:classes], cluster_std=0.5, random_state=0)
    return X, np.array(["red", "green", "blue"])[y]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", losses.names())
def test_every_loss_tells_classes_apart_or_is_refused(name, classes):
    X, y = blobs(classes)
    model = NetClassifier(loss=name, **CHOSEN)
    if name in NOT_OF_CLASSES:
        with pytest.raises(ValueError, match=f"`loss` must .* found {name}"):
            model.fit(X, y)
        return
    found = model.fit(X, y)
    assert found.score(X, y) >= 0.97
    assert found.run_.history["accuracy"][-1] >= 0.97
    scores = found.decision_function(X)
    assert scores.shape == ((180,) if classes == 2 else (180, 3))
    best = (scores > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(found.classes_[best], found.predict(X))
    if not losses.get(name).meaning.has_probabilities:
        assert not hasattr(found, "predict_proba")
        assert not hasattr(model, "predict_proba")
        return
    shares = found.predict_proba(X)
    assert shares.shape == (180, classes)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(found.classes_[shares.argmax(axis=1)], found.predict(X))


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_finds_its_targets_or_is_refused(name):
    kind = losses.get(name).meaning.targets
    model = NetRegressor(loss=name, **CHOSEN)
    if kind == "logits of a teacher":
        with pytest.raises(ValueError, match=f"`loss` must compare with targets .* found {name}"):
            model.fit(WAVES, THREE)
        return
    y = TARGETS[kind]
    found = model.fit(WAVES, y)
    assert found.predict(WAVES).shape == y.shape
    assert found.score(WAVES, y) >= 0.9


def test_no_loss_is_left_out():
    """Each name is fitted to two and three classes and to numbers, or refused by a test."""
    kinds = {losses.get(name).meaning.targets for name in losses.names()}
    assert kinds == {*TARGETS, "logits of a teacher"}
    print(f"{len(losses.names())} losses, {3 * len(losses.names())} cases, fitted or refused")
    assert len(losses.names()) >= 14


def test_counts_are_not_scaled_and_rates_are_foretold():
    y = TARGETS["counts"]
    found = NetRegressor(loss="poisson", **(CHOSEN | {"epochs": 100})).fit(WAVES, y)
    assert found.y_factor_ == 1.0
    assert found.y_shift_ == 0.0
    np.testing.assert_allclose(found.predict(WAVES), np.exp(found.outputs(WAVES)[:, 0]), rtol=1e-14)
    assert np.corrcoef(found.predict(WAVES), 10 * RATES)[0, 1] > 0.99
    assert abs(found.predict(WAVES).mean() / y.mean() - 1) < 0.05


@pytest.mark.parametrize("columns", [1, 2])
def test_normal_distributions_have_two_outputs_for_each_target(columns):
    y = np.column_stack((TARGETS["real numbers"], WAVES[:, 0]))[:, :columns]
    noisy = y + np.random.default_rng(1).normal(scale=0.3 * y.std(axis=0), size=y.shape)
    found = NetRegressor(loss="gaussian_nll", **CHOSEN).fit(WAVES, noisy)
    outputs = found.outputs(WAVES)
    assert outputs.shape == (300, 2 * columns)
    assert found.score(WAVES, y) > 0.95
    spread = np.exp(0.5 * outputs[:, columns:]).mean(axis=0) * found.y_factor_
    np.testing.assert_allclose(spread, 0.3 * y.std(axis=0), rtol=0.15)


@pytest.mark.parametrize("tau", [0.1, 0.9])
def test_quantiles_lie_above_their_share_of_samples(tau):
    y = WAVES[:, 0] + np.random.default_rng(2).normal(size=300)
    found = NetRegressor(loss=losses.quantile(tau), **CHOSEN).fit(WAVES, y)
    assert abs(np.mean(y <= found.predict(WAVES)) - tau) < 0.05
    assert d2_pinball_score(y, found.predict(WAVES), alpha=tau) > 0


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_probabilities_are_those_of_the_loss_at_its_temperature(temperature):
    """Labels that are wrong at random with known probability: the loss finds this probability at any temperature."""
    random = np.random.default_rng(3)
    X = random.normal(size=(600, 1))
    y = (X[:, 0] > 0) ^ (random.uniform(size=600) < 0.2)
    loss = losses.cross_entropy(temperature=temperature)
    settings = {"net": "resnet", "width": 4, "steps": 2, "optimiser": "lbfgs", "epochs": 60, "random_state": 0}
    found = NetClassifier(loss=loss, alpha=0.0, **settings).fit(X, y)
    value = loss.at(found.outputs(X), y.astype(int)).value
    np.testing.assert_allclose(log_loss(y, found.predict_proba(X)), value, rtol=1e-10)
    assert value < 0.52  # 0.50 for the true probabilities


def test_one_output_for_a_yes_or_no_and_one_for_each_of_several_classes():
    for classes, outputs in ((2, 1), (3, 3)):
        X, y = blobs(classes)
        found = NetClassifier(loss="binary_cross_entropy", **(CHOSEN | {"epochs": 2})).fit(X, y)
        assert found.outputs(X).shape == (180, outputs)
    far = NetClassifier(loss="binary_cross_entropy", scale=False, **CHOSEN).fit(X, y)
    far.net_.put(1e6 * far.net_.theta)
    assert np.isfinite(far.predict_proba(X)).all()


@pytest.mark.parametrize(("kind", "loss", "error", "message"), [
    (NetClassifier, training.Projected("mse", 2), TypeError, "`loss` must be a name or a Loss .* found Projected"),
    (NetRegressor, training.Projected("mse", 2), TypeError, "`loss` must be a name or a Loss .* found Projected"),
    (NetClassifier, losses.mse, TypeError, "`loss` must be a name or a Loss .* found <function mse"),
    (NetClassifier, losses.distillation(2.0, 0.5), ValueError, "which takes the logits of a teacher"),
    (NetRegressor, losses.distillation(), ValueError, "which takes the logits of a teacher"),
    (NetClassifier, losses.gaussian_nll(), ValueError, "one output for each class, found gaussian_nll"),
    (NetRegressor, "cross_entropy", ValueError, "`y` must be probabilities .* classes are for NetClassifier"),
    (NetRegressor, "kl", ValueError, "`y` must be probabilities"),
    (NetRegressor, "poisson", ValueError, "`y` must not be negative for the loss poisson"),
    (NetRegressor, "binary_focal", ValueError, "`y` must be between 0 and 1 for the loss binary_focal"),
    (NetRegressor, "msee", LookupError, "did you mean 'mse'"),
])  # fmt: skip
def test_losses_that_make_no_sense_are_refused(kind, loss, error, message):
    X, y = blobs(3)
    y = y if kind is NetClassifier else X[:, 0] - 1
    with pytest.raises(error, match=message):
        kind(loss=loss, epochs=1).fit(X, y)


def test_a_loss_of_ones_own_says_what_its_outputs_mean():
    class Rates:
        """The Poisson loss by another name."""

        hits, meaning = None, Meaning("counts", "exp")

        def at(self, outputs, targets, weights=None):
            return losses.poisson().at(outputs, targets, weights)

    one, other = (NetRegressor(loss=loss, **(CHOSEN | {"epochs": 2})) for loss in (Rates(), "poisson"))
    y = TARGETS["counts"]
    np.testing.assert_array_equal(one.fit(WAVES, y).predict(WAVES), other.fit(WAVES, y).predict(WAVES))


def test_scale_of_targets_does_not_matter_to_real_losses():
    y = TARGETS["real numbers"]
    one, other = (NetRegressor(loss="huber", **(CHOSEN | {"epochs": 5})).fit(WAVES, f) for f in (y, 1024 * y))
    np.testing.assert_allclose(1024 * one.predict(WAVES), other.predict(WAVES), rtol=1e-12)
    unscaled = StandardScaler().fit_transform(y[:, None])[:, 0]
    assert NetRegressor(scale=False, **CHOSEN).fit(WAVES, unscaled).score(WAVES, unscaled) > 0.9
