"""Rows of nets: gradients of deep residual and Verlet nets, a neural ODE, and memory against depth."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.gradients import GradientsDiffer, measured
from benchmarks.layer_contenders import CASES, CONTENDERS, OURS, SINGLE, Case, Contender, stepnet
from benchmarks.neural_ode_layers import neural_ode_rows
from benchmarks.timing import Measured, Row, first_line

WORKLOAD = "layers"
AGREEMENT = {"float64": 1e-10, "float32": 1e-4}  # relative difference of gradients
DEPTHS = (100, 1000, 10_000)  # layers whose peak memory is compared


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Deep nets against their peers, a neural ODE, memory."""
    for case in (*CASES, *SINGLE):
        yield from case_rows(case)
    yield from neural_ode_rows(WORKLOAD)
    for steps in DEPTHS:
        yield memory_row(memory_label(steps), NET_SCRIPT, steps)
    yield memory_row(ODE_MEMORY, ODE_SCRIPT, DEPTHS[-1])


def case_rows(case: Case) -> Iterator[Row]:
    taking_part = [c for c in CONTENDERS if case.dynamics in c.dynamics and (c.name != "C" or case.dtype == "float64")]
    found = measured(taking_part, case)
    for contender in taking_part:
        yield _row(case, contender, found[contender.name])


def _row(case: Case, contender: Contender, found: Measured | Exception) -> Row:
    name = f"{case.name}, {contender.name}"
    try:
        if isinstance(found, Exception):
            raise found
        difference = float(np.linalg.norm(found.answer.y - exact(case)) / np.linalg.norm(exact(case)))
        if not difference < AGREEMENT[case.dtype]:
            raise GradientsDiffer(f"the gradient is off by {difference:.1e}")
    except Exception as exception:
        return Row(WORKLOAD, name, contender.package, note=first_line(exception))
    return Row(
        WORKLOAD, name, contender.package, time=found.time, error=difference, accepted=case.steps, calls=found.calls
    )


@cache
def exact(case: Case) -> np.ndarray:
    """What stepnet finds with all states kept."""
    prepared = stepnet("all")(case)
    return prepared.read(prepared.call()).y


# ---- memory ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import stepnet as sn

{net}

def run(steps):
    net = make(steps)
    x = np.random.default_rng(0).normal(size=(256, net.design.n_in))
    before = memory("VmRSS")
    net.gradient(x, lambda y: (0.0, y), memory={memory})
    return before, net.theta.nbytes

def memory(kind):
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(kind)))

run(40)
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of compiling, and is forgotten
before, weights = run(int(sys.argv[1]))
print(memory("VmHWM") - before - weights)  # the gradient of the weights is an output, as long as they are
"""
NET_SCRIPT = SCRIPT.format(
    net="make = lambda steps: sn.nets.hamiltonian("
    "None, None, 16, steps, length=0.005 * steps, scheme='verlet', degree=0, workers=1)",
    memory='"reversible"',
)
ODE_SCRIPT = SCRIPT.format(
    net="make = lambda steps: sn.nets.neural_ode(2, None, (64,), steps, workers=1)", memory="sn.Checkpoints(20)"
)
ODE_MEMORY = f"neural ODE {DEPTHS[-1]} steps, 20 slots, memory"


def memory_label(steps: int) -> str:
    return f"verlet 16, {steps} layers, {OURS} reversible, memory"


def memory_row(name: str, script: str, steps: int) -> Row:
    """What a gradient takes beyond weights, their gradient and what a process has anyway."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.py"
        file.write_text(script)
        done = subprocess.run([sys.executable, file, str(steps)], capture_output=True, text=True)
    if done.returncode != 0:
        return Row(WORKLOAD, name, "stepnet", note=done.stderr.strip().splitlines()[-1][:100])
    return Row(WORKLOAD, name, "stepnet", memory=int(done.stdout), accepted=steps, calls=1)
