"""Blocks and nets as modules: the nets of `stepnet.nets`, with their weights, in both engines and every memory."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from fields.zoo import SQUARE
from gradients.cases import relative
from torch_engine.presets import NETS, N, gradients, inputs

import stepnet as sn
import stepnet.torch as snt
from stepnet import fields, nets
from stepnet.engines.torch_engine.adjoint import reversal
from stepnet.engines.torch_engine.adjoint.reversal import BLOCK_BYTES
from stepnet.errors import UnknownName

torch.set_num_threads(1)

EQUAL = 1e-12  # relative; sums in another order
SAME = 1e-13  # the same operations on moved numbers
NEAR = 1e-5  # relative; Verlet's error in steps of 0.0007 is h^2 times a small number

BLOCKS = {
    "residual": snt.ResidualBlock,
    "antisymmetric": snt.AntisymmetricBlock,
    "parabolic": snt.ParabolicBlock,
    "hamiltonian": snt.HamiltonianBlock,
    "hyperbolic": snt.HyperbolicBlock,
}
REVERSIBLE = ("hamiltonian", "hyperbolic")
MEMORIES = ["all", "auto", "reversible", 3000, snt.Checkpoints(slots=2)]


def block(name, memory="all", engine="torch", features=6, **how):
    return BLOCKS[name](features, N, length=0.7, memory=memory, engine=engine, seed=0, dtype=torch.float64, **how)


def test_no_preset_is_left_out():
    print(f"{len(NETS)} nets of {len(nets.PRESETS)} presets")
    assert set(nets.PRESETS) <= set(NETS)


@pytest.mark.parametrize("engine", ["torch", "numba"])
@pytest.mark.parametrize("name", NETS)
def test_every_preset_is_a_module_with_the_outputs_and_gradients_of_the_net(name, engine):
    net = NETS[name]
    module, x = snt.from_net(net, engine=engine), inputs(net.design.n_in)
    y = module(x)
    wanted = net.gradient(x.detach().numpy(), end_gradient=np.cos(y.detach().numpy()))
    found = torch.autograd.grad(y.sin().sum(), (x, *module.in_order()))
    assert relative(y.detach(), wanted.outputs) <= EQUAL
    assert relative(found[0], wanted.x) <= EQUAL
    assert relative(torch.cat([each.reshape(-1) for each in found[1:]]), wanted.theta) <= EQUAL


@pytest.mark.parametrize("name", NETS)
def test_weights_move_both_ways(name):
    net = NETS[name]
    module = snt.from_net(net)
    assert set(module.state_dict()) == set(net.weights)
    for key, value in module.state_dict().items():
        assert np.array_equal(value.numpy(), net.weights[key])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    assert np.array_equal(module.theta, 1.5 * net.theta)
    back = module.net()
    assert np.array_equal(back.theta, 1.5 * net.theta)
    assert np.array_equal(back(inputs(net.design.n_in).detach().numpy()), module(inputs(net.design.n_in)).detach())
    other = snt.from_net(net, engine="torch")
    other.load_state_dict(module.state_dict())
    assert np.array_equal(other.theta, module.theta)
    other.put(net.theta)
    assert np.array_equal(other.theta, net.theta)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_gradcheck_in_every_memory(name, memory):
    if memory == "reversible" and name not in REVERSIBLE:
        with pytest.raises(ValueError, match="invertible"):
            block(name, memory)
        return
    module, y = block(name, memory), inputs(6, 3)
    assert torch.autograd.gradcheck(lambda y, *_: module(y), (y, *module.parameters()), fast_mode=True)
    stored = gradients(block(name), y)
    assert max(relative(a, b) for a, b in zip(gradients(module, y), stored, strict=True)) <= EQUAL


def kept_bytes(module, y) -> int:
    """What autograd holds between both ways, the parameters left out."""
    own, sizes = {p.untyped_storage().data_ptr() for p in module.parameters()}, {}

    def pack(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = module(y)  # held meanwhile, so that no address is used twice
    return sum(sizes.values())


@pytest.mark.parametrize("name", REVERSIBLE)
def test_reversible_blocks_keep_no_more_when_they_are_deeper(name):
    """The graph of the last steps is bounded by `BLOCK_BYTES`, and nothing else but the state is kept."""
    depths, y = (200, 800), inputs(64, 256)
    kept = {
        memory: [kept_bytes(BLOCKS[name](64, n, memory=memory, engine="torch", dtype=torch.float64), y) for n in depths]
        for memory in ("all", "reversible")
    }
    print({memory: [f"{size / 1e6:.1f} MB" for size in sizes] for memory, sizes in kept.items()})
    assert max(kept["reversible"]) <= 2 * BLOCK_BYTES  # a step is weighed by the opening, which has fewer sums
    assert kept["all"][1] > 3.5 * kept["all"][0] > 2 * BLOCK_BYTES


@pytest.mark.parametrize("engine", ["torch", "numba"])
@pytest.mark.parametrize("name", BLOCKS)
def test_compiled_whole(name, engine):
    torch._dynamo.reset()
    module, y = block(name, "auto", engine), inputs(6)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert relative(compiled(y).detach(), module(y).detach()) <= EQUAL
    both = zip(gradients(compiled, y), gradients(module, y), strict=True)
    assert max(relative(a, b) for a, b in both) <= EQUAL


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch itself calls it
@pytest.mark.parametrize("name", ["hamiltonian", pytest.param("antisymmetric", marks=pytest.mark.slow)])
def test_generated_code_has_the_same_values(name):
    """By the compiler itself, whose rules for sums of products are not those of the other backends."""
    torch._dynamo.reset()
    module, y = BLOCKS[name](6, 2, engine="torch", dtype=torch.float64), inputs(6)
    assert relative(torch.compile(module, fullgraph=True)(y).detach(), module(y).detach()) <= EQUAL


def test_a_net_is_compiled_whole():
    torch._dynamo.reset()
    for engine in ("torch", "numba"):
        module = snt.from_net(NETS["parabolic_cnn"], engine=engine)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        x = inputs(64)
        assert relative(compiled(x).detach(), module(x).detach()) <= EQUAL


@pytest.mark.parametrize("name", BLOCKS)
def test_other_devices_and_dtypes(name):
    """The meta device has shapes and no numbers, so that whoever reads one is found out."""
    module = block(name, "all", "auto").to("meta")
    assert module(torch.empty(4, 6, dtype=torch.float64, device="meta")).shape == (4, 6)
    half = block(name, "all", "auto").to(torch.bfloat16)
    assert half(inputs(6, dtype=torch.bfloat16)).dtype == torch.bfloat16
    single = block(name, "all", "auto").float()
    assert relative(single(inputs(6).float()).detach(), block(name)(inputs(6)).detach()) < 1e-5


def test_images_keep_their_shape():
    module = snt.HamiltonianBlock(fields.conv2d((4, 6), 3), N, activation="relu")
    assert module(torch.randn(2, 6, 4, 6)).shape == (2, 6, 4, 6)


def test_the_jacobian_of_a_hamiltonian_block_is_symplectic_to_rounding():
    module, y = snt.HamiltonianBlock(6, 64, seed=0, dtype=torch.float64, initialisation="stable"), inputs(6, 1).detach()
    J = torch.func.jacrev(lambda y: module(y[None])[0])(y[0]).detach()
    Omega = torch.kron(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double(), torch.eye(3).double())
    assert relative(J.T @ Omega @ J, Omega) <= 64 * 1e-15  # a rounding for every layer


# ---- equivariance ---------------------------------------------------------------------------------------------------


def moved_nodes(x: torch.Tensor, channels: int, order) -> torch.Tensor:
    return x.reshape(len(x), channels, -1)[..., order].flatten(1)


EQUIVARIANT = {
    "conv1d periodic": [1, 2, 3, 4, 5, 0],
    "conv2d periodic": np.roll(np.arange(12).reshape(3, 4), (1, 2), (0, 1)).ravel(),
    "graph": [1, 2, 3, 4, 0],
    "laplacian": [4, 3, 2, 1, 0],
    "chebyshev": [1, 2, 3, 4, 0],
    "set": [2, 0, 3, 1],
    "attention": [3, 1, 0, 2],
}


@pytest.mark.parametrize("engine", ["torch", "numba"])
@pytest.mark.parametrize("dynamics", BLOCKS)
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_moving_nodes_moves_the_outputs(name, dynamics, engine):
    if name == "attention" and dynamics == "antisymmetric":
        with pytest.raises(ValueError, match="linear in the state"):
            snt.AntisymmetricBlock(SQUARE[name], N)
        return
    K, order = SQUARE[name], list(EQUIVARIANT[name])
    module = BLOCKS[dynamics](K, N, engine=engine, dtype=torch.float64)
    y, channels = inputs(module.record.n_in).detach(), module.record.n_in // len(order)
    found, wanted = module(moved_nodes(y, channels, order)), moved_nodes(module(y), channels, order)
    assert relative(found.detach(), wanted.detach()) <= SAME


# ---- any function of (t, y) -----------------------------------------------------------------------------------------


class Slope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, t, y):
        return torch.tanh(self.linear(y)) * torch.cos(t)


@pytest.mark.parametrize("memory", ["auto", "all", snt.Checkpoints(slots=2)], ids=str)
@pytest.mark.parametrize(("scheme", "steps"), [("rk4", N), ("dopri5", N), ("dopri5", None), ("ab3", N)])
def test_blocks_of_functions_are_solves(scheme, steps, memory):
    slope, y = Slope(), inputs(3)
    module = snt.ODEBlock(slope, scheme, steps, 0.8, memory=memory)
    t = torch.linspace(0.0, 0.8, (steps or 1) + 1, dtype=torch.float64)
    options = {"grid_constructor": lambda f, y, t: t} if steps else {}
    wanted = snt.odeint(slope, y, t, method=sn.schemes.get(scheme), rtol=1e-6, atol=1e-9, options=options)[-1]
    assert relative(module(y).detach(), wanted.detach()) <= EQUAL
    both = zip(gradients(module, y), torch.autograd.grad(wanted.sin().sum(), (y, *slope.parameters())), strict=True)
    assert max(relative(a, b) for a, b in both) <= EQUAL
    assert [name for name, _ in module.named_parameters()] == ["func.linear.weight", "func.linear.bias"]


def test_blocks_of_functions_in_halves():
    slope = Slope()
    module = snt.ODEBlock(snt.SecondOrder(slope), "verlet", N, memory="reversible")
    start = (inputs(3), inputs(3))
    t = torch.linspace(0.0, module.length, N + 1, dtype=torch.float64)
    wanted = [part[-1] for part in snt.odeint(snt.SecondOrder(slope), start, t, method="verlet")]
    found = module(start)
    assert found[0].shape == found[1].shape == (7, 3)
    assert len(list(module.parameters())) == 2
    assert max(relative(a.detach(), b.detach()) for a, b in zip(found, wanted, strict=True)) <= EQUAL
    bars = [torch.autograd.grad(q.sum() + v.sum(), (*start, *module.parameters())) for q, v in (found, wanted)]
    assert max(relative(a, b) for a, b in zip(*bars, strict=True)) <= EQUAL
    assert min(float(bar.abs().max()) for bar in bars[0]) > 0.1


def test_blocks_of_functions_are_compiled_whole():
    torch._dynamo.reset()
    module, y = snt.ODEBlock(Slope(), "rk4", N), inputs(3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert relative(compiled(y).detach(), module(y).detach()) <= EQUAL


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("dynamics", ["residual", "hamiltonian", "hyperbolic"])
def test_adaptive_steps_of_a_field_come_near_to_many_layers(dynamics, degree):
    field, depth = fields.DYNAMICS[dynamics](SQUARE["conv1d"]), fields.Depth(degree + 1, degree)
    adaptive = snt.ODEBlock(
        field, "dopri5", length=0.7, depth=depth, rtol=1e-9, atol=1e-11, seed=0, dtype=torch.float64
    )
    layers = snt.ODEBlock(field, None, 1000, 0.7, depth=depth, seed=0, dtype=torch.float64)
    layers.load_state_dict(adaptive.func.state_dict())
    y = inputs(field.width)
    assert relative(adaptive(y).detach(), layers(y).detach()) < NEAR
    both = zip(gradients(adaptive, y), gradients(layers, y), strict=True)
    assert max(relative(a, b) for a, b in both) < NEAR


# ---- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_copies_are_independent(engine):
    module = snt.from_net(NETS["hamiltonian"], engine=engine)
    x, wanted = inputs(3), module(inputs(3)).detach()
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    number = module.kernels.number
    del module
    for each in copies:
        assert each.kernels.number != number
        assert relative(each(x).detach(), wanted) <= SAME
        torch._dynamo.reset()
        assert relative(torch.compile(each, fullgraph=True, backend="aot_eager")(x).detach(), wanted) <= SAME


def test_training_moves_the_weights_that_kernels_see():
    module, x = snt.from_net(NETS["resnet"], engine="numba"), inputs(3, 64)
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (module(x) - x[:, :2].detach().sin()).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: snt.HamiltonianBlock(5, N), ValueError, "`K` must be an even number"),
        (lambda: snt.ResidualBlock(0, N), ValueError, "`K` must be at least 1, found 0"),
        (lambda: snt.ResidualBlock(4, 0), ValueError, "`steps`"),
        (lambda: snt.ResidualBlock(fields.dense(3, 4), N), ValueError, "as many features"),
        (lambda: snt.ResidualBlock(4, N, scheme="verlet"), ValueError, "`scheme`"),
        (lambda: snt.ResidualBlock(4, N, scheme="rk5000"), UnknownName, "rk5000"),
        (lambda: snt.ResidualBlock(4, N, activation="sine"), UnknownName, "sine"),
        (lambda: snt.ResidualBlock(4, N, length=-1.0), ValueError, "`length`"),
        (lambda: snt.ResidualBlock(4, N, engine="cuda"), ValueError, "`engine`"),
        (lambda: snt.ResidualBlock(4, N, memory="none"), ValueError, "`memory`"),
        (lambda: snt.ResidualBlock(4, N, memory="continuous"), ValueError, "`memory`"),
        (lambda: snt.ResidualBlock(4, N)(torch.zeros(3, 5)), ValueError, r"4 numbers for a sample, found \(3, 5\)"),
        (lambda: snt.ResidualBlock(4, N)(torch.zeros(4)), ValueError, "batch"),
        (lambda: snt.ResidualBlock(4, N)(np.zeros((3, 4))), ValueError, "ndarray"),
        (lambda: snt.ResidualBlock(4, N)(torch.zeros(3, 4).double()), TypeError, r"float32 as .* found torch.float64"),
        (lambda: snt.ResidualBlock(4, N, engine="numba").half()(torch.zeros(3, 4).half()), ValueError, "float16"),
        (lambda: snt.ODEBlock(fields.residual(fields.dense(3)), "rk4"), ValueError, "`steps`"),
        (lambda: snt.ODEBlock(Slope(), "rk4"), ValueError, "`steps`"),
        (lambda: snt.ODEBlock(Slope(), "rk4", N, 0.0), ValueError, "`length`"),
        (lambda: snt.from_net(torch.nn.Linear(2, 2)), TypeError, "`net`"),
        (lambda: snt.from_net(NETS["resnet"]).put(np.zeros(3)), ValueError, "`theta`"),
    ],
)  # fmt: skip
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error, match=words):
        build()


# ---- undone steps ---------------------------------------------------------------------------------------------------


def grown(engine: str, dtype, steps: int, h: float, activation: str, memory: str):
    field = fields.antisymmetric(fields.dense(16), activation)
    block = nets.Block(field, "midpoint_two_step", steps, steps * h)
    return snt.LayerBlock(block, engine=engine, memory=memory, seed=3, initialisation="lecun", dtype=dtype)


@pytest.mark.parametrize("engine", ["torch", "numba"])
@pytest.mark.parametrize(("dtype", "steps"), [(torch.float64, 1202), (torch.float32, 400)])
def test_steps_that_cannot_be_undone_are_noticed_in_both_engines(engine, dtype, steps, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", 2**14)
    x = inputs(16, 4, dtype)
    stored = gradients(grown(engine, dtype, steps, 0.1, "relu", "all"), x)
    with pytest.warns(sn.AdjointWarning, match="missed the initial state by"):
        found = gradients(grown(engine, dtype, steps, 0.1, "relu", "reversible"), x)
    assert max(relative(a, b) for a, b in zip(found, stored, strict=True)) <= 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_one_large_sample_does_not_hide_the_drift_of_others_in_both_engines(engine, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", 2**14)
    x, found = inputs(32, 4, torch.float32), []
    with torch.no_grad():
        x[2] *= 1e6
    for memory in ("all", "reversible"):
        how = {"memory": memory, "engine": engine, "seed": 3, "dtype": torch.float32}
        block = snt.HamiltonianBlock(32, 600, length=600.0, **how)
        with nullcontext() if memory == "all" else pytest.warns(sn.AdjointWarning, match="missed the initial state by"):
            found.append(gradients(block, x))
    assert max(relative(a, b) for a, b in zip(*found, strict=True)) <= 100 * torch.finfo(torch.float32).eps
