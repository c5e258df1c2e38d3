"""Multilevel Monte Carlo with random levels: no discretisation error remains.

E[P] = E[P_0] + sum_l E[P_l - P_(l-1)] = E[P_0] + E[(P_N - P_(N-1)) / q_N] for a random level N with the probabilities
q_l.  C. Rhee & P. W. Glynn (2015), Oper. Res. 63:1026.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any

import numpy as np

from stepnet.errors import Interrupted, SolveFailed
from stepnet.montecarlo.coupled_paths import Coupling, LevelSums, extend
from stepnet.montecarlo.expectations import COMPLETE, open_bar
from stepnet.montecarlo.level_choice import COUPLINGS, MultilevelRun, build_run, describe_level, warn_of_levels
from stepnet.montecarlo.moments import UNIT, find_quantile
from stepnet.montecarlo.multilevel_estimate import MultilevelEstimate
from stepnet.problem import SDE
from stepnet.records import explain_arguments, validate_thread_count
from stepnet.schemes.capabilities import find_strong_order
from stepnet.validation import check, function, instance, one_of, optional, real, whole

DECAY = 1.5  # of log2 q_l: the geometric mean of variances 2^(-2 l) and costs 2^l needs it
MOST_LEVEL = 20  # more doublings than these have the probability 2^-30
PILOT = 4096
SAFETY = 1.05  # of the numbers of samples, because variances are estimates
KNOWN = 16  # minimum number of samples of a level that is listed
PROBABILITIES = 2.0 ** (-DECAY * np.arange(1, MOST_LEVEL + 1))
PROBABILITIES /= PROBABILITIES.sum()


@explain_arguments()
@check(
    sde=instance(SDE, what="an `SDE`"),
    error=real("[1e-100, inf)"),
    potential=optional(function),
    source=optional(function),
    coupling=one_of(*COUPLINGS),
    steps=whole(1, 2**12),
    confidence=real("(0, 1)"),
    max_cost=real("(0, inf)"),
    workers=optional(lambda name, value: validate_thread_count(value, name)),
)
def randomised_multilevel(
    sde: SDE,
    terminal: Callable[..., Any],
    x: Any = None,
    *,
    error: float,
    potential: Callable[..., Any] | None = None,
    source: Callable[..., Any] | None = None,
    scheme: Any = None,
    coupling: str = "same path",
    steps: int = 2,
    confidence: float = 0.95,
    max_cost: float = 1e11,
    workers: int | None = None,
    progress: bool = False,
) -> MultilevelEstimate:
    """Estimate the expectation of `feynman_kac` at one point without discretisation error.

    E[P] = E[P_0] + E[(P_N - P_(N-1)) / q_N], where P_l is the value with `steps` 2^l steps and N a random level up to
    20 with probabilities q_l proportional to 2^(-3 l / 2).  Variance and cost of a sample are finite where the
    differences have variances that fall faster than costs grow: for schemes with strong order 1, or with
    `coupling` = "antithetic", and a `terminal` function that is continuous.

    Parameters
    ----------
    sde, terminal, potential, source, workers, progress
        As in `feynman_kac`.
    x, coupling, steps, confidence, max_cost
        As in `multilevel`.
    error : float
        The standard error to reach; there is no discretisation error.  Pilot runs of 4096 samples estimate the
        variances.
    scheme : str or scheme, optional
        By default "milstein".

    Returns
    -------
    MultilevelEstimate
        With `bias` = 0: `interval` is that of the expectation itself.

    Raises
    ------
    SolveFailed
        If paths explode; `.solution` is the estimate from the others.
    Interrupted
        After Ctrl-C; `.solution` is the estimate so far.

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.randomised_multilevel(gbm, lambda y: y[0], error=2e-3)
    >>> abs(found.value - 1.05127) < 8e-3
    True
    """
    scheme = "milstein" if scheme is None else scheme
    run = build_run(sde, terminal, x, potential, source, scheme, coupling, steps, workers)
    own, noise = run.coupling.functional.scheme, run.coupling.functional.sde.noise
    if coupling == "same path" and find_strong_order(own, noise) < 1.0:
        raise ValueError(
            f"`scheme` = {own.name} has the strong order {find_strong_order(own, noise):g} for {noise} noise, and the "
            "variances of random levels need 1 at least; use milstein, or `coupling` = 'antithetic', or `multilevel`"
        )
    sums, began, is_interrupted = RandomisedSums(run.coupling), time.perf_counter(), False
    with open_bar(progress) as show, np.errstate(over="ignore", invalid="ignore"):
        try:
            sums.reach(error, max_cost, show)
        except KeyboardInterrupt:
            if not sums.kept.n_samples:
                raise
            sums, is_interrupted = sums.kept, True
    message = f"{sums.exploded} paths became NaN or infinite; use more `steps`" if sums.exploded else COMPLETE
    if is_interrupted:
        message = f"interrupted after {sums.n_samples} samples of random levels"
    found = _summarise(sums, run, confidence, time.perf_counter() - began, message)
    if is_interrupted:
        raise Interrupted(found)
    if message != COMPLETE:
        raise SolveFailed(found)
    warn_of_levels(found)
    return found


@dataclass
class RandomisedSums:
    """Sums over samples of the coarsest level, and over samples of random levels; `kept` are those of whole rounds."""

    coupling: Coupling
    levels: list[LevelSums] = field(default_factory=lambda: [LevelSums() for _ in range(MOST_LEVEL + 1)])
    n_samples: int = 0
    _kept: RandomisedSums | None = None

    @property
    def kept(self) -> RandomisedSums:
        """The sums before the round that is under way."""
        return self if self._kept is None else self._kept

    @property
    def exploded(self) -> int:
        return sum(each.exploded for each in self.levels)

    @property
    def cost(self) -> float:
        """Steps so far."""
        return sum(each.count * self.coupling.find_cost(level) for level, each in enumerate(self.levels))

    def reach(self, error: float, max_cost: float, show: Callable[[int], Any]) -> None:
        """Add samples until the standard error is reached."""
        wanted = PILOT, PILOT
        while True:
            self.extend(*wanted, show)
            if self.exploded or self.standard_error <= error:
                return
            wanted = self.find_samples(error)
            random_cost = float(PROBABILITIES @ [self.coupling.find_cost(level) for level in range(1, MOST_LEVEL + 1)])
            cost = wanted[0] * self.coupling.find_cost(0) + wanted[1] * random_cost
            if cost > max_cost:
                raise ValueError(
                    f"`error` = {error:g} would take about {cost:.2g} steps, and `max_cost` is {max_cost:g}; "
                    f"use a larger `error`, or allow the cost"
                )

    def extend(self, coarse: int, samples: int, show: Callable[[int], Any]) -> None:
        """Draw samples until these numbers of the coarsest level and of random levels are reached."""
        self._kept = RandomisedSums(self.coupling, copy.deepcopy(self.levels), self.n_samples)
        counts = np.array([each.count + each.exploded for each in self.levels])
        sde = self.coupling.functional.sde
        for unit in range(self.n_samples // UNIT, samples // UNIT):
            counts[1:] += np.random.default_rng([sde.seed, sde.path, unit]).multinomial(UNIT, PROBABILITIES)
        counts[0] = max(counts[0], coarse)
        for level, count in enumerate(counts.tolist()):
            extend(self.coupling, self.levels[level], level, count, show)
        self.n_samples, self._kept = max(self.n_samples, samples), None

    def find_samples(self, error: float) -> tuple[int, int]:
        """The numbers of samples that reach the error at the least cost, at least one unit more than there are."""
        variances = np.array([self.levels[0].variance, self.random_variance])
        random_cost = (self.cost - self.levels[0].count * self.coupling.find_cost(0)) / self.n_samples
        costs = np.array([self.coupling.find_cost(0), max(random_cost, self.coupling.find_cost(1))])
        ideal = SAFETY * np.sqrt(variances / costs) * np.sum(np.sqrt(variances * costs)) / error**2
        coarse, samples = (UNIT * ceil(each / UNIT) for each in ideal)
        return max(coarse, self.levels[0].count), max(samples, self.n_samples + UNIT)

    @property
    def value(self) -> float:
        return self.levels[0].mean + self._sum(lambda each: each.mean, 1.0) / self.n_samples

    @property
    def random_variance(self) -> float:
        """The variance of (P_N - P_(N-1)) / q_N."""
        mean = self._sum(lambda each: each.mean, 1.0) / self.n_samples
        square = self._sum(lambda each: each.variance + each.mean * each.mean, 2.0) / self.n_samples
        return float(np.maximum(0.0, square - mean * mean))  # also NaN

    @property
    def standard_error(self) -> float:
        coarse = self.levels[0]
        if not coarse.count:
            return float("nan")
        return sqrt(coarse.variance / coarse.count + self.random_variance / self.n_samples)

    def _sum(self, read: Callable[[LevelSums], float], power: float) -> float:
        """Over the samples of random levels, divided by a power of their probabilities."""
        pairs = zip(PROBABILITIES, self.levels[1:], strict=True)
        return float(sum(each.count * read(each) / q**power for q, each in pairs if each.count))


def _summarise(
    sums: RandomisedSums, run: MultilevelRun, confidence: float, seconds: float, message: str
) -> MultilevelEstimate:
    """The estimate, with the levels of which there are a few samples."""
    known = [each.count >= KNOWN for each in sums.levels]
    n_levels = known.index(False) if False in known else len(known)
    run.sums = sums.levels[: max(1, n_levels)]
    levels = tuple(describe_level(run, level) for level in range(len(run.sums)))
    value, error = sums.value, sums.standard_error
    half = float(find_quantile(confidence, sums.n_samples - 1)) * error
    rates = (*run.find_rates(), 1.0) if len(levels) > 2 else (float("nan"),) * 3
    last = levels[-1]
    plain = last.fine_variance * last.steps / (error * error) if error else 0.0
    return MultilevelEstimate(
        value, error, 0.0, error, (value - half, value + half), confidence, levels, *rates, sums.cost, plain, seconds,
        message,
    )  # fmt: skip
