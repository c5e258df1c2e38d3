"""A failing member stops and reports the reason; the others continue.  Bad input is refused by name of the argument."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import stepnet as sn
from stepnet import Status


def growing(t, y, a):
    return [a * y[0] * y[0]]


GROWING = sn.ODE(growing, [1.0], (0.0, 1.0), args=(0.1,))


@pytest.fixture
def thousand() -> np.ndarray:
    """1000 harmless members, but for number 300, which blows up at t = 1/2."""
    args = np.full((1000, 1), 0.1)
    args[300] = 2.0
    return args


@pytest.mark.parametrize("workers", [1, 2])
def test_one_of_a_thousand_blows_up(thousand, workers):
    found = sn.solve_ensemble(GROWING, "dopri5", args=thousand, workers=workers)
    assert np.flatnonzero(~found.success).tolist() == [300]
    assert found.status[300] in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert 0.499 < found.t_end[300] <= 0.51
    assert "at t = 0.5" in found.message_of(300)
    np.testing.assert_allclose(found.y_end[found.success], 1 / 0.9, rtol=1e-6)
    assert found.table()["status"][300] == found.status[300].name
    assert "999" in repr(found)


@pytest.mark.parametrize("workers", [1, 2])
def test_one_diverges_one_is_stiff_and_one_ends_at_once_among_a_thousand(workers):
    problem = sn.ODE(lambda t, y, a, k: a * y * y - k * (y - np.cos(t)), [1.0], (0.0, 1.0), args=(0.1, 1.0))
    args, spans = np.tile([0.1, 1.0], (1000, 1)), np.tile([0.0, 1.0], (1000, 1))
    args[300], args[500], spans[700] = (5.0, 0.0), (0.1, 1e7), 0.5
    found = sn.solve_ensemble(problem, "dopri5", args=args, t_span=spans, max_steps=2000, workers=workers)
    assert found.rung == "lanes"
    assert np.flatnonzero(~found.success).tolist() == [300, 500]
    assert found.status[300] in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert found.status[500] is Status.STEP_LIMIT
    assert (found.t_end[700], found.y_end[700, 0], found.accepted[700]) == (0.5, 1.0, 0)
    others = np.delete(found.y_end, [300, 500, 700], axis=0)
    assert np.array_equal(others, np.full_like(others, others[0]))  # whatever their company


def test_even_steps_out_of_the_finite_numbers(thousand):
    found = sn.solve_ensemble(GROWING, "rk4", args=thousand, steps=200)
    assert found.rung == "lanes"
    alone = sn.solve(sn.ODE(growing, [1.0], (0.0, 1.0), args=(2.0,)), "rk4", steps=200, check=False)
    assert found.status[300] is alone.status is Status.NOT_FINITE
    assert np.array_equal(found.y_end[300], alone.y[-1])
    assert found.t_end[300] == alone.t[-1]
    assert found.success.sum() == 999


def test_a_stiff_member_uses_up_its_steps():
    problem = sn.ODE(lambda t, y, k: -k * (y - np.cos(t)), [0.0], (0.0, 1.0), args=(1.0,))
    args = np.ones((100, 1))
    args[13] = 1e7
    found = sn.solve_ensemble(problem, "dopri5", args=args, max_steps=500)
    assert found.status[13] is Status.STEP_LIMIT
    assert found.accepted[13] + found.rejected[13] == 500
    assert found.success.sum() == 99
    alone = sn.solve(sn.ODE(problem.fun, [0.0], (0.0, 1.0), args=(1e7,)), "dopri5", max_steps=500, check=False)
    assert found.t_end[13] == pytest.approx(alone.t[-1], rel=1e-12)


@pytest.mark.parametrize("choices", [{}, {"steps": 10}], ids=["adaptive", "even"])
def test_a_member_that_ends_where_it_begins(choices):
    spans = np.tile([0.0, 1.0], (50, 1))
    spans[7] = 0.25
    found = sn.solve_ensemble(GROWING, "dopri5", t_span=spans, **choices)
    assert found.success.all()
    assert found.y_end[7] == 1.0
    assert found.t_end[7] == 0.25


def test_a_slope_that_is_nan_from_the_start():
    problem = sn.ODE(lambda t, y, a: np.sqrt(a) * y, [1.0], (0.0, 1.0), args=(1.0,))
    found = sn.solve_ensemble(problem, "dopri5", args=[[1.0], [-1.0], [4.0]])
    assert [status.name for status in found.status] == ["COMPLETED", "NOT_FINITE", "COMPLETED"]
    assert found.t_end[1] == 0.0
    assert found.y_end[1] == 1.0


def test_wanted_times_that_a_member_does_not_reach():
    found = sn.solve_ensemble(GROWING, "dopri5", args=[[0.1], [2.0]], save_at=[0.0, 0.25, 0.75, 1.0])
    assert found.saved.tolist() == [4, 2]
    assert np.isfinite(found.y[1, :2]).all()
    assert np.isnan(found.y[1, 2:]).all()


def test_a_branch_on_data_runs_one_by_one():
    def switched(t, y, a):
        if y[0] > 0.5:
            return [-a * y[0]]
        return [-a]

    problem = sn.ODE(switched, [1.0], (0.0, 0.5), args=(1.0,))
    args = np.linspace(0.1, 1.0, 7)[:, None]
    found = sn.solve_ensemble(problem, "dopri5", args=args, workers=2)
    assert found.rung == "one by one"
    assert "branches on data" in found.reason
    for a, end in zip(args, found.y_end, strict=True):
        assert np.array_equal(sn.solve(sn.ODE(switched, [1.0], (0.0, 0.5), args=(a[0],)), "dopri5").y[-1], end)


def test_events_of_their_own():
    fall = sn.ODE(lambda t, y, g: [y[1], -g], [1.0, 0.0], (0.0, 5.0), args=(9.81,))
    ground = sn.Event(lambda t, y, g: y[0], terminal=True)
    g = np.linspace(1.0, 10.0, 6)
    found = sn.solve_ensemble(fall, "dopri5", args=g[:, None], events=ground)
    assert found.rung == "one by one"
    assert "events" in found.reason
    assert all(status is Status.EVENT for status in found.status)
    np.testing.assert_allclose(found.t_end, np.sqrt(2 / g), rtol=1e-9)
    np.testing.assert_allclose([t[0][0] for t in found.t_events], np.sqrt(2 / g), rtol=1e-9)
    assert found.y_events[0][0].shape == (1, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_other_numbers_run_one_by_one(dtype):
    problem = sn.ODE(lambda t, y: -y, np.ones(2, dtype), (0.0, 1.0))
    found = sn.solve_ensemble(problem, "rk4", y0=np.ones((3, 2), dtype), steps=10)
    assert found.y.dtype == dtype
    assert str(np.dtype(dtype)) in found.reason


def test_a_user_s_exception_is_a_status():
    def touchy(t, y, a):
        if a > 1:
            raise ValueError("too much")
        return [-a * y[0]]

    problem = sn.ODE(touchy, [1.0], (0.0, 1.0), args=(0.5,), trace=False)
    found = sn.solve_ensemble(problem, "rk4", args=[[0.5], [2.0], [0.7]], steps=4)
    assert [status.name for status in found.status] == ["COMPLETED", "FIELD_RAISED", "COMPLETED"]


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_done(workers):
    problem = sn.ODE(lambda t, y, w: [y[1], -w * y[0]], [1.0, 0.0], (0.0, 1.0), args=(1.0,))
    spans = np.tile([0.0, 1.0], (400, 1))
    spans[200:, 1] = 1e7
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    sn.solve_ensemble(problem, "dopri5", t_span=spans[:3])  # compiles
    timer.start()
    with pytest.raises(sn.Interrupted) as stopped:
        sn.solve_ensemble(problem, "dopri5", t_span=spans, workers=workers, max_steps=10**9)
    found = stopped.value.solution
    assert "interrupted by the user" in str(stopped.value)
    assert found.status.count(Status.COMPLETED) >= 100
    assert found.status.count(Status.INTERRUPTED) >= 1


def test_ctrl_c_in_the_last_slice_is_not_lost():
    """The members may all be done by then, but the user wanted to stop."""
    problem = sn.ODE(lambda t, y, w: [y[1], -w * y[0]], [1.0, 0.0], (0.0, 2000.0), args=(1.0,))
    sn.solve_ensemble(problem, "dopri5", args=np.ones((3, 1)))  # compiles
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        sn.solve_ensemble(problem, "dopri5", args=np.ones((64, 1)), workers=1)
        timer.join()
        threading.Event().wait(1.0)  # if it was quicker than the timer


BAD = [
    ({}, "give `y0` or `args`"),
    ({"args": [[0.1], [0.2]], "y0": [[1.0]]}, "`y0` and `args` must have equally many rows, found 1 and 2"),
    ({"args": [0.1, 0.2]}, "`args` must have the shape (members, 1)"),
    ({"args": [[0.1, 0.2]]}, "`args` must have the shape (members, 1)"),
    ({"args": [[0.1], [np.nan]]}, "`args` must be finite, but 1 of its rows are not, the first of them row 1"),
    ({"y0": [[1.0], [np.inf], [np.nan]]}, "`y0` must be finite, but 2 of its rows are not, the first of them row 1"),
    ({"y0": [[1.0, 2.0]]}, "`y0` must have the shape (members, 1)"),
    ({"y0": 1.0}, "`y0` must have one row for every member, found the number 1.0"),
    ({"y0": [[1.0], [1.0, 2.0]]}, "`y0` must have one row for every member, found a ragged sequence"),
    ({"y0": [["a"]]}, "`y0` must hold numbers"),
    ({"y0": [[1j]]}, "`y0` must be real"),
    ({"y0": [[1.0]], "t_span": [[0.0, 1.0], [0.0, 2.0]]}, "`y0` and `t_span` must have equally many rows"),
    ({"y0": [[1.0]], "t_span": [[0.0, 1.0, 2.0]]}, "`t_span` must have the shape (members, 2)"),
    ({"y0": [[1.0]], "rtol": [[1e-3], [1e-4]]}, "`y0` and `rtol` must have equally many rows"),
    ({"y0": [[1.0]], "rtol": [[-1e-3]]}, "`rtol` must be positive"),
    ({"y0": [[1.0]], "save_at": [0.5, 2.0]}, "`save_at` must lie in `t_span`"),
    ({"y0": [[1.0]], "save_at": [[[0.5]]]}, "`save_at` must have the shape"),
    ({"y0": [[1.0]], "workers": 0}, "`workers` must be at least 1"),
    ({"y0": [[1.0]], "steps": 10, "rtol": 1e-3}, "`rtol` is for adaptive steps"),
    ({"y0": [[1.0]], "steps": 10, "rtol": [[1e-3]]}, "`rtol` is for adaptive steps"),
]


@pytest.mark.parametrize(("choices", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(choices, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        sn.solve_ensemble(GROWING, "dopri5", **choices)
    assert message in str(raised.value)


def test_whole_numbers_cannot_vary():
    problem = sn.ODE(lambda t, y, k: -(y**k), [1.0], (0.0, 1.0), args=(2,))
    with pytest.raises(TypeError, match="`args` of the problem must be floats"):
        sn.solve_ensemble(problem, "dopri5", args=[[2.0], [3.0]])
    found = sn.solve_ensemble(problem, "dopri5", y0=[[1.0], [2.0]], rtol=1e-9)
    np.testing.assert_allclose(found.y_end[:, 0], [0.5, 2 / 3], rtol=1e-8)
