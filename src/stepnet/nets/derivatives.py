"""Results of differentiating nets: gradients by name, and the net linearised in its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.nets.design import Design
from stepnet.nets.validation import validate_shape
from stepnet.records import show_fields

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def view_by_name(design: Design, theta: np.ndarray) -> MappingProxyType[str, np.ndarray]:
    """Views of a vector by the parameter names of a design."""
    found, start = {}, 0
    for name, shape in design.shapes.items():
        size = int(np.prod(shape))
        found[name] = theta[start : start + size].reshape(shape)
        start += size
    return MappingProxyType(found)


@dataclass(frozen=True, eq=False)
class NetGradient:
    """The value of a loss and its gradient.

    Parameters
    ----------
    value : float
        NaN if only the gradient of the outputs was given.
    theta : array
        With respect to the flat vector of parameters.
    x : array or None
        With respect to the inputs, in their shape; None if not requested.
    outputs : array
        The outputs of the net.
    design : Design
        The design of the net.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=4)
    >>> found = net.gradient([[1.0, 2.0]], lambda z: (0.5 * float((z**2).sum()), z))
    >>> found.theta.shape == net.theta.shape
    True
    """

    value: float
    theta: np.ndarray
    x: np.ndarray | None
    outputs: np.ndarray
    design: Design

    __repr__ = show_fields

    @cached_property
    def weights(self) -> MappingProxyType[str, np.ndarray]:
        """Views of `theta` by name."""
        return view_by_name(self.design, self.theta)


def apply_hessian(hessian: Callable[..., Any] | None, pushed: np.ndarray) -> np.ndarray:
    """H (J v) by the user's function, or J v without one."""
    if hessian is None:
        return pushed
    if not callable(hessian):
        raise TypeError(f"`hessian` must be a function of (J v), found {type(hessian).__name__}")
    return validate_shape("hessian", hessian(pushed), pushed.shape, "the outputs", pushed.dtype)


class Linearised:
    """J, the derivative of a net's outputs with respect to its parameters, at fixed inputs and parameters.

    Parameters
    ----------
    size : int
        Number of parameters.
    outputs : array
        The outputs of the net.
    push, pull : callable
        J v from v, and J' u from u.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=4)
    >>> J = net.linearise([[1.0, 2.0]])
    >>> J.size == net.theta.size
    True
    """

    def __init__(self, size: int, outputs: np.ndarray, push: Callable[..., Any], pull: Callable[..., Any]):
        self.size, self.outputs, self._push, self._pull = size, outputs, push, pull

    def tangent(self, theta_dot: ArrayLike) -> np.ndarray:
        """J v: the derivative of the outputs along a direction of the parameters."""
        return self._push(validate_shape("theta_dot", theta_dot, (self.size,), "the parameters", self.outputs.dtype))

    def pullback(self, outputs_bar: ArrayLike) -> np.ndarray:
        """J' u: the gradient with respect to the parameters from that with respect to the outputs."""
        return self._pull(
            validate_shape("outputs_bar", outputs_bar, self.outputs.shape, "the outputs", self.outputs.dtype)
        )

    def gauss_newton(self, direction: ArrayLike, hessian: Callable[..., Any] | None = None) -> np.ndarray:
        """J' H J times a direction; `hessian(J v)` is H (J v), by default J v."""
        pushed = self.tangent(direction)
        return self.pullback(apply_hessian(hessian, pushed))
