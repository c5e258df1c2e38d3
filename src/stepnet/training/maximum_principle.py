"""Successive approximations from Pontryagin's maximum principle: states forward, costates back, layers by themselves.

With x_(n+1) = f_n(x_n, theta_n), a loss Phi(x_N) and penalties L_n, the Hamiltonians are H_n = p_(n+1) . f_n - L_n, the
costates p_n = dH_n / dx_n back from p_N = -dPhi / dx_N.  In every sweep each layer maximises

    H_n(theta) - rho / 2 |x_(n+1) - f_n(x_n, theta)|^2 - rho / 2 |p_n - dH_n / dx (x_n, theta)|^2

over its own parameters, states and costates being kept: no layer waits for another.  The terms with rho keep them true.
Li, Chen, Tai & E (2017), Maximum principle based algorithms for deep learning, arXiv:1710.09513.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import NamedTuple

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets.layer_decomposition import LayerDecomposition
from stepnet.nets.penalties import Penalty
from stepnet.records import explain_arguments, keep, keep_numbers, validate_count
from stepnet.training.lbfgs import LBFGS, descend
from stepnet.training.minimisation import ZERO_GRADIENT, MinimisationState, Minimum, require_start
from stepnet.training.objective import Data, Evaluation, Objective
from stepnet.training.progress import Bar

DESCENT, BAD, GOOD = 1e-4, 0.25, 0.5  # of what the Hamiltonians gain: to be taken, for rho to grow, for rho to shrink
LARGEST = 1e14  # times the first rho; its inverse is the smallest


@explain_arguments()
@dataclass(frozen=True)
class MSA:
    """The method of successive approximations, extended by rho; Li, Chen, Tai & E (2017), arXiv:1710.09513.

    Parameters
    ----------
    iterations : int
        Most sweeps; each maximises all Hamiltonians once.
    rho : float
        How much layers mind that states and costates change.  Zero is the basic method, which may diverge.
    inner : int
        L-BFGS steps of each layer in a sweep.
    growth : float
        A sweep after which the objective has not fallen is undone, and rho multiplied by this; it is divided by it
        where the objective fell by much of what the Hamiltonians gained.  One keeps rho and takes every sweep.
    tol : float
        The largest entry of the gradient at which it ends.
    """

    iterations: int = 50
    rho: float = 1.0
    inner: int = 10
    growth: float = 4.0
    tol: float = 1e-8

    def __post_init__(self):
        keep(self, iterations=validate_count("iterations", self.iterations, 0))
        keep(self, inner=validate_count("inner", self.inner, 1))
        keep_numbers(self, rho="[0, inf)", growth="[1, inf)", tol="[0, inf)")
        if self.rho == 0 and self.growth > 1:
            raise ValueError("`rho` must be positive to grow, found 0; the basic method is `rho=0, growth=1`")


class LayerTrajectory(NamedTuple):
    """What a sweep keeps: parameters, the objective there with its gradient, states and costates of all layers.

    States and costates are `(batch, features)`.  Costates are those of the sum over samples, so that rho does not
    depend on how many there are.
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
    """Sweeps until the gradient is zero, or all are done."""
    if objective.smoothness:
        raise ValueError("MSA needs layers that do not know each other: `smoothness` must be 0, found "
                         f"{objective.smoothness:g}")  # fmt: skip
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
    return watch.minimum(False, "no rho made the objective fall: rounding") if rho > LARGEST * method.rho else found


def build_trajectory(parts: LayerDecomposition, objective: Objective, theta: np.ndarray, data: Data) -> LayerTrajectory:
    """States forward and costates back; the gradient of the objective comes along, as it is -sum_n dH_n / dtheta."""
    states = parts.states(theta, data.x)
    local, own = objective.loss.at(parts.outputs(states), data.y, data.weights), objective.penalty.at(theta)
    end = np.asarray(-len(data) * local.gradient, theta.dtype)
    p, bar = parts.costates(theta, states, end)
    return LayerTrajectory(theta, local.value + own.value, own.gradient - bar / len(data), states, p)


def build_hamiltonian(
    parts: LayerDecomposition, penalty: Penalty, here: LayerTrajectory, n: int, theta: np.ndarray, rho: float
) -> Hamiltonian:
    """That of layer n at its own parameters `theta`.

    Sums over samples are means.  The mixed derivative in the term of the costates is a central difference of exact
    gradients, along the direction in which the costate has moved.
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
    """Where all layers go from a trajectory, and how much their Hamiltonians gain together."""
    method = LBFGS(inner, tol=0.0)

    def maximised(n: int) -> tuple[np.ndarray, float]:
        start = here.theta[parts.layers[n].places]
        if not start.size:
            return start, 0.0

        def negative(theta):
            found = build_hamiltonian(parts, objective.penalty, here, n, theta, rho)
            return Evaluation(-found.value, nan, -found.gradient)

        with np.errstate(over="ignore", invalid="ignore"):
            end = descend(negative, start, method, MinimisationState(Bar(None), start)).theta
            gained = [build_hamiltonian(parts, objective.penalty, here, n, each, 0.0).plain for each in (start, end)]
        return end, gained[1] - gained[0]

    theta, gain = np.array(here.theta), 0.0
    for layer, (new, gained) in zip(parts.layers, parts.over(maximised), strict=True):
        theta[layer.places], gain = new, gain + gained
    return build_trajectory(parts, objective, theta, data), gain
