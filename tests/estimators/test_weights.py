"""Weights of samples and classes, and samples that are held out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_moons

from stepnet import training
from stepnet.estimators import NetClassifier, NetRegressor, scaling
from stepnet.nets import losses, penalties

SMALL = {"width": 6, "steps": 3, "random_state": 0}
X, Y = make_moons(40, noise=0.15, random_state=0)
COUNTS = np.random.default_rng(0).integers(0, 4, 40)
ROUNDING = 1e-9  # sums in another order, through some steps of training


@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
@pytest.mark.parametrize("settings", [
    {"batch_size": None, "epochs": 20}, {"optimiser": training.LBFGS(8)},
    {"optimiser": training.GaussNewton(4, cg_iterations=3)},  # more products make rounding large
], ids=["adam", "lbfgs", "gauss-newton"])  # fmt: skip
def test_weights_are_repetitions_where_all_data_are_one_batch(kind, settings):
    weighted = kind(**SMALL, **settings).fit(X, Y, sample_weight=COUNTS)
    repeated = kind(**SMALL, **settings).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
    np.testing.assert_allclose(weighted.outputs(X), repeated.outputs(X), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("name", sorted(set(losses.names()) - {"distillation", "gaussian_nll"}))
def test_weights_are_repetitions_under_every_loss_of_classes(name):
    settings = SMALL | {"loss": name, "batch_size": None, "epochs": 5}
    weighted = NetClassifier(**settings).fit(X, Y, sample_weight=COUNTS)
    repeated = NetClassifier(**settings).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
    np.testing.assert_allclose(weighted.outputs(X), repeated.outputs(X), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
def test_weights_of_one_change_nothing_and_a_common_factor_little(kind):
    settings = SMALL | {"epochs": 4, "batch_size": 16}
    plain, ones, sevens = (kind(**settings).fit(X, Y, sample_weight=w) for w in (None, np.ones(40), [7] * 40))
    np.testing.assert_array_equal(ones.outputs(X), plain.outputs(X))
    np.testing.assert_allclose(sevens.outputs(X), plain.outputs(X), rtol=ROUNDING)


def test_samples_without_weight_are_not_there():
    """Neither their columns nor their class count."""
    strange = np.vstack((X, [[1e6, -1e6]] * 3))
    y, weights = np.append(Y, [2, 2, 2]), np.append(np.ones(40), np.zeros(3))
    settings = SMALL | {"epochs": 3, "batch_size": 8}
    found, without = (
        NetClassifier(**settings).fit(strange, y, sample_weight=weights),
        NetClassifier(**settings).fit(X, Y),
    )
    np.testing.assert_array_equal(found.classes_, [0, 1])
    np.testing.assert_array_equal(found.outputs(X), without.outputs(X))


def overlapping():
    """Nine samples of one class for each of the other, not to be told apart."""
    random = np.random.default_rng(1)
    return random.normal(size=(400, 2)), (np.arange(400) % 10 == 0).astype(int)


@pytest.mark.parametrize(
    ("class_weight", "share"), [(None, 0.1), ("balanced", 0.5), ({0: 1, 1: 9}, 0.5), ({1: 27.0}, 0.75)]
)
def test_class_weights_move_the_probabilities(class_weight, share):
    """Of samples that are all the same."""
    _, y = overlapping()
    Z = np.full((400, 1), 0.1)
    settings = {"net": "resnet", "width": 2, "steps": 1, "optimiser": "lbfgs", "alpha": 0.0, "random_state": 0}
    found = NetClassifier(class_weight=class_weight, **settings).fit(Z, y)
    np.testing.assert_allclose(found.predict_proba(Z)[:, 1], share, rtol=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "binary_cross_entropy"])
def test_class_weights_are_weights_of_samples(loss):
    Z, y = overlapping()
    words = np.array(["common", "rare"])[y]
    settings = SMALL | {"loss": loss, "epochs": 3, "batch_size": 64}
    by_class = NetClassifier(class_weight={"rare": 3.0}, **settings).fit(Z, words)
    by_sample = NetClassifier(**settings).fit(Z, words, sample_weight=np.where(y, 3.0, 1.0))
    for fitted, weights in ((by_class, None), (by_sample, np.where(y, 3.0, 1.0))):
        shift, spread = scaling.standard(Z, weights)  # that of columns follows the samples' weights alone
        np.testing.assert_array_equal(fitted.shift_, shift)
        np.testing.assert_array_equal(fitted.factor_, 1 / spread)
    assert not np.isclose(by_class.shift_, by_sample.shift_, rtol=1e-3).any()
    unscaled = settings | {"scale": False}
    by_class = NetClassifier(class_weight={"rare": 3.0}, **unscaled).fit(Z, words)
    by_sample = NetClassifier(**unscaled).fit(Z, words, sample_weight=np.where(y, 3.0, 1.0))
    np.testing.assert_array_equal(by_class.outputs(Z), by_sample.outputs(Z))


def test_balanced_classes_count_samples_by_their_weights():
    settings = SMALL | {"class_weight": "balanced", "batch_size": None, "epochs": 10}
    weighted = NetClassifier(**settings).fit(X, Y, sample_weight=COUNTS)
    repeated = NetClassifier(**settings).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
    np.testing.assert_allclose(weighted.outputs(X), repeated.outputs(X), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(("settings", "weights", "message"), [
    ({}, np.zeros(40), "`sample_weight` must have a weight that is not zero"),
    ({}, -np.ones(40), "`sample_weight` must be finite and not negative"),
    ({}, np.full(40, np.nan), "`sample_weight` must be finite"),
    ({}, ["heavy"] * 40, "`sample_weight` must be an array of real numbers"),
    ({}, np.ones(39), r"`sample_weight` must be 40 numbers, one for each sample, found shape \(39,\)"),
    ({}, (Y == 1).astype(float), "`y` must have at least two classes"),
    ({"class_weight": "even"}, None, "`class_weight` must be None, 'balanced' or a dictionary, found 'even'"),
    ({"class_weight": {0: -1.0}}, None, "`class_weight` must be finite, not negative"),
    ({"class_weight": {0: 1.0, 7: 2.0}}, None, r"classes, \[1\], are not in class_weight"),
])  # fmt: skip
def test_weights_that_are_refused(settings, weights, message):
    with pytest.raises((TypeError, ValueError), match=message):
        NetClassifier(epochs=1, **settings).fit(X, Y, sample_weight=weights)


# ---- clipping, penalties, held-out samples --------------------------------------------------------------------------


def test_gradients_are_clipped():
    """One step of plain gradients is as long as the limit says."""
    settings = SMALL | {"optimiser": training.SGD(1.0), "epochs": 1, "batch_size": None, "alpha": 0.0}
    start = NetClassifier(**(settings | {"epochs": 0})).fit(X, Y).net_.theta
    for clip in (0.01, np.float32(0.01), training.ClipNorm(0.01)):
        step = NetClassifier(clip=clip, **settings).fit(X, Y).net_.theta - start
        np.testing.assert_allclose(np.linalg.norm(step), 0.01, rtol=1e-7)
    step = NetClassifier(clip=training.ClipValue(0.003), **settings).fit(X, Y).net_.theta - start
    np.testing.assert_allclose(np.abs(step).max(), 0.003, rtol=1e-12)


@pytest.mark.parametrize(("penalty", "alpha", "record"), [
    ("l2", 0.3, penalties.l2(0.3)), ("l1", 0.3, penalties.l1(0.3)), ("none", 0.3, penalties.none()),
    ("elastic_net", 0.2, penalties.elastic_net(0.2)), (None, 0.3, penalties.none()),
])  # fmt: skip
def test_penalties_by_name_have_the_strength_alpha(penalty, alpha, record):
    settings = SMALL | {"epochs": 3}
    one = NetClassifier(penalty=penalty, alpha=alpha, **settings).fit(X, Y)
    other = NetClassifier(penalty=record, **settings).fit(X, Y)
    np.testing.assert_array_equal(one.net_.theta, other.net_.theta)


def test_strong_penalties_make_weights_small():
    free, bound = (
        NetClassifier(penalty="l1", alpha=alpha, epochs=200, rate=0.01, **SMALL).fit(X, Y) for alpha in (0, 1)
    )
    assert np.abs(bound.net_.theta).max() < 0.1 * np.abs(free.net_.theta).max()


def test_training_ends_when_held_out_samples_are_learnt_no_better():
    Z, y = make_blobs(120, centers=3, cluster_std=2.5, random_state=0)
    settings = SMALL | {"epochs": 300, "rate": 0.03, "validation_fraction": 0.25, "patience": 5}
    found = NetClassifier(**settings).fit(Z, y)
    told = found.run_.history["validation_loss"]
    assert found.run_.ending is training.Ending.STOPPED
    assert found.n_iter_ == len(told) == np.argmin(told) + 1 + 5 < 300
    again = NetClassifier(**(settings | {"patience": None, "epochs": int(np.argmin(told)) + 1})).fit(Z, y)
    np.testing.assert_array_equal(again.net_.theta, found.net_.theta)


def test_a_share_of_each_class_is_held_back(monkeypatch):
    kept = {}

    def train(objective, data, recipe, **more):
        kept.update(data=data, held=more["validation"])
        return training.train(objective, data, recipe, **more)

    monkeypatch.setattr("stepnet.estimators.net_estimator.train", train)
    y = np.repeat([0, 1, 2], [60, 30, 10])
    Z = np.column_stack((np.arange(100.0), y))
    NetClassifier(validation_fraction=0.2, epochs=1, scale=False, **SMALL).fit(Z, y, sample_weight=1.0 + np.arange(100))
    np.testing.assert_array_equal(np.bincount(kept["held"].y), [12, 6, 2])
    np.testing.assert_array_equal(np.bincount(kept["data"].y), [48, 24, 8])
    for part in kept.values():
        np.testing.assert_array_equal(part.weights, 1 + part.x[:, 0])
        np.testing.assert_array_equal(part.y, part.x[:, 1])
    NetRegressor(validation_fraction=0.3, epochs=1, **SMALL).fit(Z, y)
    assert (len(kept["data"]), len(kept["held"])) == (70, 30)


def test_a_fit_with_held_out_samples_goes_on_bit_for_bit(tmp_path):
    settings = SMALL | {"validation_fraction": 0.25, "batch_size": 8}
    whole = NetClassifier(epochs=6, **settings).fit(X, Y)
    NetClassifier(epochs=2, **settings).fit(X, Y, path=tmp_path)
    parts = NetClassifier(epochs=6, **settings).fit(X, Y, path=tmp_path, resume=True)
    np.testing.assert_array_equal(parts.net_.theta, whole.net_.theta)
    np.testing.assert_equal(parts.run_.history, whole.run_.history)
