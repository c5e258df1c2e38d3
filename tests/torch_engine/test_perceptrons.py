"""Functions that are recognised as perceptrons: the numbers of autograd; other functions are called as usual."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from gradients.cases import relative
from scheme_names import FIXED_STEPS
from torch import nn
from torch_engine.networks import BOUNDED, EXACT, loss, options_of

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines.torch_engine.runs.perceptron_runs import pull_back_perceptron_steps, run_perceptron_steps
from stepnet.schemes.capabilities import is_implicit, needs_linear_part
from stepnet.schemes.splitting import Splitting

torch.set_num_threads(1)

TIMES = torch.tensor([0.0, 0.1, 0.25, 0.4, 0.7, 0.75, 1.0], dtype=torch.float64)
EVEN = torch.linspace(0.0, 1.0, 8, dtype=torch.float64)
ACTIVATIONS = [nn.ELU, nn.GELU, nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh]


class Known(nn.Module):
    """Hands its state on."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, t, y):
        return self.net(y)


class Unknown(Known):
    """The same numbers by code that is not looked into."""

    def forward(self, t, y):
        return self.net(y).clone()


def mlp(*widths: int, activation=nn.Tanh, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1], bias=bias)]
    for i, o in itertools.pairwise(widths[1:]):
        layers += [activation(), nn.Linear(i, o, bias=bias)]
    return nn.Sequential(*layers).double()


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)


def gradients(field: nn.Module, y0: torch.Tensor, solve) -> list[torch.Tensor]:
    """The solution and the gradients of the state and of all parameters."""
    y = solve(field, y0)
    wanted = [y0, *(p for p in field.parameters() if p.requires_grad)]
    return [y.detach(), *torch.autograd.grad(loss(y), wanted)]


def assert_same(net: nn.Module, y0: torch.Tensor, solve) -> None:
    assert snt.recognised(Known(net)) is not None
    assert snt.recognised(Unknown(net)) is None
    found, wanted = gradients(Known(net), y0, solve), gradients(Unknown(net), y0, solve)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert relative(a, b) <= EXACT


@pytest.fixture
def no_calls(monkeypatch):
    """Linear layers that cannot be called."""

    def refuse(*_):
        raise AssertionError("a layer was called")

    monkeypatch.setattr(nn.Linear, "forward", refuse)


# ---- the same numbers -----------------------------------------------------------------------------------------------

FIRST_ORDER = [
    name
    for name in FIXED_STEPS
    if not isinstance(sn.schemes.get(name), Splitting)
    and getattr(sn.schemes.get(name), "derivative", 1) == 1
    and not needs_linear_part(sn.schemes.get(name))
    and not is_implicit(sn.schemes.get(name))  # implicit stages call the module, for its Jacobian
]


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_every_scheme(name, no_calls, monkeypatch):
    """Solution, gradients of state and parameters; times between steps are read for pairs, which have a step size."""
    y0, options = start(5, 3), {"step_size": 0.3} if options_of(name) else {}
    solve = lambda field, y0: snt.odeint(field, y0, EVEN, method=name, options=options)
    found = gradients(Known(mlp(3, 8, 3)), y0, solve)
    monkeypatch.undo()
    for a, b in zip(found, gradients(Unknown(mlp(3, 8, 3)), y0, solve), strict=True):
        assert relative(a, b) <= EXACT


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [(2, 20, 2), (3, 5, 17, 3)])
def test_every_activation(activation, widths):
    net = mlp(*widths, activation=activation)
    assert_same(net, start(6, widths[0]), lambda field, y0: snt.odeint(field, y0, TIMES, method="rk4"))


NETS = {
    "one layer": lambda: mlp(3, 3),
    "without bias": lambda: mlp(3, 8, 3, bias=False),
    "nested": lambda: nn.Sequential(mlp(3, 8), nn.Identity(), nn.Sequential(nn.Tanh(), mlp(8, 3))),
    "no sequence": lambda: nn.Linear(3, 3).double(),
    "a layer twice": lambda: (lambda layer: nn.Sequential(layer, nn.Tanh(), layer))(nn.Linear(3, 3).double()),
    "activations in place": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)).double(),
}


@pytest.mark.parametrize("memory", ["all", *BOUNDED])
@pytest.mark.parametrize("name", NETS)
def test_every_net_in_every_memory(name, memory, short_blocks):
    keep = BOUNDED.get(memory, memory)
    solve = lambda field, y0: snt.odeint_adjoint(field, y0, TIMES, method="rk4", memory=keep)
    assert_same(NETS[name](), start(4, 3), solve)


def test_a_multistep_scheme_in_short_blocks(short_blocks):
    """Rows besides the state, and an opening."""
    solve = lambda field, y0: snt.odeint_adjoint(field, y0, EVEN, method="ab3", memory=snt.Checkpoints(slots=2))
    assert_same(mlp(3, 8, 3), start(4, 3), solve)


def test_frozen_parameters():
    net = mlp(3, 8, 3)
    net[0].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    assert_same(net, start(4, 3), lambda field, y0: snt.odeint(field, y0, TIMES, method="rk4"))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4, 3)])
def test_shapes(shape):
    assert_same(mlp(3, 8, 3), start(*shape), lambda field, y0: snt.odeint(field, y0, TIMES, method="rk4"))


@pytest.mark.parametrize("options", [{}, {"step_size": 0.07}, {"step_size": 0.3, "interp": "cubic"}], ids=str)
@pytest.mark.parametrize("t", [TIMES, -TIMES], ids=["increasing", "decreasing"])
def test_times(t, options):
    assert_same(mlp(3, 8, 3), start(4, 3), lambda field, y0: snt.odeint(field, y0, t, method="rk4", options=options))


def test_functions():
    net, y0 = mlp(3, 8, 3), start(4, 3)
    assert snt.recognised(lambda t, y: net(y)) == "3 -> 8 tanh -> 3"
    found, wanted = (
        torch.autograd.grad(loss(snt.odeint(f, y0, TIMES, method="rk4")), net[0].weight)[0]
        for f in (lambda t, y: net(y), Unknown(net))
    )
    assert relative(found, wanted) <= EXACT


def test_blocks():
    """`ODEBlock` takes the same way."""
    assert_same(mlp(3, 8, 3), start(4, 3), lambda field, y0: snt.ODEBlock(field, "rk4", 7)(y0))


def test_single_precision_has_the_smaller_error():
    """Sums over samples and stages at once lose less than one after the other; median over seeds."""
    errors: dict[type, list[float]] = {Known: [], Unknown: []}
    t = torch.linspace(0.0, 1.0, 51)
    for seed in range(9):
        torch.manual_seed(seed)
        net, y0 = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)), torch.randn(64, 2)
        whole = lambda kind, net, y0, t: torch.cat(
            [g.flatten() for g in torch.autograd.grad(
                snt.odeint(kind(net), y0, t, method="rk4")[-1].square().sum(), list(net.parameters()))]
        )  # fmt: skip
        single = {kind: whole(kind, net, y0, t) for kind in errors}
        exact = whole(Unknown, net.double(), y0.double(), t.double())
        for kind, found in single.items():
            errors[kind].append(relative(found.double(), exact))
    medians = [sorted(each)[4] for each in errors.values()]
    assert medians[0] <= medians[1]


# ---- derivatives of every order -------------------------------------------------------------------------------------


def end(net: nn.Sequential, y0: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    return snt.odeint(Known(net), y0, TIMES[:4], method="rk4")


@pytest.mark.parametrize("activation", [nn.Tanh, nn.SiLU])
def test_first_and_second_derivatives(activation):
    net, y0 = mlp(2, 4, 2, activation=activation), start(2, 2)
    inputs = (y0, *net.parameters())
    assert torch.autograd.gradcheck(functools.partial(end, net), inputs)
    assert torch.autograd.gradgradcheck(functools.partial(end, net), inputs, fast_mode=True)


def test_third_derivatives():
    net, y0 = mlp(2, 4, 2), start(3, 2)
    found = []
    for kind in (Known, Unknown):
        value = loss(snt.odeint(kind(net), snt.odeint(kind(net), y0, TIMES, method="rk4")[-1], TIMES, method="rk4"))
        (first,) = torch.autograd.grad(value, y0, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), net[0].weight, create_graph=True)
        found.append(torch.autograd.grad(second.square().sum(), (y0, *net.parameters()), allow_unused=True))
    for a, b in zip(*found, strict=True):
        assert (a is None and b is None) or relative(a, b) <= 1e-11


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch itself calls it
def test_gradients_again_and_many_at_once():
    net, y0 = mlp(2, 4, 2), start(3, 2)
    y = end(net, y0)
    first, second = (torch.autograd.grad(loss(y), net[0].weight, retain_graph=True)[0] for _ in range(2))
    assert relative(first, second) <= EXACT
    bars = torch.randn(4, *y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad(y, net[0].weight, bars, is_grads_batched=True, retain_graph=True)
    for bar, one in zip(bars, found, strict=True):
        assert relative(one, torch.autograd.grad(y, net[0].weight, bar, retain_graph=True)[0]) <= EXACT


def test_weights_that_are_changed_in_between():
    """The gradient is that of the weights of the way there."""
    net, y0 = mlp(2, 4, 2), start(3, 2)
    (wanted,) = torch.autograd.grad(loss(end(net, y0)), net[0].weight)
    value = loss(end(net, y0))
    with torch.no_grad():
        net[0].weight.mul_(2.0)
    assert torch.equal(torch.autograd.grad(value, net[0].weight)[0], wanted)


# ---- what is not recognised is called -------------------------------------------------------------------------------


class Counting(Known):
    """Does something besides."""

    calls = 0

    def forward(self, t, y):
        self.calls += 1
        return self.net(y)


class Called(Known):
    """Is called in a way of its own."""

    def __call__(self, *arguments):
        return 2 * super().__call__(*arguments)


class Timed(Known):
    """Hands on something else."""

    def forward(self, t, y):
        return self.net(t)


class Own(nn.Linear):
    """A layer of somebody's own."""

    def forward(self, x):
        return 2 * super().forward(x)


def with_hook(net: nn.Module, place: int) -> nn.Module:
    net[place].register_forward_hook(lambda module, x, y: 2 * y)
    return net


def with_own_forward(net: nn.Module) -> nn.Module:
    net[0].forward = lambda x: 2 * nn.functional.linear(x, net[0].weight, net[0].bias)
    return net


def with_other_weight(net: nn.Module) -> nn.Module:
    net[0].scale = nn.Parameter(net[0].weight.detach().clone())
    del net[0].weight
    net[0].weight = 2 * net[0].scale
    return net


def pre_hooked(net: nn.Module) -> nn.Module:
    module = Known(net)
    module.register_forward_pre_hook(lambda module, given: (given[0], 2 * given[1]))
    return module


UNKNOWN = {
    "a count": lambda: Counting(mlp(3, 8, 3)),
    "a call of its own": lambda: Called(mlp(3, 8, 3)),
    "a layer of its own": lambda: Known(nn.Sequential(Own(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()),
    "a hook of a layer": lambda: Known(with_hook(mlp(3, 8, 3), 0)),
    "a hook of an activation": lambda: Known(with_hook(mlp(3, 8, 3), 1)),
    "a hook of the function": lambda: pre_hooked(mlp(3, 8, 3)),
    "a forward of its own": lambda: Known(with_own_forward(mlp(3, 8, 3))),
    "a weight that is no parameter": lambda: Known(with_other_weight(mlp(3, 8, 3))),
    "a parametrization": lambda: Known(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))).double()),
    "a number that is unusual": lambda: Known(nn.Sequential(nn.Linear(3, 8), nn.ELU(0.5), nn.Linear(8, 3)).double()),
    "dropout": lambda: Known(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.0), nn.Linear(8, 3)).double()),
    "an activation at the end": lambda: Known(nn.Sequential(*mlp(3, 8, 3), nn.Tanh())),
    "a function that does more": lambda: (lambda net: lambda t, y: 2 * net(y))(mlp(3, 8, 3)),
    "defaults": lambda: (lambda net: lambda t, y, net=net: net(y))(mlp(3, 8, 3)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_functions_that_are_not_known(name):
    """One Euler step says whether the function itself was called."""
    func, y0 = UNKNOWN[name](), start(4, 3).detach()
    assert snt.recognised(func) is None
    found = snt.odeint(func, y0, torch.tensor([0.0, 0.5], dtype=torch.float64), method="euler")[-1]
    assert torch.equal(found, y0 + 0.5 * func(torch.zeros(()), y0))


def test_time_is_not_the_state():
    assert snt.recognised(Timed(mlp(3, 8, 3))) is None


def test_hooks_of_everybody():
    field = Known(mlp(3, 8, 3))
    handle = nn.modules.module.register_module_forward_hook(lambda module, x, y: None)
    try:
        assert snt.recognised(field) is None
    finally:
        handle.remove()
    assert snt.recognised(field) == "3 -> 8 tanh -> 3"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch itself calls it
@pytest.mark.parametrize("where", ["autocast", "vmap", "jvp", "saved tensors"])
def test_where_operations_are_seen(where, no_calls):
    """The layers themselves are called, which this test refuses."""
    field, y0 = Known(mlp(3, 8, 3)), start(4, 3).detach()
    solve = lambda y0: snt.odeint(field, y0, TIMES, method="rk4")
    solve(y0)
    with pytest.raises(AssertionError, match="a layer was called"):
        if where == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                solve(y0)
        elif where == "vmap":
            torch.func.vmap(solve)(y0)
        elif where == "jvp":
            torch.func.jvp(solve, (y0,), (y0,))
        else:
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                solve(y0)


@pytest.mark.parametrize(
    "how",
    [{"options": {"field_dtype": torch.float32}}, {"options": {"perturb": True}}, {"method": "dopri5"}],
    ids=["field_dtype", "perturb", "chosen steps"],
)
def test_calls_in_a_manner(how, no_calls):
    with pytest.raises(AssertionError, match="a layer was called"):
        snt.odeint(Known(mlp(3, 8, 3)), start(4, 3), TIMES, **({"method": "rk4"} | how))


def test_parameters_that_are_chosen():
    """With `adjoint_params` only these have gradients."""
    net, y0 = mlp(3, 8, 3), start(4, 3)
    y = snt.odeint_adjoint(Known(net), y0, TIMES, method="rk4", adjoint_params=(net[0].weight,))
    loss(y).backward()
    assert [p.grad is None for p in net.parameters()] == [False, True, True, True]


def test_wrong_widths():
    with pytest.raises(ValueError, match=r"`func` must return the shape \(4, 3\)"):
        snt.odeint(Known(mlp(3, 8, 2)), start(4, 3), TIMES, method="rk4")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        snt.odeint(Known(mlp(3, 8, 3)), start(4, 2), TIMES, method="rk4")


# ---- compilers ------------------------------------------------------------------------------------------------------


def compiled(field, **how):
    return torch.compile(lambda y0: snt.odeint(field, y0, TIMES, method="rk4"), fullgraph=True, **how)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
def test_compiled_solve(activation, no_calls):
    """One operator, no call of a layer."""
    torch.compiler.reset()
    field, y0 = Known(mlp(3, 8, 3, activation=activation)), start(4, 3)
    found = gradients(field, y0, lambda field, y0: compiled(field, backend="aot_eager")(y0))
    wanted = gradients(field, y0, lambda field, y0: snt.odeint(field, y0, TIMES, method="rk4"))
    for a, b in zip(found, wanted, strict=True):
        assert relative(a, b) <= EXACT


def test_operators():
    x, matrices = (
        start(4, 5),
        [start(6, 4), torch.cat((start(3, 7).detach(), start(1, 7).detach() * 0)).requires_grad_()],
    )
    given = (x, matrices, TIMES, "rk38", "tanh")
    torch.library.opcheck(run_perceptron_steps, given)
    states, kept = (each.detach() for each in run_perceptron_steps(*given))
    detached = [m.detach() for m in matrices]
    torch.library.opcheck(pull_back_perceptron_steps, (kept, detached, TIMES, "rk38", "tanh", states))


def test_a_hook_under_a_compiler():
    torch.compiler.reset()
    field, y0 = Known(with_hook(mlp(3, 8, 3), 0).requires_grad_(False)), start(4, 3).detach()
    wanted = snt.odeint(Unknown(field.net), y0, TIMES, method="rk4")
    assert relative(compiled(field, backend="eager")(y0), wanted) <= EXACT


@pytest.mark.parametrize("method", ["ab3", "rk4"])
def test_compiled_solves_that_are_followed(method):
    """A scheme with an opening; `torch.func.vmap`."""
    torch.compiler.reset()
    field, y0 = Known(mlp(3, 8, 3).requires_grad_(False)), start(4, 3).detach()
    solve = lambda y0: snt.odeint(field, y0, EVEN, method=method)
    seen = solve if method == "ab3" else torch.func.vmap(solve, out_dims=1)
    assert relative(torch.compile(seen, fullgraph=True, backend="eager")(y0), solve(y0)) <= EXACT
