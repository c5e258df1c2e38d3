"""Machine code of right-hand sides that are forgotten is freed: memory does not grow with their number."""

from __future__ import annotations

import pytest
from numba_engine.runs import child

# What LLVM and Numba keep of every function: 2, 45 and 70 measured over many, more over the first few.
# Machine code that is not freed is 134, 630 and 1250.
KILOBYTES_EACH = {"traced": 15.0, "compiled": 250.0, "differentiated": 500.0}
FEW, MANY = 400, {"traced": 10_000, "compiled": 1000, "differentiated": 40}

PROGRAM = """
import gc
import numpy as np
import stepnet as sn
from stepnet.engines.numba_engine.rhs import ladder
from stepnet.engines.numba_engine.derivatives import jacobian_products

ladder._MOST_KEPT = jacobian_products._MOST_KEPT = min(256, {count} // 10)


def traced(c):
    return lambda t, y: [y[1] - c * y[0], c * np.sin(y[0])]


def compiled(c):
    def slopes(t, y):
        if y[0] > c:
            return np.array([y[1], 0.0])
        return np.array([-c * y[0], y[1]])

    return slopes


def solve(problem, wanted):
    found = sn.solve(problem, "rk4", steps=2)
    assert found.statistics.rung == wanted, found.statistics.rung_reason


def differentiate(problem, wanted):
    jacobian = sn.derivatives.jacobian(problem)
    assert jacobian.rung == "dual"
    slope = problem.fun(0.0, [1.0, 0.0])[0]
    assert np.allclose(jacobian.dense(0.0, [-1.0, 0.5]), [[slope, 0.0], [0.0, 1.0]])


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return 4.096 * int(file.read().split()[1])


make, use = traced if "{kind}" == "traced" else compiled, differentiate if "{kind}" == "differentiated" else solve
warm = {count} // 5
for i in range({count}):
    if i == warm:
        before = resident()
    use(sn.ODE(make(2.0 + i), [1.0, 0.5], (0.0, 0.01)), "{kind}")
print((resident() - before) / ({count} - warm))
"""


def growth(kind: str, count: int) -> float:
    """Kilobytes of memory by which a process grows for every further right-hand side."""
    found = float(child.succeed(PROGRAM.format(kind=kind, count=count), STEPNET_RUNG="traced"))
    print(f"{count} functions, {kind}: {found:.1f} kB each")
    return found


def test_memory_does_not_grow_with_forgotten_functions():
    assert growth("traced", FEW) < KILOBYTES_EACH["traced"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
def test_memory_does_not_grow_with_many_forgotten_functions(kind):
    assert growth(kind, MANY[kind]) < KILOBYTES_EACH[kind] / (2 if MANY[kind] >= 1000 else 1)
