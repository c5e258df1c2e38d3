"""FeynmanKacClassifier: expectations over paths, their intervals, abstention, the same bits in every batch."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import stepnet as sn
from stepnet.estimators import FeynmanKacClassifier, NetClassifier

QUICK = {"width": 6, "steps": 4, "epochs": 30, "rate": 0.02, "random_state": 0}
X, Y = make_moons(300, noise=0.3, random_state=0)
IRIS = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def noisy() -> FeynmanKacClassifier:
    return FeynmanKacClassifier(diffusion=0.5, paths=32, **QUICK).fit(X[:200], Y[:200])


@pytest.fixture(scope="module")
def flowers() -> FeynmanKacClassifier:
    return FeynmanKacClassifier("hamiltonian", diffusion=0.5, learn_diffusion=True, paths=48, **QUICK).fit(*IRIS)


def diffuse(model: FeynmanKacClassifier, noise: float) -> FeynmanKacClassifier:
    """Replace the dynamics of a fitted model by Brownian motion, y_T = y_0 + noise W_T, under a steeper readout."""
    for name, weights in model.net_.weights.items():
        if name.startswith("blocks."):
            weights[...] = 0.0
    model.net_.weights["readout.W"][...] *= 3.0  # a steep readout, which noise changes much
    assert model.net_.design.blocks[0].field.diffusion.scale == noise
    return model


def test_probabilities_of_brownian_motion_solve_the_heat_equation():
    """The logit is normal, and its expectation is a Gauss-Hermite sum; errors are at most 5 standard errors."""
    sigma = 0.8
    model = FeynmanKacClassifier(diffusion=sigma, loss="binary_cross_entropy", paths=4096, **QUICK | {"steps": 3})
    model = diffuse(model.fit(X[:200], Y[:200]), sigma)
    weights, points = model.net_.weights, X[:40]
    logits = model.features(points)[0] @ weights["readout.W"].reshape(-1) + weights["readout.b"]
    spread = sigma * np.sqrt(model.length) * np.linalg.norm(weights["readout.W"])
    nodes, factors = np.polynomial.hermite_e.hermegauss(80)
    exact = expit(logits[:, None] + spread * nodes) @ factors / factors.sum()
    found, lower, upper = model.predict_proba(points, return_interval=True)
    error = (upper - lower)[:, 1] / (2 * 1.96)
    assert (np.abs(found[:, 1] - exact) < 5 * error).all()
    assert error.max() < 0.01
    assert np.abs(expit(logits) - exact).max() > 10 * error.max()  # the mean is not the net without noise


def test_intervals_contain_the_expectation_as_often_as_stated(noisy):
    points = np.random.default_rng(1).uniform(-1, 2, (2000, 2))
    wide = clone(noisy).set_params(epochs=0).fit(X[:200], Y[:200])
    wide.net_.put(noisy.net_.theta)
    exact = wide.set_params(paths=2048).predict_proba(points)[:, 0]
    wide.noise_seed_ += 1
    _, lower, upper = wide.set_params(paths=64, confidence=0.95).predict_proba(points, return_interval=True)
    inside = np.mean((lower[:, 0] <= exact) & (exact <= upper[:, 0]))
    print(f"95 % intervals of 64 paths contain {inside:.1%} of {len(points)} expectations")
    assert 0.93 < inside < 0.97  # with a standard deviation of 0.005


@pytest.mark.parametrize("error", [None, 0.02])
def test_answers_do_not_depend_on_batch_order_or_threads(noisy, flowers, error):
    random = np.random.default_rng(0)
    for model, points in ((noisy, X), (flowers, IRIS[0])):
        model = clone_fitted(model).set_params(error=error)
        whole = model.predict_proba(points, return_interval=True)
        model.net_ = sn.nets.Net(model.net_.design, model.net_.theta, workers=2)
        for rows in (np.array([5]), np.arange(7, 90), random.permutation(len(points)), np.array([3, 3, 4])):
            for a, b in zip(model.predict_proba(points[rows], return_interval=True), whole, strict=True):
                assert np.array_equal(a, b[rows])
        assert np.array_equal(model.predict(points[40:60]), model.classes_[whole[0][40:60].argmax(axis=1)])


def clone_fitted(model: FeynmanKacClassifier) -> FeynmanKacClassifier:
    found = clone(model)
    found.__dict__.update({name: value for name, value in vars(model).items() if name.endswith("_")})
    return found


def test_no_diffusion_is_the_net_classifier_bit_for_bit():
    plain = NetClassifier("resnet", **QUICK).fit(X, Y)
    found = FeynmanKacClassifier(diffusion=0.0, train_paths=3, **QUICK).fit(X, Y)
    probability, lower, upper = found.predict_proba(X, return_interval=True)
    assert np.array_equal(probability, plain.predict_proba(X))
    assert np.array_equal(lower, probability)
    assert np.array_equal(upper, probability)
    assert np.array_equal(found.predict(X, abstain=True), plain.predict(X))


def test_it_abstains_where_intervals_overlap(noisy):
    names = np.array(["lower", "upper"])
    model = clone(noisy).set_params(paths=8).fit(X[:200], names[Y[:200]])
    labels = model.predict(X, abstain=True)
    _, lower, upper = model.predict_proba(X, return_interval=True)
    is_open = np.array([label is None for label in labels])
    assert np.array_equal(is_open, (lower[:, 0] <= upper[:, 1]) & (lower[:, 1] <= upper[:, 0]))
    assert 0 < is_open.sum() < 0.7 * len(X)
    assert np.array_equal(labels[~is_open], model.predict(X)[~is_open])
    is_right = model.predict(X) == names[Y]
    assert is_right[~is_open].mean() > is_right[is_open].mean()


def test_a_target_error_is_reached_by_the_samples_that_need_more_paths(noisy):
    model = clone_fitted(noisy).set_params(error=0.01)
    found = model._average(X)[0]
    assert np.median(found.standard_error.max(axis=1)) < 0.01
    assert found.standard_error.max() < 0.015  # the pilot run of 32 paths estimates the variance
    assert found.paths.min() < found.paths.max() < 2 * 0.25 / 0.01**2
    assert set(found.paths.tolist()) <= {32 * 2**k for k in range(12)}


def test_a_learned_noise_level_is_trained_from_the_given_one(flowers):
    learned = [name for name in flowers.net_.weights if name.endswith(".g")]
    assert learned == ["blocks.0.g"]
    assert np.abs(flowers.net_.weights["blocks.0.g"]).min() > 0
    start = clone(flowers).set_params(epochs=0).fit(*IRIS)
    assert not start.net_.weights["blocks.0.g"].any()
    given = clone(flowers).set_params(epochs=0, learn_diffusion=False).fit(*IRIS)
    one, other = (each.outputs(IRIS[0]) for each in (start, given))
    assert np.allclose(one, other, rtol=1e-12, atol=1e-12)  # softplus(0) / log 2 = 1
    assert flowers.score(*IRIS) > 0.9


def test_a_net_with_its_own_diffusion():
    field = sn.fields.residual(sn.fields.dense(5)).with_diffusion(sn.fields.diffusion.multiplicative((5,), 0.3))
    model = FeynmanKacClassifier(field, diffusion=None, epochs=5, random_state=0).fit(X, Y)
    assert model.net_.design.blocks[0].field.diffusion.name == "multiplicative"
    with pytest.raises(ValueError, match="`diffusion` must be a number"):
        FeynmanKacClassifier(diffusion=None).fit(X, Y)


@pytest.mark.parametrize("name", ["noisy", "flowers"])
def test_files_keep_every_bit(name, request, tmp_path):
    model, points = request.getfixturevalue(name), X if name == "noisy" else IRIS[0]
    model.save(tmp_path / "model")
    again = FeynmanKacClassifier.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    for a, b in zip(*(each.predict_proba(points, return_interval=True) for each in (model, again)), strict=True):
        assert np.array_equal(a, b)
    with pytest.raises(ValueError, match="holds a FeynmanKacClassifier"):
        NetClassifier.load(tmp_path / "model")


def test_a_resumed_fit_is_the_whole_one_bit_for_bit(tmp_path):
    settings = QUICK | {"diffusion": 0.5, "train_paths": 2, "paths": 8}
    whole = FeynmanKacClassifier(**settings).fit(X, Y)
    FeynmanKacClassifier(**settings | {"epochs": 7}).fit(X, Y, path=tmp_path)
    again = FeynmanKacClassifier(**settings).fit(X, Y, path=tmp_path, resume=True)
    assert np.array_equal(again.net_.theta, whole.net_.theta)
    assert np.array_equal(again.predict_proba(X), whole.predict_proba(X))


def test_pipelines_and_searches():
    model = FeynmanKacClassifier(paths=8, **QUICK)
    pipeline = make_pipeline(StandardScaler(), model)
    search = GridSearchCV(pipeline, {"feynmankacclassifier__diffusion": [0.0, 0.4]}, cv=2).fit(X, Y)
    assert search.best_score_ > 0.75
    probability, lower, upper = pipeline.fit(X, Y).predict_proba(X, return_interval=True)
    assert ((lower <= probability) & (probability <= upper)).all()


def test_methods_on_all_data_use_fixed_paths():
    settings = QUICK | {"optimiser": "lbfgs", "rate": None, "epochs": 25, "diffusion": 0.3, "paths": 8}
    one, other = (FeynmanKacClassifier(**settings).fit(X, Y) for _ in range(2))
    assert np.array_equal(one.net_.theta, other.net_.theta)
    assert one.score(X, Y) > 0.85


BAD = {
    "paths": (1, "`paths`"),
    "error": (1e-6, "may take 2.5e\\+11 paths of a sample"),
    "confidence": (1.0, "`confidence`"),
    "diffusion": (-0.1, "`diffusion`"),
    "train_paths": (0, "`train_paths`"),
    "learn_diffusion": ("yes", "`learn_diffusion`"),
    "loss": ("mse", "`loss` must define probabilities"),
    "net": ("mlp", "one-step scheme"),
    "levels": (4, "`levels` = 4 needs steps that are a multiple of 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_make_no_sense_are_refused(name):
    value, message = BAD[name]
    with pytest.raises((TypeError, ValueError), match=message):
        FeynmanKacClassifier(**QUICK | {name: value}).fit(X, Y)
