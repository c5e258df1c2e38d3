"""Rows of SDEs: paths of geometric Brownian motion and of a 10-dimensional Ornstein-Uhlenbeck process, and gradients.

All run Euler-Maruyama in float64 on one core.  Those with our noise must give our numbers to 1e-10; for the others the
mean over paths must be that of the scheme, or of our gradients, within five standard errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from benchmarks.sde_contenders import (
    CONTENDERS,
    GBM,
    GRADIENT_PATHS,
    GRADIENTS,
    OU,
    PATHS,
    STEPS,
    Contender,
    Problem,
)
from benchmarks.timing import Measured, Row, by_turns, first_line

WORKLOAD = "sdes"
SECONDS = 4.0
AGREEMENT, STANDARD_ERRORS = 1e-10, 5.0


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Seconds for all paths and steps of a problem; those of fewer are scaled, and the name says so."""
    with on_one_core():
        for problem in (GBM, OU):
            yield from rows_of(problem, CONTENDERS, PATHS)
            yield from rows_of(problem, GRADIENTS, GRADIENT_PATHS)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep all threads on one core.  XLA's would use another, and their processor time is counted late."""
    cores = os.sched_getaffinity(0)
    move_threads({max(cores)})
    try:
        yield
    finally:
        move_threads(cores)


def move_threads(cores: set[int]) -> None:
    """Threads that are started later are where those are that start them."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def rows_of(problem: Problem, contenders: tuple[Contender, ...], paths: int) -> Iterator[Row]:
    """The first contender is ours; the others are compared with it."""
    prepared, failed = {}, {}
    for each in contenders:
        try:
            prepared[each.name] = each.prepare(problem, each.paths, STEPS)
        except Exception as exception:  # a failing peer is a line of the table
            failed[each.name] = exception
    found = failed | by_turns(prepared, SECONDS)
    ours = found[contenders[0].name]
    for each in contenders:
        measured, said = found[each.name], (WORKLOAD, f"{problem.name}, {each.name}", each.package)
        why = first_line(measured) if isinstance(measured, Exception) else find_fault(each, measured, ours)
        if why:
            yield Row(*said, note=why)
        else:
            yield Row(*said, time=measured.time * paths / each.paths, calls=measured.calls)


def find_fault(contender: Contender, measured: Measured, ours: Measured | Exception) -> str:
    """Why an answer is not accepted; empty if it is."""
    if isinstance(ours, Exception):
        return "nothing to compare with"
    found, wanted = measured.answer.y, ours.answer.y
    if contender.is_our_noise:
        if found.ndim == 1:
            wanted = wanted.mean(axis=0)
        difference = np.max(np.abs(found - wanted))
        return "" if difference < AGREEMENT else f"differs from ours by {difference:.0e}"
    error = wanted.std(axis=0) * np.sqrt(1 / len(wanted) + 1 / contender.paths)
    away = np.max(np.abs(np.atleast_2d(found).mean(axis=0) - wanted.mean(axis=0)) / error)
    return "" if away < STANDARD_ERRORS else f"the mean differs from ours by {away:.1f} standard errors"
