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
