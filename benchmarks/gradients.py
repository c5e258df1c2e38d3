"""Rows of gradients: peers on three problems, the price of checkpoints, and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.gradient_contenders import (
    CONTENDERS,
    FORWARD,
    LORENZ,
    REVERSE,
    RUNS,
    Contender,
    Run,
    loss,
    stepnet,
    sweep,
)
from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

WORKLOAD = "gradients"
SECONDS = 1.0
AGREEMENT = 1e-10  # relative difference of gradients; chaos lets rounding grow to some 1e-12 over these runs
SLOTS, MANY_STEPS = 20, 1_000_000
FEW_AND_MANY = {"given": (10_000, 10_000_000), "adaptive": (10_000, 1_000_000)}  # steps whose peaks are compared


class GradientsDiffer(RuntimeError):
    """A contender found another gradient, so its time says nothing."""


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Peers on three problems, the price of checkpoints, and memory."""
    for run in RUNS:
        taking_part = [contender for contender in CONTENDERS if run in contender.runs]
        found = measured(taking_part, run)
        for contender in taking_part:
            yield _row(run, contender, found[contender.name])
    yield from checkpoint_rows()
    for kind, numbers in FEW_AND_MANY.items():
        for steps in numbers:
            yield memory_row(kind, steps)


def measured(contenders: Iterable, run) -> dict[str, Measured | Exception]:
    """Every contender on a run, by turns."""
    prepared: dict[str, Prepared] = {}
    failed: dict[str, Exception] = {}
    for contender in contenders:
        try:
            prepared[contender.name] = contender.prepare(run)
        except Exception as exception:
            failed[contender.name] = exception
    return failed | by_turns(prepared, SECONDS)


def _row(run: Run, contender: Contender, found: Measured | Exception) -> Row:
    name = f"{run.name}, {contender.name}"
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
    prepared = stepnet(scheme)(run)
    return prepared.read(prepared.call()).y


# ---- checkpoints ----------------------------------------------------------------------------------------------------

CHECKPOINTED = f"lorenz {MANY_STEPS:.0e}, {SLOTS} slots"
PREDICTED = f"{CHECKPOINTED}, predicted"


def checkpoint_rows() -> Iterator[Row]:
    """A long run with few kept states, and the time that its advances predict: the sweeps without any bookkeeping."""
    import stepnet as sn

    run, memory = replace(LORENZ, steps=MANY_STEPS), sn.Checkpoints(SLOTS)
    contenders = (
        Contender(CHECKPOINTED, "stepnet", stepnet(memory=memory)),
        Contender(FORWARD, "stepnet", sweep(is_reverse=False), None),
        Contender(REVERSE, "stepnet", sweep(is_reverse=True)),
    )
    found = measured(contenders, run)
    call, forward, reverse = (replace(_row(run, each, found[each.name]), contender=each.name) for each in contenders)
    yield call
    if None in (forward.time, reverse.time):
        return
    cost = sn.gradient(run.problem, "rk4", loss, steps=run.steps, memory=memory).cost
    predicted = forward.time * (cost.advances + run.steps) / run.steps + reverse.time
    yield Row(WORKLOAD, PREDICTED, "stepnet", time=predicted, accepted=run.steps, calls=forward.calls)


MEMORY_SCRIPT = """
import sys
from pathlib import Path
import stepnet as sn

def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]

def loss(y):
    return 0.5 * (y @ y)

def given(steps):
    return sn.gradient(problem, "rk4", loss, steps=steps, memory=memory)

def adaptive(steps):
    return sn.gradient(problem, "dopri5", loss, max_step=10.0 / steps, memory=memory)

problem, memory = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 10.0), (10.0, 28.0, 8 / 3)), sn.Checkpoints({slots})
run, steps = {{"given": given, "adaptive": adaptive}}[sys.argv[1]], int(sys.argv[2])
run(100)
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of compiling, and is forgotten
assert steps <= run(steps).cost.steps <= 1.1 * steps
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def memory_row(kind: str, steps: int) -> Row:
    """The peak memory of a process after a short run; getrusage would tell that of the parent if it is larger."""
    name = memory_label(kind, steps)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.py"
        file.write_text(MEMORY_SCRIPT.format(slots=SLOTS))
        done = subprocess.run([sys.executable, file, kind, str(steps)], capture_output=True, text=True)
    if done.returncode != 0:
        return Row(WORKLOAD, name, "stepnet", note=done.stderr.strip().splitlines()[-1][:100])
    return Row(WORKLOAD, name, "stepnet", memory=1024 * int(done.stdout), accepted=steps, calls=1)


def memory_label(kind: str, steps: int) -> str:
    return f"lorenz {steps:.0e} {kind} steps, {SLOTS} slots, memory"
