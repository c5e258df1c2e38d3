"""Events: where functions g(t, y) of the solution cross zero, found on the continuous extension of a step.

Every step is looked at in `SAMPLES` equal parts.  Where |g| falls at the beginning of such a part and grows at its end,
its minimum is searched, and a point where g has the other sign splits the part: both crossings are found, however
close.  The root is found to the last bits of theta, where g is zero for a while its beginning.  Where g turns near zero
without crossing it, the zero of its derivative is found by central differences.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined, lasting
from stepnet.engines.numba_engine.codegen.primitives import call_field
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.dense_output import ASIDE, VALUE, interpolate
from stepnet.problem import Problem

SAMPLES = 8
NEVER, RAISED = 2.0, -1.0  # thetas beyond every step
TINY = 1e-300  # stands for a value of g that is zero to rounding, with the sign it has just ahead
SHORTEST_PART = 2.0**-40  # of a step: the minimum of |g| is searched down to this
END = 2.0**-20  # of a part of a step: how far from its end |g| is looked at to see whether it falls there
COARSE, NARROW = 2.0**-10, 2.0**-14  # half-widths of differences: to see which way g goes, and where it turns


@lasting
class EventState(NamedTuple):
    """The event functions of a run, their parameters, and what was found.

    `stops[e]` counts the crossings of event e that are still to come before the run stops: 0 never stops, -1 stops at
    every one.  `values[e]` is g at the last point looked at; 0 means that it has just crossed, and +-TINY that it is
    zero where the run has begun (again), with that sign just ahead; values up to `noise[e]` then are rounding and have
    that sign, too.  `rates[e]` is how fast |g| grew before that point, NaN if not known.  A zero at the beginning that
    counts is `pending`: which way g goes from there tells whether it is a crossing.  Events with `touches[e]` > 0 also
    count where |g| has a minimum of at most that; `falling[e]` tells whether |g| fell at the last point looked at.
    `y_nan` is the state at which an event was NaN for the first time, if one was.
    """

    addresses: np.ndarray
    directions: np.ndarray
    stops: np.ndarray
    values: np.ndarray
    now: np.ndarray
    pending: np.ndarray
    touches: np.ndarray
    falling: np.ndarray
    rates: np.ndarray
    noise: np.ndarray
    y_nan: np.ndarray
    p: np.ndarray
    which: np.ndarray
    t: np.ndarray
    y: np.ndarray


@inlined
def is_crossing(before, after, direction):
    """Whether g went through zero in the wanted direction (0: any); never where it is NaN."""
    upward = before < 0.0 and after >= 0.0 and direction >= 0
    return upward or (before > 0.0 and after <= 0.0 and direction <= 0)


@inlined
def evaluate(watch, e, work, t, run):
    """now[e] = g_e at the state in ASIDE; False if it raised."""
    if call_field(watch.addresses[e], t, work, ASIDE, VALUE, watch.p, run.n) != 0:
        stepping.note_exception(run, 1 + e, 0, t, ASIDE)
        return False
    watch.now[e] = work[VALUE, 0]
    if watch.now[e] != watch.now[e] and run.nan_event == 0:
        run.nan_event, run.t_nan = 1 + e, t
        for k in range(run.reals):
            watch.y_nan[k] = work[ASIDE, k]
    return True


@compiled
def evaluate_at(tables, watch, e, theta, work, h, run):
    """g_e inside a step, and whether it did not raise."""
    interpolate(tables, work, theta, h, run)
    is_fine = evaluate(watch, e, work, run.t + theta * h, run)
    return watch.now[e], is_fine


@inlined
def find_crossing(tables, watch, e, low, high, work, h, run):
    """theta of a crossing between two samples: regula falsi (Illinois) with bisection, to the last bits; or RAISED."""
    g_low, g_high, side = watch.values[e], watch.now[e], 0
    is_rising = g_low < 0.0
    for _ in range(200):
        if high - low <= 4e-16 * high or (low == 0.0 and high * abs(h) <= 1e-17 * abs(run.t)):
            break
        middle = high - g_high * (high - low) / (g_high - g_low)
        if not low < middle < high or side >= 3:
            middle, side = 0.5 * (low + high), 0
            if not low < middle < high:
                break
        g, is_fine = evaluate_at(tables, watch, e, middle, work, h, run)
        if not is_fine:
            return RAISED
        if g != g:
            break
        if (g > 0.0) == is_rising or g == 0.0:
            high, g_high = middle, g
            g_low *= 0.5
            side = side + 1 if side >= 0 else 0
        else:
            low, g_low = middle, g
            g_high *= 0.5
            side += 1
    return high


@compiled
def measure_growth(tables, watch, e, theta, width, work, h, run):
    """How g_e grows around theta, without leaving the step, and whether it did not raise."""
    before, is_fine = evaluate_at(tables, watch, e, max(theta - width, 0.0), work, h, run)
    after, is_still = evaluate_at(tables, watch, e, min(theta + width, 1.0), work, h, run)
    return after - before, is_fine and is_still


@compiled
def find_turning_point(tables, watch, e, low, high, work, h, run):
    """theta where |g_e| turns between two samples, if it comes within touches[e] of zero; else NEVER, or RAISED."""
    now, was_falling = watch.now[e], watch.falling[e] == 1
    sign = 1.0 if now > 0.0 else -1.0
    growth, is_fine = measure_growth(tables, watch, e, high, COARSE, work, h, run)
    watch.falling[e] = 1 if sign * growth < 0.0 else 0
    is_wanted = watch.values[e] * now > 0.0 and watch.directions[e] * sign <= 0.0
    theta = NEVER
    if is_fine and is_wanted and sign * growth > 0.0:
        growth, is_fine = measure_growth(tables, watch, e, low, COARSE, work, h, run)
        if is_fine and (was_falling or sign * growth < 0.0):
            theta = high
            while low < 0.5 * (low + theta) < theta and is_fine:
                middle = 0.5 * (low + theta)
                growth, is_fine = measure_growth(tables, watch, e, middle, NARROW, work, h, run)
                if sign * growth < 0.0:
                    low = middle
                else:
                    theta = middle
            value, is_still = evaluate_at(tables, watch, e, theta, work, h, run)
            is_fine = is_fine and is_still
            if not abs(value) <= watch.touches[e]:
                theta = NEVER
    watch.now[e] = now
    return theta if is_fine else RAISED


@inlined
def find_first_crossing(tables, watch, e, low, high, work, h, run):
    """theta where event e crosses zero between two samples; NEVER or RAISED if it does not."""
    now, direction = watch.now[e], watch.directions[e]
    if watch.pending[e] == 1:
        if (now > 0.0 and direction >= 0) or (now < 0.0 and direction <= 0):
            return low
        watch.pending[e] = 1 if now == 0.0 else 0
        return NEVER
    if is_crossing(watch.values[e], now, direction):
        return find_crossing(tables, watch, e, low, high, work, h, run)
    if watch.touches[e] > 0.0:
        return find_turning_point(tables, watch, e, low, high, work, h, run)
    return NEVER


@inlined
def has_one_sign(before, now):
    """Whether both numbers are positive or both negative."""
    return (before > 0.0 and now > 0.0) or (before < 0.0 and now < 0.0)


@inlined
def measure_rate(watch, e, low, high, h):
    """How fast |g_e| grows between two points at which it has one sign; else NaN."""
    before, now = watch.values[e], watch.now[e]
    if not has_one_sign(before, now):
        return np.nan
    return (abs(now) - abs(before)) / ((high - low) * abs(h))


@compiled
def find_opposite_point(tables, watch, e, low, high, work, h, run):
    """theta where g_e has the other sign, if |g_e| falls at `low` and grows at `high`; else NEVER, or RAISED.

    Bisection by the slope of |g_e|.  It ends where a parabola through three points stays well away from zero.
    """
    sign = 1.0 if watch.now[e] > 0.0 else -1.0
    for i in range(64):
        middle, width = 0.5 * (low + high), (high - low) / 16
        before, is_fine = evaluate_at(tables, watch, e, middle - width, work, h, run)
        here, is_still = evaluate_at(tables, watch, e, middle, work, h, run)
        after, is_yet = evaluate_at(tables, watch, e, middle + width, work, h, run)
        if not (is_fine and is_still and is_yet):
            return RAISED
        if sign * before < 0.0:
            return middle - width
        if sign * here < 0.0:
            return middle
        if sign * after < 0.0:
            return middle + width
        growth, bend = abs(after) - abs(before), abs(before) - 2 * abs(here) + abs(after)
        is_clear = i > 2 and bend > 0.0 and growth * growth < 4 * bend * abs(here)
        if is_clear or high - low < SHORTEST_PART:
            return NEVER
        if growth == 0.0:
            low, high = middle - width, middle + width
        elif growth < 0.0:
            low = middle
        else:
            high = middle
    return NEVER


@compiled
def find_splitting_point(tables, watch, e, low, high, work, h, run):
    """theta between two points where g_e has the same sign at which it has the other one; NEVER, or RAISED.

    A parabola through this part and the one before tells whether |g_e| can turn inside; one more look is then taken at
    the end where it would fall (or grow) already.
    """
    now, rate, last = watch.now[e], measure_rate(watch, e, low, high, h), watch.rates[e]
    if watch.touches[e] > 0.0 or not has_one_sign(watch.values[e], now):
        return NEVER
    theta, width, is_growing = NEVER, (high - low) * END, rate >= 0.0
    is_suspect = not last >= 0.0 if is_growing else not last >= 2.0 * rate
    if is_suspect:
        near = low + width if is_growing else high - width
        value, is_fine = evaluate_at(tables, watch, e, near, work, h, run)
        is_turning = abs(value) < abs(watch.values[e]) if is_growing else abs(value) < abs(now)
        watch.now[e] = now
        if not is_fine:
            theta = RAISED
        elif not has_one_sign(value, now) and value != 0.0 and value == value:
            theta = near
        elif is_turning:
            theta = find_opposite_point(tables, watch, e, low, high, work, h, run)
    watch.now[e] = now
    return theta


@compiled
def find_next_point(tables, watch, low, high, work, h, run):
    """The first point that splits the part of the step from `low` to `high`, or `high`; RAISED."""
    first = high
    for e in range(watch.values.shape[0]):
        theta = find_splitting_point(tables, watch, e, low, high, work, h, run)
        if theta == RAISED:
            return RAISED
        if low < theta < first:
            first = theta
    return first


@compiled
def evaluate_all(tables, watch, theta, work, t_new, h, run):
    """now = g at t + theta h; False if one of them raised."""
    interpolate(tables, work, theta, h, run)
    for e in range(watch.values.shape[0]):
        if not evaluate(watch, e, work, t_new if theta == 1.0 else run.t + theta * h, run):
            return False
        if abs(watch.values[e]) == TINY and abs(watch.now[e]) <= watch.noise[e]:
            watch.now[e] = watch.values[e]
    return True


@inlined
def note(watch, e, t, work, run):
    """Write down a crossing at the state in ASIDE; True if the run is to stop here."""
    i = run.n_found
    watch.which[i] = e
    watch.t[i] = t
    for k in range(run.reals):
        watch.y[i, k] = work[ASIDE, k]
    run.n_found = i + 1
    watch.values[e] = 0.0
    watch.pending[e] = 0
    watch.falling[e] = 0
    watch.rates[e] = np.nan
    if watch.stops[e] > 0:
        watch.stops[e] -= 1
        return watch.stops[e] == 0
    return watch.stops[e] < 0


@compiled
def look_at_part(tables, watch, low, high, work, t_new, h, run):
    """Note the crossings between two points in order, g being known at both; theta of a stop, NEVER, or RAISED."""
    n, begin = watch.values.shape[0], low
    while True:
        first, who = NEVER, -1
        for e in range(n):
            theta = find_first_crossing(tables, watch, e, low, high, work, h, run)
            if theta == RAISED:
                return RAISED
            if theta < first:
                first, who = theta, e
        if who < 0:
            break
        t = run.t + first * h
        if stepping.is_at_step_end(run, t, t_new):
            first, t = 1.0, t_new
        interpolate(tables, work, first, h, run)
        if note(watch, who, t, work, run):
            return first
        low = first
        if not evaluate_all(tables, watch, high, work, t_new, h, run):
            return RAISED
    for e in range(n):
        watch.rates[e] = measure_rate(watch, e, begin, high, h)
        watch.values[e] = watch.now[e]
    return NEVER


@compiled
def look_for_events(tables, watch, work, t_new, h, run):
    """Note the crossings inside a step in order; theta where the run is to stop, NEVER, or RAISED."""
    low, left = 0.0, SAMPLES  # how many parts may be split, as there must be room for what is found
    for sample in range(1, SAMPLES + 1):
        while low < sample / SAMPLES:
            high = sample / SAMPLES
            if not evaluate_all(tables, watch, high, work, t_new, h, run):
                return RAISED
            point = find_next_point(tables, watch, low, high, work, h, run) if left > 0 else high
            if point == RAISED:
                return RAISED
            if point < high:
                high, left = point, left - 1
                if not evaluate_all(tables, watch, high, work, t_new, h, run):
                    return RAISED
            theta = look_at_part(tables, watch, low, high, work, t_new, h, run)
            if theta != NEVER:
                return theta
            low = high
    return NEVER


def count_slots_for_step(n: int) -> int:
    """Most crossings of n events in one step."""
    return 2 * SAMPLES * n


def sign_ahead(slope, g, t_span: tuple[float, float], y: np.ndarray, noise: float) -> float:
    """The sign of g just ahead of a state where it is zero, by its rate along the solution; 0 if that is zero, too.

    `noise` is what rounding may make of g there.
    """
    return _sign_of_change(slope, g, t_span, y, noise, lambda s, k: y + s * k)


def sign_ahead_curved(slope, g, t_span: tuple[float, float], y: np.ndarray, noise: float) -> float:
    """The same where the rate is zero: by a step of Heun's scheme."""
    t = t_span[0]
    return _sign_of_change(slope, g, t_span, y, noise, lambda s, k: y + 0.5 * s * (k + slope(t + s, y + s * k)))


def estimate_rounding(g, t: float, y: np.ndarray) -> float:
    """How much the rounding of the time and the state may change g."""
    eps, value = float(np.finfo(y.dtype).eps), g(t, y)[0].real
    moved = [g(t * (1 + eps), y + eps * signs * y)[0].real for signs in _list_sign_patterns(y.size, y.dtype)]
    return 8 * max([abs(m - value) for m in moved])


@lru_cache(maxsize=8)
def _list_sign_patterns(n: int, dtype) -> tuple[np.ndarray, ...]:
    """Signs for the rounding of n numbers."""
    return tuple(np.where(np.cos(k * np.arange(1.0, n + 1)) > 0, 1, -1).astype(dtype) for k in range(3))


def _sign_of_change(slope, g, t_span: tuple[float, float], y: np.ndarray, noise: float, move) -> float:
    """The sign of g(t + s, move(s, k)) - g(t, y) for the shortest s that shows it, k being the slope; 0 if none does.

    From 2^-30 of the time in which the state changes by its own size.
    """
    t, t_end = t_span
    try:
        k, value = slope(t, y), g(t, y)[0].real
        speed = np.linalg.norm(k)
        if not 0.0 < speed < np.inf:
            return 0.0
        scale = max(float(np.linalg.norm(y) / speed), 2.0**-20 * min(abs(t_end - t), 1.0))
        for power in range(30, -1, -5):
            s = float(np.copysign(2.0**-power * scale, t_end - t))
            change = g(t + s, move(s, k))[0].real - value
            if abs(change) > noise:
                return float(np.sign(change))
    except RuntimeError:  # a function raised, which the run will tell
        pass
    return 0.0


def build_event_state(plan: Plan, slope, fields, problem: Problem, reals: int, dtype) -> EventState:
    """The events of a plan with their values at the beginning, and room for the first crossings; `grow` makes more.

    `fields` are those of the events and of a projection: they share the parameters of the problem.  `slope` is the
    right-hand side, which tells on which side of zero an event goes on that begins there.
    """
    if not fields:
        return watch_nothing(reals, dtype)
    n = len(plan.events)
    room = 64 + count_slots_for_step(n) if n else 0
    facts = (
        [field.address for field in fields[:n]],
        [event.direction for event in plan.events],
        [-1 if event.reset is not None else int(event.terminal) for event in plan.events],
    )
    values = np.array([field(problem.t_span[0], problem.initial)[0].real for field in fields[:n]], float)
    noise = np.zeros(n)
    for e in np.flatnonzero(values == 0.0):
        if not plan.events[e].touch and not plan.events[e].at_start:
            noise[e] = estimate_rounding(fields[e], problem.t_span[0], problem.initial)
            values[e] = TINY * sign_ahead(slope, fields[e], problem.t_span, problem.initial, noise[e])
    found = (np.zeros(room, np.int64), np.zeros(room), np.zeros((room, reals), dtype))
    pending = [event.at_start and value == 0 for event, value in zip(plan.events, values, strict=True)]
    addresses, directions, stops, pending = (np.array(x, np.int64) for x in (*facts, pending))
    touches, falling = np.array([event.touch for event in plan.events], float), np.zeros(n, np.int64)
    state = (values, np.zeros(n), pending, touches, falling, np.full(n, np.nan), noise, np.zeros(reals, dtype))
    return EventState(addresses, directions, stops, *state, fields[0].p, *found)


@lru_cache(maxsize=64)
def watch_nothing(reals: int, dtype) -> EventState:
    """No events: empty arrays, which nobody writes into, so that one of a kind will do."""
    numbers, none, states = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, reals), dtype)
    state = (numbers, numbers, none, numbers, none, numbers, numbers, np.zeros(0, dtype))
    return EventState(none, none, none, *state, numbers, none, numbers, states)


def is_crowded(watch: EventState, n_found: int) -> bool:
    """Whether the next step may find no room for its crossings."""
    n = len(watch.values)
    return n > 0 and n_found + count_slots_for_step(n) > len(watch.t)


def grow(watch: EventState) -> EventState:
    """Twice the room."""
    return watch._replace(
        which=np.concatenate((watch.which, np.zeros_like(watch.which))),
        t=np.concatenate((watch.t, np.zeros_like(watch.t))),
        y=np.concatenate((watch.y, np.zeros_like(watch.y))),
    )
