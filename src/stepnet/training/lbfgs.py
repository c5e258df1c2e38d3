"""L-BFGS through SciPy, for any function of a flat vector, and the record of where a minimisation ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from stepnet.checkpoints.counts import checked_count
from stepnet.records import keep, keep_numbers
from stepnet.training.objective import Evaluation
from stepnet.training.progress import Bar


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory quasi-Newton steps by `scipy.optimize.minimize`.  Liu & Nocedal (1989), Math. Program. 45:503.

    Parameters
    ----------
    iterations : int
        Most steps.
    memory : int
        Pairs of steps and gradient differences that are kept.
    tol : float
        The largest entry of the gradient at which it ends.
    """

    iterations: int = 200
    memory: int = 10
    tol: float = 1e-8

    def __post_init__(self):
        keep(self, iterations=checked_count("iterations", self.iterations, 0))
        keep(self, memory=checked_count("memory", self.memory, 1))
        keep_numbers(self, tol="[0, inf)")


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a minimisation ended.  `history` has the value after every step; `products` counts those with J' H J."""

    theta: np.ndarray
    value: float
    gradient: np.ndarray
    converged: bool
    message: str
    history: np.ndarray
    gradients: int
    products: int = 0


def descend(function: Callable[[np.ndarray], Evaluation], theta: np.ndarray, method: LBFGS, shown: Bar) -> Minimum:
    """Make a function small from `theta`; the best point that was looked at is kept."""
    from scipy.optimize import minimize

    count, history, best = 0, [], (inf, theta, np.full_like(theta, np.nan))

    def pair(w):
        nonlocal count, best
        count += 1
        value, accuracy, gradient = function(w.astype(theta.dtype))
        is_finite = isfinite(value) and bool(np.isfinite(gradient).all())
        if is_finite and value <= best[0]:
            best = value, w.astype(theta.dtype), gradient
        shown.tell(loss=best[0], accuracy=accuracy)
        return (value, gradient.astype(np.float64)) if is_finite else (inf, np.zeros(w.size))

    def after_step(intermediate_result):
        history.append(float(intermediate_result.fun))
        shown.move()

    options = {"maxiter": method.iterations, "maxcor": method.memory, "gtol": method.tol, "ftol": 0.0,
               "maxfun": 20 * method.iterations + 20}  # fmt: skip
    if method.iterations == 0:
        pair(theta.astype(np.float64))
        converged, message = False, "no iterations were wanted"
    else:
        found = minimize(pair, theta.astype(np.float64), jac=True, method="L-BFGS-B", callback=after_step,
                         options=options)  # fmt: skip
        converged, message = bool(found.success), str(found.message).lower()
    value, where, gradient = best
    require_start(value)
    return Minimum(where, value, gradient, converged, message, np.array(history), count)


def require_start(value: float) -> None:
    """A beginning that can be made smaller."""
    if not isfinite(value):
        raise ValueError("the objective is not finite where it begins; `theta` must give finite outputs")
