"""Events: where functions g(t, y) of the solution cross zero, found on the continuous extension of a step.

Every step is looked at in `SAMPLES` equal parts, so two crossings of one function are told apart if they are more
than h / 8 apart.  The root is found to the last bits of theta, where g is zero for a while its beginning.  Where g
turns near zero without crossing it, the zero of its derivative is found by central differences.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine import stepping
from stepnet.engines.numba_engine.compile.cache import compiled, inlined
from stepnet.engines.numba_engine.extension import ASIDE, VALUE, between
from stepnet.engines.numba_engine.primitives import call_field
from stepnet.problem import Problem

SAMPLES = 8
NEVER, RAISED = 2.0, -1.0  # thetas beyond every step
COARSE, NARROW = 2.0**-10, 2.0**-14  # half-widths of differences: to see which way g goes, and where it turns


class Watch(NamedTuple):
    """The event functions of a run, their parameters, and what was found.

    `stops[e]` counts the crossings of event e that are still to come before the run stops: 0 never stops, -1 stops at
    every one.  `values[e]` is g at the last point looked at; 0 means that it has just crossed.  A zero at the beginning
    that counts is `pending`: which way g goes from there tells whether it is a crossing.  Events with `touches[e]` > 0
    also count where |g| has a minimum of at most that; `falling[e]` tells whether |g| fell at the last point looked at.
    """

    addresses: np.ndarray
    directions: np.ndarray
    stops: np.ndarray
    values: np.ndarray
    now: np.ndarray
    pending: np.ndarray
    touches: np.ndarray
    falling: np.ndarray
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
        stepping.raised(run, 1 + e, 0, t, ASIDE)
        return False
    watch.now[e] = work[VALUE, 0]
    return True


@inlined
def crossing_point(tables, watch, e, low, high, work, h, run):
    """theta of a crossing between two samples: regula falsi (Illinois) with bisection, to the last bits; or RAISED."""
    g_low, g_high, side = watch.values[e], watch.now[e], 0
    is_rising = g_low < 0.0
    for _ in range(200):
        if high - low <= 4e-16 * high:
            break
        middle = high - g_high * (high - low) / (g_high - g_low)
        if not low < middle < high or side >= 3:
            middle, side = 0.5 * (low + high), 0
            if not low < middle < high:
                break
        between(tables, work, middle, h, run)
        if not evaluate(watch, e, work, run.t + middle * h, run):
            return RAISED
        g = watch.now[e]
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


@inlined
def value_at(tables, watch, e, theta, work, h, run):
    """g_e inside a step, and whether it did not raise."""
    between(tables, work, theta, h, run)
    is_fine = evaluate(watch, e, work, run.t + theta * h, run)
    return watch.now[e], is_fine


@inlined
def growth_at(tables, watch, e, theta, width, work, h, run):
    """How g_e grows around theta, without leaving the step, and whether it did not raise."""
    before, is_fine = value_at(tables, watch, e, max(theta - width, 0.0), work, h, run)
    after, is_still = value_at(tables, watch, e, min(theta + width, 1.0), work, h, run)
    return after - before, is_fine and is_still


@compiled
def turning_point(tables, watch, e, low, high, work, h, run):
    """theta where |g_e| turns between two samples, if it comes within touches[e] of zero; else NEVER, or RAISED."""
    now, was_falling = watch.now[e], watch.falling[e] == 1
    sign = 1.0 if now > 0.0 else -1.0
    growth, is_fine = growth_at(tables, watch, e, high, COARSE, work, h, run)
    watch.falling[e] = 1 if sign * growth < 0.0 else 0
    is_wanted = watch.values[e] * now > 0.0 and watch.directions[e] * sign <= 0.0
    theta = NEVER
    if is_fine and is_wanted and sign * growth > 0.0:
        growth, is_fine = growth_at(tables, watch, e, low, COARSE, work, h, run)
        if is_fine and (was_falling or sign * growth < 0.0):
            theta = high
            while low < 0.5 * (low + theta) < theta and is_fine:
                middle = 0.5 * (low + theta)
                growth, is_fine = growth_at(tables, watch, e, middle, NARROW, work, h, run)
                if sign * growth < 0.0:
                    low = middle
                else:
                    theta = middle
            value, is_still = value_at(tables, watch, e, theta, work, h, run)
            is_fine = is_fine and is_still
            if not abs(value) <= watch.touches[e]:
                theta = NEVER
    watch.now[e] = now
    return theta if is_fine else RAISED


@inlined
def first_crossing(tables, watch, e, low, high, work, h, run):
    """theta where event e crosses zero between two samples; NEVER or RAISED if it does not."""
    now, direction = watch.now[e], watch.directions[e]
    if watch.pending[e] == 1:
        if (now > 0.0 and direction >= 0) or (now < 0.0 and direction <= 0):
            return low
        watch.pending[e] = 1 if now == 0.0 else 0
        return NEVER
    if is_crossing(watch.values[e], now, direction):
        return crossing_point(tables, watch, e, low, high, work, h, run)
    if watch.touches[e] > 0.0:
        return turning_point(tables, watch, e, low, high, work, h, run)
    return NEVER


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
    if watch.stops[e] > 0:
        watch.stops[e] -= 1
        return watch.stops[e] == 0
    return watch.stops[e] < 0


@compiled
def look_for_events(tables, watch, work, t_new, h, run):
    """Note the crossings inside a step in order; theta where the run is to stop, NEVER, or RAISED."""
    n, low = watch.values.shape[0], 0.0
    for sample in range(1, SAMPLES + 1):
        high = sample / SAMPLES
        while True:
            between(tables, work, high, h, run)
            for e in range(n):
                if not evaluate(watch, e, work, t_new if high == 1.0 else run.t + high * h, run):
                    return RAISED
            first, who = NEVER, -1
            for e in range(n):
                theta = first_crossing(tables, watch, e, low, high, work, h, run)
                if theta == RAISED:
                    return RAISED
                if theta < first:
                    first, who = theta, e
            if who < 0:
                break
            t = run.t + first * h
            if stepping.coincides(run, t, t_new):
                first, t = 1.0, t_new
            between(tables, work, first, h, run)
            if note(watch, who, t, work, run):
                return first
            low = first
        for e in range(n):
            watch.values[e] = watch.now[e]
        low = high
    return NEVER


def watch_of(plan: Plan, fields, problem: Problem, reals: int, dtype) -> Watch:
    """The events of a plan with their values at the beginning, and room for the first crossings; `grown` makes more.

    `fields` are those of the events and of a projection: they share the parameters of the problem.
    """
    if not fields:
        return nothing_to_watch(reals, dtype)
    n = len(plan.events)
    room = 64 + SAMPLES * n if n else 0
    facts = (
        [field.address for field in fields[:n]],
        [event.direction for event in plan.events],
        [-1 if event.reset is not None else int(event.terminal) for event in plan.events],
    )
    values = np.array([field(problem.t_span[0], problem.initial)[0].real for field in fields[:n]], float)
    found = (np.zeros(room, np.int64), np.zeros(room), np.zeros((room, reals), dtype))
    pending = [event.at_start and value == 0 for event, value in zip(plan.events, values, strict=True)]
    addresses, directions, stops, pending = (np.array(x, np.int64) for x in (*facts, pending))
    touches, falling = np.array([event.touch for event in plan.events], float), np.zeros(n, np.int64)
    return Watch(addresses, directions, stops, values, np.zeros(n), pending, touches, falling, fields[0].p, *found)


@lru_cache(maxsize=64)
def nothing_to_watch(reals: int, dtype) -> Watch:
    """No events: empty arrays, which nobody writes into, so that one of a kind will do."""
    numbers, none, states = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, reals), dtype)
    return Watch(none, none, none, numbers, numbers, none, numbers, none, numbers, none, numbers, states)


def is_crowded(watch: Watch, n_found: int) -> bool:
    """Whether the next step may find no room for its crossings."""
    n = len(watch.values)
    return n > 0 and n_found + SAMPLES * n > len(watch.t)


def grown(watch: Watch) -> Watch:
    """Twice the room."""
    return watch._replace(
        which=np.concatenate((watch.which, np.zeros_like(watch.which))),
        t=np.concatenate((watch.t, np.zeros_like(watch.t))),
        y=np.concatenate((watch.y, np.zeros_like(watch.y))),
    )
