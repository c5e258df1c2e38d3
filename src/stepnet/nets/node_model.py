"""A net on one graph as a model whose samples are the nodes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stepnet.nets.derivatives import NetGradient, apply_hessian
from stepnet.nets.net import Net
from stepnet.nets.validation import evaluate_loss, require_function
from stepnet.records import as_array
from stepnet.validation import array, instance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.checkpoints.budget import Memory


class NodeModel:
    """`model(nodes)` returns the outputs at some nodes of a graph, for training on the nodes with known targets.

    It trains like any net, on `Data(nodes, targets)`; the net always runs on the whole graph.

    Parameters
    ----------
    net : Net
        For example a `node_net`, with features ordered channel by channel.
    inputs : array_like
        Features (nodes, channels) of all nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> model = nets.NodeModel(nets.node_net(ring, 2, 3, channels=4, steps=3), np.ones((5, 2)))
    >>> model([0, 4]).shape
    (2, 3)
    """

    def __init__(self, net: Net, inputs: ArrayLike) -> None:
        net, inputs = instance(Net)("net", net), cast(np.ndarray, array(None, None)("inputs", inputs))
        if inputs.size != net.design.n_in or net.design.n_out % len(inputs):
            raise ValueError(
                f"`inputs` must be (nodes, channels) with {net.design.n_in} features in all and nodes that divide the "
                f"{net.design.n_out} outputs of the net, found the shape {inputs.shape}"
            )
        if len(net.design.axes_in) == 2 and inputs.shape != net.design.axes_in[::-1]:
            raise ValueError(f"`inputs` must be (nodes, channels) = {net.design.axes_in[::-1]}, found {inputs.shape}")
        self.net, self.inputs = net, inputs
        self._x = net._layout_in.restore(np.ascontiguousarray(inputs.T).reshape(1, -1))

    @property
    def theta(self) -> np.ndarray:
        return self.net.theta

    def put(self, theta: ArrayLike) -> None:
        """Replace all parameters."""
        self.net.put(theta)

    @property
    def identity(self) -> str:
        """A hash that identifies the net and the inputs."""
        return f"{self.net.identity} at {sha256(np.ascontiguousarray(self.inputs).tobytes()).hexdigest()}"

    def views(self, theta: np.ndarray) -> MappingProxyType[str, np.ndarray]:
        """Parameters by name, as in `Net`."""
        return self.net.views(theta)

    def roughness(self) -> tuple[float, np.ndarray]:
        """As in `Net`."""
        return self.net.roughness()

    def refine(self, factor: int = 2) -> NodeModel:
        """The same function of depth on `factor` times as many steps."""
        return NodeModel(self.net.refine(factor), self.inputs)

    def __call__(self, nodes: ArrayLike) -> np.ndarray:
        """Outputs (nodes, channels) at these nodes."""
        return self._outputs(self.net(self._x), self._numbers(nodes))

    def features(self, nodes: ArrayLike, block: int = 0) -> np.ndarray:
        """States (depths, nodes, channels) inside a block."""
        return self._select_nodes(self.net.features(self._x, block)[:, 0], self._numbers(nodes))

    def gradient(self, nodes: ArrayLike, loss: Callable[..., Any], *, memory: Memory | None = None) -> NetGradient:
        """The exact gradient of a loss of the outputs at these nodes, with `outputs` there."""
        require_function(loss)
        nodes, kept = self._numbers(nodes), np.zeros(0)

        def whole(outputs: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal kept
            kept = self._outputs(outputs, nodes)
            value, bar = evaluate_loss(loss, kept)
            return value, self._spread(bar, nodes)

        found = self.net.gradient(self._x, whole, memory=memory)
        x_bar = self.net._layout_in.flatten(np.asarray(found.x)).reshape(self.inputs.T.shape).T
        return NetGradient(found.value, found.theta, x_bar, kept, found.design)

    def gauss_newton(
        self, nodes: ArrayLike, direction: ArrayLike, hessian: Callable[..., Any] | None = None, *,
        memory: Memory | None = None,
    ) -> np.ndarray:  # fmt: skip
        """J' H J times a direction of parameters, for the outputs at these nodes."""
        nodes = self._numbers(nodes)

        def whole(push: np.ndarray) -> np.ndarray:
            push = self._outputs(push, nodes)
            return self._spread(apply_hessian(hessian, push), nodes)

        return self.net.gauss_newton(self._x, direction, whole, memory=memory)

    def _outputs(self, outputs: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Select the outputs at some nodes."""
        return self._select_nodes(self.net._layout_out.flatten(outputs)[0], nodes)

    def _select_nodes(self, flat: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Rows of channels at these nodes, from features ordered channel by channel, `(..., channels * all nodes)`."""
        whole = flat.reshape(*flat.shape[:-1], -1, len(self.inputs))
        return np.ascontiguousarray(np.swapaxes(whole, -1, -2)[..., nodes, :])

    def _spread(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The transpose of `_outputs`: the rows of a repeated node are summed."""
        whole = np.zeros((len(self.inputs), rows.shape[1]), self.net.dtype)
        np.add.at(whole, nodes, rows)
        return self.net._layout_out.restore(np.ascontiguousarray(whole.T).reshape(1, -1))

    def _numbers(self, nodes: ArrayLike) -> np.ndarray:
        nodes = as_array("nodes", nodes)
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu" or not len(nodes):
            raise TypeError(f"`nodes` must be whole numbers (samples,), found {nodes.dtype} of shape {nodes.shape}")
        if nodes.min() < 0 or nodes.max() >= len(self.inputs):
            raise ValueError(f"`nodes` must be below {len(self.inputs)}, found {nodes.min()} to {nodes.max()}")
        return nodes
