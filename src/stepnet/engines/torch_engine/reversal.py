"""The exact gradient of a run with given steps, in a chosen number of kept states.

The forward run keeps the states that a schedule of `checkpoints` begins with.  The way back follows the rest of it: it
runs forward to where a state is wanted, and pulls the gradient back through one step at a time, whose graph lives no
longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stepnet import checkpoints
from stepnet.checkpoints import Kind, Schedule
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import Fixed
from stepnet.engines.torch_engine.surroundings import Surroundings, random_state, set_random_state


def states_with_checkpoints(
    run: Fixed, state: State, steps: Sequence[int], parameters: Sequence[Tensor], slots: int
) -> list[State]:
    """As `states_at`, after one step at least; gradients with respect to state and parameters take `slots` states."""
    n = len(state)
    flat = _Checkpointed.apply(run, tuple(steps), slots, n, *state, *parameters)
    return [tuple(flat[i : i + n]) for i in range(0, len(flat), n)]


class _Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run: Fixed, steps: tuple[int, ...], slots: int, n: int, *tensors: Tensor):
        ctx.run, ctx.steps, ctx.n = run, steps, n
        ctx.surroundings = Surroundings.here(tensors[0].device)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.half, found = there(run, tensors[:n], [run.place_of(step) for step in steps], slots)
        return tuple(part.clone() for state in found for part in state)

    @staticmethod
    @once_differentiable
    def backward(ctx, *bars: Tensor | None):
        n, run = ctx.n, ctx.run
        state, parameters = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        seeds = {run.place_of(step): bars[i * n : (i + 1) * n] for i, step in enumerate(ctx.steps)}
        with ctx.surroundings.restored():
            row_bars, parameter_bars = back(run, ctx.half, parameters, seeds)
        return (None, None, None, None, *_of_state(run, state, row_bars), *parameter_bars)


class Half(NamedTuple):
    """A schedule carried out as far as its first reversal: kept rows by slot, the current ones, and the first unit."""

    schedule: Schedule
    first: int
    kept: dict[int, tuple]
    current: tuple


def there(run: Fixed, state: State, places: Sequence[int], slots: int) -> tuple[Half, list[State]]:
    """The forward run with its kept states, and the states after so many units."""
    device, rows = state[0].device, run.spread(state)
    first = 0 if run.motion.opening.operations else 1  # an opening that does nothing is no unit
    schedule = checkpoints.binomial(places[-1] - first, slots)
    kept: dict[int, tuple] = {}
    found: dict[int, State] = {}
    wanted = set(places)
    for kind, start, stop, slot in islice(schedule, schedule.turn):
        if kind == Kind.KEEP:
            kept[slot] = rows, random_state(device)
        for unit in range(first + start, first + stop):
            rows = run.unit(rows, unit)
            if unit + 1 in wanted:
                found[unit + 1] = run.own(rows)
    half = Half(schedule, first, kept, (rows, random_state(device)))
    found[places[-1]] = run.own(run.unit(rows, places[-1] - 1))
    return half, [found[place] for place in places]


def back(run: Fixed, half: Half, parameters: Sequence[Tensor], seeds: dict) -> tuple[tuple, list]:
    """Gradients of the first rows and of the parameters; `seeds` are those of the states after so many units."""
    first, kept, (rows, draws) = half.first, dict(half.kept), half.current
    device = rows[run.motion.state[0]].device
    set_random_state(device, draws)
    bars: tuple = (None,) * len(rows)
    sums: list = [None] * len(parameters)
    for kind, start, stop, slot in islice(half.schedule, half.schedule.turn, None):
        match kind:
            case Kind.ADVANCE:
                with torch.no_grad():
                    for unit in range(first + start, first + stop):
                        rows = run.unit(rows, unit)
            case Kind.KEEP:
                kept[slot] = rows, random_state(device)
            case Kind.RESTORE:
                rows, draws = kept[slot]
                set_random_state(device, draws)
            case Kind.DROP:
                del kept[slot]
            case Kind.REVERSE:
                bars = _through_unit(run, rows, first + start, (bars, seeds.get(first + stop)), parameters, sums)
    return bars, sums


def _through_unit(run: Fixed, rows: tuple, unit: int, end_bars: tuple, parameters: Sequence[Tensor], sums: list):
    """Gradients of the rows before a unit from those after it and of its state; adds to those of the parameters."""
    bars, seed = end_bars
    with torch.enable_grad():
        before = tuple(None if row is None else row.detach().requires_grad_() for row in rows)
        after = run.unit(before, unit)
        ends = [*zip(after, bars, strict=True), *(zip(run.own(after), seed, strict=True) if seed else ())]
    known = [(end, bar) for end, bar in ends if bar is not None and end.requires_grad]
    inputs = [row for row in before if row is not None]
    if not known:
        return (None,) * len(rows)
    outputs, weights = zip(*known, strict=True)
    found = torch.autograd.grad(outputs, (*inputs, *parameters), weights, allow_unused=True)
    for i, bar in enumerate(found[len(inputs) :]):
        if bar is not None:
            sums[i] = bar if sums[i] is None else sums[i] + bar
    gradients = iter(found)
    return tuple(None if row is None else next(gradients) for row in before)


def _of_state(run: Fixed, state: State, bars: tuple) -> tuple:
    """Gradients of the state from those of the rows it was spread to."""
    with torch.enable_grad():
        leaves = tuple(part.detach().requires_grad_() for part in state)
        known = [(r, b) for r, b in zip(run.spread(leaves), bars, strict=True) if r is not None and b is not None]
    if not known:
        return (None,) * len(state)
    rows, weights = zip(*known, strict=True)
    return torch.autograd.grad(rows, leaves, weights, allow_unused=True)
