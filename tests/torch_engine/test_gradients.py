"""Gradients on tensors: right by finite differences, the same in every memory, exact for the discrete solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients.cases import A, B, over_the_catalogue, relative
from torch_engine.cases import posed
from torch_engine.networks import METHODS, TIMES, N, Net, leaves, options_of, problem, start

import stepnet as sn
import stepnet.torch as snt

torch.set_num_threads(1)

EXACT = 1e-12  # relative; sums over steps in another order


@pytest.mark.parametrize("name", METHODS)
def test_gradcheck(name):
    net = Net()
    field, y0 = problem(name, net)
    options = options_of(name)

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
