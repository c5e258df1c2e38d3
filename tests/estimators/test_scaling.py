"""Columns are shifted and scaled; constant ones are not amplified."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from stepnet.estimators import NetClassifier, NetRegressor, scaling

ROUNDING = 1e-13  # of a mean of 60 numbers, through two steps of training
SMALL = {"width": 4, "steps": 2, "epochs": 2, "random_state": 0}


@pytest.mark.parametrize("constant", [0.1, 0.0, 1 / 3, -1e6 / 7, 1e-200, 1e300])
@pytest.mark.parametrize("count", [3, 100, 10_000])
def test_a_constant_column_keeps_its_size(constant, count):
    assert scaling.standard(np.full((count, 1), constant)).spread == 1.0


@pytest.mark.parametrize("size", [1e-200, 1e-8, 1.0, 1e200])
def test_columns_get_mean_zero_and_variance_one(size):
    values = size * np.random.default_rng(0).normal(3.0, 2.0, (500, 3))
    shift, spread = scaling.standard(values)
    scaled = (values - shift) / spread
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, rtol=1e-13)


def test_it_agrees_with_scikit_learn():
    random = np.random.default_rng(1)
    values = np.column_stack((random.normal(1e8, 1e-3, 200), random.normal(1e9, 1e-7, 200), np.full(200, 0.7)))
    shift, spread = scaling.standard(values)
    theirs = StandardScaler().fit(values)
    np.testing.assert_allclose(shift, theirs.mean_, rtol=1e-15)
    np.testing.assert_allclose(spread, theirs.scale_, rtol=1e-6)


def test_weights_are_repetitions():
    random = np.random.default_rng(2)
    values, weights = random.normal(size=(20, 3)), random.integers(0, 4, 20)
    weighted, repeated = scaling.standard(values, weights), scaling.standard(values.repeat(weights, axis=0))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-13)


def test_constant_features_and_targets_do_not_blow_up_in_estimators():
    random = np.random.default_rng(3)
    X = np.column_stack((random.normal(size=60), np.full(60, 0.1)))
    found = NetClassifier(**SMALL).fit(X, X[:, 0] > 0)
    assert found.factor_[1] == 1.0
    np.testing.assert_allclose(found.shift_[1], 0.1, rtol=ROUNDING)
    moved = np.column_stack(((X[:, 0] - X[:, 0].mean()) / X[:, 0].std(), np.full(60, 1e-3)))
    np.testing.assert_allclose(found.outputs(np.add(X, [0.0, 1e-3])), found.net_(moved), atol=ROUNDING)
    flat, zero = (NetRegressor(**SMALL).fit(X, np.full(60, target)) for target in (0.1, 0.0))
    assert flat.y_factor_ == zero.y_factor_ == 1.0
    np.testing.assert_allclose(flat.predict(X), zero.predict(X) + 0.1, atol=ROUNDING)
