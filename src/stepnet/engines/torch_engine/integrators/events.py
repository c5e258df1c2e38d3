"""Zeros of a function of the solution, with gradients of their time and state.

The time t* is found by bisection, without gradients.  With g(t*, y*) = 0 and the rate r = g_t + g_y f along the
solution, the implicit function theorem gives dt = -dg / r and dy = f dt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.explicit_rk import StepError, evaluate_slope

HALVINGS = 60  # bisections of a step, down to the spacing of float64 numbers
Event = Callable[[Tensor, Tensor], Tensor]
Inside = Callable[[float], Tensor]


class SolutionPiece(NamedTuple):
    """The solution from one time to another: the state at its end, and a function that builds its interpolant."""

    start: float
    end: float
    y_end: Tensor
    make: Callable[[], Inside]


def combine(event: Event, t: float, y: Tensor) -> Event:
    """A scalar that is positive initially and falls to zero where any entry of the event does."""
    with torch.no_grad():
        found = event(_time(t, y), y)
        if not isinstance(found, Tensor):
            raise TypeError(f"`event_fn` must return a tensor, found {type(found).__name__}")
        signs = torch.sign(found)
    return lambda t, y: (event(t, y) * signs).min()


def find_first_zero(g: Event, t: float, y: Tensor, pieces: Iterable[SolutionPiece]) -> tuple[float, Inside]:
    """The first time from t on at which g is no longer positive, and the solution around it."""
    value: Callable[[float, Tensor], float] = lambda t, y: float(g(_time(t, y), y))
    with torch.no_grad():
        if value(t, y) == 0.0:
            return t, lambda _: y
    for start, end, y_end, make in pieces:
        with torch.no_grad():
            if value(end, y_end) > 0.0:
                continue
        inside = make()
        with torch.no_grad():
            return _bisect(value, inside, start, end - start), inside
    raise StepError("all steps were taken")


def _bisect(value: Callable[[float, Tensor], float], inside: Inside, t: float, h: float) -> float:
    """The time, at most h from t, at which the value along the solution, positive at t, is no longer positive."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if value(t + middle * h, inside(t + middle * h)) > 0.0 else (low, middle)
    return t + high * h


def link(fun: Callable[..., Tensor], g: Event, t: float, y: Tensor) -> tuple[Tensor, Tensor]:
    """Time and state of an event, with their gradients."""
    slope = evaluate_slope(fun, y)(t, y.detach()).detach()
    time = _time(t, y)
    value = g(time, y)
    if not value.requires_grad:
        return time, y
    with torch.enable_grad():
        probe = torch.zeros((), dtype=y.real.dtype, device=y.device, requires_grad=True)
        moved = g(time + probe, y.detach() + probe * slope)
        (rate,) = torch.autograd.grad(moved, probe)
    shift = (value.detach() - value) / rate
    return time + shift, y + slope * shift


def _time(t: float, like: Tensor) -> Tensor:
    return torch.full((), t, dtype=like.real.dtype, device=like.device)
