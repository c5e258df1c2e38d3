"""Initial weights of modules come from torch's generator, or from a seed that `stepnet.nets` shares."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch_engine.presets import ARGUMENTS, inputs

import stepnet.torch as snt
from stepnet import fields, nets
from stepnet.errors import UnknownName
from stepnet.nets import Block, Design, Net
from stepnet.nets.initialisation import NAMES, VARIANCES

torch.set_num_threads(1)

FIELD = fields.hamiltonian(fields.dense(3))
BLOCK = Block(FIELD, "verlet", 4)
MODULES = {
    "LayerBlock": lambda **how: snt.LayerBlock(BLOCK, **how),
    "LayerChain": lambda **how: snt.LayerChain(fields.affine(fields.dense(3, 2)), **how),
    "FieldFunction": lambda **how: snt.FieldFunction(FIELD, **how),
    "adaptive block": lambda **how: snt.ODEBlock(FIELD, "dopri5", **how).func,
    "HamiltonianBlock": lambda **how: snt.HamiltonianBlock(6, 4, **how),
    "ParabolicBlock of images": lambda **how: snt.ParabolicBlock(fields.conv2d((4, 5), 2), 3, **how),
    "AntisymmetricBlock": lambda **how: snt.AntisymmetricBlock(6, 4, **how),
    "attention": lambda **how: snt.ResidualBlock(fields.Attention(3, 4, 2), 3, **how),
    "resnet": lambda **how: snt.nets.resnet(3, 2, 6, 4, **how),
    "parabolic_cnn": lambda **how: snt.nets.parabolic_cnn((4, 4), (2, 4), 3, outputs=2, **how),
}
CLASSES = {
    "LayerBlock": (snt.LayerBlock, BLOCK),
    "LayerChain": (snt.LayerChain, fields.affine(fields.dense(3, 2))),
    "FieldFunction": (snt.FieldFunction, FIELD),
    "NetModule": (snt.NetModule, nets.resnet(3, 2, 6, 4)),
}
over_modules = pytest.mark.parametrize("make", MODULES.values(), ids=list(MODULES))


def weights(module) -> np.ndarray:
    return np.concatenate([p.detach().double().reshape(-1).numpy() for p in module.parameters()])


def seeded(make, seed: int, **how) -> np.ndarray:
    torch.manual_seed(seed)
    return weights(make(**how))


@over_modules
def test_manual_seed_makes_weights_reproducible_and_modules_differ(make):
    assert np.array_equal(seeded(make, 1), seeded(make, 1))
    assert not np.array_equal(seeded(make, 1), seeded(make, 2))
    torch.manual_seed(1)
    assert not np.array_equal(weights(make()), weights(make()))


@over_modules
def test_generator_is_used_as_by_a_linear_layer(make):
    """Forked generators come back, and what is drawn later depends on what was drawn before."""
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        first = weights(make())
    assert np.array_equal(weights(make()), first)
    after = torch.rand(())
    torch.manual_seed(3)
    assert torch.rand(()) != after


def test_members_of_an_ensemble_disagree():
    torch.manual_seed(0)
    x = inputs(3, dtype=torch.float32)
    members = [snt.nets.hamiltonian(3, 1, 6, 4) for _ in range(5)]
    assert torch.stack([each(x) for each in members]).std(0).min() > 1e-3
    copies = [copy.deepcopy(members[0]) for _ in range(5)]
    for each in copies:
        each.reset_parameters()
    assert torch.stack([each(x) for each in copies]).std(0).min() > 1e-3


def test_blocks_of_a_model_differ():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(snt.HamiltonianBlock(4, 3) for _ in range(3)))
    assert not torch.equal(model[0].K, model[1].K)
    assert not torch.equal(model[1].K, model[2].K)


@over_modules
def test_seed_gives_the_same_weights_and_leaves_the_generator_alone(make):
    torch.manual_seed(5)
    wanted = torch.rand(())
    torch.manual_seed(5)
    one, other = make(seed=7), make(seed=7)
    assert torch.rand(()) == wanted
    assert np.array_equal(weights(one), weights(other))
    assert not np.array_equal(weights(one), weights(make(seed=8)))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.zero_()
    one.reset_parameters()
    assert np.array_equal(weights(one), weights(other))


@pytest.mark.parametrize("name", nets.PRESETS)
def test_seed_means_the_same_in_both_packages(name):
    arguments, options = ARGUMENTS[name]
    module = getattr(snt.nets, name)(*arguments, seed=5, dtype=torch.float64, **options)
    assert np.array_equal(module.theta, nets.PRESETS[name](*arguments, seed=5, **options).theta)


@pytest.mark.parametrize("initialisation", NAMES)
def test_seed_of_a_block_is_that_of_its_net(initialisation):
    wanted = Net(Design((BLOCK,)), seed=5, initialisation=initialisation).theta
    module = snt.LayerBlock(BLOCK, seed=5, initialisation=initialisation, dtype=torch.float64)
    assert np.array_equal(weights(module), wanted)


@over_modules
def test_weights_are_drawn_anew_in_place(make):
    module = make()
    places = [p.data_ptr() for p in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    before = weights(module)
    module.reset_parameters()
    assert not np.array_equal(weights(module), before)
    assert [p.data_ptr() for p in module.parameters()] == places
    assert [id(p) for p in optimiser.param_groups[0]["params"]] == [id(p) for p in module.parameters()]
    assert all(p.requires_grad and p.is_leaf for p in module.parameters())


@over_modules
def test_copies_draw_weights_of_their_own(make):
    module = make()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert np.array_equal(weights(other), weights(module))
        other.reset_parameters()
        assert not np.array_equal(weights(other), weights(module))


@over_modules
def test_modules_without_numbers_get_them_later(make):
    torch.manual_seed(4)
    module = make(device="meta")
    with torch.device("meta"):
        assert all(p.is_meta for p in make().parameters())
    wanted = seeded(make, 4)
    torch.manual_seed(4)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    assert np.array_equal(weights(module), wanted)


@over_modules
def test_fake_modules_draw_nothing(make):
    torch.manual_seed(6)
    with FakeTensorMode():
        make().reset_parameters()
    found = torch.rand(())
    torch.manual_seed(6)
    assert torch.rand(()) == found


@pytest.mark.parametrize(("kind", "record"), CLASSES.values(), ids=list(CLASSES))
def test_initialisation_is_skipped(kind, record):
    torch.manual_seed(6)
    module = torch.nn.utils.skip_init(kind, record)
    found = torch.rand(())
    torch.manual_seed(6)
    assert torch.rand(()) == found
    module.reset_parameters()
    assert np.isfinite(weights(module)).all()


def test_nets_are_taken_over_without_a_draw():
    net = nets.resnet(3, 2, 6, 4)
    torch.manual_seed(6)
    module = snt.from_net(net)
    found = torch.rand(())
    torch.manual_seed(6)
    assert torch.rand(()) == found
    assert np.array_equal(module.theta, net.theta)
    module.reset_parameters()
    assert not np.array_equal(module.theta, net.theta)


@pytest.mark.parametrize("rule", VARIANCES)
def test_distribution_is_that_of_the_rule(rule):
    torch.manual_seed(0)
    module = snt.ResidualBlock(40, 20, initialisation=rule)
    K = module.K.detach().double()
    assert abs(K.mean()) < 4 / K.numel() ** 0.5 * K.std()  # four standard errors
    assert abs(K.var() * 1 / VARIANCES[rule](40, 40) - 1) < 4 * (2 / K.numel()) ** 0.5
    assert abs((K**4).mean() / K.var() ** 2 - 3) < 4 * (24 / K.numel()) ** 0.5  # normal, not uniform
    assert torch.equal(module.b, torch.zeros_like(module.b))


def test_pruned_weights_are_not_drawn_anew():
    module = snt.ResidualBlock(4, 3)
    prune.l1_unstructured(module, "K", amount=0.3)
    with pytest.raises(TypeError, match="`K` is made from other parameters"):
        module.reset_parameters()


def test_unknown_initialisations_are_refused_on_every_device():
    for device in ("cpu", "meta"):
        with pytest.raises(UnknownName, match="glorot"):
            snt.ResidualBlock(4, 3, initialisation="glorott", device=device)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", 2**70])
def test_seeds_that_are_no_64_bit_integers_are_refused(seed):
    for make in (MODULES["LayerBlock"], MODULES["resnet"], lambda **how: nets.resnet(3, 2, 6, 4, **how)):
        with pytest.raises((TypeError, ValueError), match=r"`seed` must be (an integer|at (least|most) [0-9]+), found"):
            make(seed=seed)


def test_chains_without_weights_draw_nothing():
    torch.manual_seed(6)
    snt.LayerChain(fields.Chain((fields.Layer(fields.pooling((4, 4), 2), None, None),)))
    found = torch.rand(())
    torch.manual_seed(6)
    assert torch.rand(()) == found
