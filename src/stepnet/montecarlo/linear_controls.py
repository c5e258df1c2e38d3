"""Control variables that are linear in the increments of W: their mean is zero for every scheme and number of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.gradients.derivatives import jacobian
from stepnet.montecarlo.path_functional import build_brownian, draw_increments, require_result
from stepnet.problem import ODE, SDE


@dataclass(frozen=True)
class BrownianEnd:
    """The components of W(T) - W(t0)."""

    sde: SDE
    steps: int

    @property
    def number(self) -> int:
        """Control variables."""
        return self.sde.n_components

    @property
    def entries(self) -> int:
        """Numbers of a path that are held at once."""
        return self.number

    def evaluate(self, part: slice, first: int, count: int) -> np.ndarray:
        """Their values for some of the points and paths, (points, paths, number)."""
        brownian, paths = build_brownian(self.sde, self.number), first + np.arange(count)
        ends = solve_ensemble(brownian, "euler_maruyama", paths=paths, steps=self.steps).y[:, 0]
        return np.broadcast_to(ends, (part.stop - part.start, count, self.number))


@dataclass(frozen=True, eq=False)
class LinearisedEnd:
    """The end of the equation that is linearised about its path m without noise, minus m(T).

    It is sum_n Phi(T, t_n+1) g(t_n, m_n) dW_n with m and the propagator Phi by Euler's scheme; `weights` hold the
    factors of all increments, (points, steps * components, entries).
    """

    sde: SDE
    steps: int
    weights: np.ndarray

    @property
    def number(self) -> int:
        """Control variables."""
        return self.sde.y0.size

    @property
    def entries(self) -> int:
        """Numbers of a path that are held at once."""
        return self.steps * self.sde.n_components

    def evaluate(self, part: slice, first: int, count: int) -> np.ndarray:
        """Their values for some of the points and paths, (points, paths, number)."""
        dW = draw_increments(self.sde, self.sde.n_components, first, count, self.steps).reshape(count, -1)
        found = np.zeros((part.stop - part.start, count, self.number))
        for k, increments in enumerate(dW.T):  # in an order that does not depend on the number of paths
            found += increments[:, None] * self.weights[part, None, k]
        return found


def linearise(sde: SDE, points: np.ndarray, steps: int) -> LinearisedEnd:
    """The controls of a linearised equation for each start point."""
    require_result(sde.drift, "`control` = 'linearisation' needs")
    t0, t1 = sde.t_span
    h, shape, n, m = (t1 - t0) / steps, sde.y0.shape, sde.y0.size, sde.n_components
    derivative = jacobian(ODE(sde.drift, sde.y0, sde.t_span, sde.args))
    weights = np.empty((len(points), steps, m, n))
    for weight, point in zip(weights, points, strict=True):
        y, states = point.copy(), []
        for k in range(steps):
            states.append(y)
            y = y + h * np.ravel(sde.drift(t0 + k * h, y.reshape(shape), *sde.args))
        propagator = np.eye(n)
        for k in reversed(range(steps)):
            t, y = t0 + k * h, states[k].reshape(shape)
            g = np.asarray(sde.diffusion(t, y, *sde.args), float)
            is_vector = sde.diffusion_shape == shape
            columns = (
                (g.reshape(n, 1) if sde.noise == "scalar" else np.diag(g.ravel())) if is_vector else g.reshape(n, m)
            )
            weight[k] = (propagator @ columns).T
            propagator = propagator @ (np.eye(n) + h * derivative.dense(t, y).reshape(n, n))
    if not np.isfinite(weights).all():
        raise ValueError("`control` = 'linearisation' needs a path without noise that stays finite, use more `steps`")
    return LinearisedEnd(sde, steps, weights.reshape(len(points), steps * m, n))
