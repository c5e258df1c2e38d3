"""Jumps, events of given steps, ends of steps and callbacks mean the same in every memory."""

from __future__ import annotations

import pytest
import torch
from gradients.cases import relative
from torch_engine.networks import HALVES, METHODS, TIMES, N, Net, leaves, loss, problem, start

import stepnet.torch as snt
from stepnet.errors import AdjointWarning

torch.set_num_threads(1)

EXACT = 1e-12  # relative; sums over steps in another order
KEPT = snt.Checkpoints(slots=2)
JUMP = 3 * (1 / N)  # where a step of given ones ends
ALREADY = torch.zeros((), dtype=torch.float64)


class Switched(Net):
    """Another field after JUMP; there it has the value of neither side."""

    def forward(self, t, y):
        return super().forward(t, y) * torch.where(t < JUMP, 1.0, torch.where(t > JUMP, -2.0, 1e3))


def gradients(run, net, y0) -> tuple:
    """Of all that a run gives, after the numbers themselves."""
    found = run()
    parts = [x for x in found if isinstance(x, torch.Tensor)]
    return *(x.detach() for x in parts), *torch.autograd.grad(loss(tuple(parts)), (*leaves(y0), net.W, net.b))


def require_same(found, wanted) -> None:
    assert max(relative(a, b) for a, b in zip(found, wanted, strict=True)) <= EXACT


@pytest.mark.parametrize("reverse_time", [False, True])
@pytest.mark.parametrize("step", [0.1, 0.4, 2.0], ids=["many steps", "few", "one"])
@pytest.mark.parametrize("name", METHODS)
def test_events_of_given_steps(name, step, reverse_time, short_blocks):
    net = Net()
    field, y0 = problem(name, net)
    event = lambda t, y: t.abs() + 0.01 * leaves(y)[0].sum() - 0.9
    options = {"step_size": step, "interp": "cubic"}

    def run(memory):
        t, y = snt.odeint_event(
            field, y0, ALREADY, event_fn=event, odeint_interface=snt.odeint_adjoint, method=name, options=options,
            memory=memory, adjoint_params=(net.W, net.b), reverse_time=reverse_time,
        )  # fmt: skip
        return t, *leaves(y)

    wanted = gradients(lambda: run("all"), net, y0)
    for memory in (KEPT, "reversible") if name in HALVES else (KEPT,):
        require_same(gradients(lambda memory=memory: run(memory), net, y0), wanted)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "dop853", "cash_karp"])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_jumps(method, is_reversed, short_blocks):
    net, y0 = Switched(), start()
    how = {
        "method": method,
        "options": {"jump_t": torch.tensor([JUMP], dtype=torch.float64)},
        "rtol": 1e-6,
        "atol": 1e-6,
    }
    t = TIMES.flip(0) if is_reversed else TIMES
    found, wanted = (
        gradients(lambda memory=memory: (snt.odeint_adjoint(net, y0, t, memory=memory, **how),), net, y0)
        for memory in (KEPT, "all")
    )
    require_same(found, wanted)


@pytest.mark.parametrize("when", [0.2, JUMP, 0.8])
def test_events_beside_jumps(when, short_blocks):
    net, y0 = Switched(), start()
    how = {"options": {"jump_t": torch.tensor([JUMP], dtype=torch.float64)}, "rtol": 1e-8, "atol": 1e-8}

    def run(memory):
        return snt.odeint_event(
            net, y0, ALREADY, event_fn=lambda t, y: t + 1e-3 * y.sum() - when, odeint_interface=snt.odeint_adjoint,
            memory=memory, **how,
        )  # fmt: skip

    require_same(*(gradients(lambda memory=memory: run(memory), net, y0) for memory in (KEPT, "all")))


def perturbed(name, net, memory) -> tuple:
    field, y0 = problem(name, net)
    how = {"method": name, "options": {"perturb": True, "step_size": 1 / N}, "adjoint_params": (net.W, net.b)}
    return gradients(lambda: leaves(snt.odeint_adjoint(field, y0, TIMES, memory=memory, **how)), net, y0)


@pytest.mark.parametrize("kind", [Net, Switched])
@pytest.mark.parametrize("name", METHODS)
def test_perturbed_ends_of_steps(name, kind, short_blocks):
    require_same(perturbed(name, kind(), KEPT), perturbed(name, kind(), "all"))


@pytest.mark.parametrize("name", sorted(HALVES))
def test_perturbed_ends_of_steps_that_are_undone(name, short_blocks):
    """A slope carried from one step to the next is that of one side of a jump, so the step is not undone exactly."""
    require_same(perturbed(name, Net(), "reversible"), perturbed(name, Net(), "all"))
    with pytest.warns(AdjointWarning, match="computed again with checkpoints"):
        found = perturbed(name, Switched(), "reversible")
    require_same(found, perturbed(name, Switched(), "all"))


@pytest.mark.parametrize("options", [{}, {"step_size": 0.1}], ids=["adaptive", "given"])
@pytest.mark.parametrize("memory", ["all", KEPT])
def test_every_step_to_an_event_is_told_once(options, memory):
    net, y0, told = Net(), start(), []
    net.callback_step = lambda t, y, h: told.append(float(t))
    t, _ = snt.odeint_event(
        net, y0, ALREADY, event_fn=lambda t, y: t + 0.1 * y[0, 0] - 0.9, odeint_interface=snt.odeint_adjoint,
        memory=memory, options=options,
    )  # fmt: skip
    t.backward()
    assert len(told) > 3
    assert told == sorted(set(told))


@pytest.mark.parametrize("options", [{}, {"step_size": 0.1}], ids=["adaptive", "given"])
def test_callbacks_of_the_adjoint_equation(options):
    """They are told of the steps back from time to time, with state, adjoint and the gradients of parameters."""
    net, y0, told = Net(), start(), []
    net.callback_step_adjoint = lambda t, state, h: told.append((float(t), state))
    y = snt.odeint_adjoint(net, y0, TIMES[[0, 3, 7]], memory="continuous", options=options)
    assert not told
    loss(y, every=False).backward()
    times = [t for t, _ in told]
    assert times == sorted(times, reverse=True)
    assert {float(TIMES[7]), float(TIMES[3])} <= set(times)
    first = told[0][1]
    assert [x.shape for x in first] == [y0.shape, y0.shape, net.W.shape, net.b.shape]
    assert torch.equal(first[0], y[-1])
    assert torch.equal(first[1], y[-1].cos())
