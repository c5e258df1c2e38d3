"""Events on tensors: a falling ball, whose time of impact and its derivatives are known."""

from __future__ import annotations

import pytest
import torch

import stepnet.torch as snt

torch.set_num_threads(1)

CLOSE = 1e-8  # adaptive steps with the tolerances below
TOLERANCES = {"rtol": 1e-10, "atol": 1e-12}
GRAVITY = torch.tensor(9.81, dtype=torch.float64, requires_grad=True)


def ball(t, state):
    _, speed = state
    return speed, -GRAVITY * torch.ones_like(speed)


def impact(height, gravity):
    return torch.sqrt(2 * height / gravity)


def start(height: float = 1.7):
    return (torch.tensor(height, dtype=torch.float64, requires_grad=True), torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("method", ["dopri5", "dop853", "bosh3", "cash_karp"])
@pytest.mark.parametrize("interface", [snt.odeint, snt.odeint_adjoint])
def test_time_and_state_of_an_impact_and_their_gradients(method, interface):
    y0 = start()
    how = {"adjoint_params": (GRAVITY,)} if interface is snt.odeint_adjoint else {}
    t0 = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    t, (height, speed) = snt.odeint_event(
        ball, y0, t0, event_fn=lambda t, y: y[0], method=method, odeint_interface=interface, **TOLERANCES, **how
    )
    wanted = t0 + impact(y0[0], GRAVITY)
    assert abs(float((t - wanted).detach())) < CLOSE
    assert height.shape == (2,)
    assert abs(float(height[-1].detach())) < CLOSE
    for found, true in ((t, wanted), (speed[-1], -torch.sqrt(2 * y0[0] * GRAVITY))):
        inputs = (y0[0], GRAVITY, t0)
        derivatives = [
            torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
            for value in (found, true)
        ]
        assert torch.allclose(torch.stack(derivatives[0]), torch.stack(derivatives[1]), rtol=1e-6, atol=1e-8)


def test_the_first_of_several_events_backward_in_time():
    y0 = torch.tensor([1.0, 2.0], dtype=torch.float64)
    t, y = snt.odeint_event(
        lambda t, y: y, y0, torch.tensor(0.0, dtype=torch.float64), reverse_time=True,
        event_fn=lambda t, y: y - 0.5, **TOLERANCES,
    )  # fmt: skip
    assert abs(float(t) + 0.6931471805599453) < CLOSE
    assert torch.allclose(y[-1], torch.tensor([0.5, 1.0], dtype=torch.float64), rtol=CLOSE)


def test_times_of_adaptive_steps_have_gradients():
    t = torch.tensor([0.1, 0.5, 1.2], dtype=torch.float64, requires_grad=True)
    y0 = torch.tensor([0.7, -0.2], dtype=torch.float64, requires_grad=True)
    run = lambda t, y0: snt.odeint(lambda t, y: -y * torch.cos(t) + y.sin(), y0, t, **TOLERANCES)
    assert torch.autograd.gradcheck(run, (t, y0))
