"""Buffers that change when a field is evaluated: the same under every memory policy, as if no step were run again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet.torch as snt

EXACT = 1e-11
TIMES = torch.linspace(0.0, 1.0, 7, dtype=torch.float64)
MEMORIES = [snt.Checkpoints(slots=2), snt.Checkpoints(bytes=20_000), "auto"]


class Normalised(nn.Module):
    """Running statistics, and a counter; a bias would have no gradient behind the norm."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)

    def forward(self, t, y):
        return torch.tanh(self.norm(self.linear(y)))


class WithoutCounter(nn.Module):
    """Statistics whose change torch does not count."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, t, y):
        return torch.tanh(torch.nn.functional.batch_norm(self.linear(y), self.mean, self.var, training=True))


class SpectrallyNormalised(nn.Module):
    """Vectors that every evaluation improves, and on which it depends."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))

    def forward(self, t, y):
        return torch.tanh(self.linear(y))


class Replaced(nn.Module):
    """A mean that is a new tensor after every evaluation, on which the next one depends."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, t, y):
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.calls += 1
        return torch.tanh(self.linear(y) + self.mean)


FIELDS = [Normalised, WithoutCounter, SpectrallyNormalised, Replaced]


def solved(kind, solve, is_function=False):
    """Buffers after the solve and after its gradient, and the gradient."""
    torch.manual_seed(0)
    module = kind().double()
    y0 = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    y = solve((lambda t, y: module(t, y)) if is_function else module, y0)
    after_solve = [buffer.clone() for buffer in module.buffers()]
    y.square().sum().backward()
    gradients = [y0.grad, *(p.grad for p in module.parameters())]
    return after_solve, [buffer.clone() for buffer in module.buffers()], gradients


def require_equal(found, wanted):
    for buffers in found[:2]:
        assert all(torch.equal(a, b) for a, b in zip(buffers, wanted[0], strict=True))
    for a, b in zip(found[2], wanted[2], strict=True):
        assert float((a - b).abs().max()) <= EXACT * float(b.abs().max())


@pytest.mark.parametrize("is_function", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("method", ["rk4", "ab3"])
@pytest.mark.parametrize("kind", FIELDS)
def test_fixed_steps(kind, method, memory, is_function, short_blocks):
    """Buffers and gradients are those of plain autograd: steps that are run again see the same buffers."""
    run = lambda memory: lambda f, y0: snt.odeint_adjoint(f, y0, TIMES, method=method, memory=memory)
    require_equal(solved(kind, run(memory), is_function), solved(kind, run("all")))


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("kind", [Normalised, WithoutCounter])
def test_adaptive_steps(kind, memory, short_blocks):
    """Which are found first: that run counts once."""
    run = lambda memory: lambda f, y0: snt.odeint_adjoint(f, y0, TIMES, rtol=1e-4, atol=1e-6, memory=memory)
    require_equal(solved(kind, run(memory)), solved(kind, run("all")))


@pytest.mark.parametrize("options", [{"method": "rk4", "options": {"step_size": 0.1}}, {"rtol": 1e-4, "atol": 1e-6}])
def test_steps_to_an_event(options, short_blocks):
    def run(memory):
        how = options | {"odeint_interface": snt.odeint_adjoint, "memory": memory}
        return lambda f, y0: snt.odeint_event(f, y0, TIMES[0], event_fn=lambda t, y: t - 0.55, **how)[1]

    require_equal(solved(Normalised, run(snt.Checkpoints(slots=2))), solved(Normalised, run("all")))


def test_the_adjoint_equation(short_blocks):
    """Leaves buffers as the solve left them."""
    how = {"rtol": 1e-6, "atol": 1e-8, "memory": "continuous"}
    after_solve, after_gradient, _ = solved(Normalised, lambda f, y0: snt.odeint_adjoint(f, y0, TIMES, **how))
    assert all(torch.equal(a, b) for a, b in zip(after_solve, after_gradient, strict=True))


def test_undone_steps(short_blocks):
    """As well, though steps are evaluated in both directions."""
    found = []
    for memory in ("reversible", "all"):
        solve = lambda f, y0, m=memory: snt.odeint_adjoint(
            snt.SecondOrder(f), (y0, 0 * y0), TIMES, method="verlet", memory=m
        )[0]
        found.append(solved(Normalised, solve))
    require_equal(*found)


def test_two_solves_before_their_gradients(short_blocks):
    """Buffers stay as the second solve left them."""
    torch.manual_seed(0)
    module = Normalised().double()
    y0 = torch.randn(8, 3, dtype=torch.float64)
    how = {"method": "rk4", "memory": snt.Checkpoints(slots=2)}
    both = snt.odeint_adjoint(module, y0, TIMES, **how) + snt.odeint_adjoint(module, y0 + 1, TIMES, **how)
    wanted = [buffer.clone() for buffer in module.buffers()]
    both.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), wanted, strict=True))
    assert int(module.norm.num_batches_tracked) == 2 * 4 * (len(TIMES) - 1)
