"""What the derivatives of nets give: gradients by name, and a net that is linear in its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from stepnet.nets.design import Design
from stepnet.nets.validation import validate_shape
from stepnet.records import show_fields


def view_by_name(design: Design, theta: np.ndarray) -> MappingProxyType:
    """Parts of a vector by the names that a design gives to its parameters."""
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
        With respect to the inputs, shaped as they are; None if it was not asked for.
    outputs : array
        What the net gave.
    design : Design
        Of the net.
    """

    value: float
    theta: np.ndarray
    x: np.ndarray | None
    outputs: np.ndarray
    design: Design

    __repr__ = show_fields

    @cached_property
    def weights(self) -> MappingProxyType:
        """Views of `theta` by name."""
        return view_by_name(self.design, self.theta)


def hessian_at(hessian: Callable | None, pushed: np.ndarray) -> np.ndarray:
    """H (J v) by the function of a user, or J v without one."""
    if hessian is None:
        return pushed
    if not callable(hessian):
        raise TypeError(f"`hessian` must be a function of (J v), found {type(hessian).__name__}")
    return validate_shape("hessian", hessian(pushed), pushed.shape, "the outputs", pushed.dtype)


class Linearised:
    """J, the derivative of a net's outputs by its parameters, at some inputs and at the parameters it was made with.

    Parameters
    ----------
    size : int
        How many parameters there are.
    outputs : array
        What the net gave.
    push, pull : callable
        J v from v, and J' u from u.
    """

    def __init__(self, size: int, outputs: np.ndarray, push: Callable, pull: Callable):
        self.size, self.outputs, self._push, self._pull = size, outputs, push, pull

    def tangent(self, theta_dot) -> np.ndarray:
        """J v: the derivative of the outputs in a direction of the parameters."""
        return self._push(validate_shape("theta_dot", theta_dot, (self.size,), "the parameters", self.outputs.dtype))

    def pullback(self, outputs_bar) -> np.ndarray:
        """J' u: the gradient by the parameters from that by the outputs."""
        return self._pull(
            validate_shape("outputs_bar", outputs_bar, self.outputs.shape, "the outputs", self.outputs.dtype)
        )

    def gauss_newton(self, direction, hessian: Callable | None = None) -> np.ndarray:
        """J' H J times a direction; `hessian(J v)` is H (J v), by default J v."""
        pushed = self.tangent(direction)
        return self.pullback(hessian_at(hessian, pushed))
