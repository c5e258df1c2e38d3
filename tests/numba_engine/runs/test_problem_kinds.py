"""Equivalent problems of different kinds have equal solutions, each in the form of its kind."""

from __future__ import annotations

import numpy as np
import pytest
from problems import coupled_partitioned, coupled_second_order, coupled_split2, coupled_split3

import stepnet as sn

ROUNDING = 1e-13  # the same operations, contracted elsewhere
SPAN = (0.0, 2.0)
Q0, P0 = np.array([0.7, -0.4]), np.array([0.3, 0.6])


def general_dq(t, q, p):
    return np.array([p[0] + 0.2 * np.sin(q[1]) * p[1], p[1] * np.cos(t) - 0.1 * q[0] * q[1]])


def general_dp(t, q, p):
    return np.array([-q[0] + 0.3 * p[0] * p[1], -np.sin(q[1]) + 0.1 * t * p[0]])


def general() -> sn.Partitioned:
    return sn.Partitioned(general_dq, general_dp, Q0, P0, SPAN, separable=False)


def by_hand(problem) -> sn.ODE:
    """The whole problem as one function of the flat state."""

    def joined(t, y):
        q, p = y[:2], y[2:]
        match problem:
            case sn.Split():
                return sum(part(t, y) for part in problem.parts)
            case sn.SecondOrder():
                return np.concatenate((p, problem.acceleration(t, q)))
            case sn.Partitioned(separable=True):
                return np.concatenate((problem.dq(t, p), problem.dp(t, q)))
        return np.concatenate((problem.dq(t, q, p), problem.dp(t, q, p)))

    return sn.ODE(joined, problem.initial, problem.t_span)


KINDS = {
    "Partitioned": coupled_partitioned,
    "not separable": general,
    "SecondOrder": coupled_second_order,
    "Split in two": coupled_split2,
    "Split in three": coupled_split3,
}
# The joined functions are plain Python that calls plain Python, so they run on the Python rung: no code is shared.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "carpenter_kennedy54", "rkl2", "ab4"])
def test_parts_joined_by_the_engine_are_parts_joined_by_hand(kind, scheme):
    problem = KINDS[kind]()
    parts = sn.solve(problem, scheme, steps=25)
    whole = sn.solve(by_hand(problem), scheme, steps=25)
    assert parts.statistics.rung == "compiled"
    assert whole.statistics.rung == "python"
    assert np.allclose(parts.y, whole.y, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_adaptive_steps_of_joined_parts_are_those_of_the_whole(kind):
    problem = KINDS[kind]()
    parts = sn.solve(problem, "dop853", rtol=1e-8)
    whole = sn.solve(by_hand(problem), "dop853", rtol=1e-8)
    assert parts.statistics.accepted == whole.statistics.accepted
    assert np.allclose(parts.t, whole.t, rtol=1e-6)  # error estimates near 1e-9 carry rounding of 1e-16
    assert np.allclose(parts.y[-1], whole.y[-1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("scheme", ["lie", "strang", "yoshida4", "yoshida6", "blanes_moan6"])
@pytest.mark.parametrize("kind", ["Split in two", "Split in three"])
def test_splittings_of_a_sum_converge_to_the_sum(scheme, kind):
    problem = KINDS[kind]()
    exact = sn.solve(by_hand(problem), "dop853", rtol=1e-13, atol=1e-14, save_every=0).y[-1]
    order = sn.schemes.get(scheme).order
    steps = (80, 160) if order <= 4 else (10, 20)  # short enough to be asymptotic, long enough to be above rounding
    errors = [np.max(np.abs(sn.solve(problem, scheme, steps=n, save_every=0).y[-1] - exact)) for n in steps]
    assert np.log2(errors[0] / errors[1]) > order - 0.3


@pytest.mark.parametrize("scheme", ["verlet", "ruth3", "yoshida6"])
def test_splittings_of_a_partitioned_problem_converge_to_the_whole(scheme):
    problem = coupled_partitioned()
    exact = sn.solve(by_hand(problem), "dop853", rtol=1e-13, atol=1e-14, save_every=0).y[-1]
    errors = [np.max(np.abs(sn.solve(problem, scheme, steps=n, save_every=0).y[-1] - exact)) for n in (40, 80)]
    assert np.log2(errors[0] / errors[1]) > sn.schemes.get(scheme).order - 0.3


@pytest.mark.parametrize("scheme", ["verlet", "yoshida4", "ruth3"])
def test_second_order_problems_are_partitioned_ones(scheme):
    def drift(t, p):
        return 1.0 * p

    problem = coupled_second_order()
    second = sn.solve(problem, scheme, steps=25)
    halves = sn.Partitioned(drift, problem.acceleration, problem.q0, problem.v0, SPAN)
    pair = sn.solve(halves, scheme, steps=25)
    assert np.allclose(second.y, pair.y, rtol=0, atol=ROUNDING)


def test_the_order_of_parts_matters_to_a_splitting_and_not_to_the_sum():
    there = coupled_split2()
    back = sn.Split(there.parts[::-1], there.y0, SPAN)
    assert not np.allclose(sn.solve(there, "lie", steps=20).y[-1], sn.solve(back, "lie", steps=20).y[-1])
    assert np.allclose(
        sn.solve(there, "rk4", steps=20).y[-1], sn.solve(back, "rk4", steps=20).y[-1], rtol=0, atol=ROUNDING
    )


def with_arguments(t, y, k, m):
    return k * y + m[0]


@pytest.mark.parametrize("scheme", ["strang", "rk4"])
def test_parts_share_the_arguments(scheme):
    def still(t, y, k, m):
        return 0.0 * y

    solution = sn.solve(sn.Split((with_arguments, still), [1.0], (0.0, 1.0), (-0.5, np.array([2.0]))), scheme, steps=50)
    exact = 4.0 + (1.0 - 4.0) * np.exp(-0.5)
    assert solution.y[-1, 0] == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("scheme", "separable"), [("verlet", True), ("rk4", True), ("rk4", False)])
def test_in_place_halves_of_a_partitioned_problem(scheme, separable):
    def dq(t, p, dy, par):
        dy[:] = par[0] * p

    def dp(t, q, dy, par):
        dy[:] = -par[0] * q

    def dq_both(t, q, p, dy, par):
        dy[:] = par[0] * p

    def dp_both(t, q, p, dy, par):
        dy[:] = -par[0] * q

    functions = (dq, dp) if separable else (dq_both, dp_both)
    problem = sn.Partitioned(*functions, [1.0, 0.0], [0.0, 1.0], (0.0, 1.0), (2.0,), separable=separable)
    solution = sn.solve(problem, scheme, steps=1000)
    assert solution.statistics.rung == "compiled"
    assert np.allclose(solution.q[-1], [np.cos(2.0), np.sin(2.0)], atol=1e-5)  # order 2 with h = 0.001
    assert np.allclose(solution.p[-1], [-np.sin(2.0), np.cos(2.0)], atol=1e-5)


# ---- what a solution shows ------------------------------------------------------------------------------------------


def test_halves_are_views_of_the_flat_state():
    solution = sn.solve(coupled_partitioned(), "verlet", steps=5)
    assert np.array_equal(np.hstack((solution.q, solution.p)), solution.y)
    assert np.shares_memory(solution.q, solution.y)
    second = sn.solve(coupled_second_order(), "verlet", steps=5)
    assert np.array_equal(np.hstack((second.q, second.v)), second.y)


@pytest.mark.parametrize("name", ["q", "p", "v"])
def test_other_problems_have_no_halves(name):
    solution = sn.solve(coupled_split2(), "strang", steps=5)
    with pytest.raises(AttributeError, match=r"Split has no q, p or v; its state is `\.y`"):
        getattr(solution, name)


def test_a_solution_tells_what_it_is():
    solution = sn.solve(coupled_split2(), "strang", steps=5)
    text = repr(solution)
    for part in ("strang", "order 2", "6 times", "0 to 2", "(6, 2) float64", "5 accepted", "0 rejected", "compiled"):
        assert part in text
    assert solution.success
    assert solution.message == sn.Status.COMPLETED.value
    assert solution.citation() == "strang: Strang (1968), SIAM J. Numer. Anal. 5:506"
    assert solution.failure is None


@pytest.mark.parametrize("saving", [{}, {"save_every": 0}, {"save_at": []}, {"save_at": [0.5]}])
def test_every_solution_can_be_printed(saving):
    assert "strang" in repr(sn.solve(coupled_split2(), "strang", steps=5, **saving))


def test_problems_are_frozen_and_cannot_be_changed_through_their_arrays():
    problem = sn.ODE(with_arguments, [1.0], (0.0, 1.0), (1.0, np.ones(1)))
    with pytest.raises(AttributeError):
        problem.y0 = [2.0]
    with pytest.raises(ValueError, match="read-only"):
        problem.y0[0] = 2.0
