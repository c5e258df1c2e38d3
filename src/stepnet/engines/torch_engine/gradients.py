"""A solve as one node of autograd, whose derivative is found in a way of our own.

Second derivatives come from a run that autograd writes down in full.  Transformations of functions (`torch.func`) and
forward mode see the steps themselves, which every one of them understands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from stepnet.engines.torch_engine.blocks import Course, leaf, pulled
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import states_at
from stepnet.engines.torch_engine.reversal import Memory, back, of_state, there
from stepnet.engines.torch_engine.surroundings import Surroundings

Tensors = Sequence[Tensor]


class Way(NamedTuple):
    """A solve from given tensors (state, times) with functions of parameters, and how to differentiate it.

    `there` gives what it keeps and the results, `back` the gradients of the given tensors and of the parameters from
    what was kept, the given tensors and the gradients of the results, and `plainly` the results by autograd alone.
    """

    there: Callable[[Tensors], tuple[Any, Tensors]]
    back: Callable[[Any, Tensors, Sequence[Tensor | None]], Sequence[Tensor | None]]
    plainly: Callable[[Tensors], Tensors]
    parameters: tuple[Tensor, ...]
    n_given: int

    def split(self, tensors: Sequence) -> tuple[Sequence, Sequence]:
        """The given tensors and what comes after the parameters."""
        return tensors[: self.n_given], tensors[self.n_given + len(self.parameters) :]


def is_transformed() -> bool:
    """Whether anything but reverse autograd looks at the tensors: `torch.func`, or forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_one_node(tensors: Tensors) -> bool:
    """Whether there is a gradient to be found, and by reverse autograd alone."""
    return torch.is_grad_enabled() and not is_transformed() and any(x.requires_grad for x in tensors)


def solved(way: Way, given: Tensors) -> Tensors:
    """The results of a solve, differentiated in its way."""
    if not is_one_node((*given, *way.parameters)):
        return way.plainly(given)
    return _Solve.apply(way, *given, *way.parameters)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, way: Way, *tensors: Tensor):
        ctx.way, ctx.surroundings = way, Surroundings.here(tensors[0].device)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.kept, found = way.there([x.detach() for x in tensors[: way.n_given]])
        return tuple(x.detach().clone() for x in found)

    @staticmethod
    def backward(ctx, *bars: Tensor | None):
        _require_numbers(bars)
        return None, *_PullBack.apply(ctx.way, ctx.kept, ctx.surroundings, *ctx.saved_tensors, *bars)


class _PullBack(torch.autograd.Function):
    """The gradients of a solve as a function of its tensors and of the gradients of its results."""

    @staticmethod
    def forward(ctx, way: Way, kept, surroundings: Surroundings, *tensors: Tensor | None):
        ctx.way, ctx.surroundings = way, surroundings
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        given, bars = way.split(tensors)
        with surroundings.restored():
            return tuple(way.back(kept, given, bars))

    @staticmethod
    @once_differentiable
    def backward(ctx, *weights: Tensor | None):
        given, bars = ctx.way.split(ctx.saved_tensors)
        with ctx.surroundings.restored(), torch.enable_grad():
            leaves, bar_leaves = [leaf(x) for x in given], [leaf(bar) for bar in bars]
            results = [(y, bar) for y, bar in zip(ctx.way.plainly(leaves), bar_leaves, strict=True) if bar is not None]
            inputs = (*leaves, *ctx.way.parameters)
            outputs, seeds = [y for y, _ in results], [bar for _, bar in results]
            first = pulled(outputs, inputs, seeds, create_graph=True)
        known = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and w is not None]
        known = [(g, w) for g, w in known if g.requires_grad]
        return None, None, None, *pulled([g for g, _ in known], (*inputs, *bar_leaves), [w for _, w in known])


def _require_numbers(bars: Sequence[Tensor | None]) -> None:
    """Infinite gradients pass: those who scale their loss look for them."""
    known = [bar for bar in bars if bar is not None]
    if is_transformed() or any(torch._C._functorch.is_legacy_batchedtensor(bar) for bar in known):
        return  # many at once, which cannot be asked for their values
    if any(bool(bar.isnan().any()) for bar in known):
        raise ValueError(
            "the gradient of the loss with respect to the solution is not a number (NaN); look at the loss, which is "
            "perhaps NaN itself, and at the solution"
        )


def exact(course: Course, memory: Memory, state: State) -> list[State]:
    """What a course reads, with the gradient of its steps found in a chosen memory."""
    n, nodes = len(state), course.run.grid.nodes
    if nodes is not None and not nodes.requires_grad:
        course, nodes = course._replace(run=course.run._replace(grid=course.run.grid._replace(nodes=None))), None
    given = state if nodes is None else (*state, nodes)

    def forward(given: Tensors):
        kept, found = there(course, tuple(given[:n]), memory)
        return kept, _flat(found)

    def backward(kept, given: Tensors, bars: Sequence[Tensor | None]):
        found = back(kept, _grouped(bars, n))
        of_nodes = () if nodes is None else (found.nodes,)
        return *of_state(course, tuple(given[:n]), found), *of_nodes, *found.parameters

    def plainly(given: Tensors):
        run = course.run.over(given[n] if len(given) > n else None, course.first, course.end)
        return _flat(states_at(run, tuple(given[:n]), course.readings))

    return _grouped(solved(Way(forward, backward, plainly, course.parameters, len(given)), given), n)


def _flat(states: Sequence[State]) -> list[Tensor]:
    return [part for state in states for part in state]


def _grouped(flat: Sequence, n: int) -> list[tuple]:
    return [tuple(flat[i : i + n]) for i in range(0, len(flat), n)]
