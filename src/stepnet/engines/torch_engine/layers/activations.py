"""Activations on tensors, by the numbers of their records."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.fields.activations import LEAK

STRAIGHT = 50.0  # beyond this softplus is the identity in float64; torch's default of 20 suffices for float32

_BY_NUMBER: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    torch.relu,
    lambda u: F.leaky_relu(u, LEAK),
    lambda u: F.softplus(u, threshold=STRAIGHT),
    F.gelu,
    F.silu,
    F.elu,
    F.selu,
    torch.sigmoid,
    lambda u: u,
)


def activate(number: int, u: Tensor) -> Tensor:
    """s(u) of the activation with this number."""
    return _BY_NUMBER[number](u)
