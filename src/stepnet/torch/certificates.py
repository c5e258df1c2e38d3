"""Certificates of modules: bounds of the amplification of nets, blocks and perceptrons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepnet.fields import Chain, activation, dense
from stepnet.fields.formula import Layer
from stepnet.nets.design import Design
from stepnet.nets.net import Net
from stepnet.stability import Certificate
from stepnet.stability import certificate as certify_net
from stepnet.stability.certificates import judge
from stepnet.stability.jacobian_bounds import Ball, build_linear_parts, push_through_chain
from stepnet.torch.layer_modules import LayerBlock, find_tensors
from stepnet.torch.net_module import NetModule
from stepnet.validation import check, instance, optional, real, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

ACTIVATIONS = {
    torch.nn.Tanh: "tanh", torch.nn.ReLU: "relu", torch.nn.Sigmoid: "sigmoid", torch.nn.GELU: "gelu",
    torch.nn.SiLU: "silu", torch.nn.Softplus: "softplus", torch.nn.ELU: "elu", torch.nn.SELU: "selu",
    torch.nn.LeakyReLU: "leaky_relu", torch.nn.Identity: "identity",
}  # fmt: skip
NUMBERS = {torch.nn.ELU: ("alpha", 1.0), torch.nn.LeakyReLU: ("negative_slope", 0.01)}
"""Numbers of activations that the slopes depend on."""


@check(module=instance(torch.nn.Module, what="a torch.nn.Module"), x=optional(instance(np.ndarray, Tensor)),
       limit=real("(1, inf)"), iterations=whole(1, 10_000))  # fmt: skip
def certificate(
    module: torch.nn.Module, x: ArrayLike | Tensor | None = None, *, box: tuple[ArrayLike, ArrayLike] | None = None,
    limit: float = 10.0, iterations: int = 30,
) -> Certificate:  # fmt: skip
    """Bound how much the blocks of a module amplify perturbations, and a Lipschitz constant of the whole map.

    Parameters
    ----------
    module : torch.nn.Module
        A `NetModule`, a block such as `LayerBlock`, or a `torch.nn.Sequential` of these, of linear layers, activations,
        Dropout and Flatten.
    x : Tensor or array, optional
        Inputs at which the amplification of a `NetModule` or a block is measured too.
    box : pair of array_like, optional
        The lowest and the highest inputs of a `NetModule` or a block: bounds hold for inputs between them.
    limit : float, optional
        The amplification of a block up to which it counts as stable.
    iterations : int, optional
        Number of power iterations.

    Returns
    -------
    Certificate

    Raises
    ------
    ValueError
        If a layer has no known bound, or a sequence of modules has a `box`.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> from stepnet import nets
    >>> net = snt.from_net(nets.parabolic(2, 2, 4, 5, initialisation="stable"))
    >>> snt.certificate(net).is_stable
    True
    >>> round(snt.certificate(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())).lipschitz, 1) > 0
    True
    """
    how: dict[str, Any] = {"limit": limit, "iterations": iterations}
    array = x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x
    if isinstance(module, (NetModule, LayerBlock)):
        return certify_net(_as_net(module), array, box=box, **how)
    if box is not None:
        raise ValueError(f"`box` is for a NetModule or a block, found {type(module).__name__}")
    blocks, lipschitz = [], 1.0
    chain: list[tuple[str, torch.nn.Module]] = []
    for name, each in _list_layers(module):
        if isinstance(each, (NetModule, LayerBlock)):
            found = certify_net(_as_net(each), **how)
            blocks += [replace(block, name=f"{name}.{block.name}") for block in found.blocks]
            lipschitz *= _bound_layers(chain) * found.lipschitz
            chain = []
        else:
            chain.append((name, each))
    lipschitz *= _bound_layers(chain)
    is_stable = all(block.upper <= limit for block in blocks) and (bool(blocks) or lipschitz <= limit)
    if blocks:
        verdict = judge(blocks, limit)
    else:
        verdict = f"{'stable' if is_stable else 'not certified'}: perturbations grow by {lipschitz:.4g} at most"
    return Certificate(tuple(blocks), lipschitz, float("nan"), is_stable, verdict)


def _as_net(module: Any) -> Net:
    """The net of a module, or one of a single block."""
    if isinstance(module, NetModule):
        return module.net()
    tensors = find_tensors(module, module.names)
    theta = np.concatenate([each.detach().cpu().double().numpy().ravel() for each in tensors])
    return Net(Design((module.record,)), theta, workers=1)


def _list_layers(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers of a sequence, one after the other."""
    if type(module) is torch.nn.Sequential:
        for inner, each in module.named_children():
            yield from _list_layers(each, f"{name}.{inner}" if name else inner)
    elif not isinstance(module, (torch.nn.Dropout, torch.nn.Flatten)):  # the identity, in evaluation
        yield name or type(module).__name__, module


def _bound_layers(layers: list[tuple[str, torch.nn.Module]]) -> float:
    """A Lipschitz constant of linear layers and activations; matrices without an activation between are multiplied."""
    parts: list[Layer] = []
    weights: dict[str, np.ndarray] = {}
    for name, each in layers:
        if type(each) is torch.nn.Linear:
            parts.append(Layer(dense(each.in_features, each.out_features), f"K{len(parts)}", None))
            weights[f"K{len(parts) - 1}"] = each.weight.detach().cpu().double().numpy()
        elif type(each) in ACTIVATIONS and _has_known_numbers(each):
            if not parts:
                raise ValueError(f"`module` must not begin with an activation, found {name}: {each}")
            if parts[-1].activation.name != "identity":
                raise ValueError(f"`module` must have a linear layer before each activation, found {name}: {each}")
            last = parts[-1]
            parts[-1] = Layer(last.connectivity, last.weights, None, activation(ACTIVATIONS[type(each)]))
        else:
            raise ValueError(
                f"`module` must have layers with known bounds (nets and blocks of stepnet, Linear, activations, "
                f"Dropout, Flatten), found {name}: {type(each).__name__}"
            )
    if not parts:
        return 1.0
    start = Ball(np.eye(parts[0].n_in), 0.0)
    return float(push_through_chain(build_linear_parts(Chain(tuple(parts)), weights), 1.0, start).singular_range[1])


def _has_known_numbers(module: torch.nn.Module) -> bool:
    name, value = NUMBERS.get(type(module), ("training", module.training))
    return bool(getattr(module, name) == value)
