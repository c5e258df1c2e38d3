"""A net with a state in the plane as a stochastic process, and the equation of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.equations.right_hand_sides import TransportRHS
from stepnet.fields import reference
from stepnet.nets.design import Block
from stepnet.nets.net import Net
from stepnet.operators import Grid, Upwind, laplacian
from stepnet.problem import ODE, SDE
from stepnet.records import validate_number
from stepnet.validation import array, check, function, instance, optional, real

A_NET = instance(Net)
MOST_AXES = 3  # of a grid
DEFAULT_POINTS, DEFAULT_HALF_WIDTH = 121, 4.0


@check(net=A_NET)
@dataclass(frozen=True, eq=False)
class NetworkVelocity:
    """The field F(t, y) of a net, y' = F, at one state (width,) or at many (width, points).

    The blocks of the net follow each other in time.  The weights are those of the net at the time of the call.

    Parameters
    ----------
    net : Net
        Without an opening layer and joins, so that inputs are states, of first order or with a partitioned state.

    Examples
    --------
    >>> from stepnet import nets
    >>> velocity = nets.NetworkVelocity(nets.resnet(None, 1, width=2, steps=5))
    >>> velocity(0.5, [[0.0, 1.0], [0.0, 1.0]]).shape, velocity.end
    ((2, 2), 1.0)
    """

    net: Net

    def __post_init__(self) -> None:
        design = self.net.design
        if design.opening is not None or design.joins or design.blocks[0].n_in > MOST_AXES:
            raise ValueError(
                f"`net` must have a state of at most {MOST_AXES} features and no opening layer, such as "
                f"`nets.resnet(None, outputs, width=2, ...)`, found {self.net!r:.80}"
            )
        for block in design.blocks:
            if block.scheme is None:
                raise ValueError("`net` must consist of steps of a scheme; layers without a skip have no velocity")

    @property
    def is_constant(self) -> bool:
        """Whether F does not depend on time."""
        blocks = self.net.design.blocks
        layers = [layer for block in blocks for chain in block.field.parts for layer in chain.layers]
        return len(blocks) == 1 and blocks[0].depth.controls == 1 and all(layer.clock is None for layer in layers)

    @property
    def end(self) -> float:
        """The time at the end of the last block."""
        return float(sum(block.length for block in self.net.design.blocks))

    def __call__(self, t: float, y: Any) -> np.ndarray:
        """F(t, y)."""
        t, y = validate_number("t", t), array(dtype=float)("y", y)
        if y.ndim == 0 or len(y) != self.net.design.blocks[0].n_in:
            raise ValueError(f"`y` must have the shape ({self.net.design.blocks[0].n_in}, ...), found {y.shape}")
        number, begin = self._find_block(t)
        block = self.net.design.blocks[number]
        weights = {
            name: block.depth.values(self.net.weights[f"blocks.{number}.{name}"], (t - begin) / block.length)
            for name in block.parameters
        }
        return _evaluate_field(block, weights, t - begin, y.reshape(len(y), -1)).reshape(y.shape)

    @check(grid=instance(Grid))
    def sample(self, grid: Grid) -> Callable[[float], np.ndarray]:
        """The field on a grid as a function of time, which `equations.transport` takes as velocity."""
        points = np.stack(grid.coordinates)
        return lambda t: self(t, points)

    def _find_block(self, t: float) -> tuple[int, float]:
        begin, blocks = 0.0, self.net.design.blocks
        for number, block in enumerate(blocks[:-1]):
            if t < begin + block.length:
                return number, begin
            begin += block.length
        return len(blocks) - 1, begin


def _evaluate_field(block: Block, weights: dict[str, np.ndarray], t: float, y: np.ndarray) -> np.ndarray:
    if block.field.kind == "first":
        return reference.evaluate(block.field.chain(0), weights, t, y)
    q, p = np.split(y, 2)
    if block.field.kind == "second":
        return np.concatenate((p, reference.evaluate(block.field.chain(1), weights, t, q)))
    slopes = (reference.evaluate(block.field.chain(part), weights, t, x) for part, x in ((0, p), (1, q)))
    return np.concatenate(tuple(slopes))


@check(net=A_NET, sigma=real("[0, inf)"))
def network_sde(net: Net, sigma: float, y0: Any = None) -> SDE:
    """dy = F(t, y) dt + sigma dW with the field F of a net, over the time of its blocks.

    Parameters
    ----------
    net : Net
        As in `NetworkVelocity`.
    sigma : float
        The noise, the same in all directions.
    y0 : array_like, optional
        The initial state; zeros by default.

    Returns
    -------
    SDE

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.network_sde(nets.resnet(None, 1, width=2, steps=5), 0.1).t_span
    (0.0, 1.0)
    """
    velocity = NetworkVelocity(net)
    width = net.design.blocks[0].n_in

    def diffusion(t: float, y: np.ndarray) -> np.ndarray:
        return sigma + 0.0 * y

    return SDE(velocity, diffusion, np.zeros(width) if y0 is None else y0, (0.0, velocity.end), trace=False)


@check(net=A_NET, sigma=real("[0, inf)"), grid=optional(instance(Grid)), transform=optional(function))
def network_pde(
    net: Net,
    sigma: float = 0.0,
    grid: Grid | None = None,
    *,
    transform: Callable[[np.ndarray], np.ndarray] | None = None,
    order: int = 3,
    check_steps: bool = True,
) -> ODE:
    """u_t + F . grad u + sigma^2 / 2 lap u = 0: the equation of the outputs of a net, backward from its readout.

    u(x, 0) = E[readout(y(T))] over paths of dy = F dt + sigma dW from y(0) = x.  Without noise it is the output of the
    net for the input x, up to the errors of its steps.  Wang, Yuan, Shi & Osher (2019), NeurIPS, "ResNets Ensemble via
    the Feynman-Kac Formalism".

    Parameters
    ----------
    net : Net
        As in `NetworkVelocity`; the noise of the net itself is not used.
    sigma : float
        The noise, the same in all directions.
    grid : Grid, optional
        Large enough for the paths from the region of interest; by default 121 points from -4 to 4 along each axis with
        Neumann sides.
    transform : callable, optional
        From outputs (points, outputs) to values (points, values), such as probabilities; none by default.
    order : {1, 2, 3}
        As in `equations.advection_diffusion`.
    check_steps : bool
        Whether fixed steps beyond the stability limit of a scheme are refused.

    Returns
    -------
    ODE
        With the state (values, *grid), from the end of the net to its beginning.  Where weights do not depend on depth
        it is compiled, and `args` are F on the grid and -sigma^2 / 2; else F is evaluated in Python at every stage.

    Examples
    --------
    >>> import stepnet as sn
    >>> net = sn.nets.resnet(None, 1, width=2, steps=5)
    >>> problem = sn.nets.network_pde(net, 0.2, sn.operators.Grid((16, 16), -2.0, 2.0, boundary="neumann"))
    >>> problem.t_span, problem.y0.shape
    ((1.0, 0.0), (1, 16, 16))
    """
    velocity, width = NetworkVelocity(net), net.design.blocks[0].n_in
    if grid is None:
        grid = Grid((DEFAULT_POINTS,) * width, -DEFAULT_HALF_WIDTH, DEFAULT_HALF_WIDTH, boundary="neumann")
    if grid.ndim != width:
        raise ValueError(f"`grid` must have {width} axes, one for each feature of the state, found {grid.ndim}")
    points = np.stack([x.ravel() for x in grid.coordinates])
    outputs = read_out(net, points) if transform is None else np.asarray(transform(read_out(net, points)), float)
    if outputs.ndim != 2 or len(outputs) != points.shape[1]:
        raise ValueError(f"`transform` must return (points, values) = ({points.shape[1]}, n), found {outputs.shape}")
    sampled = velocity.sample(grid)
    upwind, spread = Upwind(grid, order), laplacian(grid, 4 if order == 3 else 2)
    function, args = (None, (sampled(0.0),)) if velocity.is_constant else (sampled, ())
    right_hand_side = TransportRHS(upwind, spread, function, check_steps, "network_pde", direction=-1.0)
    terminal, span = outputs.T.reshape(-1, *grid.shape), (velocity.end, 0.0)
    return ODE(right_hand_side, terminal, span, (*args, -0.5 * sigma**2), trace=velocity.is_constant)


def read_out(net: Net, y: np.ndarray) -> np.ndarray:
    """The outputs (points, outputs) of a net for states (width, points) at its end."""
    chain = net.design.readout
    if chain is None:
        return y.T
    weights = {name: net.weights[f"readout.{name}"] for name in chain.parameters}
    return reference.evaluate(chain, weights, 0.0, y).T
