"""Blocks by name: fields with their default schemes, and any function of (t, y)."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet import fields
from stepnet.engines.torch_engine import (
    Partitioned,
    SecondOrder,
    Split,
)
from stepnet.fields import Connectivity, Depth, Field, HeldWeights
from stepnet.fields.connectivity import count
from stepnet.nets.design import Block
from stepnet.nets.presets import HALVED, build_diffusion
from stepnet.records import explain_passed_arguments, validate_number
from stepnet.schemes import catalogue
from stepnet.schemes.conditions import is_pair
from stepnet.torch.layer_modules import FieldFunction, LayerBlock
from stepnet.torch.torchdiffeq_interface import odeint_adjoint

if TYPE_CHECKING:
    from stepnet.checkpoints.budget import Memory
    from stepnet.fields import Activation
    from stepnet.torch.options import Tolerance
    from stepnet.torch.torchdiffeq_interface import Func


@explain_passed_arguments
def ODEBlock(
    field: Field | Func, scheme: Any = None, steps: int | None = None, length: float | Tensor = 1.0, **how: Any
) -> LayerBlock | SolveBlock:
    """A module that maps y(0) to y(length) for y' = field(t, y).

    Parameters
    ----------
    field : Field of `stepnet.fields`; module or function (t, y); or Partitioned, SecondOrder, Split
    scheme : str or scheme, optional
        A name of `stepnet.schemes`; by default "verlet" for fields with a partitioned state and "rk4" for others.
    steps : int, optional
        Number of steps, the layers of a Field; without it steps are adaptive, by `rtol` and `atol`.
    length : float or tensor
        The length of the time interval; for functions (t, y) it may be a tensor or parameter with a gradient.
    how
        `memory`; for layers `depth` and the other arguments of `LayerBlock`; otherwise `rtol` and `atol` as in
        `odeint_adjoint`, and for a Field the arguments of `FieldFunction`.

    Returns
    -------
    LayerBlock or SolveBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.ODEBlock(lambda t, y: -y, "rk4", steps=10)(torch.ones(1)).shape
    torch.Size([1])
    """
    if isinstance(field, Field):
        length = _require_number(length)
    else:
        return SolveBlock(field, "rk4" if scheme is None else scheme, steps, length, **how)
    if steps is None:
        solving = {name: how.pop(name) for name in ("memory", "rtol", "atol") if name in how}
        return SolveBlock(FieldFunction(field, length, **how), scheme or "dopri5", None, length, **solving)
    return build_block(field, scheme or ("rk4" if field.kind == "first" else "verlet"), steps, length, **how)


@explain_passed_arguments
def ResidualBlock(
    K: Connectivity | int, steps: int, *, activation: str | Activation = "tanh", norm: str | None = None,
    scheme: Any = "euler", **how: Any,
) -> LayerBlock:  # fmt: skip
    """y' = s(K y + b); by Euler's scheme a ResNet.

    Parameters
    ----------
    K : connectivity of `stepnet.fields`, or int
        A number means a dense K for this number of features of the state, q and p together if it is partitioned.
    steps : int
        Layers.
    activation, scheme : str
        By name.
    norm : "layer" or "rms", optional
        Normalises K y + b across the channels before the activation.
    how
        `length`, `depth`, `diffusion` (noise after each step: its standard deviation over unit time, or a record of
        `fields.diffusion`), and the arguments of `LayerBlock`.  By default weights are held over each step
        (`fields.HeldWeights(steps)`); `fields.Depth(controls, degree)` makes them splines in depth.

    Returns
    -------
    LayerBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.ResidualBlock(4, steps=3)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    return build_block(fields.residual(_require_square(K), activation, norm), scheme, steps, **how)


@explain_passed_arguments
def AntisymmetricBlock(
    K: Connectivity | int, steps: int, *, activation: str | Activation = "tanh", norm: str | None = None,
    scheme: Any = "euler", damping: float = 0.0, **how: Any,
) -> LayerBlock:  # fmt: skip
    """y' = s((K - K' - damping I) y + b).

    Parameters
    ----------
    K, steps, activation, norm, scheme, **how
        As in `ResidualBlock`.
    damping : float, optional
        The multiple of the identity that is subtracted.

    Returns
    -------
    LayerBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.AntisymmetricBlock(4, steps=3)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    return build_block(fields.antisymmetric(_require_square(K), activation, damping, norm), scheme, steps, **how)


@explain_passed_arguments
def ParabolicBlock(
    K: Connectivity | int, steps: int, *, activation: str | Activation = "tanh", norm: str | None = None,
    scheme: Any = "euler", **how: Any,
) -> LayerBlock:  # fmt: skip
    """y' = -K' s(K y + b).

    Parameters
    ----------
    K, steps, activation, norm, scheme, **how
        As in `ResidualBlock`.

    Returns
    -------
    LayerBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.ParabolicBlock(4, steps=3)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    return build_block(fields.parabolic(_require_square(K), activation, norm), scheme, steps, **how)


@explain_passed_arguments
def HamiltonianBlock(
    K: Connectivity | int, steps: int, *, activation: str | Activation = "tanh", norm: str | None = None,
    scheme: Any = HALVED["hamiltonian"], **how: Any,
) -> LayerBlock:  # fmt: skip
    """q' = K' s(K p + b), p' = -K' s(K q + b) on states (q, p), half of the features each; reversible.

    q_(j+1) = q_j + h K_j' s(K_j p_j + b_j), p_(j+1) = p_j - h K_j' s(K_j q_(j+1) + b_j) by the default scheme.

    Parameters
    ----------
    K, steps, activation, norm, scheme, **how
        As in `ResidualBlock`.

    Returns
    -------
    LayerBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.HamiltonianBlock(4, steps=3)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    return build_block(fields.hamiltonian(_half(K), activation, norm), scheme, steps, **how)


@explain_passed_arguments
def HyperbolicBlock(
    K: Connectivity | int, steps: int, *, activation: str | Activation = "tanh", norm: str | None = None,
    scheme: Any = HALVED["hyperbolic"], **how: Any,
) -> LayerBlock:  # fmt: skip
    """q'' = -K' s(K q + b) on states (q, v), half of the features each; reversible.

    v_(j+1) = v_j - h K_j' s(K_j q_j + b_j), q_(j+1) = q_j + h v_(j+1) by the default scheme.

    Parameters
    ----------
    K, steps, activation, norm, scheme, **how
        As in `ResidualBlock`.

    Returns
    -------
    LayerBlock

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.HyperbolicBlock(4, steps=3)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    return build_block(fields.hyperbolic(_half(K), activation, norm), scheme, steps, **how)


def build_block(
    field: Field, scheme: Any, steps: int, length: float = 1.0, depth: Depth | HeldWeights | None = None,
    diffusion: Any = None, **how: Any,
) -> LayerBlock:  # fmt: skip
    """A block of layers, with noise after each step if there is a diffusion."""
    if diffusion is not None:
        field = field.with_diffusion(build_diffusion(diffusion))
    block = Block(field, catalogue.get(scheme), steps, _require_number(length), depth)  # type: ignore[arg-type]
    return LayerBlock(block, **how)


def _require_square(K: Connectivity | int) -> Connectivity:
    return K if isinstance(K, Connectivity) else fields.dense(count("K", K))


def _half(K: Connectivity | int) -> Connectivity:
    if isinstance(K, Connectivity):
        return K
    if count("K", K) % 2:
        raise ValueError(f"`K` must be an even number of features, as the state is partitioned (q, p); found {K}")
    return fields.dense(count("K", K) // 2)


def _require_number(length: float | Tensor) -> float:
    """Return the length of a block of layers as a number; it has no gradient, as the weights depend on it."""
    if isinstance(length, Tensor) and length.requires_grad:
        raise ValueError(
            "`length` of layers must be a number, found a tensor that requires a gradient; detach it, or use "
            "`ODEBlock(FieldFunction(field), scheme, steps, length)`, which has a gradient of its length"
        )
    return validate_number("length", length.item() if isinstance(length, Tensor) and length.numel() == 1 else length)


def _times(length: float | Tensor, steps: int, like: Tensor) -> Tensor:
    """Equally spaced times from zero; known numbers stay on the host, to avoid a synchronisation with the device."""
    dtype, device = like.real.dtype, like.device
    if isinstance(length, Tensor):
        return torch.linspace(0.0, 1.0, steps + 1, dtype=dtype, device=device) * length.to(device, dtype)
    if not torch.compiler.is_compiling():
        device = torch.device("cpu")
    return torch.linspace(0.0, length, steps + 1, dtype=dtype, device=device)


class SolveBlock(torch.nn.Module):
    """y(0) -> y(length) for any function (t, y); see `ODEBlock`.

    Parameters
    ----------
    func, scheme, steps, length : Func
        `field`, `scheme`, `steps` and `length` of `ODEBlock`.
    memory, rtol, atol
        As in `odeint_adjoint`.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.SolveBlock(lambda t, y: -y, "rk4", steps=10)(torch.ones(1)).shape
    torch.Size([1])
    """

    def __init__(
        self, func: Func, scheme: Any, steps: int | None = None, length: float | Tensor = 1.0, *,
        memory: Memory | int = "auto", rtol: Tolerance = 1e-6, atol: Tolerance = 1e-9,
    ) -> None:  # fmt: skip
        super().__init__()
        is_tensor = isinstance(length, Tensor) and length.numel() == 1
        found = validate_number("length", length.detach().item() if is_tensor else length, "[-inf, inf]")  # type: ignore[union-attr]
        if not (isfinite(found) and found != 0):
            raise ValueError(f"`length` must be finite and not zero, found {length!r:.60}")
        self.func, self.scheme = func, catalogue.get(scheme)
        self.length = length if isinstance(length, Tensor) else found
        self.steps = None if steps is None else count("steps", steps)
        self.is_given_pair = steps is not None and is_pair(self.scheme)  # others step between the times in any case
        if steps is None and not is_pair(self.scheme):
            raise ValueError(f"`steps` must be given for {self.scheme.name}, which cannot choose them")
        self.how: dict[str, Any] = {"memory": memory, "rtol": rtol, "atol": atol}
        if isinstance(func, (Partitioned, SecondOrder, Split)):
            self.parts = torch.nn.ModuleList(f for f in func.functions if isinstance(f, torch.nn.Module))

    def forward(self, y: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """The final state: a tensor or a tuple of tensors, like y."""
        first = y[0] if isinstance(y, tuple) and y else y
        if not isinstance(first, Tensor):
            raise TypeError(f"`y` must be a tensor or a tuple of them, found {type(y).__name__}")
        t = _times(self.length, self.steps or 1, first)
        options = {"grid_constructor": lambda func, y, t: t} if self.is_given_pair else {}
        how = self.how | ({"memory": "all"} if torch.compiler.is_compiling() else {})
        found = odeint_adjoint(self.func, y, t, method=self.scheme, options=options, **how)
        return tuple(part[-1] for part in found) if isinstance(found, tuple) else found[-1]

    def extra_repr(self) -> str:
        return f"{self.scheme.name}, steps={self.steps}, length={self.length}"
