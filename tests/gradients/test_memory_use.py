"""Memory grows with the number of slots, not with the number of steps."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

MOST = 2 * 1024  # kilobytes
PATIENCE = 500.0
PROGRAM = """
    import sys
    import numpy as np
    import stepnet as sn

    def lorenz(t, y, s, r, b):
        return [s * (y[1] - y[0]), y[0] * (r - y[2]) - y[1], y[0] * y[1] - b * y[2]]

    def loss(y):
        return np.sum(y * y)

    def late(ys):
        return np.sum(ys * ys)

    problem = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.0, 1.0), (10.0, 28.0, 8 / 3))
    memory = sn.Checkpoints(20)

    def given(steps):
        sn.gradient(problem, "rk4", loss, steps=steps, memory=memory)
        sn.gradient(problem, "rk4", late, steps=steps, save_at=[0.0, 0.5, 1.0], memory=memory)

    def adaptive(steps):
        how = {"rtol": 1e-3, "max_step": 1 / steps, "max_steps": 2 * steps, "memory": memory}
        sn.gradient(problem, "bosh3", loss, **how)
        found = sn.gradient(problem, "bosh3", late, save_at=[0.0, 0.5, 1.0], **how)
        assert found.cost.steps >= steps

    run = {"given": given, "adaptive": adaptive}[sys.argv[2]]

    def peak():
        return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

    run(200_000)
    before = peak()
    run(int(sys.argv[1]))
    print(before, peak())
"""


def growth(steps: int, kind: str = "given") -> int:
    """Kilobytes by which a longer run raises the peak of a process that has warmed up."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(steps), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    before, after = map(int, done.stdout.split())
    print(f"{steps} steps: {after - before} kB more than 200000")
    return after - before


@pytest.mark.parametrize("steps", [10**6, pytest.param(10**7, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_steps(steps):
    assert growth(steps) - growth(10**4) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10**6, 5 * 10**6])
def test_of_adaptive_runs_only_the_times_of_steps_are_kept(steps):
    """Eight bytes a step, twice that while their array grows; with all states it would be four times as many."""
    times = 16 * steps / 1024
    assert growth(steps, "adaptive") - growth(10**4, "adaptive") <= MOST + times
