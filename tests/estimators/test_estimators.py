"""Networks satisfy the conventions of scikit-learn's estimators."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import stepnet as sn
from stepnet import training
from stepnet.errors import UnknownName
from stepnet.estimators import FeynmanKacClassifier, FeynmanKacRegressor, NetClassifier, NetRegressor

QUICK = {"width": 8, "steps": 4, "epochs": 60}


CHECKED = {
    "classifier": NetClassifier(),
    "regressor": NetRegressor(),
    "feynman_kac": FeynmanKacClassifier(paths=16),
    "feynman_kac_regressor": FeynmanKacRegressor(paths=16),
    "field": NetClassifier(sn.fields.hyperbolic(sn.fields.dense(8)), loss="binary_cross_entropy", steps=4),
}


@pytest.mark.parametrize(
    "estimator",
    [pytest.param(each, marks=pytest.mark.slow if name == "field" else (), id=name) for name, each in CHECKED.items()],
)
def test_every_check_of_scikit_learn(estimator):
    """Nothing is expected to fail; the one that is left out wants an array library switched on by the environment."""
    told = check_estimator(estimator, on_skip=None)
    counts = {
        status: [each["check_name"] for each in told if each["status"] == status] for status in ("passed", "skipped")
    }
    print(f"{type(estimator).__name__}: {len(counts['passed'])} checks passed, left out: {counts['skipped']}")
    assert len(counts["passed"]) + len(counts["skipped"]) == len(told) > 40
    assert set(counts["skipped"]) <= {"check_array_api_input"}
    assert {"check_sample_weight_equivalence_on_dense_data", "check_sample_weights_shape"} <= set(counts["passed"])


def moons(count: int = 300):
    return make_moons(count, noise=0.15, random_state=0)


@pytest.mark.parametrize("net", ["hamiltonian", "resnet", "antisymmetric", "parabolic", "hyperbolic", "mlp"])
def test_moons_by_every_dynamics(net):
    X, y = moons()
    found = NetClassifier(net, width=12, steps=6, epochs=80, random_state=0).fit(X[:200], y[:200])
    assert found.score(X[200:], y[200:]) >= 0.93
    assert found.predict_proba(X).shape == (300, 2)


@pytest.mark.parametrize("optimiser", ["lbfgs", training.GaussNewton(iterations=20), training.Adam(0.02)])
def test_optimisers_by_object_and_by_name(optimiser):
    X, y = moons()
    found = NetClassifier(optimiser=optimiser, width=8, steps=4, random_state=0).fit(X[:200], y[:200])
    assert found.score(X[200:], y[200:]) >= 0.93


def test_a_net_of_ones_own():
    X, y = moons()

    def net(inputs, outputs):
        return sn.nets.neural_ode(inputs, outputs, (16,), 10, seed=1, length=2.0)

    assert NetClassifier(net, epochs=80, random_state=0).fit(X, y).score(X, y) >= 0.93


def test_pipelines_and_grids():
    """Of two rates the one that learns is found, by its name in a pipeline, and refitted."""
    X, y = moons(120)
    pipeline = make_pipeline(StandardScaler(), NetClassifier(width=8, steps=2, epochs=15, random_state=0))
    search = GridSearchCV(
        pipeline, {"netclassifier__rate": [1e-9, 0.03], "netclassifier__loss": ["mse", "focal"]}, cv=2
    )
    search.fit(X, y)
    assert search.best_params_["netclassifier__rate"] == 0.03
    assert search.score(X, y) >= 0.9
    scores = dict(zip(map(str, search.cv_results_["params"]), search.cv_results_["mean_test_score"], strict=True))
    assert (
        min(score for name, score in scores.items() if "0.03" in name)
        > 0.8
        > max(score for name, score in scores.items() if "1e-09" in name)
    )


def test_records_in_a_grid():
    X, y = moons(120)
    grid = {"optimiser": [training.SGD(1e-9), training.LBFGS(20)], "net": [sn.fields.parabolic(sn.fields.dense(6))]}
    search = GridSearchCV(NetClassifier(steps=2, epochs=2, random_state=0), grid, cv=2).fit(X, y)
    assert search.best_params_["optimiser"] == training.LBFGS(20)
    assert search.best_score_ > 0.85


def test_folds_in_processes_give_what_they_give_here():
    X, y = moons(90)
    model = NetClassifier(**(QUICK | {"epochs": 5}), random_state=0)
    here, there = (cross_val_score(model, X, y, cv=3, n_jobs=jobs) for jobs in (None, 2))
    np.testing.assert_array_equal(here, there)
    fitted = model.fit(X, y)
    (elsewhere,) = Parallel(n_jobs=2)([delayed(fitted.decision_function)(X)])
    np.testing.assert_array_equal(elsewhere, fitted.decision_function(X))


def test_words_as_classes_and_several_targets():
    X, y = moons()
    words = np.array(["lower", "upper"])[y]
    assert set(NetClassifier(**QUICK, random_state=0).fit(X, words).predict(X)) == {"lower", "upper"}
    targets = np.stack((X[:, 0] ** 2, np.sin(X[:, 1])), axis=1)
    found = NetRegressor(width=12, steps=4, epochs=120, random_state=0).fit(X, targets)
    assert found.predict(X).shape == (300, 2)
    assert found.score(X, targets) >= 0.95


def test_the_same_seed_gives_the_same_bits():
    X, y = moons(100)
    one, two = (NetClassifier(**QUICK, random_state=3).fit(X, y).decision_function(X) for _ in range(2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("kind", [NetClassifier, pytest.param(NetRegressor, marks=pytest.mark.slow)])
def test_files_without_pickle(kind, tmp_path):
    X, y = moons(100)
    fitted = kind(**QUICK, random_state=0).fit(X, y)
    fitted.save(tmp_path / "kept")
    np.save(tmp_path / "X.npy", X)
    code = (
        f"import numpy as np\nfrom stepnet.estimators import {kind.__name__}\n"
        f"found = {kind.__name__}.load(r'{tmp_path / 'kept'}')\n"
        f"np.save(r'{tmp_path / 'y.npy'}', found.predict(np.load(r'{tmp_path / 'X.npy'}')))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), fitted.predict(X))
    other = NetRegressor if kind is NetClassifier else NetClassifier
    with pytest.raises(ValueError, match="`path` holds a"):
        other.load(tmp_path / "kept")


def test_bad_input():
    X, y = moons(50)
    with pytest.raises(UnknownName, match="net 'hamiltonan'"):
        NetClassifier("hamiltonan").fit(X, y)
    with pytest.raises(TypeError, match="`net` must give a Net"):
        NetClassifier(lambda inputs, outputs: 3).fit(X, y)
    with pytest.raises(ValueError, match="at least two classes"):
        NetClassifier().fit(X, np.zeros(50))


@pytest.mark.slow
def test_digits_by_a_deep_hamiltonian_net():
    """A stratified quarter is held back; the median over three seeds."""
    X, y = load_digits(return_X_y=True)
    scores = []
    for seed in range(3):
        parts = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
        net = NetClassifier(width=32, steps=20, length=4.0, epochs=40, batch_size=64, random_state=seed, workers=2)
        scores.append(net.fit(parts[0], parts[2]).score(parts[1], parts[3]))
    print(f"digits, held out: {scores}")
    assert np.median(scores) >= 0.96


def test_outputs_and_features_are_those_of_the_net_on_scaled_samples():
    X, y = moons()
    found = NetClassifier(width=8, steps=3, epochs=2, random_state=0).fit(5 + 3 * X, y)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(found.outputs(5 + 3 * X), found.net_(scaled), rtol=1e-10)
    np.testing.assert_allclose(found.features(5 + 3 * X), found.net_.features(scaled), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.predict_proba(5 + 3 * X).sum(axis=1), 1.0, rtol=1e-12)


def test_a_fit_goes_on_from_its_folder_bit_for_bit(tmp_path):
    X, y = moons(120)
    settings = {"width": 8, "steps": 4, "random_state": 0, "optimiser": "adamw", "rate": 0.01}
    whole = NetClassifier(epochs=7, **settings).fit(X, y)
    NetClassifier(epochs=3, **settings).fit(X, y, path=tmp_path / "run")
    parts = NetClassifier(epochs=7, **settings).fit(X, y, path=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(parts.net_.theta, whole.net_.theta)
    assert parts.n_iter_ == 7
    record = NetClassifier(epochs=7, **(settings | {"optimiser": training.AdamW(0.01), "rate": None})).fit(X, y)
    np.testing.assert_array_equal(record.net_.theta, whole.net_.theta)
    waves = NetRegressor(epochs=2, **settings).fit(X, X[:, 0], path=tmp_path / "waves")
    assert training.load(tmp_path / "waves").epochs == waves.n_iter_ == 2


@pytest.mark.parametrize(("name", "record"), [("lbfgs", training.LBFGS), ("gauss_newton", training.GaussNewton)])
def test_names_of_methods_for_all_data_take_the_epochs_as_iterations(name, record):
    X, y = moons(100)
    one, other = (
        NetClassifier(optimiser=each, epochs=6, width=4, steps=3, random_state=0).fit(X, y)
        for each in (name, record(6))
    )
    np.testing.assert_array_equal(one.net_.theta, other.net_.theta)
    assert len(one.run_.history) == 6


@pytest.mark.parametrize(("settings", "path", "message"), [
    ({"optimiser": "lbfgs", "rate": 0.1}, None, "`rate` is for mini-batches"),
    ({"optimiser": "lbfgs"}, "run", "`path` and `resume` are for mini-batches"),
    ({"optimiser": training.SGD(0.1), "rate": 0.1}, None, "can only go with the name"),
    ({"rate": -1.0}, None, "`rate`"),
])  # fmt: skip
def test_settings_that_do_not_go_together(settings, path, message):
    X, y = moons(40)
    with pytest.raises((ValueError, TypeError), match=message):
        NetClassifier(epochs=1, **settings).fit(X, y, path=path)


@pytest.mark.parametrize(("net", "optimiser"), [
    ("hamiltonian", "lbfgs"), ("hamiltonian", "gauss_newton"), ("resnet", "msa"), ("hamiltonian", "adam"),
])  # fmt: skip
def test_iterations_are_counted_one_by_one(net, optimiser):
    X, y = moons(60)
    found = NetClassifier(net, optimiser=optimiser, epochs=3, width=4, steps=2, random_state=0).fit(X, y)
    assert found.n_iter_ == 3


@pytest.mark.parametrize("optimiser", ["lbfgs", "adam"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
def test_copies_know_how_training_went(optimiser, copied):
    X, y = moons(60)
    found = NetClassifier(optimiser=optimiser, epochs=3, width=4, steps=2, random_state=0).fit(X, y)
    again = copied(found)
    assert again.run_.message == found.run_.message
    np.testing.assert_equal(again.run_.history, found.run_.history)
    np.testing.assert_array_equal(again.outputs(X), found.outputs(X))


@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
def test_random_state_means_what_scikit_learn_means(kind):
    """None draws anew with every fit, by NumPy's global generator; a RandomState moves on; clones are the same."""
    X, y = moons(60)
    settings = QUICK | {"epochs": 1}
    outputs = lambda state: kind(**settings, random_state=state).fit(X, y).outputs(X)
    assert not np.array_equal(outputs(None), outputs(None))
    generator = np.random.RandomState(5)
    first = outputs(generator)
    assert not np.array_equal(outputs(generator), first)
    assert np.array_equal(outputs(np.random.RandomState(5)), first)
    assert not np.array_equal(outputs(1), outputs(2))
    model = kind(**settings, random_state=3)
    assert np.array_equal(model.fit(X, y).outputs(X), clone(model).fit(X, y).outputs(X))
