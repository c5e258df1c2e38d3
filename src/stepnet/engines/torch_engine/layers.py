"""Layers over depth: the program of a scheme on tensors, with the weights of every stage time; what a network is.

States are `(batch, features)`, and those in halves two such tensors.  Stage times are known beforehand, so no tensor is
asked for its value, and every control value of a weight is a tensor of its own, which only the steps that use it touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from torch import Tensor

from stepnet.engines.torch_engine import fields as equations
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import Choreography, Fixed, Grid
from stepnet.engines.torch_engine.layer_math import activate
from stepnet.engines.torch_engine.layer_primitives import connection
from stepnet.engines.torch_engine.layer_tables import Moment, Timetable
from stepnet.engines.torch_engine.programs import Node, added
from stepnet.fields import Chain, Connectivity, Field, Layer

Controls = Mapping[str, tuple[Tensor, ...]]
"""For every parameter its control values, each of the shape at one time."""


class Stage(NamedTuple):
    """A stage time, a number or a tensor without dimensions, and all weights there."""

    t: float | Tensor
    weights: Mapping[str, Tensor]


class Form(NamedTuple):
    """What a layer does besides K."""

    weights: str | None
    bias: str | None
    clock: str | None
    is_transposed: bool
    mirror: list[int] | None
    shift: float
    activation: int


def _form(layer: Layer) -> Form:
    mirror = list(layer.connectivity.mirror) if layer.is_antisymmetric else None  # type: ignore[union-attr, arg-type]
    number = layer.activation.number
    return Form(layer.weights, layer.bias, layer.clock, layer.is_transposed, mirror, layer.shift, number)


class ChainOnTensors:
    """sign s_m(K_m ... s_1(K_1 x + b_1) ... + b_m) on `(batch, features)`; weights are given, not owned."""

    def __init__(self, chain: Chain, connections: dict[Connectivity, Callable] | None = None):
        connections = {} if connections is None else connections
        for layer in chain.layers:
            if layer.connectivity not in connections:
                connections[layer.connectivity] = connection(layer.connectivity)
        self.forms = [_form(layer) for layer in chain.layers]
        self.connections = [connections[layer.connectivity] for layer in chain.layers]
        self.sign = chain.sign

    def __call__(self, stage: Stage, x: Tensor) -> Tensor:
        v = x
        for form, K in zip(self.forms, self.connections, strict=True):
            W, b = effective(form, stage), bias_of(form, stage)
            u = K(W, b, x if form.is_transposed else v, v, form.is_transposed)
            v = activate(form.activation, added(u, v, form.shift) if form.shift else u)
        return v if self.sign == 1.0 else self.sign * v


def effective(form: Form, stage: Stage) -> Tensor | None:
    """The weights of K, or of K - K'."""
    W = None if form.weights is None else stage.weights.get(form.weights)
    if form.mirror is None or W is None:
        return W
    return W - W.mT if W.ndim == 2 else W - W[form.mirror].mT


def bias_of(form: Form, stage: Stage) -> Tensor | None:
    """b + t c."""
    b = None if form.bias is None else stage.weights[form.bias]
    if form.clock is None:
        return b
    c, t = stage.weights[form.clock], stage.t
    if b is None:
        return c * t
    return b + c * t if isinstance(t, Tensor) else added(b, c, t)


class FieldOnTensors:
    """The parts of a field, and the equation they make."""

    def __init__(self, field: Field):
        shared: dict[Connectivity, Callable] = {}
        self.kind = field.kind
        self.parts = [ChainOnTensors(part, shared) for part in field.parts]

    def equation(self) -> equations.Field:
        """Its functions take a `Stage` for the time."""
        if self.kind == "second":
            return equations.SecondOrder(self.parts[0])
        if self.kind == "partitioned":
            return equations.Partitioned(self.parts[0], self.parts[1])
        return equations.Single(self.parts[0])

    def state(self, y: Tensor) -> State:
        """y, or its halves, from `(batch, width)`."""
        return (y,) if self.kind == "first" else y.chunk(2, dim=1)


class Depths(NamedTuple):
    """What `Grid` is to functions of time: steps, and at the nodes of each a time with all weights there."""

    table: Timetable
    controls: Controls
    nodes: None = None

    @property
    def h(self) -> Sequence[float]:
        return self.table.h

    def times(self, step: int, nodes: tuple[Node, ...], like: Tensor) -> list[Stage]:
        moments = self.table.moments[step]
        return [stage_at(self.controls, moments[node]) for node in nodes]


def layered_run(module: FieldOnTensors, moves: Choreography, table: Timetable, controls: Controls) -> Fixed:
    """A run over layers; `moves` and `table` are of the same motion."""
    equation = module.equation()
    functions = equation.functions if moves.is_parted else (equation.whole,)
    return Fixed(equation, moves, functions, cast(Grid, Depths(table, controls)))


def stage_at(controls: Controls, moment: Moment) -> Stage:
    """theta(s) = sum_j B_j(s) theta_j for all weights."""
    return Stage(moment.t, {name: _combined(values, moment) for name, values in controls.items()})


def _combined(values: tuple[Tensor, ...], moment: Moment) -> Tensor:
    if len(moment.basis) == 1:
        return values[moment.first]
    (first, weight), *rest = [(values[moment.first + j], w) for j, w in enumerate(moment.basis) if w != 0.0]
    total = first * weight
    for each, weight in rest:
        total = added(total, each, weight)
    return total
