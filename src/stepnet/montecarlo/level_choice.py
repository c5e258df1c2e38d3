"""Multilevel Monte Carlo: numbers of levels and samples for a root mean square error.

M. B. Giles (2008), Oper. Res. 56:607, and (2015), Acta Numerica 24:259.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, hypot, sqrt
from typing import Any

import numpy as np

from stepnet.errors import Interrupted, MonteCarloWarning, SolveFailed
from stepnet.montecarlo.coupled_paths import PATHS_OF_A_LEVEL, Coupling, LevelSums, extend
from stepnet.montecarlo.expectations import COMPLETE, build_functional, open_bar, validate_points
from stepnet.montecarlo.moments import UNIT, find_quantile
from stepnet.montecarlo.multilevel_estimate import Level, MultilevelEstimate
from stepnet.problem import SDE
from stepnet.records import explain_arguments, validate_thread_count
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import find_weak_order, needs_increments_only
from stepnet.schemes.stochastic import Orders
from stepnet.solving.integrate import find_scheme
from stepnet.validation import check, function, instance, one_of, optional, real, whole

COUPLINGS = ("same path", "antithetic")
PILOT = 1024  # samples of a new level
SHARE = 0.25  # fraction of the mean square error that the bias may take
FIRST_LEVELS = 3
LEAST_RATE = 0.5
MOST_KURTOSIS = 100.0  # above this the estimate of the variance is unreliable
ENOUGH = 0.01  # a smaller fraction of additional samples does not justify another round


@explain_arguments()
@check(
    sde=instance(SDE, what="an `SDE`"),
    error=real("[1e-100, inf)"),
    potential=optional(function),
    source=optional(function),
    coupling=one_of(*COUPLINGS),
    steps=whole(1, 2**24),
    confidence=real("(0, 1)"),
    max_levels=whole(FIRST_LEVELS, 24),
    max_cost=real("(0, inf)"),
    workers=optional(lambda name, value: validate_thread_count(value, name)),
)
def multilevel(
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
    max_levels: int = 16,
    max_cost: float = 1e11,
    workers: int | None = None,
    progress: bool = False,
) -> MultilevelEstimate:
    """Estimate the expectation of `feynman_kac` at one point to a root mean square error, discretisation included.

    E[P_L] = E[P_0] + sum_l E[P_l - P_(l-1)], where P_l is the value with `steps` 2^l steps.  The differences, along the
    same Brownian path on both grids, have small variances, so that few samples are needed where they are expensive.
    Levels and numbers of samples are chosen from measured means and variances.

    Parameters
    ----------
    sde, terminal, potential, source, workers, progress
        As in `feynman_kac`.
    x : array_like, optional
        The start point, by default `y0`.
    error : float
        The root mean square error to reach; the estimated bias takes at most half of it.
    scheme : str or scheme, optional
        A scheme with strong order 1 (milstein) makes variances fall twice as fast as euler_maruyama.
    coupling : {"same path", "antithetic"}
        "antithetic": for general noise with the scheme milstein, which then omits the Levy areas; the fine value is the
        mean over two paths that exchange neighbouring increments, and variances fall as if the areas were known.
    steps : int
        Steps of the coarsest level.
    confidence : float
        Of the interval.
    max_levels : int
        The largest number of levels.
    max_cost : float
        A target that needs more steps in total is refused.

    Returns
    -------
    MultilevelEstimate

    Raises
    ------
    SolveFailed
        If `max_levels` do not suffice, or if paths explode; `.solution` is the estimate so far.
    Interrupted
        After Ctrl-C; `.solution` is the estimate so far.

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.multilevel(gbm, lambda y: y[0], error=2e-3, scheme="milstein")
    >>> abs(found.value - 1.05127) < 8e-3
    True
    """
    run = build_run(sde, terminal, x, potential, source, scheme, coupling, steps, workers)
    run.limits = error, max_levels, max_cost
    began, message, is_interrupted = time.perf_counter(), COMPLETE, False
    with open_bar(progress) as run.show, np.errstate(over="ignore", invalid="ignore"):
        try:
            message = run.reach()
        except KeyboardInterrupt:
            if not run.is_usable:
                raise
            message, is_interrupted = f"interrupted with {len(run.sums)} levels", True
        found = _summarise(run, confidence, time.perf_counter() - began, message)
    if is_interrupted:
        raise Interrupted(found)
    if message != COMPLETE:
        raise SolveFailed(found)
    warn_of_levels(found)
    return found


def build_run(
    sde: SDE, terminal: Any, x: Any, potential: Any, source: Any, scheme: Any, kind: str, steps: int, workers: Any
) -> MultilevelRun:
    points, _ = validate_points(x, sde)
    if len(points) != 1:
        raise ValueError(f"`x` must be one start point, found {len(points)}")
    if kind == "antithetic":
        scheme = _omit_levy_areas(catalogue.get("milstein" if scheme is None else scheme))
    own = find_scheme(sde, scheme, steps)
    if kind == "antithetic" and not needs_increments_only(own):
        raise ValueError(f"`coupling` = 'antithetic' needs a scheme that takes increments of W only, not {own.name}")
    functional = build_functional(sde, terminal, potential, source, own, points)
    return MultilevelRun(Coupling(functional, points, steps, kind, sde.n_components, workers))


def _omit_levy_areas(scheme: Any) -> Any:
    """A scheme for commutative noise that runs general noise too, with the products of its increments alone."""
    admitted = {orders.noise for orders in getattr(scheme, "orders", ())}
    if "commutative" not in admitted or "general" in admitted:
        return scheme
    return replace(scheme, orders=(*scheme.orders, Orders("general", 0.5, 1.0)))


@dataclass
class MultilevelRun:
    """The sums of all levels so far."""

    coupling: Coupling
    limits: tuple[float, int, float] = (1.0, 16, 1e11)
    show: Callable[[int], Any] = print
    sums: list[LevelSums] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether every level has samples."""
        return len(self.sums) > 0 and all(each.count > 1 for each in self.sums)

    def reach(self) -> str:
        """Add samples and levels until the target is reached, or until it is clear that it will not be; a message."""
        error, max_levels, _ = self.limits
        wanted = [PILOT] * FIRST_LEVELS
        while True:
            self.sums += [LevelSums() for _ in wanted[len(self.sums) :]]
            for level, count in enumerate(wanted):
                extend(self.coupling, self.sums[level], level, count, self.show)
            exploded = sum(each.exploded for each in self.sums)
            if exploded:
                return f"{exploded} paths became NaN or infinite; use more `steps` on the coarsest level"
            needed = self.find_samples()
            self._require_affordable(needed)
            wanted = [max(each.count, number) for each, number in zip(self.sums, needed, strict=True)]
            if any(number > (1 + ENOUGH) * each.count for each, number in zip(self.sums, wanted, strict=True)):
                continue
            if self.find_bias() <= sqrt(SHARE) * error:
                return COMPLETE
            if len(self.sums) == max_levels:
                return (
                    f"`error` = {error:g} was not reached with `max_levels` = {max_levels}: the bias is about "
                    f"{self.find_bias():.2g}; another level would double the cost of the finest one"
                )
            wanted.append(PILOT)

    def find_rates(self) -> tuple[float, float]:
        """alpha and beta by least squares over the levels above the coarsest."""
        means, variances = (np.array([getattr(each, name) for each in self.sums]) for name in ("mean", "variance"))
        level = np.arange(1, len(self.sums))
        rates = []
        for numbers in (np.abs(means[1:]), variances[1:]):
            is_known = (numbers > 0) & np.isfinite(numbers)
            slope = -np.polyfit(level[is_known], np.log2(numbers[is_known]), 1)[0] if is_known.sum() > 1 else 1.0
            rates.append(max(LEAST_RATE, float(slope)))
        return rates[0], rates[1]

    def find_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """|means| and variances, where levels with values too small by chance are bounded by the rates."""
        alpha, beta = self.find_rates()
        means = np.array([abs(each.mean) for each in self.sums])
        variances = np.array([each.variance for each in self.sums])
        for level in range(2, len(means)):
            means[level] = max(means[level], 0.5 * means[level - 1] / 2**alpha)
            variances[level] = max(variances[level], 0.5 * variances[level - 1] / 2**beta)
        return means, variances

    def find_samples(self) -> list[int]:
        """The numbers of samples that reach the variance (1 - SHARE) error^2 at the least cost."""
        variances, costs = self.find_moments()[1], self.costs
        total = np.sum(np.sqrt(variances * costs)) / ((1.0 - SHARE) * self.limits[0] ** 2)
        return [UNIT * max(1, ceil(x / UNIT)) for x in total * np.sqrt(variances / costs)]

    @property
    def costs(self) -> np.ndarray:
        return np.array([self.coupling.find_cost(level) for level in range(len(self.sums))])

    def find_bias(self) -> float:
        """The remaining bias, from the means of the last three levels and their rate.

        Where means change sign they fall faster for a while, so that the rate counts up to the weak order only.
        """
        functional, means = self.coupling.functional, self.find_moments()[0]
        alpha = min(self.find_rates()[0], find_weak_order(functional.scheme, functional.sde.noise))
        last = len(means) - 1
        levels = range(max(1, last - 2), last + 1)
        return float(max(means[level] * 2.0 ** (alpha * (level - last)) for level in levels) / (2.0**alpha - 1.0))

    def _require_affordable(self, needed: list[int]) -> None:
        error, _, max_cost = self.limits
        cost = float(np.dot(needed, self.costs))
        if cost > max_cost or max(needed) > PATHS_OF_A_LEVEL:
            raise ValueError(
                f"`error` = {error:g} would take about {cost:.2g} steps or more, and `max_cost` is {max_cost:g}; "
                f"use a larger `error`, or allow the cost"
            )


def _summarise(run: MultilevelRun, confidence: float, seconds: float, message: str) -> MultilevelEstimate:
    levels = tuple(describe_level(run, level) for level in range(len(run.sums)))
    value = float(sum(each.mean for each in levels))
    standard_error = sqrt(sum(each.variance / max(1, each.samples) for each in levels))
    bias, cost = run.find_bias() if len(levels) > 2 else float("nan"), sum(each.samples * each.cost for each in levels)
    half = float(find_quantile(confidence, min(each.samples for each in levels) - 1)) * standard_error
    last = levels[-1]
    plain = last.fine_variance * last.steps / (standard_error * standard_error) if standard_error else 0.0
    costs = run.costs[1:]
    gamma = float(np.polyfit(np.arange(len(costs)), np.log2(costs), 1)[0]) if len(costs) > 1 else 1.0
    error = hypot(standard_error, bias)
    rates = (*run.find_rates(), gamma) if len(levels) > 2 else (float("nan"),) * 3
    interval = value - half, value + half
    return MultilevelEstimate(
        value, standard_error, bias, error, interval, confidence, levels, *rates, cost, plain, seconds, message
    )


def describe_level(run: MultilevelRun, level: int) -> Level:
    """The record of a level."""
    sums, steps = run.sums[level], run.coupling.count_steps(level)
    consistency = 0.0
    if level:
        below = run.sums[level - 1]
        spread = sum(
            sqrt(v / n)
            for v, n in (
                (sums.variance, max(1, sums.count)),
                (sums.fine_variance, max(1, sums.count)),
                (below.fine_variance, max(1, below.count)),
            )
        )
        gap = abs(sums.mean - sums.fine_mean + below.fine_mean)
        consistency = gap / (3.0 * spread) if spread else 0.0
    facts = sums.mean, sums.variance, sums.kurtosis, sums.fine_mean, sums.fine_variance
    return Level(steps, sums.count, *facts, run.coupling.find_cost(level), consistency)


def warn_of_levels(found: MultilevelEstimate) -> None:
    """Warn of a large kurtosis, and of inconsistent means."""
    worst = max(found.levels[1:], key=lambda level: level.kurtosis)
    if worst.kurtosis > MOST_KURTOSIS:
        warnings.warn(
            f"the kurtosis of the differences with {worst.steps} steps is {worst.kurtosis:.3g}: few samples carry "
            f"their variance, so the estimates of it and of `standard_error` are poor; smooth the terminal function",
            MonteCarloWarning,
            stacklevel=5,
        )
    most = max(found.levels, key=lambda level: level.consistency)
    if most.consistency > 1.0:
        warnings.warn(
            f"the means with {most.steps} and {most.steps // 2} steps do not fit together (consistency "
            f"{most.consistency:.2g} > 1): coarse paths do not have the law of the fine paths of the level below",
            MonteCarloWarning,
            stacklevel=5,
        )
