"""A net as single layers with separate parameters: chains, and each step of each block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.fields import HeldWeights
from stepnet.nets.design import Block
from stepnet.nets.net import Net
from stepnet.schemes.step_program import Slope

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class LayerPullback(NamedTuple):
    """f(x; theta), and the gradients with respect to theta and x."""

    y: np.ndarray
    theta: np.ndarray
    x: np.ndarray


@dataclass(frozen=True, eq=False)
class SingleLayer:
    """x -> f(x; theta[places]): the opening layer, a step, a join or the readout.

    Parameters
    ----------
    name : str
        The prefix of its parameter names, with the number of the step: "blocks.0.3".
    places : array of int
        Indices of its parameters in the flat vector of the net.
    stage : Stage
        The engine's net stage.
    """

    name: str
    places: np.ndarray
    stage: Any

    def forward(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """f(x; theta) of a batch `(batch, features)`; theta are the parameters of this layer."""
        from stepnet.nets.execution import tile, untile

        return untile(self.stage.forward(theta, tile(x)), len(x))

    def pullback(self, theta: np.ndarray, x: np.ndarray, y_bar: np.ndarray) -> LayerPullback:
        """The value, and the gradients of <y_bar, f(x; theta)>."""
        from stepnet.nets.execution import sweep, tile, untile

        theta_bar = np.zeros_like(theta)
        run = sweep(self.stage, theta, theta_bar, tile(x), "all")
        y = untile(next(run), len(x))
        return LayerPullback(y, theta_bar, untile(run.send(tile(y_bar)), len(x)))


class LayerDecomposition:
    """A net decomposed into layers, with the states and costates between them.

    Schemes must be one-step, and each step must use the weights of one control value, as with held weights.
    """

    def __init__(self, net: Net):
        if not isinstance(net, Net):
            raise TypeError(f"the model must be a Net to be decomposed into layers, found {type(net).__name__}")
        self.net, self.layers = net, list(_list_layers(net))

    def states(self, theta: np.ndarray, x: ArrayLike) -> list[np.ndarray]:
        """x_0, ..., x_N `(batch, features)`: the inputs, then the output of each layer."""
        found = [self.net._inputs("x", x)]
        for layer in self.layers:
            found.append(layer.forward(theta[layer.places], found[-1]))
        return found

    def outputs(self, states: list[np.ndarray]) -> np.ndarray:
        """The last state in the order of the net's layout."""
        return self.net._layout_out.restore(states[-1])

    def costates(self, theta: np.ndarray, states: list[np.ndarray], end: np.ndarray) -> Costates:
        """p_n = d <p_(n+1), f_n(x_n)> / dx_n backward from p_N = `end`, given in the order of the outputs."""
        found, theta_bar = [self.net._layout_out.flatten(end)], np.zeros_like(theta)
        for layer, x in zip(reversed(self.layers), states[-2::-1], strict=True):
            _, theta_bar[layer.places], p = layer.pullback(theta[layer.places], x, found[-1])
            found.append(p)
        return Costates(found[::-1], theta_bar)

    def map_over(self, function: Callable[..., Any]) -> list[Any]:
        """function(n) for each layer n, over threads; values in order."""
        return self.net._execution.map_over(function, range(len(self.layers)))


class Costates(NamedTuple):
    """p_0, ..., p_N, and the gradient of <p_N, x_N> with respect to all parameters."""

    p: list[np.ndarray]
    theta: np.ndarray


def _list_layers(net: Net) -> Iterator[SingleLayer]:
    """Yield the layers, from the inputs to the outputs."""
    from stepnet.nets.execution import build_stage

    numbers = net.views(np.arange(net.theta.size))
    for name, record in net.design.stages():
        places = [numbers[f"{name}.{each}"] for each in record.parameters]
        if isinstance(record, Block):
            _require_own_weights(name, record)
            stage = build_stage(Block(record.field, record.scheme, 1, record.h, HeldWeights(1)), net.dtype)
            for n in range(record.steps):
                yield SingleLayer(f"{name}.{n}", _flatten(each[n] for each in places), stage)
        else:
            yield SingleLayer(name, _flatten(places), build_stage(record, net.dtype))


def _flatten(places: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *(np.ravel(each) for each in places)])


def _require_own_weights(name: str, block: Block) -> None:
    if block.scheme_program.opening.steps:
        raise ValueError(f"{name} must have a one-step scheme for its steps to be layers, found {block.scheme.name!r}")
    if block.depth.degree or block.depth.controls != block.steps:
        raise ValueError(
            f"{name} must have weights held over each step (`degree=None` and as many controls as steps) for its steps "
            f"to be separate layers, found {block.depth} for {block.steps} steps"
        )
    if block.scheme_program.step.noise:
        raise ValueError(
            f"{name} must have no noise for its steps to be layers, found the diffusion {block.field.diffusion}"
        )
    if any(layer.clock for part in block.field.parts for layer in part.layers):
        raise ValueError(f"{name} must not depend on time for its steps to be layers, found a clock")
    late = [c for c in _list_times(block) if not 0 <= c < 1]
    if late and block.steps > 1 and not isinstance(block.depth, HeldWeights):
        raise ValueError(
            f"{name} must have weights held over each step (`degree=None`), or a scheme without slopes at the end "
            f"of a step, such as 'euler' or 'midpoint': {block.scheme.name!r} reads those of the next step there"
        )


def _list_times(block: Block) -> Iterator[float]:
    """The times at which a step evaluates the weights, in units of its length."""
    for program in (block.scheme_program.opening, block.scheme_program.step):
        yield from (operation.c for operation in program.operations if isinstance(operation, Slope))
