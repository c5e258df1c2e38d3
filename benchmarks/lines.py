"""Rows of long systems: lines written with NumPy, traced to loops, beside loops written by hand for Numba.

Right-hand sides are text, since the first solution of a new one is measured in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.cold_start import seconds_to_solution
from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "lines"
TRACED, BY_HAND, FIRST = "traced", "by hand", "first solution in a new process"
SECONDS, STEPS, STARTS = 3.0, 200, 3
AGREEMENT = 1e-10  # between both: rounding errors of stable runs do not grow

HEAT = """
import numpy as np
y0, T_END = np.sin(np.arange(10_000) * 0.01), 1e-7

def fun(t, u):
    dx = 1 / (u.size + 1)
    du = np.zeros_like(u)
    du[1:-1] = (u[2:] - 2 * u[1:-1] + u[:-2]) / dx**2
    du[0], du[-1] = (u[1] - 2 * u[0]) / dx**2, (u[-2] - 2 * u[-1]) / dx**2
    return du
"""
HEAT_BY_HAND = """
def by_hand(t, u, du, p, n):
    area = (1 / (n + 1)) ** 2
    du[0], du[n - 1] = (u[1] - 2 * u[0]) / area, (u[n - 2] - 2 * u[n - 1]) / area
    for i in range(1, n - 1):
        du[i] = (u[i + 1] - 2 * u[i] + u[i - 1]) / area
    return 0
"""
GRAY_SCOTT = """
import numpy as np
y0, T_END = 0.5 + 0.1 * np.sin(np.arange(2 * 128 * 128.0)).reshape(2, 128, 128), 10.0

def laplacian(w):
    return np.roll(w, 1, 0) + np.roll(w, -1, 0) + np.roll(w, 1, 1) + np.roll(w, -1, 1) - 4 * w

def fun(t, y):
    u, v = y
    uvv = u * v * v
    return np.stack([0.16 * laplacian(u) - uvv + 0.06 * (1 - u), 0.08 * laplacian(v) + uvv - 0.122 * v])
"""
GRAY_SCOTT_BY_HAND = """
def by_hand(t, flat, out, p, n):
    y, dy = carray(flat, (2, 128, 128)), carray(out, (2, 128, 128))
    for i in range(128):
        above, below = i - 1 if i > 0 else 127, i + 1 if i < 127 else 0
        for j in range(128):
            left, right = j - 1 if j > 0 else 127, j + 1 if j < 127 else 0
            u, v = y[0, i, j], y[1, i, j]
            uvv = u * v * v
            around_u = y[0, above, j] + y[0, below, j] + y[0, i, left] + y[0, i, right]
            around_v = y[1, above, j] + y[1, below, j] + y[1, i, left] + y[1, i, right]
            dy[0, i, j] = 0.16 * (around_u - 4 * u) - uvv + 0.06 * (1 - u)
            dy[1, i, j] = 0.08 * (around_v - 4 * v) + uvv - 0.122 * v
    return 0
"""
SOLVE = """
import stepnet as sn
solution = sn.solve(sn.ODE(fun, y0, (0.0, T_END)), "rk4", steps=20, save_every=0)
assert solution.statistics.rung == "traced"
"""


class Lines(NamedTuple):
    """A right-hand side with NumPy, and the same loop by loop."""

    name: str
    text: str
    by_hand: str


PROBLEMS = (
    Lines("heat, 10^4", HEAT, HEAT_BY_HAND),
    Lines("Gray-Scott, 128 x 128", GRAY_SCOTT, GRAY_SCOTT_BY_HAND),
)


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Time inside the kernel for both, and the time to the first solution."""
    for lines in PROBLEMS:
        found = by_turns(_contenders(lines), SECONDS)
        errors = [measured for measured in found.values() if isinstance(measured, Exception)]
        if errors:
            raise errors[0]
        ours, theirs = (measured.answer.y for measured in found.values())
        if not np.max(np.abs(ours - theirs)) <= AGREEMENT:
            raise ArithmeticError(f"{lines.name}: the loops and those by hand differ")
        for way, measured in found.items():
            package = "stepnet" if way == TRACED else "numba"
            yield Row(WORKLOAD, f"{lines.name}, {way}", package, time=measured.kernel_time, calls=measured.calls)
        yield _first_solution(lines)


def _contenders(lines: Lines) -> dict[str, Prepared]:
    from numba import carray, cfunc, types

    namespace: dict = {"carray": carray}
    exec(lines.text + lines.by_hand, namespace)
    numbers = types.CPointer(types.float64)
    signature = types.int32(types.float64, numbers, numbers, numbers, types.int64)
    by_hand = cfunc(signature, error_model="numpy", fastmath={"contract"})(namespace["by_hand"])
    functions = {TRACED: namespace["fun"], BY_HAND: by_hand}
    return {way: _prepared(fun, namespace["y0"], namespace["T_END"]) for way, fun in functions.items()}


def _prepared(fun, y0, t_end: float) -> Prepared:
    import stepnet as sn

    problem = sn.ODE(fun, y0, (0.0, t_end))

    def call():
        return sn.solve(problem, "rk4", steps=STEPS, save_every=0)

    call()
    return Prepared(call, lambda s: Answer(s.y[-1], STEPS, kernel_time=s.statistics.run_time))


def _first_solution(lines: Lines) -> Row:
    label = f"{lines.name}, {FIRST}"
    try:
        elapsed = min(seconds_to_solution(lines.text + SOLVE) for _ in range(STARTS))
    except Exception as exception:
        return Row(WORKLOAD, label, "stepnet", note=first_line(exception))
    return Row(WORKLOAD, label, "stepnet", time=elapsed, calls=STARTS)
