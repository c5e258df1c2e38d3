"""Families without a continuous extension: output inside their steps comes from a cubic."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scheme_names import FIXED_STEPS
from scipy.special import ellipj

import stepnet as sn
from stepnet.schemes import conditions
from stepnet.schemes.capabilities import is_implicit

EXACT = 1e-12  # relative: where scheme and cubic are exact, so only round-off is left
ORDER_SLACK = 0.3  # of a slope between finite steps
FLOOR = 1e-12  # errors below this are round-off of some thousand steps
CUBIC_ORDER = 4  # its error is O(h^4)

OF_SUMS = (sn.schemes.SemiImplicitBDF, sn.schemes.ExponentialRK)  # which take no equation without parts
OTHERS = [s for s in map(sn.schemes.get, FIXED_STEPS) if not isinstance(s, (sn.schemes.ExplicitRK, *OF_SUMS))]
ONE_STEP = [s for s in OTHERS if not isinstance(s, (sn.schemes.Multistep, sn.schemes.FixedBDF))]
MULTISTEP = [s for s in OTHERS if isinstance(s, (sn.schemes.Multistep, sn.schemes.FixedBDF))]
ONE_OF_EACH = [sn.schemes.get(name) for name in ("carpenter_kennedy54", "rkl2", "verlet", "yoshida6", "ruth3")]

every_other = pytest.mark.parametrize("scheme", OTHERS, ids=lambda scheme: scheme.name)
every_one_step = pytest.mark.parametrize("scheme", ONE_STEP, ids=lambda scheme: scheme.name)
every_multistep = pytest.mark.parametrize("scheme", MULTISTEP, ids=lambda scheme: scheme.name)
one_of_each = pytest.mark.parametrize("scheme", ONE_OF_EACH, ids=lambda scheme: scheme.name)


def motion(force, q0: float, v0: float, t_end: float, scheme, args=()):
    """q'' = force(t, q) in the form that a scheme takes; the flat state is (q, v)."""
    span = (0.0, t_end)
    if getattr(scheme, "nystrom", False) or getattr(scheme, "derivative", 1) == 2:
        return sn.SecondOrder(force, [q0], [v0], span, args)
    if isinstance(scheme, (sn.schemes.Splitting, sn.schemes.PartitionedRK)):
        return sn.Partitioned(lambda t, p, *args: p, force, [q0], [v0], span, args)
    return sn.ODE(lambda t, y, *args: [y[1], force(t, y[0], *args)], [q0, v0], span, args)


def of_state(g, problem):
    """An event g(t, q, v) as the problem calls it."""
    if isinstance(problem, sn.ODE):
        return lambda t, y, *args: g(t, y[0], y[1], *args)
    return lambda t, q, v, *args: g(t, q[0], v[0], *args)


def swing(t, q):
    return -np.sin(q)


K = 0.6  # sine of half the largest angle


def swing_exact(t) -> np.ndarray:
    """q = 2 asin(k sn t), v = 2 k cn t."""
    sine, cosine, _, _ = ellipj(t, K**2)
    return np.stack((2 * np.arcsin(K * sine), 2 * K * cosine), axis=-1)


def free(t, q):
    """q = t: exact for every scheme and for the cubic."""
    return 0.0 * q


# ---- dense output ----------------------------------------------------------------------------------------------------


@every_other
def test_error_along_the_run_converges_with_its_order(scheme):
    """The cubic adds O(h^4) to the O(h^p) of the steps."""
    counts, times = [round(24 * 1.5**k) for k in range(8)], np.linspace(0.0, 4.0, 201)
    problem, errors = motion(swing, 0.0, 2 * K, 4.0, scheme), []
    for n in counts:
        errors.append(np.max(np.abs(sn.solve(problem, scheme, steps=n, dense=True)(times) - swing_exact(times))))
    slopes = [math.log(errors[i] / errors[i + 1]) / math.log(counts[i + 1] / counts[i]) for i in range(7)]
    kept = [slope for slope, error in zip(slopes, errors[1:], strict=True) if error > FLOOR]
    assert len(kept) >= 3
    found = np.median(kept[-3:])
    assert found >= min(scheme.order, CUBIC_ORDER) - ORDER_SLACK
    if scheme.order > CUBIC_ORDER + 1:  # else the error of the steps may still be the larger one
        assert found <= CUBIC_ORDER + ORDER_SLACK


@every_other
def test_dense_output_does_not_change_the_run(scheme):
    problem = motion(swing, 0.0, 2 * K, 4.0, scheme)
    with_it, without = (sn.solve(problem, scheme, steps=29, dense=dense) for dense in (True, False))
    np.testing.assert_array_equal(with_it.t, without.t)
    np.testing.assert_array_equal(with_it.y, without.y)
    assert len(with_it.pieces.t) == 29
    np.testing.assert_allclose(with_it(with_it.t), with_it.y, rtol=0, atol=EXACT)


@one_of_each
def test_thousands_of_steps_and_given_times(scheme):
    """More than a block of them, and of uneven length."""
    grid = np.linspace(0.0, 2.0, 3001) ** 2
    solution = sn.solve(motion(swing, 0.0, 2 * K, 4.0, scheme), scheme, steps=grid, dense=True, save_every=7)
    plain = sn.solve(motion(swing, 0.0, 2 * K, 4.0, scheme), scheme, steps=grid, save_every=7)
    np.testing.assert_array_equal(solution.y, plain.y)
    np.testing.assert_array_equal(solution.t, plain.t)
    times = np.linspace(0.0, 4.0, 101)
    np.testing.assert_allclose(solution(times), swing_exact(times), atol=1e-5)


WANTED = np.sort(np.random.default_rng(0).uniform(0.0, 4.0, 40))


@every_other
def test_states_at_wanted_times_do_not_depend_on_what_else_is_wanted(scheme):
    """They are as accurate as the scheme, also where the cubic is not."""
    problem = motion(swing, 0.0, 2 * K, 4.0, scheme)
    plain = sn.solve(problem, scheme, steps=50, save_at=WANTED)
    stop = sn.Event(of_state(lambda t, q, v: t - 3.0, problem), terminal=True)
    for how in ({"dense": True}, {"events": stop}):
        solution = sn.solve(problem, scheme, steps=50, save_at=WANTED, **how)
        np.testing.assert_array_equal(solution.t, WANTED[WANTED < 3.0] if "events" in how else WANTED)
        np.testing.assert_array_equal(solution.y, plain.y[: len(solution.t)])


@one_of_each
def test_times_wanted_between_resets_are_on_the_cubic(scheme):
    problem = motion(swing, 0.0, 2 * K, 4.0, scheme)
    back = sn.Event(of_state(lambda t, q, v: q - 0.5, problem), 1, reset=lambda t, y: [0.0, y[1]])
    solution = sn.solve(problem, scheme, steps=50, dense=True, save_at=WANTED, events=back)
    np.testing.assert_array_equal(solution.t, WANTED)
    np.testing.assert_allclose(solution(WANTED), solution.y, rtol=0, atol=EXACT)


def test_sums_of_parts_and_other_kinds_of_states():
    parts = (lambda t, y, k: [y[1], 0.0], lambda t, y, k: [0.0, -k * y[0]])
    times = np.linspace(0.0, 2.0, 21)
    solution = sn.solve(sn.Split(parts, [1.0, 0.0], (0.0, 2.0), (1.0,)), "strang", steps=4000, dense=True)
    np.testing.assert_allclose(solution(times), np.stack((np.cos(times), -np.sin(times)), axis=1), atol=1e-6)
    for kind, close in ((np.float32, 1e-4), (np.complex128, 1e-8)):
        problem = sn.ODE(lambda t, y: -y, np.ones((2, 2), kind), (0.0, 2.0))
        solution = sn.solve(problem, "carpenter_kennedy54", steps=50, dense=True)
        assert solution(0.3).dtype == kind
        expected = np.exp(-times)[:, None, None] * np.ones((2, 2))
        np.testing.assert_allclose(solution(times), expected, rtol=0, atol=close)


# ---- events ----------------------------------------------------------------------------------------------------------


@every_other
@pytest.mark.parametrize("steps", [9, 1500])
def test_zeros_come_in_order_to_the_last_bits(scheme, steps):
    problem = motion(free, 0.0, 1.0, 3.0, scheme)
    times = [0.61, 2.12, 0.60, 2.13, 2.999]
    events = [sn.Event(of_state(lambda t, q, v, a=a: q - a, problem)) for a in times]
    solution = sn.solve(problem, scheme, steps=steps, events=[*events, sn.Event(events[0].fun, -1)])
    np.testing.assert_allclose(np.concatenate(solution.t_events), times, rtol=EXACT)
    stop = sn.Event(of_state(lambda t, q, v: q - 2.125, problem), terminal=True)
    stopped = sn.solve(problem, scheme, steps=steps, events=[*events, stop])
    assert stopped.status is sn.Status.EVENT
    assert [len(t) for t in stopped.t_events] == [1, 1, 1, 0, 0, 1]
    assert stopped.t[-1] == stopped.t_end == stopped.t_events[-1][0]
    np.testing.assert_array_equal(stopped.y[-1], stopped.y_events[-1][0])


ERROR_CONSTANTS = {
    "ab2": 5 / 12, "ab4": 251 / 720, "midpoint_two_step": 1 / 6, "leapfrog_two_step": 1 / 24, "verlet": 1 / 24,
    "verlet_position": 1 / 24, "strang": 1 / 24,
}  # fmt: skip
"""Of schemes of even order p: c in the relative error c (omega h)^p of their frequency."""


@every_other
def test_events_do_not_change_the_run_and_get_the_arguments(scheme):
    problem = motion(lambda t, q, k: -k * q, 1.0, 0.0, 3.0, scheme, (4.0,))
    event = of_state(lambda t, q, v, k: v - 0.01 * k, problem)
    watched, plain = sn.solve(problem, scheme, steps=3000, events=event), sn.solve(problem, scheme, steps=3000)
    np.testing.assert_array_equal(watched.y, plain.y)
    zero, z, p = (math.pi + math.asin(0.02)) / 2, 2.0 * 1e-3, min(scheme.order, CUBIC_ORDER)
    # Even orders change the frequency.  Odd ones change the amplitude, which moves the zero by 0.02 times as much.
    bound = 0.5 * zero * z**p * (1.0 if p % 2 == 0 else 0.02 + z)  # no error constant in the catalogue exceeds 1/2
    np.testing.assert_allclose(watched.t_events[0], [zero], rtol=0, atol=bound + EXACT / 10)
    if scheme.name in ERROR_CONSTANTS:
        error = abs(watched.t_events[0][0] - zero)
        assert error == pytest.approx(ERROR_CONSTANTS[scheme.name] * zero * z**p, rel=0.05)


def bounces(height: float, restitution: float, end: float) -> np.ndarray:
    """First after sqrt(2 h / g), then after 2 e^k v / g each."""
    fall = math.sqrt(2 * height / 9.81)
    times = fall + np.concatenate(([0.0], np.cumsum(2 * fall * restitution ** np.arange(1.0, 12))))
    return times[times < end]


@pytest.mark.parametrize("scheme", [s for s in ONE_STEP if s.order >= 2], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("steps", [37, [0.0, 0.3, 0.31, 1.0, 1.7, 2.2, 2.8, 3.0]], ids=["even", "given"])
def test_bouncing_ball(scheme, steps):
    problem = motion(lambda t, q: 0.0 * q - 9.81, 2.0, 0.0, 3.0, scheme)
    ground = of_state(lambda t, q, v: q, problem)
    bounce = sn.Event(ground, -1, reset=lambda t, y: [0.0, -0.8 * y[1]])
    solution = sn.solve(problem, scheme, steps=steps, events=bounce, dense=True)
    expected = bounces(2.0, 0.8, 3.0)
    np.testing.assert_allclose(solution.t_events[0], expected, rtol=1e-9)
    speed = 0.8 ** len(expected) * math.sqrt(2 * 9.81 * 2.0)
    since = 3.0 - expected[-1]
    end = [speed * since - 9.81 * since**2 / 2, speed - 9.81 * since]
    np.testing.assert_allclose(solution.y[-1], end, atol=1e-8)
    np.testing.assert_allclose(solution(3.0), end, atol=1e-8)
    assert solution.t[-1] == 3.0


@every_one_step
def test_a_reset_at_the_end_of_a_step(scheme):
    problem = motion(free, 0.0, 1.0, 1.0, scheme)
    back = sn.Event(of_state(lambda t, q, v: t - 0.5, problem), reset=lambda t, y: [5.0, 1.0])
    solution = sn.solve(problem, scheme, steps=4, events=back, dense=True)
    np.testing.assert_allclose(solution.t, [0.0, 0.25, 0.5, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(solution.y[:, 0], [0.0, 0.25, 0.5, 5.0, 5.25, 5.5], rtol=EXACT)


@every_multistep
def test_a_scheme_with_a_history_refuses_to_change_it(scheme):
    problem = motion(free, 0.0, 1.0, 1.0, scheme)
    reset = sn.Event(of_state(lambda t, q, v: q - 0.5, problem), reset=lambda t, y: y)
    for how, word in (({"events": reset}, "reset"), ({"project": lambda t, y: y}, "project")):
        with pytest.raises(TypeError, match=f"{re.escape(scheme.name)} continues from its history.*`{word}`"):
            sn.solve(problem, scheme, steps=20, **how)


# ---- projection ------------------------------------------------------------------------------------------------------


@every_one_step
def test_a_projection_keeps_an_invariant(scheme):
    problem = motion(lambda t, q: -q, 1.0, 0.0, 10.0, scheme)
    projected = sn.solve(problem, scheme, steps=200, project=lambda t, y: y / np.sqrt(y[0] ** 2 + y[1] ** 2))
    np.testing.assert_allclose(np.sum(projected.y**2, axis=1), 1.0, rtol=EXACT)
    exact = np.stack((np.cos(projected.t), -np.sin(projected.t)), axis=1)
    h, c = 0.05, 1 / 6 if is_implicit(scheme) else 1 / 12  # no error constant of these schemes is larger
    np.testing.assert_allclose(projected.y, exact, rtol=0, atol=10.0 * c * h**scheme.order + EXACT)
    is_kept = is_implicit(scheme) and abs(conditions.amplification(scheme, 1j) - 1.0) <= EXACT  # a rotation
    if scheme.order <= 3 and not is_kept:  # those of higher order keep it almost exactly by themselves
        plain = sn.solve(problem, scheme, steps=200)
        assert np.max(np.abs(np.sum(plain.y**2, axis=1) - 1.0)) > 1e-7


# ---- what it costs, and what goes wrong ------------------------------------------------------------------------------


class Counted:
    """A force that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, t, q):
        self.calls += 1
        return -np.sin(q)


@pytest.mark.parametrize("scheme", ["verlet", "ruth3", "leapfrog_two_step"])
def test_evaluations_are_counted(scheme, monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", "python")
    force = Counted()
    solution = sn.solve(sn.SecondOrder(force, [0.0], [1.0], (0.0, 1.0)), scheme, steps=13, dense=True)
    assert force.calls == solution.statistics.evaluations


BLOW_UP = {
    "rkc1": lambda h, y: 0.67 * h * y * np.log(y),  # a step is 1 + z + 0.165 z^2, z = h y, and 0.67 = 2 (1/2 - 0.165)
    "williamson3": lambda h, y: 7 / 36 * h**3 * y * (y**2 - 1),  # a step from y = 1 lacks 7/18 h^4
    "ab3": lambda h, y: 4.5 * h**3 * y * (y**2 - 1),  # 3/8 of the fourth derivative is 9 y^5
}
"""Relative errors of y' = y^2: local errors c h^{p+1} y^{p+2} add up to c h^p y^2 times the integral of y^p."""


@pytest.mark.parametrize("scheme", BLOW_UP)
def test_a_run_that_fails_is_covered_up_to_there(scheme):
    problem = sn.ODE(lambda t, y: y * y, [1.0], (0.0, 3.0))
    solution = sn.solve(problem, scheme, steps=3000, dense=True, check=False)
    assert solution.status is sn.Status.NOT_FINITE
    assert 1.0 <= solution.t_end <= 1.01  # at most ten steps beyond the pole
    y = np.array([1 / 0.7, 5.0])
    np.testing.assert_allclose(1 - solution([0.3, 0.8])[:, 0] / y, BLOW_UP[scheme](1e-3, y), rtol=0.05)


def raises_later(t, q):
    if t > 0.5:
        raise ValueError("too late")
    return -q


@pytest.mark.parametrize("scheme", ["verlet", "ruth3", "leapfrog_two_step"])
def test_an_exception_of_the_force_is_the_cause(scheme):
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.SecondOrder(raises_later, [1.0], [0.0], (0.0, 1.0)), scheme, steps=100, dense=True)
    assert str(caught.value.__cause__) == "too late"
    assert caught.value.solution.t_end == pytest.approx(0.5, rel=EXACT)


def test_an_exception_of_an_event_is_the_cause():
    def event(t, q, v):
        if t > 0.5:
            raise ValueError("too late")
        return 1.0

    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.SecondOrder(swing, [1.0], [0.0], (0.0, 1.0)), "verlet", steps=10, events=event)
    assert str(caught.value.__cause__) == "too late"
    assert caught.value.solution.t[-1] == pytest.approx(0.5)


def test_what_comes_after_an_event_is_not_asked_for():
    """Steps are taken ahead of the search, so some lie beyond the event; that they fail there is nobody's business."""

    def force(t, q):
        return np.log(1.0 - q)  # NaN behind the wall at q = 1

    problem = sn.SecondOrder(force, [0.0], [3.0], (0.0, 1.0))
    wall = lambda t, q, v: q[0] - 0.9
    with np.errstate(invalid="ignore"):
        stopped = sn.solve(problem, "verlet", steps=200, events=sn.Event(wall, terminal=True))
        bounced = sn.solve(problem, "verlet", steps=200, events=sn.Event(wall, 1, reset=lambda t, y: [y[0], -y[1]]))
    assert stopped.status is sn.Status.EVENT
    assert bounced.status is sn.Status.COMPLETED
    assert bounced.t_events[0][0] == pytest.approx(stopped.t_end, rel=EXACT)
    assert np.max(bounced.y[:, 0]) <= 0.9 * (1 + EXACT)


@every_other
def test_an_interval_of_no_length_has_its_one_state(scheme):
    problem = motion(swing, 0.3, 0.2, 0.0, scheme)
    solution = sn.solve(problem, scheme, steps=10, dense=True, events=of_state(lambda t, q, v: q, problem))
    np.testing.assert_array_equal(solution(0.0), [0.3, 0.2])
    assert solution.status is sn.Status.COMPLETED


def test_few_steps_of_a_multistep_scheme():
    """No more than its starting scheme takes."""
    problem = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [0.0, 2 * K], (0.0, 0.4))
    solution = sn.solve(problem, "ab5", steps=3, dense=True, events=lambda t, y: y[0] - 0.1)
    assert len(solution.pieces.t) == 3
    assert len(solution.t_events[0]) == 1
    np.testing.assert_allclose(solution(0.3), swing_exact(0.3), atol=1e-4)


def test_large_states():
    """A block of them is not thousands of copies."""
    n = 300_000
    problem = sn.ODE(lambda t, y: -y, np.ones(n), (0.0, 1.0))
    solution = sn.solve(problem, "williamson3", steps=8, save_every=0, events=lambda t, y: y[n // 2] - 0.5)
    early = (1 / 8) ** 3 / 24 * math.log(2)  # a step is exp(-h) - h^4 / 24; the cubic adds h^4 / 384 at most
    assert math.log(2) - solution.t_events[0][0] == pytest.approx(early, rel=0.2)
    assert len(solution.t_events[0]) == 1


@pytest.mark.parametrize("saving", [{}, {"save_at": [0.1, 0.2, 0.9]}], ids=["steps", "wanted times"])
def test_an_interrupt_keeps_the_part_that_was_done(saving):
    def force(t, q):
        if t > 0.5:
            raise KeyboardInterrupt
        return np.array([-float(str(q[0]))])

    problem = sn.SecondOrder(force, [1.0], [0.0], (0.0, 1.0))
    with pytest.raises(sn.Interrupted) as caught:
        sn.solve(problem, "verlet", steps=100, dense=True, **saving)
    solution = caught.value.solution
    assert solution.t_end == pytest.approx(0.5, rel=EXACT)
    frequency = 2 * math.asin(0.005) / 0.01  # of Verlet's method with h = 0.01
    assert solution(0.3)[0] == pytest.approx(math.cos(0.3 * frequency), abs=EXACT)
    np.testing.assert_allclose(solution.y[:, 0], np.cos(frequency * solution.t), atol=EXACT)
    assert len(solution.t) == (2 if saving else 51)
