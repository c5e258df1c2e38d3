"""Rows of a neural ODE on tensors: the gradient of its weights beside torchdiffeq's, and the memory it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "neural-ode"
SECONDS = 6.0
BATCH, WIDTH, STEPS = 256, 64, 100
COMPILED_STEPS = 10  # in one graph, which is called again and again; the code of a graph grows with its steps
SEEDS = range(9)  # of weights and states; errors are their median, since those of one seed are luck
MANY_STEPS, FEW_STEPS = 10_000, (250, 500)

STORED, CHECKPOINTED = "stepnet odeint", "stepnet odeint_adjoint, 32 slots"
COMPILED = "stepnet odeint, compiled"
CALLED, CALLED_COMPILED = (
    "stepnet odeint, any function", f"stepnet odeint, any function, compiled {COMPILED_STEPS} steps at a time"
)  # fmt: skip
BACKPROP, ADJOINT = "torchdiffeq odeint", "torchdiffeq odeint_adjoint"


def network(dtype, seed: int = 0, is_called: bool = False):
    """y' = W2 tanh(W1 y + b1) + b2 and an initial state, the same for everybody.

    stepnet recognises the function; it does not if it `is_called` in another way.
    """
    import torch

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 2))

        def forward(self, t, y):
            return self.net(y)

    class Called(Field):
        def forward(self, t, y):
            return self.net.forward(y)

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    field = (Called if is_called else Field)().to(dtype)
    return field, torch.randn(BATCH, 2).to(dtype)


class Gradient:
    """A call that finds the gradient of half the squared end state with respect to all weights."""

    def __init__(self, end: Callable, dtype=None, is_called: bool = False):
        import torch

        self.end, self.dtype = end, dtype or torch.float32
        self.field, self.y0 = network(self.dtype, 0, is_called)

    def __call__(self) -> np.ndarray:
        self.field.zero_grad()
        (0.5 * self.end(self.field, self.y0).square().sum()).backward()
        return np.concatenate([p.grad.numpy().ravel() for p in self.field.parameters()])

    def of(self, seed: int) -> np.ndarray:
        """The gradient for other weights and states, in the same memory."""
        field, y0 = network(self.dtype, seed)
        self.field.load_state_dict(field.state_dict())
        self.y0.copy_(y0)
        return self()


def by(odeint: Callable, **how) -> Callable:
    """The end of a solve by RK4 (torchdiffeq's, the 3/8 rule) in even steps."""
    import torch

    def end(field, y0):
        t = torch.tensor([0.0, 1.0], dtype=y0.dtype)
        return odeint(field, y0, t, method="rk4", options={"step_size": 1.0 / STEPS}, **how)[-1]

    return end


def compiled_end():
    """The same under `torch.compile`, in one graph."""
    import torch

    import stepnet.torch as snt

    whole = torch.compile(lambda field, y, t: snt.odeint(field, y, t, method="rk4")[-1], fullgraph=True)
    return lambda field, y: whole(field, y, torch.linspace(0.0, 1.0, STEPS + 1, dtype=y.dtype))


def compiled_pieces():
    """The same in pieces, all of which run the one compiled graph."""
    import torch

    import stepnet.torch as snt

    piece = torch.compile(lambda field, y, t: snt.odeint(field, y, t, method="rk4")[-1], fullgraph=True)

    def end(field, y):
        nodes = torch.linspace(0.0, 1.0, STEPS + 1, dtype=y.dtype)
        y = y.clone().requires_grad_()  # pieces are alike from the first one on
        for first in range(0, STEPS, COMPILED_STEPS):
            y = piece(field, y, nodes[first : first + COMPILED_STEPS + 1])
        return y

    return end


def contenders() -> dict[str, tuple[str, Callable[[], Gradient]]]:
    """Name to package and what makes its gradient."""

    def ours(name: str) -> Callable:
        import stepnet.torch as snt

        return by(getattr(snt, name))

    def theirs(name: str) -> Callable:
        import torchdiffeq

        return by(getattr(torchdiffeq, name))

    return {
        STORED: ("stepnet", lambda: Gradient(ours("odeint"))),
        CHECKPOINTED: ("stepnet", lambda: Gradient(ours("odeint_adjoint"))),
        COMPILED: ("stepnet", lambda: Gradient(compiled_end())),
        CALLED: ("stepnet", lambda: Gradient(ours("odeint"), is_called=True)),
        CALLED_COMPILED: ("stepnet", lambda: Gradient(compiled_pieces(), is_called=True)),
        BACKPROP: ("torchdiffeq", lambda: Gradient(theirs("odeint"))),
        ADJOINT: ("torchdiffeq", lambda: Gradient(theirs("odeint_adjoint"))),
    }


@cache
def exact() -> list[np.ndarray]:
    """The gradients of the same steps in double precision, by torchdiffeq."""
    import torch
    import torchdiffeq

    gradient = Gradient(by(torchdiffeq.odeint), torch.float64)
    return [gradient.of(seed) for seed in SEEDS]


def error_of(gradient: Gradient) -> float:
    """The median over seeds of the relative difference from double precision."""
    pairs = zip((gradient.of(seed) for seed in SEEDS), exact(), strict=True)
    return float(np.median([np.linalg.norm(found - wanted) / np.linalg.norm(wanted) for found, wanted in pairs]))


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Times and errors of gradients, then memory."""
    prepared, failed, errors = {}, {}, {}
    everybody = contenders()
    for contender, (_, make) in everybody.items():
        try:
            gradient = make()
            errors[contender] = error_of(gradient)
            prepared[contender] = Prepared(gradient, lambda found: Answer(found, STEPS))
        except Exception as exception:  # a failing contender is a line of the table
            failed[contender] = exception
    found = failed | by_turns(prepared, SECONDS)
    for contender, (package, _) in everybody.items():
        yield _row(contender, package, found[contender], errors.get(contender))
    yield from memory_rows()


def _row(contender: str, package: str, found, error: float | None) -> Row:
    if isinstance(found, Exception):
        return Row(WORKLOAD, contender, package, note=first_line(found))
    return Row(WORKLOAD, contender, package, time=found.time, error=error, accepted=STEPS, calls=found.calls)


# ---- memory ---------------------------------------------------------------------------------------------------------

MEMORY_SCRIPT = """
import sys
from pathlib import Path
import torch
from benchmarks.neural_ode import network
from {module} import {function} as solve

def run(steps):
    field, y0 = network(torch.float32)
    t = torch.tensor([0.0, 1.0])
    solve(field, y0, t, method="rk4", options=dict(step_size=1.0 / steps))[-1].square().sum().backward()

def number(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

run(5)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = number("VmRSS")
run(int(sys.argv[1]))
print(number("VmHWM") - before)
"""


def memory_label(name: str, steps: int) -> str:
    return f"{name}, {steps} steps, memory"


EXTRAPOLATED = f"{BACKPROP}, {MANY_STEPS} steps, memory, extrapolated"


def memory_rows() -> Iterator[Row]:
    """What a gradient adds to the memory of a process; torchdiffeq's, which keeps every step, by a straight line."""
    yield _memory_row(CHECKPOINTED, "stepnet", "stepnet.torch", "odeint_adjoint", MANY_STEPS)
    few, more = (_memory_row(BACKPROP, "torchdiffeq", "torchdiffeq", "odeint", steps) for steps in FEW_STEPS)
    yield few
    yield more
    if None not in (few.memory, more.memory):
        slope = (more.memory - few.memory) / (FEW_STEPS[1] - FEW_STEPS[0])
        memory = more.memory + slope * (MANY_STEPS - FEW_STEPS[1])
        yield Row(WORKLOAD, EXTRAPOLATED, "torchdiffeq", memory=memory, accepted=MANY_STEPS, calls=1)


def _memory_row(name: str, package: str, module: str, function: str, steps: int) -> Row:
    label = memory_label(name, steps)
    command = [sys.executable, "-c", MEMORY_SCRIPT.format(module=module, function=function), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if done.returncode != 0:
        return Row(WORKLOAD, label, package, note=done.stderr.strip().splitlines()[-1][:100])
    return Row(WORKLOAD, label, package, memory=1024 * int(done.stdout), accepted=steps, calls=1)
