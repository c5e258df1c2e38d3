"""The solution inside the steps: as accurate as promised, smooth at the joints, equal to what was saved."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ellipj

import stepnet as sn
from stepnet.schemes.order import HIGHEST
from stepnet.solution import Pieces

ROUNDING = 1e-14  # relative: a polynomial of a dozen terms
SLOPE_AT_JOINT = 1e-9  # relative: differences of a polynomial over a fifth of a step lose a few digits
FLOOR = 2e-13  # errors below this are round-off of the steps and say nothing about the order
ORDER_SLACK = 0.3  # of a slope between finite steps
RTOL = 1e-7
FEW = 30  # times the error of the steps: the largest of many samples against that of few
STEPS_MOVED = 1e-9  # relative: a slope known to its last bit only, in an error estimate of 1e-7

EXPLICIT = sn.schemes.find(family="ExplicitRK")
PAIRS = [scheme for scheme in EXPLICIT if scheme.embedded]

every_explicit = pytest.mark.parametrize("scheme", EXPLICIT, ids=lambda scheme: scheme.name)
every_pair = pytest.mark.parametrize("scheme", PAIRS, ids=lambda scheme: scheme.name)


# ---- a problem with a known solution: coupled, nonlinear and driven --------------------------------------------------

M = 0.7  # x1' = x2 x3, x2' = -x1 x3, x3' = -m x1 x2 is solved by Jacobi's sn, cn, dn; here of s(t), behind exp


def driven_slopes(t, u):
    x1, x2, x3 = np.log(u)
    clock = 1.0 + 0.3 * np.cos(2.0 * t)
    return np.array([u[0] * x2 * x3, -u[1] * x1 * x3, -M * u[2] * x1 * x2]) * clock


def exact(t) -> np.ndarray:
    """exp of sn, cn, dn at s(t) = t + 0.15 sin 2t, (*times, 3)."""
    s = np.asarray(t) + 0.15 * np.sin(2.0 * np.asarray(t))
    return np.exp(np.stack(ellipj(s, M)[:3], axis=-1))


def driven(span=(0.0, 2.0)) -> sn.ODE:
    return sn.ODE(driven_slopes, exact(span[0]), span)


def largest(x) -> float:
    return float(np.max(np.abs(x)))


def slopes_between(sizes, errors) -> list[float]:
    """Observed orders between neighbours, where round-off plays no part."""
    return [
        math.log(errors[i] / errors[i + 1]) / math.log(sizes[i] / sizes[i + 1])
        for i in range(len(errors) - 1)
        if errors[i + 1] > FLOOR
    ]


# ---- accuracy --------------------------------------------------------------------------------------------------------


@every_explicit
def test_error_along_the_run_converges_with_its_order(scheme):
    """An extension of order q adds O(h^{q+1}) to the O(h^p) of the steps."""
    counts = [round(4 * 1.5**k) for k in range(12)]
    times = np.linspace(0.0, 2.0, 301)
    errors = []
    for n in counts:
        errors.append(largest(sn.solve(driven(), scheme, steps=n, dense=True)(times) - exact(times)))
        if errors[-1] < FLOOR:
            break
    found = slopes_between([2.0 / n for n in counts], errors)
    assert len(found) >= 3
    assert np.median(found[-3:]) >= min(scheme.order, scheme.continuous.order + 1) - ORDER_SLACK


@pytest.mark.parametrize("scheme", [s for s in EXPLICIT if s.continuous.order <= 5], ids=lambda scheme: scheme.name)
def test_error_inside_one_step_has_the_promised_order(scheme):
    """O(h^{q+1}), neither worse nor better than the record says; float64 is too short to see it beyond q = 5."""
    theta = np.linspace(0.05, 0.95, 19)
    sizes = [0.6 / 1.3**k for k in range(20)]
    errors = []
    for h in sizes:
        inside = sn.solve(driven((0.3, 0.3 + h)), scheme, steps=1, dense=True)(0.3 + theta * h)
        errors.append(largest(inside - exact(0.3 + theta * h)))
        if errors[-1] < FLOOR:
            break
    found = slopes_between(sizes, errors)
    assert len(found) >= 4
    assert abs(np.median(found[-4:]) - (scheme.continuous.order + 1)) <= ORDER_SLACK


def assert_as_accurate_as_the_steps(scheme, times, inside, how):
    at_steps = sn.solve(driven(), scheme, **how)
    assert largest(inside - exact(times)) <= FEW * max(largest(at_steps.y - exact(at_steps.t)), RTOL)


@pytest.mark.parametrize(
    "scheme", [s for s in PAIRS if s.continuous.order + 1 >= s.order], ids=lambda scheme: scheme.name
)
def test_adaptive_runs_are_as_accurate_inside_as_at_the_steps(scheme):
    times, how = np.linspace(0.0, 2.0, 201), {"rtol": RTOL, "atol": RTOL}
    assert_as_accurate_as_the_steps(scheme, times, sn.solve(driven(), scheme, dense=True, **how)(times), how)


@every_pair
def test_times_wanted_of_adaptive_runs_are_as_accurate_as_the_steps(scheme):
    """For every pair: whoever asks for times has given a tolerance and has not heard of continuous extensions."""
    times, how = np.linspace(0.0, 2.0, 201), {"rtol": RTOL, "atol": RTOL}
    assert_as_accurate_as_the_steps(scheme, times, sn.solve(driven(), scheme, save_at=times, **how).y, how)


# ---- at the joints ---------------------------------------------------------------------------------------------------


def one_piece(pieces: Pieces, i: int) -> Pieces:
    return Pieces(pieces.t[i : i + 1], pieces.h[i : i + 1], pieces.data[i : i + 1])


def slope_of(piece: Pieces, t: float) -> np.ndarray:
    """The derivative of a polynomial, by differences of so high an order that they are exact."""
    d, half, total = 0.2 * abs(piece.h[0]) / 8, 8, 0.0
    for k in range(1, half + 1):
        weight = (-1) ** (k + 1) * math.comb(2 * half, half - k) / (k * math.comb(2 * half, half))
        total = total + weight * (piece(np.array(t + k * d)) - piece(np.array(t - k * d)))
    return total / d


@every_explicit
def test_pieces_join_with_their_slopes(scheme):
    solution = sn.solve(driven(), scheme, steps=7, dense=True)
    for i in range(1, 7):
        t = solution.pieces.t[i]
        left, right = one_piece(solution.pieces, i - 1), one_piece(solution.pieces, i)
        assert largest(left(np.array(t)) - right(np.array(t))) <= ROUNDING * largest(solution.y)
        slope = driven_slopes(t, solution.y[i])
        assert largest(slope_of(left, t) - slope) <= SLOPE_AT_JOINT * largest(slope)
        assert largest(slope_of(right, t) - slope) <= SLOPE_AT_JOINT * largest(slope)


@every_explicit
@pytest.mark.parametrize("span", [(0.0, 2.0), (2.0, 0.0)], ids=["forward", "backward"])
def test_saved_states_lie_on_it(scheme, span):
    how = {"rtol": 1e-6} if scheme in PAIRS else {"steps": 20}
    solution = sn.solve(driven(span), scheme, dense=True, **how)
    assert len(solution.pieces.t) == len(solution.t) - 1
    np.testing.assert_allclose(solution(solution.t), solution.y, rtol=ROUNDING)
    np.testing.assert_array_equal(solution(span[0]), solution.y[0])


@every_explicit
def test_dense_output_does_not_change_the_run(scheme):
    how = {"rtol": 1e-6} if scheme in PAIRS else {"steps": 20}
    with_it, without = (sn.solve(driven(), scheme, dense=dense, **how) for dense in (True, False))
    np.testing.assert_allclose(with_it.t, without.t, rtol=STEPS_MOVED)
    np.testing.assert_allclose(with_it.y, without.y, rtol=STEPS_MOVED)


@pytest.mark.parametrize("scheme", [s for s in PAIRS if s.dense is not None], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("span", [(0.0, 2.0), (2.0, 0.0)], ids=["forward", "backward"])
def test_times_wanted_of_adaptive_runs_are_on_it(scheme, span):
    times = np.sort(np.random.default_rng(0).uniform(0.0, 2.0, 40))[:: 1 if span[0] == 0 else -1]
    solution = sn.solve(driven(span), scheme, rtol=1e-6, save_at=times, dense=True)
    np.testing.assert_array_equal(solution.t, times)
    np.testing.assert_allclose(solution(times), solution.y, rtol=ROUNDING)
    alone = sn.solve(driven(span), scheme, rtol=1e-6, save_at=times)
    np.testing.assert_allclose(alone.y, solution.y, rtol=STEPS_MOVED)


# ---- shapes and kinds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (1, 1, 5)], ids=str)
@pytest.mark.parametrize("state", [(), (3,), (2, 2)], ids=str)
def test_times_and_states_of_any_shape(shape, state):
    solution = sn.solve(sn.ODE(lambda t, y: -y, np.ones(state), (0.0, 1.0)), "tsit5", dense=True)
    times = np.random.default_rng(1).uniform(0.0, 1.0, shape)
    found = solution(times)
    assert found.shape == shape + state
    expected = np.exp(-times).reshape(shape + (1,) * len(state)) * np.ones(state)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_lists_and_whole_numbers_are_times():
    solution = sn.solve(driven(), "tsit5", dense=True)
    np.testing.assert_array_equal(solution(1), solution(1.0))
    np.testing.assert_array_equal(solution([0, 1]), solution(np.array([0.0, 1.0])))


@pytest.mark.parametrize("t", [-1e-9, 2.0 + 1e-9, [0.5, 3.0], math.nan, math.inf], ids=str)
@pytest.mark.parametrize("span", [(0.0, 2.0), (2.0, 0.0)], ids=["forward", "backward"])
def test_times_outside_are_refused(span, t):
    solution = sn.solve(driven(span), "dopri5", dense=True)
    with pytest.raises(ValueError, match=r"`t` must lie between 0\.0 and 2\.0"):
        solution(t)


def test_without_dense_output_a_call_says_what_to_do():
    with pytest.raises(ValueError, match="dense=True"):
        sn.solve(driven(), "dopri5")(1.0)


@pytest.mark.parametrize("scheme", ["dopri5", "dop853", "verner76"])
@pytest.mark.parametrize("steps", [40, None], ids=["given steps", "adaptive"])
def test_single_precision(scheme, steps):
    how = {"rtol": 1e-5, "atol": 1e-6} if steps is None else {"steps": steps}
    problem = sn.ODE(driven_slopes, exact(0.0).astype(np.float32), (0.0, 2.0))
    solution = sn.solve(problem, scheme, dense=True, **how)
    times = np.linspace(0.0, 2.0, 50)
    np.testing.assert_allclose(solution(times), exact(times), rtol=3e-5)
    np.testing.assert_allclose(solution(solution.t), solution.y, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex128], ids=lambda kind: kind.__name__)
def test_values_have_the_type_of_the_state(kind):
    solution = sn.solve(sn.ODE(lambda t, y: -y, np.ones(2, kind), (0.0, 1.0)), "dopri5", dense=True, steps=4)
    assert solution(0.3).dtype == solution([0.3, 0.4]).dtype == solution.y.dtype == kind


@pytest.mark.parametrize("span", [(0.0, 3.0), (3.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "dop853"])
def test_complex_states(scheme, span):
    how = {"steps": 300} if scheme == "rk4" else {"rtol": 1e-9, "atol": 1e-11}
    start = np.exp((1j - 0.2) * span[0]) * np.array([1.0, 2.0j])
    solution = sn.solve(sn.ODE(lambda t, y: (1j - 0.2) * y, start, span), scheme, dense=True, **how)
    times = np.linspace(0.0, 3.0, 31)
    assert solution(times).dtype == np.complex128
    np.testing.assert_allclose(solution(times), np.exp((1j - 0.2) * times)[:, None] * [1.0, 2.0j], atol=1e-7)


@pytest.mark.parametrize(
    "problem",
    [
        sn.Partitioned(lambda t, p: p, lambda t, q: -q, [1.0], [0.0], (0.0, 2.0)),
        sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 2.0)),
        sn.Split((lambda t, y: [y[1], 0.0], lambda t, y: [0.0, -y[0]]), [1.0, 0.0], (0.0, 2.0)),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_problems_of_parts(problem):
    solution = sn.solve(problem, "dopri5", rtol=1e-9, atol=1e-11, dense=True)
    times = np.linspace(0.0, 2.0, 21)
    np.testing.assert_allclose(solution(times), np.stack((np.cos(times), -np.sin(times)), axis=1), atol=1e-7)


# ---- with other ways of saving, and other ends -----------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"save_every": 0}, {"save_every": 7}, {"save_at": [0.4]}, {"save_at": []}], ids=str)
@pytest.mark.parametrize("steps", [30, None], ids=["given steps", "adaptive"])
def test_whatever_is_saved_all_of_the_interval_is_covered(how, steps):
    solution = sn.solve(driven(), "dopri5", steps=steps, dense=True, **how)
    times = np.linspace(0.0, 2.0, 41)
    assert largest(solution(times) - exact(times)) <= (1e-5 if steps is None else 1e-7)  # rtol is 1e-6
    full = sn.solve(driven(), "dopri5", steps=steps, dense=True)
    np.testing.assert_allclose(solution(times), full(times), rtol=STEPS_MOVED)


@pytest.mark.parametrize("how", [{}, {"save_every": 0}, {"save_at": [0.2, 0.4]}, {"save_at": []}], ids=str)
@pytest.mark.parametrize("steps", [30, None], ids=["given steps", "adaptive"])
def test_a_terminal_event_is_the_end_of_it(how, steps):
    stop = sn.Event(lambda t, y: t - 1.234, terminal=True)
    solution = sn.solve(driven(), "dopri5", steps=steps, dense=True, events=stop, **how)
    times = np.linspace(0.0, 1.234, 41)
    assert solution.t_end == pytest.approx(1.234, rel=ROUNDING)
    assert largest(solution(times[:-1]) - exact(times[:-1])) <= (1e-5 if steps is None else 1e-7)  # rtol is 1e-6
    with pytest.raises(ValueError, match="must lie between"):
        solution(1.24)


@pytest.mark.parametrize("how", [{}, {"save_at": [0.2, 0.4]}], ids=str)
def test_a_failed_run_is_covered_up_to_where_it_failed(how):
    problem = sn.ODE(lambda t, y: y * y, [1.0], (0.0, 2.0))
    solution = sn.solve(problem, "dopri5", dense=True, check=False, rtol=1e-8, atol=1e-10, **how)
    assert not solution.success
    np.testing.assert_allclose(solution([0.3, 0.9]), [[1 / 0.7], [1 / 0.1]], rtol=1e-5)


def test_a_reset_is_a_jump_in_it():
    """A ball that falls from 1 with g = 2 bounces at t = 1, 2 and so on without loss: y = 1 - (t - 2k)^2."""
    bounce = sn.Event(lambda t, y: y[0], -1, reset=lambda t, y: [0.0, -y[1]])
    problem = sn.ODE(lambda t, y: [y[1], -2.0], [1.0, 0.0], (0.0, 5.5))
    solution = sn.solve(problem, "dopri5", dense=True, events=bounce)
    times = np.linspace(0.0, 5.5, 111)
    phase = (times + 1.0) % 2.0 - 1.0
    away = np.abs(np.abs(phase) - 1.0) > 1e-9  # at the bounces themselves the speed is that before or after
    np.testing.assert_allclose(solution(times)[:, 0], 1.0 - phase**2, atol=1e-10)
    np.testing.assert_allclose(solution(times)[away, 1], -2.0 * phase[away], atol=1e-10)


@pytest.mark.parametrize("steps", [10, None], ids=["given steps", "adaptive"])
def test_a_reset_at_the_very_end_leaves_numbers(steps):
    lift = sn.Event(lambda t, y: t - 1.0, reset=lambda t, y: [5.0])
    solution = sn.solve(sn.ODE(lambda t, y: [1.0], [0.0], (0.0, 1.0)), "dopri5", steps=steps, dense=True, events=lift)
    found = solution(np.linspace(0.0, 1.0, 21))[:, 0]
    np.testing.assert_allclose(found[:-1], np.linspace(0.0, 0.95, 20), atol=1e-12)
    assert found[-1] == pytest.approx(1.0, rel=1e-12)  # the state before the reset
    assert solution.y[-1, 0] == 5.0


def test_an_interval_of_no_length_has_its_one_state():
    solution = sn.solve(sn.ODE(lambda t, y: -y, [1.0, 2.0], (3.0, 3.0)), "dopri5", dense=True)
    np.testing.assert_array_equal(solution(3.0), [1.0, 2.0])


# ---- the tables ------------------------------------------------------------------------------------------------------

WITH_TABLES = [scheme for scheme in EXPLICIT if scheme.dense is not None]


def entries_of(table) -> list[tuple[int, int]]:
    return [(i, j) for i, row in enumerate(table) for j, value in enumerate(row) if value != 0]


def with_wrong_digit(table, i: int, j: int):
    """One entry changed in its eighth digit."""
    rows = [list(row) for row in table]
    rows[i][j] *= 1 + 1e-7
    return tuple(map(tuple, rows))


WITHOUT_STAGES = {"dopri5", "tsit5"}  # their extensions use the slopes of the step itself
TABLES = [
    pytest.param(scheme, name, id=f"{scheme.name} {name}")
    for scheme in WITH_TABLES
    for name in ("correction", "stages")
    if name == "correction" or scheme.name not in WITHOUT_STAGES
]


def test_extensions_without_stages_are_those_known():
    assert {scheme.name for scheme in WITH_TABLES if not entries_of(scheme.dense.stages)} == WITHOUT_STAGES


@pytest.mark.parametrize(("scheme", "name"), TABLES)
def test_a_wrong_digit_is_refused(scheme, name):
    table = getattr(scheme.dense, name)
    places = np.random.default_rng(2).permutation(entries_of(table))[:8]
    assert len(places) >= 6
    for i, j in places:
        wrong = replace(scheme.dense, **{name: with_wrong_digit(table, i, j)})
        with pytest.raises(sn.SchemeError, match=scheme.name):
            replace(scheme, dense=wrong)


BELOW_THE_HIGHEST = [scheme for scheme in WITH_TABLES if scheme.dense.order < HIGHEST]


@pytest.mark.parametrize("scheme", BELOW_THE_HIGHEST, ids=lambda scheme: scheme.name)
def test_an_order_too_high_is_refused(scheme):
    with pytest.raises(sn.SchemeError, match="dense"):
        replace(scheme, dense=replace(scheme.dense, order=scheme.dense.order + 1))


def test_a_table_of_another_length_is_refused():
    scheme = sn.schemes.get("dopri5")
    with pytest.raises(sn.SchemeError, match="dopri5"):
        replace(scheme, dense=replace(scheme.dense, correction=scheme.dense.correction[:-1]))
