"""A solve as a single node of autograd with its own derivative.

Second derivatives come from a run that autograd records in full, and higher ones from pure functions of all tensors.
Function transformations (`torch.func`) and forward mode trace the steps themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.checkpoints.budget import Memory
from stepnet.engines.torch_engine.adjoint.dependencies import AmbiguousTensors, find_inputs
from stepnet.engines.torch_engine.adjoint.reversal import (
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
    """A solve as a function of the given tensors (state, times) and of parameters, with its derivatives.

    `forward` returns the data to save for the reverse sweep, and the results.  `backward` returns the gradients of
    the given tensors and of the parameters, from the saved data, the given tensors and the gradients of the results.
    `reference` computes the results by autograd alone.  Derivatives of any order exist if `pure` computes the results
    as a function of all tensors, parameters included; otherwise those of third order are refused.  `modules` have
    buffers that the functions change; `context` is set for a solve that has already begun.
    """

    forward: Callable[[Tensors], tuple[Any, Tensors]]
    backward: Callable[[Any, Tensors, Sequence[Tensor | None]], Sequence[Tensor | None]]
    reference: Callable[[Tensors], Tensors]
    parameters: tuple[Tensor, ...]
    n_given: int
    pure: Callable[[Tensors], Tensors] | None = None
    modules: tuple[torch.nn.Module, ...] = ()
    context: RunContext | None = None

    def split(self, tensors: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The given tensors, and those after the parameters."""
        return tensors[: self.n_given], tensors[self.n_given + len(self.parameters) :]


def is_one_node(tensors: Tensors) -> bool:
    """Whether a gradient is needed, and only reverse-mode autograd is active."""
    return is_differentiated() and any(x.requires_grad for x in tensors)


def solve_differentiably(solve: Differentiable, given: Tensors) -> Tensors:
    """The results of a solve, with the derivatives that it defines."""
    if not is_one_node((*given, *solve.parameters)):
        return solve.reference(given)
    return _Solve.apply(solve, *given, *solve.parameters)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solve: Differentiable, *tensors: Tensor) -> Any:
        ctx.solve = solve
        ctx.context = solve.context or RunContext.capture(tensors[0].device, solve.modules)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.kept, found = solve.forward([x.detach() for x in tensors[: solve.n_given]])
        return tuple(x.detach().clone() for x in found)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> Any:
        if ctx.solve.pure is None or not _are_many(bars):
            return None, *_PullBack.apply(ctx.solve, ctx.kept, ctx.context, *ctx.saved_tensors, *bars)
        with torch.enable_grad():
            leaves = [make_leaf(x) for x in ctx.saved_tensors]
            found = _run_in_context(ctx.context, ctx.solve.pure)(leaves)  # type: ignore[arg-type]
            known = [(y, bar) for y, bar in zip(found, bars, strict=True) if bar is not None]
        return None, *pull_back([y for y, _ in known], leaves, [bar for _, bar in known])


class _PullBack(torch.autograd.Function):
    """The gradients of a solve as a function of its tensors and of the gradients of its results."""

    @staticmethod
    def forward(ctx: Any, solve: Differentiable, kept: Any, context: RunContext, *tensors: Tensor | None) -> Any:
        ctx.solve, ctx.context = solve, context
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        given, bars = solve.split(tensors)
        with context.restore_context():
            return tuple(solve.backward(kept, given, bars))

    @staticmethod
    def backward(ctx: Any, *weights: Tensor | None) -> Any:
        solve, tensors = ctx.solve, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, None, None, *_pull_back_twice(solve, ctx.context, tensors, weights)
        if solve.pure is None:
            with torch.no_grad():
                found = _pull_back_twice(solve, ctx.context, tensors, weights)
            return None, None, None, *_Last.apply(len(found), *found, *tensors, *weights)
        n = solve.n_given + len(solve.parameters)
        places = [i for i, bar in enumerate(tensors[n:]) if bar is not None]
        gradients = _find_gradients(_run_in_context(ctx.context, solve.pure), n, places)
        first, bars = tensors[:n], [tensors[n + i] for i in places]
        further = _pull_back_pure(gradients, (*first, *bars), weights)
        by_place = dict(zip(places, further[n:], strict=True))
        return None, None, None, *further[:n], *(by_place.get(i) for i in range(len(tensors) - n))


def _pull_back_twice(
    solve: Differentiable, context: RunContext, tensors: Tensors, weights: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """Second derivatives, from a run that autograd records."""
    given, bars = solve.split(tensors)
    with context.restore_context(), torch.enable_grad():
        leaves, bar_leaves = [make_leaf(x) for x in given], [make_leaf(bar) for bar in bars]
        results = [(y, bar) for y, bar in zip(solve.reference(leaves), bar_leaves, strict=True) if bar is not None]  # type: ignore[arg-type]
        inputs = (*leaves, *solve.parameters)
        first = pull_back([y for y, _ in results], inputs, [bar for _, bar in results], create_graph=True)
    known = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and w is not None]
    known = [(g, w) for g, w in known if g.requires_grad]
    return pull_back([g for g, _ in known], (*inputs, *bar_leaves), [w for _, w in known])


class _Last(torch.autograd.Function):
    """Returns the first n tensors, whose derivatives with respect to the others are not available."""

    @staticmethod
    def forward(ctx: Any, n: int, *tensors: Tensor | None) -> Any:
        return tuple(None if x is None else x.detach() for x in tensors[:n])

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> Any:
        raise RuntimeError(
            'this `memory` supports first and second derivatives only; use `memory`="all" for those of higher order'
        )


class _Pure(torch.autograd.Function):
    """A function of tensors whose derivative is again such a function."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensors], Tensors], *tensors: Tensor) -> Any:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            return tuple(x.detach() for x in function([x.detach().requires_grad_() for x in tensors]))

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> Any:
        return None, *_pull_back_pure(ctx.function, ctx.saved_tensors, bars)


def _pull_back_pure(function: Callable[[Tensors], Tensors], tensors: Tensors, bars: Sequence[Tensor | None]) -> Tensors:
    """The gradients of all tensors, which can be differentiated further."""
    places = [i for i, bar in enumerate(bars) if bar is not None]
    return _Pure.apply(_find_gradients(function, len(tensors), places), *tensors, *(bars[i] for i in places))


def _find_gradients(
    function: Callable[[Tensors], Tensors], n: int, places: Sequence[int]
) -> Callable[[Tensors], Tensors]:
    """The gradients of n tensors as a function of these and of the gradients of the results at some indices."""

    def gradients(tensors_and_bars: Tensors) -> Tensors:
        inputs, found = tensors_and_bars[:n], function(tensors_and_bars[:n])
        outputs = [found[i] for i in places]
        return torch.autograd.grad(
            outputs, inputs, tensors_and_bars[n:], create_graph=True, allow_unused=True, materialize_grads=True
        )

    return gradients


def _run_in_context(context: RunContext, function: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    """The function, evaluated in the context of its first call."""

    def inside(tensors: Tensors) -> Tensors:
        with context.restore_context():
            return function(tensors)

    return inside


def _are_many(bars: Sequence[Tensor | None]) -> bool:
    """Whether gradients are batched tensors, whose values cannot be read."""
    return any(torch._C._functorch.is_legacy_batchedtensor(bar) for bar in bars if bar is not None)


def is_differentiated() -> bool:
    """Whether tensors are differentiated by reverse-mode autograd and nothing else."""
    return torch.is_grad_enabled() and not is_transformed() and not torch.jit.is_tracing()


def solve_exactly(taped: TapedRun, memory: Memory, state: State) -> list[State]:
    """The states that a taped run reads, with the gradient of its steps computed under a memory policy."""
    return _solve_run(_drop_idle_nodes(taped), memory, state)


def solve_exactly_for_all(taped: TapedRun, memory: Memory, state: State) -> list[State]:
    """As `solve_exactly`, with gradients of all tensors the functions depend on, found in the first unit's graph."""
    taped = _drop_idle_nodes(taped)
    if not is_differentiated():
        return read_states_at(taped.run, state, taped.readings)
    context = RunContext.capture(state[0].device, taped.modules)
    with torch.no_grad():
        opened = open_run(taped, tuple(part.detach() for part in state))
    try:
        parameters = _list_all_parameters(taped, opened)
    except AmbiguousTensors as reason:
        message = f'`func` depends on {reason}, so all states were stored, as with `memory`="all"'
        warnings.warn(message, AdjointWarning, stacklevel=2)
        context.side.restore(context.saved)
        return read_states_at(taped.run, state, taped.readings)
    taped = taped._replace(parameters=parameters, is_checked=True)
    if not is_one_node((*state, *parameters)) and taped.run.grid.nodes is None:
        return _continue_run(taped, opened)
    return _solve_run(taped, memory, state, context, [opened])


def _list_all_parameters(taped: TapedRun, opened: RecordedOpening) -> tuple[Tensor, ...]:
    """The parameters of a taped run, and everything else its first unit depends on."""
    if opened.has_history:
        raise AmbiguousTensors("buffers that carry gradients from step to step")

    def run_again() -> None:
        with opened.side.preserve():
            taped.run_units(taped.run.unit, opened.rows, taped.first, taped.first + 1)

    sources = opened.graph.sources(taped.parameters)  # type: ignore[union-attr]
    return find_inputs(sources, taped.parameters, run_again) if sources else taped.parameters


def _drop_idle_nodes(taped: TapedRun) -> TapedRun:
    """The taped run without nodes whose gradient is not needed."""
    grid = taped.run.grid
    if grid.nodes is None or grid.nodes.requires_grad:
        return taped
    return taped._replace(run=taped.run._replace(grid=grid._replace(nodes=None)))


def _solve_run(
    taped: TapedRun,
    memory: Memory,
    state: State,
    context: RunContext | None = None,
    opened: Sequence[RecordedOpening] = (),
) -> list[State]:
    """Solve a taped run; if `opened`, its first unit has already been run, in the initial context."""
    begun, n, nodes = list(opened), len(state), taped.run.grid.nodes
    given = state if nodes is None else (*state, nodes)

    def forward(given: Tensors) -> Any:
        start = tuple(given[:n])
        kept, found = run_forward(taped, start, memory, begun.pop() if begun else open_run(taped, start))
        return kept, _flatten(found)

    def backward(kept: Any, given: Tensors, bars: Sequence[Tensor | None]) -> Any:
        found = run_backward(kept, _group(bars, n))
        of_nodes = () if nodes is None else (found.nodes,)
        return *gather_state_gradients(taped, tuple(given[:n]), found), *of_nodes, *found.parameters

    def reference(given: Tensors) -> Any:
        run = taped.run.restrict(given[n] if len(given) > n else None, taped.first, taped.end)
        return _flatten(read_states_at(run, tuple(given[:n]), taped.readings))

    pure = _make_pure(taped, n)
    solve = Differentiable(forward, backward, reference, taped.parameters, len(given), pure, taped.modules, context)
    return _group(solve_differentiably(solve, given), n)


def _continue_run(taped: TapedRun, opened: RecordedOpening) -> list[State]:
    """The states that a taped run reads, continued after its first unit, without gradients."""
    rows, found = detach(opened.graph.after), opened.graph.found
    _, later = taped.run_units(taped.run.unit, rows, taped.first + 1, taped.end)
    return [*(detach(state) for state in found), *later]


def _make_pure(taped: TapedRun, n: int) -> Callable[[Tensors], Tensors] | None:
    """The states that a taped run reads, as a function of the n parts of its state and of its parameters."""
    if (renewed := taped.renewed) is None:
        return None
    return lambda tensors: _flatten(read_states_at(renewed(tensors[n:]), tuple(tensors[:n]), taped.readings))


def _flatten(states: Sequence[State]) -> list[Tensor]:
    return [part for state in states for part in state]


def _group(flat: Sequence[Any], n: int) -> list[tuple[Any, ...]]:
    return [tuple(flat[i : i + n]) for i in range(0, len(flat), n)]
