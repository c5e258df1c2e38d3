"""L-BFGS through SciPy, for any function of a flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from stepnet.records import explain_arguments, keep, keep_numbers, validate_count
from stepnet.training.minimisation import MinimisationState, require_start
from stepnet.training.objective import Evaluation

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

    from stepnet.training.minimum import Minimum


@explain_arguments()
@dataclass(frozen=True)
class LBFGS:
    """Limited-memory quasi-Newton steps by `scipy.optimize.minimize`.  Liu & Nocedal (1989), Math. Program. 45:503.

    Parameters
    ----------
    iterations : int
        Maximum number of steps.
    memory : int
        Number of stored pairs of steps and gradient differences.
    tol : float
        The iteration ends when the largest entry of the gradient is below this.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> data = training.Data(np.ones((4, 2)), np.ones((4, 1)))
    >>> training.minimise(objective, data, training.LBFGS(iterations=20)).value < 1e-6
    True
    """

    iterations: int = 200
    memory: int = 10
    tol: float = 1e-8

    def __post_init__(self) -> None:
        keep(self, iterations=validate_count("iterations", self.iterations, 0))
        keep(self, memory=validate_count("memory", self.memory, 1))
        keep_numbers(self, tol="[0, inf)")


def descend(
    function: Callable[[np.ndarray], Evaluation], theta: np.ndarray, method: LBFGS, watch: MinimisationState
) -> Minimum:
    """Minimise a function from `theta`; the best point evaluated is kept."""
    from scipy.optimize import minimize

    def pair(w: np.ndarray) -> tuple[float, np.ndarray]:
        point = w.astype(theta.dtype)
        value, accuracy, gradient = function(point)
        watch.gradients += 1
        is_finite = isfinite(value) and bool(np.isfinite(gradient).all())
        if is_finite and value <= watch.value:
            watch.keep(point, value, gradient)
        watch.tell(loss=watch.value, accuracy=accuracy)
        return (value, gradient.astype(np.float64)) if is_finite else (inf, np.zeros(w.size))

    def after_step(intermediate_result: OptimizeResult) -> None:
        watch.step(intermediate_result.fun)

    options = {"maxiter": method.iterations, "maxcor": method.memory, "gtol": method.tol, "ftol": 0.0,
               "maxfun": 20 * method.iterations + 20}  # fmt: skip
    if method.iterations == 0:
        pair(theta.astype(np.float64))
        converged, message = False, "no iterations were requested"
    else:
        found = minimize(pair, theta.astype(np.float64), jac=True, method="L-BFGS-B", callback=after_step,
                         options=options)  # fmt: skip
        converged, message = bool(found.success), str(found.message).lower()
    require_start(watch.value)
    return watch.minimum(converged, message)
