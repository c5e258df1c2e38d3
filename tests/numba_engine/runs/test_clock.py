"""Time in runs: it does not drift, may run backward, and the interval may have length zero."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numba
import numpy as np
import pytest
from numba_engine.runs.families import ADAPTIVE, FIXED, T_END, every_family, truth, with_span, with_state

import stepnet as sn

BACK = 30.0  # a run back has other errors, and undoes damping by e^(2 * 1.5)
FIXED_ULP = 1.0
ADAPTIVE_ULP = 2.0


@cache
def still():
    """y' = 0 as a C function, so that millions of steps take no time."""

    @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
    def zero(t, y, dy, p, n):
        dy[0] = 0.0
        return 0

    return zero


def ulps(t: float, exact: Fraction, size: float | None = None) -> float:
    """Distance in units of the last digit of a time of this size."""
    size = abs(float(exact)) if size is None else size
    return float(abs(Fraction(t) - exact) / Fraction(float(np.spacing(size))))


@pytest.mark.parametrize(
    ("t_span", "n"),
    [((0.0, 1e6), 10_000_000), ((0.0, 1.0), 999_983), ((1.0, 2.0), 10**6), ((-3.3, 7.7), 10**6), ((5.0, 0.3), 10**6)],
)
def test_millions_of_even_steps_stay_on_the_grid(t_span, n):
    every = n // 101
    solution = sn.solve(sn.ODE(still(), [1.0], t_span), "euler", steps=n, save_every=every)
    t0, t1 = map(Fraction, t_span)
    kept = [*range(0, n, every), n]
    exact = [t0 + k * (t1 - t0) / n for k in kept]
    least = abs(t0) if t0 * t1 >= 0 else max(abs(t0), abs(t1))  # across 0 the difference loses digits
    errors = [ulps(t, e, float(max(least, abs(e)))) for e, t in zip(exact, solution.t, strict=True)]
    assert max(errors) <= FIXED_ULP
    assert solution.t[0] == t_span[0]
    assert solution.t[-1] == t_span[1]


def test_a_million_adaptive_steps_do_not_drift():
    """Steps of 0.1 from 0: the sum of n of them is n * 0.1 to the last digits, where naive addition loses six."""
    h, n, every = 0.1, 1_200_000, 10_000
    problem = sn.ODE(still(), [1.0], (0.0, n * h))
    solution = sn.solve(problem, "dopri5", first_step=h, max_step=h, save_every=every)
    exact = [k * every * Fraction(h) for k in range(len(solution.t))]
    errors = [ulps(t, e) for t, e in zip(solution.t[1:-1], exact[1:-1], strict=True)]
    assert len(errors) >= 119
    assert max(errors) <= ADAPTIVE_ULP
    naive = np.add.accumulate(np.full(n, h))[every - 1 :: every]
    assert max(ulps(t, e) for t, e in zip(naive[:119], exact[1:], strict=False)) > 1000


@every_family
def test_a_run_back_returns_to_the_beginning(family):
    problem = family.problem()
    end = truth(problem, [T_END])[0]
    forward = np.max(np.abs(family.solve(save_every=0).y[-1] - end))
    back = family.solve(with_state(with_span(problem, (T_END, 0.0)), end))
    assert back.t[0] == T_END
    assert back.t[-1] == 0.0
    assert np.all(np.diff(back.t) < 0)
    assert np.max(np.abs(back.y[-1] - problem.initial)) < BACK * forward


@pytest.mark.parametrize("scheme", ["verlet", "yoshida4", "suzuki4", "blanes_moan6"])
def test_symmetric_schemes_return_to_rounding(scheme):
    there = sn.solve(FIXED[4].problem(), scheme, steps=400, save_every=0)
    back = sn.solve(with_state(with_span(there.problem, (T_END, 0.0)), there.y[-1]), scheme, steps=400, save_every=0)
    assert np.max(np.abs(back.y[-1] - there.problem.initial)) < 1e-12  # 800 steps of rounding 1e-16, amplified


@every_family
@pytest.mark.parametrize("saving", [{}, {"save_every": 0}, {"save_at": [1.5]}, {"save_every": 5}])
def test_an_interval_of_length_zero_is_its_beginning(family, saving):
    problem = with_span(family.problem(), (1.5, 1.5))
    solution = family.solve(problem, **saving)
    assert solution.success
    assert np.array_equal(solution.t, [1.5])
    assert np.array_equal(solution.y[0].ravel(), problem.initial)
    assert solution.statistics.steps == 0


@pytest.mark.parametrize("t_span", [(1.0, np.nextafter(1.0, 2.0)), (0.0, 5e-324), (-1e-300, 1e-300)])
def test_the_shortest_intervals_end_at_their_end(t_span):
    solution = ADAPTIVE[0].solve(with_span(ADAPTIVE[0].problem(), t_span))
    assert solution.success
    assert solution.t[-1] == t_span[1]


def test_even_steps_end_exactly_at_the_end():
    for n in (3, 7, 10, 49, 1000):
        solution = FIXED[0].solve(steps=n)
        assert solution.t[-1] == T_END
        assert len(solution.t) == n + 1


@pytest.mark.parametrize("family", FIXED[:9], ids=lambda family: family.label)
def test_given_times_are_the_steps(family):
    grid = T_END * (np.arange(31) / 30) ** 1.7
    solution = family.solve(steps=grid)
    assert np.array_equal(solution.t, grid)
    exact = truth(family.problem(), grid)
    coarse = np.max(np.abs(solution.y - exact))
    halved = np.sort(np.concatenate((grid, (grid[1:] + grid[:-1]) / 2)))
    fine = np.max(np.abs(family.solve(steps=halved).y[::2] - exact))
    assert coarse / fine > 2 ** (family.order - 0.5)


def test_an_even_grid_of_times_gives_the_steps_of_their_number():
    """The times differ in the last bit, so the states do too, but no more."""
    by_number, by_times = FIXED[0].solve(steps=40), FIXED[0].solve(steps=np.linspace(0.0, T_END, 41))
    assert np.allclose(by_number.y, by_times.y, rtol=0, atol=1e-14)
