"""A solve as one node of autograd, whose derivative is found in a way of our own.

Second derivatives come from a run that autograd writes down in full, and further ones from pure functions of all
tensors.  Transformations of functions (`torch.func`) and forward mode see the steps themselves, which every one of them
understands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.adjoint.dependencies import AmbiguousTensors, find_inputs
from stepnet.engines.torch_engine.adjoint.reversal import (
    Memory,
    RecordedOpening,
    gather_state_gradients,
    open_run,
    run_backward,
    run_forward,
)
from stepnet.engines.torch_engine.adjoint.step_blocks import TapedRun, detach, make_leaf, pull_back
from stepnet.engines.torch_engine.integrators.fixed_steps import read_states_at
from stepnet.engines.torch_engine.rhs.tensor_fields import State
from stepnet.engines.torch_engine.runs.rng_and_autocast import RunContext, is_transformed
from stepnet.errors import AdjointWarning

Tensors = Sequence[Tensor]


class Differentiable(NamedTuple):
    """A solve from given tensors (state, times) with functions of parameters, and how to differentiate it.

    `forward` gives what it keeps and the results, `backward` the gradients of the given tensors and of the parameters
    from what was kept, the given tensors and the gradients of the results, and `reference` the results by autograd
    alone. Derivatives are of any order where `pure` has these as a function of all tensors, those of parameters among
    them, and of two orders where there is none; a third one is refused.  `modules` have buffers that the functions
    change; a solve that has begun already has surroundings.
    """

    forward: Callable[[Tensors], tuple[Any, Tensors]]
    backward: Callable[[Any, Tensors, Sequence[Tensor | None]], Sequence[Tensor | None]]
    reference: Callable[[Tensors], Tensors]
    parameters: tuple[Tensor, ...]
    n_given: int
    pure: Callable[[Tensors], Tensors] | None = None
    modules: tuple[torch.nn.Module, ...] = ()
    surroundings: RunContext | None = None

    def split(self, tensors: Sequence) -> tuple[Sequence, Sequence]:
        """The given tensors and what comes after the parameters."""
        return tensors[: self.n_given], tensors[self.n_given + len(self.parameters) :]


def is_one_node(tensors: Tensors) -> bool:
    """Whether there is a gradient to be found, and by reverse autograd alone."""
    return is_differentiated() and any(x.requires_grad for x in tensors)


def solve_differentiably(way: Differentiable, given: Tensors) -> Tensors:
    """The results of a solve, differentiated in its way."""
    if not is_one_node((*given, *way.parameters)):
        return way.reference(given)
    return _Solve.apply(way, *given, *way.parameters)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, way: Differentiable, *tensors: Tensor):
        ctx.way = way
        ctx.surroundings = way.surroundings or RunContext.here(tensors[0].device, way.modules)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.kept, found = way.forward([x.detach() for x in tensors[: way.n_given]])
        return tuple(x.detach().clone() for x in found)

    @staticmethod
    def backward(ctx, *bars: Tensor | None):
        if ctx.way.pure is None or not _are_many(bars):
            return None, *_PullBack.apply(ctx.way, ctx.kept, ctx.surroundings, *ctx.saved_tensors, *bars)
        with torch.enable_grad():
            leaves = [make_leaf(x) for x in ctx.saved_tensors]
            found = _run_in_context(ctx.surroundings, ctx.way.pure)(leaves)  # type: ignore[arg-type]
            known = [(y, bar) for y, bar in zip(found, bars, strict=True) if bar is not None]
        return None, *pull_back([y for y, _ in known], leaves, [bar for _, bar in known])


class _PullBack(torch.autograd.Function):
    """The gradients of a solve as a function of its tensors and of the gradients of its results."""

    @staticmethod
    def forward(ctx, way: Differentiable, kept, surroundings: RunContext, *tensors: Tensor | None):
        ctx.way, ctx.surroundings = way, surroundings
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        given, bars = way.split(tensors)
        with surroundings.restored():
            return tuple(way.backward(kept, given, bars))

    @staticmethod
    def backward(ctx, *weights: Tensor | None):
        way, tensors = ctx.way, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, None, None, *_pull_back_twice(way, ctx.surroundings, tensors, weights)
        if way.pure is None:
            with torch.no_grad():
                found = _pull_back_twice(way, ctx.surroundings, tensors, weights)
            return None, None, None, *_Last.apply(len(found), *found, *tensors, *weights)
        n = way.n_given + len(way.parameters)
        places = [i for i, bar in enumerate(tensors[n:]) if bar is not None]
        gradients = _find_gradients(_run_in_context(ctx.surroundings, way.pure), n, places)
        first, bars = tensors[:n], [tensors[n + i] for i in places]
        further = _pull_back_purely(gradients, (*first, *bars), weights)
        by_place = dict(zip(places, further[n:], strict=True))
        return None, None, None, *further[:n], *(by_place.get(i) for i in range(len(tensors) - n))


def _pull_back_twice(
    way: Differentiable, surroundings: RunContext, tensors: Tensors, weights: Sequence[Tensor | None]
) -> tuple:
    """Second derivatives, from a run that autograd writes down."""
    given, bars = way.split(tensors)
    with surroundings.restored(), torch.enable_grad():
        leaves, bar_leaves = [make_leaf(x) for x in given], [make_leaf(bar) for bar in bars]
        results = [(y, bar) for y, bar in zip(way.reference(leaves), bar_leaves, strict=True) if bar is not None]  # type: ignore[arg-type]
        inputs = (*leaves, *way.parameters)
        first = pull_back([y for y, _ in results], inputs, [bar for _, bar in results], create_graph=True)
    known = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and w is not None]
    known = [(g, w) for g, w in known if g.requires_grad]
    return pull_back([g for g, _ in known], (*inputs, *bar_leaves), [w for _, w in known])


class _Last(torch.autograd.Function):
    """The first n of some tensors, which depend on the others in a way that nobody knows the derivative of."""

    @staticmethod
    def forward(ctx, n: int, *tensors: Tensor | None):
        return tuple(None if x is None else x.detach() for x in tensors[:n])

    @staticmethod
    def backward(ctx, *bars: Tensor | None):
        raise RuntimeError(
            'this `memory` has first and second derivatives; take `memory`="all" for those of third and higher order'
        )


class _Pure(torch.autograd.Function):
    """A function of tensors, whose derivative is another one."""

    @staticmethod
    def forward(ctx, function: Callable[[Tensors], Tensors], *tensors: Tensor):
        ctx.function = function
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            return tuple(x.detach() for x in function([x.detach().requires_grad_() for x in tensors]))

    @staticmethod
    def backward(ctx, *bars: Tensor | None):
        return None, *_pull_back_purely(ctx.function, ctx.saved_tensors, bars)


def _pull_back_purely(
    function: Callable[[Tensors], Tensors], tensors: Tensors, bars: Sequence[Tensor | None]
) -> Tensors:
    """The gradients of all tensors, with derivatives of their own."""
    places = [i for i, bar in enumerate(bars) if bar is not None]
    return _Pure.apply(_find_gradients(function, len(tensors), places), *tensors, *(bars[i] for i in places))  # type: ignore[arg-type]


def _find_gradients(
    function: Callable[[Tensors], Tensors], n: int, places: Sequence[int]
) -> Callable[[Tensors], Tensors]:
    """The gradients of n tensors as a function of them and of the gradients of the results at some places."""

    def gradients(tensors_and_bars: Tensors) -> Tensors:
        inputs, found = tensors_and_bars[:n], function(tensors_and_bars[:n])
        outputs = [found[i] for i in places]
        return torch.autograd.grad(
            outputs, inputs, tensors_and_bars[n:], create_graph=True, allow_unused=True, materialize_grads=True
        )

    return gradients


def _run_in_context(surroundings: RunContext, function: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    """The same function in the surroundings of its first call."""

    def inside(tensors: Tensors) -> Tensors:
        with surroundings.restored():
            return function(tensors)

    return inside


def _are_many(bars: Sequence[Tensor | None]) -> bool:
    """Whether gradients come in a batch, which cannot be asked for their values."""
    return any(torch._C._functorch.is_legacy_batchedtensor(bar) for bar in bars if bar is not None)


def is_differentiated() -> bool:
    """Whether reverse autograd, and nothing else, looks at the tensors."""
    return torch.is_grad_enabled() and not is_transformed() and not torch.jit.is_tracing()


def solve_exactly(course: TapedRun, memory: Memory, state: State) -> list[State]:
    """What a course reads, with the gradient of its steps found in a chosen memory."""
    return _solve_run(_drop_idle_nodes(course), memory, state)


def solve_exactly_for_all(course: TapedRun, memory: Memory, state: State) -> list[State]:
    """The same with gradients of all tensors that the functions depend on, found in the graph of the first unit."""
    course = _drop_idle_nodes(course)
    if not is_differentiated():
        return read_states_at(course.run, state, course.readings)
    surroundings = RunContext.here(state[0].device, course.modules)
    with torch.no_grad():
        opened = open_run(course, tuple(part.detach() for part in state))
    try:
        parameters = _list_all_parameters(course, opened)
    except AmbiguousTensors as reason:
        message = f'`func` depends on {reason}, so that everything was kept, as by `memory`="all"'
        warnings.warn(message, AdjointWarning, stacklevel=2)
        surroundings.side.restore(surroundings.saved)
        return read_states_at(course.run, state, course.readings)
    course = course._replace(parameters=parameters, is_checked=True)
    if not is_one_node((*state, *parameters)) and course.run.grid.nodes is None:
        return _continue_run(course, opened)
    return _solve_run(course, memory, state, surroundings, [opened])


def _list_all_parameters(course: TapedRun, opened: RecordedOpening) -> tuple[Tensor, ...]:
    """The parameters of a course, and what else its first unit depends on."""
    if opened.has_history:
        raise AmbiguousTensors("buffers that have gradients from step to step")

    def run_again() -> None:
        with opened.side.kept():
            course.through(course.run.unit, opened.rows, course.first, course.first + 1)

    sources = opened.graph.sources(course.parameters)  # type: ignore[union-attr]
    return find_inputs(sources, course.parameters, run_again) if sources else course.parameters


def _drop_idle_nodes(course: TapedRun) -> TapedRun:
    """The same without nodes of which nobody wants the gradient."""
    grid = course.run.grid
    if grid.nodes is None or grid.nodes.requires_grad:
        return course
    return course._replace(run=course.run._replace(grid=grid._replace(nodes=None)))


def _solve_run(
    course: TapedRun,
    memory: Memory,
    state: State,
    surroundings: RunContext | None = None,
    opened: Sequence[RecordedOpening] = (),
) -> list[State]:
    """The first unit is done already if it was opened, in the surroundings of the beginning."""
    begun, n, nodes = list(opened), len(state), course.run.grid.nodes
    given = state if nodes is None else (*state, nodes)

    def forward(given: Tensors):
        start = tuple(given[:n])
        kept, found = run_forward(course, start, memory, begun.pop() if begun else open_run(course, start))
        return kept, _flatten(found)

    def backward(kept, given: Tensors, bars: Sequence[Tensor | None]):
        found = run_backward(kept, _group(bars, n))
        of_nodes = () if nodes is None else (found.nodes,)
        return *gather_state_gradients(course, tuple(given[:n]), found), *of_nodes, *found.parameters

    def plainly(given: Tensors):
        run = course.run.over(given[n] if len(given) > n else None, course.first, course.end)
        return _flatten(read_states_at(run, tuple(given[:n]), course.readings))

    purely = _make_pure(course, n)
    way = Differentiable(
        forward, backward, plainly, course.parameters, len(given), purely, course.modules, surroundings
    )
    return _group(solve_differentiably(way, given), n)


def _continue_run(course: TapedRun, opened: RecordedOpening) -> list[State]:
    """What a course reads after its first unit is done, without gradients."""
    rows, found = detach(opened.graph.after), opened.graph.found
    _, later = course.through(course.run.unit, rows, course.first + 1, course.end)
    return [*(detach(state) for state in found), *later]


def _make_pure(course: TapedRun, n: int) -> Callable[[Tensors], Tensors] | None:
    """What a course reads as a function of the n parts of its state and of its parameters."""
    if (renewed := course.renewed) is None:
        return None
    return lambda tensors: _flatten(read_states_at(renewed(tensors[n:]), tuple(tensors[:n]), course.readings))


def _flatten(states: Sequence[State]) -> list[Tensor]:
    return [part for state in states for part in state]


def _group(flat: Sequence, n: int) -> list[tuple]:
    return [tuple(flat[i : i + n]) for i in range(0, len(flat), n)]
