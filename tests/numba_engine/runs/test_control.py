"""Adaptive steps follow tolerances, controllers and limits."""

from __future__ import annotations

import numpy as np
import pytest
from numba_engine.runs.families import T_END, every_adaptive_family, truth
from problems import brusselator, coupled_ode

import stepnet as sn

LAST = 1 + 1e-8  # the last step may be longer by this, rather than leave a rest of a billionth
WITHIN = 100.0  # global error in units of the tolerance


@every_adaptive_family
@pytest.mark.parametrize("max_step", [0.01, 0.003, 0.3])
def test_no_step_is_longer_than_max_step(family, max_step):
    solution = family.solve(max_step=max_step)
    assert np.max(np.diff(solution.t)) <= max_step * LAST
    assert solution.statistics.accepted >= T_END / max_step / LAST


@every_adaptive_family
def test_the_first_step_is_the_one_that_was_asked_for(family):
    assert family.solve(first_step=1e-4).t[1] == 1e-4


@every_adaptive_family
def test_first_step_does_not_exceed_max_step(family):
    solution = family.solve(first_step=0.5, max_step=0.01)
    assert np.max(np.diff(solution.t)) <= 0.01 * LAST


@every_adaptive_family
def test_a_first_step_far_too_long_is_rejected_and_shortened(family):
    solution = family.solve(first_step=1e6)
    assert solution.statistics.rejected > 0
    error = np.max(np.abs(solution.y[-1] - truth(family.problem(), [T_END])[0]))
    assert error < WITHIN * family.how.get("rtol", 1e-6)


def test_first_steps_backward_point_backward():
    problem = coupled_ode()
    end = sn.solve(problem, "dop853", rtol=1e-10).y[-1]
    solution = sn.solve(sn.ODE(problem.fun, end, (T_END, 0.0)), "dopri5", first_step=1e-4, max_step=0.1)
    assert solution.t[1] == T_END - 1e-4
    assert np.max(-np.diff(solution.t)) <= 0.1 * LAST


@every_adaptive_family
def test_max_steps_counts_attempts(family):
    whole = family.solve().statistics.steps
    assert family.solve(max_steps=whole).success
    short = family.solve(max_steps=whole - 1, check=False)
    assert short.status is sn.Status.STEP_LIMIT
    assert short.statistics.steps == whole - 1


@every_adaptive_family
def test_smaller_tolerances_give_smaller_errors(family):
    exact = truth(family.problem(), [T_END])[0]
    tolerances = (1e-4, 1e-6, 1e-8)
    errors = [np.max(np.abs(family.solve(rtol=x, atol=x, save_every=0).y[-1] - exact)) for x in tolerances]
    for error, tolerance in zip(errors, tolerances, strict=True):
        assert error < WITHIN * tolerance
    assert errors[0] > 5 * errors[1] > 25 * errors[2]


@pytest.mark.parametrize("norm", ["rms", "max"])
@pytest.mark.parametrize("controller", ["I", "PI", "PID", sn.schemes.PI])
def test_every_controller_and_norm_keeps_the_tolerance(controller, norm):
    exact = truth(coupled_ode(), [T_END])[0]
    solution = sn.solve(coupled_ode(), "dopri5", rtol=1e-7, atol=1e-7, controller=controller, norm=norm)
    assert np.max(np.abs(solution.y[-1] - exact)) < WITHIN * 1e-7


def test_controllers_choose_different_steps():
    counts = [sn.solve(brusselator(), "dopri5", controller=c).t.tobytes() for c in ("I", "PI", "PID")]
    assert len(set(counts)) == 3


def test_controllers_by_object_and_by_name_are_the_same():
    by_name = sn.solve(brusselator(), "dopri5", controller="PI")
    by_object = sn.solve(brusselator(), "dopri5", controller=sn.schemes.PI)
    assert np.array_equal(by_name.y, by_object.y)


def test_the_maximum_norm_is_stricter_than_the_mean():
    counts = {norm: sn.solve(brusselator(), "bosh3", norm=norm).statistics.accepted for norm in ("rms", "max")}
    assert counts["max"] > counts["rms"]


def test_norms_agree_for_one_unknown():
    runs = [sn.solve(sn.ODE(lambda t, y: -y * y, [1.0], (0.0, 5.0)), "dopri5", norm=norm) for norm in ("rms", "max")]
    assert np.array_equal(runs[0].y, runs[1].y)


@every_adaptive_family
def test_tolerances_for_every_entry_may_be_equal(family):
    n = family.problem().initial.size
    one = family.solve(rtol=1e-7, atol=1e-8)
    each = family.solve(rtol=np.full(n, 1e-7), atol=[1e-8] * n)
    assert np.array_equal(one.t, each.t)
    assert np.array_equal(one.y, each.y)


def two_speeds(t, y):
    return np.array([np.cos(t), 50.0 * np.cos(50.0 * t)])


@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_loose_tolerance_frees_its_entry(name):
    problem = sn.ODE(two_speeds, [0.0, 0.0], (0.0, 3.0))
    other = {"rtol": "atol", "atol": "rtol"}[name]
    tight = sn.solve(problem, "dopri5", **{name: 1e-8, other: 1e-8})
    free = sn.solve(problem, "dopri5", **{name: [1e-8, 1e3], other: 1e-8})
    assert free.statistics.accepted < 0.5 * tight.statistics.accepted
    assert free.y[-1, 0] == pytest.approx(np.sin(3.0), abs=WITHIN * 1e-8)


def test_tolerances_have_the_shape_of_the_state():
    def decay(t, y):
        return -y

    y0 = np.ones((2, 3))
    atol = np.full((2, 3), 1e-7)
    shaped = sn.solve(sn.ODE(decay, y0, (0.0, 1.0)), "dopri5", rtol=1e-12, atol=atol)
    row = sn.solve(sn.ODE(decay, y0, (0.0, 1.0)), "dopri5", rtol=1e-12, atol=atol[0])  # as NumPy spreads it
    assert np.array_equal(shaped.y, row.y)


def test_defaults_are_those_of_the_documentation():
    default = sn.solve(brusselator(), "dopri5")
    said = sn.solve(brusselator(), "dopri5", rtol=1e-6, atol=1e-9, controller="I", norm="rms", max_steps=10_000_000)
    assert np.array_equal(default.t, said.t)


def test_a_solution_at_rest_takes_ever_longer_steps():
    solution = sn.solve(sn.ODE(lambda t, y: 0.0 * y, [1.0], (0.0, 1e6)), "dopri5")
    assert solution.statistics.steps < 50
    assert np.all(solution.y == 1.0)


def test_rejected_steps_leave_no_trace():
    """y jumps in slope at t = 1; around it steps are rejected, and none of them may be saved."""
    solution = sn.solve(sn.ODE(lambda t, y: [1.0 if t < 1.0 else -1.0], [0.0], (0.0, 2.0)), "dopri5", atol=1e-8)
    assert solution.statistics.rejected > 0
    assert np.all(np.diff(solution.t) > 0)
    assert len(solution.t) == solution.statistics.accepted + 1
    assert np.max(np.abs(solution.y[:, 0] - (1 - np.abs(solution.t - 1)))) < 1e-4  # estimates are blind at a kink
