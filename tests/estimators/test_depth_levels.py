"""Multilevel Monte Carlo over depth, in FeynmanKacClassifier and FeynmanKacRegressor: means, errors, costs, bits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons

import stepnet as sn
from stepnet.estimators import FeynmanKacClassifier, FeynmanKacRegressor, NetRegressor
from stepnet.estimators.depth_levels import coarsen

X, Y = make_moons(300, noise=0.3, random_state=0)
DEEP = {"width": 6, "steps": 64, "epochs": 15, "rate": 0.02, "diffusion": 0.5, "smoothness": 1e-3, "random_state": 0}
LEVELS = 5
MOST_COST = 1.0 / 3.0  # of plain Monte Carlo at the same error
SIGMAS = 5.0  # of the largest of 200 deviations
TARGET = X[:, 0] * X[:, 1]


@pytest.fixture(scope="module")
def deep() -> FeynmanKacClassifier:
    return FeynmanKacClassifier(**DEEP).fit(X, Y)


@pytest.fixture(scope="module")
def curve() -> FeynmanKacRegressor:
    return FeynmanKacRegressor(**DEEP | {"steps": 16, "paths": 256}).fit(X, TARGET)


def change(model, **settings):
    """The same fitted model with other settings."""
    found = clone(model).set_params(**settings)
    found.__dict__.update({name: value for name, value in vars(model).items() if name.endswith("_")})
    return found


def test_levels_reach_the_error_of_plain_monte_carlo_at_a_third_of_its_cost(deep, capsys):
    points, error = X[:100], 5e-3
    plain, _ = change(deep, error=error)._average(points)
    found, _ = change(deep, error=error, levels=LEVELS)._average(points)
    plain_cost = (plain.standard_error.max(axis=1) ** 2 * plain.paths).sum() / error**2  # of exactly this error
    cost = (found.standard_error.max(axis=1) ** 2 * found.cost).sum() / error**2
    with capsys.disabled():
        print(
            f"\nmultilevel over {LEVELS} depths: {cost / plain_cost:.2f} of the plain cost at equal error, standard "
            f"errors {found.standard_error.max(axis=1).mean():.1e} and {plain.standard_error.max(axis=1).mean():.1e}"
        )
    assert cost < MOST_COST * plain_cost
    assert found.cost.sum() < MOST_COST * plain.cost.sum()
    assert np.median(found.standard_error.max(axis=1)) < error
    spread = np.sqrt(found.standard_error**2 + plain.standard_error**2)
    assert np.all(np.abs(found.mean - plain.mean) < SIGMAS * spread)


def test_without_a_target_the_error_is_about_that_of_the_paths(deep):
    plain, _ = change(deep, paths=4096)._average(X[:50])
    found, _ = change(deep, paths=4096, levels=LEVELS)._average(X[:50])
    ratio = found.standard_error.max(axis=1) / plain.standard_error.max(axis=1)
    assert np.median(ratio) < 1.2
    assert found.cost.sum() < MOST_COST * plain.cost.sum()


def test_probabilities_of_levels_are_probabilities_of_a_sample_alone(deep):
    model = change(deep, error=0.02, levels=3)
    whole = model.predict_proba(X[:60], return_interval=True)
    assert whole[0].sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert ((whole[1] <= whole[0]) & (whole[0] <= whole[2])).all()
    for rows in ([5], [40, 3, 40]):
        for a, b in zip(model.predict_proba(X[rows], return_interval=True), whole, strict=True):
            assert np.array_equal(a, b[rows])


def test_a_coarse_net_has_the_mean_weights_of_its_steps():
    net = sn.nets.resnet(2, 2, 3, 8, length=2.0)
    coarse = coarsen(net, 4)
    assert coarse.design.blocks[0].steps == 2
    assert coarse.design.blocks[0].length == 2.0
    assert coarse.weights["blocks.0.K"][1] == pytest.approx(net.weights["blocks.0.K"][4:].mean(axis=0))
    smooth = sn.nets.resnet(2, 2, 3, 8, degree=1)
    assert np.array_equal(coarsen(smooth, 4).theta, smooth.theta)


def test_the_regressor_predicts_expectations_with_intervals(curve):
    mean, lower, upper = curve.predict(X, return_interval=True)
    assert np.array_equal(mean, curve.predict(X))
    assert ((lower < mean) & (mean < upper)).all()
    assert curve.score(X, TARGET) > 0.5
    better = change(curve, paths=4096).predict(X[:100])
    assert 0.9 < np.mean((lower[:100] <= better) & (better <= upper[:100])) <= 1.0


def test_the_regressor_takes_levels_a_target_error_and_files(curve, tmp_path):
    model = change(curve, error=0.01, levels=3)
    found, _ = model._average(X[:40])
    assert np.median(found.standard_error) < 0.01
    exact, _ = change(curve, paths=4096)._average(X[:40])
    spread = np.sqrt(found.standard_error**2 + exact.standard_error**2)
    assert np.all(np.abs(found.mean - exact.mean) < SIGMAS * spread)
    model.save(tmp_path / "model")
    assert np.array_equal(FeynmanKacRegressor.load(tmp_path / "model").predict(X[:40]), model.predict(X[:40]))


def test_no_diffusion_is_the_net_regressor_bit_for_bit():
    quick = {"width": 4, "steps": 4, "epochs": 5, "random_state": 0}
    targets = np.column_stack((TARGET, X[:, 0]))
    plain = NetRegressor("resnet", **quick).fit(X, targets)
    found = FeynmanKacRegressor(diffusion=0.0, levels=2, **quick).fit(X, targets)
    assert np.array_equal(found.predict(X), plain.predict(X))


@pytest.mark.slow
def test_the_abstention_curve_is_monotone():
    """Accuracy on the samples with the most certain class, as a function of their part, within two standard errors."""
    points, labels = make_moons(4000, noise=0.35, random_state=1)
    model = FeynmanKacClassifier(width=8, steps=8, epochs=40, rate=0.02, diffusion=0.4, paths=128, random_state=0)
    model.fit(points[:1000], labels[:1000])
    found = model.predict_proba(points[1000:])
    is_right = found.argmax(axis=1) == labels[1000:]
    order = np.argsort(-np.abs(found[:, 1] - 0.5))
    parts = np.arange(300, 3001, 300)
    accuracy = np.array([is_right[order[:count]].mean() for count in parts])
    print(*(f"coverage {count / 3000:.0%}: accuracy {each:.1%}" for count, each in zip(parts, accuracy, strict=True)))
    error = np.sqrt(accuracy * (1.0 - accuracy) / parts)
    assert np.all(np.diff(accuracy) < 2.0 * error[1:])
    assert accuracy[0] > accuracy[-1] + 0.02
