"""A neural ODE 2-64-2 on a batch of 256: 100 steps of RK4, loss and exact gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.gradient_contenders import Contender, diffrax_rk4
from benchmarks.gradients import measured
from benchmarks.timing import Answer, Prepared, Row, first_line

BATCH, HIDDEN, STEPS = 256, 64, 100
AGREEMENT = 1e-10
NAME = "neural ODE 2-64-2"
OURS = f"{NAME}, stepnet"


def numbers() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return (
        random.normal(size=(HIDDEN, 2)), random.normal(size=HIDDEN), random.normal(size=(2, HIDDEN)) / 8,
        0.1 * random.normal(size=2), random.normal(size=(BATCH, 2)),
    )  # fmt: skip


def flat(parts) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(part)) for part in parts])


def stepnet(scheme: str) -> Prepared:
    import stepnet as sn

    net, (*weights, x) = sn.nets.neural_ode(2, None, (HIDDEN,), STEPS, scheme=scheme, workers=1), numbers()
    net.put(flat(weights))

    def call():
        return net.gradient(x, lambda y: (0.5 * float(np.vdot(y, y)), y))

    call()
    return Prepared(call, lambda found: Answer(flat((found.theta, found.x)), STEPS))


def diffrax(scheme: str) -> Prepared:
    import diffrax as dx
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    told = {"adjoint": dx.RecursiveCheckpointAdjoint(), "max_steps": STEPS + 1, "saveat": dx.SaveAt(t1=True)}
    solver = diffrax_rk4()

    def value(K1, b1, K2, b2, x):
        term = dx.ODETerm(lambda t, y, args: jnp.tanh(y @ K1.T + b1) @ K2.T + b2)
        y = dx.diffeqsolve(term, solver, 0.0, 1.0, 1.0 / STEPS, x, **told).ys[-1]
        return 0.5 * (y * y).sum()

    gradient, given = jax.jit(jax.grad(value, argnums=(0, 1, 2, 3, 4))), tuple(map(jnp.asarray, numbers()))

    def call():
        return jax.block_until_ready(gradient(*given))

    call()
    return Prepared(call, lambda raw: Answer(flat(raw), STEPS))


def torchdiffeq(scheme: str) -> Prepared:
    """Its "rk4" is the 3/8 rule."""
    import torch
    from torchdiffeq import odeint

    torch.set_num_threads(1)
    given = [torch.tensor(each, requires_grad=True) for each in numbers()]
    K1, b1, K2, b2, x = given
    times = torch.tensor([0.0, 1.0], dtype=torch.float64)

    def call():
        for each in given:
            each.grad = None
        f = lambda t, y: torch.addmm(b2, torch.tanh(torch.addmm(b1, y, K1.t())), K2.t())
        y = odeint(f, x, times, method="rk4", options={"step_size": 1.0 / STEPS})[-1]
        (0.5 * (y * y).sum()).backward()
        return [each.grad for each in given]

    return Prepared(call, lambda raw: Answer(flat(raw), STEPS))


def neural_ode_rows(workload: str) -> Iterator[Row]:
    """Ours and the two libraries; gradients of the same scheme must agree."""
    contenders = (
        Contender("stepnet", "stepnet", stepnet),
        Contender("diffrax", "diffrax", diffrax),
        Contender("torchdiffeq", "torchdiffeq", torchdiffeq, "rk38"),
    )
    found = measured(contenders, "rk4")
    for contender in contenders:
        label, one = f"{NAME}, {contender.name}", found[contender.name]
        if isinstance(one, Exception):
            yield Row(workload, label, contender.package, note=first_line(one))
            continue
        own = stepnet(contender.scheme)
        wanted = own.read(own.call()).y
        difference = float(np.linalg.norm(one.answer.y - wanted) / np.linalg.norm(wanted))
        if not difference < AGREEMENT:
            yield Row(workload, label, contender.package, note=f"the gradient is off by {difference:.1e}")
            continue
        yield Row(workload, label, contender.package, time=one.time, error=difference, accepted=STEPS, calls=one.calls)
