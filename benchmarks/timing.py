"""Time contenders in turn, and keep the shortest time of each: noise only adds.

On a busy machine a call of a second always waits for the processor and one of a millisecond does not, which would
make slow peers slower still.  So a call counts with its processor time, unless it has threads and waited for less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

BURST = 3  # calls in a row, so that the first warms the processor's caches for the others
LEAST_CALLS, MOST_CALLS = 5, 400
SLOW = 2.0  # seconds; what takes longer is called once


class Answer(NamedTuple):
    """What one call gave: the end state, and what it cost as far as the contender tells."""

    y: np.ndarray
    accepted: int | None = None
    rejected: int | None = None
    evaluations: int | None = None
    kernel_time: float | None = None


class Prepared(NamedTuple):
    """A contender with its problem: `call` is timed, `read` turns what it returned into an `Answer`."""

    call: Callable[[], Any]
    read: Callable[[Any], Answer]


@dataclass(frozen=True)
class Row:
    """One measured line; times in seconds, memory in bytes, None where there is nothing to tell, `note` why."""

    workload: str
    contender: str
    package: str
    tolerance: float | None = None
    time: float | None = None
    kernel_time: float | None = None
    error: float | None = None
    accepted: int | None = None
    rejected: int | None = None
    evaluations: int | None = None
    calls: int = 0
    note: str = ""
    memory: float | None = None

    as_dict = asdict


class Measured(NamedTuple):
    """Shortest times over `calls` calls, and the last answer."""

    time: float
    kernel_time: float | None
    calls: int
    answer: Answer


def by_turns(prepared: dict[str, Prepared], seconds: float) -> dict[str, Measured | Exception]:
    """Bursts of calls of every contender in turn, each until it has used up `seconds`."""
    found: dict[str, Measured | Exception] = {}
    spent = dict.fromkeys(prepared, 0.0)
    while spent:
        for name in list(spent):
            try:
                found[name], used = _burst(prepared[name], found.get(name), seconds - spent[name])
            except Exception as exception:  # a failing peer is a line of the table, not the end of the run
                found[name], used = exception, seconds
            spent[name] += used
            if _is_enough(found[name], spent[name], seconds):
                del spent[name]
    return found


def _is_enough(found: Measured | Exception, spent: float, seconds: float) -> bool:
    if isinstance(found, Exception) or found.calls >= MOST_CALLS or found.time > SLOW:
        return True
    return spent >= seconds and found.calls >= LEAST_CALLS


def _burst(prepared: Prepared, so_far: Measured | None, seconds: float) -> tuple[Measured, float]:
    used, times, kernel_times = 0.0, [], []
    if so_far is not None:
        times.append(so_far.time)
        kernel_times.append(so_far.kernel_time)
    calls = 0
    while calls < BURST and (calls == 0 or used < seconds):
        on_processor, started = time.process_time(), time.perf_counter()
        raw = prepared.call()
        elapsed = min(time.perf_counter() - started, time.process_time() - on_processor)
        answer = prepared.read(raw)
        times.append(elapsed)
        kernel_times.append(None if answer.kernel_time is None else min(answer.kernel_time, elapsed))
        used += elapsed
        calls += 1
    kernel_time = None if None in kernel_times else min(kernel_times)
    calls += so_far.calls if so_far else 0
    return Measured(min(times), kernel_time, calls, answer), used


def first_line(exception: Exception) -> str:
    """Why a contender has no time, for the table."""
    if isinstance(exception, ImportError):
        return "not installed"
    text = str(exception).strip().splitlines()
    return f"{type(exception).__name__}: {text[0][:100] if text else ''}"
