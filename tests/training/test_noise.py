"""Training nets with diffusion: the expected loss over paths, new paths in every epoch, the same bits when resumed."""

from __future__ import annotations

import numpy as np
import pytest
from training.models import blobs

import stepnet as sn
from stepnet import training
from stepnet.errors import TrainingInterrupted
from stepnet.fields import diffusion
from stepnet.nets import SampleNoise, losses
from stepnet.training import Adam, Objective, Recipe

DATA, HELD = blobs(70), blobs(40, seed=9)
RECIPE = Recipe(Adam(0.03), epochs=6, batch_size=20, seed=4)
WEIGHTED = training.Data(DATA.x, DATA.y, np.linspace(0.5, 2.0, len(DATA)))
LOSSES = {"mean": "cross_entropy", "sum": losses.get("cross_entropy", reduction="sum")}


def net(noise: object = 0.4, **options) -> sn.nets.Net:
    options = {"seed": 1, "workers": 1} | options
    return sn.nets.resnet(2, 3, 6, 5, diffusion=noise, **options)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("data", [DATA, WEIGHTED], ids=["unweighted", "weighted"])
def test_the_objective_is_the_mean_over_paths(loss, data):
    model, paths = net(), 5
    noise = SampleNoise(seed=2, path=3)
    value, accuracy = Objective(model, loss, "l2", paths=paths, noise=noise).value(model.theta, data)
    single = [
        Objective(model, loss, "l2", noise=SampleNoise(seed=2, path=3 * paths + k)).value(model.theta, data)
        for k in range(paths)
    ]
    assert np.isclose(value, np.mean([each for each, _ in single]), rtol=1e-13)  # sums in another order
    assert np.isclose(accuracy, np.mean([each for _, each in single]), rtol=1e-13)
    assert np.ptp([each for each, _ in single]) > 1e-3 * value


@pytest.mark.parametrize("noise", [0.4, diffusion.per_channel((6,), 0.4)], ids=["constant", "per channel"])
def test_gradients_of_the_expected_loss_agree_with_differences_on_the_same_paths(noise):
    model = net(noise)
    objective = Objective(model, "cross_entropy", "l2", paths=3, noise=SampleNoise(seed=7))
    theta, direction = np.array(model.theta), np.random.default_rng(0).normal(size=model.theta.size)
    slope = objective.gradient(theta, DATA).gradient @ direction
    near = objective.expansion(theta, DATA)
    assert np.isclose(near.gradient @ direction, slope, rtol=1e-12)
    h = 1e-4
    value = lambda s: objective.value(theta + s * direction, DATA)[0]
    difference = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)
    assert np.isclose(slope, difference, rtol=1e-8)  # fourth order: h^4, and rounding 1e-16 / h
    model.put(theta)
    pushed = [model.tangent(DATA.x, direction, noise=SampleNoise(seed=7, path=k)) for k in range(3)]
    local = [losses.get("cross_entropy").at(y, DATA.y) for y, _ in pushed]
    curvature = np.mean([np.sum(y_dot * each.product(y_dot)) for (_, y_dot), each in zip(pushed, local, strict=True)])
    own = near.product(direction) @ direction - objective.penalty.at(theta).product(direction) @ direction
    assert np.isclose(own, curvature, rtol=1e-11)


def test_every_epoch_and_path_sees_other_noise(monkeypatch):
    seen = []
    gradient = sn.nets.Net.parameter_gradient

    def spy(self, x, loss, *, noise):
        found = noise.find_paths(np.asarray(x))
        seen.extend(zip(map(bytes, np.ascontiguousarray(x)), found.tolist(), strict=True))
        return gradient(self, x, loss, noise=noise)

    monkeypatch.setattr(sn.nets.Net, "parameter_gradient", spy)
    training.train(Objective(net(), "cross_entropy", paths=2), DATA, RECIPE)
    assert len(seen) == len(set(seen)) == 2 * RECIPE.epochs * len(DATA)
    first = list(seen)
    seen.clear()
    training.train(Objective(net(), "cross_entropy", paths=2), DATA, RECIPE)
    assert seen == first


@pytest.mark.parametrize("paths", [1, 3])
def test_runs_do_not_depend_on_workers(paths):
    runs = [
        training.train(Objective(net(workers=workers), "cross_entropy", paths=paths), DATA, RECIPE, validation=HELD)
        for workers in (1, 2)
    ]
    assert np.array_equal(runs[0].theta, runs[1].theta)
    assert all(np.array_equal(runs[0].history[name], runs[1].history[name]) for name in runs[0].history)


@pytest.mark.parametrize("stop", [7, 12])  # steps: within an epoch, and at the end of one
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(stop, tmp_path, monkeypatch):
    goal = lambda: Objective(net(), "cross_entropy", paths=2)
    recipe = Recipe(Adam(0.03), epochs=6, batch_size=20, seed=4, save_every=1)
    whole = training.train(goal(), DATA, recipe, validation=HELD)
    gradient, calls = sn.nets.Net.parameter_gradient, []

    def interrupt(self, x, loss, *, noise):
        calls.append(1)
        if len(calls) > stop:
            raise KeyboardInterrupt
        return gradient(self, x, loss, noise=noise)

    with monkeypatch.context() as patched:
        patched.setattr(sn.nets.Net, "parameter_gradient", interrupt)
        with pytest.raises(TrainingInterrupted):
            training.train(goal(), DATA, recipe, validation=HELD, path=tmp_path)
    again = training.train(goal(), DATA, recipe, validation=HELD, path=tmp_path, resume=True)
    assert again.steps == whole.steps
    assert np.array_equal(again.theta, whole.theta)
    assert all(np.array_equal(again.history[name], whole.history[name], equal_nan=True) for name in whole.history)
    with pytest.raises(ValueError, match="its paths is 2"):
        training.train(Objective(net(), "cross_entropy"), DATA, recipe, validation=HELD, path=tmp_path, resume=True)


def test_no_diffusion_is_the_deterministic_run_bit_for_bit():
    one, other = (
        training.train(Objective(net(noise), "cross_entropy", paths=paths), DATA, RECIPE, validation=HELD)
        for noise, paths in ((None, 1), (0.0, 4))
    )
    assert np.array_equal(one.theta, other.theta)
    assert all(np.array_equal(one.history[name], other.history[name]) for name in one.history)


def test_the_loss_on_validation_data_is_compared_on_the_same_paths():
    """With the rate 0 the loss of an epoch is one of its paths; the loss on validation data stays."""
    run = training.train(
        Objective(net(), "cross_entropy"), DATA, Recipe(Adam(lambda epoch: 0.0), epochs=3), validation=HELD
    )
    assert np.ptp(run.history["validation_loss"]) == 0
    assert np.ptp(run.history["loss"]) > 0


@pytest.mark.parametrize("method", [training.LBFGS(30), training.GaussNewton(15)], ids=["lbfgs", "gauss_newton"])
def test_methods_on_all_data_minimise_over_fixed_paths(method):
    found = []
    for _ in range(2):
        model = net(0.2)
        objective = Objective(model, "cross_entropy", "l2", paths=2)
        before = objective.value(model.theta, DATA)[0]
        minimum = training.minimise(objective, DATA, method)
        assert minimum.value < 0.5 * before
        assert minimum.value == objective.value(minimum.theta, DATA)[0]
        found.append(minimum.theta)
    assert np.array_equal(*found)


def test_parts_of_a_net_see_the_same_paths():
    model = net()
    whole = Objective(model, "cross_entropy", paths=2)
    part = training.Part(model, np.arange(8))
    one, other = (each.gradient(each.model.theta, DATA) for each in (whole, Objective(part, "cross_entropy", paths=2)))
    assert one.value == other.value
    assert np.array_equal(one.gradient[:8], other.gradient)


def test_layers_of_their_own_have_no_noise():
    with pytest.raises(ValueError, match="must have no noise"):
        training.minimise(Objective(net(), "cross_entropy"), DATA, "msa")
