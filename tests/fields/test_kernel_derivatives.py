"""A 3 x 3 kernel and the differential operator it discretises agree, in layers and on smooth images."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import fields, nets, training
from stepnet import operators as so
from stepnet.fields import reference

ROUNDING = 1e-13
SIZE = 12


def apply_derivatives(coefficients: np.ndarray, grid: so.Grid, u: np.ndarray) -> np.ndarray:
    """sum_ab c_ab d^a/dx^a d^b/dy^b by the operators of the package."""
    total = np.zeros_like(u)
    for a in range(3):
        for b in range(3):
            v = u if a == 0 else so.derivative(grid, 0, a)(u)
            total += coefficients[a, b] * (v if b == 0 else so.derivative(grid, 1, b)(v))
    return total


def test_every_kernel_is_one_sum_of_derivatives():
    kernels = np.random.default_rng(0).normal(size=(2, 4, 3, 3))
    for spacing in (1.0, 0.25):
        back = fields.build_kernel(fields.find_kernel_derivatives(kernels, spacing), spacing)
        assert np.max(np.abs(back - kernels)) <= ROUNDING
    with pytest.raises(ValueError, match=r"`kernels` must have the shape \(\.\.\., 3, 3\)"):
        fields.find_kernel_derivatives(np.ones((2, 2)))


def test_a_convolution_is_its_differential_operator():
    rng, grid = np.random.default_rng(1), so.Grid((SIZE, SIZE), 0.0, 1.0)
    K, u = fields.conv2d((SIZE, SIZE), 1, padding="periodic"), rng.normal(size=(SIZE, SIZE))
    W = rng.normal(size=(9, 1, 1))
    layer = reference.apply(K, W, u.reshape(-1, 1), u.reshape(-1, 1)).reshape(SIZE, SIZE)
    c = fields.find_kernel_derivatives(W.reshape(3, 3), grid.spacing[0])
    found = apply_derivatives(c, grid, u)
    assert np.max(np.abs(found - layer)) <= ROUNDING * SIZE**4  # of products of second differences


def test_the_layers_of_a_trained_parabolic_net_are_diffusion():
    """The linear part -K' K of its layers at y = 0 dissipates, and is the operator that its kernels discretise."""
    rng, grid = np.random.default_rng(2), so.Grid((SIZE, SIZE), 0.0, 1.0)
    labels = np.arange(120) % 2
    x, y = grid.coordinates
    waves = np.where(labels[:, None, None] == 1, np.sin(2 * np.pi * x), np.sin(6 * np.pi * y))
    images = (waves + 0.3 * rng.normal(size=waves.shape))[:, None]
    net = nets.parabolic_cnn((SIZE, SIZE), [1], 3, inputs=None, outputs=2, activation="tanh", padding="periodic")
    data = training.Data(images, labels)
    objective = training.Objective(net, "cross_entropy")
    training.minimise(objective, data, training.LBFGS(20))
    assert objective.value(net.theta, data)[1] > 0.95
    block = net.design.blocks[0]
    chain, K = block.field.chain(0), block.field.chain(0).layers[0].connectivity
    for kernel, bias in zip(net.weights["blocks.0.K"], net.weights["blocks.0.b"], strict=True):
        u = np.cos(2 * np.pi * (x + y)).ravel()[:, None]
        weights = {"K": kernel, "b": np.zeros_like(bias)}
        linear = reference.tangent(chain, weights, 0.0, np.zeros_like(u), u)
        derivatives = fields.find_kernel_derivatives(kernel.reshape(3, 3), grid.spacing[0])
        transposed = fields.find_kernel_derivatives(kernel.reshape(3, 3)[::-1, ::-1], grid.spacing[0])
        once = apply_derivatives(derivatives, grid, u.reshape(SIZE, SIZE))
        found = -apply_derivatives(transposed, grid, once)
        assert np.max(np.abs(found.ravel() - linear[:, 0])) <= ROUNDING * SIZE**4
        assert float(u[:, 0] @ linear[:, 0]) <= 0.0
        assert K.n_in == SIZE**2
