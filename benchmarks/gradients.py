"""Rows of gradients: of half the squared end state, through even steps of RK4, for every contender the same numbers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from benchmarks.problems import PLEIADES
from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

WORKLOAD = "gradients"
SECONDS = 1.0
AGREEMENT = 1e-10  # relative difference of gradients; chaos lets rounding grow to some 1e-12 over these runs
SLOTS, MANY_STEPS = 20, 100_000
FEW_AND_MANY = (10_000, 10_000_000)  # steps whose peak memory is compared


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


def loss_and_gradient(y):
    return 0.5 * (y @ y), y


LORENZ = Run(
    "lorenz", lorenz, lambda xp: lambda t, y, *args: xp.stack(lorenz(t, y, *args)), np.ones(3), (10.0, 28.0, 8 / 3),
    t_end=10.0, steps=1000,
)  # fmt: skip
STARS = Run(
    "pleiades", PLEIADES.plain, PLEIADES.arrays, PLEIADES.y0, (), t_end=1.5, steps=1000
)  # later rounding alone moves it by 1e-8
RING = Run(
    "lorenz-96", lorenz_96, lorenz_96_arrays, 8.0 + np.sin(np.arange(1000.0)), (8.0,), t_end=2.0, steps=200
)  # fmt: skip
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


def stepnet(loss, scheme: str = "rk4", memory="all"):
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
        from stepnet.engines.numba_engine.differentiation import Linearised

        linear = Linearised(run.problem, schemes.get("rk4"), run.steps, None, False, False)
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

    solver = _diffrax_rk4()
    told = {"adjoint": dx.RecursiveCheckpointAdjoint(), "max_steps": run.steps + 1, "saveat": dx.SaveAt(t1=True)}

    def end(f, y0):
        term = dx.ODETerm(lambda t, y, args: f(t, y))
        return dx.diffeqsolve(term, solver, 0.0, run.t_end, run.h, y0, **told).ys[-1]

    return _jitted(run, end)


def _diffrax_rk4():
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
    Contender(OURS, "stepnet", stepnet(loss)),
    Contender("stepnet, loss as pair", "stepnet", stepnet(loss_and_gradient)),
    Contender(FORWARD, "stepnet", sweep(is_reverse=False), None),
    Contender(REVERSE, "stepnet", sweep(is_reverse=True)),
    Contender(JAX, "jax", jax_grad),
    Contender("diffrax", "diffrax", diffrax),
    Contender("torch autograd", "torch", torch_autograd, runs=(LORENZ,)),
    Contender("torchdiffeq", "torchdiffeq", torchdiffeq, "rk38", (LORENZ,)),
)

# ---- rows -----------------------------------------------------------------------------------------------------------


class GradientsDiffer(RuntimeError):
    """A contender found another gradient, so its time says nothing."""


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Peers on three problems, the price of checkpoints, and memory."""
    for run in RUNS:
        taking_part = [contender for contender in CONTENDERS if run in contender.runs]
        found = _measured({contender.name: contender.prepare for contender in taking_part}, run)
        for contender in taking_part:
            yield _row(run, contender, found[contender.name])
    yield from checkpoint_rows()
    for steps in FEW_AND_MANY:
        yield memory_row(steps)


def label(run: Run, contender: str) -> str:
    return f"{run.name}, {contender}"


def _measured(prepare: dict[str, Callable[[Run], Prepared]], run: Run) -> dict[str, Measured | Exception]:
    prepared: dict[str, Prepared] = {}
    failed: dict[str, Exception] = {}
    for name, make in prepare.items():
        try:
            prepared[name] = make(run)
        except Exception as exception:
            failed[name] = exception
    return failed | by_turns(prepared, SECONDS)


def _row(run: Run, contender: Contender, found: Measured | Exception) -> Row:
    name = label(run, contender.name)
    try:
        if isinstance(found, Exception):
            raise found
        difference = checked_difference(run, contender, found.answer)
    except Exception as exception:
        return Row(WORKLOAD, name, contender.package, note=first_line(exception))
    return Row(
        WORKLOAD, name, contender.package, time=found.time, error=difference, accepted=run.steps, calls=found.calls
    )


def checked_difference(run: Run, contender: Contender, answer: Answer) -> float | None:
    """Relative distance of a gradient from ours."""
    if contender.scheme is None:
        return None
    wanted = exact(run, contender.scheme)
    difference = float(np.linalg.norm(answer.y - wanted) / np.linalg.norm(wanted))
    if not difference < AGREEMENT:
        raise GradientsDiffer(f"the gradient is off by {difference:.1e}")
    return difference


@cache
def exact(run: Run, scheme: str) -> np.ndarray:
    """What stepnet finds with all states kept."""
    prepared = stepnet(loss_and_gradient, scheme)(run)
    return prepared.read(prepared.call()).y


# ---- checkpoints ----------------------------------------------------------------------------------------------------

CHECKPOINTED = f"lorenz {MANY_STEPS:.0e}, {SLOTS} slots"
PREDICTED = f"{CHECKPOINTED}, predicted"


def checkpoint_rows() -> Iterator[Row]:
    """A long run with few kept states, and the time that its advances predict: the sweeps without any bookkeeping."""
    import stepnet as sn

    run, memory = replace(LORENZ, steps=MANY_STEPS), sn.Checkpoints(SLOTS)
    contenders = (
        Contender(CHECKPOINTED, "stepnet", stepnet(loss_and_gradient, memory=memory)),
        Contender(FORWARD, "stepnet", sweep(is_reverse=False), None),
        Contender(REVERSE, "stepnet", sweep(is_reverse=True)),
    )
    found = _measured({contender.name: contender.prepare for contender in contenders}, run)
    call, forward, reverse = (replace(_row(run, each, found[each.name]), contender=each.name) for each in contenders)
    yield call
    if None in (forward.time, reverse.time):
        return
    cost = sn.gradient(run.problem, "rk4", loss_and_gradient, steps=run.steps, memory=memory).cost
    predicted = forward.time * (cost.advances + run.steps) / run.steps + reverse.time
    yield Row(WORKLOAD, PREDICTED, "stepnet", time=predicted, accepted=run.steps, calls=forward.calls)


MEMORY_SCRIPT = """
import sys
from pathlib import Path
import stepnet as sn

def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]

def loss(y):
    return 0.5 * (y @ y), y

def run(steps):
    problem = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 10.0), (10.0, 28.0, 8 / 3))
    sn.gradient(problem, "rk4", loss, steps=steps, memory=sn.Checkpoints({slots}))

run(100)
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of compiling, and is forgotten
run(int(sys.argv[1]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def memory_row(steps: int) -> Row:
    """The peak memory of a process after a short run; getrusage would tell that of the parent if it is larger."""
    name = memory_label(steps)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.py"
        file.write_text(MEMORY_SCRIPT.format(slots=SLOTS))
        done = subprocess.run([sys.executable, file, str(steps)], capture_output=True, text=True)
    if done.returncode != 0:
        return Row(WORKLOAD, name, "stepnet", note=done.stderr.strip().splitlines()[-1][:100])
    return Row(WORKLOAD, name, "stepnet", memory=1024 * int(done.stdout), accepted=steps, calls=1)


def memory_label(steps: int) -> str:
    return f"lorenz {steps:.0e}, {SLOTS} slots, memory"
