"""Zeros of functions along a solution: at the right times, in order, none missed, on every rung."""

from __future__ import annotations

import math
import re
import tracemalloc

import numpy as np
import pytest
from scipy.special import ellipk

import stepnet as sn
from stepnet.engines.numba_engine.integrators.events import SAMPLES

TIGHT = {"rtol": 1e-11, "atol": 1e-13}
CLOSED_FORM = 1e-9  # absolute: what steps with these tolerances leave
LAST_BITS = 1e-14  # relative: where the solution is a polynomial that the steps integrate exactly

GIVEN_OR_CHOSEN = pytest.mark.parametrize("steps", [37, None], ids=["given steps", "adaptive"])


def fall(t, y):
    return [y[1], -9.81]


def clock(t, y):
    """y' = 1: every scheme is exact, so only the search for zeros is looked at."""
    return [1.0]


def oscillator(t, y):
    return [y[1], -y[0]]


def oscillation(t_end: float = 20.0, t0: float = 0.0) -> sn.ODE:
    """y = (sin t, cos t)."""
    return sn.ODE(oscillator, [math.sin(t0), math.cos(t0)], (t0, t_end))


def solve_clock(events, t_end=1.0, steps=1, **how) -> sn.Solution:
    return sn.solve(sn.ODE(clock, [0.0], (0.0, t_end)), "rk4", steps=steps, events=events, **how)


# ---- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", [0.3, 1.5, 3.0])
def test_period_of_a_pendulum(amplitude):
    """T = 4 K(sin^2(amplitude / 2))."""
    problem = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [amplitude, 0.0], (0.0, 60.0))
    solution = sn.solve(problem, "dop853", events=sn.Event(lambda t, y: y[0], 1), **TIGHT)
    period = 4 * ellipk(math.sin(amplitude / 2) ** 2)
    expected = np.arange(0.75 * period, 60.0, period)
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=0, atol=100 * CLOSED_FORM)
    assert np.all(np.abs(solution.y_events[0][:, 0]) < 1e-12)


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("scheme", ["dopri5", "dop853", "verner65"])
def test_projectile_lands_where_it_must(scheme, steps):
    apex = sn.Event(lambda t, y: y[3])
    ground = sn.Event(lambda t, y: y[1], -1, terminal=True)
    problem = sn.ODE(lambda t, y: [y[2], y[3], 0.0, -9.81], [0.0, 0.0, 20.0, 30.0], (0.0, 100.0))
    solution = sn.solve(problem, scheme, steps=steps, events=[apex, ground])
    assert solution.status is sn.Status.EVENT
    assert solution.success
    flight = 2 * 30.0 / 9.81
    np.testing.assert_allclose(solution.t_events[0], [flight / 2], rtol=1e-12)
    np.testing.assert_allclose(solution.t_events[1], [flight], rtol=1e-12)
    assert solution.t[-1] == solution.t_events[1][0]
    np.testing.assert_allclose(solution.y[-1], [20 * flight, 0.0, 20.0, -30.0], atol=1e-10)
    np.testing.assert_array_equal(solution.y[-1], solution.y_events[1][0])


def bounce_times(height: float, restitution: float, count: int) -> np.ndarray:
    """First after sqrt(2 h / g), then after 2 e^k v / g each."""
    fall_time = math.sqrt(2 * height / 9.81)
    return fall_time + np.concatenate(([0.0], np.cumsum(2 * fall_time * restitution ** np.arange(1.0, count))))


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("scheme", ["heun3", "rk4", "dopri5", "bosh3", "dop853"])
def test_bouncing_ball(scheme, steps):
    if steps is None and not sn.schemes.get(scheme).embedded:
        steps = [0.0, 0.3, 0.31, 1.0, 1.7, 2.2, 2.8, 3.0]
    bounce = sn.Event(lambda t, y: y[0], -1, reset=lambda t, y: [0.0, -0.8 * y[1]])
    solution = sn.solve(sn.ODE(fall, [2.0, 0.0], (0.0, 3.0)), scheme, steps=steps, events=bounce)
    expected = bounce_times(2.0, 0.8, 12)
    expected = expected[expected < 3.0]
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=1e-10)
    speeds = math.sqrt(2 * 9.81 * 2.0) * 0.8 ** np.arange(len(expected))
    np.testing.assert_allclose(solution.y_events[0][:, 1], -speeds, rtol=1e-9)
    assert solution.status is sn.Status.COMPLETED
    assert solution.t[-1] == 3.0
    since = 3.0 - expected[-1]
    up = 0.8 * speeds[-1]
    np.testing.assert_allclose(solution.y[-1], [up * since - 9.81 * since**2 / 2, up - 9.81 * since], atol=1e-8)


# ---- returns to the surface of a reset -------------------------------------------------------------------------------

PAIRS = ["bosh3", "dopri5", "tsit5", "dop853", "verner98"]
BALL = (lambda t, y, g, e: [y[1], -g], sn.Event(lambda t, y, g, e: y[0], -1, reset=lambda t, y, g, e: [0.0, -e * y[1]]))


def bounce(scheme, height, gravity, restitution, t_end, **how):
    fun, floor = BALL
    problem = sn.ODE(fun, [height, 0.0], (0.0, t_end), (gravity, restitution))
    return sn.solve(problem, scheme, events=floor, **how)


def times_of_bounces(height, gravity, restitution, count):
    first = math.sqrt(2 * height / gravity)
    return first * (1 + 2 * np.concatenate(([0.0], np.cumsum(restitution ** np.arange(1.0, count)))))


@pytest.mark.parametrize(("scheme", "how"), [*((pair, {}) for pair in PAIRS), ("rk4", {"steps": 50})], ids=str)
def test_the_ball_of_the_readme_stays_above_the_floor(scheme, how):
    solution = bounce(scheme, 10.0, 9.81, 0.9, 25.0, **how)
    expected = times_of_bounces(10.0, 9.81, 0.9, 24)
    assert expected[-1] < 25.0 < times_of_bounces(10.0, 9.81, 0.9, 25)[-1]
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=1e-10)
    assert solution.status is sn.Status.COMPLETED
    assert solution.y[:, 0].min() > -1e-12


@pytest.mark.parametrize("scheme", ["bosh3", "dopri5", "tsit5", "dop853"])
def test_no_bounce_is_missed(scheme):
    """1000 balls in all; the last flight is shorter than the first one by up to 10 orders of magnitude."""
    generator = np.random.default_rng(PAIRS.index(scheme))
    for _ in range(250):
        height, gravity = 10.0 ** generator.uniform(-3, 3), 10.0 ** generator.uniform(-2, 3)
        restitution = generator.uniform(0.05, 0.99)
        most = min(40, 1 + int(math.log(1e-10) / math.log(restitution)))
        expected = times_of_bounces(height, gravity, restitution, most + 1)
        solution = bounce(scheme, height, gravity, restitution, 0.5 * (expected[-1] + expected[-2]))
        np.testing.assert_allclose(solution.t_events[0], expected[:-1], rtol=1e-10)


def test_a_floor_that_is_not_zero_and_is_known_to_rounding_only():
    """g = y - 0.1 sin t - 7 at the reset is rounding, on either side of zero."""
    floor = lambda t: 7.0 + 0.1 * math.sin(t)
    event = sn.Event(
        lambda t, y: y[0] - 0.1 * np.sin(t) - 7.0,
        0,
        reset=lambda t, y: [floor(t), 0.1 * math.cos(t) - 0.9 * (y[1] - 0.1 * math.cos(t))],
    )
    solution = sn.solve(sn.ODE(lambda t, y: [y[1], -9.81], [9.0, 0.0], (0.0, 8.0)), "dopri5", events=event, **TIGHT)
    assert np.all(solution.y[:, 0] - 0.1 * np.sin(solution.t) - 7.0 > -1e-9)
    assert len(solution.t_events[0]) == 10
    assert np.all(np.diff(solution.t_events[0]) > 1e-3)


@pytest.mark.parametrize("scheme", ["dopri5", "dop853"])
def test_bounces_that_accumulate_end_the_run_there(scheme):
    """The times between them sum up to 2 e / (1 - e) times that of the first fall."""
    end = math.sqrt(2 * 10.0 / 9.81) * (1 + 2 * 0.9 / 0.1)
    with pytest.raises(sn.SolveFailed, match=r"`reset` follow each other without end at t = 27\.129") as failed:
        bounce(scheme, 10.0, 9.81, 0.9, 30.0)
    solution = failed.value.solution
    assert solution.status is sn.Status.EVENTS_ACCUMULATE
    assert solution.t[-1] == pytest.approx(end, rel=1e-9)
    np.testing.assert_allclose(solution.t_events[0][:200], times_of_bounces(10.0, 9.81, 0.9, 200), rtol=1e-10)
    assert solution.y[:, 0].min() > -1e-12


def test_a_ball_that_is_stopped_does_not_fall_through_the_floor():
    solution = bounce("dopri5", 10.0, 9.81, 0.0, 30.0, check=False)
    assert solution.status is sn.Status.EVENTS_ACCUMULATE
    assert solution.t[-1] == pytest.approx(math.sqrt(20 / 9.81), rel=1e-12)


def test_a_ball_that_rests_on_a_floor_that_carries_it_goes_on():
    fun = lambda t, y: [y[1], np.where((y[0] <= 0.0) & (y[1] <= 0.0), 0.0, -9.81)]
    event = sn.Event(lambda t, y: y[0], -1, reset=lambda t, y: [0.0, 0.0])
    solution = sn.solve(sn.ODE(fun, [10.0, 0.0], (0.0, 5.0)), "dopri5", events=event)
    assert solution.status is sn.Status.COMPLETED
    np.testing.assert_array_equal(solution.y[-1], [0.0, 0.0])


def test_a_reset_that_lets_the_event_pass_goes_on():
    """A dose at t = 1, 2, 3: g grows through zero before and after the reset."""
    doses = [sn.Event(lambda t, y, a=a: t - a, reset=lambda t, y: y + 1.0) for a in (1.0, 2.0, 3.0)]
    solution = sn.solve(sn.ODE(lambda t, y: -y, [0.0], (0.0, 4.0)), "dopri5", events=doses, **TIGHT)
    np.testing.assert_allclose(np.concatenate(solution.t_events), [1.0, 2.0, 3.0], rtol=LAST_BITS)
    assert solution.y[-1, 0] == pytest.approx(sum(math.exp(-k) for k in (1, 2, 3)), abs=CLOSED_FORM)


def test_members_of_an_ensemble_bounce_as_they_do_alone():
    fun, floor = BALL
    numbers = np.array([[9.81, 0.9], [1.62, 0.7], [24.8, 0.5], [9.81, 0.99]])
    problem = sn.ODE(fun, [10.0, 0.0], (0.0, 12.0), (9.81, 0.9))
    found = sn.solve_ensemble(problem, "dopri5", args=numbers, events=floor)
    for (gravity, restitution), times, status in zip(numbers, found.t_events, found.status, strict=True):
        expected = times_of_bounces(10.0, gravity, restitution, 100)
        end = math.sqrt(2 * 10.0 / gravity) * (1 + 2 * restitution / (1 - restitution))
        assert status is (sn.Status.EVENTS_ACCUMULATE if end < 12.0 else sn.Status.COMPLETED)
        count = min(np.count_nonzero(expected < 12.0), 30)
        np.testing.assert_allclose(times[0][:count], expected[:count], rtol=1e-10)


RADIUS = 0.4  # of the disk in the middle of the square |x|, |y| <= 1


def reflected_by_wall(axis):
    return lambda t, y: np.where(np.arange(4) == 2 + axis, -y, y)


def reflected_by_disk(t, y):
    normal = y[:2] / np.hypot(*y[:2])
    return np.concatenate((y[:2], y[2:] - 2 * (y[2:] @ normal) * normal))


BILLIARD = [
    sn.Event(lambda t, y: 1.0 - y[0], -1, reset=reflected_by_wall(0)),
    sn.Event(lambda t, y: 1.0 + y[0], -1, reset=reflected_by_wall(0)),
    sn.Event(lambda t, y: 1.0 - y[1], -1, reset=reflected_by_wall(1)),
    sn.Event(lambda t, y: 1.0 + y[1], -1, reset=reflected_by_wall(1)),
    sn.Event(lambda t, y: y[0] ** 2 + y[1] ** 2 - RADIUS**2, -1, reset=reflected_by_disk),
]


def time_to_next_reflection(state):
    """Along a straight line, from a state on a wall or the disk that leaves it: to whichever comes first."""
    (x, y, u, v), far = state, 1e-9
    walls = [(math.copysign(1.0, speed) - place) / speed for place, speed in ((x, u), (y, v)) if speed != 0]
    b, c = x * u + y * v, x * x + y * y - RADIUS**2
    if b < 0 and b * b > (u * u + v * v) * c and math.hypot(x, y) > RADIUS + far:
        walls.append(-(b + math.sqrt(b * b - (u * u + v * v) * c)) / (u * u + v * v))
    return min(walls)


@pytest.mark.parametrize(("scheme", "reflections"), [("dopri5", 10_000), ("bosh3", 1000), ("dop853", 1000)])
def test_a_billiard_stays_inside_and_misses_no_reflection(scheme, reflections):
    """Sinai's: between any two reflections the flight is as long as geometry says, so none is missed."""
    problem = sn.ODE(lambda t, y: [y[2], y[3], 0.0, 0.0], [0.7, 0.1, 0.6, 0.8], (0.0, 1.1 * reflections))
    solution = sn.solve(problem, scheme, events=BILLIARD, save_every=0)
    order = np.argsort(np.concatenate(solution.t_events), kind="stable")
    times, states = (np.concatenate(found)[order] for found in (solution.t_events, solution.y_events))
    which = np.repeat(np.arange(5), [len(t) for t in solution.t_events])[order]
    assert len(times) >= reflections
    assert np.abs(states[:, :2]).max() < 1 + 1e-9
    assert np.hypot(states[:, 0], states[:, 1]).min() > RADIUS - 1e-9
    np.testing.assert_allclose(np.hypot(states[:, 2], states[:, 3]), 1.0, rtol=1e-9)
    flights = [time_to_next_reflection(BILLIARD[e].reset(0.0, y)) for e, y in zip(which, states, strict=True)]
    np.testing.assert_allclose(np.diff(times), flights[:-1], rtol=0, atol=1e-7)


def test_the_step_is_chosen_anew_after_a_reset():
    """Nothing happens before t = 5, so the steps have grown; y' = y^2 from there on."""
    event = sn.Event(lambda t, y: t - 5.0, 1, reset=lambda t, y: [1.0])
    fun = lambda t, y: np.where(t < 5.0, 0.0 * y, y * y)
    solution = sn.solve(sn.ODE(fun, [0.0], (0.0, 5.9)), "dopri5", events=event, **TIGHT)
    after = np.flatnonzero(solution.t == 5.0)[-1]
    assert solution.t[after + 1] - solution.t[after] < 0.05
    assert solution.y[-1, 0] == pytest.approx(10.0, rel=1e-8)


def test_both_sides_of_a_reset_are_saved():
    bounce = sn.Event(lambda t, y: y[0], -1, reset=lambda t, y: [0.0, -0.5 * y[1]])
    solution = sn.solve(sn.ODE(fall, [2.0, 0.0], (0.0, 0.9)), "dopri5", events=bounce)
    (t,) = solution.t_events[0]
    before, after = solution.y[solution.t == t]
    np.testing.assert_array_equal(before, solution.y_events[0][0])
    np.testing.assert_array_equal(after, [0.0, -0.5 * before[1]])


# ---- order, direction, counts ----------------------------------------------------------------------------------------


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize(
    ("direction", "expected"), [(0, [1, 2, 3, 4, 5, 6]), (1, [2, 4, 6]), (-1, [1, 3, 5])], ids=["both", "up", "down"]
)
def test_direction(direction, expected, steps):
    events = sn.Event(lambda t, y: y[0], direction)
    how = {"steps": 400} if steps else TIGHT
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=events, **how)
    np.testing.assert_allclose(solution.t_events[0], np.array(expected) * math.pi, rtol=0, atol=CLOSED_FORM)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_stops_at_the_wanted_zero(count):
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=sn.Event(lambda t, y: y[0], 0, count), **TIGHT)
    assert solution.status is sn.Status.EVENT
    assert len(solution.t_events[0]) == count
    assert solution.t[-1] == pytest.approx(count * math.pi, abs=CLOSED_FORM)


def test_fewer_zeros_than_wanted_let_the_run_end():
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=sn.Event(lambda t, y: y[0], 0, 7), **TIGHT)
    assert solution.status is sn.Status.COMPLETED
    assert len(solution.t_events[0]) == 6


def test_counts_are_of_each_event_alone():
    first, second = sn.Event(lambda t, y: y[0], 0, 3), sn.Event(lambda t, y: y[1], 0, 2)
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=[first, second], **TIGHT)
    assert solution.t[-1] == pytest.approx(1.5 * math.pi, abs=CLOSED_FORM)
    assert [len(t) for t in solution.t_events] == [1, 2]


def at(*times):
    """Events of the clock at these times."""
    return [sn.Event(lambda t, y, a=a: y[0] - a) for a in times]


def test_several_in_one_step_come_in_order():
    """Whatever their order in the list; what comes after the one that stops the run is not found."""
    times = [0.61, 0.12, 0.60, 0.13, 0.999]
    solution = solve_clock(at(*times))
    np.testing.assert_allclose(np.concatenate(solution.t_events), times, rtol=LAST_BITS)
    stop = sn.Event(lambda t, y: y[0] - 0.605, terminal=True)
    stopped = solve_clock([*at(*times), stop])
    assert [len(t) for t in stopped.t_events] == [0, 1, 1, 1, 0, 1]
    assert stopped.t[-1] == pytest.approx(0.605, rel=LAST_BITS)


def test_two_at_the_same_time_are_both_found():
    solution = solve_clock([*at(0.3, 0.3), sn.Event(lambda t, y: 0.3 - t)])
    for t in solution.t_events:
        np.testing.assert_allclose(t, [0.3], rtol=LAST_BITS)


@pytest.mark.parametrize("where", [0.25, 0.5, 0.125, 1.0], ids=str)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_zero_at_a_joint_or_a_sample_is_found_once(where, steps):
    solution = solve_clock(sn.Event(lambda t, y: t - where), steps=steps)
    np.testing.assert_allclose(solution.t_events[0], [where], rtol=LAST_BITS)


def test_zeros_are_found_to_the_last_bits():
    times = np.random.default_rng(0).uniform(0.0, 1.0, 50)
    solution = solve_clock(at(*times), steps=3)
    for expected, found in zip(times, solution.t_events, strict=True):
        np.testing.assert_allclose(found, [expected], rtol=LAST_BITS)


SHAPES = {"cubic": lambda x: x**3, "steep": lambda x: np.tanh(1e6 * x), "tiny": lambda x: 1e-200 * x, "expm1": np.expm1}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_flat_steep_and_tiny_functions(shape):
    solution = solve_clock(sn.Event(lambda t, y: shape(y[0] - 0.37)))
    np.testing.assert_allclose(solution.t_events[0], [0.37], rtol=1e-5 if shape(0.5) == 0.125 else 1e-12)


def test_a_function_that_jumps_is_found_at_its_jump():
    solution = solve_clock(sn.Event(lambda t, y: np.where(y[0] < 0.7371, -1.0, 2.0)))
    np.testing.assert_allclose(solution.t_events[0], [0.7371], rtol=LAST_BITS)


# ---- two zeros in one step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "dop853"])
def test_two_zeros_further_apart_than_an_eighth_of_a_step_are_both_found(scheme):
    """y' = 1, g = (y - a)(y - a - d): g has the same sign at both ends of the only step."""
    d = 1.001 / SAMPLES
    for a in np.linspace(0.01, 0.99 - d, 23):
        event = sn.Event(lambda t, y, a=a: (y[0] - a) * (y[0] - a - d))
        solution = sn.solve(sn.ODE(clock, [0.0], (0.0, 1.0)), scheme, steps=1, events=event)
        np.testing.assert_allclose(solution.t_events[0], [a, a + d], rtol=1e-12)


@pytest.mark.parametrize("d", [0.3 / SAMPLES, 1e-3, 1e-6])
def test_two_zeros_much_closer_than_that_are_both_found(d):
    """The minimum of |g| between them is searched, wherever they lie."""
    for a in np.linspace(0.01, 0.99 - d, 61):
        solution = solve_clock(sn.Event(lambda t, y, a=a: (y[0] - a) * (y[0] - a - d)))
        np.testing.assert_allclose(solution.t_events[0], [a, a + d], rtol=0, atol=1e-15 / d)


def test_a_dip_is_found_however_long_the_step():
    """Free flight past a disk: the step spans many times the chord, which is short against an eighth of it."""
    for offset in (0.0, 0.5, 0.99, 0.9999):
        disk = sn.Event(lambda t, y, c=offset: (y[0] - 3.0) ** 2 + c**2 - 1.0)
        solution = sn.solve(sn.ODE(clock, [0.0], (0.0, 1000.0)), "dopri5", events=disk)
        half = math.sqrt(1 - offset**2)
        np.testing.assert_allclose(solution.t_events[0], [3 - half, 3 + half], rtol=0, atol=1e-9)


@pytest.mark.parametrize("depth", [1e-2, 1e-4, 1e-6])
def test_a_function_that_dips_below_zero_is_found_twice(depth):
    """1 - depth = sin t at pi/2 -+ arccos(1 - depth), without a limit on the steps."""
    distance = math.acos(1 - depth)
    solution = sn.solve(oscillation(math.pi), "dop853", events=lambda t, y: 1 - depth - y[0], **TIGHT)
    expected = [math.pi / 2 - distance, math.pi / 2 + distance]
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=0, atol=CLOSED_FORM / distance)


def test_a_tangent_touch_is_where_the_derivative_crosses():
    """1 + 1e-9 - sin t stays above zero and comes near it at pi/2 + 2 pi k, where cos t falls through zero."""
    touch, derivative = sn.Event(lambda t, y: 1 + 1e-9 - y[0]), sn.Event(lambda t, y: y[1], direction=-1)
    solution = sn.solve(oscillation(), "dop853", events=[touch, derivative], **TIGHT)
    assert solution.t_events[0].size == 0
    np.testing.assert_allclose(
        solution.t_events[1], math.pi / 2 + 2 * math.pi * np.arange(3), rtol=0, atol=100 * CLOSED_FORM
    )


def found_touches(event, scheme="dop853", end=20.0, **how):
    return sn.solve(oscillation(end), scheme, events=event, **(how or TIGHT)).t_events[0]


TOUCHES = math.pi / 2 + 2 * math.pi * np.arange(3)  # of 1 - sin t
SAME_TIME = 1e-9  # the derivative of g vanishes there, whose error is that of the solution


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("gap", [0.0, 1e-9, -1e-13])
def test_a_touch_is_found_on_either_side_and_once(gap, sign):
    event = sn.Event(lambda t, y: sign * (1 + gap - y[0]), touch=1e-8)
    np.testing.assert_allclose(found_touches(event), TOUCHES, rtol=0, atol=SAME_TIME)


@pytest.mark.parametrize("max_step", [0.01, 0.1, math.pi / 16, math.pi / 4, 1.0])
def test_touches_at_the_ends_of_steps_and_samples_are_found_once(max_step):
    """With steps of pi/16 every touch is the end of a step, up to rounding."""
    event = sn.Event(lambda t, y: (t - math.pi / 2) ** 2, touch=1e-12)
    times = sn.solve(oscillation(math.pi), "rk4", steps=round(math.pi / max_step), events=event).t_events[0]
    np.testing.assert_allclose(times, [math.pi / 2], rtol=0, atol=1e-7)


def test_a_touch_has_a_direction_and_a_depth():
    assert found_touches(sn.Event(lambda t, y: 1 - y[0], direction=-1, touch=1e-8)).size == 3
    assert found_touches(sn.Event(lambda t, y: 1 - y[0], direction=1, touch=1e-8)).size == 0
    assert found_touches(sn.Event(lambda t, y: 1 + 1e-3 - y[0], touch=1e-8)).size == 0


def test_a_touch_stops_the_run_or_resets_it():
    stopped = sn.solve(
        oscillation(20.0), "dop853", events=sn.Event(lambda t, y: 1 - y[0], touch=1e-8, terminal=2), **TIGHT
    )
    assert stopped.t[-1] == pytest.approx(TOUCHES[1], abs=SAME_TIME)
    again = sn.Event(lambda t, y: 1 - y[0], touch=1e-8, reset=lambda t, y: [0.0, 1.0])
    times = found_touches(again)
    np.testing.assert_allclose(times, math.pi / 2 * np.arange(1, len(times) + 1), rtol=0, atol=100 * SAME_TIME)
    assert len(times) == 12


def test_no_touch_where_a_run_begins_at_a_minimum():
    assert (
        sn.solve(oscillation(3.0), "dop853", events=sn.Event(lambda t, y: t * t + 1e-12, touch=1e-8)).t_events[0].size
        == 0
    )


def test_touches_of_families_without_an_extension_of_their_own():
    """On cubic polynomials between even steps."""
    problem = sn.SecondOrder(lambda t, q: -q, [0.0], [1.0], (0.0, 20.0))
    event = sn.Event(lambda t, q, v: 1 + 1e-6 - q[0], touch=2e-6)
    times = sn.solve(problem, "verlet", steps=20_000, events=event).t_events[0]
    np.testing.assert_allclose(times, TOUCHES, rtol=0, atol=1e-5)


@pytest.mark.parametrize("touch", [-1.0, True, "near", math.nan, math.inf])
def test_bad_touches_are_refused(touch):
    with pytest.raises(ValueError, match="`touch` of an event must be a number"):
        sn.Event(lambda t, y: y[0], touch=touch)


STAYING = {"clipped": lambda t, y: np.maximum(0.3 - y[0], 0.0), "truth": lambda t, y: y[0] < 0.3}


@pytest.mark.parametrize("fun", STAYING.values(), ids=STAYING)
def test_a_function_that_stays_zero_is_found_where_that_begins(fun):
    np.testing.assert_allclose(solve_clock(fun).t_events[0], [0.3], rtol=LAST_BITS)


def test_every_zero_of_a_fast_function_is_found_within_that_distance():
    n = 6  # zeros of cos(n pi y) in one step, 1/6 apart
    solution = solve_clock(sn.Event(lambda t, y: np.cos(n * np.pi * y[0])))
    np.testing.assert_allclose(solution.t_events[0], (np.arange(n) + 0.5) / n, rtol=1e-12)


# ---- rungs -----------------------------------------------------------------------------------------------------------


def by_branch(t, y):
    if y[0] > 0.5:
        return y[0] - 0.7
    return -0.2


TABLE = {"level": 0.7}


def by_python(t, y):
    return float(str(y[0])) - TABLE["level"]  # nothing but Python can do this


RUNGS = {"traced": lambda t, y: y[0] - 0.7, "compiled": by_branch, "python": by_python}


@pytest.mark.parametrize("rung", RUNGS)
def test_event_functions_run_on_every_rung(rung):
    solution = sn.solve(sn.ODE(oscillator, [0.0, 1.0], (0.0, 6.0)), "dop853", events=RUNGS[rung], **TIGHT)
    root = math.asin(0.7)
    np.testing.assert_allclose(solution.t_events[0], [root, math.pi - root], rtol=0, atol=CLOSED_FORM)
    assert solution.statistics.event_rungs == (rung,)


@pytest.mark.parametrize("rung", ["traced", "compiled", "python"])
def test_rungs_find_the_same_zeros(rung, monkeypatch):
    event = lambda t, y, k: y[0] - 0.3 * k + 0.01 * np.sin(5 * t)
    problem = sn.ODE(lambda t, y, k: [y[1], -y[0]], [0.1, 1.0], (0.0, 20.0), (1.5,))
    first = sn.solve(problem, "dopri5", events=event)
    monkeypatch.setenv("STEPNET_RUNG", rung)
    again = sn.solve(problem, "dopri5", events=event)
    assert again.statistics.rung == rung
    assert len(first.t_events[0]) >= 6
    np.testing.assert_allclose(again.t_events[0], first.t_events[0], rtol=1e-9)


# ---- problems of all kinds -------------------------------------------------------------------------------------------


def problems_with_arguments():
    """q'' = -k q from q = 1, v = 0 in every form; args = (k, level)."""
    span, args = (0.0, 3.0), (4.0, 0.5)
    force, move = lambda t, q, k, level: -k * q, lambda t, p, k, level: p
    two = (lambda t, y, k, level: [y[1], 0.0], lambda t, y, k, level: [0.0, -k * y[0]])
    return {
        "ODE": sn.ODE(lambda t, y, k, level: [y[1], -k * y[0]], [1.0, 0.0], span, args),
        "SecondOrder": sn.SecondOrder(force, [1.0], [0.0], span, args),
        "Partitioned": sn.Partitioned(move, force, [1.0], [0.0], span, args),
        "not separable": sn.Partitioned(
            lambda t, q, p, k, level: p, lambda t, q, p, k, level: -k * q, [1.0], [0.0], span, args, separable=False
        ),
        "Split": sn.Split(two, [1.0, 0.0], span, args),
    }


@pytest.mark.parametrize("rung", ["traced", "compiled", "python"])
@pytest.mark.parametrize("kind", problems_with_arguments())
def test_events_get_the_state_and_the_arguments(kind, rung, monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", rung)
    if kind in ("ODE", "Split"):
        position, speed = lambda t, y, k, level: y[0] - level, lambda t, y, k, level: y[1]
    else:
        position, speed = lambda t, q, p, k, level: q[0] - level, lambda t, q, p, k, level: p[0]
    solution = sn.solve(problems_with_arguments()[kind], "dop853", events=[position, speed], **TIGHT)
    crossing = math.acos(0.5) / 2
    np.testing.assert_allclose(solution.t_events[0], [crossing, math.pi - crossing], rtol=0, atol=CLOSED_FORM)
    np.testing.assert_allclose(solution.t_events[1], [math.pi / 2], rtol=0, atol=CLOSED_FORM)
    assert solution.y_events[0].shape == (2, 2)


@pytest.mark.parametrize("kind", problems_with_arguments())
def test_reset_gets_the_flat_state_and_the_arguments(kind):
    def reset(t, y, k, level):
        assert (k, level) == (4.0, 0.5)
        assert y.shape == (2,)
        return [1.0, 0.0]

    fun = (lambda t, y, k, level: y[0]) if kind in ("ODE", "Split") else (lambda t, q, p, k, level: q[0])
    event = sn.Event(fun, -1, reset=reset)
    solution = sn.solve(problems_with_arguments()[kind], "dop853", events=event, **TIGHT)
    np.testing.assert_allclose(solution.t_events[0], np.arange(1, 4) * math.pi / 4, rtol=0, atol=CLOSED_FORM)


def test_states_keep_their_shape():
    problem = sn.ODE(lambda t, y: -y, [[1.0, 2.0], [3.0, 4.0]], (0.0, 1.0))
    seen = []
    event = sn.Event(lambda t, y: y[1, 1] - 3.0, reset=lambda t, y: seen.append(y.shape) or 2 * y)
    solution = sn.solve(problem, "dopri5", events=event)
    assert solution.y_events[0].shape == (len(solution.t_events[0]), 2, 2)
    assert seen == [(2, 2)] * len(solution.t_events[0])
    assert solution.t_events[0][0] == pytest.approx(math.log(4 / 3), rel=1e-6)


def test_complex_states():
    problem = sn.ODE(lambda t, y: 1j * y, [1.0 + 0.0j], (0.0, 10.0))
    solution = sn.solve(problem, "dop853", events=lambda t, y: y[0].real, **TIGHT)
    np.testing.assert_allclose(solution.t_events[0], np.array([0.5, 1.5, 2.5]) * math.pi, rtol=0, atol=CLOSED_FORM)
    assert solution.y_events[0].dtype == np.complex128
    np.testing.assert_allclose(solution.y_events[0][:, 0], [1j, -1j, 1j], atol=CLOSED_FORM)


def test_single_precision_states():
    problem = sn.ODE(oscillator, np.array([0.1, 1.0], np.float32), (0.0, 10.0))
    solution = sn.solve(problem, "dopri5", rtol=1e-5, atol=1e-6, events=lambda t, y: y[0])
    start = math.atan(0.1)
    np.testing.assert_allclose(solution.t_events[0], np.arange(1, 4) * math.pi - start, rtol=1e-5)  # of rtol
    assert solution.y_events[0].dtype == np.float32


@pytest.mark.parametrize("direction", [0, 1, -1])
def test_backward_in_time_a_direction_is_that_of_the_run(direction):
    """From t = 10 down to 0.1, y = sin t falls through zero at odd multiples of pi as t falls."""
    solution = sn.solve(oscillation(0.1, t0=10.0), "dop853", events=sn.Event(lambda t, y: y[0], direction), **TIGHT)
    expected = {0: [3, 2, 1], 1: [3, 1], -1: [2]}[direction]
    np.testing.assert_allclose(solution.t_events[0], np.array(expected) * math.pi, rtol=0, atol=CLOSED_FORM)


def test_attributes_of_functions_are_understood():
    def event(t, y):
        return y[0]

    event.terminal, event.direction = 2, -1.0
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=event, **TIGHT)
    np.testing.assert_allclose(solution.t_events[0], [math.pi, 3 * math.pi], rtol=0, atol=CLOSED_FORM)
    assert solution.status is sn.Status.EVENT


# ---- many, and together with saving ----------------------------------------------------------------------------------


@GIVEN_OR_CHOSEN
def test_thousands_of_zeros_are_kept(steps):
    how = {"steps": 6000} if steps else {"max_step": 0.17}
    problem = sn.ODE(clock, [0.0], (0.0, 1000.0))
    solution = sn.solve(problem, "dopri5", events=[lambda t, y: np.sin(15 * y[0] + 0.1), *at(500.0)], **how)
    expected = (np.arange(1, 4775) * math.pi - 0.1) / 15
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=1e-12)
    np.testing.assert_allclose(solution.y_events[0][:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(solution.t_events[1], [500.0])


def test_storage_grows_with_what_is_stored():
    """40 000 steps with dense output and an event that never comes: only the steps need room."""
    problem, longest = sn.ODE(clock, [0.0], (0.0, 1.0)), 1 / 40_000
    tracemalloc.start()
    try:
        solution = sn.solve(problem, "dopri5", max_step=longest, dense=True, events=lambda t, y: y[0] - 2.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(solution.t) > 40_000
    stored = (solution.y, solution.t, solution.pieces.data, solution.pieces.t, solution.pieces.h)
    assert peak <= 8 * sum(x.nbytes for x in stored)  # room is doubled, copied when doubled, and copied at the end


SAVING = [{}, {"save_every": 0}, {"save_every": 5}, {"save_at": [0.5, 2.0, 4.0]}, {"save_at": []}]


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("dense", [False, True], ids=["plain", "dense"])
@pytest.mark.parametrize("saving", SAVING, ids=str)
def test_zeros_do_not_depend_on_what_is_saved(saving, dense, steps):
    how = {"steps": 500} if steps else TIGHT
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=lambda t, y: y[0], dense=dense, **saving, **how)
    np.testing.assert_allclose(solution.t_events[0], np.arange(1, 7) * math.pi, rtol=0, atol=CLOSED_FORM)
    if "save_at" in saving:
        np.testing.assert_array_equal(solution.t, saving["save_at"])
    else:
        assert solution.t[-1] == 20.0
    np.testing.assert_allclose(solution.y, np.stack((np.sin(solution.t), np.cos(solution.t)), axis=1), atol=1e-8)


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("dense", [False, True], ids=["plain", "dense"])
@pytest.mark.parametrize("saving", SAVING, ids=str)
def test_what_is_saved_up_to_a_terminal_event(saving, dense, steps):
    how = {"steps": 500} if steps else TIGHT
    stop = sn.Event(lambda t, y: y[0], terminal=True)
    solution = sn.solve(oscillation(t0=0.1), "dop853", events=stop, dense=dense, **saving, **how)
    assert solution.status is sn.Status.EVENT
    assert solution.t_events[0][0] == pytest.approx(math.pi, abs=CLOSED_FORM)
    if "save_at" in saving:
        np.testing.assert_array_equal(solution.t, [t for t in saving["save_at"] if t < math.pi])
    else:
        assert solution.t[-1] == solution.t_events[0][0]
    assert "stopped by an event" in repr(solution)


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("dense", [False, True], ids=["plain", "dense"])
@pytest.mark.parametrize("saving", SAVING, ids=str)
def test_what_is_saved_around_resets(saving, dense, steps):
    """y' = 1, back to 0 whenever it is 0.7: a sawtooth."""
    how = {"steps": 50} if steps else {"max_step": 0.09}
    back = sn.Event(lambda t, y: y[0] - 0.7, reset=lambda t, y: [0.0])
    problem = sn.ODE(clock, [0.0], (0.0, 4.5))
    solution = sn.solve(problem, "dopri5", events=back, dense=dense, **saving, **how)
    np.testing.assert_allclose(solution.t_events[0], np.arange(1, 7) * 0.7, rtol=1e-12)
    phase = solution.t / 0.7
    away = np.abs(phase - np.round(phase)) > 1e-9
    np.testing.assert_allclose(solution.y[away, 0], (solution.t % 0.7)[away], rtol=1e-9, atol=1e-11)
    if saving.get("save_every") == 0:
        assert len(solution.t) == 1
    if "save_at" in saving:
        np.testing.assert_array_equal(solution.t, saving["save_at"])


def test_after_a_reset_other_events_begin_anew():
    """The speed of a bouncing ball is zero at the top only; that it jumps through zero at the ground is no zero."""
    bounce = sn.Event(lambda t, y: y[0], -1, reset=lambda t, y: [0.0, -y[1]])
    speed = sn.Event(lambda t, y: y[1])
    problem = sn.ODE(lambda t, y: [y[1], -2.0], [1.0, -1e-9], (0.0, 5.5))
    solution = sn.solve(problem, "dopri5", events=[bounce, speed])
    np.testing.assert_allclose(solution.t_events[0], [1.0, 3.0, 5.0], atol=1e-8)
    np.testing.assert_allclose(solution.t_events[1], [2.0, 4.0], atol=1e-8)


def test_events_of_a_run_do_not_change_its_steps():
    plain = sn.solve(oscillation(), "dopri5")
    watched = sn.solve(oscillation(), "dopri5", events=lambda t, y: y[0] - 0.3)
    np.testing.assert_allclose(watched.t, plain.t, rtol=1e-9)  # a slope known to its last bit only
    np.testing.assert_allclose(watched.y, plain.y, rtol=0, atol=1e-9)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


class Mine(Exception):
    """An exception that compiled code knows nothing of."""


def raises_in_python(t, y):
    if t > 0.5:
        raise Mine("too late")
    return 1.0


def raises_in_compiled_code(t, y):
    if t > 0.5:
        raise ValueError("too late")
    return 1.0


@pytest.mark.parametrize("fun", [raises_in_python, raises_in_compiled_code], ids=["python", "compiled"])
def test_an_exception_is_the_cause_of_the_failure(fun):
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(clock, [0.0], (0.0, 1.0)), "dopri5", steps=10, events=fun)
    assert str(caught.value.__cause__) == "too late"
    solution = caught.value.solution
    assert solution.status is sn.Status.FIELD_RAISED
    assert solution.t[-1] == pytest.approx(0.5)
    assert "too late" in solution.message


def test_an_exception_at_the_beginning_comes_through_as_it_is():
    def event(t, y):
        raise Mine("at once")

    with pytest.raises(Mine, match="at once"):
        solve_clock(event)


def test_a_function_that_is_not_a_number_for_a_while_is_no_zero_there():
    """g is NaN between 0.2 and 0.4, and zero at 0.7."""
    event = sn.Event(lambda t, y: np.sqrt((y[0] - 0.2) * (y[0] - 0.4)) * 0.0 + y[0] - 0.7)
    with np.errstate(invalid="ignore"):
        solution = solve_clock(event, steps=10)
    np.testing.assert_allclose(solution.t_events[0], [0.7], rtol=1e-12)


def test_one_number_in_an_array_is_a_number():
    solution = solve_clock(sn.Event(lambda t, y: y - 0.7))
    np.testing.assert_allclose(solution.t_events[0], [0.7], rtol=LAST_BITS)


@pytest.mark.parametrize(
    ("fun", "kind"),
    [(lambda t, y: [y[0], 1.0], ValueError), (lambda t, y: None, TypeError), (lambda t, y: "zero", TypeError)],
    ids=["two numbers", "nothing", "text"],
)
def test_other_results_are_refused_by_the_name_of_the_event(fun, kind):
    with pytest.raises(kind, match=re.escape("`events[1]`")):
        solve_clock([lambda t, y: y[0] - 0.5, fun])


@pytest.mark.parametrize("new", [[1.0, 2.0], [], [math.nan], [math.inf]], ids=str)
def test_a_reset_of_another_shape_or_not_finite_is_refused(new):
    with pytest.raises(ValueError, match=r"`reset`.*1 finite number"):
        solve_clock(sn.Event(lambda t, y: y[0] - 0.5, reset=lambda t, y: new))


def test_a_reset_may_raise():
    def reset(t, y):
        raise Mine("no state")

    with pytest.raises(Mine, match="no state"):
        solve_clock(sn.Event(lambda t, y: y[0] - 0.5, reset=reset))


def test_a_reset_of_the_other_shape_of_a_matrix_is_refused():
    problem = sn.ODE(lambda t, y: np.ones((2, 3)), np.zeros((2, 3)), (0.0, 1.0))
    with pytest.raises(ValueError, match="`reset`"):
        sn.solve(problem, "rk4", steps=4, events=sn.Event(lambda t, y: y[0, 0] - 0.5, reset=lambda t, y: y.T))


@pytest.mark.parametrize(
    ("facts", "kind", "words"),
    [
        ({"fun": 1.0}, TypeError, "`fun` of an event must be a function or a C function, found float"),
        ({"direction": 2}, ValueError, "`direction` of an event must be -1, 0 or 1, found 2"),
        (
            {"terminal": -1},
            ValueError,
            "a boolean or a count of at most 2**62, found -1",
        ),
        (
            {"terminal": 1.5},
            ValueError,
            "a boolean or a count of at most 2**62, found 1.5",
        ),
        ({"reset": 1.0}, TypeError, "`reset` of an event must be a function, found float"),
        ({"reset": abs, "terminal": True}, ValueError, "cannot both stop the run"),
    ],
    ids=["function", "direction", "negative count", "broken count", "reset", "stop and go on"],
)
def test_bad_events_are_refused(facts, kind, words):
    with pytest.raises(kind, match=re.escape(words)):
        sn.Event(**{"fun": lambda t, y: y[0], **facts})


@pytest.mark.parametrize("events", [3.0, [3.0], "event"], ids=str)
def test_what_is_no_event_is_refused(events):
    with pytest.raises(TypeError, match="event"):
        solve_clock(events)


# ---- resets in odd places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 10])
def test_two_resets_at_the_same_time_both_happen(steps):
    first = sn.Event(lambda t, y: y[0] - 0.3, 1, reset=lambda t, y: y + 10.0)
    second = sn.Event(lambda t, y: t - 0.3, 1, reset=lambda t, y: y + 100.0)
    solution = solve_clock([first, second], steps=steps)
    assert [len(t) for t in solution.t_events] == [1, 1]
    assert solution.y[-1, 0] == pytest.approx(111.0)


@GIVEN_OR_CHOSEN
@pytest.mark.parametrize("saving", [{}, {"save_every": 0}, {"save_every": 5}], ids=str)
def test_a_reset_at_the_very_end_is_the_end(saving, steps):
    lift = sn.Event(lambda t, y: t - 1.0, reset=lambda t, y: [5.0])
    solution = sn.solve(sn.ODE(clock, [0.0], (0.0, 1.0)), "dopri5", steps=steps, events=lift, **saving)
    assert solution.status is sn.Status.COMPLETED
    assert (solution.t[-1], solution.y[-1, 0]) == (1.0, 5.0)


def test_a_zero_at_the_start_counts_if_wanted():
    for direction, expected in ((0, [0.0, math.pi]), (1, [0.0]), (-1, [math.pi])):
        event = sn.Event(lambda t, y: y[0], direction, at_start=True)
        solution = sn.solve(oscillation(4.0), "dop853", events=event, **TIGHT)
        np.testing.assert_allclose(solution.t_events[0], expected, rtol=0, atol=CLOSED_FORM)
    stop = sn.Event(lambda t, y: y[0], terminal=True, at_start=True)
    assert sn.solve(oscillation(4.0), "dop853", events=stop).t_end == 0.0


@pytest.mark.parametrize("new", [None, "text", [1.0 + 1.0j]], ids=str)
def test_a_reset_to_what_is_no_state_is_refused(new):
    with pytest.raises((TypeError, ValueError), match="`reset`"):
        solve_clock(sn.Event(lambda t, y: y[0] - 0.5, reset=lambda t, y: new))
