"""Modules in the usual operations of torch: copied, saved, traced, exported, pruned, frozen, hooked and transformed."""

from __future__ import annotations

import copy
import io
import math
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from fields.zoo import RING
from gradients.cases import relative
from scipy import sparse
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters
from torch_engine.presets import ARGUMENTS, NETS, N, gradients, inputs

import stepnet.torch as snt
from stepnet import fields, nets

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch itself calls it

EQUAL = 1e-12  # relative; sums in another order
ENGINES = ["numba", "torch"]
DOUBLE = {"dtype": torch.float64}
over_nets = pytest.mark.parametrize("name", NETS)
over_engines = pytest.mark.parametrize("engine", ENGINES)


def net_module(name: str, engine: str = "auto", **how):
    return snt.from_net(NETS[name], engine=engine, **how)


def worst(found, wanted) -> float:
    return max(relative(a.detach(), b.detach()) for a, b in zip(found, wanted, strict=True))


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


# ---- by name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", nets.PRESETS)
def test_every_preset_is_a_module_by_its_name(name):
    arguments, options = ARGUMENTS[name]
    wanted = nets.PRESETS[name](*arguments, seed=3, **options)
    module = getattr(snt.nets, name)(*arguments, seed=3, **DOUBLE, **options)
    assert np.array_equal(module.theta, wanted.theta)
    x = inputs(wanted.design.n_in)
    assert relative(module(x).detach(), wanted(x.detach().numpy())) <= EQUAL
    single = getattr(snt.nets, name)(*arguments, engine="torch", **options)
    assert single(x.detach().float()).dtype == torch.get_default_dtype()
    assert "engine='torch'" in repr(single)


def test_numbers_of_a_module_by_name_are_of_torch():
    with pytest.raises(TypeError, match=r"`dtype` must be one of torch.*'float64'"):
        snt.nets.resnet(3, 2, 6, N, dtype="float64")


def test_memory_and_workers_of_a_net_go_both_ways():
    for memory in ("all", "segments", "reversible", snt.Checkpoints(slots=2)):
        net = nets.hamiltonian(3, 2, 6, 9, workers=1, memory=memory)
        module = snt.from_net(net)
        assert (module.memory, module.blocks[0].memory, module.kernels.workers) == (memory, memory, 1)
        assert (module.net().memory, module.net().workers) == (memory, 1)
        assert repr(memory) in repr(module)
        x = inputs(3)
        found = [gradients(snt.from_net(net, engine=engine), x) for engine in ENGINES]
        assert worst(found[0], gradients(snt.from_net(net, memory="all"), x)) <= EQUAL
        assert worst(found[1], found[0]) <= EQUAL
    assert snt.from_net(net, memory="auto", workers=2).kernels.workers == 2


@pytest.mark.parametrize("features", [np.int64(4), np.int32(4)])
def test_features_are_counted_in_any_whole_numbers(features):
    assert snt.HamiltonianBlock(features, 3)(torch.zeros(2, 4)).shape == (2, 4)
    assert snt.ResidualBlock(features, 3)(torch.zeros(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("K", [4.0, "4", True, None])
@pytest.mark.parametrize("make", [snt.ResidualBlock, snt.HamiltonianBlock])
def test_features_that_cannot_be_counted_are_refused(make, K):
    with pytest.raises(TypeError, match="`K` must be an integer"):
        make(K, 3)


def test_a_chain_of_layers_begins_at_random_and_looks_at_its_input():
    chain = snt.LayerChain(fields.affine(fields.dense(3, 2)), **DOUBLE)
    assert max(float(p.detach().abs().max()) for p in chain.parameters()) > 0
    with pytest.raises(ValueError, match=r"3 numbers for a sample, found \(4, 5\)"):
        chain(torch.randn(4, 5, **DOUBLE))


# ---- which way ------------------------------------------------------------------------------------------------------


def test_the_way_of_an_input_is_told():
    module, x = net_module("hamiltonian"), inputs(3)
    assert module.way(x) == "kernels"
    assert module.blocks[0].way(inputs(6)) == "kernels"
    assert net_module("hamiltonian", "torch").way(x) == "tensors"
    assert net_module("hamiltonian", "torch").blocks[0].way(inputs(6)) == "tensors"
    assert copy.deepcopy(module).bfloat16().way(x.bfloat16()) == "tensors"
    assert module.way(x[:0]) == "tensors"
    with torch.autocast("cpu", torch.bfloat16):
        assert module.way(x) == "tensors"
    seen = []
    torch.func.vmap(lambda row: seen.append(module.way(row[None])) or row)(x.detach())
    assert seen == ["tensors"]
    module.readout.register_forward_hook(lambda *_: None)
    assert module.way(x) == "stages"


@over_engines
def test_hooks_of_stages_see_them_called(engine):
    module, seen, x = net_module("parabolic_cnn", engine), [], inputs(64)
    wanted = gradients(module, x)
    names = {stage: name for name, stage in module.named_modules()}
    handles = [each.register_forward_hook(lambda stage, *_: seen.append(names[stage])) for each in module.modules()]
    assert worst(gradients(module, x), wanted) <= EQUAL
    assert seen == ["opening", "blocks.0", "joins.0", "blocks.1", "readout", ""]
    for handle in handles:
        handle.remove()
    assert module.way(x) == ("kernels" if engine == "numba" else "tensors")
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global")):
        seen.clear()
        module(x)
    assert seen == ["global"] * 6


@over_engines
def test_other_modules_take_the_place_of_stages(engine):
    module, x = net_module("resnet", engine), inputs(3)
    state = module.blocks[0](module.opening(x))
    module.readout = torch.nn.Linear(6, 7, **DOUBLE)
    assert relative(module(x).detach(), module.readout(state).detach()) <= EQUAL
    module.blocks[0] = snt.ResidualBlock(6, 3, activation="relu", seed=0, **DOUBLE)
    state = module.blocks[0](module.opening(x))
    assert relative(module(x).detach(), module.readout(state).detach()) <= EQUAL
    assert relative(compiled(module)(x).detach(), module(x).detach()) <= EQUAL
    with pytest.raises(ValueError, match=r"`blocks\.0` is no longer that of the net, found LayerBlock"):
        module.net()
    module.readout = None
    with pytest.raises(ValueError, match="`readout` was removed"):
        module(x)


# ---- weights by name ------------------------------------------------------------------------------------------------


class Symmetric(torch.nn.Module):
    def forward(self, K):
        return 0.5 * (K + K.mT)


@over_engines
def test_pruned_and_parametrised_weights_are_those_that_run(engine):
    x = inputs(6)
    for change in (
        lambda stage: prune.l1_unstructured(stage, "K", amount=0.3),
        lambda stage: parametrize.register_parametrization(stage, "K", Symmetric()),
    ):
        module, plain = (
            snt.ResidualBlock(6, N, engine=engine, seed=0, **DOUBLE),
            snt.ResidualBlock(6, N, seed=0, **DOUBLE),
        )
        torch.nn.init.normal_(module.b)
        change(module)
        plain.load_state_dict({"K": module.K.detach(), "b": module.b.detach()})
        assert relative(module(x).detach(), plain(x).detach()) <= EQUAL
        assert all(float(each.abs().max()) > 0 for each in gradients(module, x))
        whole = net_module("resnet", engine)
        change(whole.blocks[0])
        assert relative(whole(inputs(3)).detach(), whole.net()(inputs(3).detach().numpy())) <= EQUAL
        with pytest.raises(TypeError, match=r"`blocks\.0\.K` is made from other parameters"):
            whole.put(whole.theta)


@over_nets
def test_weights_are_given_from_outside(name):
    """One gradient for every sample by `torch.func`, whose sum is that of the batch."""
    module, x = net_module(name), inputs(NETS[name].design.n_in, 3)
    given = {key: value.detach() for key, value in module.named_parameters()}
    shuffled = {key: 1.1 * given[key] for key in reversed(given)}
    other = copy.deepcopy(module)
    other.load_state_dict(shuffled)
    assert relative(torch.func.functional_call(module, shuffled, (x,)).detach(), other(x).detach()) <= EQUAL
    loss = lambda weights, row: torch.func.functional_call(module, weights, (row[None],)).sin().sum()
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(given, x.detach())
    _, *wanted = gradients(module, x)
    assert worst([each[key].sum(0) for key in given], wanted) <= 10 * EQUAL


@over_engines
def test_weights_of_another_shape_are_refused(engine):
    module = snt.ResidualBlock(4, 3, engine=engine, seed=0, **DOUBLE)
    module.K = torch.nn.Parameter(torch.zeros(2, 4, 4, **DOUBLE))
    with pytest.raises(ValueError, match=r"`K` must have the shape \(3, 4, 4\), found \(2, 4, 4\)"):
        module(inputs(4))
    whole = net_module("resnet", engine)
    whole.readout.b = torch.nn.Parameter(torch.zeros(3, **DOUBLE))
    with pytest.raises(ValueError, match=r"`readout.b` must have the shape"):
        whole(inputs(3))


def test_transposed_memory_is_not_taken_for_the_weights():
    found = []
    for engine in ENGINES:
        module = snt.ResidualBlock(4, 3, engine=engine, seed=0, **DOUBLE)
        module.K.data = module.K.data.mT
        found.append(module(inputs(4)).detach())
    assert relative(*found) <= EQUAL


def test_tied_weights_are_put_and_run():
    module = snt.from_net(nets.parabolic_cnn((4, 4), (2, 2), 3, outputs=2))
    module.blocks[1].K = module.blocks[0].K
    theta = module.theta
    module.put(theta)
    assert np.array_equal(module.theta, theta)
    x = inputs(16)
    assert relative(module(x).detach(), module.net()(x.detach().numpy())) <= EQUAL
    assert copy.deepcopy(module).blocks[1].K.shape == module.blocks[0].K.shape


def test_half_precision_has_a_flat_vector():
    module = net_module("resnet")
    assert relative(copy.deepcopy(module).bfloat16().theta, module.theta) < 1e-2


# ---- derivatives ----------------------------------------------------------------------------------------------------


def derivatives(function, x, parameters, order: int):
    """Gradients of the norms of gradients, and so on, by inputs; the last also by parameters."""
    value = function(x).sin().sum()
    for _ in range(order - 1):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum()
    return torch.autograd.grad(value, (x, *parameters))


BLOCK_WAYS = [
    {}, {"engine": "torch"}, {"engine": "torch", "memory": "reversible"},
    {"engine": "torch", "memory": snt.Checkpoints(slots=1)}, {"memory": "segments", "engine": "torch"},
]  # fmt: skip


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("how", BLOCK_WAYS, ids=str)
def test_derivatives_of_high_order(how, order, short_blocks):
    x, plain = inputs(4, 2), snt.HamiltonianBlock(4, 3, engine="torch", memory="all", seed=0, **DOUBLE)
    module = snt.HamiltonianBlock(4, 3, **how, seed=0, **DOUBLE)
    found, wanted = (derivatives(each, x, each.parameters(), order) for each in (module, plain))
    assert worst(found, wanted) <= 10 * EQUAL


@over_nets
def test_third_derivatives_of_nets(name):
    x, plain = inputs(NETS[name].design.n_in, 2), net_module(name, "torch", memory="all")
    module, is_smooth = net_module(name), "relu" not in repr(plain)
    order = 3 if is_smooth else 2
    found, wanted = (derivatives(each, x, list(each.parameters())[:2], order) for each in (module, plain))
    assert worst(found, wanted) <= 1e3 * EQUAL


TRANSFORMATIONS = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sin().sum())(x),
    "vmap": lambda f, x: torch.func.vmap(lambda row: f(row[None])[0])(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sin().sum())(x),
}


LONG_TO_COMPILE = ("jacfwd", "jacrev", "hessian")  # built of those that are quick


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in LONG_TO_COMPILE else ()) for k in TRANSFORMATIONS]
)
def test_transformations_inside_compilers(kind):
    module = torch.nn.Sequential(
        snt.HamiltonianBlock(4, 1, seed=0, **DOUBLE), snt.nets.resnet(4, 2, 3, 1, seed=0, **DOUBLE)
    )
    x = inputs(4, 3).detach()
    transform = lambda x: TRANSFORMATIONS[kind](module, x)
    assert relative(compiled(transform)(x).detach(), transform(x).detach()) <= EQUAL


def test_forward_mode_of_compiled_modules_is_refused():
    from torch.autograd import forward_ad

    module, x = compiled(snt.HamiltonianBlock(4, 2, seed=0, **DOUBLE)), inputs(4).detach()
    module(x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        module(forward_ad.make_dual(x, x))


# ---- frozen weights -------------------------------------------------------------------------------------------------

FROZEN = [{"engine": "numba"}, *BLOCK_WAYS[1:], {"engine": "torch", "memory": "all"}]


@pytest.mark.parametrize("how", FROZEN, ids=str)
@pytest.mark.parametrize("frozen", ["K", "b"])
def test_frozen_weights_have_no_gradient_and_change_no_other(frozen, how, short_blocks):
    x, whole = inputs(4), snt.HamiltonianBlock(4, N, **how, seed=0, **DOUBLE)
    module = snt.HamiltonianBlock(4, N, **how, seed=0, **DOUBLE)
    getattr(module, frozen).requires_grad_(False)
    free = "b" if frozen == "K" else "K"
    for order in (1, 2):
        found, wanted = (derivatives(each, x, [getattr(each, free)], order) for each in (module, whole))
        assert worst(found, wanted) <= EQUAL
    for each in (module, whole):
        each(x.detach()).sum().backward()
    assert getattr(module, frozen).grad is None
    assert relative(getattr(module, free).grad, getattr(whole, free).grad) <= EQUAL
    jacobian = lambda module: torch.autograd.functional.jacobian(module, x, vectorize=True)
    assert relative(jacobian(module), jacobian(whole)) <= EQUAL


@pytest.mark.parametrize("memory", ["auto", "all", "reversible", snt.Checkpoints(slots=1)], ids=str)
def test_frozen_weights_under_autocast(memory, short_blocks):
    module, x = snt.HamiltonianBlock(4, N, memory=memory, seed=0), inputs(4, dtype=torch.float32)
    module.K.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
        jacobian = torch.autograd.functional.jacobian(module, x, vectorize=True)
        rows = torch.autograd.functional.jacobian(module, x)
    y.sum().backward()
    assert module.K.grad is None
    assert module.b.grad is not None
    assert relative(jacobian.float(), rows.float()) < 1e-2


@over_nets
def test_frozen_nets_have_gradients_of_inputs(name):
    x, module = inputs(NETS[name].design.n_in, 2), net_module(name, "torch")
    wanted, _ = derivatives(module, x, [next(module.parameters())], 2)
    for engine in ("auto", "torch"):
        frozen = net_module(name, engine).requires_grad_(False)
        (found,) = derivatives(frozen, x, [], 2)
        assert relative(found, wanted) <= 1e2 * EQUAL


# ---- no samples, no numbers -----------------------------------------------------------------------------------------


@over_engines
@over_nets
def test_no_samples(name, engine):
    module = net_module(name, engine)
    x = torch.zeros(0, NETS[name].design.n_in, requires_grad=True, **DOUBLE)
    with torch.no_grad():
        assert module(x).shape == (0, NETS[name].design.n_out)
    module(x).sum().backward()
    assert x.grad.shape == x.shape
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


@over_engines
def test_no_samples_in_compiled_modules(engine):
    module, x = (
        snt.HamiltonianBlock(4, 3, engine=engine, seed=0, **DOUBLE),
        torch.zeros(0, 4, requires_grad=True, **DOUBLE),
    )
    compiled(module)(x).sum().backward()
    assert x.grad.shape == (0, 4)
    assert not module.K.grad.any()


@over_nets
def test_the_meta_device_in_the_memory_of_every_day(name):
    module = net_module(name, "torch").to("meta")
    y = module(torch.empty(4, NETS[name].design.n_in, device="meta", requires_grad=True, **DOUBLE))
    assert y.shape == (4, NETS[name].design.n_out)
    y.sum().backward()
    assert all(p.grad.shape == p.shape for p in module.parameters())


LONG = sparse.diags_array([np.ones(199), np.ones(199)], offsets=[1, -1]).tocsr()


@pytest.mark.parametrize("adjacency", [RING, LONG], ids=["a matrix", "a list of entries"])
def test_constants_of_graphs_survive_all_moves(adjacency):
    net = nets.graph_ode(adjacency, 2, 2, filter="laplacian")
    x = inputs(net.design.n_in, 3)
    wanted = net(x.detach().numpy())
    empty = snt.from_net(net, engine="torch", device="meta").to_empty(device="cpu")
    empty.put(net.theta)
    rounded = snt.from_net(net, engine="torch").half().double()
    rounded.put(net.theta)
    with torch.device("meta"):
        built = snt.from_net(net, engine="torch")
    built = built.to_empty(device="cpu")
    built.put(net.theta)
    for module in (empty, rounded, built, pickle.loads(pickle.dumps(rounded))):
        assert relative(module(x).detach(), wanted) <= EQUAL
    single = snt.from_net(net, engine="torch").float()
    with torch.inference_mode():
        single(x.detach().float())
    assert relative(gradients(single, x.detach().float().requires_grad_())[0], gradients(empty, x)[0]) < 1e-5


# ---- traced, exported, compiled -------------------------------------------------------------------------------------


@over_nets
def test_traced_modules_are_functions_of_their_inputs(name):
    module, n = net_module(name), NETS[name].design.n_in
    with torch.no_grad():
        traced = torch.jit.trace(module, (inputs(n).detach(),), check_trace=False)
    other = 0.5 * inputs(n, 9).detach()
    assert relative(traced(other).detach(), module(other).detach()) <= EQUAL
    traced = torch.jit.trace(module.blocks[0], (inputs(module.blocks[0].record.n_in).detach(),), check_trace=False)
    state = inputs(module.blocks[0].record.n_in, 4)
    assert relative(traced(state).detach(), module.blocks[0](state).detach()) <= EQUAL


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("name", ["hamiltonian", "graph_ode"])
def test_exported_programs_stand_alone(name, is_strict):
    """They run in other processes, which know no number of a kernel."""
    module, n = net_module(name), NETS[name].design.n_in
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    program = torch.export.export(module, (inputs(n).detach(),), dynamic_shapes=shapes, strict=is_strict)
    assert not [node for node in program.graph.nodes if "stepnet" in str(node.target)]
    other = inputs(n, 9).detach()
    assert relative(program.module()(other).detach(), module(other).detach()) <= EQUAL


@pytest.mark.parametrize("name", [*NETS][::4])
def test_gradients_of_compiled_nets_go_through_the_operator(name, monkeypatch):
    module, x = net_module(name, "numba"), inputs(NETS[name].design.n_in)
    wanted, calls = gradients(module, x), []
    begin = type(module.kernels).begin_sweep
    monkeypatch.setattr(type(module.kernels), "begin_sweep", lambda *given: calls.append(1) or begin(*given))
    torch._dynamo.reset()
    whole = torch.compile(module, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(whole(x).sin().sum(), (x, *module.parameters()))
    assert worst(found, wanted) <= EQUAL
    assert calls == [1]


# ---- copies and files -----------------------------------------------------------------------------------------------


@over_nets
def test_copies_keep_their_weights_in_one_piece(name):
    module = net_module(name)
    single = copy.deepcopy(module).float()
    for each in (
        module,
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        copy.copy(module),
        single.to("meta").to_empty(device="cpu"),
        copy.deepcopy(single),
    ):
        assert each.kernels.are_in_place(each.in_order())
        for block in each.blocks:
            assert block.kernels.are_in_place(tuple(block.parameters()))
    alone = copy.deepcopy(module.blocks[0])
    assert alone.kernels.are_in_place(tuple(alone.parameters()))
    assert module.kernels.are_in_place(module.in_order())


def test_weights_shared_between_processes_stay_shared():
    module = snt.HamiltonianBlock(4, 3, seed=0, **DOUBLE).share_memory()
    again = pickle.loads(ForkingPickler.dumps(module))
    with torch.no_grad():
        module.K.add_(1.0)
    assert again.K.is_shared()
    assert torch.equal(again.K, module.K)
    assert relative(again(inputs(4)).detach(), module(inputs(4)).detach()) <= EQUAL


@over_nets
def test_parameters_come_in_the_order_of_the_flat_vector(name):
    module = torch.nn.Sequential(net_module(name))
    assert [key for key, _ in module[0].named_parameters()] == list(NETS[name].design.shapes)
    assert np.array_equal(parameters_to_vector(module.parameters()).detach(), module[0].theta)
    theta = torch.randn(module[0].theta.size, **DOUBLE)
    vector_to_parameters(theta, module.parameters())
    assert np.array_equal(module[0].theta, theta)
    x = inputs(NETS[name].design.n_in)
    assert relative(module(x).detach(), module[0].net()(x.detach().numpy())) <= EQUAL


def test_files_hold_the_weights_and_nothing_else(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    module = net_module("parabolic_cnn")
    other = snt.from_net(nets.parabolic_cnn((8, 8), (2, 4), 3, outputs=3, seed=5))
    safetensors.save_model(module, tmp_path / "net.safetensors")
    safetensors.load_model(other, tmp_path / "net.safetensors")
    assert np.array_equal(other.theta, module.theta)
    big, file, alone = snt.from_net(nets.resnet(64, 2, 64, 50)), io.BytesIO(), io.BytesIO()
    torch.save(big.readout.state_dict(), file)
    torch.save({name: value.clone() for name, value in big.readout.state_dict().items()}, alone)
    assert file.tell() <= alone.tell() + 1024  # addresses are padded
    state = big.state_dict()
    state["readout.b"].add_(1.0)
    assert torch.equal(state["readout.b"], big.readout.b)


# ---- the time of a field --------------------------------------------------------------------------------------------

CLOCKED = fields.chained(fields.mlp([3, 5, 3], has_time=True))
FUNCTIONS = {
    "clock": (CLOCKED, None),
    "steps": (fields.residual(fields.dense(3)), fields.Depth(4)),
    "held": (fields.residual(fields.dense(3)), fields.HeldWeights(4)),
    "line": (fields.hamiltonian(fields.conv1d(3, 1)), fields.Depth(4, 1)),
    "clock and spline": (CLOCKED, fields.Depth(5, 3)),
    "graph along a spline": (fields.parabolic(fields.graph(RING, 2)), fields.Depth(4, 2)),
}


def field_function(name: str, **how):
    field, depth = FUNCTIONS[name]
    function = snt.FieldFunction(field, 2.0, depth, seed=0, **DOUBLE, **how)
    for number, parameter in enumerate(function.parameters()):
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(number))
    return function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fields_have_derivatives_in_time(name):
    function, t = field_function(name), torch.tensor(0.7, requires_grad=True, **DOUBLE)
    y = inputs(math.prod(function.layout_in.shape), 2)
    assert torch.autograd.gradcheck(lambda t, y, *_: function(t, y), (t, y, *function.parameters()), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (t, y), fast_mode=True)
    times = torch.tensor([0.05, 0.4, 0.9, 1.35, 1.9], requires_grad=True, **DOUBLE)
    assert torch.autograd.gradcheck(lambda t: snt.odeint(function, y, t, method="rk4"), (times,), fast_mode=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_sample_has_its_own_time(name):
    function = field_function(name)
    y, t = inputs(math.prod(function.layout_in.shape), 4), torch.linspace(0.1, 1.9, 4, **DOUBLE)[:, None]
    wanted = torch.cat([function(t[i, 0], y[i : i + 1]) for i in range(4)])
    assert relative(function(t, y).detach(), wanted.detach()) <= EQUAL
    solved = snt.solve(function, y.detach(), torch.linspace(0.0, 2.0, 3, **DOUBLE), rtol=1e-7, atol=1e-9).y_end
    alone = snt.odeint(function, y.detach(), torch.linspace(0.0, 2.0, 3, **DOUBLE), rtol=1e-7, atol=1e-9)[-1]
    assert relative(solved.detach(), alone.detach()) < 1e-5
    assert function(t[:0], y[:0]).shape == (0, math.prod(function.layout_in.shape))


def test_times_that_are_not_those_of_the_samples_are_refused():
    with pytest.raises(ValueError, match=r"`t` must be one time, or one for each of 4 samples, found \(3, 1\)"):
        field_function("clock")(torch.zeros(3, 1, **DOUBLE), inputs(3, 4))
