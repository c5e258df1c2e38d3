"""A small net of every preset with random weights, biases too, and inputs for it."""

from __future__ import annotations

import numpy as np
import torch
from fields.zoo import RING

from stepnet import nets

N = 5
ARGUMENTS = {
    "resnet": ((3, 2, 6, N), {}),
    "antisymmetric": ((3, 2, 6, N), {"damping": 0.1}),
    "parabolic": ((3, 2, 6, N), {"activation": "relu"}),
    "hamiltonian": ((3, 2, 6, N), {}),
    "hyperbolic": ((3, 2, 6, N), {}),
    "midpoint_net": ((3, 2, 6, N), {}),
    "leapfrog_net": ((3, 2, 6, N), {}),
    "mlp": ((3, 2, 6, N), {"activation": "gelu"}),
    "neural_ode": ((3, 2, [8], N), {"width": 4, "has_time": True}),
    "graph_ode": ((RING, 3, N), {"outputs": 2, "filter": "chebyshev"}),
    "node_net": ((RING, 2, 3, 4, N), {"dynamics": "hamiltonian"}),
    "attention_net": ((4, 4, 3), {"heads": 2, "outputs": 2}),
    "parabolic_cnn": (((8, 8), (2, 4), 3), {"inputs": 1, "outputs": 3}),
}
NETS = {name: nets.PRESETS[name](*arguments, **options) for name, (arguments, options) in ARGUMENTS.items()} | {
    "resnet, normalised": nets.resnet(3, 2, 6, N, norm="layer"),
    "parabolic cnn, normalised": nets.parabolic_cnn((4, 4), (2, 4), 3, norm="rms", outputs=2),
    "resnet along a spline": nets.resnet(3, 2, 6, N, degree=3),
    "hamiltonian cnn": nets.parabolic_cnn((4, 4), (4,), 3, dynamics="hamiltonian", padding="periodic", outputs=2),
}
for number, net in enumerate(NETS.values()):
    net.put(net.theta + 0.1 * np.random.default_rng(number).normal(size=net.theta.shape))


def inputs(n: int, batch: int = 7, dtype=torch.float64) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(n).normal(size=(batch, n)), dtype=dtype, requires_grad=True)


def gradients(module, x):
    return torch.autograd.grad(module(x).sin().sum(), (x, *module.parameters()))
