"""Machine code is compared with Python slope by slope: numbers, NaN and infinities are distinguished."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stepnet as sn
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.callback import Callback
from stepnet.engines.numba_engine.rhs.comparison import FEW, Comparison, are_close

NAN, INF = math.nan, math.inf
SPAN = (0.0, 1.0)
LENGTHS = [3, FEW, FEW + 1, 100]  # of the state: one by one, and as arrays


def compare(machine, python, y: np.ndarray) -> tuple[bool, bool]:
    """The two answers of a comparison of two functions of (t, y); the first stands for machine code."""
    form = find_call_form(python, (), (y.shape,), y.shape, y.dtype, "fun")

    def evaluate(t, state, dy):
        dy[...] = machine(t, state)

    code = Callback(evaluate, y.shape, y.shape, y.dtype)
    comparison = Comparison(code.address, form, np.empty(0))
    return comparison.agrees(0.5, y), comparison.agrees_somewhere(SPAN, y)


def slopes_with(value: float, place: int):
    """-y with one slope replaced."""

    def fun(t, y):
        dy = -y
        dy[place] = value
        return dy

    return fun


DIFFERENT = [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (INF, -INF), (-INF, 1.0), (NAN, INF), (INF, NAN)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("machine", "python"), DIFFERENT, ids=str)
def test_a_slope_that_is_finite_on_one_side_only_disagrees(machine, python, n, dtype):
    y = np.linspace(1.0, 2.0, n).astype(dtype)
    for place in (0, 1, n - 1):
        at_state, somewhere = compare(slopes_with(machine, place), slopes_with(python, place), y)
        assert not at_state, place
        assert not somewhere, place


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, 1.0])
def test_the_same_slopes_agree_whether_finite_or_not(value, n, dtype):
    y = np.linspace(1.0, 2.0, n).astype(dtype)
    for place in (0, 1, n - 1):
        found = compare(slopes_with(value, place), slopes_with(value, place), y)
        assert found == (True, True), place


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_other_slopes_are_compared_beside_one_that_is_not_finite(value, n):
    y = np.linspace(1.0, 2.0, n)

    def wrong(t, y):
        dy = slopes_with(value, 1)(t, y)
        dy[n - 1] *= 1 + 1e-6
        return dy

    assert compare(wrong, slopes_with(value, 1), y) == (False, False)


@pytest.mark.parametrize("n", LENGTHS)
def test_rounding_agrees_and_more_does_not(n):
    y = np.linspace(1.0, 2.0, n)
    for factor, is_same in ((1 + 1e-12, True), (1 + 1e-6, False)):
        assert compare(lambda t, y, factor=factor: -factor * y, lambda t, y: -y, y) == (is_same, is_same)


@pytest.mark.parametrize(("found", "slopes"), DIFFERENT)
def test_arrays_of_slopes(found, slopes):
    for place in range(3):
        one, other = np.ones(3), np.ones(3)
        one[place], other[place] = found, slopes
        with np.errstate(invalid="ignore"):
            assert not are_close(one, other)
            assert are_close(one, one.copy())
            assert are_close(other, other.copy())


# ---- which functions are not compared again -------------------------------------------------------------------------

rate = 2.0


def make_closure(c):
    return lambda t, y: [c * y[1], -y[0]]


def count_calls(t, y, log=[0.0]):  # noqa: B006  the default is the state that is changed
    return [y[1] + log[0], -y[0]]


def change_parameters(t, y, p):
    p[0] += 1.0
    return [p[0] * y[1], -y[0]]


def import_inside(t, y):
    from math import sin

    return [sin(y[1]), -y[0]]


DEPENDENT = {
    "global": (lambda t, y: [rate * y[1], -y[0]], ()),
    "global in a comprehension": (lambda t, y: [rate * x for x in y], ()),
    "global in a nested function": (lambda t, y: (lambda z: [rate * z[1], -z[0]])(y), ()),
    "closure": (make_closure(2.0), ()),
    "default": (count_calls, ()),
    "stores into an argument": (change_parameters, (np.array([1.0]),)),
    "import": (import_inside, ()),
    "object as an argument": (lambda t, y, p: [p["k"] * y[1], -y[0]], ({"k": 1.0},)),
    "builtin": (lambda t, y: [abs(y[1]), -y[0]], ()),
}
SELF_CONTAINED = {
    "arithmetic": (lambda t, y: [y[1] + t, -y[0]], ()),
    "parameters": (lambda t, y, k: [k * y[1], -y[0]], (2.0,)),
    "methods of arrays": (lambda t, y: -y * y.sum(), ()),
}


@pytest.fixture
def compared(monkeypatch):
    """How often machine code was compared with Python at a new point."""
    calls = []
    original = Comparison.agrees_somewhere

    def note(self, *where):
        calls.append(where)
        return original(self, *where)

    monkeypatch.setattr(Comparison, "agrees_somewhere", note)
    return calls


def solve_twice(function, args, compared) -> int:
    """Comparisons in the second of two solves."""
    problem = sn.ODE(function, [1.0, 0.5], (0.0, 1.0), args=args)
    sn.solve(problem, "rk4", steps=2)
    compared.clear()
    found = sn.solve(problem, "rk4", steps=2)
    return len(compared) if found.statistics.rung != "python" else -1


@pytest.mark.parametrize("name", DEPENDENT)
def test_functions_that_depend_on_anything_outside_are_compared_or_run_in_python(name, compared):
    assert solve_twice(*DEPENDENT[name], compared) != 0


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_functions_of_their_arguments_alone_are_not_compared_again(name, compared):
    assert solve_twice(*SELF_CONTAINED[name], compared) == 0


def test_a_comparison_warns_of_nothing():
    """Of a state near y0 that nobody asked for; the test settings turn warnings into errors."""
    with np.errstate(all="warn"):
        found = compare(
            lambda t, y: [0.0, 1.0], lambda t, y: np.where(y > 0, np.log(y), [0.0, 1.0]), np.array([-1.0, -1.0])
        )
    assert found == (True, True)
