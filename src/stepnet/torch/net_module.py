"""Nets as modules: the same designs and weights as in `stepnet.nets`, on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from stepnet.nets.design import Block
from stepnet.nets.initialisation import validate_initialisation
from stepnet.nets.layout import Layout
from stepnet.nets.net import Net
from stepnet.nets.sample_noise import SampleNoise
from stepnet.records import explain_passed_arguments
from stepnet.torch.kernels import DTYPES, Kernels, Tensors, flatten
from stepnet.torch.layer_modules import (
    Initialisation,
    LayerBlock,
    LayerChain,
    find_tensors,
    flatten_features,
    initialise,
    lay,
    require_engine,
    require_features,
    write,
)
from stepnet.torch.sample_paths import BlockPaths, find_paths, has_noise
from stepnet.validation import instance, sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch.types import Device

    from stepnet.checkpoints.budget import Memory

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NetModule(torch.nn.Module):
    """A net of `stepnet.nets` with its weights as parameters: `(batch, ...)` -> `(batch, outputs)`.

    Inputs and outputs have the layout of the net; its stages take flat tensors, or channels first.

    The names of parameters are those of the net: opening.K, blocks.0.K, blocks.0.b, readout.W, ...; they are in the
    order of its flat vector.  Stages with hooks, and modules that replace stages, are called one by one.

    Parameters
    ----------
    net : Net
        Design and weights, which are copied.
    memory, workers
        As in `LayerBlock`; by default those of the net.
    engine
        As in `LayerBlock`.
    seed, initialisation
        Seed and rule of the weights drawn by `reset_parameters`, as in `LayerBlock`.
    device, dtype
        Device and dtype of the parameters; by default the CPU and the dtype of the net.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import nets
    >>> snt.NetModule(nets.resnet(2, 3, width=4, steps=5))(torch.ones(1, 2, dtype=torch.float64)).shape
    torch.Size([1, 3])
    """

    def __init__(
        self, net: Net, *, memory: Memory | int | None = None, engine: str = "auto", workers: int | None = None,
        seed: int | None = None, initialisation: str = "glorot", device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(net, Net):
            raise TypeError(f"`net` must be a net of `stepnet.nets`, found {type(net).__name__}")
        self.design, self.layout = net.design, net.layout
        require_engine(engine, net.design.blocks)
        self.layout_in = Layout(net.design.axes_in, net.layout)
        self.layout_out = Layout(net.design.axes_out, net.layout)
        self.workers = net.workers if workers is None else workers
        if not isinstance(dtype, (torch.dtype, NoneType)):
            raise TypeError(f"`dtype` must be a torch.dtype or None, found {type(dtype).__name__}")
        where: dict[str, Any] = {"device": device, "dtype": dtype or getattr(torch, net.dtype.name)}
        how: dict[str, Any] = {
            "memory": net.memory if memory is None else memory,
            "engine": engine,
            "workers": self.workers,
        }
        for name, record in net.design.stages():
            where["theta"] = np.concatenate(
                [np.zeros(0), *(net.weights[f"{name}.{p}"].ravel() for p in record.parameters)]
            )
            stage = LayerBlock(record, **how, **where) if isinstance(record, Block) else LayerChain(record, **where)
            family, _, number = name.partition(".")
            if number and family not in self._modules:
                self.add_module(family, torch.nn.ModuleList())
            self.get_submodule(family).append(stage) if number else self.add_module(name, stage)  # type: ignore[operator]
        self.records, self.names = tuple(net.design.stages()), tuple(net.design.shapes)
        self.memory: Memory = self.get_submodule("blocks.0").memory  # type: ignore[assignment]
        self.kernels = Kernels(net.design, engine, self.memory, self.names, self.workers)
        self.initialisation = Initialisation(net.design, validate_initialisation(initialisation), seed)
        self._lay()

    def reset_parameters(self) -> None:
        """Draw new initial weights from torch's generator, or restore those of the module's `seed`."""
        initialise(self.initialisation, self.names, self.in_order())

    def forward(self, x: Tensor, noise: SampleNoise | None = None) -> Tensor:
        """Outputs of a batch; `noise` are the Brownian paths of the samples, if the net has diffusion."""
        x, stages = flatten_features(x, self.layout_in, "x"), self.stages()
        if any(isinstance(record, Block) and has_noise(record) for _, record in self.records):
            return self.layout_out.restore(self._run_with_noise(x, stages, noise))
        if self._is_whole(stages):
            return self.layout_out.restore(self.kernels.run(x, self._tensors(stages), self.run_reference))
        for stage in stages:
            x = stage(x)
        is_last_its_own = getattr(stages[-1], "record", None) is self.records[-1][1]
        return self.layout_out.restore(x) if is_last_its_own else x

    def _run_with_noise(self, x: Tensor, stages: list[torch.nn.Module], noise: SampleNoise | None) -> Tensor:
        """Stage by stage, on the paths of the inputs of the net; every stage has a separate seed."""
        paths, own = find_paths(x, noise)
        for number, stage in enumerate(stages):
            is_noisy = isinstance(stage, LayerBlock) and has_noise(stage.record)
            x = stage(x, BlockPaths(own.find_seed(number), paths, own)) if is_noisy else stage(x)
        return x

    def run_reference(self, x: Tensor, tensors: Tensors, memory: Memory) -> Tensor:
        """The same on `(batch, features)` by tensor operations, with the given parameters and memory policy."""
        x, rest = require_features(x, self.layout_in.size, "x"), iter(sequence(instance(Tensor))("tensors", tensors))
        for stage in self.stages():
            x = stage.run_reference(x, tuple(islice(rest, len(stage.names))), memory)  # type: ignore[operator, arg-type]
        return x

    def way(self, x: Tensor) -> str:
        """How this input would be run: by the "kernels", by operations on "tensors", or by its "stages" one by one."""
        stages = self.stages()
        if not self._is_whole(stages):
            return "stages"
        return (
            "kernels"
            if self.kernels.take(flatten_features(x, self.layout_in, "x"), self._tensors(stages))
            else "tensors"
        )

    # ---- stages -----------------------------------------------------------------------------------------------------

    def stages(self) -> list[torch.nn.Module]:
        """Opening layer, blocks, joins and readout, in order of execution."""
        found = []
        for name, _ in self.records:
            family, _, number = name.partition(".")
            stage = self._modules.get(family)
            stage = stage._modules.get(number) if number and stage is not None else stage
            if stage is None:
                raise ValueError(f"`{name}` was removed; assign a module, `torch.nn.Identity()` to leave it out")
            found.append(stage)
        return found

    def _is_whole(self, stages: list[torch.nn.Module]) -> bool:
        """Whether all stages are those of the design and have no hooks."""
        if _has_any_global_hook():
            return False
        for stage, (_, record) in zip(stages, self.records, strict=True):
            if type(stage) not in (LayerBlock, LayerChain) or stage.record is not record:  # type: ignore[comparison-overlap]
                return False
            if any(getattr(stage, hooks) for hooks in HOOKS):
                return False
        return True

    def _tensors(self, stages: list[torch.nn.Module]) -> tuple[Tensor, ...]:
        return tuple([each for stage in stages for each in find_tensors(stage, stage.names)])  # type: ignore[arg-type]

    def in_order(self) -> tuple[Tensor, ...]:
        """The parameters in the order of the net's flat vector."""
        stages = self.stages()
        for stage, (name, record) in zip(stages, self.records, strict=True):
            if getattr(stage, "record", None) is not record:
                raise ValueError(f"`{name}` is no longer that of the net, found {type(stage).__name__}")
        return self._tensors(stages)

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Modules in the order of execution, which determines that of parameters."""
        places = {name: place for place, (name, _) in enumerate(self.records)}
        place: Callable[[str], int] = lambda name: max([places.get(name[:i], -1) for i in (*_dots(name), len(name))])
        found = list(super().named_modules(memo, prefix, remove_duplicate))
        yield from sorted(found, key=lambda each: place(each[0].removeprefix(prefix).removeprefix(".")))

    # ---- weights from and to nets -----------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """A copy of all parameters as the net's flat vector; float32 for half precision."""
        theta = flatten(self.in_order()).cpu()
        return (theta if theta.dtype in DTYPES else theta.float()).numpy().copy()

    def put(self, theta: ArrayLike) -> None:
        """Replace all parameters by those of a flat vector."""
        write(self.names, self.in_order(), theta)

    def net(self) -> Net:
        """A net of the same design with these weights; float32 for single and half precision, otherwise float64."""
        tensors = self.in_order()
        theta = flatten([p.double() for p in tensors]).cpu().numpy()
        dtype = np.float64 if tensors[0].dtype == torch.float64 else np.float32
        how: dict[str, Any] = {"workers": self.workers, "memory": self.memory, "layout": self.layout}
        return Net(self.design, theta, dtype=dtype, **how)

    def _lie_at(self, flat: np.ndarray | None) -> None:
        """Assign to each stage its part of the vector."""
        self.kernels.lie_at(flat)
        sizes = np.cumsum([0, *(sum(p.numel() for p in stage.parameters()) for stage in self.stages())])
        for stage, first, last in zip(self.stages(), sizes[:-1], sizes[1:], strict=True):
            if isinstance(stage, LayerBlock):
                stage.kernels.lie_at(None if flat is None else flat[first:last])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lay()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._lay()
        return self

    def _lay(self) -> None:
        before = self.kernels.flat
        lay(self, self.names, self.kernels)
        if self.kernels.flat is not None and self.kernels.flat is not before:
            self._lie_at(self.kernels.flat)

    def extra_repr(self) -> str:
        return f"engine={self.kernels.engine!r}, memory={self.memory!r}"


def _dots(name: str) -> list[int]:
    return [i for i, letter in enumerate(name) if letter == "."]


@explain_passed_arguments
def from_net(net: Net, **how: Any) -> NetModule:
    """A net of `stepnet.nets` as a module; `how` holds the other arguments of `NetModule`.

    Parameters
    ----------
    net : Net
        Design and weights, which are copied.
    **how
        Further arguments of `NetModule`.

    Returns
    -------
    NetModule

    Examples
    --------
    >>> import stepnet.torch as snt
    >>> from stepnet import nets
    >>> [name for name, _ in snt.from_net(nets.resnet(2, 3, width=4, steps=5)).named_parameters()][0]
    'opening.K'
    """
    return NetModule(net, **how)
