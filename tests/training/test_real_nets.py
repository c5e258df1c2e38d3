"""Training on nets themselves: mini-batches, all data at once, levels of depth, a projected read-out."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import training
from stepnet.nets import Net, penalties
from stepnet.nets.derivatives import Linearised

SEEDS = (0, 1, 2)


def ellipses(count: int, seed: int) -> training.Data:
    """An ellipse inside a ring, which no line divides."""
    random = np.random.default_rng(seed)
    labels, angle = np.arange(count) % 2, random.uniform(0, 2 * np.pi, count)
    radius = np.where(labels == 0, random.uniform(0.0, 0.5, count), random.uniform(0.8, 1.3, count))
    return training.Data(np.stack((1.5 * radius * np.cos(angle), radius * np.sin(angle)), axis=1), labels)


TRAIN, HELD = ellipses(400, 10), ellipses(400, 11)


def net(seed: int, outputs: int | None = 2, steps: int = 8):
    return sn.nets.hamiltonian(2, outputs, width=8, steps=steps, length=4.0, seed=seed, workers=1)


def accuracy(model) -> float:
    return float(np.mean(np.argmax(model(HELD.x), axis=1) == HELD.y))


def test_mini_batches_teach_a_net_the_ellipses():
    reached = []
    for seed in SEEDS:
        model = net(seed)
        recipe = training.Recipe(training.Adam(0.05), epochs=40, batch_size=50, seed=seed)
        run = training.train(training.Objective(model, "cross_entropy"), TRAIN, recipe)
        assert run.history["loss"][-1] < run.history["loss"][0]
        reached.append(accuracy(model))
    print(f"held-out accuracies {reached}")
    assert np.median(reached) >= 0.97


@pytest.mark.parametrize("method", [training.LBFGS(60), training.GaussNewton(iterations=25, cg_iterations=8)])
def test_all_data_at_once(method):
    model = net(0)
    found = training.minimise(training.Objective(model, "cross_entropy"), TRAIN, method)
    assert np.isfinite(found.value)
    assert accuracy(model) >= 0.95


def test_products_in_single_precision_end_at_the_same_minimum(monkeypatch):
    """Exact gradients decide where it ends; products only how fast."""
    linearised, seen = Net.linearise, {}

    def spy(self, x, **options):
        found = linearised(self, x, **options)

        def product(*arguments):
            seen[self.dtype.name] = seen.get(self.dtype.name, 0) + 1
            return type(found).gauss_newton(found, *arguments)

        found.gauss_newton = product
        return found

    monkeypatch.setattr(Net, "linearise", spy)
    ends = []
    for precision in ("float32", "float64", None):
        seen.clear()
        objective = training.Objective(net(0), "cross_entropy", penalties.l2(0.05))
        method = training.GaussNewton(500, 30, 1e-2, 1e-9, precision=precision)
        ends.append(training.minimise(objective, TRAIN, method))
        assert ends[-1].converged, ends[-1].message
        assert ends[-1].theta.dtype == objective.model.dtype == np.float64
        assert seen == {precision or "float64": ends[-1].products}
    single, double, own = ends
    np.testing.assert_array_equal(double.theta, own.theta)
    assert np.abs(single.gradient).max() <= 1e-9
    assert single.value == pytest.approx(double.value, rel=1e-12)


def test_smoothness_has_exact_products_in_single_precision():
    """Its Hessian is applied, not differenced: directions near a minimum are short."""
    objective = training.Objective(net(0), "cross_entropy", smoothness=0.1)
    single = training.Objective(net(0).astype(np.float32), "cross_entropy", smoothness=0.1)
    v = np.random.default_rng(0).normal(size=objective.model.theta.size)
    theta = objective.model.theta.copy()
    wanted = objective._expand_penalties(theta).product(v)
    for size in (1.0, 1e-6, 1e-12):
        for each, tolerance in ((objective, 1e-12), (single, 1e-5)):
            found = each._expand_penalties(theta.astype(each.model.dtype)).product((size * v).astype(each.model.dtype))
            np.testing.assert_allclose(found / size, wanted, atol=tolerance * np.abs(wanted).max())


METHODS = [training.LBFGS(50), training.GaussNewton(50), training.MSA(50)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_what_was_found_before_an_interruption_is_kept(method, monkeypatch):
    model = sn.nets.resnet(2, 2, 4, 4, length=2.0, seed=0, workers=1)
    objective, calls = training.Objective(model, "cross_entropy", penalties.l2(1e-3)), 0
    at = type(objective.loss).at

    def interrupts(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return at(self, *arguments)

    start = objective.value(model.theta, TRAIN)[0]
    monkeypatch.setattr(type(objective.loss), "at", interrupts)
    with pytest.raises(sn.TrainingInterrupted, match="interrupted by the user after") as told:
        training.minimise(objective, TRAIN, method)
    monkeypatch.undo()
    found = told.value.run
    assert len(found.history) > 0
    np.testing.assert_array_equal(model.theta, found.theta)
    assert objective.value(found.theta, TRAIN)[0] == pytest.approx(found.value, rel=1e-12)
    assert found.value < start


def test_interrupted_blocks_and_levels_keep_the_whole_net(monkeypatch):
    whole = training.Objective(net(0, steps=4), "cross_entropy")
    minimise, calls = training.block_descent.minimise, 0

    def interrupts(*arguments, **options):
        nonlocal calls
        calls += 1
        found = minimise(*arguments, **options)
        if calls == 2:
            raise sn.TrainingInterrupted(found)
        return found

    monkeypatch.setattr(training.block_descent, "minimise", interrupts)
    with pytest.raises(sn.TrainingInterrupted) as told:
        training.block_coordinate(whole, TRAIN, method=training.LBFGS(3))
    np.testing.assert_array_equal(told.value.run.theta, whole.model.theta)
    assert told.value.run.gradient.shape == whole.model.theta.shape
    calls = 0
    with pytest.raises(sn.TrainingInterrupted) as told:
        training.multilevel(whole, TRAIN, training.LBFGS(3), levels=3)
    assert told.value.model.design.blocks[0].steps == 8
    np.testing.assert_array_equal(told.value.run.theta, told.value.model.theta)


def test_successive_approximations_train_whole_nets_only():
    with pytest.raises(TypeError, match="`method` of block-coordinate descent"):
        training.block_coordinate(training.Objective(net(0), "cross_entropy"), TRAIN, method=training.MSA(2))


def test_the_last_product_of_a_step_needs_no_way_back(monkeypatch):
    """Its curvature is enough, |J d| in the norm of the loss; where it leads is the same."""
    ways = {"tangent": 0, "pullback": 0}
    for name in ways:
        there = getattr(Linearised, name)

        def counted(self, direction, name=name, there=there):
            ways[name] += 1
            return there(self, direction)

        monkeypatch.setattr(Linearised, name, counted)
    method = training.GaussNewton(iterations=3, cg_iterations=5, cg_tol=0.0)
    found = training.minimise(training.Objective(net(0), "cross_entropy", penalties.l2(0.05)), TRAIN, method)
    assert (found.products, found.gradients) == (15, 4)
    assert ways == {"tangent": 15, "pullback": 15 - 3 + 4}

    class Plain:
        """The same net for which only whole products are known."""

        def __init__(self):
            model = net(0)
            self.put, self.gradient, self.gauss_newton = model.put, model.gradient, model.gauss_newton
            self.theta, self._model = model.theta, model

        def __call__(self, x):
            return self._model(x)

    whole = training.minimise(training.Objective(Plain(), "cross_entropy", penalties.l2(0.05)), TRAIN, method)
    np.testing.assert_allclose(found.theta, whole.theta, rtol=1e-9, atol=1e-9)


def test_a_net_in_another_precision_has_weights_of_its_own():
    model = net(0)
    single = model.astype(np.float32)
    np.testing.assert_array_equal(single.theta, model.theta.astype(np.float32))
    assert single(TRAIN.x).dtype == np.float32
    single.put(np.zeros(single.theta.size))
    assert model.theta.any()
    with pytest.raises(TypeError, match="`dtype` must be float64 or float32, found float16"):
        model.astype(np.float16)


def test_levels_of_depth_go_on_where_the_coarse_net_ended():
    objective = training.Objective(net(0, steps=4), "cross_entropy")
    model, minima = training.multilevel(objective, TRAIN, training.LBFGS(30), levels=2)
    assert [block.steps for block in model.design.blocks] == [8]
    assert max(minimum.value for minimum in minima) < 0.1
    assert accuracy(model) >= 0.95


def test_a_projected_read_out_needs_the_features_only():
    model = net(0, outputs=None)
    projected = training.Projected("cross_entropy", outputs=2, ridge=1e-3)
    found = training.minimise(training.Objective(model, projected), TRAIN, training.LBFGS(30))
    first = projected.at(net(0, outputs=None)(TRAIN.x), TRAIN.y).value
    assert found.value < 0.5 * first
