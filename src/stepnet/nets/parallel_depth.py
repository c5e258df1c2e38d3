"""Nets parallel in depth: the steps of each block by multigrid, forward and in reverse.

Coarse steps are steps of the same block, with its weights, as functions of depth, evaluated at their times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.nets.derivatives import NetGradient
from stepnet.nets.design import Block
from stepnet.nets.mgrit import MGRIT, Advance, Carrier, Convergence, Multigrid
from stepnet.nets.net import Net
from stepnet.nets.validation import evaluate_loss, require_function
from stepnet.records import show_fields
from stepnet.schemes.step_program import build_long_window, build_window
from stepnet.validation import check, validate_flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.engines.numba_engine import NetStage

TWO_LEVELS = MGRIT()
PARTIAL_SUMS = 8  # of the gradient of weights: a constant, so that sums do not depend on threads


@dataclass(frozen=True, eq=False)
class ParallelForward:
    """Outputs of a net whose depth was run in parallel.

    Parameters
    ----------
    outputs : array
    states : tuple of arrays
        The states of each block before its first step and after each interval, `(points, batch, width)`.
    convergence : tuple of Convergence
        One for each block.
    error : float
        |outputs - serial outputs| / |serial outputs|; NaN if not requested.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=16)
    >>> bool(nets.mgrit_forward(net, [[1.0, 2.0]], is_compared=True).error < 1e-10)
    True
    """

    outputs: np.ndarray
    states: tuple[np.ndarray, ...]
    convergence: tuple[Convergence, ...]
    error: float

    __repr__ = show_fields


@dataclass(frozen=True, eq=False)
class ParallelGradient:
    """A gradient through a net whose depth was run in parallel.

    Parameters
    ----------
    gradient : NetGradient
    forward, adjoint : tuple of Convergence
        One for each block, in order.
    error : float
        |gradient - serial gradient| / |serial gradient| with respect to the weights; NaN if not requested.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=16)
    >>> loss = lambda z: (0.5 * float((z**2).sum()), z)
    >>> bool(nets.mgrit_gradient(net, [[1.0, 2.0]], loss, is_compared=True).error < 1e-8)
    True
    """

    gradient: NetGradient
    forward: tuple[Convergence, ...]
    adjoint: tuple[Convergence, ...]
    error: float

    __repr__ = show_fields


@check(is_compared=validate_flag)
def mgrit_forward(
    net: Net, x: ArrayLike, mgrit: MGRIT = TWO_LEVELS, *, is_compared: bool = False, carrier: Carrier | None = None
) -> ParallelForward:
    """Compute the outputs of a net, with the steps of its blocks run in parallel.

    Parameters
    ----------
    net : Net
    x : array_like
        Inputs `(batch, ...)`.
    mgrit : MGRIT, optional
    is_compared : bool
        Whether to run the net serially as well, to report the error.
    carrier : callable, optional
        `carrier(function, *lists)` returns the values of a function at all entries of lists, in order: by default by
        the threads of the net.  It may use processes, each of which computes a part and gathers all values.

    Returns
    -------
    ParallelForward

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.mgrit_forward(nets.resnet(2, 1, width=3, steps=16), [[1.0, 2.0]]).outputs.shape
    (1, 1)
    """
    run = _ParallelRun(net, mgrit, carrier)
    outputs = net._layout_out.restore(run.forward(net._inputs("x", x)))
    error = _measure_error(outputs, net(x)) if is_compared else float("nan")
    return ParallelForward(outputs, run.features(), run.convergence("forward"), error)


@check(is_compared=validate_flag)
def mgrit_gradient(
    net: Net, x: ArrayLike, loss: Callable[..., Any], mgrit: MGRIT = TWO_LEVELS, *, is_compared: bool = False,
    carrier: Carrier | None = None,
) -> ParallelGradient:  # fmt: skip
    """Compute the gradient of a loss of a net's outputs, with the steps of its blocks run in parallel.

    Arguments are those of `mgrit_forward`; `loss(outputs)` returns (value, gradient with respect to the outputs).

    Parameters
    ----------
    net, x, mgrit, is_compared, carrier
        As in `mgrit_forward`.
    loss : callable
        `loss(outputs)` returns (value, gradient with respect to the outputs).

    Returns
    -------
    ParallelGradient

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.resnet(2, 1, width=3, steps=16)
    >>> loss = lambda z: (0.5 * float((z**2).sum()), z)
    >>> nets.mgrit_gradient(net, [[1.0, 2.0]], loss).gradient.theta.shape == net.theta.shape
    True
    """
    require_function(loss)
    run, flat, given = _ParallelRun(net, mgrit, carrier), net._inputs("x", x), np.asarray(x)
    outputs = net._layout_out.restore(run.forward(flat))
    value, y_bar = evaluate_loss(loss, outputs)
    theta_bar, x_bar = run.reverse(net._layout_out.flatten(y_bar))
    gradient = NetGradient(value, theta_bar, net._layout_in.restore(x_bar, given.shape), outputs, net.design)
    error = _measure_error(theta_bar, net.gradient(x, loss).theta) if is_compared else float("nan")
    return ParallelGradient(gradient, run.convergence("forward"), run.convergence("adjoint"), error)


def _measure_error(found: np.ndarray, serial: np.ndarray) -> float:
    distance, size = np.linalg.norm(found - serial), np.linalg.norm(serial)
    return float(distance / size if size else distance)


class _ParallelRun:
    """The stages of a net in order: chains serially, blocks in parallel."""

    def __init__(self, net: Net, mgrit: MGRIT, carrier: Carrier | None):
        _check(net, mgrit, carrier)
        execution = net._execution
        carrier = carrier or execution.map_over
        self.theta_bar, self._batch = np.zeros_like(net.theta), 0
        self.parts: list[_Block | _Chain] = []
        places = zip(execution.split_parameters(net.theta), execution.split_parameters(self.theta_bar), strict=True)
        for (_, record), stage, (theta, bar) in zip(net.design.stages(), execution.stages, places, strict=True):
            if isinstance(record, Block):
                self.parts.append(_Block(record, mgrit, carrier, theta, bar))
            else:
                self.parts.append(_Chain(stage, theta, bar))

    def forward(self, x: np.ndarray) -> np.ndarray:
        from stepnet.nets.execution import SINGLE_THREAD, tile, untile

        y, self._batch = tile(x), len(x)
        with SINGLE_THREAD:
            for part in self.parts:
                y = part.forward(y, self._batch)
        return untile(y, self._batch)

    def reverse(self, y_bar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from stepnet.nets.execution import SINGLE_THREAD, tile, untile

        bar = tile(y_bar)
        with SINGLE_THREAD:
            for part in reversed(self.parts):
                bar = part.reverse(bar)
        return self.theta_bar, untile(bar, self._batch)

    @property
    def _blocks(self) -> list[_Block]:
        return [part for part in self.parts if isinstance(part, _Block)]

    def features(self) -> tuple[np.ndarray, ...]:
        from stepnet.nets.execution import untile

        states = ([block.steps.state(y) for y in block.points] for block in self._blocks)
        return tuple(np.stack([untile(y, self._batch) for y in each]) for each in states)

    def convergence(self, way: str) -> tuple[Convergence, ...]:
        return tuple(block.convergence[way] for block in self._blocks)


def _check(net: Net, mgrit: MGRIT, carrier: Carrier | None) -> None:
    for name, value, kind in (("net", net, Net), ("mgrit", mgrit, MGRIT)):
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be of the type {kind.__name__}, found {type(value).__name__}")
    if carrier is not None and not callable(carrier):
        raise TypeError(f"`carrier` must be callable, as `map` is, found {type(carrier).__name__}")
    for block in net.design.blocks:
        mgrit.steps(block.steps)
        n_opening = block.scheme_program.opening.steps
        if mgrit.coarsening < n_opening:
            raise ValueError(
                f"`mgrit` must have a coarsening of {n_opening} or more for {block.scheme.name!r}, "
                f"whose first steps are those of another scheme, found {mgrit.coarsening}"
            )


class _Chain:
    """An opening layer, join or readout."""

    def __init__(self, stage: NetStage, theta: np.ndarray, theta_bar: np.ndarray):
        self.stage, self.theta, self.theta_bar = stage, theta, theta_bar

    def forward(self, x: np.ndarray, batch: int) -> np.ndarray:
        from stepnet.nets.execution import sweep

        self._sweep = sweep(self.stage, self.theta, self.theta_bar, x, "all")
        return next(self._sweep)

    def reverse(self, y_bar: np.ndarray) -> np.ndarray:
        return self._sweep.send(y_bar)


class _OneStep:
    """The steps of a block on all levels, and their pullbacks."""

    def __init__(self, block: Block, counts: list[int], dtype: np.dtype):
        from stepnet.nets.execution import build_stage

        self.stages = [build_stage(replace_steps(block, block.scheme, n), dtype) for n in counts]

    def begin(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The value that steps act on, from the initial state of the block."""
        return y

    def state(self, y: np.ndarray) -> np.ndarray:
        """The state of the block, or its gradient, from the value that steps act on."""
        return y

    def begin_bar(self, y_bar: np.ndarray) -> np.ndarray:
        """The gradient of the last value that steps act on, from that of the state."""
        return y_bar

    def advance(self, theta: np.ndarray, level: int, start: int, stop: int, y: np.ndarray) -> np.ndarray:
        return self.stages[level].span(theta, y, start, stop)

    def pull(
        self,
        theta: np.ndarray,
        theta_bar: np.ndarray,
        level: int,
        start: int,
        stop: int,
        y: np.ndarray,
        bar: np.ndarray,
    ) -> np.ndarray:
        """Pull `bar` back over steps that begin at y; the gradients of weights are added to `theta_bar`."""
        return self.stages[level].span_pullback(theta, theta_bar, y, bar, start, stop)


class _Window:
    """The same for a multistep scheme, whose steps act on a window of states, the latest first.

    The states of a window are one step apart on all levels.  Coarse steps are those of the scheme if it defines any,
    otherwise those of its starting procedure, applied to each state.  The first interval begins with the starting
    procedure.  Arrays are `(tiles, states * features, TILE)`.
    """

    def __init__(self, block: Block, counts: list[int], dtype: np.dtype):
        from stepnet.engines.numba_engine import NetStage
        from stepnet.nets.execution import build_stage

        scheme, self.n, self.started = block.scheme, block.scheme.n_steps, block.scheme_program.opening.steps
        scheme_programs = [build_window(scheme), *(build_long_window(scheme, counts[0] // n) for n in counts[1:])]
        self.whole = [
            None if each is None else NetStage(block.field, each, n, block.length, block.depth, dtype)
            for n, each in zip(counts, scheme_programs, strict=True)
        ]
        self.starters = [build_stage(replace_steps(block, scheme.starter, n), dtype) for n in counts]

    def begin(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """A window with the first states mirrored in time, used only for initial guesses."""
        early = self._compute_starting_states(theta, y)
        return np.concatenate([y, *(2 * y - each for each in early[-2::-1])], axis=1)

    def state(self, y: np.ndarray) -> np.ndarray:
        return y[:, : y.shape[1] // self.n]

    def begin_bar(self, y_bar: np.ndarray) -> np.ndarray:
        return np.concatenate((y_bar, *[np.zeros_like(y_bar)] * (self.n - 1)), axis=1)

    def advance(self, theta: np.ndarray, level: int, start: int, stop: int, y: np.ndarray) -> np.ndarray:
        if level == start == 0:
            start, y = self.started, np.concatenate(self._compute_starting_states(theta, self.state(y)), axis=1)
        whole = self.whole[level]
        if whole is None:
            return self.starters[level].span(theta, self._split_window(y), start, stop).reshape(y.shape)
        return whole.span(theta, y, start, stop)

    def pull(
        self,
        theta: np.ndarray,
        theta_bar: np.ndarray,
        level: int,
        start: int,
        stop: int,
        y: np.ndarray,
        bar: np.ndarray,
    ) -> np.ndarray:
        whole = self.whole[level]
        if whole is None:
            apart = self._split_window(y), self._split_window(bar)
            return self.starters[level].span_pullback(theta, theta_bar, *apart, start, stop).reshape(y.shape)
        if level or start:
            return whole.span_pullback(theta, theta_bar, y, bar, start, stop)
        first = self.state(y)
        window = np.concatenate(self._compute_starting_states(theta, first), axis=1)
        bar = whole.span_pullback(theta, theta_bar, window, bar, self.started, stop)
        *later, total = np.split(bar, self.n, axis=1)
        for count, each in zip(range(self.started, 0, -1), later, strict=True):
            total = total + self.starters[0].span_pullback(theta, theta_bar, first, each, 0, count)
        return self.begin_bar(total)

    def _compute_starting_states(self, theta: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """The states that the starting procedure computes from the first one, the latest first."""
        return [self.starters[0].span(theta, y, 0, count) for count in range(self.started, 0, -1)] + [y]

    def _split_window(self, y: np.ndarray) -> np.ndarray:
        """The states of a window as separate tiles."""
        return np.ascontiguousarray(y).reshape(len(y) * self.n, -1, y.shape[2])


def replace_steps(block: Block, scheme: Any, steps: int) -> Block:
    """The same field and weights with other steps."""
    return Block(block.field, scheme, steps, block.length, block.depth)


class _Block:
    """The states of a block at the ends of intervals, and their gradients."""

    def __init__(self, block: Block, mgrit: MGRIT, carrier: Carrier, theta: np.ndarray, theta_bar: np.ndarray):
        steps = _Window if block.scheme_program.opening.steps else _OneStep
        self.counts = mgrit.steps(block.steps)
        self.steps: _OneStep | _Window = steps(block, self.counts, theta.dtype)
        self.mgrit, self.carrier, self.theta, self.theta_bar = mgrit.within(theta.dtype), carrier, theta, theta_bar
        self.points: list[np.ndarray] = []
        self.convergence: dict[str, Convergence] = {}

    def forward(self, x: np.ndarray, batch: int) -> np.ndarray:
        from stepnet.nets.execution import untile

        self._norm = lambda y: float(np.linalg.norm(untile(y, batch)))
        self.points = self._solve("forward", self._advance, self.steps.begin(self.theta, x))
        return self.steps.state(self.points[-1])

    def reverse(self, y_bar: np.ndarray) -> np.ndarray:
        bars = self._solve("adjoint", self._pull, self.steps.begin_bar(y_bar))[::-1]
        n = len(bars) - 1
        shares = [range(n)[i::PARTIAL_SUMS] for i in range(min(n, PARTIAL_SUMS))]
        for each in self.carrier(partial(self._weights_gradient, bars), shares):
            self.theta_bar += each
        return self.steps.state(bars[0])

    def _solve(self, way: str, advance: Advance, start: np.ndarray) -> list[np.ndarray]:
        grid = Multigrid(self.mgrit, self.counts[0], advance, self.carrier, self._norm)
        points, self.convergence[way] = grid.solve(start)
        return points

    def _advance(self, level: int, first: int, count: int, y: np.ndarray) -> np.ndarray:
        return self.steps.advance(self.theta, level, first, first + count, y)

    def _pull(self, level: int, first: int, count: int, y_bar: np.ndarray) -> np.ndarray:
        """Steps of the adjoint, numbered from the end, linearised at the states of the forward run."""
        stop = self.counts[level] - first
        start, m = stop - count, self.mgrit.coarsening
        y = self.points[start * m**level // m]
        return self.steps.pull(self.theta, self._zeros(), level, start, stop, y, y_bar)

    def _weights_gradient(self, bars: list[np.ndarray], share: range) -> np.ndarray:
        """The gradient of the weights from some intervals."""
        theta_bar, m = self._zeros(), self.mgrit.coarsening
        for i in share:
            self.steps.pull(self.theta, theta_bar, 0, i * m, i * m + m, self.points[i], bars[i + 1])
        return theta_bar

    def _zeros(self) -> np.ndarray:
        """Zeros of the size of the weights; not by `zeros_like`, which would touch memory that no step uses."""
        return np.zeros(self.theta.shape, self.theta.dtype)
