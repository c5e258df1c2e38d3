"""Output of a batch with per-sample step sizes: states at save times and at events, with gradients.

Without gradients, states are read during the run.  With gradients, the steps are found first and then repeated as fixed
steps: sample b takes its n_b steps in the first n_b steps of a run and steps of length zero in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.explicit_rk import attempt_step, extend_stages, is_cubic_output_poor, move
from stepnet.engines.torch_engine.integrators.implicit_stages import NewtonSettings
from stepnet.engines.torch_engine.integrators.per_sample_steps import Attempts, BatchState
from stepnet.schemes.tableau import ExplicitRK, dense_basis, dense_matrix

OF_SAMPLES = NewtonSettings(are_samples=True, can_reject=True)  # samples that failed are NaN
HALVINGS = 53  # bisections of a step, down to the last bit of its length
Along = Callable[[Tensor], Tensor]


class BatchSteps(NamedTuple):
    """The steps of all samples, (steps, batch): their initial times and lengths, zero after the last one."""

    t: Tensor
    h: Tensor


def pack(taken: Sequence[BatchSteps], batch: BatchState) -> BatchSteps:
    """The accepted steps of every sample in order, without rejected ones (of length zero)."""
    t, h = (torch.stack(parts) for parts in zip(*taken, strict=True))
    order = (h == 0).to(torch.int8).argsort(dim=0, stable=True)[: int(batch.accepted.max())]
    t, h = t.gather(0, order), h.gather(0, order)
    return BatchSteps(torch.where(h > 0, t, batch.t), h)


def as_column(x: Tensor, like: Tensor) -> Tensor:
    """One number per sample, shaped to broadcast against the state."""
    return x.to(like.real.dtype).view(-1, *[1] * (like.ndim - 1))


# ---- inside a step --------------------------------------------------------------------------------------------------


def interpolate(fun: Callable[..., Tensor], scheme: ExplicitRK, t: Tensor, h: Tensor, y: Tensor) -> Along:
    """The states at t + theta h, as a function of theta (one number per sample), differentiable in y."""
    t, h = as_column(t, y), as_column(h, y)
    k = fun(t, y)
    if is_cubic_output_poor(scheme):
        return lambda theta: attempt_step(fun, scheme, t, h * as_column(theta, y), y, k, OF_SAMPLES).y_new
    stages = extend_stages(scheme, attempt_step(fun, scheme, t, h, y, k))
    return evaluate_polynomial(y, [move(torch.zeros_like(y), stages, weights, h) for weights in dense_matrix(scheme)])


def interpolate_rows(batch: BatchState, scheme: ExplicitRK, last: Attempts) -> Along:
    """As `interpolate` for the last attempt of a batch, whose stages are still available."""
    stages, y = batch.stages, batch.stages.view_row(last.row)
    if is_cubic_output_poor(scheme):
        return interpolate(batch.fun, scheme, last.t, last.h, y)
    stages.extend(batch.fun, last.t, last.h, last.row)
    return evaluate_polynomial(y, stages.polynomial())


def evaluate_polynomial(y: Tensor, coefficients: list[Tensor]) -> Along:
    def at(theta: Tensor) -> Tensor:
        total = y
        for weight, coefficient in zip(dense_basis(theta, len(coefficients) - 3), coefficients, strict=True):
            total = torch.addcmul(total, coefficient, as_column(weight, y))
        return total

    return at


class BatchDenseOutput(NamedTuple):
    """The solutions at any time: steps, states at their beginnings (steps, batch, *shape), first and last times."""

    fun: Callable[..., Tensor]
    scheme: ExplicitRK
    steps: BatchSteps
    starts: Tensor
    span: tuple[Tensor, Tensor]

    def at(self, t: Tensor) -> Tensor:
        """The states at one time per sample, by repeating their steps; NaN outside the solution."""
        ends = (self.steps.t + self.steps.h).t().contiguous()
        place = torch.searchsorted(ends, t[:, None].contiguous())[:, 0].clamp_max(len(self.starts) - 1)
        samples = torch.arange(len(t), device=t.device)
        start, h, y = (rows[place, samples] for rows in (*self.steps, self.starts))
        theta = torch.where(h > 0, (t - start) / h, 0.0).clamp(0.0, 1.0)
        is_inside = (t >= self.span[0]) & (t <= self.span[1])
        found = interpolate(self.fun, self.scheme, start, h, y)(theta)
        return torch.where(as_column(is_inside, y).bool(), found, torch.nan)


# ---- save times -----------------------------------------------------------------------------------------------------


class BatchReader:
    """Reads the states at the times `wanted`, (batch, times), in the order in which steps pass them."""

    def __init__(self, wanted: Tensor):
        self.wanted = wanted
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        self.next = torch.ones(len(wanted), dtype=torch.int64, device=wanted.device)  # the first is the initial time
        self.last = wanted.shape[1] - 1

    def read(self, t: Tensor, h: Tensor, make: Callable[[], Along]) -> None:
        """Read the states at all times that the steps pass; the last time is the end of a sample."""
        inside = None
        while True:
            time = self.wanted.gather(1, self.next.clamp_max(self.last)[:, None])[:, 0]
            is_passed = (h > 0) & (self.next < self.last) & (time <= t + h)
            if not bool(is_passed.any()):
                return
            inside = inside or make()
            samples = is_passed.nonzero()[:, 0]
            theta = torch.where(is_passed, (time - t) / h, 0.0).clamp(0.0, 1.0)
            self.found.append((samples, self.next[samples], inside(theta)[samples]))
            self.next = self.next + is_passed

    def states(self, first: Tensor, last: Tensor) -> Tensor:
        """(batch, times, *shape); NaN at times that no step has reached."""
        y = torch.full_like(first[:, None], torch.nan).repeat(1, self.last + 1, *[1] * (first.ndim - 1))
        everyone = torch.arange(len(first), device=first.device)
        found = [(everyone, 0 * everyone, first), *self.found, (everyone, 0 * everyone + self.last, last)]
        samples, places, states = (torch.cat(parts) for parts in zip(*found, strict=True))
        return y.index_put((samples, places), states)


# ---- events ---------------------------------------------------------------------------------------------------------


def find_event_fractions(g: Callable[[Tensor, Tensor], Tensor], t: Tensor, h: Tensor, inside: Along) -> Tensor:
    """The fraction of its step after which g, positive before, is no longer positive, by bisection."""
    low, high = torch.zeros_like(h), torch.ones_like(h)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        y = inside(middle)
        is_before = g(as_column(t + middle * h, y), y) > 0
        low, high = torch.where(is_before, middle, low), torch.where(is_before, high, middle)
    return high


def link_events(
    fun: Callable[..., Tensor], g: Callable[..., Tensor], t: Tensor, y: Tensor, is_event: Tensor
) -> tuple[Tensor, Tensor]:
    """Times and states with the gradients of the implicit function theorem: `events.link` for every sample."""
    time = as_column(t, y)
    slope = fun(time, y.detach()).detach()
    value = g(time, y)
    with torch.enable_grad():
        probe = torch.zeros_like(t, dtype=y.real.dtype).requires_grad_()
        shift = as_column(probe, y)
        (rate,) = torch.autograd.grad(g(time + shift, y.detach() + shift * slope).sum(), probe)
    shift = torch.where(is_event, (value.detach() - value) / torch.where(is_event, rate, 1.0), 0.0)
    return t + shift, y + slope * as_column(shift, y)
