"""What is saved, and that saving changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from numba_engine.runs.families import (
    T_END,
    every_adaptive_family,
    every_family,
    every_fixed_family,
    truth,
    with_span,
    with_state,
)

import stepnet as sn

WANTED = np.concatenate(([0.0, 0.013], np.arange(0.1, 2.0, 0.1) + 0.017, [T_END]))

ADAPTIVE_ERROR = 100.0  # global error in units of the tolerance: 20 steps of at most one tolerance, amplified by e^1.5
ROUNDING = 1e-12  # of a few hundred operations on numbers of size 1


@every_family
def test_saving_never_changes_the_steps(family):
    every = family.solve()
    for saving in ({"save_every": 7}, {"save_every": 0}, {"save_at": WANTED}, {"save_at": [T_END]}):
        other = family.solve(**saving)
        assert np.array_equal(other.y[-1], every.y[-1])
        assert other.t[-1] == every.t[-1] == T_END
        assert other.statistics.accepted == every.statistics.accepted
        assert other.statistics.rejected == every.statistics.rejected


@every_fixed_family
def test_wanted_times_converge_with_the_order_of_the_scheme(family):
    exact = truth(family.problem(), WANTED)
    coarse, fine = (family.solve(steps=n, save_at=WANTED) for n in (40, 80))
    assert np.array_equal(coarse.t, WANTED)
    errors = [np.max(np.abs(s.y - exact)) for s in (coarse, fine)]
    # half an order of slack: WANTED are not at the same place of the coarse and the fine steps
    assert errors[0] / errors[1] > 2 ** (family.order - 0.5)


@every_fixed_family
def test_wanted_times_are_as_accurate_as_the_steps_around_them(family):
    saved = family.solve()
    at_steps = np.max(np.abs(saved.y - truth(family.problem(), saved.t)))
    wanted = family.solve(save_at=WANTED)
    between = np.max(np.abs(wanted.y - truth(family.problem(), WANTED)))
    assert between < 2 * at_steps  # the largest error need not be at a step


@every_adaptive_family
def test_wanted_times_of_adaptive_steps_are_within_the_tolerance(family):
    wanted = family.solve(save_at=WANTED)
    assert np.array_equal(wanted.t, WANTED)
    error = np.max(np.abs(wanted.y - truth(family.problem(), WANTED)))
    assert error < ADAPTIVE_ERROR * family.how.get("rtol", 1e-6)


@every_family
def test_wanted_times_at_the_steps_are_the_states_there(family):
    every = family.solve()
    wanted = family.solve(save_at=every.t)
    assert np.array_equal(wanted.y, every.y)


@every_family
def test_wanted_times_may_repeat_and_touch_both_ends(family):
    problem = family.problem()
    repeated = family.solve(save_at=[0.0, 0.0, 0.7, 0.7, 0.7, T_END, T_END])
    assert np.array_equal(repeated.t, [0.0, 0.0, 0.7, 0.7, 0.7, T_END, T_END])
    assert np.array_equal(repeated.y[0].ravel(), problem.initial)
    for same in ((0, 1), (2, 3), (3, 4), (5, 6)):
        assert np.array_equal(repeated.y[same[0]], repeated.y[same[1]])
    assert np.array_equal(repeated.y[-1], family.solve(save_every=0).y[-1])


@every_family
def test_no_wanted_times_leave_an_empty_trajectory(family):
    solution = family.solve(save_at=[])
    assert solution.success
    assert solution.t.shape == (0,)
    assert solution.y.shape == (0, family.problem().initial.size)


@every_family
def test_wanted_times_backward(family):
    end = truth(family.problem(), [T_END])[0]
    problem = with_state(with_span(family.problem(), (T_END, 0.0)), end)
    back = family.solve(problem, save_at=WANTED[::-1])
    assert np.array_equal(back.t, WANTED[::-1])
    every = family.solve(problem)
    error = np.max(np.abs(back.y - truth(problem, WANTED[::-1])))
    at_steps = np.max(np.abs(every.y - truth(problem, every.t)))
    if "adaptive" in family.label and sn.schemes.get(family.scheme).dense is not None:
        # The pair's own dense output is one order below the steps themselves.
        assert np.max(np.abs(back.y - family.solve(problem, dense=True)(WANTED[::-1]))) < 1e-13
        assert error < 12 * at_steps
    else:
        assert error < 2 * at_steps


@every_fixed_family
@pytest.mark.parametrize("every", [1, 7, 20, 50])
@pytest.mark.parametrize("steps", [20, 2, 1])
def test_every_kth_step_and_both_ends_are_saved(family, every, steps):
    problem = with_span(family.problem(), (0.0, 0.5))
    solution = family.solve(problem, steps=steps, save_every=every)
    grid = np.arange(steps + 1) * (0.5 / steps)
    kept = [k for k in range(steps + 1) if k % every == 0 or k == steps]
    assert np.allclose(solution.t, grid[kept], rtol=ROUNDING, atol=0)
    assert np.array_equal(solution.y, family.solve(problem, steps=steps).y[kept])


@every_family
def test_save_every_zero_saves_the_end_only(family):
    solution = family.solve(save_every=0)
    assert np.array_equal(solution.t, [T_END])
    assert solution.y.shape[0] == 1


@every_adaptive_family
def test_every_kth_adaptive_step_is_saved(family):
    every = family.solve()
    third = family.solve(save_every=3)
    n = every.statistics.accepted
    kept = [k for k in range(n + 1) if k % 3 == 0 or k == n]
    assert np.array_equal(third.t, every.t[kept])
    assert np.array_equal(third.y, every.y[kept])


@every_adaptive_family
def test_storage_grows_as_far_as_it_must(family):
    solution = family.solve(max_step=T_END / 3000)
    assert solution.statistics.accepted >= 3000  # more than ten times the first guess of 256
    assert len(solution.t) == solution.statistics.accepted + 1
    assert np.all(np.diff(solution.t) > 0)
    assert np.array_equal(solution.y[-1], family.solve(max_step=T_END / 3000, save_every=0).y[-1])


def test_wanted_times_far_more_than_steps():
    from numba_engine.runs.families import FIXED

    wanted = np.linspace(0.0, T_END, 5001)
    solution = FIXED[0].solve(steps=3, save_at=wanted)
    assert np.array_equal(solution.t, wanted)
    # steps aside from the same beginning: continuous inside every step
    assert np.max(np.abs(np.diff(solution.y, axis=0))) < 0.01


def fading(t, y):
    return -y / (1e-10 + t)


def test_wanted_times_of_a_stretched_grid_are_not_mistaken_for_steps():
    """Steps from 1e-12 to 1e6, as for chemistry: what is rounding at the end is ages at the beginning."""
    grid = np.concatenate(([0.0], np.logspace(-12, 6, 400)))
    wanted = np.array([3e-11, 5e-10, 2e-9, 1e-6, 1.0, 3e5])
    solution = sn.solve(sn.ODE(fading, [1.0], (0.0, 1e6)), "rk4", steps=grid, save_at=wanted)
    assert np.allclose(solution.y[:, 0], 1e-10 / (1e-10 + wanted), rtol=1e-4)  # 22 steps of order 4 for each decade


def test_solutions_own_their_arrays():
    from numba_engine.runs.families import FIXED

    first = FIXED[0].solve()
    kept = first.y.copy()
    FIXED[0].solve()
    assert np.array_equal(first.y, kept)
    first.y[:] = 0.0  # writeable, and not the problem's own
    assert np.array_equal(FIXED[0].solve().y, kept)
