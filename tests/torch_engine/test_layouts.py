"""Tensors of several axes have the stated layout, or are refused, in blocks, field functions and nets."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from fields.zoo import RING
from gradients.cases import relative

import stepnet.torch as snt
from stepnet import fields, nets
from stepnet.errors import UnknownName

torch.set_num_threads(1)

EQUAL = 1e-12  # relative; the same numbers in another order
BATCH, NODES = 3, RING.shape[0]
HOW = {"seed": 1, "dtype": torch.float64}
BLOCKS = {
    "images": (lambda **how: snt.ParabolicBlock(fields.conv2d((4, 6), 3), 3, **HOW, **how), (3, 4, 6)),
    "images, two halves": (lambda **how: snt.HamiltonianBlock(fields.conv2d((4, 6), 3), 3, **HOW, **how), (6, 4, 6)),
    "line": (lambda **how: snt.HyperbolicBlock(fields.conv1d(7, 2), 3, **HOW, **how), (4, 7)),
    "tokens": (lambda **how: snt.ResidualBlock(fields.Attention(7, 4, 2), 3, **HOW, **how), (4, 7)),
    "graph": (lambda **how: snt.AntisymmetricBlock(fields.graph(RING, 3), 3, **HOW, **how), (3, NODES)),
    "adaptive": (lambda **how: snt.ODEBlock(fields.residual(fields.conv1d(7, 2)), "dopri5", **HOW, **how), (2, 7)),
}  # fmt: skip
over_blocks = pytest.mark.parametrize(("make", "shape"), BLOCKS.values(), ids=list(BLOCKS))
over_engines = pytest.mark.parametrize("engine", ["numba", "torch"])


def states(shape) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(0).normal(size=(BATCH, *shape)), requires_grad=True)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1)


@over_blocks
def test_stated_shapes_and_their_flat_tensors_are_taken(make, shape):
    for layout, x in (("channels_first", states(shape)), ("channels_last", last(states(shape)))):
        block = make(layout=layout)
        y = block(x)
        assert y.shape == x.shape
        assert torch.equal(block(x.reshape(BATCH, -1)), y.reshape(BATCH, -1))


@over_blocks
def test_other_shapes_with_as_many_numbers_are_refused(make, shape):
    block, x = make(), states(shape).detach()
    for other in {(*shape[1:], shape[0]), shape[::-1], (x[0].numel(), 1), (1, *shape)} - {shape}:
        with pytest.raises(ValueError, match=r"must have the shape \(batch, \d+, .*found the shape"):
            block(x.reshape(BATCH, *other))
    with pytest.raises(ValueError, match="give `layout`='channels_last'"):
        block(last(x))
    with pytest.raises(ValueError, match="give `layout`='channels_first'"):
        make(layout="channels_last")(x)
    with pytest.raises(UnknownName, match="channels_last"):
        make(layout="channel_last")


@over_blocks
def test_layouts_give_the_same_states_and_gradients(make, shape):
    x = states(shape)
    one, other = make(), make(layout="channels_last")
    y, z = one(x), other(last(x))
    assert relative(z.detach(), last(y).detach()) <= EQUAL
    found, wanted = (
        torch.autograd.grad(out.sin().sum(), (x, *each.parameters())) for out, each in ((z, other), (y, one))
    )
    assert max(relative(a, b) for a, b in zip(found, wanted, strict=True)) <= EQUAL


@over_engines
def test_attention_is_that_of_torch(engine):
    """(batch, tokens, channels), as torch has it: one Euler step of size one is x + attention(x)."""
    tokens, channels, heads = 5, 4, 2
    block = snt.ResidualBlock(
        fields.Attention(tokens, channels, heads),
        1,
        activation="identity",
        engine=engine,
        layout="channels_last",
        **HOW,
    )
    other = torch.nn.MultiheadAttention(channels, heads, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        other.in_proj_weight.copy_(block.K[0, :3].reshape(-1, channels))
        other.out_proj.weight.copy_(block.K[0, 3])
        other.in_proj_bias.zero_()
        other.out_proj.bias.zero_()
    x = states((tokens, channels)).detach()
    assert relative(block(x).detach(), (x + other(x, x, x)[0]).detach()) <= EQUAL


@over_engines
def test_convolutions_are_those_of_torch(engine):
    """One Euler step of size one is x + conv(x) on images that are not square."""
    block = snt.ResidualBlock(fields.conv2d((4, 6), 3), 1, activation="identity", engine=engine, **HOW)
    x, kernel = states((3, 4, 6)).detach(), block.K[0].detach().reshape(3, 3, 3, 3).permute(2, 3, 0, 1)
    wanted = x + torch.nn.functional.conv2d(x, kernel, padding=1)
    assert relative(block(x).detach(), wanted) <= EQUAL


@over_engines
@pytest.mark.parametrize("outputs", [None, 2])
def test_nets_keep_their_layout_as_modules(engine, outputs):
    net = nets.parabolic_cnn((4, 6), (2, 4), 3, inputs=3, outputs=outputs, layout="channels_last")
    module, x = snt.from_net(net, engine=engine), last(states((3, 4, 6)))
    wanted = net(x.detach().numpy())
    assert relative(module(x).detach(), wanted) <= EQUAL
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), snt.from_net(module.net(), engine=engine)):
        assert torch.equal(other(x), module(x))
    assert module.net().layout == "channels_last"
    with pytest.raises(ValueError, match="give `layout`='channels_first'"):
        module(states((3, 4, 6)))
    module.blocks[0].register_forward_hook(lambda *_: None)
    assert module.way(x) == "stages"
    assert relative(module(x).detach(), wanted) <= EQUAL
    module.joins[0] = torch.nn.Sequential(module.joins[0])
    assert relative(module(x).detach(), wanted) <= EQUAL


def test_presets_take_a_layout():
    module = snt.nets.attention_net(7, 4, 3, outputs=2, layout="channels_last")
    assert module(torch.ones(BATCH, 7, 4)).shape == (BATCH, 2)
    with pytest.raises(ValueError, match="must have the shape"):
        module(torch.ones(BATCH, 4, 7))


def test_layouts_are_compiled_traced_and_saved():
    block, x = BLOCKS["images, two halves"][0](layout="channels_last", engine="torch"), last(states((6, 4, 6))).detach()
    wanted = block(x).detach()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert relative(compiled(x).detach(), wanted) <= EQUAL
    assert relative(torch.func.vmap(lambda row: block(row[None])[0])(x).detach(), wanted) <= EQUAL
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), block(x))


def test_flat_blocks_take_samples_of_any_shape():
    block, x = snt.ResidualBlock(24, 3, **HOW), states((4, 6))
    assert torch.equal(block(x).reshape(BATCH, -1), block(x.reshape(BATCH, -1)))
