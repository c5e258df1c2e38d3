"""Layers and blocks of networks as modules: from records of `stepnet.nets` to parameters and tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from stepnet.engines.torch_engine.blocks import Course
from stepnet.engines.torch_engine.fields import joined, parted
from stepnet.engines.torch_engine.fixed import Reading, choreographed, itself, states_at
from stepnet.engines.torch_engine.gradients import exact
from stepnet.engines.torch_engine.layer_tables import moments_at, timetable
from stepnet.engines.torch_engine.layers import ChainOnTensors, FieldOnTensors, Stage, layered_run, stage_at
from stepnet.fields import Chain, Depth, Field
from stepnet.nets.design import Block, Design
from stepnet.nets.initialise import initial_weights
from stepnet.torch.kernels import Kernels
from stepnet.torch.memory import checked_memory


class LayerChain(torch.nn.Module):
    """A chain of layers with its parameters, as an opening or a read-out: `(batch, ...)` -> `(batch, features)`."""

    def __init__(self, chain: Chain, *, device=None, dtype=None):
        super().__init__()
        self.record = chain
        self.on_tensors = ChainOnTensors(chain).to(device=device, dtype=dtype or torch.get_default_dtype())
        register(self, chain.parameters, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.on_tensors(Stage(0.0, dict(self.named_parameters())), x.flatten(1))

    def __repr__(self) -> str:
        return f"LayerChain({self.record.n_in} -> {self.record.n_out})"


class LayerBlock(torch.nn.Module):
    """A field moved by a scheme over the layers of a block: `(batch, ...)` -> the same shape.

    Parameters have the field's names and begin with the controls of depth: `K` `(steps, out, in)`, `b` `(steps, out)`.

    Parameters
    ----------
    block : stepnet.nets.Block
        Field, scheme, steps, length and depth.
    memory : "auto", "all", "reversible", int or Checkpoints
        What is kept for the gradient, as in `odeint_adjoint`.
    engine : "auto", "numba" or "torch"
        The compiled layer kernels (CPU tensors of float64 or float32), or operations of tensors; by default the kernels
        where they can.
    seed, initialisation
        Of the random weights, as in `stepnet.nets.Net`.
    """

    def __init__(
        self, block: Block, *, memory="auto", engine="auto", seed=0, initialisation="glorot", device=None, dtype=None
    ):
        super().__init__()
        self.record, self.n_in, self.memory = block, block.n_in, _memory(block, memory)
        design = Design((block,))
        self.moves = choreographed(block.motion, is_parted=block.field.kind != "first")
        self.table = timetable(self.moves, block.steps, block.length, block.depth)
        self.on_tensors = FieldOnTensors(block.field).to(device=device, dtype=dtype or torch.get_default_dtype())
        self.kernels = Kernels(design, engine, self.memory)
        register(self, block.parameters, device, dtype)
        fill(self, design, initial_weights(design, initialisation, seed), "blocks.0.")

    def forward(self, y: Tensor) -> Tensor:
        return self.kernels.run(features_of(y, self.n_in), tuple(self.parameters()), self.plainly).reshape(y.shape)

    def plainly(self, y: Tensor) -> Tensor:
        """The same on `(batch, features)` by operations of tensors."""
        controls = {name: parameter.unbind() for name, parameter in self.named_parameters()}
        run = layered_run(self.on_tensors, self.moves, self.table, controls)
        state, readings = self.on_tensors.state(y), (Reading(self.record.steps, itself),)
        if self.memory == "all" or torch.compiler.is_compiling():
            (end,) = states_at(run, state, readings)
        else:
            weights = tuple(each for values in controls.values() for each in values)
            (end,) = exact(Course(run, readings, weights), self.memory, state)
        return torch.cat(end, dim=1)

    def __repr__(self) -> str:
        return f"LayerBlock({self.record!r})"


class FieldFunction(torch.nn.Module):
    """A field as a function (t, y) with parameters of its own, for steps that are chosen on the way.

    Parameters
    ----------
    field : Field
    length : float
        The time at which its depth ends.
    depth : Depth, optional
        How weights depend on time; they are the same at all times by default.
    """

    def __init__(
        self, field: Field, length=1.0, depth: Depth | None = None, *, seed=0, initialisation="glorot", device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.depth = Depth(1) if depth is None else depth
        block = Block(field, "euler" if field.kind == "first" else "verlet", self.depth.controls, length, self.depth)
        self.length, self.n_in = block.length, block.n_in
        self.on_tensors = FieldOnTensors(field).to(device=device, dtype=dtype or torch.get_default_dtype())
        register(self, block.parameters, device, dtype)
        fill(self, Design((block,)), initial_weights(Design((block,)), initialisation, seed), "blocks.0.")

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        (moment,) = moments_at(self.depth, [float(t)], self.length)
        controls = {name: parameter.unbind() for name, parameter in self.named_parameters()}
        equation, state = self.on_tensors.equation(), self.on_tensors.state(features_of(y, self.n_in))
        slope = equation.whole(stage_at(controls, moment), joined(equation, state))  # type: ignore[arg-type]
        return torch.cat(parted(equation, slope), dim=1).reshape(y.shape)


def register(module: torch.nn.Module, parameters: Mapping[str, tuple[int, ...]], device, dtype) -> None:
    """Parameters by name and shape."""
    for name, shape in parameters.items():
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)))


def pieces_of(design: Design, theta: Tensor) -> dict[str, Tensor]:
    """Views of a design's flat vector by name."""
    pieces = theta.split([torch.Size(shape).numel() for shape in design.shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(design.shapes.items(), pieces, strict=True)}


def fill(module: torch.nn.Module, design: Design, theta: np.ndarray, prefix: str = "") -> None:
    """Give parameters the numbers of a flat vector, and lay them behind each other in memory as there.

    `prefix` stands before their names in the design.
    """
    like = next(module.parameters())
    flat = torch.tensor(theta, dtype=like.dtype, device=like.device)
    for name, piece in pieces_of(design, flat).items():
        module.get_parameter(name.removeprefix(prefix)).data = piece


def features_of(y: Tensor, n: int) -> Tensor:
    """`(batch, features)` from `(batch, ...)`."""
    if not isinstance(y, Tensor) or y.ndim < 2 or y.shape[1:].numel() != n:
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"the input must be a tensor (batch, ...) with {n} numbers for a sample, found {found}")
    return y.flatten(1)


def _memory(block: Block, memory):
    memory = checked_memory(memory)
    if memory == "continuous":
        raise ValueError('`memory`="continuous" is for functions (t, y); layers have exact gradients, as by "auto"')
    if memory == "reversible" and block.motion.back is None:
        name = "no skip" if block.scheme is None else block.scheme.name
        raise ValueError(
            f"`memory`='reversible' needs steps that can be undone, such as those of 'verlet', not {name!r}"
        )
    return memory
