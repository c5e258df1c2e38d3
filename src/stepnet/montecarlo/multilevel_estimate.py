"""`MultilevelEstimate`: an expectation from several levels, with the rates at which they converge."""

from __future__ import annotations

from dataclasses import dataclass

from stepnet.records import show_fields


@dataclass(frozen=True)
class Level:
    """One level: the difference between the values with `steps` and with half as many steps.

    Parameters
    ----------
    steps : int
        Steps of the fine path.
    samples : int
        Differences drawn.
    mean, variance, kurtosis : float
        Of the difference.
    fine_mean, fine_variance : float
        Of the fine value.
    cost : float
        Steps of one sample.
    consistency : float
        |E[fine - coarse] - E[fine] + E[fine of the level below]| in units of three standard errors; more than one
        means that the coarse value does not have the law of the fine value below (M. B. Giles 2015).

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.multilevel(gbm, lambda y: y[0], error=1e-2, scheme="milstein")
    >>> found.levels[1].steps == 2 * found.levels[0].steps
    True
    """

    steps: int
    samples: int
    mean: float
    variance: float
    kurtosis: float
    fine_mean: float
    fine_variance: float
    cost: float
    consistency: float


@dataclass(frozen=True, eq=False)
class MultilevelEstimate:
    """An expectation with its statistical error and its estimated discretisation error.

    Parameters
    ----------
    value : float
        The sum of the means of all levels.
    standard_error : float
        The standard deviation of `value`.
    bias : float
        The estimated discretisation error of the finest level.
    error : float
        sqrt(standard_error^2 + bias^2): the root mean square error.
    interval : (float, float)
        Confidence interval for the expectation on the finest level.
    confidence : float
        The probability with which the interval contains it.
    levels : tuple of Level
        The coarsest first.
    alpha, beta, gamma : float
        Rates: means fall like 2^(-alpha l), variances like 2^(-beta l), costs grow like 2^(gamma l).
    cost : float
        Steps in total.
    plain_cost : float
        Steps of plain Monte Carlo on the finest level for the same standard error.
    run_time : float
        Seconds.
    message : str
        Whether the target was reached.

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.multilevel(gbm, lambda y: y[0], error=1e-2, scheme="milstein")
    >>> found.error <= 1e-2
    True
    """

    value: float
    standard_error: float
    bias: float
    error: float
    interval: tuple[float, float]
    confidence: float
    levels: tuple[Level, ...]
    alpha: float
    beta: float
    gamma: float
    cost: float
    plain_cost: float
    run_time: float
    message: str

    __repr__ = show_fields

    def table(self) -> str:
        """The levels as a table in text.

        Returns
        -------
        str
        """
        lines = [f"{'steps':>8}{'samples':>12}{'mean':>12}{'variance':>12}{'kurtosis':>10}{'check':>8}{'cost':>10}"]
        for each in self.levels:
            numbers = f"{each.steps:8d}{each.samples:12d}{each.mean:12.3e}{each.variance:12.3e}{each.kurtosis:10.3g}"
            lines.append(f"{numbers}{each.consistency:8.2f}{each.samples * each.cost / self.cost:10.1%}")
        rates = f"alpha {self.alpha:.2f}  beta {self.beta:.2f}  gamma {self.gamma:.2f}"
        return "\n".join([*lines, f"{rates}  plain Monte Carlo costs {self.plain_cost / self.cost:.1f} times as much"])
