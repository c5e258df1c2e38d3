"""Certificates of modules are those of their nets, and hold for perceptrons."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stepnet.torch as snt
from stepnet import fields, nets, stability

X = np.random.default_rng(0).normal(size=(6, 3))
CLOSE = 1e-9  # relative: of spectral norms by other algorithms


def test_modules_have_the_certificate_of_their_net():
    net = nets.hamiltonian(3, 2, 6, 5, workers=1)
    found, wanted = snt.certificate(snt.from_net(net), torch.tensor(X)), stability.certificate(net, X)
    assert found.lipschitz == pytest.approx(wanted.lipschitz, rel=CLOSE)
    assert found.blocks[0].upper == pytest.approx(wanted.blocks[0].upper, rel=CLOSE)
    assert 0 < found.blocks[0].measured <= found.blocks[0].upper


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.SELU()])
def test_bounds_of_perceptrons_are_not_below_their_jacobians(activation):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), activation, nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    found = snt.certificate(model).lipschitz
    for row in torch.tensor(3 * X, dtype=torch.float32):
        J = torch.autograd.functional.jacobian(model, row)
        assert torch.linalg.matrix_norm(J, 2) <= found * (1 + 1e-5)  # of single precision


def test_linear_layers_without_activation_are_multiplied():
    one, two = nn.Linear(3, 4), nn.Linear(4, 2)
    exact = torch.linalg.matrix_norm((two.weight @ one.weight).double(), 2).item()
    assert snt.certificate(nn.Sequential(one, two)).lipschitz == pytest.approx(exact, rel=1e-6)


def test_sequences_name_the_block_to_blame():
    block = snt.LayerBlock(nets.Block(fields.residual(fields.dense(4)), "euler", 5, 50.0), seed=0)
    found = snt.certificate(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), block))
    assert not found.is_stable
    assert "2.blocks.0" in found.verdict
    assert "with h <=" in found.verdict


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.LSTM(2, 2)), "`module` must have layers with known bounds"),
        (nn.Sequential(nn.Tanh()), "must not begin"),
        (nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.3)), "`module` must have layers"),
        (3, "`module` must be a torch.nn.Module"),
    ],
)
def test_bad_input_is_refused(module, message):
    with pytest.raises((ValueError, TypeError), match=message):
        snt.certificate(module)


def test_a_box_is_for_whole_nets():
    net = nets.resnet(2, 2, 4, 5, workers=1)
    found = snt.certificate(snt.from_net(net), box=(-0.1, 0.1))
    assert found.lipschitz == pytest.approx(stability.certificate(net, box=(-0.1, 0.1)).lipschitz, rel=CLOSE)
    with pytest.raises(ValueError, match="`box` is for a NetModule or a block"):
        snt.certificate(nn.Sequential(nn.Linear(2, 2)), box=(0.0, 1.0))
