"""Successive approximations from Pontryagin's maximum principle: states forward, costates backward, then each layer.

With x_(n+1) = f_n(x_n, theta_n), a loss Phi(x_N) and penalties L_n, the Hamiltonians are H_n = p_(n+1) . f_n - L_n, the
costates p_n = dH_n / dx_n, computed backward from p_N = -dPhi / dx_N.  In each sweep every layer maximises

    H_n(theta) - rho / 2 |x_(n+1) - f_n(x_n, theta)|^2 - rho / 2 |p_n - dH_n / dx (x_n, theta)|^2

over its own parameters, with states and costates fixed, so that layers are independent.  The terms with rho limit the
change of states and costates.  Li, Chen, Tai & E (2017), Maximum principle based algorithms for deep learning,
arXiv:1710.09513.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets.layer_decomposition import LayerDecomposition
from stepnet.nets.penalties import Penalty
from stepnet.records import explain_arguments, keep, keep_numbers, validate_count
from stepnet.training.lbfgs import LBFGS, descend
from stepnet.training.minimisation import ZERO_GRADIENT, MinimisationState, require_start
from stepnet.training.objective import Data, Evaluation, Objective
from stepnet.training.progress import Bar

if TYPE_CHECKING:
    from stepnet.training.minimum import Minimum

DESCENT, BAD, GOOD = (
    1e-4,
    0.25,
    0.5,
)  # fractions of the gain of the Hamiltonians to accept, to increase or decrease rho
LARGEST = 1e14  # times the initial rho; its inverse bounds rho from below


@explain_arguments()
@dataclass(frozen=True)
class MSA:
    """The method of successive approximations, extended by rho; Li, Chen, Tai & E (2017), arXiv:1710.09513.

    Parameters
    ----------
    iterations : int
        Maximum number of sweeps; each maximises all Hamiltonians once.
    rho : float
        The penalty on changes of states and costates.  Zero is the basic method, which may diverge.
    inner : int
        L-BFGS steps of each layer in a sweep.
    growth : float
        If a sweep does not decrease the objective, it is rejected and rho is multiplied by this; rho is divided by it
        if the decrease is a large part of the gain of the Hamiltonians.  With 1, rho is constant and every sweep is
        accepted.
    tol : float
        The iteration ends when the largest entry of the gradient is below this.

    Examples
    --------
    >>> from stepnet import training
    >>> training.MSA(iterations=10).rho
    1.0
    """

    iterations: int = 50
    rho: float = 1.0
    inner: int = 10
    growth: float = 4.0
    tol: float = 1e-8

    def __post_init__(self) -> None:
        keep(self, iterations=validate_count("iterations", self.iterations, 0))
        keep(self, inner=validate_count("inner", self.inner, 1))
        keep_numbers(self, rho="[0, inf)", growth="[1, inf)", tol="[0, inf)")
        if self.rho == 0 and self.growth > 1:
            raise ValueError("`rho` must be positive to grow, found 0; the basic method is `rho=0, growth=1`")


class LayerTrajectory(NamedTuple):
    """Parameters, the objective with its gradient, and the states and costates of all layers.

    States and costates are `(batch, features)`.  Costates are those of the sum over samples, so that rho does not
    depend on their number.
    """

    theta: np.ndarray
    value: float
    gradient: np.ndarray
    x: list[np.ndarray]
    p: list[np.ndarray]

    @property
    def is_finite(self) -> bool:
        return isfinite(self.value) and bool(np.isfinite(self.gradient).all())


class Hamiltonian(NamedTuple):
    """The augmented Hamiltonian of a layer, its gradient, and the value without rho."""

    value: float
    gradient: np.ndarray
    plain: float


def successive_approximations(
    objective: Objective, theta: np.ndarray, data: Data, method: MSA, watch: MinimisationState
) -> Minimum:
    """Sweep until the gradient is zero to the tolerance, or all iterations are done."""
    if objective.smoothness:
        raise ValueError(f"MSA needs layers without coupling: `smoothness` must be 0, found {objective.smoothness:g}")
    if objective.regularisers:
        raise ValueError("MSA needs a loss of the outputs alone: `regularisers` must be empty")
    parts = LayerDecomposition(objective.model)  # type: ignore[arg-type]
    here = build_trajectory(parts, objective, theta, data)
    require_start(here.value)
    rho, watch.gradients = method.rho, 1
    watch.keep(theta, here.value, here.gradient)
    for _ in range(method.iterations):
        if np.abs(here.gradient).max(initial=0.0) <= method.tol or not here.is_finite or rho > LARGEST * method.rho:
            break
        new, gain = _sweep_layers(parts, objective, here, data, rho, method.inner)
        watch.gradients += 1
        share = (here.value - new.value) / gain if new.is_finite and gain > 0 else -inf
        if method.growth == 1 or share > DESCENT:
            here = new
            if here.value <= watch.value:
                watch.keep(here.theta, here.value, here.gradient)
        factor = method.growth if share < BAD else 1 / method.growth if share > GOOD else 1
        rho = max(rho * factor, method.rho / LARGEST)
        watch.tell(loss=here.value, rho=rho)
        watch.step(here.value)
    found = watch.minimum(False, "used up all iterations")
    if np.abs(found.gradient).max(initial=0.0) <= method.tol:
        return watch.minimum(True, ZERO_GRADIENT)
    if not here.is_finite:
        return watch.minimum(False, "the objective became infinite; the best parameters are kept; try a larger rho, or "
                                    "`growth` above 1")  # fmt: skip
    return watch.minimum(False, "no rho decreased the objective: rounding") if rho > LARGEST * method.rho else found


def build_trajectory(parts: LayerDecomposition, objective: Objective, theta: np.ndarray, data: Data) -> LayerTrajectory:
    """Compute states and costates; the gradient of the objective, -sum_n dH_n / dtheta, is obtained as well."""
    states = parts.states(theta, data.x)
    local, own = objective.loss.at(parts.outputs(states), data.y, data.weights), objective.penalty.at(theta)
    end = np.asarray(-len(data) * local.gradient, theta.dtype)
    p, bar = parts.costates(theta, states, end)
    return LayerTrajectory(theta, local.value + own.value, own.gradient - bar / len(data), states, p)


def build_hamiltonian(
    parts: LayerDecomposition, penalty: Penalty, here: LayerTrajectory, n: int, theta: np.ndarray, rho: float
) -> Hamiltonian:
    """The Hamiltonian of layer n at its parameters `theta`.

    Sums over samples are means.  The mixed derivative in the term of the costates is a central difference of exact
    gradients, along the direction of the change of the costate.
    """
    layer, x, p = parts.layers[n], here.x[n], here.p[n + 1]
    f, bar, slope = layer.pullback(theta, x, p)
    own = penalty.at(theta)
    plain = inner(p, f) / len(x) - own.value
    if not rho:
        return Hamiltonian(plain, bar / len(x) - own.gradient, plain)
    away, turned = here.x[n + 1] - f, here.p[n] - slope
    value = plain - 0.5 * rho * (inner(away, away) + inner(turned, turned)) / len(x)
    length = np.linalg.norm(turned, axis=1, keepdims=True)
    step = np.cbrt(np.finfo(x.dtype).eps) * np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    ahead, q = step * turned / np.where(length > 0, length, 1), rho * length / (2 * step) * p
    bars = layer.pullback(theta, np.concatenate((x, x + ahead, x - ahead)), np.concatenate((p + rho * away, q, -q)))
    return Hamiltonian(value, bars.theta / len(x) - own.gradient, plain)


def _sweep_layers(
    parts: LayerDecomposition, objective: Objective, here: LayerTrajectory, data: Data, rho: float, inner: int
) -> tuple[LayerTrajectory, float]:
    """The trajectory after all layers are updated, and the total gain of their Hamiltonians."""
    method = LBFGS(inner, tol=0.0)

    def maximise(n: int) -> tuple[np.ndarray, float]:
        start = here.theta[parts.layers[n].places]
        if not start.size:
            return start, 0.0

        def negative(theta: np.ndarray) -> Evaluation:
            found = build_hamiltonian(parts, objective.penalty, here, n, theta, rho)
            return Evaluation(-found.value, nan, -found.gradient)

        with np.errstate(over="ignore", invalid="ignore"):
            end = descend(negative, start, method, MinimisationState(Bar(None), start)).theta
            gained = [build_hamiltonian(parts, objective.penalty, here, n, each, 0.0).plain for each in (start, end)]
        return end, gained[1] - gained[0]

    theta, gain = np.array(here.theta), 0.0
    for layer, (new, gained) in zip(parts.layers, parts.map_over(maximise), strict=True):
        theta[layer.places], gain = new, gain + gained
    return build_trajectory(parts, objective, theta, data), gain
