"""Nets as modules: the same designs and weights as in `stepnet.nets`, on tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepnet.nets.design import Block
from stepnet.nets.net import Net
from stepnet.torch.kernels import Kernels, vector
from stepnet.torch.layers import LayerBlock, LayerChain, features_of, fill, pieces_of


class NetModule(torch.nn.Module):
    """A net of `stepnet.nets` with its weights as parameters: `(batch, ...)` -> `(batch, outputs)`.

    The names of parameters are those of the net: opening.K, blocks.0.K, blocks.0.b, readout.W, ...

    Parameters
    ----------
    net : Net
        Design and weights, which are copied.
    memory, engine
        As in `LayerBlock`.
    device, dtype
        Of the parameters; by default the CPU and the net's own dtype.
    """

    def __init__(self, net: Net, *, memory="auto", engine="auto", device=None, dtype=None):
        super().__init__()
        if not isinstance(net, Net):
            raise TypeError(f"`net` must be a net of `stepnet.nets`, found {type(net).__name__}")
        self.design = net.design
        where = {"device": device, "dtype": dtype or getattr(torch, net.dtype.name)}
        for name, record in net.design.stages():
            stage = (
                LayerBlock(record, memory=memory, **where) if isinstance(record, Block) else LayerChain(record, **where)
            )
            family, _, number = name.partition(".")
            if not number:
                self.add_module(name, stage)
            elif hasattr(self, family):
                self.get_submodule(family).append(stage)  # type: ignore[operator]
            else:
                self.add_module(family, torch.nn.ModuleList([stage]))
        self.stages, self.names = [name for name, _ in net.design.stages()], list(net.design.shapes)
        self.n_in = net.design.n_in
        self.kernels = Kernels(net.design, engine, self.get_submodule("blocks.0").memory)
        fill(self, net.design, net.theta)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels.run(features_of(x, self.n_in), self.in_order(), self.plainly)

    def plainly(self, x: Tensor) -> Tensor:
        """The same on `(batch, features)` by operations of tensors."""
        for name in self.stages:
            stage = self.get_submodule(name)
            x = stage.plainly(x) if isinstance(stage, LayerBlock) else stage(x)
        return x

    def in_order(self) -> tuple[Tensor, ...]:
        """The parameters as they follow each other in the net's flat vector."""
        return tuple(self.get_parameter(name) for name in self.names)

    # ---- weights both ways ------------------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """All parameters as the net's flat vector, a copy."""
        return vector(self.in_order()).cpu().numpy().copy()

    @torch.no_grad()
    def put(self, theta) -> None:
        """Replace all parameters by those of a flat vector."""
        theta = np.asarray(theta)
        size = sum(parameter.numel() for parameter in self.parameters())
        if theta.shape != (size,):
            raise ValueError(f"`theta` must have the shape {(size,)}, found {theta.shape}")
        for name, piece in pieces_of(self.design, torch.tensor(theta)).items():
            self.get_parameter(name).copy_(piece)

    def net(self) -> Net:
        """A net of the same design with these weights; float32 of single and half precision, else float64."""
        theta = vector([p.double() for p in self.in_order()]).cpu().numpy()
        is_double = next(self.parameters()).dtype == torch.float64
        return Net(self.design, theta, dtype=np.float64 if is_double else np.float32)


def from_net(net: Net, **how) -> NetModule:
    """A net of `stepnet.nets` as a module; `how` holds memory, engine, device and dtype."""
    return NetModule(net, **how)
