"""Numba freezes what a function refers to; any change of it between two solves must be detected nevertheless.

Every right-hand side here is 0 at the beginning (t = 0) whatever it refers to, so that one look at the first slope
cannot tell old code from new.
"""

from __future__ import annotations

import types
from collections import namedtuple

import numpy as np
import pytest
from numba import njit

import stepnet as sn
from stepnet.engines.numba_engine.codegen import numba_compilation

EXACT = 1e-12  # y' = k t is integrated exactly by rk4


def slope_found(function, args=()) -> float:
    """k of y' = k t."""
    solution = sn.solve(sn.ODE(function, [0.0], (0.0, 1.0), args), "rk4", steps=4, save_every=0)
    return 2 * float(solution.y[-1, 0])


number, flag, text = 1.0, True, "one"
table = np.array([0.0, 1.0])
pair = (1.0, (2.0, 3.0))
Constants = namedtuple("Constants", "k")
constants = Constants(1.0)
module = types.ModuleType("constants")


@njit
def helper(t):
    return number * t


@njit
def outer_helper(t):
    return helper(t)


def uses_number(t, y):
    return [number * t]


def uses_flag(t, y):
    return [t if flag else 2.0 * t]


def uses_array(t, y):
    return [table[1] * t]


def uses_tuple(t, y):
    return [pair[1][0] / 2.0 * t]


def uses_namedtuple(t, y):
    return [constants.k * t]


def uses_module_number(t, y):
    return [module.k * t]


def uses_module_array(t, y):
    return [module.table[1] * t]


def uses_module_function(t, y):
    return [module.helper(t)]


def uses_helper(t, y):
    return [helper(t)]


def plain_helper(t):
    return number * t


def uses_plain_helper(t, y):
    return [plain_helper(t)]


def uses_helper_of_helper(t, y):
    return [outer_helper(t)]


@njit
def jitted(t, y):  # other bytecode than `uses_number`, whose compiled form would serve
    return [t * number]


def set_global(name, value):
    return lambda: globals().__setitem__(name, value)


def set_module(name, value):
    return lambda: setattr(module, name, value)


CHANGES = {
    "global number": (uses_number, set_global("number", 2.0)),
    "global flag": (uses_flag, set_global("flag", False)),
    "global array replaced": (uses_array, set_global("table", np.array([0.0, 2.0]))),
    "global array edited": (uses_array, lambda: table.__setitem__(1, 2.0)),
    "global tuple": (uses_tuple, set_global("pair", (1.0, (4.0, 3.0)))),
    "global named tuple": (uses_namedtuple, set_global("constants", Constants(2.0))),
    "module number": (uses_module_number, set_module("k", 2.0)),
    "module array replaced": (uses_module_array, set_module("table", np.array([0.0, 2.0]))),
    "module array edited": (uses_module_array, lambda: module.table.__setitem__(1, 2.0)),
    "module function replaced": (uses_module_function, set_module("helper", njit(lambda t: 2.0 * t))),
    "global of a helper": (uses_helper, set_global("number", 2.0)),
    "global of a helper's helper": (uses_helper_of_helper, set_global("number", 2.0)),
    "global of a plain helper": (uses_plain_helper, set_global("number", 2.0)),
    "helper replaced": (uses_helper, set_global("helper", njit(lambda t: 2.0 * t))),
    "global of a jitted right-hand side": (jitted, set_global("number", 2.0)),
}


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Everything as it was at the beginning of the file, whatever a test changes."""
    for name in ("number", "flag", "pair", "constants", "helper"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setitem(globals(), "table", np.array([0.0, 1.0]))
    module.k, module.table, module.helper = 1.0, np.array([0.0, 1.0]), njit(lambda t: 1.0 * t)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_by_the_next_solve(what):
    function, change = CHANGES[what]
    assert slope_found(function) == pytest.approx(1.0, abs=EXACT)
    change()
    assert slope_found(function) == pytest.approx(2.0, abs=EXACT)


def test_a_changed_closure_variable_is_seen():
    k = 1.0

    def rhs(t, y):
        return [k * t]

    assert slope_found(rhs) == pytest.approx(1.0, abs=EXACT)
    k = 2.0
    assert slope_found(rhs) == pytest.approx(2.0, abs=EXACT)


def test_an_edited_array_of_a_closure_is_seen():
    k = np.array([0.0, 1.0])

    def rhs(t, y):
        return [k[1] * t]

    assert slope_found(rhs) == pytest.approx(1.0, abs=EXACT)
    k[1] = 2.0
    assert slope_found(rhs) == pytest.approx(2.0, abs=EXACT)


def test_closures_of_one_factory_are_told_apart():
    def make(k):
        return lambda t, y: [k * t]

    assert [slope_found(make(k)) for k in (1.0, 2.0, 1.0)] == pytest.approx([1.0, 2.0, 1.0], abs=EXACT)


def test_a_changed_default_is_seen():
    def rhs(t, y, k=1.0):
        return [k * t]

    assert slope_found(rhs) == pytest.approx(1.0, abs=EXACT)
    rhs.__defaults__ = (2.0,)
    assert slope_found(rhs) == pytest.approx(2.0, abs=EXACT)


def test_a_changed_keyword_default_is_seen():
    def rhs(t, y, *, k=1.0):
        return [k * t]

    assert slope_found(rhs) == pytest.approx(1.0, abs=EXACT)
    rhs.__kwdefaults__ = {"k": 2.0}
    assert slope_found(rhs) == pytest.approx(2.0, abs=EXACT)


def test_functions_of_one_name_are_told_apart():
    """As in a notebook, where a cell is run again after an edit."""
    found = []
    for body in ("1.0 * t", "2.0 * t"):
        namespace = {}
        exec(f"def rhs(t, y):\n    return [{body}]", namespace)
        found.append(slope_found(namespace["rhs"]))
    assert found == pytest.approx([1.0, 2.0], abs=EXACT)


def test_a_constant_that_changes_its_type_is_seen():
    def make(k):
        return lambda t, y: [k / 2 * 2 * t]

    assert slope_found(make(1)) == slope_found(make(1.0)) == pytest.approx(1.0, abs=EXACT)


def test_edited_arguments_are_seen():
    k = np.array([1.0])

    def rhs(t, y, k):
        return [k[0] * t]

    assert slope_found(rhs, (k,)) == pytest.approx(1.0, abs=EXACT)
    k[0] = 2.0
    assert slope_found(rhs, (k,)) == pytest.approx(2.0, abs=EXACT)


def test_the_same_function_is_compiled_once(monkeypatch):
    """The other side of freshness: an unchanged function costs nothing the second time."""
    compiled, compile_native = [], numba_compilation.compile_native
    monkeypatch.setattr(numba_compilation, "compile_native", lambda *args: compiled.append(1) or compile_native(*args))

    def rhs(t, y):
        return [3.0 * t]

    assert [slope_found(rhs) for _ in range(3)] == pytest.approx([3.0] * 3, abs=EXACT)
    assert len(compiled) == 1
