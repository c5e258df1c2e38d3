"""The continuous adjoint, as in torchdiffeq: a' = -a df/dy solved backward in time together with the state.

Its gradient is not that of the steps, but agrees with it up to the tolerances if the flow is stable backward in time.
Reference: Chen, Rubanova, Bettencourt & Duvenaud (2018), NeurIPS, arXiv:1806.07366.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.adjoint.autograd_node import (
    Differentiable,
    Tensors,
    is_differentiated,
    solve_differentiably,
)
from stepnet.engines.torch_engine.adjoint.dependencies import (
    REMEDY,
    AmbiguousTensors,
    describe,
    find_inputs,
    find_sources,
    mark,
)
from stepnet.engines.torch_engine.adjoint.step_blocks import add, pull_back
from stepnet.engines.torch_engine.integrators.step_control import rms
from stepnet.engines.torch_engine.rhs.tensor_fields import join, split, validate_function
from stepnet.engines.torch_engine.rhs.tensor_problems import TensorProblem, build_tensor_problem
from stepnet.engines.torch_engine.runs.rng_and_autocast import SideState
from stepnet.errors import AdjointWarning

UNSAFE = 1e-3  # relative error of the state solved backward above which the gradient is unreliable
Integrate = Callable[..., Tensor | tuple[Tensor, ...]]


def seminorm(parts: Sequence[Tensor]) -> Tensor:
    """Norm of the errors of the state and its adjoint only, so that integrals for parameters do not shorten steps."""
    return torch.stack([rms(part) for part in parts[:2]]).max()


class GradientRequest(NamedTuple):
    """The tensors that need gradients, whether the list is complete, and modules whose buffers the field changes."""

    parameters: tuple[Tensor, ...]
    modules: tuple[torch.nn.Module, ...]
    is_complete: bool


def solve_with_adjoint_equation(
    func: Any, y0: Any, t: Tensor, asked: GradientRequest, forward: Integrate, back: Integrate
) -> Any:
    """The trajectory by `forward(func, y0, t)`; `back` solves the adjoint equation."""
    is_tuple = isinstance(y0, tuple)
    parameters = (
        asked.parameters if asked.is_complete else _list_all_parameters(build_tensor_problem(func, y0), t, asked)
    )
    parts = y0 if is_tuple else (y0,)
    as_given = lambda parts: tuple(parts) if is_tuple else parts[0]

    def reference(given: Tensors) -> list[Tensor]:
        *state, times = given
        found = forward(func, as_given(state), times)
        return list(found) if isinstance(found, tuple) else [found]

    def run_forward(given: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        found = reference(given)
        return found, found

    def pull_back(trajectory: list[Tensor], given: Tensors, bars: Sequence[Tensor | None]) -> tuple[Any, ...]:
        seeds = [torch.zeros_like(y) if bar is None else bar for y, bar in zip(trajectory, bars, strict=True)]
        ys, a_s = (
            [build_tensor_problem(func, as_given(at)) for at in zip(*map(torch.unbind, x), strict=True)]
            for x in (trajectory, seeds)
        )
        slopes = _evaluate_slopes(ys[0], parameters, asked)
        y_bar, t_bar, parameter_bars = _solve_back(ys, a_s, given[-1], slopes, parameters, back)
        parts = ys[0].trajectory([split(ys[0].field, y_bar)])
        return *(part[0] for part in (parts if is_tuple else (parts,))), t_bar, *parameter_bars

    solve = Differentiable(run_forward, pull_back, reference, parameters, len(parts) + 1, modules=asked.modules)
    return as_given(solve_differentiably(solve, (*parts, t)))


def _list_all_parameters(problem: TensorProblem, t: Tensor, asked: GradientRequest) -> tuple[Tensor, ...]:
    """The parameters, and everything else on which the field depends at the first time."""
    if not is_differentiated():
        return asked.parameters
    y, side = join(problem.field, problem.state).detach(), SideState(problem.state[0].device, asked.modules)
    call = lambda: validate_function(problem.field.whole)(t[0].detach().to(y.device, y.real.dtype), y)
    with side.preserve(), torch.enable_grad():
        since = mark()
        sources = find_sources([call()], since, asked.parameters)
        try:
            return find_inputs(sources, asked.parameters, call)
        except AmbiguousTensors as reason:
            raise ValueError(
                f'`func` depends on {reason}, which `memory`="continuous" does not support; {REMEDY}'
            ) from None


def _evaluate_slopes(
    problem: TensorProblem, parameters: tuple[Tensor, ...], asked: GradientRequest
) -> Callable[..., Any]:
    """The right-hand side of the adjoint equation for y, a and the gradients of the parameters."""
    fun = validate_function(problem.field.whole)

    def slopes(time: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y, a = state[:2]
        with torch.enable_grad():
            since, start = mark(), y.detach().requires_grad_()
            slope = fun(time.detach(), start)
        if not asked.is_complete and (unknown := find_sources([slope], since, (start, *parameters))):
            raise RuntimeError(
                f"`func` depends on tensors at t = {float(time)} that it does not depend on at the first time: "
                f"{describe(unknown)}; their gradients would be lost: {REMEDY}"
            )
        found = pull_back([slope] if slope.requires_grad else [], (start, *parameters), [a])
        known = (torch.zeros_like(x) if bar is None else -bar for x, bar in zip((y, *parameters), found, strict=True))
        return slope.detach(), *known

    return slopes


def _solve_back(
    ys: list[TensorProblem],
    seeds: list[TensorProblem],
    t: Tensor,
    slopes: Callable[..., Any],
    parameters: tuple[Tensor, ...],
    back: Integrate,
) -> tuple[Any, ...]:
    """Gradients with respect to y(t[0]), t and the parameters, interval by interval."""
    field = ys[0].field
    fun = validate_function(field.whole)
    y_at, seed_at = ([join(field, each.state) for each in all_of] for all_of in (ys, seeds))

    a, t_bar, missed = seed_at[-1], torch.zeros_like(t), 0.0
    sums: list[Tensor | None] = [None] * len(parameters)
    for i in range(len(t) - 1, 0, -1):
        t_bar[i] += _evaluate_adjoint(seed_at[i], fun(t[i].to(y_at[i].real.dtype), y_at[i]))
        start = (y_at[i], a, *(torch.zeros_like(p) for p in parameters))
        y, a, *more = (part[-1] for part in back(slopes, start, t[[i, i - 1]]))
        sums = [add(total, part) for total, part in zip(sums, more, strict=True)]
        missed = max(missed, float((y - y_at[i - 1]).norm() / y_at[i - 1].norm().clamp(min=1e-30)))
        if i == 1:
            t_bar[0] -= _evaluate_adjoint(a, fun(t[0].to(y.real.dtype), y_at[0]))
        a = a + seed_at[i - 1]
    if not missed <= UNSAFE:
        warnings.warn(
            f"the state solved backward differs from the stored one by {missed:.1e}, so gradients of "
            '`memory`="continuous" are unreliable here; use `Checkpoints`',
            AdjointWarning,
            stacklevel=2,
        )
    return a, t_bar, sums


def _evaluate_adjoint(bar: Tensor, slope: Tensor) -> Tensor:
    return (bar.conj() * slope).real.sum()
