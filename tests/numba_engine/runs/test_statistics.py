"""The statistics of a run are exact counts."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import stepnet as sn


@pytest.fixture
def in_python(monkeypatch):
    """Only there is every evaluation a call that can be counted."""
    monkeypatch.setenv("STEPNET_RUNG", "python")


class Counted:
    """A nonlinear right-hand side that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, t, y):
        self.calls += 1
        return -0.3 * np.sin(y) + np.sin(5.0 * t)


SPAN = (0.0, 3.0)
SAVING = {
    "every step": {},
    "the end": {"save_every": 0},
    "wanted times": {"save_at": np.linspace(0.0, 3.0, 40)},
}
FIXED = [
    "euler", "rk4", "dopri5", "dop853", "bosh3", "carpenter_kennedy54", "williamson3", "rkl2", "rkc1",
    "ab2", "ab4", "ab5", "midpoint_two_step",
]  # fmt: skip
ADAPTIVE = ["bosh3", "fehlberg45", "cash_karp", "dopri5", "tsit5", "verner65", "dop853", "verner98"]

every_saving = pytest.mark.parametrize("saving", SAVING.values(), ids=SAVING)


@every_saving
@pytest.mark.parametrize("scheme", FIXED)
def test_evaluations_of_even_steps_are_counted(scheme, saving, in_python):
    rhs = Counted()
    solution = sn.solve(sn.ODE(rhs, [1.0, 0.3], SPAN), scheme, steps=13, **saving)
    assert solution.statistics.rung == "python"
    assert rhs.calls == solution.statistics.evaluations
    assert solution.statistics.accepted == 13
    assert solution.statistics.rejected == 0


@every_saving
@pytest.mark.parametrize("scheme", ADAPTIVE)
@pytest.mark.parametrize("how", [{"rtol": 1e-8}, {"first_step": 0.5}, {"rtol": 1e-3, "atol": 1e-3}])
def test_evaluations_of_adaptive_steps_are_counted(scheme, how, saving, in_python):
    rhs = Counted()
    solution = sn.solve(sn.ODE(rhs, [1.0, 0.3], SPAN), scheme, **how, **saving)
    assert rhs.calls == solution.statistics.evaluations


@every_saving
@pytest.mark.parametrize("scheme", ["verlet", "yoshida4", "ruth3", "rk4", "dopri5", "leapfrog_two_step"])
def test_evaluations_of_a_force_are_counted(scheme, saving, in_python):
    rhs = Counted()
    problem = sn.SecondOrder(rhs, [1.0, 0.3], [0.0, 0.0], SPAN)
    solution = sn.solve(problem, scheme, steps=13, **saving)
    assert rhs.calls == solution.statistics.evaluations


@every_saving
@pytest.mark.parametrize("scheme", ["verlet", "yoshida4", "ruth3"])
def test_evaluations_of_both_halves_are_counted(scheme, saving, in_python):
    dq, dp = Counted(), Counted()
    solution = sn.solve(sn.Partitioned(dq, dp, [1.0, 0.3], [0.0, 0.0], SPAN), scheme, steps=13, **saving)
    assert dq.calls + dp.calls == solution.statistics.evaluations + 1  # the look at the half that is moved second


@every_saving
@pytest.mark.parametrize("scheme", ["lie", "strang", "yoshida4"])
def test_evaluations_of_split_parts_are_counted(scheme, saving, in_python):
    parts = Counted(), Counted(), Counted()
    solution = sn.solve(sn.Split(parts, [1.0, 0.3], SPAN), scheme, steps=13, **saving)
    looks = 2  # at the parts that do not move first, so that no evaluation is at the initial state
    assert solution.statistics.evaluations + looks == sum(part.calls for part in parts)


@pytest.mark.parametrize("scheme", ["rk4", "dopri5"])
def test_joined_parts_count_as_the_calls_they_make(scheme, in_python):
    """The same count as by a splitting scheme: one for every call of a user's function."""
    parts = Counted(), Counted()
    solution = sn.solve(sn.Split(parts, [1.0, 0.3], SPAN), scheme, steps=13)
    assert solution.statistics.evaluations == sum(part.calls for part in parts)


def test_textbook_counts():
    """rk4 takes 4 slopes a step, dopri5 6 and one at the beginning, Verlet 1 and one at the beginning."""

    def count(problem, scheme):
        return sn.solve(problem, scheme, steps=10).statistics.evaluations

    ode, force = sn.ODE(Counted(), [1.0], SPAN), sn.SecondOrder(Counted(), [1.0], [0.0], SPAN)
    assert count(ode, "rk4") == 40
    assert count(ode, "dopri5") == 60
    assert count(ode, "dop853") == 120
    assert count(ode, "carpenter_kennedy54") == 50
    assert count(ode, "rkl2") == 100
    assert count(force, "verlet") == 11


def test_adaptive_counts_follow_from_the_steps():
    """Two slopes to begin with (the first one is the first stage), then 6 for every attempt of dopri5."""
    s = sn.solve(sn.ODE(Counted(), [1.0], SPAN), "dopri5").statistics
    assert s.evaluations == 2 + 6 * s.steps


def test_steps_are_accepted_and_rejected_ones():
    def kink(t, y):
        return [1.0 if t < 1.0 else -1.0]

    s = sn.solve(sn.ODE(kink, [0.0], (0.0, 2.0)), "dopri5").statistics
    assert s.rejected > 0
    assert s.steps == s.accepted + s.rejected


def test_every_rung_counts_the_same(monkeypatch):
    def rhs(t, y):
        return -y * y + np.sin(5.0 * t)

    problem = sn.ODE(rhs, [1.0, 0.3], SPAN)
    counts = set()
    for rung in ("traced", "compiled", "python"):
        monkeypatch.setenv("STEPNET_RUNG", rung)
        statistics = sn.solve(problem, "dopri5").statistics
        assert statistics.rung == rung
        counts.add(statistics.evaluations)
    assert len(counts) == 1


def test_compile_time_is_that_of_the_first_solve():
    def rhs(t, y):
        return -2.5 * y

    problem = sn.ODE(rhs, [1.0], SPAN)
    first, second = (sn.solve(problem, "rk4", steps=3).statistics for _ in range(2))
    assert first.compile_time > 0
    assert 0 <= second.compile_time < first.compile_time
    assert first.run_time > 0


def test_c_functions_are_not_compiled():
    @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
    def rhs(t, y, dy, p, n):
        dy[0] = -y[0]
        return 0

    _, second = (sn.solve(sn.ODE(rhs, [1.0], SPAN), "rk4", steps=3).statistics for _ in range(2))  # to load the kernel
    assert second.compile_time == 0.0


def test_stiffness_is_measured_in_long_adaptive_runs_only():
    def rhs(t, y):
        return -y

    problem = sn.ODE(rhs, [1.0], SPAN)
    assert np.isnan(sn.solve(problem, "dopri5").statistics.stiffness)
    assert np.isnan(sn.solve(problem, "rk4", steps=1000).statistics.stiffness)
    long = sn.solve(problem, "dopri5", max_step=0.003).statistics
    assert long.stiffness == pytest.approx(0.003 / 3.3065, rel=0.01)  # h |lambda| over the limit of dopri5
    assert isinstance(long.stiffness, float)
