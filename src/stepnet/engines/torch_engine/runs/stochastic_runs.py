"""States of stochastic equations at save times, by fixed steps, or by steps whose error is controlled.

Adaptive steps are found first, without gradients, and then repeated as fixed steps: the Brownian path is a function of
time, so rejected steps do not affect it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.fixed_steps import (
    FixedStepRun,
    StateRead,
    build_grid_of_numbers,
    read_state,
)
from stepnet.engines.torch_engine.integrators.step_control import MAX_STEPS
from stepnet.engines.torch_engine.integrators.stochastic_steps import build_stochastic_run
from stepnet.engines.torch_engine.random.step_noise import NoiseSource, StepNoise
from stepnet.engines.torch_engine.rhs.stochastic_fields import StochasticField
from stepnet.engines.torch_engine.rhs.tensor_fields import State
from stepnet.engines.torch_engine.runs.fixed_runs import Solver, interpolate_linear, read_between_nodes

SAFETY, SMALLEST, LARGEST = 0.9, 0.2, 1.4  # as in torchsde
REJECTED_POWER, ACCEPTED_POWER, MEMORY_POWER = 1 / 1.5, 1 / 4.5, 0.13
FLOOR = 1e-7  # of errors and tolerances


class StochasticPlan(NamedTuple):
    """Save times, of which the first is the initial time, and the times `nodes` at which steps end.

    `source` returns the source of noise for given nodes, or for any with None.  With `control`, `nodes` are ignored.
    """

    times: Sequence[float]
    nodes: Sequence[float]
    source: Callable[[Sequence[float] | None], NoiseSource]
    solver: Solver
    control: StepDoubling | None = None


class StepDoubling(NamedTuple):
    """The first step size, tolerances, and the smallest step size."""

    dt: float
    rtol: float
    atol: float
    dt_min: float


def solve_stochastic(field: StochasticField, scheme: Any, state: State, plan: StochasticPlan) -> list[State]:
    """States at the save times, interpolated linearly inside steps."""
    if len(plan.times) == 1:
        return [state]
    nodes, stride = plan.nodes, 1
    if plan.control is not None:
        nodes, stride = find_steps(field, scheme, state, plan, plan.control), 2
    run = _build_run(field, scheme, state, plan.source(nodes), nodes)

    def read_after(steps: Sequence[int]) -> list[State]:
        if steps[0] == 0:
            return [state, *read_after(steps[1:])] if len(steps) > 1 else [state]
        return plan.solver(run, state, [StateRead(stride * step, read_state) for step in steps])

    return read_between_nodes(nodes[::stride], plan.times, read_after, interpolate_linear)


def _build_run(
    field: StochasticField, scheme: Any, state: State, source: NoiseSource, nodes: Sequence[float]
) -> FixedStepRun:
    return build_stochastic_run(field, scheme, build_grid_of_numbers(nodes), StepNoise(source, state[0].dtype))


# ---- adaptive steps -------------------------------------------------------------------------------------------------


@torch.no_grad()
def find_steps(
    field: StochasticField, scheme: Any, state: State, plan: StochasticPlan, control: StepDoubling
) -> list[float]:
    """The ends of half steps, chosen by comparing a step with two of half its length on the same Brownian path."""
    run = _build_run(field, scheme, state, plan.source(None), (0.0, 1.0))
    t, end, h, before = plan.times[0], plan.times[-1], control.dt, None
    nodes, rows = [t], run.unit(run.spread(tuple(part.detach() for part in state)), 0)  # type: ignore[arg-type]
    for _ in range(MAX_STEPS):
        if t >= end:
            return nodes
        t_new = min(t + h, end)
        middle = 0.5 * (t + t_new)
        full = _advance(run, rows, t, t_new)
        halves = _advance(run, _advance(run, rows, t, middle), middle, t_new)
        error = _measure_error(full[0], halves[0], control)
        h, before = _choose_step(error, h, before)
        if h < control.dt_min:
            warnings.warn(f"steps are as short as `dt_min` = {control.dt_min:g} at t = {t:g}", stacklevel=2)
            h, before = control.dt_min, None
        if error <= 1.0 or h <= control.dt_min:
            nodes += middle, t_new
            t, rows = t_new, halves
    raise RuntimeError(f"{MAX_STEPS} adaptive steps end at t = {t:g} before {end:g}: raise `rtol`, `atol` or `dt_min`")


def _advance(run: FixedStepRun, rows: tuple[Tensor, ...], a: float, b: float) -> tuple[Tensor, ...]:
    return run._replace(grid=build_grid_of_numbers((a, b))).unit(rows, 1)


def _measure_error(full: Tensor, halves: Tensor, control: StepDoubling) -> float:
    """The root mean square of the difference, in units of the tolerance."""
    tolerance = (control.rtol * torch.maximum(full.abs(), halves.abs()) + control.atol).clamp_min(FLOOR)
    error = float(((full - halves) / tolerance).square().mean().sqrt())
    if error != error:
        raise RuntimeError("the error of an adaptive step is NaN: use a smaller `dt` or check `f` and `g`")
    return max(error, FLOOR)


def _choose_step(error: float, h: float, before: float | None) -> tuple[float, float | None]:
    """The next step size and the ratio that the controller remembers."""
    ratio = SAFETY / error
    if error > 1.0:
        return h * min(LARGEST, max(SMALLEST, ratio**REJECTED_POWER)), before if before is not None else ratio
    factor = ratio**ACCEPTED_POWER * (ratio / (ratio if before is None else before)) ** MEMORY_POWER
    return h * min(LARGEST, max(1.0, factor)), ratio
