"""Blocks as problems: with separate weights, and derivatives where problems have them."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import combinations, field_of, weights_of

import stepnet as sn
from stepnet import fields, nets
from stepnet.fields import reference

ROUNDING = 1e-12


@pytest.mark.parametrize(("name", "dynamics"), combinations())
def test_the_tangent_of_every_formula_belongs_to_its_pullback(name, dynamics):
    random, field = np.random.default_rng(4), field_of(name, dynamics, "softplus")
    for chain in field.parts:
        weights, (x, x_dot) = weights_of(chain, random), random.normal(size=(2, chain.n_in, 3))
        bar = random.normal(size=(chain.n_out, 3))
        push = np.vdot(bar, reference.tangent(chain, weights, 0.3, x, x_dot))
        pull = np.vdot(reference.pullback(chain, weights, 0.3, x, bar).x, x_dot)
        assert abs(push - pull) < 1e-11 * max(1.0, abs(push))


def test_tangents_of_chains_that_are_not_square_inside():
    K, random = fields.Attention(2, 2), np.random.default_rng(0)
    chain = fields.Chain((
        fields.Layer(K, "A", "a", "gelu", shift=0.3), fields.Layer(fields.dense(4, 7), "K", "b", "tanh", clock="c"),
        fields.Layer(fields.dense(7, 4), "L", None), fields.Layer(K, "A", None, is_transposed=True),
    ))  # fmt: skip
    weights, (x, x_dot, bar) = weights_of(chain, random), random.normal(size=(3, 4, 5))
    push = np.vdot(bar, reference.tangent(chain, weights, 0.3, x, x_dot))
    assert abs(push - np.vdot(reference.pullback(chain, weights, 0.3, x, bar).x, x_dot)) < ROUNDING


@pytest.mark.parametrize("make", [
    lambda: nets.antisymmetric(2, None, 4, 10, scheme="rk4", degree=1, damping=0.1),
    lambda: nets.neural_ode(4, None, (6,), 10, has_time=True),
    lambda: nets.attention_net(2, 2, 10, scheme="rk4", degree=0),
], ids=["antisymmetric", "neural_ode", "attention"])  # fmt: skip
def test_the_gradient_of_a_problem_is_that_of_the_net(make):
    net = make()
    x = np.random.default_rng(1).normal(size=(3, net.design.n_in))
    found = sn.gradient(net.problem(x), "rk4", lambda y: (0.5 * np.sum(y * y), y), steps=10)
    wanted = net.gradient(x, lambda y: (0.5 * np.sum(y * y), y))
    assert abs(found.value - wanted.value) < ROUNDING
    if net.design.opening is None:
        np.testing.assert_allclose(found.y0.T, wanted.x, atol=ROUNDING)


def test_the_jacobian_of_a_problem():
    net = nets.resnet(None, None, 3, 5, degree=1, activation="gelu")
    problem = net.problem(np.ones((2, 3)))
    y, h = np.random.default_rng(2).normal(size=6), 1e-6
    J = sn.derivatives.jacobian(problem).dense(0.3, y)
    slopes = [problem.fun(0.3, (y + e).reshape(3, 2)) - problem.fun(0.3, (y - e).reshape(3, 2)) for e in h * np.eye(6)]
    np.testing.assert_allclose(J, np.stack([each.ravel() / (2 * h) for each in slopes], axis=1), atol=1e-8)


def test_problems_in_halves_have_no_derivatives():
    problem = nets.hamiltonian(2, None, 4, 5).problem(np.ones((2, 2)))
    with pytest.raises(sn.NoDerivative):
        sn.gradient(problem, "verlet", lambda y: (0.5 * np.sum(y * y), y), steps=5)


def test_a_problem_keeps_the_weights_it_was_made_with():
    net, x = nets.resnet(2, None, 4, 5), np.ones((3, 2))
    problem, before = net.problem(x), net(x)
    net.put(2 * net.theta)
    found = sn.solve(problem, "euler", steps=5, save_every=0).y[-1].T
    np.testing.assert_allclose(found, before, atol=ROUNDING)
