"""Activations as records of elementwise value and derivative; engines identify them by number.

The formulas are those of PyTorch with its default constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.errors import UnknownName

LEAK = 0.01
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


@dataclass(frozen=True)
class Activation:
    """s(u), s'(u) and the largest |s'|.

    Kernels identify it by `number`.  `from_value` says that s'(u) follows from s(u), so that only the value needs to be
    stored.

    Parameters
    ----------
    name : str
        The name, for display and lookup.
    number : int
        How kernels identify it.
    value : callable
        s(u) for an array u.
    derivative : callable
        s'(u) if `from_value` is False, otherwise s' as a function of s(u).
    steepest : float
        The largest |s'|.
    from_value : bool, optional
        Whether s'(u) follows from s(u).

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.activation("tanh").steepest
    1.0
    """

    name: str
    number: int
    value: Callable[[np.ndarray], np.ndarray]
    derivative: Callable[[np.ndarray], np.ndarray]
    steepest: float
    from_value: bool = True

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return activation, (self.name,)


def _sigmoid(u: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * u))


def _normal(u: np.ndarray) -> np.ndarray:
    """The cumulative distribution function of the standard normal distribution."""
    from scipy.special import ndtr

    return ndtr(u)


def _bell(u: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)


def _elu(u: np.ndarray) -> np.ndarray:
    return np.where(u > 0, u, np.expm1(np.minimum(u, 0)))


TANH = Activation("tanh", 0, np.tanh, lambda u: 1 - np.tanh(u) ** 2, 1.0)
RELU = Activation("relu", 1, lambda u: np.maximum(u, 0), lambda u: np.where(u > 0, 1.0, 0.0), 1.0)
LEAKY_RELU = Activation(
    "leaky_relu", 2, lambda u: np.where(u > 0, u, LEAK * u), lambda u: np.where(u > 0, 1.0, LEAK), 1.0
)
SOFTPLUS = Activation("softplus", 3, lambda u: np.logaddexp(0, u), _sigmoid, 1.0)
GELU = Activation("gelu", 4, lambda u: u * _normal(u), lambda u: _normal(u) + u * _bell(u), 1.1289042, from_value=False)
SILU = Activation(
    "silu", 5, lambda u: u * _sigmoid(u), lambda u: _sigmoid(u) * (1 + u * _sigmoid(-u)), 1.0998394, from_value=False
)
ELU = Activation("elu", 6, _elu, lambda u: np.where(u > 0, 1.0, np.exp(np.minimum(u, 0))), 1.0)
SELU = Activation(
    "selu", 7, lambda u: SELU_SCALE * np.where(u > 0, u, SELU_ALPHA * _elu(u)),
    lambda u: SELU_SCALE * np.where(u > 0, 1.0, SELU_ALPHA * np.exp(np.minimum(u, 0))), SELU_SCALE * SELU_ALPHA,
)  # fmt: skip
SIGMOID = Activation("sigmoid", 8, _sigmoid, lambda u: _sigmoid(u) * _sigmoid(-u), 0.25)
IDENTITY = Activation("identity", 9, lambda u: u, np.ones_like, 1.0)

ACTIVATIONS = {
    each.name: each
    for each in (TANH, RELU, LEAKY_RELU, SOFTPLUS, GELU, SILU, ELU, SELU, SIGMOID, IDENTITY)
}  # fmt: skip


def activation(name: str | Activation) -> Activation:
    """Return an activation by its name; a record is returned unchanged.

    Parameters
    ----------
    name : str or Activation
        A name such as "tanh", or a record.

    Returns
    -------
    Activation

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.activation("relu").name
    'relu'
    """
    if isinstance(name, Activation):
        if ACTIVATIONS.get(name.name) is not name:
            raise ValueError(
                f"`activation` must be one of {', '.join(ACTIVATIONS)}, which kernels know; found {name!r}"
            )
        return name
    if not isinstance(name, str):
        raise TypeError(f"`activation` must be a name or an Activation, found {name!r:.60} ({type(name).__name__})")
    if name not in ACTIVATIONS:
        raise UnknownName("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]
