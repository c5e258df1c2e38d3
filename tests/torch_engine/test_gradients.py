"""Gradients on tensors: right by finite differences, the same in every memory, exact for the discrete solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients.cases import A, B, over_the_catalogue, relative
from torch_engine.cases import posed

import stepnet as sn
import stepnet.torch as snt
from stepnet.checkpoints import binomial

torch.set_num_threads(1)

EXACT = 1e-12  # relative; sums over steps in another order
N = 7


class Net(torch.nn.Module):
    """A small field that depends on time."""

    def __init__(self, n: int = 3):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.W = torch.nn.Parameter(0.5 * torch.randn(n, n, dtype=torch.float64, generator=generator))
        self.b = torch.nn.Parameter(0.1 * torch.randn(n, dtype=torch.float64, generator=generator))

    def forward(self, t, y):
        return torch.tanh(y @ self.W + self.b) * torch.cos(t) - 0.1 * y


def start(n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, n, dtype=torch.float64, generator=generator, requires_grad=True)


TIMES = torch.linspace(0.0, 1.0, N + 1, dtype=torch.float64)
HALVES = {"verlet", "yoshida4", "leapfrog_two_step"}


def problem(name: str, net: Net):
    """A field for a method, and its initial state."""
    if name not in HALVES:
        return net, start()
    q0, p0 = start(), (0.5 * start().detach()).requires_grad_()
    return (snt.SecondOrder(net) if name == "leapfrog_two_step" else snt.Partitioned(net, net)), (q0, p0)


def leaves(y0) -> tuple[torch.Tensor, ...]:
    return y0 if isinstance(y0, tuple) else (y0,)


def loss(y, every: bool = True) -> torch.Tensor:
    parts = y if isinstance(y, tuple) else (y,)
    return sum((part if every else part[-1]).sin().sum() for part in parts)


METHODS = ["rk4", "dopri5", "bosh3", "ab3", "carpenter_kennedy54", "rkl2", *sorted(HALVES)]


@pytest.mark.parametrize("name", METHODS)
def test_gradcheck(name):
    net = Net()
    field, y0 = problem(name, net)
    options = {"step_size": 1 / N} if sn.schemes.conditions.is_pair(sn.schemes.get(name)) else {}

    def run(*tensors):
        y = tensors[: len(leaves(y0))]
        return snt.odeint(field, y if isinstance(y0, tuple) else y[0], TIMES, method=name, options=options)

    assert torch.autograd.gradcheck(run, (*leaves(y0), net.W, net.b), fast_mode=True)


@pytest.mark.parametrize("name", ["dopri5", "dop853", "tsit5", "cash_karp"])
def test_gradcheck_of_adaptive_steps(name):
    """Tight tolerances: steps may change with the state, which a difference quotient sees and a gradient does not."""
    net, y0 = Net(), start()
    run = lambda y, *_: snt.odeint(net, y, TIMES[::3], method=name, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(run, (y0, net.W, net.b), fast_mode=True)


def gradients(field, y0, net, name, memory, every=True, **how):
    y = snt.odeint_adjoint(field, y0, TIMES, method=name, memory=memory, **how)
    return torch.autograd.grad(loss(y, every), (*leaves(y0), net.W, net.b))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("every", [True, False], ids=["loss of all times", "loss of the end"])
def test_gradients_do_not_depend_on_memory(name, every):
    """Bit for bit among numbers of slots; plain autograd adds the same numbers up in another order."""
    net = Net()
    field, y0 = problem(name, net)
    how = {"options": {"step_size": 1 / N}} if sn.schemes.conditions.is_pair(sn.schemes.get(name)) else {}
    plain = gradients(field, y0, net, name, "all", every, **how)
    kept = [gradients(field, y0, net, name, snt.Checkpoints(slots=s), every, **how) for s in range(1, N + 2)]
    for found in kept:
        for mine, other, wanted in zip(found, kept[0], plain, strict=True):
            assert torch.equal(mine, other)
            assert relative(mine, wanted) <= EXACT


@pytest.mark.parametrize("name", ["dopri5", "bosh3", "dop853", "cash_karp"])
def test_adaptive_steps_are_given_ones_on_the_way_back(name):
    net, y0 = Net(), start()
    plain = gradients(net, y0, net, name, "all", rtol=1e-5, atol=1e-7)
    kept = gradients(net, y0, net, name, snt.Checkpoints(slots=2), rtol=1e-5, atol=1e-7)
    assert max(relative(a, b) for a, b in zip(kept, plain, strict=True)) <= EXACT


@over_the_catalogue
def test_gradients_are_those_of_the_compiled_engine(scheme, kind):
    """With respect to the initial state, over the whole catalogue."""
    field, y0 = posed(kind)
    y0 = tuple(part.clone().requires_grad_() for part in leaves(y0))
    t = torch.linspace(*kind.build().t_span, N, dtype=torch.float64)
    y = snt.odeint_adjoint(
        field, y0 if len(y0) == 2 else y0[0], t, method=scheme, adjoint_params=(), memory=snt.Checkpoints(slots=2),
        options={"grid_constructor": lambda f, y, t: t},
    )  # fmt: skip
    end = torch.cat([part[-1] for part in leaves(y)])
    w = torch.linspace(-1.0, 1.0, len(end), dtype=torch.float64)
    found = torch.cat(torch.autograd.grad(end @ w, y0))
    wanted = sn.gradient(kind.build(args=(A, B)), scheme, end_gradient=w.numpy(), steps=N - 1, memory="all").y0
    assert relative(found, np.ravel(wanted)) <= EXACT


def test_evaluations_are_those_the_schedule_promises():
    calls, n, slots = [], 40, 3
    fun = lambda t, y: (calls.append(1), -y)[1]
    y0 = torch.ones(2, dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.0, 1.0, n + 1, dtype=torch.float64)[[0, -1]]
    options = {"step_size": 1 / n}
    y = snt.odeint_adjoint(
        fun, y0, t, method="euler", options=options, adjoint_params=(), memory=snt.Checkpoints(slots=slots)
    )
    assert len(calls) == n
    calls.clear()
    y[-1].sum().backward()
    assert len(calls) == binomial(n, slots).evaluations - (n - 1)  # the first n - 1 are those of the forward run


def test_end_times_have_gradients():
    """dL/dt_end = w f(t_end, y_end), and of any time between steps too."""
    t = TIMES.clone().requires_grad_()
    y0 = torch.tensor([0.7, -0.2], dtype=torch.float64, requires_grad=True)
    run = lambda t, y0: snt.odeint(lambda t, y: -y * torch.cos(t) + y.sin(), y0, t, method="rk4")
    assert torch.autograd.gradcheck(run, (t, y0))


def test_second_derivatives_of_plain_autograd():
    y0 = torch.tensor([0.7, -0.2], dtype=torch.float64, requires_grad=True)
    run = lambda y0: snt.odeint(lambda t, y: y.sin() * torch.cos(t), y0, TIMES, method="rk4")[-1]
    assert torch.autograd.gradgradcheck(run, (y0,))


def test_second_derivatives_with_checkpoints_are_refused():
    y0 = torch.ones(2, dtype=torch.float64, requires_grad=True)
    y = snt.odeint_adjoint(lambda t, y: y.sin(), y0, TIMES, method="rk4", adjoint_params=())
    (first,) = torch.autograd.grad(y[-1].square().sum(), y0, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch itself calls it
def test_transformations_of_functions():
    y0 = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    net = Net()
    end = lambda y: snt.odeint(net, y, TIMES, method="rk4")[-1]
    assert torch.allclose(torch.func.vmap(end)(y0), end(y0), rtol=EXACT)
    J = torch.func.jacrev(end)(y0[0])
    assert torch.allclose(J, torch.func.jacfwd(end)(y0[0]), rtol=1e-10)
    v = torch.ones(3, dtype=torch.float64)
    assert torch.allclose(torch.func.jvp(end, (y0[0],), (v,))[1], J @ v, rtol=1e-10)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_dropout_draws_the_same_numbers_again(slots):
    y0 = start()
    field = lambda t, y: torch.nn.functional.dropout(y.sin(), 0.5)
    found = []
    for memory in ("all", snt.Checkpoints(slots=slots)):
        torch.manual_seed(7)
        y = snt.odeint_adjoint(field, y0, TIMES, method="rk4", adjoint_params=(), memory=memory)
        before = torch.get_rng_state()
        found.append(torch.autograd.grad(loss(y), y0)[0])
        assert torch.equal(before, torch.get_rng_state())
    assert relative(*found) <= EXACT


def test_autocast_is_the_same_on_the_way_back():
    """The gradient is taken outside of autocast, as users do."""
    net = torch.nn.Linear(3, 3)
    y0 = start().detach().float().requires_grad_()
    found = []
    for memory in ("all", snt.Checkpoints(slots=2)):
        with torch.autocast("cpu", torch.bfloat16):
            y = snt.odeint_adjoint(
                lambda t, y: net(y).float(), y0, TIMES.float(), method="rk4",
                adjoint_params=tuple(net.parameters()), memory=memory,
            )  # fmt: skip
        found.append(torch.autograd.grad(loss(y), (y0, net.weight)))
    assert relative(found[1][0], found[0][0]) < 1e-6  # float32
    assert relative(found[1][1], found[0][1]) < 1e-2  # sums of bfloat16 gradients in another order
