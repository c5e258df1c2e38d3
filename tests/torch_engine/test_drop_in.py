"""Arguments of torchdiffeq are accepted: scripted and sparse fields, autocast, times on other devices, budgets."""

from __future__ import annotations

import pytest
import torch
import torchdiffeq
from torch import nn

import stepnet.torch as snt
from stepnet import fields
from stepnet.engines.torch_engine.integrators.explicit_rk import StepError
from stepnet.errors import UnknownName

EXACT = 1e-12
HALF = 0.02  # a few units in the last digit of bfloat16, which has 8 bits
TIMES = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
MEMORIES = ["all", "auto", snt.Checkpoints(slots=2), "continuous"]


def draw(*shape, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=dtype)
        self.register_buffer("shift", torch.ones(3, dtype=dtype))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(y) + self.shift)


# ---- fields ---------------------------------------------------------------------------------------------------------


def scripted(net):
    return torch.jit.script(net)


def traced(net):
    return torch.jit.trace(net, (TIMES[0], draw(4, 3)))


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("make", [scripted, traced])
def test_scripted_modules(make, method, memory, short_blocks):
    """Numbers and gradients of the module itself."""
    net = Net()
    found = []
    for field in (make(net), net):
        y = snt.odeint_adjoint(field, draw(4, 3), TIMES, method=method, memory=memory)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), list(field.parameters()))))
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= EXACT * float(b.abs().max())


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sparse_tensors(layout, memory, short_blocks):
    """In a closure, as a graph has them."""
    dense = torch.diag(draw(5)) + torch.diag(draw(4), 1)
    weight = draw(3, 3).requires_grad_()
    found = []
    for matrix in (dense.to_sparse(layout=layout), dense):
        y0 = draw(5, 3).requires_grad_()
        field = lambda t, y, matrix=matrix: torch.tanh(matrix @ (y @ weight))
        y = snt.odeint_adjoint(field, y0, TIMES, method="rk4", memory=memory)
        found.append(torch.autograd.grad(y.square().sum(), (y0, weight)))
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= EXACT * float(b.abs().max())


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_autocast_with_a_state_in_single_precision(method, memory, short_blocks):
    """The field is evaluated in half precision, states and sums are not; weights have their gradients."""
    net, t = Net(torch.float32), TIMES.float()
    how = {"method": method, "rtol": 1e-2, "atol": 1e-2}
    with torch.autocast("cpu", torch.bfloat16):
        wanted = torchdiffeq.odeint(net, draw(4, 3).float(), t, **how)
        found = snt.odeint_adjoint(net, draw(4, 3).float(), t, memory=memory, **how)
    assert found.dtype == wanted.dtype == torch.float32
    difference, size = (found - wanted).detach().abs().max(), wanted.detach().abs().max()
    assert float(difference) <= HALF * float(size)
    parameters = list(net.parameters())
    bars = zip(*(torch.autograd.grad(y[-1].sum(), parameters) for y in (found, wanted)), strict=True)
    for a, b in bars:
        assert float((a - b).abs().max()) <= HALF * float(b.abs().max())


def test_autocast_with_steps_of_every_sample():
    net = Net(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert snt.solve(net, draw(4, 3).float(), TIMES, rtol=1e-2, atol=1e-2).y.dtype == torch.float32


# ---- times and states -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rk4", "verlet", "ab3"])
def test_times_on_the_host(method):
    """With a state elsewhere; times that have a gradient go there."""
    field = snt.SecondOrder(lambda t, q: -q * t) if method == "verlet" else lambda t, y: -y * t
    y0 = torch.ones(3, device="meta")
    state = (y0, y0) if method == "verlet" else y0
    for t in (TIMES, TIMES.clone().requires_grad_()):
        y = snt.odeint(field, state, t, method=method)
        assert (y[0] if isinstance(y, tuple) else y).is_meta


def test_times_without_numbers_are_refused():
    with pytest.raises(ValueError, match="`t` must be on cpu, where `y0` is"):
        snt.odeint(Net(), draw(4, 3), TIMES.to("meta"))


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_tuples_of_two_precisions_are_promoted(method):
    y0 = draw(4, 3).float(), draw(4, 2)
    field = lambda t, y: (-y[0] * y[1].sum(), -torch.sin(y[1]))
    found, wanted = (solve(field, y0, TIMES, method=method) for solve in (snt.odeint, torchdiffeq.odeint))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_halves_and_batches_of_two_precisions_are_promoted():
    q, v = snt.odeint(snt.SecondOrder(lambda t, q: -q), (draw(3).float(), draw(3)), TIMES, method="verlet")
    assert q.dtype == v.dtype == torch.float64
    y = snt.solve(lambda t, y: (-y[0], -y[1]), (draw(4, 3).float(), draw(4, 2)), TIMES).y
    assert {part.dtype for part in y} == {torch.float64}


# ---- budgets --------------------------------------------------------------------------------------------------------


def rotation(t, y):
    return torch.stack((y[1], -y[0]))


NEVER = {"event_fn": lambda t, y: y.square().sum() + 1.0}


@pytest.mark.parametrize("how", [{}, {"method": "rk4", "options": {"step_size": 0.1}}], ids=["adaptive", "fixed"])
@pytest.mark.parametrize("interface", [snt.odeint, snt.odeint_adjoint])
def test_an_event_that_never_happens(how, interface):
    """The search ends at `t_max`, or after a number of steps."""
    y0, t0 = torch.tensor([1.0, 0.0], dtype=torch.float64), TIMES[0]
    with pytest.raises(StepError, match=r"`event_fn` had no zero .*`t_max`"):
        snt.odeint_event(rotation, y0, t0, t_max=3.0, odeint_interface=interface, **NEVER, **how)
    budget = how | {"options": how.get("options", {}) | {"max_num_steps": 50}}
    with pytest.raises(StepError, match=r"`event_fn` had no zero .*`max_num_steps`"):
        snt.odeint_event(rotation, y0, t0, odeint_interface=interface, **NEVER, **budget)


def test_an_event_before_the_last_time():
    """Is found as without one, in both directions; a last time on the other side is refused."""
    y0, t0 = torch.tensor([1.0, 0.0], dtype=torch.float64), TIMES[0]
    for sign in (1.0, -1.0):
        how = {"event_fn": lambda t, y: y[0], "reverse_time": sign < 0}
        time, _ = snt.odeint_event(rotation, y0, t0, t_max=2.0 * sign, **how)
        assert float(time) == pytest.approx(sign * torch.pi / 2, abs=1e-6)
        with pytest.raises(ValueError, match="`t_max` must lie in the direction"):
            snt.odeint_event(rotation, y0, t0, t_max=-2.0 * sign, **how)


def test_options_of_events_are_for_events():
    with pytest.raises(UnknownName, match="t_max"):
        snt.odeint(rotation, draw(2), TIMES, options={"t_max": 2.0})


@pytest.mark.parametrize("solve", [snt.odeint, snt.odeint_adjoint, snt.solve])
@pytest.mark.parametrize("end", [torch.inf, torch.nan])
def test_times_that_are_not_finite_are_refused(solve, end):
    with pytest.raises(ValueError, match="`t` must be finite"):
        solve(lambda t, y: -y, draw(4, 2), torch.tensor([0.0, end], dtype=torch.float64))


def test_a_stiff_field_ends_with_its_budget(monkeypatch):
    """Which is finite, and names what to do."""
    monkeypatch.setattr("stepnet.torch.options.MAX_STEPS", 200)
    field = lambda t, y: -1e9 * (y - torch.cos(t))
    with pytest.raises(StepError, match=r"`max_num_steps` exceeded.* stiff"):
        snt.odeint(field, draw(2), TIMES)
    assert snt.solve(field, draw(4, 2), TIMES).failed.all()


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [("rk4", 6), ("dopri5", 6), ("dopri5", None)], ids=str)
@pytest.mark.parametrize("memory", ["auto", "all"])
def test_the_length_of_a_block_has_a_gradient(how, memory):
    """That of a difference quotient; a parameter is one of the block."""
    net, y0, h = Net(), draw(4, 3), 1e-5
    length = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    block = snt.ODEBlock(net, *how, length=length, memory=memory)
    assert any(each is length for each in block.parameters())
    (found,) = torch.autograd.grad(block(y0).sum(), length)
    at = lambda shift: snt.ODEBlock(net, *how, length=0.7 + shift, rtol=1e-10, atol=1e-12)(y0).sum()
    assert float(found) == pytest.approx(float((at(h) - at(-h)).detach()) / (2 * h), rel=1e-5)


FIELD = fields.chained(fields.mlp([4, 8, 4]))
LAYERS = [lambda n: snt.ResidualBlock(4, 3, length=n), lambda n: snt.ODEBlock(FIELD, "rk4", 3, n)]


@pytest.mark.parametrize("make", LAYERS)
def test_the_length_of_layers_is_a_number(make):
    with pytest.raises(ValueError, match=r"`length` of layers must be a number.*detach it"):
        make(torch.tensor(1.0, requires_grad=True))
    assert make(torch.tensor(2.0)).record.length == 2.0
