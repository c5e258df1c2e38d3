"""Gauss-Newton, L-BFGS and variable projection against dense computations."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from numba_engine.runs import child
from scipy import linalg
from scipy.optimize import OptimizeResult
from training.models import TwoLayer, blobs, waves

import stepnet as sn
from stepnet import training
from stepnet.nets import losses, penalties
from stepnet.training import LBFGS, Data, GaussNewton, LineSearch, Objective, Projected, TrustRegion, truncated_cg

AGREE = 1e-11
ROUNDING = 1e-14
CONTROLS = [LineSearch(), TrustRegion(0.5), TrustRegion(50.0)]
CASES = {
    "mse": (TwoLayer(2, 5, 2), "mse", waves()),
    "huber": (TwoLayer(2, 5, 2), losses.huber(0.3), waves()),
    "cross_entropy": (TwoLayer(2, 4, 3), "cross_entropy", blobs()),
    "tempered": (TwoLayer(2, 4, 3), losses.get("cross_entropy", smoothing=0.1, class_weights=[1, 2, 3]), blobs()),
    "logistic": (TwoLayer(2, 0, 3), "cross_entropy", blobs()),
    "weighted": (TwoLayer(2, 5, 2), "mse", Data(waves().x, waves().y, np.linspace(0.1, 2.0, 60))),
}
every_case = pytest.mark.parametrize("name", CASES)


def case(name: str, **options) -> tuple[Objective, Data, np.ndarray]:
    model, loss, data = CASES[name]
    rng = np.random.default_rng(5)
    return Objective(model, loss, **options), data, rng.normal(scale=0.6, size=model.theta.size)


def dense(objective: Objective, data: Data, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and J' H J with matrices, penalties included."""
    model = objective.model
    model.put(theta)
    J, outputs = model.jacobian(data.x), model(data.x)
    local = objective.loss.at(outputs, data.y, data.weights)
    H = np.stack([local.product(unit.reshape(outputs.shape)).ravel() for unit in np.eye(outputs.size)], axis=1)
    n, D = theta.size, np.diff(np.eye(theta.size), axis=0)
    own = objective.penalty.l2 * np.eye(n) + objective.smoothness * D.T @ D
    return J.T @ local.gradient.ravel() + own @ theta, J.T @ H @ J + own


@every_case
def test_gradients_and_products_are_those_of_matrices(name):
    objective, data, theta = case(name, penalty=penalties.l2(0.3), smoothness=0.2)
    g, A = dense(objective, data, theta)
    here = objective.expansion(theta, data)
    np.testing.assert_allclose(here.gradient, g, atol=AGREE)
    np.testing.assert_allclose(objective.gradient(theta, data).gradient, g, atol=AGREE)
    for v in np.random.default_rng(1).normal(size=(3, theta.size)):
        np.testing.assert_allclose(here.product(v), A @ v, atol=AGREE)
    assert here.value == objective.gradient(theta, data).value == objective.value(theta, data)[0]


@every_case
def test_the_gradient_of_an_objective_leaves_what_shrinks_as_the_square(name):
    objective, data, theta = case(name, penalty=penalties.l2(0.3), smoothness=0.2)
    v, lengths = np.random.default_rng(2).normal(size=theta.size), np.array([1e-3, 5e-4])
    here = objective.gradient(theta, data)
    rest = [abs(objective.value(theta + s * v, data)[0] - here.value - s * here.gradient @ v) for s in lengths]
    assert np.log2(rest[0] / rest[1]) == pytest.approx(2, abs=0.1)


@every_case
def test_a_whole_gauss_newton_step_is_that_of_a_dense_solve(name):
    objective, data, theta = case(name, penalty=penalties.l2(0.3))
    g, A = dense(objective, data, theta)
    here = objective.expansion(theta, data)
    step = truncated_cg(here.product, here.gradient, np.inf, 10 * theta.size, 1e-13)
    np.testing.assert_allclose(step.direction, -linalg.solve(A, g, assume_a="pos"), atol=1e-9)
    assert step.decrease == pytest.approx(0.5 * g @ linalg.solve(A, g), rel=1e-9)


@pytest.mark.parametrize("control", CONTROLS, ids=repr)
@every_case
def test_gauss_newton_ends_where_the_gradient_is_zero_and_falls_in_every_step(name, control):
    objective, data, theta = case(name, penalty=penalties.l2(5e-2))
    start = objective.value(theta, data)[0]
    found = training.minimise(objective, data, GaussNewton(3000, 50, 1e-3, 1e-8, control), theta=theta)
    assert found.converged, found.message
    assert np.abs(found.gradient).max() < 1e-8
    assert (np.diff([start, *found.history]) <= ROUNDING).all()
    np.testing.assert_array_equal(objective.model.theta, found.theta)
    assert found.value == objective.value(found.theta, data)[0]


@pytest.mark.parametrize("method", [LBFGS(5), GaussNewton(3)], ids=repr)
def test_a_minimum_is_a_result_of_scipy_under_both_names(method):
    objective, data, theta = case(next(iter(CASES)))
    found = training.minimise(objective, data, method, theta=theta)
    assert isinstance(found, OptimizeResult)
    names = {"x": "theta", "fun": "value", "jac": "gradient", "success": "converged", "njev": "gradients"}
    for name, own in names.items():
        assert found[name] is getattr(found, name) is getattr(found, own)
    assert found.nit == found["nit"] == len(found.history)
    assert {"x", "nit", "theta", "products"} <= set(dir(found))
    for copied in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert type(copied) is training.Minimum
        assert repr(copied) == repr(found)
        np.testing.assert_array_equal(copied.theta, found.x)


def test_training_does_not_load_scipy_optimize_before_a_minimisation():
    child.succeed("import sys, stepnet.training; assert 'scipy.optimize' not in sys.modules")


@every_case
def test_lbfgs_ends_where_the_gradient_is_zero(name):
    objective, data, theta = case(name, penalty=penalties.l2(1e-2))
    found = training.minimise(objective, data, LBFGS(2000, 20, 1e-6), theta=theta)
    assert found.converged, found.message
    assert np.abs(objective.gradient(found.theta, data).gradient).max() < 2e-6
    np.testing.assert_array_equal(objective.model.theta, found.theta)


def test_both_methods_find_the_one_minimum_of_logistic_regression():
    objective, data, theta = case("logistic", penalty=penalties.l2(0.1))
    one = training.minimise(objective, data, GaussNewton(tol=1e-10), theta=theta)
    two = training.minimise(objective, data, LBFGS(500, tol=1e-10), theta=theta)
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)


def test_gauss_newton_is_one_step_for_linear_least_squares():
    model, data = TwoLayer(2, 0, 2), waves()
    found = training.minimise(Objective(model, "mse"), data, GaussNewton(1, 100, 1e-14))
    A = np.hstack((data.x, np.ones((len(data), 1))))
    best = np.linalg.lstsq(A, data.y, rcond=None)[0]
    np.testing.assert_allclose(model(data.x), A @ best, atol=1e-10)
    assert found.products <= 6
    assert found.gradients == 2


# ---- conjugate gradients --------------------------------------------------------------------------------------------


def test_the_trust_region_is_never_left_and_never_worse_than_the_point_of_cauchy():
    random = np.random.default_rng(0)
    for _ in range(200):
        n = 6
        A = random.normal(size=(n, n))
        A, g, radius = A + A.T + random.uniform(0, 6) * np.eye(n), random.normal(size=n), 10 ** random.uniform(-2, 1)
        step = truncated_cg(lambda v, A=A: A @ v, g, radius, 3 * n, 1e-12)
        p = step.direction
        assert np.linalg.norm(p) <= radius * (1 + 1e-12)
        assert step.decrease == pytest.approx(-(g @ p + 0.5 * p @ A @ p), rel=1e-9, abs=1e-12)
        bend, length = g @ A @ g, np.linalg.norm(g)
        t = radius / length if bend <= 0 else min(length**2 / bend, radius / length)
        assert step.decrease >= (t * length**2 - 0.5 * t * t * bend) * (1 - 1e-9)
        if step.reason in ("boundary", "negative curvature"):
            assert np.linalg.norm(p) == pytest.approx(radius, rel=1e-9)


def test_a_step_of_the_trust_region_is_the_best_one_when_that_lies_inside():
    A, g = np.diag([1.0, 2.0, 5.0]), np.array([1.0, -1.0, 2.0])
    step = truncated_cg(lambda v: A @ v, g, 100.0, 10, 1e-14)
    np.testing.assert_allclose(step.direction, -np.linalg.solve(A, g), atol=1e-13)
    assert step.reason == "residual"
    assert step.iterations == 3


def test_negative_curvature_without_a_boundary_gives_a_descent_direction():
    A, g = np.diag([-1.0, 2.0]), np.array([1.0, 1e-3])
    step = truncated_cg(lambda v: A @ v, g, np.inf, 10, 1e-10)
    np.testing.assert_array_equal(step.direction, -g)
    assert truncated_cg(lambda v: A @ v, 0 * g, np.inf, 10, 1e-10).iterations == 0
    B, b = np.diag([3.0, -1.0]), np.array([1.0, 0.2])
    later = truncated_cg(lambda v: B @ v, b, np.inf, 10, 1e-10)
    assert later.reason == "negative curvature"
    assert later.direction @ b < 0


# ---- variable projection --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    loss: Projected
    data: Data

    def joint(self, features: np.ndarray, W: np.ndarray) -> float:
        outputs = features @ W[:-1] + W[-1]
        local = self.loss.loss.at(outputs, self.data.y, self.data.weights)
        return local.value + 0.5 * self.loss.ridge * float(np.sum(W * W))


PROJECTED = {
    "mse": Problem(Projected("mse", 2, 1e-3), waves()),
    "weighted": Problem(Projected("mse", 2, 1e-3), Data(waves().x, waves().y, np.linspace(0.1, 2.0, 60))),
    "cross_entropy": Problem(Projected("cross_entropy", 3, 1e-2), blobs()),
    "huber": Problem(Projected(losses.huber(0.3), 2, 1e-2), waves()),
    "binary": Problem(Projected("binary_cross_entropy", 1, 1e-2), Data(blobs(60, 2).x, blobs(60, 2).y)),
}
every_projection = pytest.mark.parametrize("name", PROJECTED)


@every_projection
def test_the_read_out_is_the_best_one(name):
    problem, random = PROJECTED[name], np.random.default_rng(4)
    features = np.tanh(problem.data.x @ random.normal(size=(2, 4)))
    W = problem.loss.readout(features, problem.data.y, problem.data.weights)
    least = problem.joint(features, W)
    assert problem.loss.at(features, problem.data.y, problem.data.weights).value == pytest.approx(least, rel=1e-12)
    for d in random.normal(size=(20, *W.shape)):
        assert problem.joint(features, W + 1e-3 * d) > least


def test_the_read_out_of_least_squares_is_that_of_the_normal_equations():
    problem = PROJECTED["mse"]
    features, y = np.tanh(problem.data.x @ np.ones((2, 1)) * [0.3, 0.7, 2.0]), problem.data.y
    F = np.hstack((features, np.ones((len(y), 1))))
    scale = 2 / y.size  # of the mean of squares
    best = np.linalg.solve(scale * F.T @ F + problem.loss.ridge * np.eye(4), scale * F.T @ y)
    np.testing.assert_allclose(problem.loss.readout(features, y), best, atol=1e-10)


@every_projection
def test_derivatives_by_the_features_include_how_the_read_out_moves(name):
    problem, random = PROJECTED[name], np.random.default_rng(4)
    features = np.tanh(problem.data.x @ random.normal(size=(2, 4)))
    v, s = random.normal(size=features.shape), 1e-5

    def at(x):
        return problem.loss.at(x, problem.data.y, problem.data.weights)

    here, ahead, behind = at(features), at(features + s * v), at(features - s * v)
    assert (ahead.value - behind.value) / (2 * s) == pytest.approx(np.vdot(here.gradient, v), rel=1e-6)
    np.testing.assert_allclose((ahead.gradient - behind.gradient) / (2 * s), here.product(v), atol=2e-7)


@pytest.mark.parametrize("name", ["mse", "weighted", "cross_entropy", "binary"])
def test_the_product_is_the_schur_complement_of_the_dense_joint_hessian(name):
    """H_FF - H_FW H_WW^-1 H_WF, from differences of the joint gradient in features and read-out."""
    problem, random = PROJECTED[name], np.random.default_rng(4)
    features = np.tanh(problem.data.x[:9] @ random.normal(size=(2, 2)))
    weights = None if problem.data.weights is None else problem.data.weights[:9]
    y, ridge = problem.data.y[:9], problem.loss.ridge
    W, k = problem.loss.readout(features, y, weights), features.size

    def joint_gradient(z):
        F, V = z[:k].reshape(features.shape), z[k:].reshape(W.shape)
        G = problem.loss.loss.at(F @ V[:-1] + V[-1], y, weights).gradient
        ones = np.hstack((F, np.ones((len(F), 1))))
        return np.concatenate(((G @ V[:-1].T).ravel(), (ones.T @ G + ridge * V).ravel()))

    z, s = np.concatenate((features.ravel(), W.ravel())), 1e-5
    H = np.stack([(joint_gradient(z + s * e) - joint_gradient(z - s * e)) / (2 * s) for e in np.eye(z.size)], axis=1)
    reduced = H[:k, :k] - H[:k, k:] @ np.linalg.solve(H[k:, k:], H[k:, :k])
    here = problem.loss.at(features, y, weights)
    found = np.stack([here.product(e.reshape(features.shape)).ravel() for e in np.eye(k)], axis=1)
    np.testing.assert_allclose(found, reduced, atol=1e-6 * np.abs(reduced).max())


@pytest.mark.parametrize("method", [LBFGS(400, tol=1e-7), GaussNewton(200, 60, 1e-2, 1e-7, TrustRegion())], ids=repr)
@pytest.mark.parametrize("name", ["mse", "cross_entropy"])
def test_projected_training_reaches_a_point_that_is_flat_in_all_parameters(name, method):
    problem = PROJECTED[name]
    features = TwoLayer(2, 4, 0, readout=False)
    found = training.minimise(Objective(features, problem.loss, penalties.l2(1e-3)), problem.data, method)
    assert found.converged, found.message
    W = problem.loss.readout(features(problem.data.x), problem.data.y)
    whole = TwoLayer(2, 4, W.shape[1])
    theta = np.concatenate((found.theta, W[:-1].T.ravel(), W[-1]))
    here = Objective(whole, problem.loss.loss).gradient(theta, problem.data).gradient
    own = np.concatenate((1e-3 * found.theta, problem.loss.ridge * theta[found.theta.size :]))
    assert np.abs(here + own).max() < 1e-6


# ---- wrong and hard input -------------------------------------------------------------------------------------------


def test_a_start_that_is_not_finite_is_refused():
    objective, data, theta = case("mse")
    for method in (LBFGS(), GaussNewton()):
        with pytest.raises(ValueError, match="the objective is not finite at the initial parameters"):
            training.minimise(Objective(_Broken(theta), "mse"), data, method)
        with pytest.raises(ValueError, match="`theta` must be finite"):
            training.minimise(objective, data, method, theta=theta * np.nan)


class _Broken(TwoLayer):
    def __init__(self, theta):
        super().__init__(2, 5, 2)

    def __call__(self, x):
        return super().__call__(x) * np.nan


@pytest.mark.parametrize("method", [LBFGS(100), GaussNewton(100)], ids=repr)
def test_overflow_on_the_way_keeps_the_best_parameters(method):
    """exp of a step that is too long is infinite; the answer must be finite and better than the beginning."""
    data = Data(np.linspace(-30, 30, 40)[:, None], np.r_[np.zeros(20), np.full(20, 50.0)])
    objective = Objective(TwoLayer(1, 0, 1), "poisson")
    theta = np.array([0.5, 0.0])
    found = training.minimise(objective, data, method, theta=theta)
    assert np.isfinite(found.theta).all()
    assert found.value < objective.value(theta, data)[0]
    assert np.isfinite(found.value)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: LBFGS(iterations=-1), "`iterations` must be at least 0, found -1"),
    (lambda: LBFGS(memory=0), "`memory` must be at least 1"),
    (lambda: GaussNewton(cg_iterations=0), "`cg_iterations`"),
    (lambda: GaussNewton(cg_tol=1.0), r"`cg_tol` must be a number in \[0, 1\)"),
    (lambda: GaussNewton(precision="half"), "`precision` must be one of .* found 'half'"),
    (lambda: GaussNewton(control="armijo"), "`control` must be a LineSearch or a TrustRegion, found 'armijo'"),
    (lambda: TrustRegion(0.0), "`radius`"),
    (lambda: Projected("mae", 1), r"`loss` must be convex and smooth .* found mae\(\)"),
    (lambda: Projected("tukey", 1), "`loss` must be convex and smooth"),
    (lambda: Projected("mse", 0), "`outputs` must be at least 1"),
    (lambda: Projected("mse", 1, 0.0), "`ridge`"),
    (lambda: Projected("mse", 1).at(np.zeros(3), np.zeros(3)), r"`features` must be an array \(batch, features\)"),
    (lambda: Objective(TwoLayer(2, 0, 1), 3), "`loss` must be a Loss or its name, found 3"),
    (lambda: Objective(TwoLayer(2, 0, 1), "mse", smoothness=-1), "`smoothness`"),
    (lambda: training.minimise(Objective(TwoLayer(2, 0, 2), "mse"), waves(), 3), "`method` must be LBFGS"),
    (lambda: training.minimise(Objective(TwoLayer(2, 0, 2), "mse"), waves(), GaussNewton(precision="float32")),
     "`precision` needs a model that can change its own, such as a Net, found TwoLayer"),
    (lambda: training.minimise(Objective(TwoLayer(2, 0, 2), "mse"), waves(), theta=np.zeros(2)),
     r"`theta` must be 6 parameters, shape \(6,\), found shape \(2,\)"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_unknown_methods_are_answered_with_the_nearest():
    with pytest.raises(sn.UnknownName, match=r"no method 'bfgs'; .*'lbfgs'"):
        training.minimise(Objective(TwoLayer(2, 0, 2), "mse"), waves(), "bfgs")


def test_the_bar_shows_the_loss(capsys):
    objective, data, theta = case("cross_entropy", penalty=penalties.l2(0.1))
    for method in (LBFGS(5), GaussNewton(5)):
        training.minimise(objective, data, method, theta=theta, progress=True)
        assert "loss=" in capsys.readouterr().err
