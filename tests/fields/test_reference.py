"""The reference implementation of fields: linear where stated, with matching transposes and gradients."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import LINEAR, SQUARE, combinations, field_of, weights_of

from stepnet import fields
from stepnet.fields import reference

ROUNDING = 1e-12  # relative, sums of some hundred products
BATCH = 3


def as_matrix(K, W):
    eye = np.eye(K.n_in)
    return reference.apply(K, W, eye, eye)


@pytest.mark.parametrize("name", LINEAR)
def test_transposed_action_is_the_transposed_matrix(name):
    K, rng = SQUARE[name], np.random.default_rng(0)
    W, z = rng.normal(size=K.weight_shape), rng.normal(size=(K.n_out, BATCH))
    np.testing.assert_allclose(reference.apply_transposed(K, W, z, z), as_matrix(K, W).T @ z, atol=ROUNDING)


@pytest.mark.parametrize("name", LINEAR)
def test_weights_minus_mirrored_weights_make_an_antisymmetric_matrix(name):
    K, rng = SQUARE[name], np.random.default_rng(1)
    W = rng.normal(size=K.weight_shape)
    A = as_matrix(K, reference.effective(fields.Layer(K, is_antisymmetric=True), W))
    np.testing.assert_allclose(A, as_matrix(K, W) - as_matrix(K, W).T, atol=ROUNDING)


def test_stencils_are_those_of_torch():
    import torch

    rng = np.random.default_rng(2)
    for padding, mode in (("zero", "zeros"), ("periodic", "circular")):
        K = fields.conv2d((5, 4), 2, 3, taps=(3, 5) if padding == "zero" else (3, 3), padding=padding)
        taps = (3, 5) if padding == "zero" else (3, 3)
        module = torch.nn.Conv2d(
            2, 3, taps, padding=tuple(n // 2 for n in taps), padding_mode=mode, bias=False, dtype=torch.float64
        )
        W, x = rng.normal(size=K.weight_shape), rng.normal(size=(K.n_in, BATCH))
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.moveaxis(W.reshape(*taps, 3, 2), (0, 1), (2, 3)).copy()))
            found = module(torch.from_numpy(x.T.reshape(BATCH, 2, 5, 4).copy())).numpy().reshape(BATCH, -1).T
        np.testing.assert_allclose(reference.apply(K, W, x, x), found, atol=ROUNDING)


def test_attention_is_that_of_torch():
    import torch

    rng = np.random.default_rng(3)
    for is_causal in (False, True):
        K = fields.Attention(5, 6, heads=3, is_causal=is_causal)
        W, x = rng.normal(size=K.weight_shape), rng.normal(size=(K.n_in, BATCH))
        module = torch.nn.MultiheadAttention(6, 3, bias=False, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.from_numpy(W[:3].reshape(18, 6)))
            module.out_proj.weight.copy_(torch.from_numpy(W[3]))
            tokens = torch.from_numpy(x.T.reshape(BATCH, 6, 5).swapaxes(1, 2).copy())
            mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if is_causal else None
            found = module(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0].numpy()
        np.testing.assert_allclose(
            reference.apply(K, W, x, x), found.swapaxes(1, 2).reshape(BATCH, -1).T, atol=ROUNDING
        )


def test_normalisation_is_that_of_torch():
    import torch

    rng = np.random.default_rng(5)
    for is_centred, module in ((True, torch.nn.LayerNorm), (False, torch.nn.RMSNorm)):
        K = fields.Normalisation(6, 4, is_centred)
        x = rng.normal(size=(K.n_in, BATCH))
        with torch.no_grad():
            by_channel = torch.from_numpy(x.T.reshape(BATCH, 6, 4).swapaxes(1, 2).copy())
            found = module(6, eps=K.eps, elementwise_affine=False)(by_channel).numpy()
        np.testing.assert_allclose(
            reference.apply(K, None, x, x), found.swapaxes(1, 2).reshape(BATCH, -1).T, atol=ROUNDING
        )


@pytest.mark.parametrize(("name", "dynamics"), combinations())
def test_pullback_of_every_formula_agrees_with_differences(name, dynamics):
    rng, field = np.random.default_rng(4), field_of(name, dynamics, "softplus")
    for chain in field.parts:
        weights, x = weights_of(chain, rng), rng.normal(size=(chain.n_in, BATCH))
        out_bar = rng.normal(size=(chain.n_out, BATCH))
        bars = reference.pullback(chain, weights, 0.3, x, out_bar)
        x_dot, dots = rng.normal(size=x.shape), weights_of(chain, rng)
        h = 1e-6

        def value(step, chain=chain, weights=weights, x=x, out_bar=out_bar, x_dot=x_dot, dots=dots):
            moved = {key: weights[key] + step * dots[key] for key in weights}
            return np.vdot(out_bar, reference.evaluate(chain, moved, 0.3, x + step * x_dot))

        exact = np.vdot(bars.x, x_dot) + sum(np.vdot(bars.weights[key], dots[key]) for key in dots)
        assert abs((value(h) - value(-h)) / (2 * h) - exact) < 1e-7 * max(1.0, abs(exact))  # 1e-16 / h, h^2


@pytest.mark.parametrize("s", fields.ACTIVATIONS.values(), ids=str)
def test_derivative_and_steepest_slope_of_an_activation(s):
    u, h = np.linspace(-9, 9, 6001) + 1e-4, 1e-6
    np.testing.assert_allclose((s.value(u + h) - s.value(u - h)) / (2 * h), s.derivative(u), atol=2e-9)
    assert (
        abs(np.abs(s.derivative(u)).max() - s.steepest) < 4e-3 * s.steepest
    )  # reached between the points, or far away


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_splines_of_depth_are_those_of_scipy(degree):
    from scipy.interpolate import BSpline

    depth, rng = fields.Depth(7, degree), np.random.default_rng(5)
    controls, n = rng.normal(size=(7, 2)), depth.intervals
    knots = np.concatenate((np.zeros(degree), np.arange(n + 1) / n, np.ones(degree)))
    s = np.linspace(0, 1, 50)[:-1] + 1e-3
    found = np.stack([depth.values(controls, each) for each in s])
    np.testing.assert_allclose(found, BSpline(knots, controls, degree)(s), atol=ROUNDING)
    np.testing.assert_allclose(depth.basis(s)[1].sum(axis=1), 1.0, atol=ROUNDING)


def test_roughness_has_its_gradient_and_the_published_form():
    rng, depth, length = np.random.default_rng(6), fields.Depth(5), 2.0
    theta, h = rng.normal(size=(5, 3)), length / 5
    value, gradient = depth.roughness(theta, length)
    assert abs(value - 0.5 * sum(h * np.sum(((theta[j + 1] - theta[j]) / h) ** 2) for j in range(4))) < ROUNDING
    direction, step = rng.normal(size=theta.shape), 1e-6
    ahead, behind = (depth.roughness(theta + e * direction, length)[0] for e in (step, -step))
    assert abs((ahead - behind) / (2 * step) - np.vdot(gradient, direction)) < 1e-7
