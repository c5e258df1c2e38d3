"""Problems of torchdiffeq's examples with both imports: a spiral to be learnt, a continuous flow, a bouncing ball."""

from __future__ import annotations

import math

import pytest
import torch
import torchdiffeq

import stepnet.torch as snt

torch.set_num_threads(1)

BOTH = (torchdiffeq, snt)
CLOSE = 1e-5  # relative; both solve to 1e-8 or take the same steps
INTERFACES = pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])


# ---- a spiral -------------------------------------------------------------------------------------------------------


class Cubic(torch.nn.Module):
    """A small network of y^3."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
        for parameter in self.net.parameters():
            torch.nn.init.normal_(parameter, std=0.1)

    def forward(self, t, y):
        return self.net(y**3)


def true_spiral(t, y):
    matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], dtype=torch.float64)
    return y**3 @ matrix


def learnt(package, interface, iterations=6, **how):
    """Losses of a few iterations on pieces of the spiral."""
    t = torch.linspace(0.0, 2.5, 26, dtype=torch.float64)
    path = package.odeint(true_spiral, torch.tensor([[2.0, 0.0]], dtype=torch.float64), t, method="dopri5", **how)[:, 0]
    starts, field = torch.arange(0, 16, 2), Cubic()
    pieces = torch.stack([path[starts + i] for i in range(8)])
    optimiser, losses = torch.optim.RMSprop(field.parameters(), lr=1e-2), []
    for _ in range(iterations):
        optimiser.zero_grad()
        found = getattr(package, interface)(field, pieces[0], t[:8], method="dopri5", **how)
        loss = (found - pieces).abs().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses, torch.cat([p.detach().reshape(-1) for p in field.parameters()])


@INTERFACES
def test_a_spiral_is_learnt_alike(interface):
    found = [learnt(package, interface, rtol=1e-8, atol=1e-10) for package in BOTH]
    (their_losses, their_weights), (losses, weights) = found
    assert losses == pytest.approx(their_losses, rel=CLOSE)
    assert torch.allclose(weights, their_weights, rtol=0, atol=1e-4)  # RMSprop divides by small gradients
    assert losses[-1] < 0.9 * losses[0]


# ---- a continuous normalising flow ----------------------------------------------------------------------------------


class Flow(torch.nn.Module):
    """z' = f(t, z), (log p)' = -trace df/dz, the trace by automatic differentiation inside of the field."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = torch.nn.Linear(3, 12).double(), torch.nn.Linear(12, 2).double()

    def velocity(self, t, z):
        return self.second(torch.tanh(self.first(torch.cat((z, t * torch.ones_like(z[:, :1])), 1))))

    def forward(self, t, state):
        z, _ = state
        with torch.enable_grad():
            z = z.requires_grad_(True) if z.is_leaf else z
            dz = self.velocity(t, z)
            rows = [torch.autograd.grad(dz[:, i].sum(), z, create_graph=True)[0][:, i] for i in range(2)]
        return dz, -sum(rows).unsqueeze(1)


def circles(n):
    generator = torch.Generator().manual_seed(9)
    angle = 2 * math.pi * torch.rand(n, 1, dtype=torch.float64, generator=generator)
    radius = torch.where(torch.arange(n)[:, None] % 2 == 0, 1.0, 0.5)
    return torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), 1)


def flow_losses(package, interface, iterations=3):
    field, x = Flow(), circles(24)
    optimiser, losses = torch.optim.Adam(field.parameters(), lr=5e-3), []
    t = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for _ in range(iterations):
        optimiser.zero_grad()
        state = (x, torch.zeros(len(x), 1, dtype=torch.float64))
        z, change = getattr(package, interface)(field, state, t, method="dopri5", rtol=1e-8, atol=1e-10)
        log_p = -0.5 * z[-1].square().sum(1) - math.log(2 * math.pi) - change[-1][:, 0]
        loss = -log_p.mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@INTERFACES
def test_a_flow_is_learnt_alike(interface):
    theirs, ours = (flow_losses(package, interface) for package in BOTH)
    assert ours == pytest.approx(theirs, rel=CLOSE)
    assert ours[-1] < ours[0]


# ---- a bouncing ball ------------------------------------------------------------------------------------------------


class Ball(torch.nn.Module):
    """Falls, loses speed at each impact, with a gravity that could be learnt."""

    def __init__(self):
        super().__init__()
        self.gravity = torch.nn.Parameter(torch.tensor(9.8, dtype=torch.float64))
        self.kept = torch.nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

    def forward(self, t, state):
        height, speed, kept = state
        return speed, -self.gravity * torch.ones_like(height), torch.zeros_like(kept)

    def bounces(self, package, interface, n):
        height, speed = (torch.tensor([x], dtype=torch.float64) for x in (10.0, 0.0))
        state = height, speed, self.kept.reshape(1)
        t, times = torch.tensor(0.0, dtype=torch.float64), []
        for _ in range(n):
            t, path = package.odeint_event(
                self, state, t, event_fn=lambda t, y: y[0], odeint_interface=getattr(package, interface), rtol=1e-9,
                atol=1e-11, method="dopri5",
            )  # fmt: skip
            height, speed, kept = (part[-1] for part in path)
            state = height + 1e-7, -speed * kept, kept
            times.append(t)
        return torch.stack(times)


@INTERFACES
def test_a_ball_bounces_alike(interface):
    found = []
    for package in BOTH:
        ball = Ball()
        times = ball.bounces(package, interface, 4)
        found.append((times.detach(), *torch.autograd.grad(times[-1], (ball.gravity, ball.kept))))
    for theirs, ours in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=CLOSE)
    falls = math.sqrt(20.0 / 9.8)
    wanted = [falls * (1 + 2 * sum(0.8**k for k in range(1, i + 1))) for i in range(4)]
    assert found[1][0].tolist() == pytest.approx(wanted, rel=1e-5)
