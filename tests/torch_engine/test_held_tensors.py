"""Gradients of tensors that a field holds but that are not its parameters, under every memory policy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet.torch as snt
from stepnet.errors import AdjointWarning

EXACT = 1e-12
CONTINUOUS = 1e-5  # the adjoint equation is solved up to its tolerances
TIMES = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
MEMORIES = [snt.Checkpoints(slots=2), snt.Checkpoints(bytes=20_000), "auto"]
METHODS = ["rk4", "ab3", "dopri5"]


def draw(*shape) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


class Field(nn.Module):
    """A field that adds what it holds."""

    def __init__(self, held):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=torch.float64)
        self.held = held

    def forward(self, t, y):
        return torch.tanh(self.linear(y) + self.held())


class Holder:
    """An object that is no module."""

    def __init__(self, tensor):
        self.tensors = {"first": [tensor]}

    def __call__(self):
        return self.tensors["first"][0]


def leaf_in_a_closure():
    context = draw(3).requires_grad_()
    return Field(lambda: context), [context]


def unregistered_parameter():
    parameter = nn.Parameter(draw(3))
    return Field(Holder(parameter)), [parameter]


def buffer_with_a_gradient():
    field = Field(lambda: field.bias)
    field.register_buffer("bias", draw(3).requires_grad_())
    return field, [field.bias]


def result_of_an_encoder():
    encoder = nn.Linear(4, 3, dtype=torch.float64)
    context = torch.tanh(encoder(draw(4)))
    return Field(lambda: context), list(encoder.parameters())


def encoder_inside_the_field():
    field = Field(lambda: field.context)
    field.encoder = nn.Linear(4, 3, dtype=torch.float64)
    field.context = field.encoder(draw(4)).square()
    return field, []


def hypernetwork():
    hyper, net = nn.Linear(2, 12, dtype=torch.float64), nn.Linear(3, 3, dtype=torch.float64)
    weight, bias = hyper(draw(2)).split((9, 3))
    weights = {"weight": weight.view(3, 3), "bias": bias}
    return lambda t, y: torch.tanh(torch.func.functional_call(net, weights, (y,))), list(hyper.parameters())


def function_of_a_net():
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return lambda t, y: net(y) - y, list(net.parameters())


def gradient_of_an_energy():
    """As in Hamiltonian networks: with leaves that are made inside, at every call others."""
    net, shift = nn.Linear(3, 1, dtype=torch.float64), draw(3).requires_grad_()

    def field(t, y):
        t.requires_grad_()
        with torch.enable_grad():
            x = y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(torch.tanh(net(x) * (1 + t)).sum(), x, create_graph=True)
        return slope - y * shift

    return field, [net.weight, shift]


FIELDS = [
    leaf_in_a_closure, unregistered_parameter, buffer_with_a_gradient, result_of_an_encoder, encoder_inside_the_field,
    hypernetwork, function_of_a_net, gradient_of_an_energy,
]  # fmt: skip


def gradients(make, method, memory):
    torch.manual_seed(0)
    field, held = make()
    y0 = draw(4, 3).requires_grad_()
    wanted = [y0, *held, *(field.parameters() if isinstance(field, nn.Module) else ())]
    y = snt.odeint_adjoint(field, y0, TIMES, method=method, memory=memory)
    return torch.autograd.grad(y.square().sum(), wanted)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", FIELDS)
def test_all_that_a_field_holds_has_its_gradient(make, method, memory, short_blocks):
    """That of plain autograd."""
    for found, wanted in zip(gradients(make, method, memory), gradients(make, method, "all"), strict=True):
        assert float((found - wanted).abs().max()) <= EXACT * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("make", FIELDS)
def test_the_adjoint_equation_has_them_too(make):
    for found, wanted in zip(gradients(make, "dopri5", "continuous"), gradients(make, "dopri5", "all"), strict=True):
        assert float((found - wanted).abs().max()) <= CONTINUOUS * max(1.0, float(wanted.abs().max()))


def test_undone_steps(short_blocks):
    """Of a second-order equation whose force depends on a context."""
    found = []
    for memory in ("reversible", "all"):
        stiffness = (draw(3).square() + 1).requires_grad_()
        field = snt.SecondOrder(lambda t, q, stiffness=stiffness: -stiffness * torch.sin(q))
        q, _ = snt.odeint_adjoint(field, (draw(3), draw(3)), TIMES, method="verlet", memory=memory)
        found += torch.autograd.grad(q.square().sum(), stiffness)
    assert float((found[0] - found[1]).abs().max()) <= EXACT * float(found[1].abs().max())


def test_second_derivatives(short_blocks):
    found = []
    for memory in (snt.Checkpoints(slots=2), "all"):
        torch.manual_seed(0)
        field, (context,) = leaf_in_a_closure()
        y = snt.odeint_adjoint(field, draw(4, 3), TIMES, method="rk4", memory=memory)
        (first,) = torch.autograd.grad(y.square().sum(), context, create_graph=True)
        found += torch.autograd.grad(first.square().sum(), context)
    assert float((found[0] - found[1]).abs().max()) <= EXACT * float(found[1].abs().max())


@pytest.mark.parametrize("memory", [snt.Checkpoints(slots=2), "continuous"], ids=str)
def test_tensors_that_come_later_are_refused(memory, short_blocks):
    """Those on which the first step does not depend; given as parameters they have their gradient."""
    early, late = draw(3).requires_grad_(), draw(3).requires_grad_()
    field = lambda t, y: (early if t < 0.5 else late) * torch.sin(y)
    y = snt.odeint_adjoint(field, draw(4, 3).requires_grad_(), TIMES, method="rk4", memory=memory)
    with pytest.raises(RuntimeError, match=r"depends on tensors at .*a leaf \(3,\).*`adjoint_params`"):
        y.sum().backward()


def test_adjoint_params_are_all_that_is_differentiated(short_blocks):
    early, late = draw(3).requires_grad_(), draw(3).requires_grad_()
    field = lambda t, y: (early if t < 0.5 else late) * torch.sin(y)
    options = {"method": "rk4", "adjoint_params": (late,)}
    snt.odeint_adjoint(field, draw(4, 3), TIMES, memory=snt.Checkpoints(slots=2), **options).sum().backward()
    assert early.grad is None
    found = late.grad
    assert found is not None
    (wanted,) = torch.autograd.grad(snt.odeint(field, draw(4, 3), TIMES, method="rk4").sum(), late)
    assert float((found - wanted).abs().max()) <= EXACT


def nested_contexts():
    first = torch.sin(draw(3).requires_grad_())
    second = first.square()
    return first, second, lambda t, y: first * y + second


def buffer_with_a_history():
    field = Field(lambda: field.mean)
    field.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(t, y):
        field.mean = 0.9 * field.mean + 0.1 * torch.tanh(y).mean(0)
        return torch.tanh(field.linear(y) + field.mean)

    return field.linear.weight, field.linear.bias, forward


@pytest.mark.parametrize("make", [nested_contexts, buffer_with_a_history])
def test_what_cannot_be_told_apart_is_kept(make, short_blocks):
    """With a warning, and the right gradient."""
    found = []
    for memory in (snt.Checkpoints(slots=2), "all"):
        torch.manual_seed(0)
        first, second, field = make()
        y0 = draw(4, 3).requires_grad_()
        if memory != "all":
            with pytest.warns(AdjointWarning, match='all states were stored, as with `memory`="all"'):
                y = snt.odeint_adjoint(field, y0, TIMES, method="rk4", memory=memory)
        else:
            y = snt.odeint_adjoint(field, y0, TIMES, method="rk4", memory=memory)
        found.append(torch.autograd.grad(y.square().sum(), (first, second, y0)))
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= EXACT * float(b.abs().max())


def test_a_field_without_gradients_is_run_once(short_blocks):
    """A function that depends on nothing with a gradient has none, and is not run twice."""
    calls = []

    def field(t, y):
        calls.append(float(t))
        return -y

    y = snt.odeint_adjoint(field, draw(4, 3), TIMES, method="rk4")
    assert not y.requires_grad
    assert len(calls) == 4 * (len(TIMES) - 1)


def test_a_block_of_a_function(short_blocks):
    """Which holds a net, whose gradient it has."""
    net = nn.Linear(3, 3, dtype=torch.float64)
    block = snt.ODEBlock(lambda t, y: torch.tanh(net(y)), "rk4", 4, memory=snt.Checkpoints(slots=2))
    found = torch.autograd.grad(block(draw(4, 3)).square().sum(), net.weight)
    plain = snt.ODEBlock(lambda t, y: torch.tanh(net(y)), "rk4", 4, memory="all")
    wanted = torch.autograd.grad(plain(draw(4, 3)).square().sum(), net.weight)
    assert float((found[0] - wanted[0]).abs().max()) <= EXACT
