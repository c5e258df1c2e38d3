"""Layers over depth: the step program of a scheme on tensors, with the weights of every stage time.

States are `(batch, features)`; partitioned states are two such tensors.  Stage times are known beforehand, so no tensor
value is read, and every control value of a weight is a separate tensor, which only the steps that use it access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.fixed_steps import (
    CompiledScheme,
    FixedStepRun,
    StepGrid,
    build_endless_grid,
)
from stepnet.engines.torch_engine.integrators.step_program import SlopeNode, add
from stepnet.engines.torch_engine.layers.activations import activate
from stepnet.engines.torch_engine.layers.node_operators import build_operator
from stepnet.engines.torch_engine.layers.tables import StageControls, StageTable
from stepnet.engines.torch_engine.random.step_noise import StepNoise
from stepnet.engines.torch_engine.rhs import tensor_fields as equations
from stepnet.engines.torch_engine.rhs.tensor_fields import State
from stepnet.fields import Chain, Connectivity, Field, Layer
from stepnet.fields.dynamics import DIFFUSION_PART

Controls = Mapping[str, tuple[Tensor, ...]]
"""The control values of every parameter, each with the shape of the parameter at one time."""


class StageInput(NamedTuple):
    """A stage time, a number or a scalar tensor, and all weights at it."""

    t: float | Tensor
    weights: Mapping[str, Tensor]


class LayerForm(NamedTuple):
    """What a layer does besides K."""

    weights: str | None
    bias: str | None
    clock: str | None
    is_transposed: bool
    mirror: list[int] | None
    shift: float
    activation: int


def _find_form(layer: Layer) -> LayerForm:
    mirror = list(layer.connectivity.mirror) if layer.is_antisymmetric else None  # type: ignore[union-attr, arg-type]
    number = layer.activation.number
    return LayerForm(layer.weights, layer.bias, layer.clock, layer.is_transposed, mirror, layer.shift, number)


class TensorChain:
    """sign s_m(K_m ... s_1(K_1 x + b_1) ... + b_m) on `(batch, features)`; weights are arguments."""

    def __init__(self, chain: Chain, connections: dict[Connectivity, Callable[..., Tensor]] | None = None):
        connections = {} if connections is None else connections
        for layer in chain.layers:
            if layer.connectivity not in connections:
                connections[layer.connectivity] = build_operator(layer.connectivity)
        self.forms = [_find_form(layer) for layer in chain.layers]
        self.connections = [connections[layer.connectivity] for layer in chain.layers]
        self.sign = chain.sign

    def __call__(self, stage: StageInput, x: Tensor) -> Tensor:
        v = x
        for form, K in zip(self.forms, self.connections, strict=True):
            W, b = find_effective_weights(form, stage), evaluate_bias(form, stage)
            u = K(W, b, x if form.is_transposed else v, v, form.is_transposed)
            v = activate(form.activation, add(u, v, form.shift) if form.shift else u)
        return v if self.sign == 1.0 else self.sign * v


def find_effective_weights(form: LayerForm, stage: StageInput) -> Tensor | None:
    """The weights of K, or of K - K'."""
    W = None if form.weights is None else stage.weights.get(form.weights)
    if form.mirror is None or W is None:
        return W
    return W - W.mT if W.ndim == 2 else W - W[form.mirror].mT


def evaluate_bias(form: LayerForm, stage: StageInput) -> Tensor | None:
    """b + t c."""
    b = None if form.bias is None else stage.weights[form.bias]
    if form.clock is None:
        return b
    c, t = stage.weights[form.clock], stage.t
    if b is None:
        return c * t
    return b + c * t if isinstance(t, Tensor) else add(b, c, t)


class TensorField:
    """The parts of a field, and the equation they form."""

    def __init__(self, field: Field):
        shared: dict[Connectivity, Callable[..., Tensor]] = {}
        self.kind = field.kind
        self.parts = [TensorChain(part, shared) for part in field.parts]
        chain = None if field.diffusion is None else field.diffusion.chain
        self.diffusion = None if chain is None else TensorChain(chain, shared)

    def equation(self) -> equations.Field:
        """The equation, whose functions take a `StageInput` as time."""
        if self.kind == "second":
            return equations.SecondOrder(self.parts[0])
        if self.kind == "partitioned":
            return equations.Partitioned(self.parts[0], self.parts[1])
        return equations.SingleField(self.parts[0])

    def state(self, y: Tensor) -> State:
        """y, or (q, p), from `(batch, width)`."""
        return (y,) if self.kind == "first" else y.chunk(2, dim=1)

    def slope(self, stage: StageInput, y: Tensor) -> Tensor:
        """y' of `(batch, width)` at one stage time."""
        equation = self.equation()
        slope = equation.whole(stage, equations.join(equation, self.state(y)))  # type: ignore[arg-type]
        return torch.cat(equations.split(equation, slope), dim=1)


class DepthGrid(NamedTuple):
    """The counterpart of `StepGrid` for layers: steps, and for the nodes of each a time with all weights at it."""

    table: StageTable
    controls: Controls
    nodes: None = None

    @property
    def t(self) -> Any:
        return build_endless_grid(0.0, self.table.h[0]).t

    @property
    def h(self) -> Sequence[float]:
        return self.table.h

    def times(self, step: int, nodes: tuple[SlopeNode, ...], like: Tensor) -> list[StageInput]:
        moments = self.table.moments[step]
        return [evaluate_stage(self.controls, moments[node]) for node in nodes]


def build_layered_run(
    module: TensorField, moves: CompiledScheme, table: StageTable, controls: Controls, noise: StepNoise | None = None
) -> FixedStepRun:
    """A run over layers; `moves` and `table` belong to the same scheme."""
    equation = module.equation()
    functions: tuple[Callable[..., Any], ...] = equation.functions if moves.is_parted else (equation.whole,)
    if module.diffusion is not None:
        functions = (*functions, *functions[:1] * (DIFFUSION_PART - len(functions)), module.diffusion)
    return FixedStepRun(equation, moves, functions, cast(StepGrid, DepthGrid(table, controls)), noise=noise)


def evaluate_stage(controls: Controls, moment: StageControls) -> StageInput:
    """theta(s) = sum_j B_j(s) theta_j for all weights."""
    return StageInput(moment.t, {name: _combine(values, moment) for name, values in controls.items()})


def _combine(values: tuple[Tensor, ...], moment: StageControls) -> Tensor:
    if len(moment.basis) == 1:
        return values[moment.first]
    (first, weight), *rest = [(values[moment.first + j], w) for j, w in enumerate(moment.basis) if w != 0.0]
    total = first * weight
    for each, weight in rest:
        total = add(total, each, weight)
    return total
