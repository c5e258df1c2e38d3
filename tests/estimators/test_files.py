"""Estimators in folders: all settings, labels and columns, without pickle."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons

import stepnet as sn
from stepnet import fields, training
from stepnet.estimators import NetClassifier, NetRegressor, NotStored
from stepnet.estimators.settings import build, describe
from stepnet.nets import losses, penalties
from stepnet.nets.losses import Meaning

SMALL = {"width": 6, "steps": 3, "epochs": 2, "random_state": 0}
X, Y = make_moons(60, noise=0.15, random_state=0)


def kept(found, folder):
    """The same estimator from a folder in which nothing is pickled."""
    found.save(folder)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    return type(found).load(folder)


RECORDS = [
    {"optimiser": training.AdamW(training.WarmUp(training.Cosine(0.05, 20), 2), decay=0.1)},
    {"optimiser": training.Proximal(training.SGD(training.StepDecay(0.1)), penalties.l1(0.01))},
    {"optimiser": training.LBFGS(3)},
    {"optimiser": training.GaussNewton(2, control=training.TrustRegion(0.5))},
    {"optimiser": training.MSA(1), "net": "resnet"},
    {"rate": training.Exponential(0.02)},
    {"rate": np.float32(0.02), "width": np.int64(6), "steps": np.int32(3), "scale": np.bool_(True)},
    {"loss": losses.cross_entropy(0.1, 2.0)},
    {"loss": losses.get("focal", class_weights=[1.0, 2.0], reduction="sum")},
    {"loss": losses.barron(-np.inf, 2.0)},
    {"clip": training.ClipValue(0.5), "penalty": penalties.elastic_net(0.01)},
    {"activation": fields.activation("relu"), "scheme": sn.schemes.get("verlet")},
    {"options": {"initialisation": "he", "memory": sn.checkpoints.Checkpoints(slots=2), "dtype": np.float32}},
    {"class_weight": {0: 1.0, np.int64(1): 2.0}, "patience": 3, "validation_fraction": 0.2},
]


@pytest.mark.parametrize("settings", RECORDS, ids=str)
def test_records_and_numbers_come_back_as_they_were(settings, tmp_path):
    found = NetClassifier(**(SMALL | settings)).fit(X, Y)
    again = kept(found, tmp_path)
    mine, other = found.get_params(), again.get_params()
    for name in mine:
        assert repr(other[name]) == repr(build(describe(mine[name]))), name
        assert type(other[name]) is type(mine[name]) or isinstance(mine[name], (np.generic, type)), name
    np.testing.assert_array_equal(again.outputs(X), found.outputs(X))
    np.testing.assert_array_equal(clone(again).fit(X, Y).net_.theta, found.net_.theta)
    kept(again, tmp_path / "again")


class Squares:
    """A loss of one's own."""

    hits, meaning = None, Meaning("real numbers")

    def at(self, outputs, targets, weights=None):
        return losses.mse().at(outputs, targets, weights)


def own(inputs, outputs):
    return sn.nets.resnet(inputs, outputs, 4, 2)


@pytest.mark.parametrize("settings", [
    {"net": own}, {"net": own(2, 2)}, {"random_state": np.random.RandomState(0)}, {"loss": Squares()},
    {"rate": lambda epoch: 0.01}, {"optimiser": training.Adam(lambda epoch: 0.01)}, {"options": {"workers_": own}},
], ids=lambda settings: f"{next(iter(settings))}-{type(next(iter(settings.values()))).__name__}")  # fmt: skip
def test_what_no_file_can_hold_is_told_of_and_predictions_are_the_same(settings, tmp_path):
    (name, value), *_ = settings.items()
    if name == "options":
        found = NetClassifier(**SMALL).fit(X, Y).set_params(**settings)
    else:
        found = NetClassifier(**(SMALL | settings)).fit(X, Y)
    again = kept(found, tmp_path)
    assert again.get_params()[name] == NotStored(repr(value))
    np.testing.assert_array_equal(again.outputs(X), found.outputs(X))
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    with pytest.raises(ValueError, match=f"`{name}` was not stored"):
        again.fit(X, Y)
    np.testing.assert_array_equal(again.outputs(X), found.outputs(X))
    assert kept(again, tmp_path / "again").get_params()[name] == NotStored(repr(value))
    again.set_params(**{name: SMALL.get(name, NetClassifier().get_params()[name])}).fit(X, Y)


@pytest.mark.parametrize("field", [fields.parabolic(fields.dense(5)), fields.hamiltonian(fields.dense(3), "relu")])
def test_fields_are_stored_with_their_nets(field, tmp_path):
    found = NetClassifier(field, **SMALL).fit(X, Y)
    again = kept(found, tmp_path)
    assert again.net.name == field.name
    np.testing.assert_array_equal(clone(again).fit(X, Y).net_.theta, found.net_.theta)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs", "gauss_newton"])
@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
def test_how_training_went_is_stored(kind, optimiser, tmp_path):
    found = kind(optimiser=optimiser, **SMALL).fit(X, Y)
    again = kept(found, tmp_path)
    assert again.n_iter_ == found.n_iter_ == 2
    for name, value in vars(found.run_).items():
        np.testing.assert_equal(vars(again.run_)[name], value)


LABELS = [
    np.array([3, -7]), np.array([2.0, -1.0]), np.array([False, True]), np.array(["no", "yes"]),
    np.array(["nö", "✓"], dtype=object), np.array([2**62, 1], dtype=np.uint64), np.array([1, 2], dtype=np.int8),
    np.array(["2020-01-01", "2021-05-03"], dtype="datetime64[D]"),
]  # fmt: skip


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_of_all_kinds(labels, tmp_path):
    y = labels[Y]
    found = NetClassifier(**SMALL).fit(X, y)
    again = kept(found, tmp_path)
    assert again.classes_.dtype == found.classes_.dtype
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    assert again.score(X, y) == found.score(X, y)


@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
def test_columns_of_a_table_are_known_by_name_after_loading(kind, tmp_path):
    table = pd.DataFrame(X, columns=["left", "right"])
    found = kind(**SMALL).fit(table, pd.Series(Y))
    again = kept(found, tmp_path)
    np.testing.assert_array_equal(again.feature_names_in_, ["left", "right"])
    np.testing.assert_array_equal(again.predict(table), found.predict(table))
    for each in (found, again):
        with pytest.raises(ValueError, match="feature names"):
            each.predict(table[["right", "left"]])
    assert not hasattr(kept(kind(**SMALL).fit(X, Y), tmp_path / "plain"), "feature_names_in_")


def test_several_targets_and_words_of_tables(tmp_path):
    table = pd.DataFrame(X, columns=["left", "right"])
    words = pd.Series(np.array(["lower", "upper"])[Y], dtype="category")
    again = kept(NetClassifier(**SMALL).fit(table, words), tmp_path / "words")
    assert set(again.predict(table)) <= {"lower", "upper"}
    assert kept(NetRegressor(**SMALL).fit(table, table), tmp_path / "two").predict(table).shape == (60, 2)


def test_paths_that_hold_no_estimator(tmp_path):
    with pytest.raises(ValueError, match="`path` holds no estimator"):
        NetClassifier.load(tmp_path / "nope")
    with pytest.raises(TypeError, match="`path` must be the path of a folder, found 3"):
        NetClassifier.load(3)
    (tmp_path / "file").write_text("")
    found = NetClassifier(**SMALL).fit(X, Y)
    for act in (NetClassifier.load, found.save):
        with pytest.raises(ValueError, match="is a file"):
            act(tmp_path / "file")
    kept(found, tmp_path / "kept")
    told = json.loads((tmp_path / "kept" / "estimator.json").read_text())
    (tmp_path / "kept" / "estimator.json").write_text(json.dumps(told | {"format": 99}))
    with pytest.raises(ValueError, match="`path` holds the format 99, this version reads"):
        NetClassifier.load(tmp_path / "kept")
