"""`Estimate`: an expectation with its standard error and confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepnet.records import show_fields

Numbers = float | np.ndarray


@dataclass(frozen=True, eq=False)
class Estimate:
    """An expectation for each start point, with the statistical error; the discretisation error is not included.

    Parameters
    ----------
    value : float or array
        The estimate; (points,) if there are several start points.
    standard_error : float or array
        The standard deviation of `value`, estimated from the paths.
    interval : (float or array, float or array)
        Ends of the confidence interval for the expectation of the discretised equation.
    confidence : float
        The probability with which the interval contains it, for each start point.
    paths : int
        Paths from each start point.
    steps : int
        Steps of each path.
    cost : int
        Steps in total, over all start points and paths.
    sampling : str
        "plain", "antithetic" or "quasi".
    exploded : int
        Paths that became NaN or infinite; they are left out.
    rung, reason : str
        How the paths were run, as in `EnsembleSolution`.
    run_time : float
        Seconds.
    message : str
        Whether the estimate is complete.

    Examples
    --------
    >>> import stepnet as sn
    >>> sde = sn.SDE(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.feynman_kac(sde, lambda y: y[0], paths=64, steps=10)
    >>> found.interval[0] < found.value < found.interval[1]
    True
    """

    value: Numbers
    standard_error: Numbers
    interval: tuple[Numbers, Numbers]
    confidence: float
    paths: int
    steps: int
    cost: int
    sampling: str
    exploded: int
    rung: str
    reason: str
    run_time: float
    message: str

    __repr__ = show_fields
