"""The default ladder: from its first rung, without a rung requested by the environment.

Every right-hand side of the first half is 0 at t = 0 whatever it refers to: one look at the first slope tells nothing.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from numba import njit

import stepnet as sn

EXACT = 1e-12  # y' = k t is integrated exactly by rk4


@pytest.fixture(autouse=True)
def no_rung_asked_for(first_rung, monkeypatch):
    """After the fixture that asks for one."""
    monkeypatch.delenv("STEPNET_RUNG", raising=False)


def slope_found(function, args=()) -> float:
    """k of y' = k t."""
    solution = sn.solve(sn.ODE(function, [0.0], (0.0, 1.0), args), "rk4", steps=4, save_every=0)
    return 2 * float(solution.y[-1, 0])


# ---- freshness ------------------------------------------------------------------------------------------------------


class Parameters:
    def __init__(self, k):
        self.k = k

    def slope(self, t, y):
        return [self.k * t]

    def __call__(self, t, y):
        return [t * self.k]


def by_number():
    box = {"k": 1.0}
    k = box["k"]

    def rhs(t, y):
        return [k * t]

    def change():
        nonlocal k
        k = 2.0

    return rhs, change


def by_dict():
    box = {"k": 1.0}
    return lambda t, y: [box["k"] * t], lambda: box.update(k=2.0)


def by_list():
    box = [1.0]
    return lambda t, y: [box[0] * t], lambda: box.__setitem__(0, 2.0)


def by_array():
    box = np.array([1.0])
    return lambda t, y: [box[0] * t], lambda: box.__setitem__(0, 2.0)


def by_attribute():
    box = Parameters(1.0)
    return lambda t, y: [box.k * t], lambda: setattr(box, "k", 2.0)


def by_class_attribute():
    class Box:
        k = 1.0

    return lambda t, y: [Box.k * t], lambda: setattr(Box, "k", 2.0)


def by_nested_dict():
    box = {"deep": {"k": [1.0]}}
    return lambda t, y: [box["deep"]["k"][0] * t], lambda: box["deep"].update(k=[2.0])


def by_method():
    box = Parameters(1.0)
    return box.slope, lambda: setattr(box, "k", 2.0)


def by_callable_object():
    box = Parameters(1.0)
    return box, lambda: setattr(box, "k", 2.0)


def by_plain_helper():
    box = {"k": 1.0}

    def helper(t):
        return box["k"] * t

    return lambda t, y: [helper(t)], lambda: box.update(k=2.0)


REFERENCES = [
    by_number, by_dict, by_list, by_array, by_attribute, by_class_attribute, by_nested_dict, by_method,
    by_callable_object, by_plain_helper,
]  # fmt: skip


@pytest.mark.parametrize("make", REFERENCES)
def test_a_changed_parameter_is_seen_by_the_next_solve(make):
    function, change = make()
    assert slope_found(function) == pytest.approx(1.0, abs=EXACT)
    change()
    assert slope_found(function) == pytest.approx(2.0, abs=EXACT)


ARGUMENTS = {
    "dict": ({"k": 1.0}, lambda a: a["k"], lambda a: a.update(k=2.0)),
    "list": ([1.0], lambda a: a[0], lambda a: a.__setitem__(0, 2.0)),
    "object": (Parameters(1.0), lambda a: a.k, lambda a: setattr(a, "k", 2.0)),
    "array": (np.array([1.0]), lambda a: a[0], lambda a: a.__setitem__(0, 2.0)),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_an_argument_edited_in_place_is_seen(kind):
    argument, read, edit = ARGUMENTS[kind]

    def rhs(t, y, a):
        return [read(a) * t]

    assert slope_found(rhs, (argument,)) == pytest.approx(1.0, abs=EXACT)
    edit(argument)
    assert slope_found(rhs, (argument,)) == pytest.approx(2.0, abs=EXACT)


# ---- what a trace cannot hold ---------------------------------------------------------------------------------------


def numpy_random(t, y):
    return [t * np.random.standard_normal()]


def python_random(t, y):
    return [t * random.random()]


@pytest.mark.parametrize("function", [numpy_random, python_random])
@pytest.mark.parametrize("y0", [0.0, 1.0])
def test_random_numbers_are_drawn_at_every_call_with_the_users_seed(function, y0):
    def end(seed):
        np.random.seed(seed)
        random.seed(seed)
        solution = sn.solve(sn.ODE(function, [y0], (0.0, 1.0)), "rk4", steps=10, save_every=0)
        assert solution.statistics.rung == "python"
        return solution.y[-1, 0]

    assert end(7) == end(7)
    assert end(7) != end(8)


def by_log():
    log = []

    def rhs(t, y):
        log.append(t)
        return -y

    return rhs, lambda: len(log)


def by_counter():
    calls = np.zeros(1)

    def rhs(t, y):
        calls[0] += 1
        return -y

    return rhs, lambda: int(calls[0])


def by_nonlocal():
    calls = 0

    def rhs(t, y):
        nonlocal calls
        calls += 1
        return -y

    return rhs, lambda: calls


def by_object():
    class Counted:
        calls = 0

        def __call__(self, t, y):
            self.calls += 1
            return -y

    counted = Counted()
    return counted, lambda: counted.calls


@pytest.mark.parametrize("make", [by_log, by_counter, by_nonlocal, by_object])
def test_side_effects_happen_at_every_evaluation(make):
    """A log of calls is how people debug a right-hand side; it must not fall silent."""
    function, happened = make()
    solution = sn.solve(sn.ODE(function, [1.0], (0.0, 1.0)), "rk4", steps=10)
    assert solution.statistics.evaluations == 40
    assert happened() >= 40


def half(t, y):
    return [1.0 if t < 0.5 else 0.0]


def threshold(t, y):
    return [1.0 if y[0] < 0.5 else 0.0]


def ramp(t, y):
    return [max(t, 0.5) - 0.125]


def table(t, y):
    return [np.array([1.0, 0.0])[int(2.0 * t - 1e-9)]]


def steps(t, y):
    return [np.where(t < 0.5, 1.0, 0.0)]


@pytest.mark.parametrize("function", [half, threshold, ramp, table, steps])
def test_branches_on_data_follow_the_data(function):
    solution = sn.solve(sn.ODE(function, [0.0], (0.0, 1.0)), "rk4", steps=2000, save_every=0)
    assert solution.y[-1, 0] == pytest.approx(0.5, abs=1e-3)  # a jump inside a step of 0.0005


def test_late_exceptions_come_through():
    def late(t, y):
        if t > 0.5:
            raise ValueError("too late")
        return -y

    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(late, [1.0], (0.0, 1.0)), "rk4", steps=100)
    assert isinstance(caught.value.__cause__, ValueError)
    assert 0.4 < caught.value.solution.t[-1] <= 0.5


@njit
def jitted(t, y):
    return [y[1], -np.sin(y[0])]


def plain(t, y):
    return [y[1], -np.sin(y[0])]


@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "dop853", "carpenter_kennedy54", "rkl2", "ab4"])
def test_the_first_rung_gives_the_answer_of_the_last(scheme, monkeypatch):
    ends = []
    for rung in (None, "compiled", "python"):
        if rung is not None:
            monkeypatch.setenv("STEPNET_RUNG", rung)
        ends += [sn.solve(sn.ODE(f, [0.8, -0.3], (0.0, 2.0)), scheme, steps=20).y[-1] for f in (plain, jitted)]
    for other in ends[1:]:
        assert np.allclose(other, ends[0], rtol=0, atol=1e-13)


def test_an_empty_environment_variable_asks_for_nothing(monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", "")
    assert sn.solve(sn.ODE(plain, [0.8, -0.3], (0.0, 2.0)), "rk4", steps=20).success


def test_an_unknown_rung_is_refused(monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", "pyhton")
    with pytest.raises(LookupError, match=r"STEPNET_RUNG.*'pyhton'.*'python'"):
        sn.solve(sn.ODE(plain, [0.8, -0.3], (0.0, 2.0)), "rk4", steps=20)


def test_an_equilibrium_by_symmetry_is_traced():
    """All slopes there are rounding, which says nothing; those nearby tell how large they are."""
    angles = 2 * np.pi * np.arange(3) / 3

    def magnets(t, y):
        dx, dz = np.cos(angles) - y[0], np.sin(angles) - y[1]
        pull = (dx * dx + dz * dz + 0.04) ** -1.5
        return [y[2], y[3], np.sum(pull * dx), np.sum(pull * dz)]

    solution = sn.solve(sn.ODE(magnets, [0.0, 0.0, 0.0, 0.0], (0.0, 0.1)), "rk4", steps=3)
    assert solution.statistics.rung == "traced", solution.statistics.rung_reason
