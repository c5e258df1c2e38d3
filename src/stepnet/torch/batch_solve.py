"""solve: a batch whose samples have steps, errors and an end of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.codegen.compilation import break_graph
from stepnet.engines.torch_engine.integrators.batch_output import (
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
from stepnet.engines.torch_engine.integrators.fixed_steps import StepGrid, build_fixed_run, read_each_state
from stepnet.engines.torch_engine.integrators.per_sample_steps import (
    COMPLETED,
    EVENT,
    STATUSES,
    BatchState,
    begin,
    iterate_attempts,
)
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.engines.torch_engine.rhs.tensor_fields import SingleField, validate_function
from stepnet.schemes.conditions import is_pair
from stepnet.schemes.tableau import ExplicitRK
from stepnet.solution import Status
from stepnet.torch.methods import find_scheme
from stepnet.torch.options import SHARED, build_control_settings, is_fixed, move_times, validate_options
from stepnet.torch.states import TensorProblem, explain, pose_batch, split_parts
from stepnet.validation import check, flag


@dataclass(frozen=True)
class BatchSolution:
    """What came out, sample by sample.

    Attributes
    ----------
    t, y
        Wanted times (batch, times) and the states there (batch, times, *shape), a tuple for a tuple; NaN where a
        sample has not come to.
    t_end, y_end
        Where every sample has ended: at its last time, at its event, or where it failed.
    accepted, rejected
        Steps of every sample.
    codes
        How every sample ended: places in `per_sample_steps.STATUSES`; `status` has them in words.
    inside
        With `dense=True` the solution at other times, by `at`.
    """

    t: Tensor
    y: Tensor | tuple[Tensor, ...]
    t_end: Tensor
    y_end: Tensor | tuple[Tensor, ...]
    accepted: Tensor
    rejected: Tensor
    codes: Tensor
    inside: Callable[[Tensor], Tensor | tuple[Tensor, ...]] | None = None

    def at(self, t: Tensor):
        """States at other times, (times,) or (batch, times), like y; NaN outside of the solution."""
        if self.inside is None:
            raise ValueError("`at` needs a solution with `dense=True`")
        if not isinstance(t, Tensor) or t.ndim not in (1, 2) or (t.ndim == 2 and len(t) != len(self.t)):
            raise ValueError(f"`t` must be a tensor (times,) or ({len(self.t)}, times)")
        return self.inside(t.expand(len(self.t), t.shape[-1]))

    @property
    def failed(self) -> Tensor:
        """Which samples neither reached their end nor an event, (batch,)."""
        return self.codes > EVENT

    @property
    def status(self) -> list[Status]:
        return [STATUSES[code] for code in self.codes.tolist()]


Found = tuple[Tensor, Tensor, Tensor]
"""Times and states where samples end, and the states at the wanted times."""


class _Task(NamedTuple):
    """What is to be done, in times that increase."""

    fun: Callable
    scheme: ExplicitRK
    y: Tensor
    wanted: Tensor
    g: Callable | None


@break_graph
@check(dense=flag)
def solve(func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None, dense=False) -> BatchSolution:
    """The solutions of y' = func(t, y) for a batch, every sample with steps of its own.

    A sample does not feel the others: not their steps, not their failures.  Gradients go through the states; the
    steps are constants.

    Parameters
    ----------
    func : callable
        `func(t, y)` for a batch; t has the shape (batch, 1, ..., 1), so that it broadcasts against y.
    y0 : tensor or tuple of tensors
        (batch, *shape); t is (batch, 1) for a tuple.
    t : tensor
        Times at which states are wanted, increasing or decreasing: (times,), or (batch, times).
    rtol, atol : float, tensor that broadcasts against y0, or tuple with an entry for each tensor of y0
        Tolerances of the error of every sample.
    method : str or scheme, optional
        A pair; dopri5 by default.
    options : dict, optional
        As of adaptive steps in `odeint`; `norm` gives a number for each sample.
    event_fn : callable, optional
        `event_fn(t, y)`, (batch,) or (batch, events): a sample ends where any of its entries changes its sign.
    dense : bool
        Whether to keep the states of all steps, for `solution.at(t)`.
    """
    problem = pose_batch(func, y0)
    try:
        return _solve(problem, t, rtol, atol, find_scheme(method), options, event_fn, dense)
    except RuntimeError as error:
        explain(error, func, problem.state)
        raise


def _solve(problem: TensorProblem, t, rtol, atol, scheme, options, event_fn, dense: bool) -> BatchSolution:
    options = validate_options(scheme, options)
    if not is_pair(scheme) or is_fixed(scheme, options):
        raise ValueError(f"`method` must be a pair, which chooses its steps, found {scheme.name}; take `odeint`")
    if shared := [name for name in options if name in SHARED]:
        raise ValueError(f"`options` {shared} are not for steps of every sample's own; take `odeint`")
    how = build_control_settings(problem, scheme, rtol, atol, options)._replace(
        norm=_norm(problem, options.get("norm"))
    )
    y, wanted, sign = problem.state[0], *_validate_wanted_times(t, problem.state[0])
    fun = _orient_in_time(validate_function(problem.field.whole, options.get("field_dtype")), sign, sign)
    g = (
        None
        if event_fn is None
        else _require_positive(_orient_in_time(problem.called(event_fn), sign, 1.0), wanted[:, 0], y)
    )
    task = _Task(fun, scheme, y, wanted, g)
    has_gradient = torch.is_grad_enabled() and (y.requires_grad or fun(as_column(wanted[:, 0], y), y).requires_grad)
    with torch.no_grad():
        batch, taken, found = _run(task, how, has_gradient or dense)
    inside = None
    if has_gradient or dense:
        steps = _fix_steps(batch, taken, has_gradient)
        states = _read_states(task, steps, None if dense else _find_places(steps, wanted))
        found = _add_gradients(task, batch, steps, states, found) if has_gradient else found
        inside = _build_dense_output(task, batch, steps, states, found[0]) if dense else None
    return _build_solution(problem, batch, sign, wanted, found, inside)


def _norm(problem: TensorProblem, chosen: Callable | None) -> Callable[[Tensor], Tensor] | None:
    """A number for each sample: root mean square, the largest of them for a tuple, or the user's own."""
    shapes = problem.shapes
    if shapes is None:
        return chosen
    rms = lambda x: torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1) * x[0].numel() ** -0.5
    norm = chosen or (lambda parts: torch.stack([rms(part) for part in parts]).amax(0))
    return lambda x: norm(split_parts(x, shapes))


def _orient_in_time(function: Callable, sign: float, factor: float) -> Callable:
    """A function of time and state in times that increase."""
    return function if sign > 0 else lambda t, y: factor * function(-t, y)


def _require_positive(event: Callable, t: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """One number for each sample, positive at the beginning, that falls to zero where any entry of the event does."""
    with torch.no_grad():
        found = event(as_column(t, y), y) if callable(event) else None
        if not isinstance(found, Tensor):
            raise TypeError(f"`event_fn` must be a function (t, y) that returns a tensor, found {type(event).__name__}")
        signs = torch.sign(found)
    if signs.ndim not in (1, 2) or len(signs) != len(y):
        raise ValueError(f"`event_fn` must return ({len(y)},) or ({len(y)}, events), found {tuple(signs.shape)}")
    return lambda t, y: (event(t, y) * signs).reshape(len(y), -1).amin(1)


def _validate_wanted_times(t, y: Tensor) -> tuple[Tensor, float]:
    """Increasing times (batch, times), and the sign that made them so."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        raise TypeError(f"`t` must be a floating-point tensor of times, found {getattr(t, 'dtype', type(t).__name__)}")
    if t.requires_grad:
        raise ValueError("`t` must not require a gradient for steps of every sample's own; detach it, or take `odeint`")
    if t.ndim not in (1, 2) or t.shape[-1] < 2 or (t.ndim == 2 and len(t) != len(y)):
        raise ValueError(f"`t` must be (times,) or ({len(y)}, times) with two times at least, found {tuple(t.shape)}")
    wanted = move_times(t.detach(), y.device).double().expand(len(y), t.shape[-1])
    sign = 1.0 if bool(wanted[0, 1] > wanted[0, 0]) else -1.0
    if not bool(wanted.isfinite().all()):
        raise ValueError("`t` must be finite, found NaN or infinity in it")
    if not bool(((sign * wanted).diff() > 0).all()):
        raise ValueError("`t` must be strictly increasing for all samples, or strictly decreasing for all")
    return (sign * wanted).contiguous(), sign


def _run(task: _Task, how: ControlSettings, is_recorded: bool) -> tuple[BatchState, list[BatchSteps], Found]:
    """The batch at its end, the steps it took if they are recorded, and what was found."""
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
    """Times and states at the ends, events looked for, and the states at the wanted times."""
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
    """The steps that were taken; with gradients none for samples that failed, so that they cannot spoil them."""
    none = torch.zeros_like(batch.t[None])
    steps = pack(taken, batch) if taken else BatchSteps(batch.t[None], none)
    return steps._replace(h=torch.where(batch.status > EVENT, 0.0, steps.h)) if has_gradient else steps


def _read_states(task: _Task, steps: BatchSteps, places: list[int] | None) -> dict[int, Tensor]:
    """States at the beginning of these steps (of all, if there is no choice) and at the end, by given steps."""
    y, n = task.y, len(steps.h)
    grid = StepGrid([as_column(t, y) for t in steps.t], [as_column(h, y) for h in steps.h])
    run = build_fixed_run(SingleField(task.fun), task.scheme, grid)
    numbers = {*(range(n) if places is None else places), n}
    later = islice(read_each_state(run, task.scheme, (y,)), n)
    return {0: y} | {i: state for i, (state,) in later if i in numbers}


def _add_gradients(task: _Task, batch: BatchState, steps: BatchSteps, states: dict[int, Tensor], found: Found) -> Found:
    """What was found, through given steps; a sample that failed keeps its numbers, without gradients."""
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
    """All steps, and the one of every sample at whose event it ends."""
    steps = BatchSteps(torch.cat((steps.t, batch.t[None])), torch.cat((steps.h, batch.event_h[None])))
    starts = torch.stack([states[i] for i in range(len(steps.h))])
    return BatchDenseOutput(task.fun, task.scheme, steps, starts, (task.wanted[:, 0], t_end.detach()))


def _find_places(steps: BatchSteps, wanted: Tensor) -> list[int]:
    """The steps inside which some sample is to be read."""
    ends = (steps.t + steps.h).t().contiguous()
    places = torch.searchsorted(ends, wanted[:, 1:-1].contiguous())
    return places[places < len(steps.h)].unique().tolist()


def _build_solution(
    problem: TensorProblem, batch: BatchState, sign: float, wanted: Tensor, found: Found, dense: BatchDenseOutput | None
):
    t_end, y_end, states = found
    as_given = lambda y: y if problem.shapes is None else split_parts(y, problem.shapes)
    read = lambda dense, t: as_given(torch.stack([dense.at(x) for x in (sign * t.detach().double()).unbind(1)], 1))
    is_event = (batch.status == EVENT).long()
    return BatchSolution(
        sign * wanted, as_given(states), sign * t_end, as_given(y_end), batch.accepted + is_event,
        batch.tried - batch.accepted - is_event, batch.status, dense and partial(read, dense),
    )  # fmt: skip
