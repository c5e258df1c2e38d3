"""Layers that share their weights in different ways agree with `reference`."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import fields
from stepnet.fields import Chain, Field, Layer, reference
from stepnet.nets import Block, Design, Net

ROUNDING = 1e-12  # sums of a few products
DENSE, RING, LINE = fields.dense(4), fields.conv1d(4, 2, padding="periodic"), fields.conv1d(4, 2)

CHAINS = {
    "K - K' and K'": (Layer(DENSE, is_antisymmetric=True), Layer(DENSE, "K", None, "elu", is_transposed=True)),
    "K - K' twice": (Layer(DENSE, "K", "b", "tanh", is_antisymmetric=True), Layer(DENSE, is_antisymmetric=True)),
    "K and K - K'": (Layer(RING, "K", "b", "gelu"), Layer(RING, "K", "c", "tanh", is_antisymmetric=True, shift=-0.1)),
    "stencils": (Layer(RING, "K", "b", "tanh", is_antisymmetric=True), Layer(LINE, "K", "c", is_antisymmetric=True)),
    "K and K'": (Layer(DENSE, "K", "b", "tanh", shift=0.3), Layer(DENSE, "K", None, is_transposed=True, shift=-0.2)),
}  # fmt: skip


def one_step(field, degree=0, scheme="euler"):
    net = Net(Design((Block(field, scheme, 1, 1.0, fields.Depth(1 + degree, degree)),)))
    net.put(np.random.default_rng(0).normal(size=net.theta.size))
    return net, {name: net.weights[f"blocks.0.{name}"][0] for name in field.parameters}


@pytest.mark.parametrize("degree", [0, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_values_and_gradients_of_a_chain(name, degree):
    chain = Chain(CHAINS[name])
    net, weights = one_step(fields.chained(chain), degree)
    x, bar = np.random.default_rng(1).normal(size=(2, 5, chain.n_in))
    found, wanted = net.gradient(x, end_gradient=bar), reference.pullback(chain, weights, 0.0, x.T, bar.T)
    np.testing.assert_allclose(net(x), x + reference.evaluate(chain, weights, 0.0, x.T).T, atol=ROUNDING)
    np.testing.assert_allclose(found.x, bar + wanted.x.T, atol=ROUNDING)
    for key in weights:
        np.testing.assert_allclose(found.weights[f"blocks.0.{key}"][0], wanted.weights[key], atol=ROUNDING)


@pytest.mark.parametrize("name", CHAINS)
def test_tangents_belong_to_the_gradients(name):
    net, _ = one_step(fields.chained(Chain(CHAINS[name])))
    random = np.random.default_rng(2)
    x, bar = random.normal(size=(2, 5, net.design.n_in))
    v = random.normal(size=net.theta.size)
    assert abs(np.vdot(net.tangent(x, v)[1], bar) - net.gradient(x, end_gradient=bar).theta @ v) < 1e-11


def test_halves_that_share_weights():
    """q' = (K - K') p and p' = K q, one kick and one drift."""
    rotation, plain = (Layer(DENSE, "K", None, is_antisymmetric=a) for a in (True, False))
    field = Field("mine", (Chain((rotation,)), Chain((plain,))), "partitioned")
    net, weights = one_step(field, scheme="symplectic_euler_kick")
    q, p = np.random.default_rng(3).normal(size=(2, 5, 4))
    K = weights["K"]
    p_new = p + q @ K.T
    q_new = q + p_new @ (K - K.T).T
    np.testing.assert_allclose(net(np.concatenate((q, p), axis=1)), np.concatenate((q_new, p_new), 1), atol=ROUNDING)


def test_the_reference_pulls_back_chains_that_are_not_square_inside():
    chain, random = fields.mlp((2, 5, 3)), np.random.default_rng(4)
    weights = {name: random.normal(size=shape) for name, shape in chain.parameters.items()}
    x, x_dot, bar = random.normal(size=(2, 4)), random.normal(size=(2, 4)), random.normal(size=(3, 4))
    h = 1e-6
    ahead, behind = (reference.evaluate(chain, weights, 0.0, x + e * x_dot) for e in (h, -h))
    exact = np.vdot(reference.pullback(chain, weights, 0.0, x, bar).x, x_dot)
    assert abs(np.vdot(bar, ahead - behind) / (2 * h) - exact) < 1e-8 * max(1.0, abs(exact))
