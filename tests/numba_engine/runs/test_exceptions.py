"""Exceptions of a right-hand side reach the user unchanged, with the part that had been computed."""

from __future__ import annotations

import traceback
from functools import cache

import numba
import numpy as np
import pytest
from numba import njit

import stepnet as sn

LATE = 0.5


def late_value_error(t, y):
    if t > LATE:
        raise ValueError("too late")
    return -y


def late_index_error(t, y):
    table = np.array([1.0, 2.0, 3.0])
    return -y * table[int(5.5 * t)]


def late_in_place(t, y, dy):
    if t > LATE:
        raise ValueError("too late")
    dy[:] = -y


RAISING = {
    "ValueError": (late_value_error, ValueError, "too late"),
    "IndexError": (late_index_error, IndexError, "index 3 is out of bounds"),
    "in place": (late_in_place, ValueError, "too late"),
}
HOW = {
    "fixed": ("rk4", {"steps": 100}),
    "adaptive": ("dopri5", {}),
    "low storage": ("carpenter_kennedy54", {"steps": 100}),
    "stabilised": ("rkl2", {"steps": 100}),
    "multistep": ("ab4", {"steps": 100}),
}


def assert_explains(caught, function, kind, words, rung):
    solution = caught.value.solution
    assert solution.statistics.rung == rung, solution.statistics.rung_reason
    assert solution.status is sn.Status.FIELD_RAISED
    assert not solution.success
    cause = caught.value.__cause__
    assert type(cause) is kind
    assert words in str(cause)
    assert words in str(caught.value)
    assert cause is solution.failure.exception
    assert traceback.extract_tb(cause.__traceback__)[-1].name == function.__name__


def assert_valid_part(solution, y0):
    assert len(solution.t) > 1
    assert 0.3 < solution.t[-1] <= LATE + 0.06
    assert np.all(np.isfinite(solution.y))
    assert np.all(np.diff(solution.t) > 0)
    assert np.array_equal(np.ravel(solution.y[0]), np.ravel(y0))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rung", ["compiled", "python"])
@pytest.mark.parametrize("raising", RAISING)
def test_a_late_exception_comes_with_its_traceback_and_the_part_before(raising, rung, how, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")
    function, kind, words = RAISING[raising]
    scheme, options = HOW[how]
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(function, [1.0, 2.0], (0.0, 1.0)), scheme, **options)
    assert_explains(caught, function, kind, words, rung)
    assert_valid_part(caught.value.solution, [1.0, 2.0])
    if raising != "IndexError":  # its table changes the slope
        t, y = caught.value.solution.t, caught.value.solution.y
        # rkl2, of order 2 with h = 0.01, is the least accurate of them
        assert np.allclose(y, np.exp(-t)[:, None] * [1.0, 2.0], rtol=1e-4)


def late_force(t, q):
    if t > LATE:
        raise ValueError("too late")
    return -q


def still(t, y):
    return 0.0 * y


def drift(t, p):
    return 1.0 * p


def late_general(t, q, p):
    if t > LATE:
        raise ValueError("too late")
    return -q


def general_drift(t, q, p):
    return 1.0 * p


PROBLEMS = {
    "dq": lambda: sn.Partitioned(late_force, drift, [1.0], [0.5], (0.0, 1.0)),
    "dp": lambda: sn.Partitioned(drift, late_force, [1.0], [0.5], (0.0, 1.0)),
    "acceleration": lambda: sn.SecondOrder(late_force, [1.0], [0.5], (0.0, 1.0)),
    "first part": lambda: sn.Split((late_force, still), [1.0], (0.0, 1.0)),
    "second part": lambda: sn.Split((still, late_force), [1.0], (0.0, 1.0)),
    "not separable": lambda: sn.Partitioned(general_drift, late_general, [1.0], [0.5], (0.0, 1.0), separable=False),
}


@pytest.mark.parametrize("rung", ["compiled", "python"])
@pytest.mark.parametrize("where", PROBLEMS)
def test_the_part_that_raised_is_found(where, rung, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")
    problem = PROBLEMS[where]()
    runs = [("rk4", {"steps": 50}), ("dopri5", {})]
    if where != "not separable":
        runs += [("verlet", {"steps": 50}), ("yoshida4", {"steps": 50})]
    if where == "acceleration":
        runs += [("leapfrog_two_step", {"steps": 50})]
    function = late_general if where == "not separable" else late_force
    for scheme, how in runs:
        with pytest.raises(sn.SolveFailed) as caught:
            sn.solve(problem, scheme, **how)
        assert_explains(caught, function, ValueError, "too late", rung)
        assert_valid_part(caught.value.solution, problem.initial)


@pytest.mark.parametrize("rung", ["compiled", "python"])
def test_the_state_left_is_that_of_a_whole_step(rung, monkeypatch):
    """A splitting moves q before p; after a failure in between neither may have moved."""
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")
    problem = PROBLEMS["dp"]()
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(problem, "verlet_position", steps=50)
    failed = caught.value.solution
    whole = sn.solve(sn.Partitioned(drift, still, [1.0], [0.5], (0.0, 1.0)), "verlet_position", steps=50)
    assert len(failed.t) == len(np.unique(failed.t))
    short = sn.solve(
        sn.Partitioned(drift, late_force, [1.0], [0.5], (0.0, failed.t[-1])),
        "verlet_position",
        steps=len(failed.t) - 1,
    )
    assert np.allclose(failed.y, short.y, rtol=0, atol=1e-13)
    assert not np.allclose(whole.y[: len(failed.t)], failed.y)


@pytest.mark.parametrize("rung", ["compiled", "python"])
@pytest.mark.parametrize("scheme", ["rk4", "ab4", "dopri5"])
def test_the_first_evaluation_raises_the_exception_itself(rung, scheme, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")

    class MyError(Exception):
        pass

    def broken(t, y):
        raise MyError("at once")

    with pytest.raises(MyError, match="at once") as caught:
        sn.solve(sn.ODE(broken, [1.0], (0.0, 1.0)), scheme, **({} if scheme == "dopri5" else {"steps": 9}))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


def test_jitted_functions_raise_too():
    function = njit(late_value_error)
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(function, [1.0], (0.0, 1.0)), "rk4", steps=100)
    assert_explains(caught, late_value_error, ValueError, "too late", "compiled")


def test_jitted_functions_are_checked_for_bounds():
    """`@njit` alone reads past the end of an array in silence; a solve with a table must not."""
    function = njit(late_index_error)
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(function, [1.0], (0.0, 1.0)), "rk4", steps=100)
    assert isinstance(caught.value.__cause__, IndexError)


def test_own_exception_types_fall_to_python_and_come_through():
    class Overheated(Exception):
        def __init__(self, t, y):
            super().__init__(f"too hot at {t:.2f}")
            self.y = y

    def heats(t, y):
        if t > LATE:
            raise Overheated(t, y.copy())
        return -y

    with pytest.raises(sn.SolveFailed, match="too hot") as caught:
        sn.solve(sn.ODE(heats, [1.0], (0.0, 1.0)), "rk4", steps=100)
    assert type(caught.value.__cause__) is Overheated


@pytest.mark.parametrize("rung", ["compiled", "python"])
def test_a_length_that_changes_later_is_an_error(rung, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")

    def shrinks(t, y):
        return y[:1] if t > LATE else -y

    with pytest.raises(sn.SolveFailed, match="shape"):
        sn.solve(sn.ODE(shrinks, [1.0, 2.0], (0.0, 1.0)), "rk4", steps=100)


@pytest.mark.parametrize("rung", ["compiled", "python"])
def test_writing_into_the_state_later_is_an_error(rung, monkeypatch):
    """A right-hand side must not move the state; compiled code must not let it either."""
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")

    def writes(t, y):
        if t > LATE:
            y[0] = 0.0
        return -y

    with pytest.raises(sn.SolveFailed, match="read-only"):
        sn.solve(sn.ODE(writes, [1.0, 2.0], (0.0, 1.0)), "rk4", steps=100)


@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "carpenter_kennedy54", "rkl2", "ab4"])
def test_a_c_function_stops_the_run_by_its_status(scheme):
    how = {} if scheme == "dopri5" else {"steps": 100}
    with pytest.raises(sn.SolveFailed, match="status other than 0") as caught:
        sn.solve(sn.ODE(stopping(), [1.0], (0.0, 1.0)), scheme, **how)
    solution = caught.value.solution
    assert solution.status is sn.Status.FIELD_RAISED
    assert solution.statistics.rung == "address"
    assert caught.value.__cause__ is None
    assert_valid_part(solution, [1.0])


@cache
def stopping():
    @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
    def rhs(t, y, dy, p, n):
        dy[0] = -y[0]
        return 1 if t > 0.5 else 0

    return rhs


def test_check_false_returns_the_failure():
    solution = sn.solve(sn.ODE(late_value_error, [1.0, 2.0], (0.0, 1.0)), "rk4", steps=100, check=False)
    assert solution.status is sn.Status.FIELD_RAISED
    assert isinstance(solution.failure.exception, ValueError)
    assert "too late" in solution.message
    assert "raised" in repr(solution)


@pytest.mark.parametrize("saving", [{"save_every": 0}, {"save_every": 7}, {"save_at": np.linspace(0, 1, 11)}])
def test_the_part_before_is_kept_however_it_is_saved(saving):
    solution = sn.solve(sn.ODE(late_value_error, [1.0, 2.0], (0.0, 1.0)), "rk4", steps=100, check=False, **saving)
    assert 0.3 < solution.t[-1] <= LATE
    assert np.allclose(solution.y[-1], np.exp(-solution.t[-1]) * np.array([1.0, 2.0]), rtol=1e-6)


def test_a_probe_beyond_the_domain_is_no_failure(monkeypatch):
    """Choosing the first step tries a long one; that it leaves the domain must not be reported later."""
    monkeypatch.setenv("STEPNET_RUNG", "python")

    def narrow(t, y):
        if t > 1e-3 or y[0] > 1.0 + 1e-3:
            raise ValueError("outside")
        return np.array([1e-9])

    problem = sn.ODE(narrow, [1.0], (0.0, 1e-3))
    assert sn.solve(problem, "dopri5").success


def test_an_exception_in_the_first_steps_of_a_multistep_scheme():
    def early(t, y):
        if t > 0.015:
            raise ValueError("early")
        return -y

    with pytest.raises(sn.SolveFailed, match="early") as caught:
        sn.solve(sn.ODE(early, [1.0], (0.0, 1.0)), "ab4", steps=100, save_every=0)
    solution = caught.value.solution
    assert solution.t.tolist() == [pytest.approx(0.01)]
    assert solution.scheme.name == "ab4"
