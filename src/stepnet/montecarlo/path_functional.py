"""The random variable whose expectation is estimated: a functional of a path, evaluated for blocks of paths.

For a potential V, a source s and a terminal function u_T it is

    exp(Z(T)) u_T(y(T)) + S(T),   dZ = -V(t, y) dt,   dS = exp(Z) s(t, y) dt,

so that Z and S are two more entries of the state, and every stochastic scheme applies.  A path that leaves a domain
stops there, and the value at the boundary takes the place of the terminal function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from typing import Any

import numpy as np

from stepnet.ensembles.ensemble import count_usable_cores, solve_ensemble
from stepnet.events import Event
from stepnet.problem import SDE
from stepnet.solution import EnsembleSolution, Status

GROUP = 16  # consecutive paths that share their draws in the kernels
MOST_NUMBERS = 2**16  # in the states of a block of paths, for each thread: they fit into the second cache
VALID = (Status.COMPLETED, Status.EVENT)


def augment(sde: SDE, potential: Callable[..., Any] | None, source: Callable[..., Any] | None) -> SDE:
    """The equation with entries for the integrals of potential and source; itself if there are none."""
    if potential is None and source is None:
        return sde
    require_result(sde.drift, "`potential` and `source` need")
    f, g, shape, n = sde.drift, sde.diffusion, sde.y0.shape, sde.y0.size
    n_added = (potential is not None) + (source is not None)
    n_columns = 0 if sde.diffusion_shape == shape else sde.diffusion_shape[-1]

    def drift(t: float, z: Any, *args: Any) -> Any:
        y = z[:n].reshape(shape)
        added = []
        if potential is not None:
            added.append(-potential(t, y, *args))
        if source is not None:
            weight = np.exp(z[n]) if potential is not None else 1.0
            added.append(weight * source(t, y, *args))
        return np.concatenate([np.ravel(f(t, y, *args)), np.reshape(np.array(added), (n_added,))])

    def diffusion(t: float, z: Any, *args: Any) -> Any:
        found = g(t, z[:n].reshape(shape), *args)
        if n_columns:
            return np.concatenate([np.reshape(found, (n, n_columns)), np.zeros((n_added, n_columns))])
        return np.concatenate([np.ravel(found), np.zeros(n_added)])

    y0 = np.concatenate([sde.y0.ravel(), np.zeros(n_added)])
    return replace(sde, drift=drift, diffusion=diffusion, y0=y0)


def require_result(drift: Callable[..., Any], who: str) -> None:
    """Refuse functions that cannot be called in Python, or that fill their result in place."""
    names = list(signature(drift).parameters) if callable(drift) else []
    if not callable(drift) or (len(names) > 2 and names[2] in ("dy", "out")):
        raise TypeError(
            f"{who} a `drift(t, y, *args)` that is a Python function and returns its result, found {drift!r:.60}"
        )


def reflect(sde: SDE) -> SDE:
    """The equation for -W in place of W: the diffusion with the other sign."""
    g = sde.diffusion

    def diffusion(t: float, y: Any, *args: Any) -> Any:
        return -np.asarray(g(t, y, *args))

    return replace(sde, diffusion=diffusion)


def build_brownian(sde: SDE, m: int) -> SDE:
    """dB = dW: the first components of the Brownian path of an equation."""

    def rest(t: float, y: Any) -> Any:
        return 0.0 * y

    def drive(t: float, y: Any) -> Any:
        return 1.0 + 0.0 * y

    changes: dict[str, Any] = {"args": (), "noise": "diagonal", "calculus": "ito", "correction": 0.0, "trace": True}
    return replace(sde, drift=rest, diffusion=drive, y0=np.zeros(m), **changes)


def count_threads(workers: int | None) -> int:
    """The threads that a block of paths is meant for."""
    return count_usable_cores() if workers is None else workers


def draw_increments(sde: SDE, m: int, first: int, count: int, steps: int, workers: int | None = None) -> np.ndarray:
    """The increments of the first `m` components of Brownian paths over equal steps, (paths, steps, components)."""
    brownian = build_brownian(sde, m)
    times, paths = np.linspace(*brownian.t_span, steps + 1), first + np.arange(count)
    W = solve_ensemble(brownian, "euler_maruyama", paths=paths, steps=steps, save_at=times, workers=workers).y
    return np.diff(W, axis=1)


@dataclass(frozen=True)
class PathFunctional:
    """The functional of the paths of an equation: `end` of the end state, weighted by the added entries."""

    sde: SDE
    end: Callable[..., Any]
    terminal: Any
    shape: tuple[int, ...]
    has_potential: bool
    has_source: bool
    scheme: Any
    exits: Event | None = None
    boundary: Any = None

    @property
    def n(self) -> int:
        """Entries of the state, without the added ones."""
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Entries of the state."""
        return self.n + self.has_potential + self.has_source

    def read_out(self, found: EnsembleSolution) -> np.ndarray:
        """The values of paths, NaN for those that exploded."""
        states = found.y.reshape(len(found.y), -1)
        values = self.terminal(states[:, : self.n])
        if self.boundary is not None:
            left = np.array([status is Status.EVENT for status in found.status])
            values[left] = self.boundary(np.column_stack((states[left, : self.n], found.t_end[left])))
        if self.has_potential:
            values = np.exp(states[:, self.n]) * values
        if self.has_source:
            values = values + states[:, -1]
        if found.status != (Status.COMPLETED,) * len(states):
            values[[status not in VALID for status in found.status]] = np.nan
        return values

    def extend(self, points: np.ndarray) -> np.ndarray:
        """Flat start points (points, n) with zeros for the added entries."""
        return np.pad(points, ((0, 0), (0, self.size - self.n)))


@dataclass(frozen=True)
class SampledValues:
    """Values (points, paths) of a functional, NaN for paths that exploded, and how they were run.

    `controls` (points, paths) are the values of a function of the end state, if there is one.
    """

    values: np.ndarray
    controls: np.ndarray | None
    rung: str
    reason: str


def sample(
    functional: PathFunctional,
    points: np.ndarray,
    first: int,
    count: int,
    steps: int,
    workers: int | None = None,
    increments: np.ndarray | None = None,
    control: Any = None,
) -> SampledValues:
    """Evaluate the functional for paths `first` to `first + count` from each point.

    Members are ordered in groups of paths, each from all points, so that the points share the draws of a group.
    """
    n_groups, n_points = -(-count // GROUP), len(points)
    paths = np.arange(n_groups * GROUP).reshape(n_groups, 1, GROUP)
    paths = np.minimum(paths, count - 1) if increments is not None else paths + first
    members = np.broadcast_to(paths, (n_groups, n_points, GROUP)).ravel()
    starts = np.tile(np.repeat(functional.extend(points), GROUP, axis=0), (n_groups, 1))
    found = solve_ensemble(
        functional.sde,
        functional.scheme,
        y0=starts.reshape(-1, *functional.sde.y0.shape),
        paths=members,
        increments=increments,
        steps=steps,
        events=functional.exits if functional.exits is not None else (),
        workers=workers,
    )
    values = functional.read_out(found)

    def order(numbers: np.ndarray) -> np.ndarray:
        ordered = numbers.reshape(n_groups, n_points, GROUP).transpose(1, 0, 2).reshape(n_points, n_groups * GROUP)
        return np.ascontiguousarray(ordered[:, :count])

    states = found.y.reshape(len(members), -1)
    controls = None if control is None else order(control(states[:, : functional.n]))
    return SampledValues(order(values), controls, found.rung, found.reason)
