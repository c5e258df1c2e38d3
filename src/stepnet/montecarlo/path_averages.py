"""Averages over blocks of paths, until a number of paths or a target error is reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from stepnet.montecarlo.linear_controls import BrownianEnd, LinearisedEnd
from stepnet.montecarlo.moments import UNIT, PathMoments, find_quantile
from stepnet.montecarlo.path_functional import (
    GROUP,
    MOST_NUMBERS,
    PathFunctional,
    SampledValues,
    count_threads,
    sample,
)
from stepnet.montecarlo.quasi import SobolPaths

PILOT = 1024  # paths for the first estimate of the variance
MOST_ROUNDS = 20
SAFETY = 1.05  # factor of the number of paths, because the variance is an estimate
MOST_POINTS = 512  # of a block


class Target(NamedTuple):
    """The number of paths, or the half-width of the interval with a limit for the number of paths."""

    paths: int
    error: float | None
    confidence: float
    max_paths: int


class Sampling(NamedTuple):
    """Steps of a path, threads, and a function that is called with the number of paths done."""

    steps: int
    workers: int | None
    show: Callable[[int], Any]

    @property
    def most_numbers(self) -> int:
        """The largest number of entries in the states of a block of paths."""
        return MOST_NUMBERS * count_threads(self.workers)


class Average(NamedTuple):
    """Value, standard error and half-width of the interval for each point, and the paths from each point."""

    value: np.ndarray
    standard_error: np.ndarray
    half_width: np.ndarray
    paths: int


def split_points(functional: PathFunctional, points: np.ndarray, most: int) -> list[slice]:
    """Divide points into blocks, each run with a unit of paths per point, within a maximum number of entries."""
    size = min(MOST_POINTS, max(1, most // (UNIT * functional.size)))
    return [slice(first, min(first + size, len(points))) for first in range(0, len(points), size)]


@dataclass
class PathSums:
    """Running sums over paths from all points; `functionals` are one, or two with opposite noise.

    `control` is a function of the end state, or linear in W; its means are `control_means` (points, number).
    """

    functionals: tuple[PathFunctional, ...]
    points: np.ndarray
    how: Sampling
    control: Any = None
    control_means: np.ndarray | None = None
    rung: str = ""
    reason: str = ""
    done: int = 0
    moments: PathMoments = field(init=False)
    power: float = 2.0  # the number of paths for an error grows like error^-power
    least_power: float = 2.0

    def __post_init__(self) -> None:
        n_controls = 0 if self.control_means is None else self.control_means.shape[1]
        self.moments = PathMoments(len(self.points), n_controls)

    @property
    def n_points(self) -> int:
        return len(self.points)

    @property
    def functional(self) -> PathFunctional:
        return self.functionals[0]

    @property
    def is_linear(self) -> bool:
        """Whether the control is a function of W, not of the end state."""
        return isinstance(self.control, (BrownianEnd, LinearisedEnd))

    @property
    def exploded(self) -> int:
        return self.moments.exploded

    @property
    def per_sample(self) -> int:
        """Paths of a sample: one, or a pair."""
        return len(self.functionals)

    def extend(self, paths: int) -> None:
        """Run paths until their number from each point is reached."""
        last = -(-paths // self.per_sample)
        parts = split_points(self.functionals[0], self.points, self.how.most_numbers)
        numbers = self.functionals[0].size * (parts[0].stop - parts[0].start)
        if self.is_linear:
            numbers = max(numbers, self.control.entries)
        block = max(UNIT, self.how.most_numbers // numbers // UNIT * UNIT)
        while self.done < last:
            count = min(block, last - self.done)
            for part in parts:
                self._add(part, count)
                self.how.show((part.stop - part.start) * count * self.per_sample)
            self.done += count

    def _add(self, part: slice, count: int) -> None:
        first, own = self.functionals[0].sde.path + self.done, None if self.is_linear else self.control
        found = [
            sample(each, self.points[part], first, count, self.how.steps, self.how.workers, control=own)
            for each in self.functionals
        ]
        self.rung, self.reason = found[0].rung, found[0].reason
        values = np.mean([each.values for each in found], axis=0)
        self.moments.add(part, values, self._find_controls(found, part, first, count))

    def _find_controls(self, found: list[SampledValues], part: slice, first: int, count: int) -> np.ndarray | None:
        if self.control_means is None:
            return None
        if self.is_linear:
            return np.asarray(self.control.evaluate(part, first, count))
        return np.mean([each.controls for each in found if each.controls is not None], axis=0)[:, :, None]

    def average(self, confidence: float) -> Average:
        """The estimates from the paths so far."""
        value, variance, freedom = self.moments.estimate(self.control_means)
        error = np.sqrt(variance / np.maximum(self.moments.count, 1))
        return Average(value, error, find_quantile(confidence, freedom) * error, self.done * self.per_sample)

    @property
    def is_usable(self) -> bool:
        """Whether every point has enough paths for an estimate with an error."""
        return bool((self.moments.count > 1 + (self.moments.means.shape[1] - 1)).all())

    def round_up(self, paths: float) -> int:
        """A number of paths that can be run: whole units."""
        unit = UNIT * self.per_sample
        return int(-(-paths // unit)) * unit


@dataclass
class QuasiSums:
    """Running sums over scrambled Sobol sequences, one for each replicate."""

    functional: PathFunctional
    points: np.ndarray
    how: Sampling
    n_components: int
    replicates: int
    rung: str = ""
    reason: str = ""
    done: int = 0
    sums: list[PathMoments] = field(init=False)
    sequences: list[SobolPaths] = field(init=False)
    power: float = 1.0  # a sequence is doubled until it suffices
    least_power: float = 2.0 / 3.0  # errors fall like paths^-1.5 at best

    @property
    def n_points(self) -> int:
        return len(self.points)

    def __post_init__(self) -> None:
        t0, t1 = self.functional.sde.t_span
        self.sums = [PathMoments(len(self.points)) for _ in range(self.replicates)]
        numbers = self.how.steps, self.n_components, (t1 - t0) / self.how.steps
        self.sequences = [SobolPaths(self.functional.sde.seed, r, *numbers) for r in range(self.replicates)]

    @property
    def exploded(self) -> int:
        return sum(each.exploded for each in self.sums)

    def extend(self, paths: int) -> None:
        """Run paths until their number from each point is reached; that of a replicate is a power of two."""
        last = self.round_up(paths) // self.replicates
        while self.done < last:
            count = max(GROUP, self.done)  # doubles the sequence
            for sums, sequence in zip(self.sums, self.sequences, strict=True):
                self._add(sums, sequence, count)
            self.done += count

    def _add(self, sums: PathMoments, sequence: SobolPaths, count: int) -> None:
        parts = split_points(self.functional, self.points, self.how.most_numbers)
        numbers = max(self.functional.size * (parts[0].stop - parts[0].start), self.how.steps * self.n_components)
        block = max(UNIT, self.how.most_numbers // numbers // UNIT * UNIT)
        spare = self.functional.sde.n_components - self.n_components  # of entries without noise
        for at in range(0, count, block):
            increments = np.pad(sequence.draw(min(block, count - at)), ((0, 0), (0, 0), (0, spare)))
            for part in parts:
                found = sample(
                    self.functional, self.points[part], 0, len(increments), self.how.steps, self.how.workers, increments
                )
                self.rung, self.reason = found.rung, found.reason
                sums.add(part, found.values)
                self.how.show((part.stop - part.start) * len(increments))

    def average(self, confidence: float) -> Average:
        """The mean of the replicates, and its error by their spread."""
        means = np.array([each.means[:, 0] for each in self.sums])
        error = means.std(axis=0, ddof=1) / np.sqrt(self.replicates)
        value = means[0] + (means - means[0]).mean(axis=0)
        quantile = find_quantile(confidence, self.replicates - 1)
        return Average(value, error, quantile * error, self.done * self.replicates)

    @property
    def is_usable(self) -> bool:
        return self.done > 0

    def round_up(self, paths: float) -> int:
        """A number of paths that can be run: a power of two for each replicate."""
        each = max(GROUP, int(-(-paths // self.replicates)))
        return self.replicates << (each - 1).bit_length()


class Sums(Protocol):
    """Running sums that give an estimate for each start point."""

    rung: str
    reason: str
    how: Sampling
    power: float
    least_power: float

    @property
    def functional(self) -> PathFunctional: ...
    @property
    def n_points(self) -> int: ...
    @property
    def exploded(self) -> int: ...
    @property
    def is_usable(self) -> bool: ...
    def extend(self, paths: int) -> None: ...
    def average(self, confidence: float) -> Average: ...
    def round_up(self, paths: float) -> int: ...


def run_to_target(sums: Sums, target: Target) -> None:
    """Run the requested paths; for a target error, a pilot run first, then as many paths as its variance requires."""
    if target.error is None:
        sums.extend(target.paths)
        return
    error, began, wanted = target.error, time.perf_counter(), sums.round_up(min(PILOT, target.max_paths))
    for _ in range(MOST_ROUNDS):
        sums.extend(wanted)
        found = sums.average(target.confidence)
        ratio = float(np.max(found.half_width)) / error
        if not ratio > 1.0 or sums.exploded:
            return
        wanted = sums.round_up(max(SAFETY * found.paths * ratio**sums.power, found.paths + 1))
        if isinstance(sums, QuasiSums):
            wanted = 2 * found.paths
        if max(wanted, found.paths * ratio**sums.least_power) > target.max_paths:
            _refuse(sums, found, ratio, target, time.perf_counter() - began)


def _refuse(sums: Sums, found: Average, ratio: float, target: Target, seconds: float) -> None:
    needed = found.paths * ratio**sums.power
    cost = needed * sums.n_points * sums.how.steps
    raise ValueError(
        f"`error` = {target.error:g} would take about {needed:.2g} paths from each start point, {cost:.2g} steps and "
        f"{seconds * needed / found.paths:.2g} seconds in all, and `max_paths` is {target.max_paths:g}; {found.paths} "
        f"paths reach {found.half_width.max():.2g}.  Use a larger `error`, allow more paths, or reduce the variance "
        f"(`sampling`, `control`)"
    )
