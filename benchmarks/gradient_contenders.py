"""Contenders for gradients of half the squared end state, through the same equal steps of RK4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from benchmarks.problems import PLEIADES
from benchmarks.timing import Answer, Prepared


@dataclass(frozen=True, eq=False)
class Run:
    """y' = f(t, y, *args) in `steps` even steps; `plain` is what a stepnet user writes, `arrays(xp)` what others do."""

    name: str
    plain: Callable
    arrays: Callable
    y0: np.ndarray
    args: tuple[float, ...]
    t_end: float
    steps: int

    @property
    def h(self) -> float:
        return self.t_end / self.steps

    @property
    def problem(self):
        import stepnet as sn

        return sn.ODE(self.plain, self.y0, (0.0, self.t_end), self.args)


def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


def lorenz_96(t, y, F):
    """Lorenz (1996): x_i' = (x_(i+1) - x_(i-2)) x_(i-1) - x_i + F on a ring."""
    return (np.roll(y, -1) - np.roll(y, 2)) * np.roll(y, 1) - y + F


def lorenz_96_arrays(xp):
    return lambda t, y, F: (xp.roll(y, -1) - xp.roll(y, 2)) * xp.roll(y, 1) - y + F


def loss(y):
    return 0.5 * (y @ y)


LORENZ = Run(
    "lorenz", lorenz, lambda xp: lambda t, y, *args: xp.stack(lorenz(t, y, *args)), np.ones(3), (10.0, 28.0, 8 / 3),
    t_end=10.0, steps=1000,
)  # fmt: skip
# After the close encounters up to t = 3 rounding of the initial state alone moves the gradient by 1e-8.
STARS = Run("pleiades", PLEIADES.plain, PLEIADES.arrays, PLEIADES.y0, (), t_end=1.5, steps=1000)
RING = Run("lorenz-96", lorenz_96, lorenz_96_arrays, 8.0 + np.sin(np.arange(1000.0)), (8.0,), t_end=2.0, steps=200)
RUNS = (LORENZ, STARS, RING)


def rk4_step(f, y, h):
    """One step of the classical scheme, in any array library."""
    k1 = f(0.0, y)
    k2 = f(0.0, y + 0.5 * h * k1)
    k3 = f(0.0, y + 0.5 * h * k2)
    k4 = f(0.0, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


# ---- contenders -----------------------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """`prepare(run)` compiles what is to be compiled; the answer is the gradient (y0, args) as one array.

    It is compared with that of stepnet for `scheme`; None for what gives no gradient.
    """

    name: str
    package: str
    prepare: Callable[[Run], Prepared]
    scheme: str | None = "rk4"
    runs: tuple[Run, ...] = RUNS


def stepnet(scheme: str = "rk4", memory="all"):
    """The whole call, as a user makes it."""
    import stepnet as sn

    def prepare(run):
        problem = run.problem

        def call():
            return sn.gradient(problem, scheme, loss, steps=run.steps, memory=memory)

        call()
        return Prepared(call, lambda found: Answer(flat(found.y0, found.args), run.steps))

    return prepare


def sweep(is_reverse: bool):
    """All steps forward with their states stored, or in reverse from those states: what no call can do without."""

    def prepare(run):
        from stepnet import schemes
        from stepnet.engines.contract import FixedSteps
        from stepnet.engines.numba_engine import linearise

        linear = linearise(run.problem, schemes.get("rk4"), FixedSteps(run.steps))
        states = np.empty((run.steps, linear.width))

        def forward():
            state = linear.open(run.y0)
            linear.forward(state, 0, run.steps, states)
            return state

        end = forward().ravel()

        def reverse():
            bar, sums = linear.spread(end), linear.new_sums()
            linear.backward(states, 0, run.steps, bar, sums)
            return bar, sums

        if not is_reverse:
            return Prepared(forward, lambda state: Answer(state, run.steps))
        return Prepared(reverse, lambda raw: Answer(flat(raw[0], raw[1].p), run.steps))

    return prepare


def jax_grad(run: Run) -> Prepared:
    """`jax.jit(jax.grad)` of a scan, what a JAX user without a library writes."""
    import jax

    def end(f, y0):
        return jax.lax.scan(lambda y, _: (rk4_step(f, y, run.h), None), y0, length=run.steps)[0]

    return _jitted(run, end)


def diffrax(run: Run) -> Prepared:
    """RK4 as a solver of diffrax, even steps, its default adjoint."""
    import diffrax as dx

    solver = diffrax_rk4()
    told = {"adjoint": dx.RecursiveCheckpointAdjoint(), "max_steps": run.steps + 1, "saveat": dx.SaveAt(t1=True)}

    def end(f, y0):
        term = dx.ODETerm(lambda t, y, args: f(t, y))
        return dx.diffeqsolve(term, solver, 0.0, run.t_end, run.h, y0, **told).ys[-1]

    return _jitted(run, end)


def diffrax_rk4():
    import diffrax as dx

    numbers = dx.ButcherTableau(
        a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
        b_sol=np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]), b_error=np.array([1 / 6, 1 / 3, 1 / 3, -5 / 6]),
        c=np.array([0.5, 0.5, 1.0]),
    )  # fmt: skip

    class RK4(dx.AbstractERK):
        tableau: ClassVar = numbers
        interpolation_cls: ClassVar = dx.ThirdOrderHermitePolynomialInterpolation.from_k

        def order(self, terms):
            return 4

    return RK4()


def _jitted(run: Run, end: Callable) -> Prepared:
    """The compiled gradient of the loss of `end(f, y0)`."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    field = run.arrays(jnp)

    def of_end(y0, args):
        return loss(end(lambda t, y: field(t, y, *args), y0))

    gradient = jax.jit(jax.value_and_grad(of_end, argnums=(0, 1)))
    y0, args = jnp.asarray(run.y0), tuple(map(jnp.asarray, run.args))

    def call():
        return jax.block_until_ready(gradient(y0, args))

    call()
    return Prepared(call, lambda raw: Answer(flat(*raw[1]), run.steps))


def torch_autograd(run: Run) -> Prepared:
    """A Python loop over the steps."""

    def end(f, y):
        for _ in range(run.steps):
            y = rk4_step(f, y, run.h)
        return y

    return _taped(run, end)


def torchdiffeq(run: Run) -> Prepared:
    """Its "rk4" is the 3/8 rule."""
    import torch
    from torchdiffeq import odeint

    def end(f, y0):
        times = torch.tensor([0.0, run.t_end], dtype=torch.float64)
        return odeint(f, y0, times, method="rk4", options={"step_size": run.h})[-1]

    return _taped(run, end)


def _taped(run: Run, end: Callable) -> Prepared:
    import torch

    torch.set_num_threads(1)
    field = run.arrays(torch)

    def call():
        y0 = torch.tensor(run.y0, requires_grad=True)
        args = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in run.args]
        loss(end(lambda t, y: field(t, y, *args), y0)).backward()
        return y0.grad, [value.grad for value in args]

    return Prepared(call, lambda raw: Answer(flat(*raw), run.steps))


def flat(y0, args) -> np.ndarray:
    """A gradient as one array."""
    return np.concatenate([np.ravel(y0), *(np.ravel(each) for each in args)])


FORWARD, REVERSE = "forward sweep", "reverse sweep"
OURS, JAX = "stepnet", "jax.jit(grad)"
CONTENDERS = (
    Contender(OURS, "stepnet", stepnet()),
    Contender(FORWARD, "stepnet", sweep(is_reverse=False), None),
    Contender(REVERSE, "stepnet", sweep(is_reverse=True)),
    Contender(JAX, "jax", jax_grad),
    Contender("diffrax", "diffrax", diffrax),
    Contender("torch autograd", "torch", torch_autograd, runs=(LORENZ,)),
    Contender("torchdiffeq", "torchdiffeq", torchdiffeq, "rk38", (LORENZ,)),
)
