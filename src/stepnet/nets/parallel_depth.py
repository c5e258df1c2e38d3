"""Nets parallel in depth: the steps of every block by multigrid, forward and back.

Long steps are those of the same block, with its weights, which are functions of depth, at their own times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepnet.nets.derivatives import NetGradient
from stepnet.nets.design import Block
from stepnet.nets.mgrit import MGRIT, Carrier, Convergence, Multigrid
from stepnet.nets.net import Net

TWO_LEVELS = MGRIT()
PARTIAL_SUMS = 8  # of the gradient of weights: a number of its own, so that sums do not depend on threads


@dataclass(frozen=True, eq=False)
class ParallelForward:
    """Outputs of a net whose depth was run in parallel.

    Parameters
    ----------
    outputs : array
    states : tuple of arrays
        Of every block before its first step and after each interval, `(points, batch, width)`.
    convergence : tuple of Convergence
        Of every block.
    error : float
        |outputs - serial outputs| / |serial outputs|; NaN if it was not asked for.
    """

    outputs: np.ndarray
    states: tuple[np.ndarray, ...]
    convergence: tuple[Convergence, ...]
    error: float


@dataclass(frozen=True, eq=False)
class ParallelGradient:
    """A gradient through a net whose depth was run in parallel.

    Parameters
    ----------
    gradient : NetGradient
    forward, adjoint : tuple of Convergence
        Of every block, in the order of the blocks.
    error : float
        |gradient - serial gradient| / |serial gradient| with respect to the weights; NaN if it was not asked for.
    """

    gradient: NetGradient
    forward: tuple[Convergence, ...]
    adjoint: tuple[Convergence, ...]
    error: float


def mgrit_forward(
    net: Net, x, mgrit: MGRIT = TWO_LEVELS, *, is_compared: bool = False, carrier: Carrier | None = None
) -> ParallelForward:
    """Outputs of a net, with the steps of its blocks run in parallel.

    Parameters
    ----------
    net : Net
        Of one-step schemes.
    x : array_like
        Inputs `(batch, ...)`.
    mgrit : MGRIT, optional
    is_compared : bool
        Whether the net is also run step by step, to report the error.
    carrier : callable, optional
        `carrier(function, *lists)` gives the values of a function at all entries of lists, in order: the threads of
        the net by default.  Processes can stand in: each computes a share, and all gather the values.
    """
    run = _Run(net, mgrit, carrier)
    outputs = run.forward(net._inputs("x", x))
    error = _error(outputs, net(x)) if is_compared else float("nan")
    return ParallelForward(outputs, run.features(), run.convergence("forward"), error)


def mgrit_gradient(
    net: Net, x, loss: Callable, mgrit: MGRIT = TWO_LEVELS, *, is_compared: bool = False,
    carrier: Carrier | None = None,
) -> ParallelGradient:  # fmt: skip
    """The gradient of a loss of a net's outputs, with the steps of its blocks run in parallel, forward and back.

    Arguments are those of `mgrit_forward`; `loss(outputs)` gives (value, gradient with respect to the outputs).
    """
    run, flat, given = _Run(net, mgrit, carrier), net._inputs("x", x), np.asarray(x)
    outputs = run.forward(flat)
    value, y_bar = net._loss_at(loss, outputs)
    theta_bar, x_bar = run.reverse(y_bar)
    gradient = NetGradient(value, theta_bar, x_bar.reshape(given.shape), outputs, net.design)
    error = _error(theta_bar, net.gradient(x, loss).theta) if is_compared else float("nan")
    return ParallelGradient(gradient, run.convergence("forward"), run.convergence("adjoint"), error)


def _error(found: np.ndarray, serial: np.ndarray) -> float:
    distance, size = np.linalg.norm(found - serial), np.linalg.norm(serial)
    return float(distance / size if size else distance)


class _Run:
    """The stages of a net in turn: chains as they are, blocks in parallel."""

    def __init__(self, net: Net, mgrit: MGRIT, carrier: Carrier | None):
        _check(net, mgrit, carrier)
        execution = net._execution
        carrier = carrier or execution.over
        self.theta_bar, self._batch = np.zeros_like(net.theta), 0
        self.parts: list[_Block | _Chain] = []
        places = zip(execution.own(net.theta), execution.own(self.theta_bar), strict=True)
        for (_, record), stage, (theta, bar) in zip(net.design.stages(), execution.stages, places, strict=True):
            if isinstance(record, Block):
                self.parts.append(_Block(record, mgrit, carrier, theta, bar))
            else:
                self.parts.append(_Chain(stage, theta, bar))

    def forward(self, x: np.ndarray) -> np.ndarray:
        from stepnet.nets.execution import SINGLE_THREAD, tiled, untiled

        y, self._batch = tiled(x), len(x)
        with SINGLE_THREAD:
            for part in self.parts:
                y = part.forward(y, self._batch)
        return untiled(y, self._batch)

    def reverse(self, y_bar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from stepnet.nets.execution import SINGLE_THREAD, tiled, untiled

        bar = tiled(y_bar)
        with SINGLE_THREAD:
            for part in reversed(self.parts):
                bar = part.reverse(bar)
        return self.theta_bar, untiled(bar, self._batch)

    @property
    def _blocks(self) -> list[_Block]:
        return [part for part in self.parts if isinstance(part, _Block)]

    def features(self) -> tuple[np.ndarray, ...]:
        from stepnet.nets.execution import untiled

        return tuple(np.stack([untiled(y, self._batch) for y in block.points]) for block in self._blocks)

    def convergence(self, way: str) -> tuple[Convergence, ...]:
        return tuple(block.convergence[way] for block in self._blocks)


def _check(net, mgrit, carrier) -> None:
    for name, value, kind in (("net", net, Net), ("mgrit", mgrit, MGRIT)):
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be of the type {kind.__name__}, found {type(value).__name__}")
    if carrier is not None and not callable(carrier):
        raise TypeError(f"`carrier` must be callable, as `map` is, found {type(carrier).__name__}")
    for block in net.design.blocks:
        mgrit.steps(block.steps)
        if block.motion.opening.steps:
            raise ValueError(
                f"`net` must be of one-step schemes to be parallel in depth, found {block.scheme.name!r}, whose steps "
                f"hold earlier ones a step apart that long steps do not have; take {block.scheme.starter.name!r}"
            )


class _Chain:
    """An opening, join or read-out."""

    def __init__(self, stage, theta: np.ndarray, theta_bar: np.ndarray):
        self.stage, self.theta, self.theta_bar = stage, theta, theta_bar

    def forward(self, x: np.ndarray, batch: int) -> np.ndarray:
        from stepnet.nets.execution import sweep

        self._sweep = sweep(self.stage, self.theta, self.theta_bar, x, "all")
        return next(self._sweep)

    def reverse(self, y_bar: np.ndarray) -> np.ndarray:
        return self._sweep.send(y_bar)


class _Block:
    """The steps of a block on all levels."""

    def __init__(self, block: Block, mgrit: MGRIT, carrier: Carrier, theta: np.ndarray, theta_bar: np.ndarray):
        from stepnet.nets.execution import stage_of

        levels = (Block(block.field, block.scheme, n, block.length, block.depth) for n in mgrit.steps(block.steps))
        self.stages = [stage_of(level, theta.dtype) for level in levels]
        self.mgrit, self.carrier, self.theta, self.theta_bar = mgrit, carrier, theta, theta_bar
        self.points: list[np.ndarray] = []
        self.convergence: dict[str, Convergence] = {}

    def forward(self, x: np.ndarray, batch: int) -> np.ndarray:
        from stepnet.nets.execution import untiled

        self._norm = lambda y: float(np.linalg.norm(untiled(y, batch)))
        self.points = self._solve("forward", self._advance, x)
        return self.points[-1]

    def reverse(self, y_bar: np.ndarray) -> np.ndarray:
        bars = self._solve("adjoint", self._pull, y_bar)[::-1]
        n = len(bars) - 1
        shares = [range(n)[i::PARTIAL_SUMS] for i in range(min(n, PARTIAL_SUMS))]
        for each in self.carrier(partial(self._weights_gradient, bars), shares):
            self.theta_bar += each
        return bars[0]

    def _solve(self, way: str, advance, start: np.ndarray) -> list[np.ndarray]:
        grid = Multigrid(self.mgrit, self.stages[0].n_steps, advance, self.carrier, self._norm)
        points, self.convergence[way] = grid.solve(start)
        return points

    def _advance(self, level: int, first: int, count: int, y: np.ndarray) -> np.ndarray:
        return self.stages[level].span(self.theta, y, first, first + count)

    def _pull(self, level: int, first: int, count: int, y_bar: np.ndarray) -> np.ndarray:
        """Steps of the adjoint are counted from the end; they are those of a level at the states of the forward run."""
        stop = self.stages[level].n_steps - first
        start, m = stop - count, self.mgrit.coarsening
        x = self.points[start * m**level // m]
        return self.stages[level].span_pullback(self.theta, self._zeros(), x, y_bar, start, stop)

    def _weights_gradient(self, bars: list[np.ndarray], share: range) -> np.ndarray:
        """Of some intervals."""
        theta_bar, m = self._zeros(), self.mgrit.coarsening
        for i in share:
            self.stages[0].span_pullback(self.theta, theta_bar, self.points[i], bars[i + 1], i * m, i * m + m)
        return theta_bar

    def _zeros(self) -> np.ndarray:
        """As long as the weights; not `zeros_like`, which would touch what no step touches."""
        return np.zeros(self.theta.shape, self.theta.dtype)
