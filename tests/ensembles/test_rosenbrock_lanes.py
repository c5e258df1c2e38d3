"""Adaptive Rosenbrock steps in SIMD lanes: members equal single solves, with pivoting in every lane."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn

SAME = 1e-9  # of members and single runs: rounding, amplified by a stiff problem, relative to the scale of the state
RATES = np.array([[0.04], [0.03], [0.05], [0.06], [0.02], [0.045], [0.01], [0.08], [0.07]])


def robertson(t, y, k):
    slow, back, fast = k * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def alone(problem: sn.ODE, scheme: str, **changes):
    return sn.solve(
        sn.ODE(problem.fun, changes.pop("y0", problem.y0), problem.t_span, changes.pop("args", problem.args)),
        scheme,
        **changes,
    )


@pytest.mark.parametrize("scheme", ["rodas3", "rodas4", "rodas5p"])
def test_members_in_lanes_are_those_solved_alone(scheme):
    problem = sn.ODE(robertson, [1.0, 0.0, 0.0], (0.0, 1e5), (0.04,))
    how = {"rtol": 1e-6, "atol": 1e-10, "save_at": [0.5, 300.0, 1e5]}
    found = sn.solve_ensemble(problem, scheme, args=RATES, workers=1, **how)
    assert found.rung == "lanes"
    for i, (rate,) in enumerate(RATES):
        one = alone(problem, scheme, args=(float(rate),), **how)
        np.testing.assert_allclose(found.y[i], one.y, rtol=0, atol=SAME)
        counts = one.statistics
        assert (found.accepted[i], found.rejected[i]) == (counts.accepted, counts.rejected)


def exchange(t, y, k):
    """Its matrices have zeros on the diagonal where h gamma k = 1, so that rows must be exchanged."""
    return [k * y[0] + 3.0 * y[1] + np.cos(t), -3.0 * y[0] + k * y[1] - 50.0 * y[2], 40.0 * y[1] - 60.0 * y[2] ** 3]


def test_rows_are_exchanged_lane_by_lane():
    problem = sn.ODE(exchange, [1.0, 0.5, 0.2], (0.0, 2.0), (0.0,))
    growth = np.linspace(-30.0, 8.0, 11)[:, None]
    found = sn.solve_ensemble(problem, "rodas4", args=growth, rtol=1e-6, atol=1e-9, max_step=0.5, workers=1)
    assert found.rung == "lanes"
    for i, (k,) in enumerate(growth):
        one = alone(problem, "rodas4", args=(float(k),), rtol=1e-6, atol=1e-9, max_step=0.5, save_every=0)
        np.testing.assert_allclose(found.y_end[i], one.y[-1], rtol=1e-7, atol=SAME)


def test_a_member_that_blows_up_does_not_disturb_the_others():
    problem = sn.ODE(lambda t, y, k: [-50.0 * y[0] + k * y[0] ** 2], [1.0], (0.0, 1.0), (0.0,))
    found = sn.solve_ensemble(problem, "rodas5p", args=[[0.0], [1e3], [1.0]], workers=1)
    assert found.rung == "lanes"
    assert found.success.tolist() == [True, False, True]
    assert np.abs(found.y_end[[0, 2]]).max() < 1e-7


def test_what_does_not_run_in_lanes_says_why():
    wide = sn.ODE(lambda t, y: -y, np.ones(20), (0.0, 1.0))
    given = sn.ODE(lambda t, y: -y, np.ones(2), (0.0, 1.0), jac=-np.eye(2))
    for problem, how, reason in (
        (wide, {}, "more than 10"), (given, {}, "`jac`"), (wide, {"steps": 5}, "one member at a time"),
    ):  # fmt: skip
        found = sn.solve_ensemble(problem, "rodas4", y0=np.ones((3, problem.y0.size)), **how)
        assert found.rung == "one by one"
        assert reason in found.reason


def test_gradients_of_members_are_those_of_single_problems():
    problem = sn.ODE(robertson, [1.0, 0.0, 0.0], (0.0, 10.0), (0.04,))
    found = sn.gradient_ensemble(problem, "rodas4", lambda y: y[0], args=RATES[:3], steps=100)
    for i, (rate,) in enumerate(RATES[:3]):
        one = sn.gradient(
            sn.ODE(robertson, problem.y0, problem.t_span, (float(rate),)), "rodas4", lambda y: y[0], steps=100
        )
        np.testing.assert_allclose(np.ravel(found.args[i] if len(found.args) == 3 else found.args[0][i]), one.args[0])
