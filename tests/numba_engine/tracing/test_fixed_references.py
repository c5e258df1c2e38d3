"""The key of a function is cached only as long as its references name the same immutable values."""

from __future__ import annotations

import builtins
import math
from types import ModuleType

import numpy as np
import pytest

import stepnet as sn
from stepnet.engines.numba_engine.tracing import fixed_references
from stepnet.engines.numba_engine.tracing.fixed_references import recall
from stepnet.engines.numba_engine.tracing.function_key import reach

SOURCE = """
import numpy as np
factor = 2.0
def double(x): return 2.0 * x
def of_global(t, y): return [-factor * y[0]]
def of_library(t, y): return np.sin(y)
def of_helper(t, y): return [-double(y[0])]
def of_default(t, y, k=2.0): return [-k * y[0]]
def of_builtin(t, y): return [-abs(y[0])]
def of_module(t, y): return [-settings.rate * y[0]]
def of_tuple(t, y): return [-pair[1] * y[0]]
def outer():
    rate = 2.0
    def of_cell(t, y): return [-rate * y[0]]
    def change(value):
        nonlocal rate
        rate = value
    return of_cell, change
pair = (1.0, 2.0)
"""


def load() -> dict:
    """A fresh namespace with the functions above."""
    namespace = {"__name__": "users_module", "settings": ModuleType("users_settings")}
    namespace["settings"].rate = 2.0
    exec(SOURCE, namespace)
    namespace["of_cell"], namespace["change"] = namespace["outer"]()
    return namespace


def triple(x):
    return 3.0 * x


CHANGES = {
    "of_global": lambda space, patch: space.update(factor=3.0),
    "of_library": lambda space, patch: patch.setattr(np, "sin", np.cos),
    "of_helper": lambda space, patch: setattr(space["double"], "__code__", triple.__code__),
    "of_default": lambda space, patch: setattr(space["of_default"], "__defaults__", (3.0,)),
    "of_builtin": lambda space, patch: patch.setattr(builtins, "abs", math.fabs),
    "of_module": lambda space, patch: setattr(space["settings"], "rate", 3.0),
    "of_tuple": lambda space, patch: space.update(pair=(1.0, 3.0)),
    "of_cell": lambda space, patch: space["change"](3.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_remembered_reach_is_that_of_a_new_walk_and_ends_with_the_first_change(name, monkeypatch):
    namespace = load()
    function = namespace[name]
    first = reach(function)
    assert recall(function) is first
    assert reach(function) is first
    CHANGES[name](namespace, monkeypatch)
    assert recall(function) is None
    changed = reach(function)
    assert (changed.key, changed.opaque) != (first.key, first.opaque)


def test_names_that_begin_to_hide_builtins_end_it():
    namespace = load()
    function = namespace["of_builtin"]
    first = reach(function)
    namespace["abs"] = triple
    assert recall(function) is None
    assert reach(function).key != first.key


MUTABLE = [[2.0], {"k": 2.0}, np.array([2.0]), {2.0}, (1.0, [2.0]), ModuleType("other"), type("Other", (), {"k": 2.0})]


@pytest.mark.parametrize("value", MUTABLE, ids=lambda value: type(value).__name__)
def test_values_that_change_in_place_are_walked_every_time(value):
    namespace: dict = {"value": value}
    exec("def f(t, y): return [-y[0] * len(repr(value))]", namespace)
    reach(namespace["f"])
    assert recall(namespace["f"]) is None


def test_attributes_and_keyword_defaults_of_functions_are_walked_every_time():
    def f(t, y, *, k=2.0):
        return [-k * y[0]]

    def g(t, y):
        return [-g.k * y[0]]

    g.k = 2.0
    for function in (f, g):
        reach(function)
        assert recall(function) is None


def test_a_deleted_variable_of_an_enclosing_function_ends_it():
    rate = 2.0

    def f(t, y):
        return [-rate * y[0]]  # noqa: F821  deleted below

    reach(f)
    assert recall(f) is not None
    del rate
    assert recall(f) is None


def test_solves_see_every_change_of_a_variable():
    namespace = load()
    problem = sn.ODE(namespace["of_global"], [1.0], (0.0, 1.0))
    for factor in (2.0, 3.0, 2.0, 0.5):
        namespace["factor"] = factor
        for _ in range(2):  # built, then remembered
            solution = sn.solve(problem, "rk4", steps=100)
            assert solution.statistics.rung == "traced"
            assert solution.y[-1, 0] == pytest.approx(math.exp(-factor), rel=1e-7)  # error of rk4 at h = 0.01


def test_the_memory_is_bounded():
    for i in range(2 * fixed_references.MOST_KEPT):
        namespace: dict = {"factor": float(i)}
        exec("def f(t, y): return [-factor * y[0]]", namespace)
        reach(namespace["f"])
    assert len(fixed_references._known) <= fixed_references.MOST_KEPT
