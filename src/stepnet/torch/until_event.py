"""Solves that end at an event, and what is between given steps."""

from __future__ import annotations

from functools import partial
from itertools import islice

import torch
from torch import Tensor

from stepnet.engines.torch_engine.events import first_event, first_event_between
from stepnet.engines.torch_engine.explicit_rk import slope_at
from stepnet.engines.torch_engine.fields import State, checked, joined, parted
from stepnet.engines.torch_engine.fixed import Manner, each_state, endless_grid, fixed_run
from stepnet.engines.torch_engine.step_control import How
from stepnet.torch.options import numbers_of
from stepnet.torch.states import Posed

MOST_STEPS = 1_000_000


def until_event(problem: Posed, scheme, t: Tensor, event_fn, how: How, manner: Manner):
    """Time of the event, and the states at t[0] and there; t[1] says in which direction to look."""
    t0, t1 = _span(t)
    fun, y = checked(problem.field.whole, manner.dtype), joined(problem.field, problem.state)
    time, end = first_event(fun, scheme, y, (t0, t1), problem.called(event_fn), how)
    return time.to(t.dtype), problem.trajectory([problem.state, parted(problem.field, end)])


def until_event_of_steps(problem: Posed, scheme, t: Tensor, event_fn, options: dict, manner: Manner):
    """The same by even steps, between which the solution is a line or a cubic."""
    t0, t1 = _span(t)
    if "step_size" not in options:
        raise ValueError(f"`event_fn` with the given steps of {scheme.name} wants `step_size` in `options`; give it")
    h = float(options["step_size"]) * (1.0 if t1 > t0 else -1.0)
    run = fixed_run(problem.field, scheme, endless_grid(t0, h), manner)
    between = between_steps(options)
    read = lambda before, after, ends: lambda t: joined(problem.field, between(problem, before, after, (*ends, t)))

    def steps():
        before = problem.state
        for i, after in islice(each_state(run, scheme, problem.state), MOST_STEPS):
            ends = t0 + (i - 1) * h, t0 + i * h
            yield *ends, joined(problem.field, after), partial(read, before, after, ends)
            before = after

    fun, y = checked(problem.field.whole, manner.dtype), joined(problem.field, problem.state)
    time, end = first_event_between(fun, y, t0, steps(), problem.called(event_fn))
    return time.to(t.dtype), problem.trajectory([problem.state, parted(problem.field, end)])


def _span(t: Tensor) -> list[float]:
    if len(t) != 2:
        raise ValueError(f"`t` must be the first time and one that shows the direction for an event, found {len(t)}")
    return numbers_of(t)


def between_steps(options: dict):
    """How to read between given steps."""
    return _linear if options.get("interp", "linear") == "linear" else _cubic


def _linear(problem: Posed, before: State, after: State, times: tuple[float, float, float]) -> State:
    start, end, t = times
    theta = (t - start) / (end - start)
    return tuple(torch.lerp(a, b, theta) for a, b in zip(before, after, strict=True))


def _cubic(problem: Posed, before: State, after: State, times: tuple[float, float, float]) -> State:
    """The Hermite polynomial through both ends and their slopes."""
    start, end, t = times
    h, x = end - start, (t - start) / (end - start)
    a, b = joined(problem.field, before), joined(problem.field, after)
    slope = slope_at(checked(problem.field.whole), a)
    k = h * (x * (1 - x) ** 2 * slope(start, a) - x**2 * (1 - x) * slope(end, b))
    return parted(problem.field, (1 - x) ** 2 * (1 + 2 * x) * a + x**2 * (3 - 2 * x) * b + k)
