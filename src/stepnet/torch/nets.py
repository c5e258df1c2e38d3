"""The presets of `stepnet.nets` as modules under the same names: `snt.nets.hamiltonian(2, 3, width=8, steps=10)`.

They take the arguments of the presets and, by keyword, engine, device and dtype of the module.  As with other modules,
the default dtype is torch's, and the initial weights are drawn from torch's generator; with `seed`, an int, they are
those of the preset with that seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from stepnet.nets import presets
from stepnet.nets.net import Net
from stepnet.torch.net_module import NetModule

if TYPE_CHECKING:
    from torch.types import Device

__all__ = [
    "antisymmetric",
    "attention_net",
    "graph_ode",
    "hamiltonian",
    "hyperbolic",
    "leapfrog_net",
    "midpoint_net",
    "mlp",
    "neural_ode",
    "node_net",
    "parabolic",
    "parabolic_cnn",
    "resnet",
]


def __dir__() -> list[str]:
    return __all__


def as_module(preset: Callable[..., Net]) -> Callable[..., NetModule]:
    """Wrap a preset to return a module."""

    @wraps(preset)
    def build(
        *arguments: Any, engine: str = "auto", device: Device = None, dtype: torch.dtype | None = None,
        seed: int | None = None, initialisation: str = "glorot", **options: Any,
    ) -> NetModule:  # fmt: skip
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"`dtype` must be one of torch, such as torch.float64, found {dtype!r:.60}")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        net = preset(*arguments, seed=0 if seed is None else seed, initialisation=initialisation, **options)
        how: dict[str, Any] = {
            "engine": engine,
            "seed": seed,
            "initialisation": initialisation,
            "device": device,
            "dtype": dtype,
        }
        module = NetModule(net, **how)
        if seed is None:
            module.reset_parameters()
        return module

    build.__annotations__ = {"return": NetModule}
    return build


resnet = as_module(presets.resnet)
antisymmetric = as_module(presets.antisymmetric)
parabolic = as_module(presets.parabolic)
hamiltonian = as_module(presets.hamiltonian)
hyperbolic = as_module(presets.hyperbolic)
midpoint_net = as_module(presets.midpoint_net)
leapfrog_net = as_module(presets.leapfrog_net)
mlp = as_module(presets.mlp)
neural_ode = as_module(presets.neural_ode)
graph_ode = as_module(presets.graph_ode)
node_net = as_module(presets.node_net)
attention_net = as_module(presets.attention_net)
parabolic_cnn = as_module(presets.parabolic_cnn)
