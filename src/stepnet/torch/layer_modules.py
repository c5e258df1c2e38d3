"""Layers and blocks of `stepnet.nets` as modules with parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stepnet.checkpoints.budget import LAYER_MEMORIES, Memory, require_undoable, validate_memory
from stepnet.engines.torch_engine import (
    StageInput,
    TensorChain,
    TensorField,
    build_stage,
    evaluate_basis,
)
from stepnet.fields import Chain, Depth, Field, HeldWeights
from stepnet.nets.design import Block, Design
from stepnet.nets.initialisation import draw_initial_weights, validate_initialisation
from stepnet.nets.layout import Layout, validate_layout
from stepnet.nets.sample_noise import SampleNoise
from stepnet.torch.kernels import DTYPES, Kernels, Tensors
from stepnet.torch.sample_paths import BlockPaths, draw_paths, has_noise
from stepnet.validation import array, instance, sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch.types import Device


class LayerChain(torch.nn.Module):
    """A chain of layers with parameters, such as an opening layer or readout: `(batch, ...)` -> `(batch, features)`.

    Parameters
    ----------
    chain : stepnet.fields.Chain
    layout
        As in `LayerBlock`; outputs of several axes are flattened in that order.
    seed, initialisation, theta
        Seed, rule and values of the initial weights, as in `LayerBlock`.
    device, dtype : Device, optional
        Device and dtype of the parameters.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import fields
    >>> snt.LayerChain(fields.mlp([2, 16, 3]))(torch.ones(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, chain: Chain, *, layout: str = "channels_first", seed: int | None = None, initialisation: str = "glorot",
        theta: ArrayLike | None = None, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.record, self.names = instance(Chain)("chain", chain), tuple(chain.parameters)
        self.layout_in = Layout(chain.axes_in, validate_layout(layout))
        self.layout_out = Layout(chain.axes_out, layout)
        self.on_tensors = TensorChain(chain)
        self.initialisation = Initialisation(
            cast(Design, _SingleChain(chain)), validate_initialisation(initialisation), seed
        )
        register(self, chain.parameters, device, dtype)
        self.reset_parameters() if theta is None else write(self.names, find_tensors(self, self.names), theta)

    def reset_parameters(self) -> None:
        """Draw new initial weights from torch's generator, or restore those of the module's `seed`."""
        initialise(self.initialisation, self.names, find_tensors(self, self.names))

    def forward(self, x: Tensor) -> Tensor:
        return self.layout_out.restore(
            self.run_reference(flatten_features(x, self.layout_in, "x"), find_tensors(self, self.names))
        )

    def run_reference(self, x: Tensor, tensors: Tensors, memory: Memory = "all") -> Tensor:
        """The same on `(batch, features)` with the given parameters; `memory` is not used."""
        tensors = validate_tensors(self.names, tensors)
        return self.on_tensors(
            StageInput(0.0, dict(zip(self.names, tensors, strict=True))), require_features(x, self.record.n_in, "x")
        )

    def __repr__(self) -> str:
        return f"LayerChain({self.record.n_in} -> {self.record.n_out})"


class _SingleChain:
    """A design of a single chain, for drawing its weights."""

    def __init__(self, chain: Chain):
        self.chain = chain

    def stages(self) -> list[tuple[str, Chain]]:
        return [("", self.chain)]


class LayerBlock(torch.nn.Module):
    """A field integrated by a scheme over the layers of a block: `(batch, ...)` -> the same shape.

    States of several axes must have the shape of the layout, or be that array flattened: images (batch, channels,
    height, width), nodes and tokens (batch, channels, nodes); a partitioned state has twice the channels.  A single
    channel may be omitted.

    A field with diffusion has noise after each step, on the Brownian paths of the samples: `block(y, noise=SampleNoise(
    seed=1))`.  Such layers are run by tensor operations.

    Parameters have the field's names; their first axis is that of the control values: `K` `(steps, out, in)`, `b`
    `(steps, out)`.

    Parameters
    ----------
    block : stepnet.nets.Block
        Field, scheme, steps, length and depth.
    memory : "auto", "all", "segments", "reversible", int or Checkpoints
        What is stored for the gradient, as in `odeint_adjoint`; "segments" stores a state every few steps.
    engine : "auto", "numba" or "torch"
        The compiled layer kernels (CPU tensors of float64 or float32), or tensor operations; by default the kernels
        where possible.
    workers : int, optional
        Threads of the kernels, by default one per core.
    layout : "channels_first" or "channels_last"
        The channel axis of states with several axes.
    seed : int, optional
        Seed of the initial weights.  By default it is drawn from torch's generator, so that `torch.manual_seed` makes
        weights reproducible and modules differ.  With an int, a module has the weights of the `stepnet.nets.Net` of the
        same design and seed, and torch's generator is not used.
    initialisation : str
        "glorot", "lecun", "he", "orthogonal" or "stable".
    theta : array, optional
        Initial parameters in one flat vector, instead of random ones.
    device, dtype : Device, optional
        Device and dtype of the parameters.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import fields, nets
    >>> block = snt.LayerBlock(nets.Block(fields.residual(fields.dense(4)), "rk4", steps=3))
    >>> block(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, block: Block, *, memory: Memory | int = "auto", engine: str = "auto", workers: int | None = None,
        layout: str = "channels_first", seed: int | None = None, initialisation: str = "glorot",
        theta: ArrayLike | None = None, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.record, self.names = instance(Block)("block", block), tuple(block.parameters)
        self.layout_in = Layout(block.axes_in, validate_layout(layout))
        self.memory = _validate_memory(block, memory)
        require_engine(engine, (block,))
        design = Design((block,))
        self.stage = build_stage(block.field, block.scheme_program, block.steps, block.length, block.depth)
        self.kernels = Kernels(design, engine, self.memory, self.names, workers)
        self.initialisation = Initialisation(design, validate_initialisation(initialisation), seed)
        register(self, block.parameters, device, dtype)
        lay(self, self.names, self.kernels)
        self.reset_parameters() if theta is None else write(self.names, find_tensors(self, self.names), theta)

    def reset_parameters(self) -> None:
        """Draw new initial weights from torch's generator, or restore those of the module's `seed`."""
        initialise(self.initialisation, self.names, find_tensors(self, self.names))

    def forward(self, y: Tensor, noise: SampleNoise | BlockPaths | None = None) -> Tensor:
        """The state after all layers; `noise` are the Brownian paths of the samples, as for a `stepnet.nets.Net`."""
        tensors, flat = find_tensors(self, self.names), flatten_features(y, self.layout_in)
        if has_noise(self.record):
            return self.layout_in.restore(self.run_reference(flat, tensors, self.memory, noise), y.shape)
        return self.layout_in.restore(self.kernels.run(flat, tensors, self.run_reference), y.shape)

    def run_reference(
        self, y: Tensor, tensors: Tensors, memory: Memory, noise: SampleNoise | BlockPaths | None = None
    ) -> Tensor:
        """The same on `(batch, features)` by tensor operations, with the given parameters and memory policy."""
        tensors, y = validate_tensors(self.names, tensors), require_features(y, self.layout_in.size, "y")
        weights = tuple([control for each in tensors for control in each.unbind()])
        draws = draw_paths(self.record, y, noise) if has_noise(self.record) else None
        return self.stage.forward(weights, y, _validate_memory(self.record, memory), draws)

    def way(self, y: Tensor) -> str:
        """How this input would be run: by the "kernels", or by operations on "tensors"."""
        return (
            "kernels"
            if not has_noise(self.record)
            and self.kernels.take(flatten_features(y, self.layout_in), find_tensors(self, self.names))
            else "tensors"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        lay(self, self.names, self.kernels)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        lay(self, self.names, self.kernels)
        return self

    def __repr__(self) -> str:
        return f"LayerBlock({self.record!r}, engine={self.kernels.engine!r}, memory={self.memory!r})"


class FieldFunction(torch.nn.Module):
    """A field as a function (t, y) with its own parameters, for adaptive steps.

    The time is a zero-dimensional tensor, or `(batch, 1)` with one per sample; it is differentiable.

    Parameters
    ----------
    field : Field
    length : float
        The final time of its depth.
    depth : Depth or HeldWeights, optional
        How weights depend on time; by default they are constant.  Held weights jump at equal intervals and are
        continuous from the right.
    layout
        As in `LayerBlock`.
    seed, initialisation, theta
        Seed, rule and values of the initial weights, as in `LayerBlock`.
    device, dtype : Device, optional
        Device and dtype of the parameters.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import fields
    >>> func = snt.FieldFunction(fields.residual(fields.dense(2)))
    >>> snt.odeint(func, torch.ones(5, 2), torch.tensor([0.0, 1.0])).shape
    torch.Size([2, 5, 2])
    """

    def __init__(
        self, field: Field, length: float = 1.0, depth: Depth | HeldWeights | None = None, *,
        layout: str = "channels_first", seed: int | None = None, initialisation: str = "glorot",
        theta: ArrayLike | None = None, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        field = instance(Field)("field", field)
        self.depth = Depth(1) if depth is None else instance(Depth, HeldWeights)("depth", depth)
        block = Block(field, "euler" if field.kind == "first" else "verlet", self.depth.controls, length, self.depth)
        self.length, self.names = block.length, tuple(block.parameters)
        self.layout_in = Layout(block.axes_in, validate_layout(layout))
        self.on_tensors = TensorField(field)
        has_clock = any(layer.clock is not None for part in field.parts for layer in part.layers)
        self.is_timeless = self.depth.controls == 1 and not has_clock
        self.initialisation = Initialisation(Design((block,)), validate_initialisation(initialisation), seed)
        register(self, block.parameters, device, dtype)
        self.reset_parameters() if theta is None else write(self.names, find_tensors(self, self.names), theta)

    def reset_parameters(self) -> None:
        """Draw new initial weights from torch's generator, or restore those of the module's `seed`."""
        initialise(self.initialisation, self.names, find_tensors(self, self.names))

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        flat = flatten_features(y, self.layout_in)
        t = convert_time(t, y)
        if self.is_timeless or t.numel() <= 1:
            slopes = self._slope(t.sum(), flat)  # one time, none for no samples, or an unused one
            return self.layout_in.restore(slopes, y.shape)
        if t.numel() != len(y):
            raise ValueError(f"`t` must be one time, or one for each of {len(y)} samples, found {tuple(t.shape)}")
        slopes = torch.func.vmap(lambda time, sample: self._slope(time, sample[None])[0])(t.reshape(-1), flat)
        return self.layout_in.restore(slopes, y.shape)

    def _slope(self, t: Tensor, y: Tensor) -> Tensor:
        """The slope of `(batch, features)` at one time."""
        tensors = dict(zip(self.names, find_tensors(self, self.names), strict=True))
        if self.depth.controls == 1:
            weights = {name: each[0] for name, each in tensors.items()}
        else:
            places, shares = evaluate_basis(self.depth, t / self.length)
            weights = {name: torch.tensordot(shares.to(each.dtype), each[places], 1) for name, each in tensors.items()}
        return self.on_tensors.slope(StageInput(t, weights), y)


# ---- initial weights ------------------------------------------------------------------------------------------------


class Initialisation(NamedTuple):
    """How initial weights are drawn: the design, the rule and the seed (None: from torch's generator)."""

    design: Design
    rule: str
    seed: int | None

    def draw(self) -> np.ndarray:
        """All parameters in one vector."""
        return draw_initial_weights(self.design, self.rule, draw_seed() if self.seed is None else self.seed)


def draw_seed() -> int:
    """A seed for NumPy's generator, drawn from torch's."""
    return int(torch.randint(2**63 - 1, (), device="cpu"))


def initialise(how: Initialisation, names: Sequence[str], tensors: Tensors) -> None:
    """Draw initial weights into parameters in place; nothing is drawn for tensors without data."""
    if tensors and not any(is_abstract(each) for each in tensors):
        write(names, tensors, how.draw())


def is_abstract(tensor: Tensor) -> bool:
    """Whether a tensor has a shape but no data: on the meta device, or of a `FakeTensorMode`."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


@torch.no_grad()
def write(names: Sequence[str], tensors: Tensors, theta: ArrayLike) -> None:
    """Copy a flat vector into parameters, in the order of their names."""
    theta, size = cast(np.ndarray, array()("theta", theta)), sum(each.numel() for each in tensors)
    if theta.shape != (size,):
        raise ValueError(f"`theta` must have the shape {(size,)}, found {theta.shape}")
    pieces = split_vector({name: tuple(each.shape) for name, each in zip(names, tensors, strict=True)}, theta)
    for (name, piece), tensor in zip(pieces.items(), tensors, strict=True):
        if not isinstance(tensor, torch.nn.Parameter):
            raise TypeError(f"`{name}` is made from other parameters (pruned, parametrised); set those instead")
        tensor.copy_(torch.tensor(piece))


# ---- parameters -----------------------------------------------------------------------------------------------------


def register(
    module: torch.nn.Module, parameters: Mapping[str, tuple[int, ...]], device: Device, dtype: torch.dtype | None
) -> None:
    """Register parameters by name and shape."""
    for name, shape in parameters.items():
        module.register_parameter(name, torch.nn.Parameter(make_zeros(shape, device, dtype)))


def make_zeros(shape: tuple[int, ...], device: Device, dtype: torch.dtype | None) -> Tensor:
    """Zeros on a device and in a dtype, both validated."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"`dtype` must be a floating-point torch.dtype, found {dtype!r:.60}")
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device, type(None))):
        raise TypeError(f"`device` must be a torch.device or its name, found {device!r:.60}")
    try:
        return torch.zeros(shape, device=device, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"`device` must be an available device with enough memory for {shape}, found {device!r:.60}"
        ) from error


def validate_tensors(names: Sequence[str], tensors: Any) -> Tensors:
    """Return one tensor per parameter."""
    found = sequence(instance(Tensor))("tensors", tensors)
    if len(found) != len(names):
        raise ValueError(f"`tensors` must be {len(names)}, one for every parameter, found {len(found)}")
    return found


def find_tensors(module: torch.nn.Module, names: Sequence[str]) -> tuple[Tensor, ...]:
    """The tensors of these names: parameters, or their replacements by pruning, parametrisations and `torch.func`."""
    return tuple([getattr(module, name) for name in names])


def split_vector(shapes: Mapping[str, tuple[int, ...]], theta: np.ndarray) -> dict[str, np.ndarray]:
    """Views of a flat vector by name."""
    pieces = np.split(theta, np.cumsum([prod(shape) for shape in shapes.values()])[:-1]) if shapes else []
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def pack(parameters: Sequence[torch.nn.Parameter]) -> np.ndarray:
    """Move CPU parameters into one vector, each with its own storage that shares its memory."""
    flat = torch.cat([p.detach().reshape(-1) for p in parameters]).numpy()
    pieces = np.split(flat, np.cumsum([p.numel() for p in parameters])[:-1])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.data = torch.from_numpy(piece.reshape(parameter.shape))
    return flat


def lay(module: torch.nn.Module, names: Sequence[str], kernels: Kernels) -> None:
    """Make parameters that were copied or moved contiguous in memory, so that kernels use them without a copy."""
    try:
        parameters = [module.get_parameter(name) for name in names]
    except AttributeError:  # pruned, parametrised or replaced: collected at each call
        return
    is_plain = all(type(p) is torch.nn.Parameter and p.device.type == "cpu" and not p.is_shared() for p in parameters)
    is_of_one_kind = len({p.dtype for p in parameters}) == 1 and parameters[0].dtype in DTYPES
    is_tied = len({id(p) for p in parameters}) < len(parameters)
    if kernels.are_in_place(parameters):
        return
    if is_plain and is_of_one_kind and not is_tied:
        kernels.lie_at(pack(parameters))
    else:
        kernels.lie_at(None)


def convert_time(t: Tensor | float | np.ndarray | np.generic, y: Tensor) -> Tensor:
    """Times as a tensor on the device of the state."""
    if not isinstance(t, (Tensor, float, int, np.ndarray, np.generic)):
        raise TypeError(f"`t` must be a number or a tensor, found {type(t).__name__}")
    try:
        return torch.as_tensor(t, dtype=y.dtype, device=y.device)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"`t` must be a number or a tensor, found {type(t).__name__}") from None


def require_features(x: Tensor, count: int, name: str) -> Tensor:
    """Return a tensor `(batch, features)` with `count` features."""
    is_known = not torch.jit.is_tracing()  # shapes are integers
    if not isinstance(x, Tensor) or (is_known and (x.ndim != 2 or x.shape[1] != count)):
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"`{name}` must be a tensor (batch, {count}), found {found}")
    return x


def flatten_features(y: Tensor, layout: Layout, name: str = "y") -> Tensor:
    """`(batch, features)`, channel by channel, from `(batch, ...)`."""
    if torch.jit.is_tracing():  # where shapes are not numbers
        return layout.flatten(y) if layout.is_moved else y.flatten(1)
    if not isinstance(y, Tensor) or y.ndim < 2 or not layout.admits(tuple(y.shape[1:])):
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        if isinstance(y, Tensor) and len(layout.axes) > 1:
            raise ValueError(f"`{name}` {layout.explain(found)}")
        raise ValueError(
            f"`{name}` must be a tensor (batch, ...) with {layout.size} numbers for a sample, found {found}"
        )
    return layout.flatten(y) if layout.is_moved else y.flatten(1)


def require_engine(engine: str, records: Sequence[Any]) -> None:
    """Refuse the kernels for layers with noise, which are run by tensor operations."""
    if (
        isinstance(engine, str)
        and engine == "numba"
        and any(isinstance(each, Block) and has_noise(each) for each in records)
    ):
        raise ValueError("`engine` = 'numba' has no noise on tensors, use 'auto' or 'torch'")


def _validate_memory(block: Block, memory: Memory | int) -> Memory:
    memory = validate_memory(memory, LAYER_MEMORIES)
    if memory == "reversible":
        require_undoable(block.scheme_program.back is not None, block.scheme_name)
    return memory
