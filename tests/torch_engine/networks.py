"""Small fields with parameters, one for every family of schemes."""

from __future__ import annotations

import torch

import stepnet as sn
import stepnet.torch as snt

N = 7
TIMES = torch.linspace(0.0, 1.0, N + 1, dtype=torch.float64)
HALVES = {"verlet", "yoshida4", "leapfrog_two_step"}
METHODS = ["rk4", "dopri5", "bosh3", "ab3", "carpenter_kennedy54", "rkl2", "strang", *sorted(HALVES)]
EXACT = 1e-12  # relative; sums over steps in another order
BOUNDED = {"1 slot": snt.Checkpoints(slots=1), "3 slots": snt.Checkpoints(slots=3), "bytes": 40_000, "auto": "auto"}


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


def problem(name: str, net: Net):
    """A field for a method, and its initial state."""
    if name not in HALVES:
        return snt.Split((net, lambda t, y: -0.3 * y.sin())) if name == "strang" else net, start()
    q0, p0 = start(), (0.5 * start().detach()).requires_grad_()
    return (snt.SecondOrder(net) if name == "leapfrog_two_step" else snt.Partitioned(net, net)), (q0, p0)


def options_of(name: str) -> dict:
    """Given steps for a pair, too."""
    return {"step_size": 1 / N} if sn.schemes.conditions.is_pair(sn.schemes.get(name)) else {}


def leaves(y0) -> tuple[torch.Tensor, ...]:
    return y0 if isinstance(y0, tuple) else (y0,)


def loss(y, every: bool = True) -> torch.Tensor:
    return sum((part if every else part[-1]).sin().sum() for part in leaves(y))


def solver(name: str, memory: str):
    """A net, its initial state, and the solution as a function of (state, times)."""
    net = Net()
    field, y0 = problem(name, net)
    how = {"method": name, "memory": BOUNDED.get(memory, memory), "options": options_of(name)}

    def run(y, t=TIMES):
        return snt.odeint_adjoint(field, y, t, adjoint_params=(net.W, net.b), **how)

    return net, y0, run
