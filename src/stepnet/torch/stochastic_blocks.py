"""Blocks with noise: y(0) -> y(length) of dy = f dt + g dW, for layers and for any functions of (t, y)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.fields import Field
from stepnet.fields.connectivity import count
from stepnet.nets.presets import HALVED, build_diffusion
from stepnet.nets.sample_noise import SampleNoise, validate_noise
from stepnet.records import explain_passed_arguments, validate_number
from stepnet.torch.block_modules import build_block
from stepnet.torch.brownian_motion import BrownianInterval
from stepnet.torch.layer_modules import LayerBlock
from stepnet.torch.sample_paths import find_paths
from stepnet.torch.sde_arguments import count_components
from stepnet.torch.sde_functions import find_functions
from stepnet.torch.torchsde_interface import sdeint, sdeint_adjoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepnet.checkpoints.budget import Memory

    Function = Callable[[Tensor, Tensor], Tensor]


@explain_passed_arguments
def SDEBlock(
    drift: Field | Function | Any, diffusion: Any = None, scheme: Any = None, steps: int = 10, length: float = 1.0,
    **how: Any,
) -> LayerBlock | SDESolveBlock:  # fmt: skip
    """A module that maps y(0) to y(length) for dy = f(t, y) dt + g(t, y) dW, on the Brownian paths of the samples.

    The path of a sample is a function of a seed and of the sample, not of its place in the batch: `block(y,
    noise=SampleNoise(seed=1))`, with `keys` to choose the paths and `path` for several paths of each.

    Parameters
    ----------
    drift : Field of `stepnet.fields`, module or function f(t, y), or object with methods f and g
        An object with `f`, `g`, `noise_type` and `sde_type` as for `sdeint` has its own diffusion.
    diffusion : float, Diffusion, module or function g(t, y)
        For a Field a number or a record of `fields.diffusion`; for functions a function, with diagonal noise in the
        sense of Ito.
    scheme : str or scheme, optional
        For a Field the scheme of its layers, by default "euler" ("verlet" for partitioned states), each step followed
        by its noise; for functions a method of `sdeint`.
    steps : int
        Equal steps; the layers of a Field.
    length : float
        The length of the time interval.
    how
        For a Field the arguments of `LayerBlock`; otherwise `memory` of `sdeint_adjoint`.

    Returns
    -------
    LayerBlock or SDESolveBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import fields
    >>> block = snt.SDEBlock(fields.residual(fields.dense(4)), 0.2, steps=3)
    >>> block(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    >>> snt.SDEBlock(lambda t, y: -y, lambda t, y: 0.1 * y, steps=5)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    if not isinstance(drift, Field):
        return SDESolveBlock(drift, diffusion, scheme, steps, length, **how)
    field = drift if diffusion is None else drift.with_diffusion(build_diffusion(diffusion))
    if field.diffusion is None:
        raise ValueError("`diffusion` must be a number or a record of `fields.diffusion`, unless the field has one")
    default = "euler" if field.kind == "first" else HALVED.get(field.name, "verlet")
    return build_block(field, scheme or default, steps, length, **how)


class DiagonalSDE(torch.nn.Module):
    """Two functions (t, y) as an object for `sdeint`, with diagonal noise in the sense of Ito."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self, f: Function, g: Function) -> None:
        super().__init__()
        self.f, self.g = f, g


class SDESolveBlock(torch.nn.Module):
    """y(0) -> y(length) for any drift and diffusion; see `SDEBlock`.

    Parameters
    ----------
    drift, diffusion, scheme, steps, length : module or function
        As in `SDEBlock`.
    memory : str, int or Checkpoints, optional
        As in `sdeint_adjoint`.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> block = snt.SDESolveBlock(lambda t, y: -y, lambda t, y: 0.1 * y, "milstein", steps=5)
    >>> y = torch.rand(6, 2)
    >>> bool((block(y)[3:] == block(y[3:])).all())
    True
    """

    def __init__(
        self, drift: Any, diffusion: Any = None, scheme: Any = None, steps: int = 10, length: float = 1.0, *,
        memory: Memory | int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if diffusion is None and not hasattr(drift, "noise_type"):
            raise TypeError("`diffusion` must be a function g(t, y), unless `drift` has methods f and g")
        for name, value in (("drift", drift), ("diffusion", diffusion)):
            if diffusion is not None and not callable(value):
                raise TypeError(f"`{name}` must be a function of (t, y), found {type(value).__name__}")
        self.sde = drift if diffusion is None else DiagonalSDE(drift, diffusion)
        self.scheme, self.steps, self.memory = scheme, count("steps", steps), memory
        self.length = validate_number("length", length, "(0, inf)")

    def forward(self, y: Tensor, noise: SampleNoise | None = None) -> Tensor:
        """The end state (batch, n); `noise` are the Brownian paths of the samples."""
        if not isinstance(y, Tensor) or y.ndim != 2:
            raise ValueError(f"`y` must be a tensor (batch, n), found {tuple(getattr(y, 'shape', ()))}")
        paths, own = find_paths(y, validate_noise(noise))
        m = count_components(find_functions(self.sde, None), y, 0.0, None)
        how: dict[str, Any] = {"paths": paths, "cells": own.find_cells(self.steps), "entropy": own.find_seed(0)}
        bm = BrownianInterval(0.0, self.length, (len(y), m), y.dtype, y.device, **how)
        times, dt = [0.0, self.length], self.length / self.steps
        if torch.compiler.is_compiling():
            return sdeint(self.sde, y, times, bm, self.scheme, dt)[-1]
        found = sdeint_adjoint(self.sde, y, times, bm, self.scheme, dt=dt, memory=self.memory)
        return found[-1]

    def extra_repr(self) -> str:
        return f"{self.scheme or 'default'}, steps={self.steps}, length={self.length}"
