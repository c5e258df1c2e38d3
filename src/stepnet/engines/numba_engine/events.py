"""Events: where functions g(t, y) of the solution cross zero, found on the continuous extension of a step.

Every step is looked at in `SAMPLES` equal parts, so two crossings of one function are told apart if they are more
than h / 8 apart.  The root is found to the last bits of theta.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine import stepping
from stepnet.engines.numba_engine.compile.cache import inlined
from stepnet.engines.numba_engine.primitives import call_field

SAMPLES = 8
NEVER = 2.0  # a theta beyond every step


class Watch(NamedTuple):
    """The event functions of a run and what was found.

    `stops[e]` counts the crossings of event e that are still to come before the run stops: 0 never stops, -1 stops at
    every one.  `values[e]` is g at the last point looked at; 0 means that it has just crossed.
    """

    addresses: np.ndarray
    directions: np.ndarray
    stops: np.ndarray
    values: np.ndarray
    now: np.ndarray
    which: np.ndarray
    t: np.ndarray
    y: np.ndarray


@inlined
def hermite(work, y, y_new, slope, slope_new, corrections, n_corrections, target, theta, h, reals):
    """work[target] = y(t + theta h): the cubic through both ends and the corrections of the scheme."""
    x, m = theta, 1.0 - theta
    to_y, to_new, to_slope, to_slope_new = m * m * (1 + 2 * x), x * x * (3 - 2 * x), x * m * m * h, -x * x * m * h
    bump, shifted = x * x * m * m, x - 0.5
    for k in range(reals):
        total = (
            to_y * work[y, k] + to_new * work[y_new, k] + to_slope * work[slope, k] + to_slope_new * work[slope_new, k]
        )
        correction = 0.0
        for i in range(n_corrections - 1, -1, -1):
            correction = correction * shifted + work[corrections + i, k]
        work[target, k] = total + bump * correction


@inlined
def is_crossing(before, after, direction):
    """Whether g went through zero in the wanted direction (0: any)."""
    upward = before < 0.0 and after >= 0.0 and direction >= 0
    return upward or (before > 0.0 and after <= 0.0 and direction <= 0)


@inlined
def evaluate(watch, e, p, work, row, out, t, run):
    """g_e at the state in `row`; NaN if it raised."""
    if call_field(watch.addresses[e], t, work, row, out, p, run.n) != 0:
        stepping.raised(run, 1 + e, 0, t, row)
        return np.nan
    return float(work[out, 0])


@inlined
def note(watch, e, t, work, row, run):
    """Write down a crossing; True if the run is to stop here."""
    i = run.n_found
    watch.which[i] = e
    watch.t[i] = t
    for k in range(run.reals):
        watch.y[i, k] = work[row, k]
    run.n_found = i + 1
    watch.values[e] = 0.0
    if watch.stops[e] > 0:
        watch.stops[e] -= 1
        return watch.stops[e] == 0
    return watch.stops[e] < 0


def new_watch(addresses, directions, stops, reals: int, dtype) -> Watch:
    """Room for the first crossings; `grown` makes more."""
    n = len(addresses)
    room = 64 + SAMPLES * n if n else 0
    watched = (np.array(x, np.int64) for x in (addresses, directions, stops))
    found = (np.zeros(room, np.int64), np.zeros(room), np.zeros((room, reals), dtype))
    return Watch(*watched, np.zeros(n), np.zeros(n), *found)


def grown(watch: Watch) -> Watch:
    """Twice the room."""
    return watch._replace(
        which=np.concatenate((watch.which, np.zeros_like(watch.which))),
        t=np.concatenate((watch.t, np.zeros_like(watch.t))),
        y=np.concatenate((watch.y, np.zeros_like(watch.y))),
    )
