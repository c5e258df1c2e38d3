"""Code that is generated for several functions together is freed with any of them."""

from __future__ import annotations

import gc
from collections import OrderedDict

import pytest

import stepnet as sn
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.rhs import ladder


def decay(c: float):
    return lambda t, y: -c * y


def spread(t, y):
    return 0.1 * y


PARTS = {
    "drifts": lambda f: sn.solve(sn.SDE(f, spread, [1.0], (0.0, 1.0)), "euler_maruyama", steps=2),
    "diffusions": lambda f: sn.solve(sn.SDE(spread, f, [1.0], (0.0, 1.0)), "milstein", steps=2),
    "other calculus": lambda f: sn.solve(
        sn.SDE(f, spread, [1.0], (0.0, 1.0)).convert("stratonovich"), "stochastic_heun", steps=2
    ),
    "parts": lambda f: sn.solve(sn.Split((f, spread), [1.0], (0.0, 1.0)), "strang", steps=2),
    "twice the same part": lambda f: sn.gradient(
        sn.Split((f, f), [1.0], (0.0, 1.0)), "strang", lambda y: y @ y, steps=2
    ),
    "implicit steps": lambda f: sn.gradient(sn.ODE(f, [1.0], (0.0, 1.0)), "rodas4", lambda y: y @ y, steps=2),
}
KEPT, ROUNDS = 4, 24  # functions that the ladder remembers, and that are solved for after as many others
MOST_MORE = 8  # machine codes: far below one for each function


@pytest.mark.parametrize("kind", PARTS)
def test_steps_generated_for_several_functions_are_freed_with_any_of_them(kind, monkeypatch):
    monkeypatch.setattr(ladder, "_MOST_KEPT", KEPT)
    for memory in (
        "_kept",
        "_seen",
    ):  # without the functions of other tests, of which one is forgotten for each new one
        monkeypatch.setattr(ladder, memory, OrderedDict())

    def run(first: int) -> int:
        for i in range(first, first + ROUNDS):
            PARTS[kind](decay(1.0 + i / 64))
        gc.collect()
        return sum(type(each) is MachineCode for each in gc.get_objects())

    before = run(0)
    assert run(ROUNDS) <= before + MOST_MORE
