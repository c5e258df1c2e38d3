"""Solves and modules, forward and backward, on a device without numbers: a program that ends with what it could not do.

A fake device refuses every look at a number (`DataDependentOutputException`).  It must be set up before the first
gradient of a process, so this is a program of its own; arguments are the names of the groups below.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "unseen"
Case = tuple[str, Callable[[], object]]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, t, y):
        return torch.tanh(self.linear(y)) * t


def pull(y, *inputs: torch.Tensor) -> None:
    """A gradient of everything, which must be there."""
    y = y[0] if isinstance(y, tuple) else y
    assert y.device.type == DEVICE
    assert all(bar is not None for bar in torch.autograd.grad(y.square().sum(), inputs))


def solve_by(name: str, memory="auto", **how) -> Callable[[], None]:
    import stepnet.torch as snt
    from stepnet.schemes.conditions import is_pair
    from stepnet.schemes.splitting import Splitting
    from stepnet.torch.methods import find_scheme

    def run() -> None:
        scheme, net, y0 = find_scheme(name), Net(), torch.ones(3, 4, requires_grad=True)
        is_second = isinstance(scheme, Splitting) or getattr(scheme, "derivative", 1) == 2
        field, state = (snt.SecondOrder(net), (y0, y0)) if is_second else (net, y0)
        options = {"grid_constructor": lambda f, y, t: t} if is_pair(scheme) else {}
        y = snt.odeint_adjoint(
            field, state, torch.linspace(0, 1, 8), method=name, memory=memory, options=options, **how
        )
        pull(y, y0, net.linear.weight)

    return run


def schemes() -> Iterator[Case]:
    """Every explicit scheme in the default memory of blocks; implicit stages end when they are solved."""
    import stepnet.torch as snt
    from stepnet.schemes.capabilities import needs_linear_part
    from stepnet.schemes.conditions import is_explicit
    from stepnet.torch.methods import find_scheme

    for name in snt.method_names():
        if is_explicit(find_scheme(name)) and not needs_linear_part(find_scheme(name)):
            yield name, solve_by(name)


def memories() -> Iterator[Case]:
    """Every memory without a look at the end, with one step in a block and with all of them."""
    import stepnet.torch as snt
    from stepnet.engines.torch_engine.adjoint import reversal

    def with_blocks(size: int, run: Callable[[], None]) -> Callable[[], None]:
        def inside() -> None:
            reversal.BLOCK_BYTES, reversal.AUTOMATIC_BYTES = size, size
            run()

        return inside

    for memory in ("all", "auto", snt.Checkpoints(slots=2), snt.Checkpoints(bytes=4000)):
        for size in (1, 2**24):
            for name in ("rk4", "verlet", "ab3"):
                yield f"{name} {memory} {size}", with_blocks(size, solve_by(name, memory))


def modules() -> Iterator[Case]:
    """Blocks and nets in their default memory."""
    import stepnet.torch as snt
    from stepnet import fields

    def by(make: Callable[[], torch.nn.Module], *shape: int) -> Callable[[], None]:
        def run() -> None:
            module, x = make(), torch.ones(*shape, requires_grad=True)
            pull(module(x), x, *module.parameters())

        return run

    yield "residual", by(lambda: snt.ResidualBlock(4, 3), 5, 4)
    yield "antisymmetric", by(lambda: snt.AntisymmetricBlock(4, 3, scheme="rk4"), 5, 4)
    yield "parabolic", by(lambda: snt.ParabolicBlock(fields.conv2d((4, 4), 2), 3), 5, 2, 4, 4)
    yield "hamiltonian", by(lambda: snt.HamiltonianBlock(4, 3), 5, 4)
    yield "hyperbolic", by(lambda: snt.HyperbolicBlock(4, 3, norm="layer"), 5, 4)
    yield "field", by(lambda: snt.ODEBlock(fields.chained(fields.mlp([4, 8, 4])), "rk4", 3), 5, 4)
    yield "function", by(lambda: snt.ODEBlock(Net(), "rk4", 3), 5, 4)
    yield "pair", by(lambda: snt.ODEBlock(Net(), "dopri5", 3), 5, 4)
    yield "net", by(lambda: snt.nets.hamiltonian(4, 3, width=4, steps=3), 5, 4)


def stochastic() -> Iterator[Case]:
    """Every stochastic scheme with each type of noise, with noise from a seed that is not read."""
    import stepnet as sn
    import stepnet.torch as snt
    from stepnet.engines.torch_engine.adjoint import reversal
    from stepnet.schemes.capabilities import is_implicit

    class Equation(torch.nn.Module):
        def __init__(self, noise: str, calculus: str):
            super().__init__()
            self.noise_type, self.sde_type, self.net = noise, calculus, Net()

        def f(self, t, y):
            return self.net(t, y)

        def g(self, t, y):
            g = torch.sigmoid(self.net(t, y))
            return (
                g
                if self.noise_type == "diagonal"
                else g[..., None].expand(3, 4, 1 if self.noise_type == "scalar" else 2)
            )

    def by(name: str, noise: str, memory, **how) -> Callable[[], None]:
        def run() -> None:
            reversal.BLOCK_BYTES = 1
            scheme, y0 = sn.schemes.get(name), torch.ones(3, 4, requires_grad=True)
            sde = Equation(noise, scheme.calculus)
            y = snt.sdeint_adjoint(sde, y0, [0.0, 0.35, 1.0], method=name, dt=0.25, memory=memory, **how)
            pull(y, y0, sde.net.linear.weight)

        return run

    explicit = [name for name in sn.schemes.names("SDE") if not is_implicit(sn.schemes.get(name))]
    for name in explicit:  # Newton's iteration reads whether it has converged
        for orders in sn.schemes.get(name).orders:
            yield f"{name} {orders.noise}", by(name, orders.noise, snt.Checkpoints(slots=2))
    yield "all", by("sriw1", "diagonal", "all")
    yield "auto", by("reversible_heun", "general", "auto")


def quick() -> Iterator[Case]:
    """One scheme of each family, a few modules and memories, one stochastic scheme of each family."""
    import stepnet as sn
    import stepnet.torch as snt
    from stepnet.torch.methods import find_scheme

    yield from select_families(schemes(), find_scheme)
    yield from (case for case in modules() if case[0] in ("hamiltonian", "function", "net"))
    wanted = {f"{name} {memory} 1" for name in ("rk4", "verlet") for memory in ("all", snt.Checkpoints(slots=2))}
    yield from (case for case in memories() if case[0] in wanted)
    found = (case for case in stochastic() if case[0] not in ("all", "auto"))
    yield from select_families(found, lambda name: sn.schemes.get(name.split()[0]))


def select_families(cases: Iterator[Case], find: Callable[[str], object]) -> Iterator[Case]:
    """The first case of each kind of scheme."""
    seen = set()
    for name, run in cases:
        if (kind := type(find(name))) not in seen:
            seen.add(kind)
            yield name, run


def main(names: list[str]) -> int:
    """The number of cases that failed, each of them told."""
    failed = 0
    _setup_privateuseone_for_python_backend(DEVICE)
    for name in names:
        for case, run in globals()[name]():
            try:
                with FakeTensorMode(), torch.device(DEVICE):
                    run()
            except Exception:
                failed += 1
                print(name, case, traceback.format_exc(limit=-6), sep="\n")
    return failed


if __name__ == "__main__":
    failures = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(min(failures, 255))  # threads that torch starts for such a device may abort an orderly exit
