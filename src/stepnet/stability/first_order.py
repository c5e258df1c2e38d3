"""Problems in the form y' = f(t, y), whose Jacobian is one matrix."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from stepnet.gradients.derivatives import jacobian
from stepnet.problem import ODE, Flow, Partitioned, Problem, SecondOrder, Split
from stepnet.validation import array, instance

DETERMINISTIC = instance(ODE, Partitioned, SecondOrder, Split)


def as_first_order(problem: Problem) -> ODE:
    """The same equations as an ODE with a flat state, (q, p) or (q, v) if the state is partitioned."""
    if isinstance(problem, ODE):
        if problem.mass is not None:
            raise TypeError(
                "`problem` has a `mass`, which is not supported here; multiply by its inverse in `fun`, or eliminate "
                "the algebraic unknowns"
            )
        return problem
    if isinstance(problem, Split) and any(isinstance(part, Flow) for part in problem.parts):
        raise TypeError("`problem` must have right-hand sides; its `parts` hold a `Flow`, which has none")
    slopes, n, shape = _choose_slopes(problem), problem.initial.size, np.shape(problem.initial)
    if not isinstance(problem, Split):
        n, shape = n // 2, np.shape(problem.q0)  # type: ignore[union-attr]

    def fun(t: float, y: Any, *args: Any) -> Any:
        parts = [y[k : k + n].reshape(shape) for k in range(0, y.size, n)]
        return np.concatenate([np.asarray(each).reshape(n) for each in slopes(t, *parts, *args)])

    return ODE(fun, problem.initial.ravel(), problem.t_span, problem.args, trace=problem.trace)


def _choose_slopes(problem: Any) -> Any:
    """The slopes of the parts of the state as functions of t, the parts and the arguments."""
    if isinstance(problem, Split):
        shape = problem.y0.shape
        return lambda t, y, *args: (sum(np.asarray(f(t, y.reshape(shape), *args)) for f in problem.parts),)
    if isinstance(problem, SecondOrder):
        return lambda t, q, v, *args: (v, problem.acceleration(t, q, *args))
    if problem.separable:
        return lambda t, q, p, *args: (problem.dq(t, p, *args), problem.dp(t, q, *args))
    return lambda t, q, p, *args: (problem.dq(t, q, p, *args), problem.dp(t, q, p, *args))


class FirstOrderField:
    """The right-hand side and the Jacobian of a problem at flat states."""

    def __init__(self, problem: Problem):
        if np.iscomplexobj(problem.initial):
            raise TypeError(
                "`problem` must have a real state, found complex numbers; write it for their real and imaginary parts"
            )
        self.problem = as_first_order(problem)
        self.size = self.problem.initial.size

    @cached_property
    def _derivative(self) -> Any:
        return jacobian(self.problem)

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """f(t, y), flat."""
        found = self.problem.fun(t, y.reshape(self.problem.y0.shape), *self.problem.args)
        return np.asarray(found, np.float64).ravel()

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """df/dy (n, n)."""
        return np.asarray(self._derivative.dense(float(t), y))

    def require_slopes(self) -> None:
        """Refuse right-hand sides that cannot be called in Python and return their slopes."""
        try:
            found = self.slope(self.problem.t_span[0], self.problem.initial)
        except (TypeError, ValueError):
            found = np.zeros(0)
        if found.size != self.size:
            raise TypeError(
                "`problem` must have a right-hand side that returns its slopes, as in f(t, y, *args); found one that "
                "fills an array or is not a Python function"
            )


def choose_state(name: str, value: Any, default: np.ndarray) -> np.ndarray:
    """A flat state of finite numbers, as long as the default, and complex only if that is."""
    if value is None:
        given = default
    elif np.iscomplexobj(default):
        given = array()(name, np.real(value)) + 1j * array()(name, np.imag(value))
    else:
        given = array()(name, value)
    found = given.astype(np.result_type(default, np.float64)).ravel()
    if found.size != default.size or not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be {default.size} finite numbers, found {found!r:.60}")
    return found
