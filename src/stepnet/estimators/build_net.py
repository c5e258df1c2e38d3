"""Building the net of an estimator from a preset name, a field with a scheme, a net or a function."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from typing import Any

from stepnet import fields, nets
from stepnet.errors import UnknownArgument, UnknownName
from stepnet.fields import Field
from stepnet.nets import Net
from stepnet.records import validate_thread_count

BY_NAME: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        nets.resnet, nets.antisymmetric, nets.parabolic, nets.hamiltonian, nets.hyperbolic, nets.midpoint_net,
        nets.leapfrog_net, nets.mlp,
    )
}  # fmt: skip


def build_net(chosen: Any, inputs: int, outputs: int, seed: int) -> Net:
    """Build a net according to the settings of an estimator."""
    net, workers = chosen.net, chosen.workers
    if workers is not None:
        workers = validate_thread_count(workers)
    if not (chosen.scheme is None or isinstance(chosen.scheme, str) or hasattr(chosen.scheme, "name")):
        raise TypeError(f"`scheme` must be a name, a scheme or None, found {chosen.scheme!r:.80}")
    if isinstance(net, Field):
        return _build_from_field(net, inputs, outputs, chosen, {"seed": seed, "workers": workers})
    if isinstance(net, str) or any(net is each for each in BY_NAME.values()):
        return _build_by_name(net, inputs, outputs, chosen, {"seed": seed, "workers": workers})
    if not callable(net) or isinstance(net, type):
        raise TypeError(
            "`net` must be a name, a Field, a Net or a function of (inputs, outputs) that returns a Net, "
            f"found {net!r:.80} ({type(net).__name__})"
        )
    found = (
        deepcopy(net) if isinstance(net, Net) else net(inputs, outputs, **({"seed": seed} if _takes_seed(net) else {}))
    )
    if not isinstance(found, Net):
        raise TypeError(f"`net` must give a Net for (inputs, outputs), found {type(found).__name__}")
    takes, gives = found.design.n_in, found.design.n_out
    if (takes, gives) != (inputs, outputs):
        raise ValueError(f"`net` must take {inputs} inputs and give {outputs} outputs, found {takes} and {gives}")
    how = {"workers": workers, "memory": found.memory, "layout": found.layout}
    return Net(found.design, found.theta, dtype=found.dtype, **how)


def _build_by_name(net: str, inputs: int, outputs: int, chosen: Any, own: dict[str, Any]) -> Net:
    maker = BY_NAME.get(net.lower()) if isinstance(net, str) else net
    if maker is None:
        raise UnknownName("net", net, BY_NAME)
    own |= {"length": chosen.length, "activation": chosen.activation}
    if chosen.scheme is not None:
        if "scheme" not in signature(maker).parameters:
            raise ValueError(f"`scheme` must be None for the net {maker.__name__!r}, which has its own; "
                             f"found {chosen.scheme!r}")  # fmt: skip
        own["scheme"] = chosen.scheme
    return _build_with_options(maker, (inputs, outputs, chosen.width, chosen.steps), own, chosen.options)


def _build_from_field(field: Field, inputs: int, outputs: int, chosen: Any, own: dict[str, Any]) -> Net:
    """Build a net with one block of the field, which fixes width and activation; second-order fields start at rest."""
    own["length"] = chosen.length
    scheme = chosen.scheme
    if scheme is None:
        scheme = nets.presets.HALVED.get(field.name, "euler" if field.kind == "first" else "verlet")
    if field.kind == "second":
        own |= {"opening_width": field.row_size, "read": field.row_size}
    field = deepcopy(field)  # records cache computed values, and settings must not change
    return _build_with_options(nets.compose_net, (field, scheme, chosen.steps, inputs, outputs), own, chosen.options)


def _build_with_options(maker: Callable[..., Any], sizes: tuple[Any, ...], own: dict[str, Any], options: Any) -> Net:
    options = {} if options is None else options
    if not isinstance(options, dict):
        raise TypeError(f"`options` must be a dictionary or None, found {options!r:.80} ({type(options).__name__})")
    for name in options:
        if not isinstance(name, str):
            raise TypeError(f"`options` must have names as keys, found {name!r:.60}")
        if name in own or name in ("width", "steps", "scheme", "inputs", "outputs"):
            raise ValueError(
                f"`options` must hold only options that are not arguments of the estimator, found {name!r}"
            )
    try:
        return maker(*sizes, **own, **options)
    except TypeError as error:
        if options and (isinstance(error, UnknownArgument) or "keyword argument" in str(error)):
            raise TypeError(
                f"`options` must be arguments of `nets.{maker.__name__}`, found {options!r:.80}: {error}"
            ) from None
        raise


def add_diffusion(net: Net, sigma: float, is_learned: bool) -> Net:
    """The same net with noise in all blocks: constant, or with a learned factor for each channel, initially 1."""
    blocks = []
    for block in net.design.blocks:
        axes = block.field.parts[0].axes_in
        noise = fields.diffusion.per_channel(axes, sigma) if is_learned else fields.diffusion.constant(sigma)
        blocks.append(replace(block, field=block.field.with_diffusion(noise)))
    design = replace(net.design, blocks=tuple(blocks))
    found = Net(design, dtype=net.dtype, workers=net.workers, memory=net.memory, layout=net.layout)
    for name, weights in found.weights.items():
        before = net.weights.get(name)
        weights[...] = before if before is not None and before.shape == weights.shape else 0.0
    return found


def _takes_seed(function: Callable[..., Any]) -> bool:
    try:
        return "seed" in signature(function).parameters
    except (TypeError, ValueError):  # some extension functions have no signature
        return False
