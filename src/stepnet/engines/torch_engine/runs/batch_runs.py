"""Runs of a batch with per-sample step sizes, errors and end times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.batch_output import (
    OF_SAMPLES,
    BatchDenseOutput,
    BatchReader,
    BatchSteps,
    as_column,
    find_event_fractions,
    interpolate,
    interpolate_rows,
    link_events,
    pack,
)
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    EvaluationOptions,
    StepGrid,
    build_fixed_run,
    read_each_state,
)
from stepnet.engines.torch_engine.integrators.per_sample_steps import (
    COMPLETED,
    EVENT,
    BatchState,
    begin,
    iterate_attempts,
)
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.engines.torch_engine.rhs.tensor_fields import SingleField
from stepnet.schemes.tableau import ExplicitRK

Found = tuple[Tensor, Tensor, Tensor]
"""Times and states at the ends of samples, and the states at the save times."""


class _Task(NamedTuple):
    """The task, with increasing times."""

    fun: Callable[..., Any]
    scheme: ExplicitRK
    y: Tensor
    wanted: Tensor
    g: Callable[..., Any] | None


class BatchMembers(NamedTuple):
    """Initial states (batch, *shape), and save times (batch, times) that increase from the initial times."""

    y: Tensor
    t: Tensor


class BatchPlan(NamedTuple):
    """Step control, a function of (t, y) that is positive until a sample ends, and whether steps are kept."""

    how: ControlSettings
    event: Callable[..., Any] | None = None
    dense: bool = False


class BatchOutcome(NamedTuple):
    """The batch at its end, the states found, and the dense output if it is requested."""

    batch: BatchState
    found: Found
    dense: BatchDenseOutput | None


def run_ensemble(
    problem: Callable[..., Any], scheme: ExplicitRK, plan: BatchPlan, members: BatchMembers
) -> BatchOutcome:
    """Run y' = problem(t, y) for all samples to their ends; gradients are those of the steps that were chosen."""
    (y, wanted), (how, event, dense) = members, plan
    task = _Task(problem, scheme, y, wanted, event)
    has_gradient = torch.is_grad_enabled() and (y.requires_grad or problem(as_column(wanted[:, 0], y), y).requires_grad)
    with torch.no_grad():
        batch, taken, found = _run(task, how, has_gradient or dense)
    inside = None
    if has_gradient or dense:
        steps = _fix_steps(batch, taken, has_gradient)
        states = _read_states(task, steps, None if dense else _find_places(steps, wanted))
        found = _add_gradients(task, batch, steps, states, found) if has_gradient else found
        inside = _build_dense_output(task, batch, steps, states, found[0]) if dense else None
    return BatchOutcome(batch, found, inside)


def _run(task: _Task, how: ControlSettings, is_recorded: bool) -> tuple[BatchState, list[BatchSteps], Found]:
    """The batch at its end, its steps if they are recorded, and the states found."""
    fun, scheme, y, wanted, g = task
    batch, reader = (
        begin(fun, scheme, y, (wanted[:, 0].contiguous(), wanted[:, -1].contiguous()), how),
        BatchReader(wanted),
    )
    taken, is_read = [], wanted.shape[1] > 2
    for last in iterate_attempts(batch, None if g is None else lambda t, y: g(t, y) <= 0):
        if not (is_read or is_recorded):
            continue
        step = BatchSteps(last.t, torch.where(last.is_taken, last.h, 0.0))
        if is_recorded:
            taken.append(step)
        if is_read:
            reader.read(*step, partial(interpolate_rows, batch, scheme, last))
    return batch, taken, _validate_ends(task, batch, reader, batch.y.contiguous())


def _validate_ends(task: _Task, batch: BatchState, reader: BatchReader, y: Tensor) -> Found:
    """Times and states at the ends, with events located, and the states at the save times."""
    t, is_event = batch.t, batch.status == EVENT
    if task.g is not None and bool(is_event.any()):
        inside = interpolate(task.fun, task.scheme, t, batch.event_h, y)
        with torch.no_grad():
            theta = find_event_fractions(task.g, t, batch.event_h, inside)
        reader.read(t, theta * batch.event_h, lambda: lambda part: inside(part * theta))
        t, y = t + theta * batch.event_h, inside(theta)
        if y.requires_grad:
            t, y = link_events(task.fun, task.g, t, y, is_event)
    last = torch.where(as_column(batch.status == COMPLETED, y).bool(), y, torch.nan)
    return t, y, reader.states(task.y, last)


def _fix_steps(batch: BatchState, taken: list[BatchSteps], has_gradient: bool) -> BatchSteps:
    """The steps that were taken; with gradients, none for samples that failed, so that these do not affect others."""
    none = torch.zeros_like(batch.t[None])
    steps = pack(taken, batch) if taken else BatchSteps(batch.t[None], none)
    return steps._replace(h=torch.where(batch.status > EVENT, 0.0, steps.h)) if has_gradient else steps


def _read_states(task: _Task, steps: BatchSteps, places: list[int] | None) -> dict[int, Tensor]:
    """States at the beginning of these steps (of all, if `places` is None) and at the end, by fixed steps."""
    y, n = task.y, len(steps.h)
    grid = StepGrid([as_column(t, y) for t in steps.t], [as_column(h, y) for h in steps.h])
    run = build_fixed_run(SingleField(task.fun), task.scheme, grid, EvaluationOptions(newton=OF_SAMPLES))
    numbers = {*(range(n) if places is None else places), n}
    later = islice(read_each_state(run, task.scheme, (y,)), n)
    return {0: y} | {i: state for i, (state,) in later if i in numbers}


def _add_gradients(task: _Task, batch: BatchState, steps: BatchSteps, states: dict[int, Tensor], found: Found) -> Found:
    """The states found, differentiable through fixed steps; failed samples keep their values, without gradients."""
    has_failed, reader = batch.status > EVENT, BatchReader(task.wanted)
    for place in _find_places(steps, task.wanted):
        t, h = steps.t[place], steps.h[place]
        reader.read(t, h, partial(interpolate, task.fun, task.scheme, t, h, states[place]))
    mixed = _validate_ends(task, batch, reader, states[len(steps.h)])
    pick = lambda new, old: torch.where(has_failed.view(-1, *[1] * (new.ndim - 1)), old, new)
    return tuple(pick(new, old) for new, old in zip(mixed, found, strict=True))  # type: ignore[return-value]


def _build_dense_output(
    task: _Task, batch: BatchState, steps: BatchSteps, states: dict[int, Tensor], t_end: Tensor
) -> BatchDenseOutput:
    """All steps, including the last step of every sample that ends at an event."""
    steps = BatchSteps(torch.cat((steps.t, batch.t[None])), torch.cat((steps.h, batch.event_h[None])))
    starts = torch.stack([states[i] for i in range(len(steps.h))])
    return BatchDenseOutput(task.fun, task.scheme, steps, starts, (task.wanted[:, 0], t_end.detach()))


def _find_places(steps: BatchSteps, wanted: Tensor) -> list[int]:
    """The steps inside which some sample has a save time."""
    ends = (steps.t + steps.h).t().contiguous()
    places = torch.searchsorted(ends, wanted[:, 1:-1].contiguous())
    return places[places < len(steps.h)].unique().tolist()
