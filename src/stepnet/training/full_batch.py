"""Full-batch methods: L-BFGS, Gauss-Newton by conjugate gradients, successive approximations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.errors import TrainingInterrupted
from stepnet.fields.inner_product import inner
from stepnet.nets.losses import Expansion
from stepnet.records import explain_arguments, find_by_name, keep, keep_numbers, validate_count
from stepnet.training.conjugate_gradients import CGStep, truncated_cg
from stepnet.training.lbfgs import LBFGS, descend
from stepnet.training.maximum_principle import MSA, successive_approximations
from stepnet.training.minimisation import ZERO_GRADIENT, MinimisationState, require_start
from stepnet.training.objective import Data, Objective, require, validate_theta
from stepnet.training.progress import show_bar

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.training.minimum import Minimum

DESCENT = 1e-4  # fraction of the predicted decrease that a step must attain to be accepted
HALVINGS = 40
BAD, GOOD = 0.25, 0.5  # fractions of the predicted decrease: the trust region shrinks below, or grows above
SMALLEST = 1e-14  # smallest radius, relative to the first one
PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class LineSearch:
    """Halve a step until the decrease is a fraction of that predicted by the slope.  Armijo (1966).

    Examples
    --------
    >>> from stepnet import training
    >>> training.GaussNewton(control=training.LineSearch()).control
    LineSearch()
    """


@dataclass(frozen=True)
class TrustRegion:
    """Steps within a radius that is adapted to how well the quadratic model predicts the objective.

    Parameters
    ----------
    radius : float, optional
        The first radius.

    Examples
    --------
    >>> from stepnet import training
    >>> training.TrustRegion(2.0).radius
    2.0
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        keep_numbers(self, radius="(0, inf)")


@explain_arguments()
@dataclass(frozen=True)
class GaussNewton:
    """Steps p of J' H J p = -g by truncated conjugate gradients, with J the derivative of the outputs.

    Parameters
    ----------
    iterations : int
        Maximum number of steps.
    cg_iterations, cg_tol
        Maximum number of products per step, and the relative residual at which the iteration ends.
    tol : float
        The iteration ends when the largest entry of the gradient is below this.
    control : LineSearch or TrustRegion
        How a decrease of the objective is ensured.
    precision : "float32" or "float64", optional
        Precision of the products, if not that of the model (which must be a `Net`); values and gradients are
        unaffected, so the final accuracy is the same.  Kelley (2022), Newton's method in mixed precision, SIAM Rev.
        64:191.

    Examples
    --------
    >>> from stepnet import training
    >>> training.GaussNewton(control=training.TrustRegion(radius=2.0)).iterations
    50
    """

    iterations: int = 50
    cg_iterations: int = 20
    cg_tol: float = 1e-2
    tol: float = 1e-8
    control: LineSearch | TrustRegion = field(default_factory=LineSearch)
    precision: str | None = None

    def __post_init__(self) -> None:
        keep(self, iterations=validate_count("iterations", self.iterations, 0))
        keep(self, cg_iterations=validate_count("cg_iterations", self.cg_iterations, 1))
        keep_numbers(self, cg_tol="[0, 1)", tol="[0, inf)")
        if not isinstance(self.control, (LineSearch, TrustRegion)):
            raise TypeError(f"`control` must be a LineSearch or a TrustRegion, found {self.control!r:.80}")
        if not isinstance(self.precision, (str, NoneType)) or self.precision not in (None, *PRECISIONS):
            raise ValueError(f"`precision` must be one of {PRECISIONS} or None, found {self.precision!r:.80}")


Method = LBFGS | GaussNewton | MSA
METHODS = {"lbfgs": LBFGS, "gauss_newton": GaussNewton, "msa": MSA}


@explain_arguments()
def minimise(
    objective: Objective,
    data: Data,
    method: Method | str = "lbfgs",
    *,
    theta: ArrayLike | None = None,
    progress: Any = False,
) -> Minimum:
    """Minimise an objective on all data; the model keeps the result.

    Ctrl-C raises `TrainingInterrupted`, whose `.run` is the best point so far, which the model keeps.

    Parameters
    ----------
    objective : Objective
    data : Data
    method : LBFGS, GaussNewton, MSA or their names "lbfgs", "gauss_newton", "msa"
    theta : array, optional
        Initial parameters, instead of those of the model.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Minimum

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> training.minimise(objective, training.Data(np.ones((4, 2)), np.ones((4, 1)))).success
    True
    """
    require(objective, data)
    chosen = find_by_name("method", METHODS, method, {})
    if not isinstance(chosen, Method):
        raise TypeError(f"`method` must be LBFGS, GaussNewton, MSA or a name, found {chosen!r:.80}")
    start = validate_theta(objective.model, theta)
    with show_bar(chosen.iterations, progress) as shown, np.errstate(over="ignore", invalid="ignore"):
        watch = MinimisationState(shown, start)
        try:
            found = _choose_method(objective, start, data, chosen, watch)
        except KeyboardInterrupt:
            found = watch.build_interrupted()
            objective.model.put(found.theta)
            raise TrainingInterrupted(found) from None
    objective.model.put(found.theta)
    return found


def _choose_method(
    objective: Objective, start: np.ndarray, data: Data, method: Method, watch: MinimisationState
) -> Minimum:
    if isinstance(method, LBFGS):
        return descend(lambda w: objective.gradient(w, data), start, method, watch)
    if isinstance(method, MSA):
        return successive_approximations(objective, start, data, method, watch)
    return _gauss_newton(objective, start, data, method, watch)


class TriedStep(NamedTuple):
    """An attempted step: its end point, the expansion there (None if not accepted), and the next radius."""

    theta: np.ndarray
    there: Expansion | None
    radius: float


def _gauss_newton(
    objective: Objective, theta: np.ndarray, data: Data, method: GaussNewton, watch: MinimisationState
) -> Minimum:
    rough = _cast_precision(objective, method.precision)
    here = objective.expansion(theta, data)
    require_start(here.value)
    region = method.control if isinstance(method.control, TrustRegion) else None
    radius = first = region.radius if region else inf
    message, converged = "used up all iterations", _is_arrived(theta, here, method, watch)
    for _ in range(method.iterations):
        if converged:
            break
        curved = here if rough is objective else rough.expansion(theta, data)
        step = truncated_cg(
            curved.product, here.gradient, radius, method.cg_iterations, method.cg_tol, curved.curvature
        )
        watch.products += step.iterations
        if region:
            attempt = _search_within(objective, theta, data, here, step, radius)
        else:
            attempt = _search_along(objective, theta, data, here, step)
        radius = attempt.radius
        if attempt.there is not None:
            theta, here = attempt.theta, attempt.there
            converged = _is_arrived(theta, here, method, watch)
        elif not region or radius < SMALLEST * first:
            message = "no step decreased the objective: rounding, or Hessian products that do not match the objective"
            break
        watch.tell(loss=here.value)
        watch.step(here.value)
    return watch.minimum(converged, ZERO_GRADIENT if converged else message)


def _is_arrived(theta: np.ndarray, here: Expansion, method: GaussNewton, watch: MinimisationState) -> bool:
    """Keep a point; return whether its gradient is zero to the tolerance."""
    watch.gradients += 1
    watch.keep(theta, here.value, here.gradient)
    return bool(np.abs(here.gradient).max(initial=0.0) <= method.tol)


def _cast_precision(objective: Objective, precision: str | None) -> Objective:
    """The same objective with the model in this precision; unchanged if it is the model's own."""
    if precision is None or objective.model.theta.dtype == precision:
        return objective
    if not hasattr(objective.model, "astype"):
        raise TypeError(
            f"`precision` needs a model that can change its own, such as a Net, found {type(objective.model).__name__}"
        )
    return replace(objective, model=objective.model.astype(precision))


def _search_along(objective: Objective, theta: np.ndarray, data: Data, here: Expansion, step: CGStep) -> TriedStep:
    """The first of the step, its half, its quarter, ... with a sufficient decrease of the objective."""
    slope, length, slack = inner(here.gradient, step.direction), 1.0, _estimate_rounding(here)
    for _ in range(HALVINGS):
        new = theta + length * step.direction
        there = objective.expansion(new, data)
        if there.value <= here.value + DESCENT * length * slope + slack:
            return TriedStep(new, there, inf)
        length /= 2
    return TriedStep(theta, None, inf)


def _search_within(
    objective: Objective, theta: np.ndarray, data: Data, here: Expansion, step: CGStep, radius: float
) -> TriedStep:
    """The step if the objective decreases, and the new radius."""
    new = theta + step.direction
    slack, there = _estimate_rounding(here), objective.expansion(new, data)
    decrease = here.value - there.value
    ratio = (decrease + slack) / (step.decrease + slack) if isfinite(decrease) else -inf
    if ratio < BAD:
        radius = 0.25 * sqrt(inner(step.direction, step.direction))
    elif ratio > GOOD and step.reason != "residual":
        radius = 2 * radius
    return TriedStep(new, there if ratio > DESCENT else None, radius)


def _estimate_rounding(here: Expansion) -> float:
    """The rounding error of the value; near a minimum decreases are smaller.  Conn, Gould & Toint (2000), 17.4.2."""
    return 10 * float(np.finfo(here.gradient.dtype).eps) * abs(here.value)
