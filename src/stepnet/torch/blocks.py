"""Blocks of networks as modules: a field, a scheme and a depth, from the state at the beginning to that at the end."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from stepnet.engines.torch_engine import fields as equations
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import choreography, states_at
from stepnet.engines.torch_engine.layer_tables import moments_at, timetable
from stepnet.engines.torch_engine.layers import Controls, FieldOnTensors, Layered, layered, stage_at
from stepnet.fields import Depth, Field
from stepnet.fields.connectivity import count
from stepnet.schemes import catalogue
from stepnet.schemes.conditions import is_pair
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.torch.ways_in import odeint_adjoint


@dataclass(frozen=True)
class Tolerances:
    """Of steps that a pair chooses."""

    rtol: float = 1e-6
    atol: float = 1e-9


class LayerBlock(torch.nn.Module):
    """y(0) -> y(length) of a field of `stepnet.fields`, its weights being parameters: `K` `(controls, ...)`, `b`, ...

    Called with `(batch, ...)`, as many numbers for a sample as the field has features; gives the same shape.

    Parameters
    ----------
    field : Field
    scheme : str or scheme
        A name of `stepnet.schemes`.
    steps : int, optional
        Layers; without them a pair chooses its steps by `tolerances`.
    length : float
        The time that the steps take together.
    depth : Depth, optional
        How weights depend on depth: step by step by default.
    memory : str, int or Checkpoints
        What is kept for the gradient, as in `odeint_adjoint`.
    """

    def __init__(
        self, field: Field, scheme="rk4", *, steps: int | None = None, length: float = 1.0, depth: Depth | None = None,
        memory="all", tolerances: Tolerances | None = None, generator=None, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.scheme = _matched(field, catalogue.get(scheme))
        self.field, self.length, self.memory, self.tolerances = field, _positive(length), memory, tolerances
        self.steps = _steps(self.scheme, steps, tolerances)
        self.depth = Depth(self.steps or 1) if depth is None else depth
        self.on_tensors = FieldOnTensors(field)
        for name, shape in field.parameters.items():
            values = torch.empty(self.depth.controls, *shape, device=device, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(values))
        self.on_tensors.to(device=device, dtype=dtype or torch.get_default_dtype())
        self.moves = choreography(self.scheme, self.on_tensors.equation())
        self.times = timetable(self.moves.motion, self.steps, self.length, self.depth) if self.steps else None
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Weights with the variance 1 / fan-in of LeCun et al. (1998), biases zero."""
        for name, parameter in self.named_parameters():
            parameter.zero_()
            fan = _fan_in(self.field, name)
            if fan is not None:
                parameter.normal_(std=fan**-0.5, generator=generator)

    def controls(self) -> Controls:
        """Every weight at every control of its depth."""
        return {name: parameter.unbind() for name, parameter in self.named_parameters()}

    def forward(self, y: Tensor) -> Tensor:
        flat = y.flatten(1)
        if flat.shape[1] != self.field.width:
            raise ValueError(
                f"`y` must be (batch, ...) with {self.field.width} numbers for a sample, found {tuple(y.shape)}"
            )
        state = self.on_tensors.state(flat)
        end = self._adaptive(state) if self.times is None else states_at(self._run(), state, [self.steps])[0]
        return torch.cat(end, dim=1).reshape(y.shape)

    def features(self, y: Tensor) -> Tensor:
        """The states after every step, `(steps + 1, batch, ...)`."""
        if self.times is None:
            raise ValueError("`features` are those of given steps; build the block with `steps`")
        n = self.moves.motion.opening.steps
        found = states_at(self._run(), self.on_tensors.state(y.flatten(1)), range(max(1, n), self.steps + 1))
        return torch.stack([y, *(torch.cat(state, dim=1).reshape(y.shape) for state in found)])

    def _run(self) -> Layered:
        return layered(self.on_tensors, self.moves, self.times, self.controls())

    def _adaptive(self, state: State) -> State:
        equation = _at_any_time(self.on_tensors.equation(), self.controls(), self.depth, self.length)
        end = _end(equation, state if len(state) > 1 else state[0], self, tuple(self.parameters()))
        return end if len(state) > 1 else (end,)

    def __repr__(self) -> str:
        return f"LayerBlock({self.field.name}, {self.scheme.name}, steps={self.steps}, length={self.length}, width={self.field.width})"


class SolveBlock(torch.nn.Module):
    """y(0) -> y(length) of any module or function `func(t, y)`, or of `Partitioned`, `SecondOrder`, `Split`.

    Parameters are those of `LayerBlock`, but that the weights are those of the modules.
    """

    def __init__(
        self, func, scheme="rk4", *, steps: int | None = None, length: float = 1.0, memory="all",
        tolerances: Tolerances | None = None,
    ):  # fmt: skip
        super().__init__()
        self.func, self.length, self.memory = func, _positive(length), memory
        self.scheme, self.tolerances = catalogue.get(scheme), tolerances
        self.steps = _steps(self.scheme, steps, tolerances)
        functions = func.functions if isinstance(func, EQUATIONS) else (func,)
        self.functions = torch.nn.ModuleList(f for f in functions if isinstance(f, torch.nn.Module))

    def forward(self, y):
        return _end(self.func, y, self, tuple(self.functions.parameters()))

    def extra_repr(self) -> str:
        return f"{self.scheme.name}, steps={self.steps}, length={self.length}"


EQUATIONS = (equations.Partitioned, equations.SecondOrder, equations.Split)


def ODEBlock(field, scheme="rk4", **how) -> LayerBlock | SolveBlock:
    """A block of a field of `stepnet.fields`, or of any function or module (t, y); see `LayerBlock` and `SolveBlock`."""
    return (LayerBlock if isinstance(field, Field) else SolveBlock)(field, scheme, **how)


def _end(func, y0, block, parameters: tuple[Tensor, ...]):
    """The state at the end of a block, by given or by adaptive steps."""
    first = y0[0] if isinstance(y0, tuple) else y0
    t = torch.linspace(0.0, block.length, (block.steps or 1) + 1, dtype=first.real.dtype, device=first.device)
    options = {} if block.steps is None else {"grid_constructor": lambda f, y, t: t}
    told = block.tolerances or Tolerances()
    found = odeint_adjoint(
        func, y0, t, rtol=told.rtol, atol=told.atol, method=block.scheme, options=options, adjoint_params=parameters,
        memory=block.memory,
    )  # fmt: skip
    return tuple(part[-1] for part in found) if isinstance(found, tuple) else found[-1]


def _at_any_time(equation, controls: Controls, depth: Depth, length: float):
    """The same equation for times that are tensors with values: adaptive steps choose them by reading."""

    def timed(function):
        def slope(t: Tensor, y: Tensor) -> Tensor:
            (moment,) = moments_at(depth, [float(t)], length)
            return function(stage_at(controls, moment), y)

        return slope

    if isinstance(equation, equations.SecondOrder):
        return equations.SecondOrder(timed(equation.acceleration))
    if isinstance(equation, equations.Partitioned):
        return equations.Partitioned(timed(equation.dq), timed(equation.dp))
    return timed(equation.fun)


# ---- arguments ------------------------------------------------------------------------------------------------------


def _matched(field: Field, scheme):
    """The scheme, if it can run the field."""
    if isinstance(scheme, Splitting):
        if field.kind == "first":
            raise TypeError(
                f"`scheme` {scheme.name} moves two halves in turn, and a {field.name} field has none; take an explicit "
                "scheme such as 'euler' or 'rk4', or a hamiltonian or hyperbolic field"
            )
        if scheme.nystrom and field.kind != "second":
            raise TypeError(f"`scheme` {scheme.name} keeps its order only for q'' = a(t, q); take a hyperbolic field")
    if isinstance(scheme, Multistep) and scheme.derivative == 2 and field.kind != "second":
        raise TypeError(f"`scheme` {scheme.name} integrates q'' = a(t, q); take a hyperbolic field")
    return scheme


def _steps(scheme, steps, tolerances: Tolerances | None) -> int | None:
    if steps is not None and tolerances is not None:
        raise ValueError("`steps` are given or chosen by `tolerances`; leave out one of them")
    if steps is None and not is_pair(scheme):
        raise ValueError(f"`steps` must be given for {scheme.name}, which has no error estimate")
    least = scheme.n_steps if isinstance(scheme, Multistep) else 1
    if steps is not None and count("steps", steps) < least:
        raise ValueError(f"`steps` must be at least {least} for {scheme.name}, found {steps}")
    return steps


def _positive(length) -> float:
    if not (isfinite(length) and length > 0):
        raise ValueError(f"`length` must be positive and finite, found {length!r}")
    return float(length)


def _fan_in(field: Field, name: str) -> float | None:
    """How many features reach one by the weights of this name, None for biases."""
    layers = (layer for part in field.parts for layer in part.layers)
    return next((layer.connectivity.fan[0] for layer in layers if layer.weights == name), None)
