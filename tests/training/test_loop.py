"""The training loop: its updates, when it ends, and its result when training diverges or is interrupted."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from training.models import TwoLayer, blobs, waves

import stepnet as sn
from stepnet import training
from stepnet.nets import losses, penalties
from stepnet.training import SGD, Adam, ClipNorm, Data, Ending, Objective, Recipe, Run

AGREE = 1e-12


def objective(**options) -> Objective:
    return Objective(TwoLayer(2, 6, 3), "cross_entropy", **options)


def test_training_is_that_of_a_loop_in_torch():
    """The same batches, forward, loss, penalty and optimiser there: the same parameters and losses."""
    goal, data, decay = objective(penalty=penalties.l2(1e-2)), blobs(50), 1e-2
    recipe = Recipe(Adam(0.05), epochs=4, batch_size=16, seed=3)
    K, b, W, c = (torch.nn.Parameter(torch.tensor(part)) for part in goal.model.parts(goal.model.theta))
    run = training.train(goal, data, recipe)

    optimiser, means = torch.optim.Adam([K, b, W, c], lr=0.05), []
    for epoch in range(4):
        order, values = recipe.order(50, epoch), []
        for first in range(0, 50, 16):
            rows = order[first : first + 16]
            outputs = torch.tanh(torch.tensor(data.x[rows]) @ K.T + b) @ W.T + c
            loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(data.y[rows]))
            loss = loss + 0.5 * decay * sum((part * part).sum() for part in (K, b, W, c))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            values.append(len(rows) * loss.item())
        means.append(sum(values) / 50)
    found = goal.model.parts(run.theta)
    for ours, theirs in zip(found, (K, b, W, c), strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=AGREE, atol=AGREE)
    np.testing.assert_allclose(run.history["loss"], means, rtol=AGREE)


def test_every_sample_comes_once_in_an_epoch_and_epochs_differ():
    recipe = Recipe(seed=5)
    orders = [recipe.order(101, epoch) for epoch in range(3)]
    assert all((np.sort(order) == np.arange(101)).all() for order in orders)
    assert not (orders[0] == orders[1]).all()
    assert (recipe.order(101, 0) == orders[0]).all()
    assert not (Recipe(seed=6).order(101, 0) == orders[0]).all()


def test_a_small_net_learns_clouds():
    goal = objective()
    run = training.train(goal, blobs(300), Recipe(Adam(0.05), epochs=30, batch_size=32), validation=blobs(200, seed=1))
    assert run.success
    assert run.ending is Ending.COMPLETED
    assert run.history["loss"][-1] < 0.5 * run.history["loss"][0]
    assert run.history["validation_accuracy"][run.best_epoch - 1] > 0.8
    value, accuracy = goal.value(run.theta, blobs(200, seed=1))
    assert value == run.history["validation_loss"].min()
    assert accuracy == run.history["validation_accuracy"][run.best_epoch - 1]
    np.testing.assert_array_equal(goal.model.theta, run.theta)


def test_regression_has_no_accuracy():
    run = training.train(Objective(TwoLayer(2, 6, 2), "mse"), waves(), Recipe("adam", epochs=3))
    assert np.isnan(run.history["accuracy"]).all()
    assert np.isnan(run.history["validation_loss"]).all()
    assert (run.history["rate"] == 1e-3).all()


def test_float32_stays_float32():
    model = TwoLayer(2, 6, 3, dtype=np.float32)
    data = Data(blobs().x.astype(np.float32), blobs().y)
    assert training.train(Objective(model, "cross_entropy"), data, Recipe(epochs=2)).theta.dtype == np.float32


def test_early_stopping_waits_for_its_patience_and_gives_the_best():
    """Few noisy samples: the loss of the validation data rises while that of the others goes on falling."""
    random = np.random.default_rng(0)
    data, held = Data(random.normal(size=(12, 2)), random.integers(0, 3, 12)), blobs(60)
    run = training.train(objective(), data, Recipe(Adam(0.05), epochs=500, patience=7), validation=held)
    assert run.ending is Ending.STOPPED
    assert run.epochs == run.best_epoch + 7 < 500
    assert np.argmin(run.history["validation_loss"]) == run.best_epoch - 1
    assert objective().value(run.theta, held)[0] == run.history["validation_loss"].min()
    assert run.success


def test_early_stopping_watches_the_loss_itself_without_validation_data():
    run = training.train(objective(), blobs(), Recipe(Adam(0.05), epochs=5000, patience=3, tolerance=1e-2))
    assert run.ending is Ending.STOPPED
    assert run.epochs - run.best_epoch == 3


def test_weighted_samples_count_as_often():
    """Without shuffling (one batch), weights zero and one are the samples left out and kept."""
    data, weights = blobs(40), np.r_[np.ones(25), np.zeros(15)]
    one = training.train(objective(), Data(data.x, data.y, weights), Recipe(Adam(0.05), epochs=20))
    two = training.train(objective(), Data(data.x[:25], data.y[:25]), Recipe(Adam(0.05), epochs=20))
    np.testing.assert_allclose(one.theta, two.theta, rtol=1e-9)


def test_weights_go_with_their_samples_into_batches():
    """Equal weights are none; weights of one class are those of the class."""
    data, recipe = blobs(40), Recipe(Adam(0.05), epochs=3, batch_size=9)
    plain = training.train(objective(), data, recipe)
    equal = training.train(objective(), Data(data.x, data.y, np.full(40, 2.5)), recipe)
    np.testing.assert_allclose(equal.theta, plain.theta, rtol=1e-9)
    factors = np.array([1.0, 2.0, 3.0])
    by_sample = training.train(objective(), Data(data.x, data.y, factors[data.y]), recipe)
    loss = losses.get("cross_entropy", class_weights=factors)
    by_class = training.train(Objective(TwoLayer(2, 6, 3), loss), data, recipe)
    np.testing.assert_allclose(by_sample.theta, by_class.theta, rtol=1e-9)
    assert np.abs(by_sample.theta - plain.theta).max() > 1e-3


# ---- divergence and interruption ------------------------------------------------------------------------------------


def test_divergence_is_reported_and_the_last_good_parameters_are_kept():
    goal = Objective(TwoLayer(2, 0, 2), "mse")
    with pytest.raises(
        sn.TrainingFailed, match=r"loss .* in epoch \d+, batch \d+, at the rate 50; .* try a smaller"
    ) as told:
        training.train(goal, waves(), Recipe(training.SGD(50.0), epochs=400, batch_size=20))
    run = told.value.run
    assert run.ending is Ending.DIVERGED
    assert not run.success
    assert np.isfinite(run.theta).all()
    assert np.isfinite(goal.value(run.theta, waves())[0])
    np.testing.assert_array_equal(goal.model.theta, run.theta)
    again = pickle.loads(pickle.dumps(told.value))
    np.testing.assert_array_equal(again.run.theta, run.theta)


def test_an_infinite_gradient_is_divergence_whatever_the_optimiser_makes_of_it():
    class Signs(training.SGD):
        def step(self, theta, gradient, slots, rate, count):
            return theta - rate * np.sign(gradient), {}

    class Steep(TwoLayer):
        def gradient(self, x, loss):
            found = super().gradient(x, loss)
            return replace(found, theta=found.theta * np.inf)

    with pytest.raises(sn.TrainingFailed):
        training.train(Objective(Steep(2, 4, 2), "mse"), waves(), Recipe(Signs(0.1), epochs=2))


def test_divergence_can_be_returned_and_then_gives_the_best_epoch_before_it():
    class Falls(TwoLayer):
        """Undefined from the 30th gradient on."""

        calls = 0

        def gradient(self, x, loss):
            self.calls += 1
            return super().gradient(x * np.nan if self.calls >= 30 else x, loss)

    goal, held = Objective(Falls(2, 6, 3), "cross_entropy"), blobs(60, seed=2)
    run = training.train(goal, blobs(90), Recipe(Adam(0.05), batch_size=30), validation=held, check=False)
    assert run.ending is Ending.DIVERGED
    assert "loss nan in epoch 10, batch 3" in run.message
    assert run.epochs == 9
    assert goal.value(run.theta, held)[0] == run.history["validation_loss"].min()


def test_a_last_step_that_leads_astray_is_noticed():
    goal = Objective(TwoLayer(2, 0, 2), "mse")
    before = goal.model.theta.copy()
    run = training.train(goal, waves(), Recipe(training.SGD(1e40), epochs=1), check=False)
    assert run.ending is Ending.DIVERGED
    assert run.steps == 1
    np.testing.assert_array_equal(run.theta, before)


def test_clipping_saves_a_run_that_diverges():
    recipe = Recipe(training.SGD(50.0), epochs=30, clip=ClipNorm(1e-3))
    assert training.train(Objective(TwoLayer(2, 0, 2), "mse"), waves(), recipe).success


class Interrupts(TwoLayer):
    """Ctrl-C in the tenth gradient."""

    calls = 0

    def gradient(self, x, loss):
        self.calls += 1
        if self.calls == 10:
            raise KeyboardInterrupt
        return super().gradient(x, loss)


def test_an_interrupted_run_is_kept_and_goes_on(tmp_path):
    recipe = Recipe(Adam(0.05), epochs=6, batch_size=30)
    whole = training.train(objective(), blobs(), recipe)
    broken = Objective(Interrupts(2, 6, 3), "cross_entropy")
    with pytest.raises(sn.TrainingInterrupted, match="interrupted by the user in epoch 4") as told:
        training.train(broken, blobs(), recipe, path=tmp_path / "run")
    assert told.value.run.steps == 9
    assert training.load(tmp_path / "run").ending is Ending.INTERRUPTED
    rest = training.train(objective(), blobs(), recipe, path=tmp_path / "run", resume=True)
    assert rest.theta.tobytes() == whole.theta.tobytes()


def test_an_interruption_at_the_end_of_an_epoch_leaves_whole_epochs(tmp_path):
    class Interrupted(TwoLayer):
        """Ctrl-C while the validation data are looked at for the third time."""

        calls = 0

        def __call__(self, x):
            if len(x) == 40:
                self.calls += 1
                if self.calls == 3:
                    raise KeyboardInterrupt
            return super().__call__(x)

    recipe, held = Recipe(Adam(0.05), epochs=6, batch_size=30), blobs(40, seed=9)
    whole = training.train(objective(), blobs(), recipe, validation=held)
    broken = Objective(Interrupted(2, 6, 3), "cross_entropy")
    run = training.train(broken, blobs(), recipe, validation=held, path=tmp_path, check=False)
    assert (run.steps, run.epochs) == (8, 2)
    rest = training.train(objective(), blobs(), recipe, validation=held, path=tmp_path, resume=True)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    np.testing.assert_array_equal(rest.history["loss"], whole.history["loss"])


# ---- the best parameters --------------------------------------------------------------------------------------------


def test_patience_keeps_the_parameters_whose_loss_was_the_lowest():
    """The mean loss during an epoch belongs to none: a rate that jumps in the last one must not be what is kept."""
    goal = objective()
    recipe = Recipe(SGD(lambda epoch: 0.5 if epoch < 20 else 50.0), epochs=21, batch_size=30, patience=30)
    run = training.train(goal, blobs(), recipe)
    assert run.best_epoch == 20
    assert goal.value(run.theta, blobs())[0] < 1.05 * run.history["loss"][-2]


@pytest.mark.parametrize("epochs", [1, 20])
def test_patience_does_not_keep_parameters_that_diverged(epochs):
    net = sn.nets.resnet(2, 1, 4, 3, seed=0)
    x = np.random.default_rng(3).normal(size=(40, 2))
    data, goal = Data(x, np.exp(x.sum(axis=1)).round()[:, None]), Objective(net, "poisson")
    run = training.train(goal, data, Recipe(SGD(1e3), epochs=epochs, patience=5), check=False)
    assert run.ending is Ending.DIVERGED
    assert np.isfinite(goal.value(run.theta, data)[0])


def test_batches_of_which_nothing_counts_move_nothing():
    """Weights of zero leave samples out, also where they are all of a batch."""
    data = blobs()
    weights = (data.y != 0).astype(float)
    goal, recipe = objective(), Recipe(SGD(0.1), epochs=3, batch_size=2)
    run = training.train(goal, Data(data.x, data.y, weights), recipe)
    assert run.success
    assert np.isfinite(run.history["loss"]).all()
    alone = objective()
    gradient = alone.gradient(alone.model.theta, Data(data.x[data.y == 0], data.y[data.y == 0])).gradient
    assert gradient.any()
    local = alone.loss.at(np.ones((2, 3)), np.array([0, 1]), np.zeros(2))
    assert (local.value, local.gradient.any()) == (0.0, False)


def test_the_loss_of_an_epoch_counts_samples_by_their_weights():
    data, weights = blobs(), np.linspace(0.0, 3.0, len(blobs().x))
    goal, tiny = objective(), Recipe(SGD(1e-12), epochs=1, batch_size=7)
    weighted = Data(data.x, data.y, weights)
    run = training.train(goal, weighted, tiny)
    assert run.history["loss"][0] == pytest.approx(goal.value(run.theta, weighted)[0], rel=1e-9)


# ---- the bar and the border -----------------------------------------------------------------------------------------


def test_the_bar_shows_loss_and_accuracy(capsys):
    training.train(objective(), blobs(), Recipe("adam", epochs=3), validation=blobs(), progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss=" in shown
    assert "accuracy=" in shown
    assert "validation=" in shown
    training.train(objective(), blobs(), Recipe("adam", epochs=3))
    assert capsys.readouterr() == ("", "")


def test_no_epochs_leave_the_parameters():
    goal = objective()
    before = goal.model.theta.copy()
    run = training.train(goal, blobs(), Recipe(epochs=0))
    assert isinstance(run, Run)
    np.testing.assert_array_equal(run.theta, before)
    assert run.history["loss"].shape == (0,)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Recipe(epochs=-1), "`epochs` must be at least 0, found -1"),
    (lambda: Recipe(epochs=1.5), "`epochs` must be an integer, found 1.5"),
    (lambda: Recipe(batch_size=0), "`batch_size` must be at least 1"),
    (lambda: Recipe(patience=0), "`patience`"),
    (lambda: Recipe(tolerance=1.0), "`tolerance`"),
    (lambda: Recipe(seed=-1), "`seed`"),
    (lambda: Recipe(clip=1.0), "`clip` must be a ClipNorm or a ClipValue, found 1.0"),
    (lambda: Data(np.zeros((3, 2)), np.zeros(2)), "must have as many samples, found {'x': 3, 'y': 2}"),
    (lambda: Data(np.zeros((0, 2)), np.zeros(0)), "`x` must have at least one sample"),
    (lambda: Data([[np.nan]], [1.0]), "`x` must be finite"),
    (lambda: Data([[1.0]], [np.inf]), "`y` must be finite"),
    (lambda: Data([["a"]], [1.0]), "`x` must be real numbers, found <U1"),
    (lambda: training.train("cross_entropy", blobs()), "`objective` must be an Objective, found 'cross_entropy'"),
    (lambda: training.train(objective(), blobs(), validation=(1, 2)), r"`validation` must be Data\(x, y\)"),
    (lambda: training.train(objective(), blobs(), "adam"), "`recipe` must be a Recipe, .* found 'adam'"),
    (lambda: training.train(objective(), blobs(), Recipe(SGD(lambda epoch: -1.0))), "`rate` must be .*, found -1.0 at"),
    (lambda: training.train(objective(), blobs(), Recipe(SGD(lambda epoch: "fast"))), "`rate` must be .*'fast'"),
    (lambda: Recipe(seed=2**64), "`seed` must be at most 18446744073709551615"),
    (lambda: Data([[1.0]], [1.0], [-1.0]), "`weights` must not be negative"),
    (lambda: Data([[1.0]], [1.0], [0.0]), "`weights` must not be negative, and some must be positive"),
    (lambda: training.train(objective(), None), r"`data` must be Data\(x, y\), found None"),
    (lambda: training.minimise(objective(), blobs().x), r"`data` must be Data\(x, y\), found"),
    (lambda: training.train(objective(), blobs(), theta=np.zeros(3)), "`theta` must be 39 parameters"),
    (lambda: training.train(objective(), blobs(), resume=True), "`resume` needs a `path`"),
    (lambda: training.train(objective(), blobs(), path=3), "`path` must be the path of a directory, found 3"),
    (lambda: training.train(objective(), blobs(classes=4)), "classes from 0 to 2, one for each output, found 3"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
