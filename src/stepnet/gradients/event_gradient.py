"""Gradients through a terminal event, by the implicit function theorem.

A run that ends at a zero of g takes its steps unchanged and a last one of the length for which g(t, y) = 0 at the new
state y.  With mu = -(dL/dt + dL/dy dy/dh) / (dg/dt + dg/dy dy/dh) the gradient is that of L + mu g at a fixed time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from stepnet.engines.contract import FixedSteps, StateStream
from stepnet.errors import NoDerivative
from stepnet.events import Event
from stepnet.gradients.reversal import count_steps_in_block
from stepnet.problem import Problem, restart, state_shape
from stepnet.schemes.capabilities import takes_uneven_steps
from stepnet.solution import Status
from stepnet.solving.integrate import solve_streaming
from stepnet.solving.planning import AdaptiveOptions, validate_events

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun

TANGENT = 1e-10  # relative to its terms: where dg/dt along the solution is smaller, the zero has no derivative


class EventRun:
    """A run up to its event: `grid` holds the step times, the last that of the event, `y` the flat state there.

    The event is located by varying the length of the last step, not on its polynomial.
    """

    def __init__(
        self, engine: ModuleType, problem: Problem, scheme: Any, event: Event | Callable[..., Any],
        steps: ArrayLike | None, choices: AdaptiveOptions, differences: bool,
    ) -> None:  # fmt: skip
        if not takes_uneven_steps(scheme):
            raise TypeError(f"{scheme.name} takes equal steps, so its last one cannot end at an event")
        watched = replace(_require_single(validate_events(scheme, event)), terminal=True, reset=None)
        times, last = array("d"), [problem.initial]

        def take(t: np.ndarray, y: np.ndarray) -> None:
            times.frombytes(t.tobytes())
            last[0] = y[-1].copy()

        passing = StateStream(count_steps_in_block(problem.initial.size), take)
        solution = solve_streaming(problem, scheme, steps, choices, passing, (watched,))
        if solution.status is not Status.EVENT:
            raise ValueError(f"`event` has no zero before the end of the time span, t = {problem.t_span[1]:g}")
        self._engine, self._scheme, self._differences = engine, scheme, differences
        self._g = engine.EventFunction(problem, watched.fun)
        found = float(solution.t_events[0][-1])
        is_before = np.abs(solution.t - problem.t_span[0]) < abs(found - problem.t_span[0])
        take(solution.t[is_before], np.vstack((last[0], solution.y[is_before].reshape(-1, problem.initial.size))))
        self._last = restart(problem, last[0].reshape(state_shape(problem)), (times[-1], found))
        self.t = _zero(lambda t: self._g.value(t, self._end(t)), found, found - times[-1])
        times.append(self.t)
        self.grid, self.y = np.frombuffer(times), self._end(self.t)

    def _step_to(self, t: float) -> DifferentiableRun:
        problem = replace(self._last, t_span=(self._last.t_span[0], t))
        return self._engine.linearise(problem, self._scheme, FixedSteps(1), True, self._differences)

    def _end(self, t: float) -> np.ndarray:
        linear = self._step_to(t)
        state = linear.open(linear.problem.initial)
        linear.forward(state, 0, 1)
        return linear.extract_state(state)

    def multiplier(self, dy: np.ndarray, dt: float) -> tuple[float, np.ndarray, np.ndarray]:
        """mu for a loss with the derivatives `dy` and `dt` at the event, and mu dg/dy, mu dg/dp."""
        g_t, g_y, g_p = self._g.gradient(self.t, self.y)
        along_g, along_loss = self._length_derivative(g_y), self._length_derivative(dy)
        rate = g_t + along_g
        if not abs(rate) > TANGENT * (abs(g_t) + np.sum(np.abs(g_y))):
            raise ValueError(f"`event` only touches zero at t = {self.t:g}, so its time has no derivative")
        mu = -(dt + along_loss) / rate
        return mu, mu * g_y, mu * g_p

    def _length_derivative(self, w: np.ndarray) -> float:
        """w dy/dh of the last step."""
        linear = self._step_to(self.t)
        if not linear.is_complete:
            raise NoDerivative(f"`event` needs df/dt, which is not known ({linear.rung}); leave out `vjp` and `jac`")
        states, state = np.empty((1, linear.width)), linear.open(linear.problem.initial)
        linear.forward(state, 0, 1, states)
        bar, sums = linear.spread(w), linear.new_sums()
        linear.backward(states, 0, 1, bar, sums)
        linear.close(linear.problem.initial, bar, sums)
        t0, t1 = linear.problem.t_span
        return float(sums.t[1] / (t1 - t0))


def _require_single(events: tuple[Event, ...]) -> Event:
    if len(events) != 1:
        raise TypeError(f"`event` must be one event, found {len(events)}")
    return events[0]


def _zero(function: Callable[[float], float], guess: float, h: float) -> float:
    """Find a zero near a guess that is as accurate as the dense output."""
    width = 1e-6 * h
    for _ in range(16):
        ends = guess - width, guess + width
        if np.sign(function(ends[0])) != np.sign(function(ends[1])):
            return float(brentq(function, *ends, xtol=4 * np.finfo(float).eps * max(abs(guess), abs(h)), rtol=1e-15))
        width *= 2
    raise ValueError(f"`event` only touches zero near t = {guess:g}, so its time has no derivative")
