"""Rows of the time from starting Python to the first solution: Lorenz to T = 1, files and compiled kernels on disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import Row, first_line

WORKLOAD = "cold-start"
ROUNDS = 5

LORENZ = """
def lorenz(t, y):
    return [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]
"""

STEPNET = """
import stepnet as sn
sn.solve(sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 1.0)), "dopri5", rtol=1e-8, atol=1e-8, save_every=0)
"""
FIRST_COMPILATION = """
from numba import njit, types
njit(lambda x: x).compile((types.float64,))
"""
COMPILED = """
import stepnet as sn
def regulated(t, y):
    heating = 28.0 if y[2] < 25.0 else 27.0  # a branch on data: Numba compiles it
    return [10.0 * (y[1] - y[0]), y[0] * (heating - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]
solution = sn.solve(sn.ODE(regulated, [1.0, 1.0, 1.0], (0.0, 1.0)), "dopri5", rtol=1e-8, atol=1e-8, save_every=0)
assert solution.statistics.rung == "compiled"
"""
SCIPY = """
from scipy.integrate import solve_ivp
solve_ivp(lorenz, (0.0, 1.0), [1.0, 1.0, 1.0], rtol=1e-8, atol=1e-8)
"""
DIFFRAX = """
import jax, jax.numpy as jnp, diffrax as dx
jax.config.update("jax_enable_x64", True)
term = dx.ODETerm(lambda t, y, args: jnp.stack(lorenz(t, y)))
dx.diffeqsolve(term, dx.Tsit5(), 0.0, 1.0, None, jnp.ones(3), saveat=dx.SaveAt(t1=True),
               stepsize_controller=dx.PIDController(rtol=1e-8, atol=1e-8)).ys.block_until_ready()
"""
PYDIFFSOL = """
import numpy as np, pydiffsol as ds
ode = ds.Ode("u_i { x = 1.0, y = 1.0, z = 1.0 } F_i { 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z }",
             matrix_type=ds.nalgebra_dense, ode_solver=ds.tsit45)
ode.rtol = ode.atol = 1e-8
ode.solve_dense(np.array([]), np.array([1.0]))
"""
TORCHDIFFEQ = """
import torch
from torchdiffeq import odeint
y0, times = torch.ones(3, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
odeint(lambda t, y: torch.stack(lorenz(t, y)), y0, times, rtol=1e-8, atol=1e-8, method="dopri5")
"""

SCRIPTS = {
    "Python and NumPy alone": ("numpy", "import numpy\n"),
    "import numba alone": ("numpy", "import numba\n"),
    "Numba's first compilation, of x -> x": ("numpy", FIRST_COMPILATION),
    "stepnet dopri5": ("stepnet", STEPNET),
    "stepnet dopri5, compiled by Numba": ("stepnet", COMPILED),
    "SciPy RK45": ("scipy", SCIPY),
    "diffrax Tsit5": ("diffrax", DIFFRAX),
    "pydiffsol tsit45": ("pydiffsol", PYDIFFSOL),
    "torchdiffeq dopri5": ("torchdiffeq", TORCHDIFFEQ),
}


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Measure every package by turns, after one start that warms the disk."""
    best: dict[str, float] = {}
    failed: dict[str, Exception] = {}
    for turn in range(ROUNDS + 1):
        for contender, (_, script) in SCRIPTS.items():
            if contender in failed:
                continue
            try:
                elapsed = seconds_to_solution(script)
            except Exception as exception:
                failed[contender] = exception
                continue
            if turn > 0:
                best[contender] = min(best.get(contender, elapsed), elapsed)
    for contender, (package, _) in SCRIPTS.items():
        note = first_line(failed[contender]) if contender in failed else ""
        yield Row(WORKLOAD, contender, package, time=best.get(contender), calls=ROUNDS, note=note)


def seconds_to_solution(script: str) -> float:
    """From the start of the process to the line that it prints when it has solved; without waiting, as in timing.py."""
    used = _children_time()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "first_solution.py"
        file.write_text(f"{LORENZ}\n{script}\nprint('solved', flush=True)\n")
        started = time.perf_counter()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, file], env=_environment(), **pipes) as run:
            line = run.stdout.readline()
            elapsed = time.perf_counter() - started
            _, errors = run.communicate()
    if line.strip() != "solved":
        is_missing = "ModuleNotFoundError" in errors
        raise ImportError(errors) if is_missing else RuntimeError(errors.strip().splitlines()[-1])
    return min(elapsed, _children_time() - used)


def _environment() -> dict[str, str]:
    """Ours, but with bytecode kept on disk: a package installed from its sources has it as the installed peers do."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_time() -> float:
    """Processor time of all processes started and ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
