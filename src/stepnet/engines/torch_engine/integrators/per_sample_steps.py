"""Explicit Runge-Kutta pairs with per-sample step sizes, errors and end times.

Times increase.  When a sample has reached its end, failed or met its event, its end time is set to its current time;
from then on its steps have length zero while others continue.  All active samples have made the same number of
attempts, so the loop checks only once every few attempts whether to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.explicit_rk import SHORTEST, choose_newton
from stepnet.engines.torch_engine.integrators.stages import StageRows
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.schemes.tableau import ExplicitRK
from stepnet.solution import Status

TOGETHER = 8  # attempts between two checks that read tensor values
STATUSES = (Status.COMPLETED, Status.EVENT, Status.STEP_LIMIT, Status.NOT_FINITE, Status.STEP_TOO_SMALL)
COMPLETED, EVENT, STEP_LIMIT, NOT_FINITE, STEP_TOO_SMALL = range(len(STATUSES))


class Attempts(NamedTuple):
    """One attempt of every sample: initial time t, length h, whether it was accepted, the row it began with."""

    t: Tensor
    h: Tensor
    is_taken: Tensor
    row: Tensor


@dataclass
class BatchState:
    """The current data of every sample, (batch,) each except state and slope, and its status.

    Time is stored as `left`, the time until `t_end`, so that the end is reached exactly.
    """

    fun: Callable[..., Tensor]
    stages: StageRows
    how: ControlSettings
    t_end: Tensor
    left: Tensor
    row: Tensor
    k: Tensor
    h: Tensor
    status: Tensor
    accepted: Tensor
    tried: Tensor
    error: Tensor
    limit: Tensor
    limits: tuple[Tensor, Tensor]
    errors: tuple[Tensor, ...]
    event_h: Tensor
    attempts: int = 0

    @property
    def y(self) -> Tensor:
        return self.stages.view_row(self.row)

    @property
    def t(self) -> Tensor:
        return self.t_end - self.left


def begin(
    fun: Callable[..., Tensor], scheme: ExplicitRK, y: Tensor, span: tuple[Tensor, Tensor], how: ControlSettings
) -> BatchState:
    """A batch at its initial times; `span` holds the first and last times of all samples."""
    t, t_end = span
    stages = StageRows(scheme, y, choose_newton(how)._replace(are_samples=True))
    how = how._replace(rtol=_as_row(how.rtol, stages, y), atol=_as_row(how.atol, stages, y))
    k = fun(stages.column(t), y)
    h = choose_first_steps(fun, stages, span, y, k, how)
    zeros, ones = torch.zeros_like(t, dtype=torch.int64), torch.ones_like(t)
    limits = t.new_tensor(how.controller.grow), t.new_tensor(1.0)
    return BatchState(
        fun, stages, how, t_end, t_end - t, stages.pad(y), stages.pad(k), h,
        status=torch.zeros_like(t, dtype=torch.int8), accepted=zeros, tried=zeros.clone(), error=ones,
        limit=limits[0].expand_as(t), limits=limits, errors=(ones, ones), event_h=torch.zeros_like(t),
    )  # fmt: skip


def _as_row(tolerance: float | Tensor, stages: StageRows, y: Tensor) -> Tensor:
    """A tolerance as a number, or as a row of numbers."""
    tolerance = torch.as_tensor(tolerance, dtype=y.real.dtype, device=y.device)
    return tolerance if tolerance.ndim == 0 else stages.pad(tolerance.expand(y.shape)).real


def choose_first_steps(
    fun: Callable[..., Tensor],
    stages: StageRows,
    span: tuple[Tensor, Tensor],
    y: Tensor,
    k: Tensor,
    how: ControlSettings,
) -> Tensor:
    """The rule of `step_control.choose_initial_step` for every sample."""
    t, t_end = span
    length = (t_end - t).clamp_max(how.max_step)
    if how.first_step is not None:
        return length.clamp_max(how.first_step)
    row = stages.pad(y)
    norm: Callable[[Tensor], Tensor] = lambda x: measure_sample_errors(stages, stages.pad(x), row, row, how)
    d0, d1 = norm(y), norm(k)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1).minimum(length)
    change = fun(stages.column(t + h0), y + stages.column(h0) * k) - k
    steepest = torch.maximum(d1, norm(change) / h0)
    h1 = torch.where(steepest <= 1e-15, (1e-3 * h0).clamp_min(1e-6), raise_to_power(0.01 / steepest, 1.0 / how.power))
    best = torch.minimum(100 * h0, h1)
    return torch.where(best.isfinite(), best, h0).minimum(length)


def measure_sample_errors(stages: StageRows, x: Tensor, y: Tensor, y_new: Tensor, how: ControlSettings) -> Tensor:
    """The norm of x / (atol + rtol max(|y|, |y_new|)) for every sample; all arguments are rows."""
    scaled = x / torch.addcmul(how.atol, torch.maximum(y.abs(), y_new.abs()), how.rtol)  # type: ignore[arg-type]
    return (stages.rms(scaled) if how.norm is None else how.norm(stages.view_row(scaled))).double()


def iterate_attempts(batch: BatchState, stops: Callable[[Tensor, Tensor], Tensor] | None = None) -> Iterator[Attempts]:
    """Attempts until no sample is active; `stops(t_new, y_new)` marks samples whose step would pass an event."""
    while bool(batch.left.any()):
        for _ in range(min(TOGETHER, batch.how.max_steps - batch.attempts)):
            yield _attempt(batch, stops)
            batch.attempts += 1
        _find_failures(batch)


def _attempt(batch: BatchState, stops: Callable[[Tensor, Tensor], Tensor] | None) -> Attempts:
    row, stages, how = batch.row, batch.stages, batch.how
    t, h = batch.t, torch.minimum(batch.h, batch.left)
    row_new, k_new = stages.fill(batch.fun, t, h, row, batch.k)
    y_new = stages.view_row(row_new)
    error = combine_errors([measure_sample_errors(stages, e, row, row_new, how) for e in stages.estimates()])
    is_good, is_moving = error <= 1.0, batch.left > 0
    if stops is not None:
        is_good &= ~_stop(batch, is_good & is_moving & stops(stages.column(t + h), y_new), h)
    is_taken = is_good & is_moving
    batch.tried += is_moving
    batch.accepted += is_taken
    batch.error = error
    batch.h = _find_factors(error, is_good, batch).mul_(h)
    if how.max_step < inf:
        batch.h.clamp_max_(how.max_step)
    mask = stages.mask_of(is_good)
    batch.left, batch.row = torch.where(is_good, batch.left - h, batch.left), torch.where(mask, row_new, row)
    if not stages.is_last_new:
        k_new = batch.fun(stages.column(batch.t), batch.y)
    batch.k = torch.where(mask, stages.pad(k_new), batch.k)
    return Attempts(t, h, is_taken, row)


def _stop(batch: BatchState, is_hit: Tensor, h: Tensor) -> Tensor:
    """Stop samples at the beginning of the step of length h that would pass an event."""
    batch.event_h = torch.where(is_hit, h, batch.event_h)
    _end_here(batch, is_hit, EVENT)
    return is_hit


def _end_here(batch: BatchState, mask: Tensor, status: int) -> None:
    """Make the current time of these samples their end time."""
    batch.status.masked_fill_(mask, status)
    batch.t_end, batch.left = torch.where(mask, batch.t, batch.t_end), batch.left.masked_fill(mask, 0.0)


def combine_errors(norms: list[Tensor]) -> Tensor:
    """The rule of `explicit_rk.measure_error` for every sample."""
    first, *second = norms
    if not second:
        return first
    return torch.where(first > 0, first * first / torch.sqrt(first * first + 0.01 * second[0] ** 2), first)


def _find_factors(error: Tensor, is_good: Tensor, batch: BatchState) -> Tensor:
    """Factors for the step sizes, by the rules of `step_control`."""
    c, power = batch.how.controller, batch.how.power
    factors = raise_to_power(error, -1.0 / power).mul_(c.safety)
    if (c.beta1, c.beta2, c.beta3) != (1.0, 0.0, 0.0):
        error_1, error_2 = batch.errors
        growth = raise_to_power(error, -c.beta1 / power) * raise_to_power(error_1, -c.beta2 / power)
        growth *= raise_to_power(error_2, -c.beta3 / power) * c.safety ** (c.beta1 + c.beta2 + c.beta3)
        factors = torch.where(is_good, growth, factors)
        kept = error.clamp_min(1e-4), error_1
        batch.errors = tuple(torch.where(is_good, new, old) for new, old in zip(kept, batch.errors, strict=True))
    factors = factors.nan_to_num_(nan=c.shrink).clamp_min_(c.shrink).minimum(batch.limit)
    batch.limit = torch.where(is_good, *batch.limits)
    return factors


def raise_to_power(x: Tensor, exponent: float) -> Tensor:
    """x^exponent; `torch.pow` rounds differently in the last elements of a tensor."""
    return x.log().mul_(exponent).exp_()


def _find_failures(batch: BatchState) -> None:
    """End samples that cannot continue."""
    is_moving, is_at_limit = batch.left > 0, batch.attempts >= batch.how.max_steps
    is_short = is_moving & ~((batch.h >= batch.left) | (batch.h > SHORTEST * batch.t.abs()))
    if not (is_at_limit or bool(is_short.any())):
        return
    is_late, is_lost = is_moving & is_at_limit, is_short & ~batch.error.isfinite()
    for mask, status in ((is_late, STEP_LIMIT), (is_short, STEP_TOO_SMALL), (is_lost, NOT_FINITE)):
        _end_here(batch, mask, status)
