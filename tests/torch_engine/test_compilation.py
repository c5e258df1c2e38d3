"""The cost of imports, and `torch.compile` on solves that read numbers."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch
import torch._dynamo.testing
from torch_engine.sdes import COMPONENTS, TensorSDE, start

import stepnet.torch as snt

slow = partial(pytest.param, marks=pytest.mark.slow)
FEW = 5  # graphs: around a solve, and in what is made of it, but none of a step
TIMES = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)


def test_importing_does_not_load_compilers():
    """Unless torch itself does; the compiler of torch alone takes longer than torch."""
    before = "import sys, torch; compilers = {'torch._dynamo', 'torch._inductor', 'sympy', 'numba'} - {*sys.modules}"
    program = f"{before}; import stepnet.torch; assert compilers.isdisjoint(sys.modules), compilers"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_solving_does_not_load_compilers():
    """In any memory."""
    program = """if True:
        import sys, torch
        import stepnet.torch as snt
        net, t, y0 = torch.nn.Linear(2, 2), torch.linspace(0, 1, 3), torch.ones(4, 2)
        for method in ("rk4", "dopri5"):
            for memory in ("all", "auto", "continuous"):
                field = lambda t, y: net(y)
                snt.odeint_adjoint(field, y0, t, method=method, memory=memory).sum().backward()
        snt.odeint_event(field, y0, t[0], event_fn=lambda t, y: t - 0.5)
        snt.solve(field, y0, t)
        sde = torch.nn.Linear(2, 2)
        sde.f, sde.g, sde.sde_type, sde.noise_type = field, field, "ito", "diagonal"
        for method in ("euler", "srk"):
            snt.sdeint_adjoint(sde, y0, t, dt=0.25, method=method).sum().backward()
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)


class Net(torch.nn.Module):
    sde_type, noise_type = "ito", "diagonal"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, t, y):
        return torch.tanh(self.linear(y)) - t * y

    def g(self, t, y):
        return 0.1 * y


def adaptive(net, y0):
    return snt.odeint(net, 2 * y0, TIMES, method="dopri5")[-1].square()


def adaptive_in_memory(net, y0):
    return snt.odeint_adjoint(net, 2 * y0, TIMES, method="tsit5", memory=snt.Checkpoints(slots=2))[-1].square()


def per_sample(net, y0):
    return snt.solve(net, 2 * y0, TIMES).y[:, -1].square()


def up_to_an_event(net, y0):
    time, y = snt.odeint_event(net, 2 * y0, TIMES[0], event_fn=lambda t, y: t - 0.3 - 0.1 * y.mean())
    return y[-1] + time


def dense(net, y0):
    return snt.odeint_dense(net, 2 * y0, TIMES[0], TIMES[-1])(TIMES[2]).square()


MOTION = snt.BrownianInterval(size=(4, 3), entropy=5, cells=4, dtype=torch.float64)


def implicit_with_noise(net, y0):
    how = {"bm": MOTION, "method": "drift_implicit_euler", "dt": 0.25, "names": {"drift": "forward"}}
    return snt.sdeint(net, 2 * y0, [0.0, 1.0], **how)[-1].square()


def as_a_block(net, y0):
    return snt.ODEBlock(net, "dopri5")(2 * y0).square()


@pytest.mark.filterwarnings("ignore:.*:UserWarning:torch")
@pytest.mark.parametrize(
    "solve",
    [
        adaptive_in_memory,
        as_a_block,
        implicit_with_noise,
        *(slow(each) for each in (adaptive, per_sample, up_to_an_event, dense)),
    ],
)
def test_compilers_break_their_graph_around_adaptive_steps(solve):
    """With the numbers and gradients of eager mode, and no compilation of the solver itself."""
    torch.manual_seed(0)
    net = Net()
    found = []
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    for run in (solve, torch.compile(solve, backend=counter)):
        y0 = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
        y = run(net, y0)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), (y0, net.linear.weight))))
    for wanted, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, wanted, rtol=1e-13, atol=1e-13)
    assert counter.frame_count <= FEW


@pytest.mark.parametrize("solve", [adaptive, up_to_an_event])
def test_one_whole_graph_is_refused(solve):
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(partial(solve, Net()), fullgraph=True, backend="eager")(torch.ones(4, 3, dtype=torch.float64))


SDES = [("euler", "diagonal", "ito"), slow("milstein", "diagonal", "ito"), slow("srk", "scalar", "ito")]
STRATONOVICH = [slow(name, "general", "stratonovich") for name in ("heun", "reversible_heun", "log_ode")]


@pytest.mark.filterwarnings("ignore:.*:UserWarning:torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize(("name", "noise", "calculus"), [*SDES, *STRATONOVICH])
def test_fixed_steps_of_stochastic_schemes_are_one_graph(name, noise, calculus):
    """With the numbers and gradients of eager mode, and with noise of a random seed too."""
    torch._dynamo.reset()
    sde, y0 = TensorSDE(noise, calculus), start().requires_grad_()
    bm = snt.BrownianInterval(size=(3, COMPONENTS[noise]), entropy=5, cells=4, dtype=torch.float64)
    solve = lambda y0, bm: snt.sdeint(sde, y0, [0.0, 0.3, 1.0], bm=bm, method=name, dt=0.25)
    compiled = torch.compile(solve, fullgraph=True, backend="eager")
    found = [
        (y.detach(), *torch.autograd.grad(y.square().sum(), (y0, sde.a))) for y in (compiled(y0, bm), solve(y0, bm))
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    assert compiled(y0, None).shape == (3, 3, 2)
