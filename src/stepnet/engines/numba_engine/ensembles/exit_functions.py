"""The functions of the events of a stochastic problem, with the squares of their diffusions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepnet.engines.numba_engine.rhs.problem_parts import build_event_fields
from stepnet.engines.numba_engine.rhs.stochastic_parts import find_product_kind
from stepnet.events import Event
from stepnet.noise.counters import EXIT, pack_counter
from stepnet.noise.philox import convert_to_uniforms, draw_words
from stepnet.problem import SDE
from stepnet.schemes.step_program import ELEMENTWISE

NEVER = 2.0  # the fraction of a step for events that do not occur in it
NEWTON_STEPS = 6
LEAST_EXPONENT = 40.0  # exp(-40) is less than the spacing of uniform numbers
RELATIVE_STEP = 1e-6  # of central differences, whose error is then about 1e-10


class SinglePathExits:
    """The events of one path, evaluated step by step in Python."""

    def __init__(self, problem: SDE, events: tuple[Event, ...]):
        self._problem, self._events = problem, events
        self._functions = build_event_fields(problem, events)

    def find(self, first: int, times: np.ndarray, states: np.ndarray) -> tuple[int, int, float] | None:
        """The first exit from step `first` on: the step among these, the event, and the fraction of the step."""
        d = np.array([[g(t, y)[0] for g in self._functions] for t, y in zip(times.tolist(), states, strict=True)])
        for s in range(len(states) - 1):
            fractions = [self._find_fraction(e, first + s, times[s : s + 2], d[s : s + 2, e], states[s])
                         for e in range(len(self._events))]  # fmt: skip
            if min(fractions) < NEVER:
                event = int(np.argmin(fractions))
                return s, event, fractions[event]
        return None

    def _find_fraction(self, e: int, step: int, times: np.ndarray, d: np.ndarray, y: np.ndarray) -> float:
        """The fraction of a step after which event e occurs; see `path_exits`."""
        (d0, d1), event = d.tolist(), self._events[e]
        is_falling = d0 > 0 or (d0 == 0 and d1 < 0)
        if event.direction * (-1 if is_falling else 1) < 0:
            return NEVER
        if d0 * d1 < 0 or d1 == 0:
            return d0 / (d0 - d1) if d0 != d1 else 0.0
        if not event.bridge:
            return NEVER
        v, _ = self._differentiate(self._functions[e], times[0], y)
        exponent = 2 * d0 * d1 / (v * (times[1] - times[0])) if v > 0 else np.inf
        if exponent < LEAST_EXPONENT and self._draw(e, step) < np.exp(-exponent):
            return d0 / (d0 + d1)
        return NEVER

    def project(self, e: int, t: float, y: np.ndarray) -> np.ndarray:
        """Move a state along the noise to a zero of event e, by Newton's method."""
        for _ in range(NEWTON_STEPS):
            d, (v, direction) = self._functions[e](t, y)[0], self._differentiate(self._functions[e], t, y)
            if not v > 0 or d == 0:
                break
            y = y - d / v * direction
        return y

    def _differentiate(self, function: Callable, t: float, y: np.ndarray) -> tuple[float, np.ndarray]:
        """sum_j (grad d . g_j)^2 and sum_j (grad d . g_j) g_j by central differences."""
        problem = self._problem
        g = np.asarray(problem.diffusion(t, y.reshape(problem.y0.shape), *problem.args), float)
        kind = find_product_kind(problem)
        columns = np.diag(g.ravel()) if kind == ELEMENTWISE else g.reshape(y.size, -1).T
        total, direction = 0.0, np.zeros(y.size)
        for column in columns:
            size = np.abs(column).max()
            if size > 0:
                step = RELATIVE_STEP * (1.0 + np.abs(y).max()) / size
                speed = (function(t, y + step * column)[0] - function(t, y - step * column)[0]) / (2 * step)
                total, direction = total + speed**2, direction + speed * column
        return total, direction

    def _draw(self, event: int, step: int) -> float:
        problem = self._problem
        words = draw_words(pack_counter(EXIT, problem.path, event, step), problem.seed)
        return float(convert_to_uniforms(words)[0])
