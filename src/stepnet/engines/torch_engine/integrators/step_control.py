"""Error norms and step-size control; tensor values are read once per attempt."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple

from torch import Tensor

from stepnet.schemes.controllers import Controller

Norm = Callable[[Tensor], Tensor]


MAX_STEPS = 100_000
"""Default of `max_num_steps`: attempts from one time of `t` to the next, or to an event."""

Watch = Callable[[str, float, Tensor, float], None]


def watch_nothing(what: str, t: float, y: Tensor, h: float) -> None:
    """Ignore all notifications."""


class ControlSettings(NamedTuple):
    """Tolerances (numbers, or tensors that broadcast against the state), norm and controller; errors are O(h^power).

    Steps end at all `stops`; at the `jumps` among them the right-hand side is discontinuous.  `max_steps` limits the
    attempts from one of the times `marks` to the next.  `watch(what, t, y, h)` is called for every "step",
    "accept_step" and "reject_step".
    """

    rtol: float | Tensor
    atol: float | Tensor
    norm: Norm | None  # None for the root mean square
    controller: Controller
    power: int
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = inf
    max_steps: int = 2**31 - 1
    stops: tuple[float, ...] = ()
    jumps: tuple[float, ...] = ()
    marks: tuple[float, ...] = ()
    watch: Watch = watch_nothing


class ErrorHistory(NamedTuple):
    """Errors of the last two accepted steps, and whether the last attempt was rejected."""

    error_1: float = 1.0
    error_2: float = 1.0
    was_rejected: bool = False


def rms(x: Tensor) -> Tensor:
    """Root mean square of all entries."""
    return x.abs().square().mean().sqrt()


def scaled_norm(x: Tensor, y: Tensor, y_new: Tensor, how: ControlSettings) -> float:
    """Norm of x / (atol + rtol max(|y|, |y_new|))."""
    scale = how.atol + how.rtol * y.abs().maximum(y_new.abs())
    return float((how.norm or rms)(x / scale))


def growth(error: float, memory: ErrorHistory, how: ControlSettings) -> float:
    """Factor for the next step: safety^(sum beta) prod error_i^(-beta_i / k), clipped; no growth after a rejection."""
    c = how.controller
    if error == 0.0:
        factor = c.grow
    else:
        aim = c.safety ** (c.beta1 + c.beta2 + c.beta3)
        factor = aim * error ** (-c.beta1 / how.power)
        factor *= memory.error_1 ** (-c.beta2 / how.power) * memory.error_2 ** (-c.beta3 / how.power)
        factor = min(c.grow, max(c.shrink, factor))
    return min(factor, 1.0) if memory.was_rejected else factor


def shrinkage(error: float, how: ControlSettings) -> float:
    """Factor for the next attempt after an error above 1 or a result that is not finite."""
    c = how.controller
    return max(c.shrink, c.safety * error ** (-1.0 / how.power)) if isfinite(error) else c.shrink


def choose_initial_step(
    slope: Callable[[float, Tensor], Tensor], t: float, t_end: float, y: Tensor, k: Tensor, how: ControlSettings
) -> float:
    """Rule of Hairer, Norsett & Wanner I, II.4: an Euler step estimates how fast the slope changes."""
    span, direction = abs(t_end - t), 1.0 if t_end >= t else -1.0
    if how.first_step is not None:
        return direction * max(min(how.first_step, how.max_step), how.min_step)
    d0, d1 = scaled_norm(y, y, y, how), scaled_norm(k, y, y, how)
    h0 = min(1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1, span)
    change = slope(t + direction * h0, y.add(k, alpha=direction * h0)) - k
    d2 = scaled_norm(change, y, y, how) / h0
    steepest = max(d1, d2)
    h1 = max(1e-6, 1e-3 * h0) if steepest <= 1e-15 else (0.01 / steepest) ** (1.0 / how.power)
    best = min(100 * h0, h1)
    return direction * max(min(best if isfinite(best) else h0, span, how.max_step), how.min_step)
