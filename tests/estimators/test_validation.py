"""Nets of all kinds, and the errors for wrong settings and data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError

import stepnet as sn
from stepnet import fields, nets, training
from stepnet.estimators import NetClassifier, NetRegressor

X, Y = make_moons(60, noise=0.15, random_state=0)
SMALL = {"width": 6, "steps": 3, "epochs": 2, "random_state": 0}

FIELDS = {
    "residual": (fields.residual(fields.dense(8)), "rk4"),
    "antisymmetric": (fields.antisymmetric(fields.dense(8), damping=0.1), "midpoint"),
    "parabolic": (fields.parabolic(fields.dense(8), "relu"), None),
    "hamiltonian": (fields.hamiltonian(fields.dense(4)), None),
    "staggered": (fields.staggered(fields.dense(4)), "verlet"),
    "hyperbolic": (fields.hyperbolic(fields.dense(8)), "leapfrog_two_step"),
    "chain": (fields.chained(fields.mlp((6, 10, 6))), "heun2"),
    "images": (fields.parabolic(fields.conv2d((3, 3), 2)), "euler"),
}


def test_every_kind_of_field_is_here():
    assert set(fields.DYNAMICS) <= set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_any_field_with_any_scheme_learns(name):
    field, scheme = FIELDS[name]
    found = NetClassifier(field, scheme=scheme, steps=5, epochs=150, rate=0.02, random_state=0).fit(X, Y)
    (block,) = found.net_.design.blocks
    assert block.field.name == field.name
    assert (block.steps, block.length) == (5, 2.0)
    assert found.score(X, Y) >= 0.93


@pytest.mark.parametrize("name", ["resnet", "parabolic", "hamiltonian", "hyperbolic"])
def test_a_preset_is_its_field_with_its_scheme(name):
    half = 3 if name == "hamiltonian" else 6
    dynamics = "residual" if name == "resnet" else name
    one = NetClassifier(name, **SMALL).fit(X, Y)
    other = NetClassifier(getattr(fields, dynamics)(fields.dense(half)), **SMALL).fit(X, Y)
    by_function = NetClassifier(getattr(nets, name), **SMALL).fit(X, Y)
    np.testing.assert_array_equal(one.net_.theta, other.net_.theta)
    np.testing.assert_array_equal(one.net_.theta, by_function.net_.theta)


def test_a_net_is_where_training_begins():
    start = nets.resnet(2, 2, 4, 3, seed=5)
    before = start.theta.copy()
    found = NetClassifier(start, epochs=0).fit(X, Y)
    np.testing.assert_array_equal(found.net_.theta, before)
    model = clone(NetClassifier(start, epochs=3, random_state=0))
    assert not np.array_equal(model.fit(X, Y).net_.theta, before)
    np.testing.assert_array_equal(start.theta, before)
    with pytest.raises(ValueError, match="`net` must take 2 inputs and give 3 outputs, found 2 and 2"):
        model.fit(X, np.arange(60) % 3)


def test_functions_with_a_seed_follow_the_random_state():
    def seeded(inputs, outputs, seed):
        return nets.neural_ode(inputs, outputs, (5,), 4, seed=seed)

    def fixed(inputs, outputs):
        return nets.neural_ode(inputs, outputs, (5,), 4, seed=3)

    one, same, other = (NetClassifier(seeded, epochs=0, random_state=k).fit(X, Y).net_.theta for k in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    one, other = (NetClassifier(fixed, epochs=0, random_state=k).fit(X, Y).net_.theta for k in (0, 1))
    np.testing.assert_array_equal(one, other)


BAD = [
    (
        {"net": ["resnet"]},
        TypeError,
        r"`net` must be a name, a Field, a Net or a function .* found \['resnet'\] \(list\)",
    ),
    ({"net": 3}, TypeError, "`net` must be a name"),
    ({"net": nets.Net}, TypeError, "`net` must be a name"),
    ({"scheme": 3}, TypeError, "`scheme` must be a name, a scheme or None, found 3"),
    ({"net": "resnett"}, LookupError, "did you mean 'resnet'"),
    ({"net": "mlp", "scheme": "rk4"}, ValueError, "`scheme` must be None for the net 'mlp', .* found 'rk4'"),
    ({"net": "midpoint_net", "scheme": "rk4"}, ValueError, "`scheme` must be None for the net 'midpoint_net'"),
    ({"options": {"foo": 1}}, TypeError, "`options` must be arguments of `nets.hamiltonian`, found {'foo': 1}"),
    (
        {"options": {"length": 1.0}},
        ValueError,
        "`options` must hold only options that are not arguments of the estimator, found 'length'",
    ),
    (
        {"options": {"steps": 1}},
        ValueError,
        "`options` must hold only options that are not arguments of the estimator, found 'steps'",
    ),
    ({"options": ["foo"]}, TypeError, "`options` must be a dictionary or None"),
    ({"width": 7}, ValueError, "`width` must be even"),
    ({"width": "7"}, (TypeError, ValueError), "`width`"),
    ({"steps": 0}, ValueError, "`steps`"),
    ({"length": -1.0}, ValueError, "`length`"),
    ({"optimiser": training.Adam}, TypeError, r"`optimiser` must be a name or a record such as Adam\(\)"),
    ({"optimiser": training.LBFGS}, TypeError, r"`optimiser` must be a name or a record such as LBFGS\(\)"),
    ({"optimiser": "adm"}, LookupError, "did you mean"),
    ({"optimiser": "lbfgs", "epochs": -1}, ValueError, "`epochs` must be at least 0"),
    ({"optimiser": "lbfgs", "clip": 1.0}, ValueError, "`clip` is for mini-batches"),
    ({"optimiser": "lbfgs", "patience": 1}, ValueError, "`patience` is for mini-batches"),
    (
        {"optimiser": "msa", "net": "resnet", "validation_fraction": 0.1},
        ValueError,
        "`validation_fraction` is for mini",
    ),
    ({"epochs": 1.5}, TypeError, "`epochs` must be an integer"),
    ({"batch_size": "auto"}, TypeError, "`batch_size` must be an integer, found 'auto'"),
    ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
    ({"workers": 0}, ValueError, "`workers` must be at least 1"),
    ({"workers": "two"}, TypeError, "`workers` must be an integer"),
    ({"scale": "x"}, TypeError, "`scale` must be True or False, found 'x'"),
    ({"alpha": -1}, ValueError, "`alpha` must be a number in"),
    ({"alpha": "x"}, TypeError, "`alpha` must be a number"),
    ({"penalty": "l3"}, LookupError, "penalty 'l3'"),
    ({"penalty": 0.1}, TypeError, "`penalty` must be a name or a Penalty"),
    ({"smoothness": -1}, ValueError, "`smoothness`"),
    ({"clip": -1.0}, ValueError, "`clip` must be a number in"),
    ({"clip": "norm"}, TypeError, "`clip` must be a number, a ClipNorm, a ClipValue or None, found 'norm'"),
    ({"patience": 0}, ValueError, "`patience` must be at least 1"),
    ({"validation_fraction": 1.0}, ValueError, "`validation_fraction` must be a number in"),
    ({"validation_fraction": 0.001}, ValueError, "`validation_fraction` = 0.001 of 60 samples cannot be held out"),
    ({"rate": "x"}, TypeError, "`rate` must be a number"),
    ({"random_state": "x"}, ValueError, "seed"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD, ids=lambda each: str(each)[:50])
def test_wrong_settings_are_named_and_leave_the_estimator_as_it_was(settings, error, message):
    new = NetClassifier(**(SMALL | settings))
    with pytest.raises(error, match=message):
        new.fit(X, Y)
    with pytest.raises(NotFittedError):
        new.predict(X)
    fitted = NetClassifier(**SMALL).fit(X, Y)
    before, known = fitted.outputs(X), set(vars(fitted))
    with pytest.raises(error, match=message):
        fitted.set_params(**settings).fit(np.hstack((X, X)), np.arange(60) % 3)
    assert fitted.n_features_in_ == 2
    assert set(vars(fitted)) == known
    np.testing.assert_array_equal(fitted.outputs(X), before)
    np.testing.assert_array_equal(fitted.classes_, [0, 1])


def test_a_run_that_diverges_leaves_the_estimator_as_it_was():
    fitted = NetRegressor(**SMALL).fit(X, X[:, 0])
    before = fitted.predict(X)
    with pytest.raises(sn.TrainingFailed):
        fitted.set_params(optimiser=training.SGD(1e200), epochs=50).fit(X, X[:, 1])
    np.testing.assert_array_equal(fitted.predict(X), before)


@pytest.mark.parametrize("kind", [NetClassifier, NetRegressor])
def test_wrong_samples_are_refused(kind):
    found = kind(**SMALL).fit(X, Y)
    missing = X.copy()
    missing[3, 1] = np.nan
    for act in (found.predict, found.outputs, found.features):
        with pytest.raises(ValueError, match="NaN"):
            act(missing)
        with pytest.raises(ValueError, match="0 sample"):
            act(X[:0])
        with pytest.raises(ValueError, match="3 features, but"):
            act(np.hstack((X, X[:, :1])))
        with pytest.raises(ValueError, match="Expected 2D array"):
            act(X[0])
    for samples, targets, message in (
        (missing, Y, "NaN"), (X[:0], Y[:0], "0 sample"), (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:, 0], Y, "Expected 2D array"), (X, None, "y"), (X, np.full(60, np.nan), "NaN"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            kind(**SMALL).fit(samples, targets)


def test_a_class_that_was_never_seen_is_never_right():
    found = NetClassifier(**(SMALL | {"epochs": 60})).fit(X, np.array(["lower", "upper"])[Y])
    assert found.score(X, np.array(["lower", "new"])[Y]) <= np.mean(Y == 0)
    assert found.score(X, np.full(60, "new")) == 0.0
