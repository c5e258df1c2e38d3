"""Exit times of paths: closed forms, the order of the bias, states on the boundary, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import stepnet as sn

X0, PATHS = 0.3, 100_000
MEAN = X0 * (1 - X0)  # of the exit time of a Brownian motion from (0, 1)
SLOPE_TOLERANCE = 0.2


def inside(t, y):
    return y[0] * (1.0 - y[0])


def build(**options) -> sn.SDE:
    return sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, [X0], (0.0, 16.0), seed=3, **options)


@pytest.mark.parametrize(("bridge", "order"), [(True, 1.0), (False, 0.5)])
def test_the_bias_of_exit_times_has_order_one_with_the_bridge_and_one_half_without(bridge, order):
    steps = np.array([128, 256, 512, 1024])
    biases = []
    for n in steps:
        event = sn.Event(inside, terminal=True, bridge=bridge)
        found = sn.solve_ensemble(build(), "euler_maruyama", paths=PATHS, steps=int(n), events=event)
        assert found.rung == "lanes"
        assert found.success.all()
        biases.append(found.t_end.mean() - MEAN)
    assert -np.polyfit(np.log(steps), np.log(biases), 1)[0] == pytest.approx(order, abs=SLOPE_TOLERANCE)


def test_paths_stop_on_the_boundary_in_lanes_and_one_by_one():
    found = []
    for trace in (True, False):
        event = sn.Event(lambda t, y, r: r**2 - y[0] ** 2 - y[1] ** 2, terminal=True)
        disc = sn.SDE(
            lambda t, y, r: -0.5 * y, lambda t, y, r: np.array([[1.0, 0.3], [0.0, 0.8]]) + 0.1 * y[0],
            [0.1, 0.2], (0.0, 1.0), (1.0,), noise="general", seed=2, trace=trace,
        )  # fmt: skip
        found.append(sn.solve_ensemble(disc, paths=40, steps=64, save_at=[0.25, 1.0], events=event))
    lanes, alone = found
    assert (lanes.rung, alone.rung) == ("lanes", "one by one")
    assert lanes.status == alone.status
    assert {sn.Status.EVENT, sn.Status.COMPLETED} == set(lanes.status)
    np.testing.assert_allclose(lanes.t_end, alone.t_end, rtol=1e-12)
    np.testing.assert_allclose(lanes.y, alone.y, rtol=1e-11)  # NaN after the exit
    for i, status in enumerate(lanes.status):
        if status is sn.Status.EVENT:
            assert lanes.t_events[i][0][0] == lanes.t_end[i]
            np.testing.assert_allclose(np.linalg.norm(lanes.y_events[i][0][0]), 1.0, rtol=1e-14)
            np.testing.assert_allclose(lanes.y_events[i][0], alone.y_events[i][0], rtol=1e-9)
            assert lanes.saved[i] == (lanes.t_end[i] > 0.25)


def test_exits_do_not_depend_on_threads_and_grouping():
    event = sn.Event(inside, terminal=True)
    whole = sn.solve_ensemble(build(), paths=500, steps=300, events=event, workers=2)
    some = [499, 2, 130]
    part = sn.solve_ensemble(build(), paths=some, steps=300, events=event, workers=1)
    assert np.array_equal(part.t_end, whole.t_end[some])
    one = sn.solve(build(), steps=300, path=130, events=event)
    assert (one.status, one.t[-1], one.y[-1, 0]) == (sn.Status.EVENT, whole.t_end[130], whole.y[130, 0, 0])
    assert np.array_equal(one.t_events[0], whole.t_events[130][0])


def test_members_that_share_draws_leave_as_they_do_alone():
    """Runs of so few steps draw once for all members with the same paths."""
    event = sn.Event(inside, terminal=True)
    starts = [0.2, 0.5, 0.7]
    many = sn.solve_ensemble(build(), "euler_maruyama", y0=[[x] for x in starts], paths=32, steps=64, events=event)
    for row, x in enumerate(starts):
        alone = [sn.solve(replace(build(), y0=[x], path=k), "euler_maruyama", steps=64, events=event) for k in (0, 21)]
        assert [one.t[-1] for one in alone] == many.t_end[[32 * row, 32 * row + 21]].tolist()


def test_paths_with_given_increments_leave_where_their_sums_do():
    W = np.random.default_rng(2).normal(size=(20, 64, 1)) / 8
    event = sn.Event(inside, terminal=True, bridge=False)
    found = sn.solve_ensemble(replace(build(), t_span=(0.0, 1.0)), increments=W, steps=64, events=event)
    sums = X0 + W[:, :, 0].cumsum(axis=1)
    is_outside = (sums <= 0) | (sums >= 1)
    assert is_outside.any(axis=1).sum() > 10
    assert np.array_equal(found.accepted, np.where(is_outside.any(axis=1), is_outside.argmax(axis=1) + 1, 64))


def test_exits_need_fixed_steps():
    with pytest.raises(ValueError, match="need fixed steps: give `steps`"):
        sn.solve(build(), "sriw1", events=sn.Event(inside, terminal=True))


def test_the_first_of_several_events_stops_a_path_and_directions_count():
    low, high = (sn.Event(lambda t, y, c=c: y[0] - c, terminal=True) for c in (0.0, 1.0))
    both = sn.solve_ensemble(build(), paths=4000, steps=4096, events=[low, high])
    below = np.array([len(times[0]) for times in both.t_events])
    assert np.array_equal(below + [len(times[1]) for times in both.t_events], np.ones(4000))
    assert below.mean() == pytest.approx(1 - X0, abs=4 * np.sqrt(X0 * (1 - X0) / 4000))
    rising = sn.Event(lambda t, y: y[0], direction=1, terminal=True)
    found = sn.solve_ensemble(build(), paths=64, steps=512, events=rising)
    times = np.linspace(0, 16, 513)
    for i in range(8):
        path = sn.solve(build(), steps=512, path=i).y[:, 0]
        was_below = path[np.searchsorted(times, found.t_end[i], side="right") - 1] <= 0
        assert was_below or found.status[i] is sn.Status.COMPLETED


@pytest.mark.parametrize(
    ("event", "match"),
    [
        (inside, "must be terminal"),
        (sn.Event(inside, terminal=2), "must be terminal"),
        (sn.Event(inside, reset=lambda t, y: y), "must be terminal"),
        (sn.Event(inside, terminal=True, touch=0.1), "`touch` is for smooth solutions"),
        (sn.Event(inside, terminal=True, at_start=True), "`at_start` is not for an `SDE`"),
    ],
)
def test_events_other_than_first_exits_are_refused(event, match):
    with pytest.raises(ValueError, match=match):
        sn.solve(build(), steps=4, events=event)
