"""The exact gradient of a run with given steps, in a chosen number of kept states.

The forward run keeps its beginning only.  The way back follows a schedule of `checkpoints`: it runs forward to where a
state is wanted, and pulls the gradient back through one step at a time, whose graph lives no longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stepnet import checkpoints
from stepnet.checkpoints import Kind
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import Fixed, states_at
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
        ctx.run, ctx.steps, ctx.slots, ctx.n = run, steps, slots, n
        ctx.surroundings = Surroundings.here(tensors[0].device)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found = states_at(run, tensors[:n], steps)
        return tuple(part.clone() for state in found for part in state)

    @staticmethod
    @once_differentiable
    def backward(ctx, *bars: Tensor | None):
        n, run = ctx.n, ctx.run
        state, parameters = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        given = {run.place_of(step): bars[i * n : (i + 1) * n] for i, step in enumerate(ctx.steps)}
        seeds = {place: seed for place, seed in given.items() if any(bar is not None for bar in seed)}
        with ctx.surroundings.restored():
            state_bar, parameter_bars = pullback(run, state, parameters, seeds, ctx.slots)
        return (None, None, None, None, *state_bar, *parameter_bars)


def pullback(run: Fixed, state: State, parameters: Sequence[Tensor], seeds: dict, slots: int):
    """Gradients with respect to the state and the parameters; `seeds` are those of the states after so many units."""
    device = state[0].device
    first = 0 if run.motion.opening.operations else 1  # an opening that does nothing is no unit
    kept: dict[int, tuple] = {}
    with torch.no_grad():
        rows: tuple = run.spread(state)
    bars: tuple = (None,) * len(rows)
    sums: list = [None] * len(parameters)
    for kind, start, stop, slot in checkpoints.binomial(max(seeds, default=first) - first, slots):
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
    return _of_state(run, state, bars), sums


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
