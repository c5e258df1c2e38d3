"""Norms of states and gradients over the depth of a net."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.nets.layer_decomposition import LayerDecomposition
from stepnet.nets.net import Net
from stepnet.nets.validation import evaluate_loss
from stepnet.records import show_fields
from stepnet.validation import check, function, instance, optional

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, repr=False, eq=False)
class GradientNorms:
    """Norms over depth, means over the samples.

    Parameters
    ----------
    layers : tuple of str
        The names of the layers.
    states, gradients : array (layers + 1,)
        |y_k| and |dL/dy_k| before each layer and at the outputs.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> found = sn.stability.GradientNorms(("blocks.0.0",), np.ones(2), np.array([4.0, 2.0]))
    >>> found.growth
    2.0
    """

    layers: tuple[str, ...]
    states: np.ndarray
    gradients: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def growth(self) -> float:
        """|dL/dx| / |dL/dy| with the outputs y: gradients explode if this is far above one, and vanish far below."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(self.gradients[0] / self.gradients[-1])


@check(net=instance(Net), loss=optional(function))
def gradient_norms(net: Net, x: ArrayLike, loss: Callable[..., Any] | None = None) -> GradientNorms:
    """Compute the norms of the gradients of a loss with respect to the states between the layers.

    Parameters
    ----------
    net : Net
        With one-step schemes and weights held over each step.
    x : array_like
        Inputs.
    loss : callable, optional
        `loss(outputs)` returns (value, gradient); by default half the squared outputs.

    Returns
    -------
    GradientNorms

    Raises
    ------
    ValueError
        If the steps of the net are not separate layers.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> net = sn.nets.hamiltonian(2, 2, 4, 30)
    >>> found = sn.stability.gradient_norms(net, np.eye(2))
    >>> len(found.gradients), found.layers[1]
    (33, 'blocks.0.0')
    """
    layers = LayerDecomposition(net)
    states = layers.states(net.theta, x)
    outputs = layers.outputs(states)
    _, end = (0.0, outputs) if loss is None else evaluate_loss(loss, outputs)
    costates = layers.costates(net.theta, states, np.asarray(end)).p
    means = [np.array([np.linalg.norm(each, axis=1).mean() for each in some]) for some in (states, costates)]
    return GradientNorms(tuple(each.name for each in layers.layers), *means)
