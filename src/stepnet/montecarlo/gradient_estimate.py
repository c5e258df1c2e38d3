"""`feynman_kac_gradient`: derivatives of expectations with respect to start points and arguments, path by path."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.ensembles.ensemble_gradient import gradient_ensemble
from stepnet.errors import Interrupted, NoDerivative
from stepnet.montecarlo.estimate import Estimate
from stepnet.montecarlo.expectations import COMPLETE, build_functional, open_bar, validate_points
from stepnet.montecarlo.moments import UNIT, PathMoments, find_quantile
from stepnet.montecarlo.path_functional import MOST_NUMBERS, PathFunctional, count_threads
from stepnet.problem import MOST_PATH, SDE
from stepnet.records import explain_arguments, show_fields, validate_thread_count
from stepnet.solving.integrate import find_scheme
from stepnet.validation import check, function, instance, optional, real, whole


@dataclass(frozen=True, eq=False)
class GradientEstimate:
    """An expectation and its derivatives, each with standard errors and confidence intervals.

    Parameters
    ----------
    value : Estimate
        The expectation, as `feynman_kac` estimates it from the same paths.
    x : Estimate
        The gradients with respect to the start points, (*state) or (points, *state).
    args : Estimate
        The derivatives with respect to the numbers of `args`, (numbers,) or (points, numbers).

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y, a: a * y, lambda t, y, a: 0.2 * y, [1.0], (0.0, 1.0), (0.05,))
    >>> found = sn.montecarlo.feynman_kac_gradient(gbm, lambda y: y[0], paths=256, steps=10)
    >>> found.x.value.shape, found.args.value.shape
    ((1,), (1,))
    """

    value: Estimate
    x: Estimate
    args: Estimate

    __repr__ = show_fields

    @property
    def message(self) -> str:
        """Whether the estimate is complete."""
        return self.value.message


@explain_arguments()
@check(
    sde=instance(SDE, what="an `SDE`"),
    potential=optional(function),
    source=optional(function),
    steps=whole(1, 2**31),
    paths=whole(2, MOST_PATH),
    confidence=real("(0, 1)"),
    workers=optional(lambda name, value: validate_thread_count(value, name)),
)
def feynman_kac_gradient(
    sde: SDE,
    terminal: Callable[..., Any],
    x: Any = None,
    *,
    potential: Callable[..., Any] | None = None,
    source: Callable[..., Any] | None = None,
    reflecting: Any = None,
    scheme: Any = None,
    steps: int = 100,
    paths: int = 10_000,
    confidence: float = 0.95,
    workers: int | None = None,
    progress: bool = False,
) -> GradientEstimate:
    """Estimate u(x, t0) as `feynman_kac` does, and its derivatives with respect to x and to the numbers of `args`.

    The derivative of an expectation is the expectation of the derivative along each path, which is that of the
    numerical path, exact to rounding, with the noise held fixed.  `terminal` must be continuous; where it jumps,
    `likelihood_ratio_gradient` gives derivatives with respect to `args`.

    Parameters
    ----------
    sde, terminal, x, potential, source, reflecting, scheme, steps, workers, progress
        As in `feynman_kac`.
    paths : int
        Paths from each start point.
    confidence : float
        Of the intervals, for each number separately.

    Returns
    -------
    GradientEstimate

    Raises
    ------
    ValueError
        If a path does not reach the end.
    NoDerivative
        If a function cannot be differentiated.
    Interrupted
        After Ctrl-C; `.solution` is the estimate so far.

    Examples
    --------
    The slope and the vega of a call:

    >>> import numpy as np, stepnet as sn
    >>> gbm = sn.SDE(lambda t, y, s: 0.05 * y, lambda t, y, s: s * y, [1.0], (0.0, 1.0), (0.2,))
    >>> call = lambda y: np.exp(-0.05) * np.maximum(y[0] - 1.0, 0.0)
    >>> found = sn.montecarlo.feynman_kac_gradient(gbm, call, paths=4096, steps=20)
    >>> low, high = found.x.interval
    >>> bool(low[0] < 0.6368 < high[0])
    True
    """
    scheme = find_scheme(sde, scheme, steps)
    points, is_single = validate_points(x, sde)
    functional = build_functional(sde, terminal, potential, source, scheme, points, reflecting=reflecting)
    began, is_interrupted = time.perf_counter(), False
    with open_bar(progress) as show:
        sums = DerivativeSums(functional, points, steps, workers)
        try:
            sums.extend(paths, show)
        except NoDerivative as error:
            raise NoDerivative(
                "`terminal`, `potential`, `source` and the functions of `sde` must be differentiable: write them with "
                "NumPy, without branches on the state and conversions to numbers"
            ) from error
        except KeyboardInterrupt:
            if not sums.done:
                raise
            is_interrupted = True
    found = sums.estimate(confidence, is_single, time.perf_counter() - began, is_interrupted)
    if is_interrupted:
        raise Interrupted(found)
    return found


class DerivativeSums:
    """Running sums of the values of paths and of their derivatives."""

    def __init__(self, functional: PathFunctional, points: np.ndarray, steps: int, workers: int | None):
        self.functional, self.points, self.steps, self.workers = functional, points, steps, workers
        self.loss, self.done, self.rung, self.reason = build_loss(functional), 0, "", ""
        self.moments = PathMoments(0)

    def extend(self, paths: int, show: Callable[[int], Any]) -> None:
        """Run this number of paths from each point."""
        functional, starts = self.functional, self.functional.extend(self.points)
        most = MOST_NUMBERS * count_threads(self.workers)
        block = max(UNIT, most // (functional.size * len(starts)) // UNIT * UNIT)
        while self.done < paths:
            count = min(block, paths - self.done)
            first = functional.sde.path + self.done
            found = gradient_ensemble(
                functional.sde, functional.scheme, self.loss, steps=self.steps, workers=self.workers,
                y0=np.repeat(starts, count, axis=0).reshape(-1, *functional.sde.y0.shape),
                paths=np.tile(first + np.arange(count), len(starts)),
            )  # fmt: skip
            self.rung, self.reason = found.rung, found.reason
            by_state = found.y0.reshape(len(starts) * count, -1)[:, : functional.n]
            columns = np.column_stack((found.value, by_state, found.args))
            values = columns.reshape(len(starts), count, -1).swapaxes(1, 2).reshape(-1, count)
            if not self.done:
                self.moments = PathMoments(len(values))
            self.moments.add(slice(None), values)
            self.done += count
            show(count * len(starts))

    def estimate(self, confidence: float, is_single: bool, seconds: float, is_interrupted: bool) -> GradientEstimate:
        """The estimates of value, gradient and derivatives."""
        points, n = len(self.points), self.functional.n
        mean, variance, freedom = (each.reshape(points, -1) for each in self.moments.estimate())
        error = np.sqrt(variance / self.done)
        half = find_quantile(confidence, freedom) * error
        message = f"interrupted after {self.done} paths" if is_interrupted else COMPLETE
        facts = confidence, self.done, self.steps, self.done * self.steps * points, "plain", self.moments.exploded
        more = self.rung, self.reason, seconds, message

        def select(columns: Any, shape: tuple[int, ...]) -> Estimate:
            value, deviation, margin = (each[:, columns].reshape(points, *shape) for each in (mean, error, half))
            if is_single:
                value, deviation, margin = value[0], deviation[0], margin[0]
            if not value.ndim:
                value, deviation, margin = value.item(), deviation.item(), margin.item()
            return Estimate(value, deviation, (value - margin, value + margin), *facts, *more)

        numbers = mean.shape[1] - 1 - n
        return GradientEstimate(
            select(0, ()), select(slice(1, 1 + n), self.functional.shape), select(slice(1 + n, None), (numbers,))
        )


def build_loss(functional: PathFunctional) -> Callable[..., Any]:
    """The functional as a function of one end state."""
    n, shape, end = functional.n, functional.shape, functional.end
    has_potential, has_source = functional.has_potential, functional.has_source

    def loss(z: Any) -> Any:
        z = z.reshape(-1)
        found = end(z[:n].reshape(shape))
        if has_potential:
            found = np.exp(z[n]) * found
        return found + z[-1] if has_source else found

    return loss
