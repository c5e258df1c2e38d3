"""Derivatives along directions, whole matrices of them, and second derivatives.

The tangent of a problem is a problem itself, the state with its tangent beside it, so all that is known of problems
holds for it: its adjoint is that of second derivatives (forward over reverse).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.chosen_steps import Steps, as_failed_solve, linearised, require_argument_gradients, steps_of
from stepnet.integrate import scheme_for, solve
from stepnet.planning import Choices
from stepnet.problem import Partitioned, Problem, SecondOrder
from stepnet.reading import flattened, real_numbers, shape_of


class Tangent(NamedTuple):
    """An end state and its derivative along a direction."""

    y: np.ndarray
    dy: np.ndarray


def tangent(problem: Problem, scheme, *, y0=None, args=None, steps=None, **choices) -> Tangent:
    """The derivative of the end state along a direction of the initial state (`y0`) and of the arguments (`args`).

    Steps are chosen and then held fixed, as in `gradient`, which takes the same options.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme = scheme_for(problem, scheme)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    return _tangent(engine, problem, scheme, chosen, *_direction(engine, problem, y0, args))


class Jacobian(NamedTuple):
    """Derivatives of the end state: with respect to the initial one, and to each argument."""

    y0: np.ndarray
    args: tuple


def jacobian(problem: Problem, scheme, *, steps=None, differences: bool = False, **choices) -> Jacobian:
    """The matrix d y_end / d y0 of flat states, and d y_end / d args: one run forward, one back for each row."""
    from stepnet.engines.numba_engine import differentiation as engine

    scheme = scheme_for(problem, scheme)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    linear = linearised(engine, problem, scheme, chosen, False, differences)
    require_argument_gradients(linear)
    n = problem.initial.size
    rows, p_rows = np.zeros((n, n)), []
    with as_failed_solve(engine, problem, scheme, chosen):
        states, n_steps = _stored(linear)
    for i, w in enumerate(np.eye(n)):
        bar, sums = linear.spread(w), linear.new_sums()
        linear.backward(states, linear.begin, n_steps, bar, sums)
        rows[i] = linear.close(problem.initial, bar, sums)
        p_rows.append(engine.as_arguments(sums.p, problem.args))
    columns = zip(*p_rows, strict=True)
    return Jacobian(rows, tuple(None if column[0] is None else np.array(column) for column in columns))


class HessianProduct(NamedTuple):
    """Second derivatives of a loss times a direction, with respect to the initial state and to the arguments."""

    y0: np.ndarray
    args: tuple

    @property
    def flat(self) -> np.ndarray:
        """All of them as one array."""
        return flattened(self.y0, self.args)


def hvp(problem: Problem, scheme, loss, *, y0=None, args=None, steps=None, gauss_newton: bool = False, **choices):
    """The Hessian of `loss(y_end)` times a direction (`y0`, `args`): the adjoint of the tangent, forward over reverse.

    With `gauss_newton` the second derivatives of the steps are left out: J' H J times the direction, H of the loss.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme = scheme_for(problem, scheme)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    direction, p_direction = _direction(engine, problem, y0, args)
    shape, n = shape_of(problem), problem.initial.size
    end = _tangent(engine, problem, scheme, chosen, direction, p_direction)
    scalar = engine.scalar_of(loss, end.y)
    curved = scalar.hessian_product(end.y, end.dy).ravel()
    if gauss_newton:
        linear = linearised(engine, problem, scheme, chosen)
        y_bar, p_bar = _pulled_back(linear, curved)
        return HessianProduct(y_bar.reshape(shape), engine.as_arguments(p_bar, problem.args))
    _, gradient_at_end = scalar.value_and_gradient(end.y)
    both = engine.tangent_problem(problem, direction, p_direction)
    linear = linearised(engine, both, scheme, chosen)
    seed = _interleaved(problem, curved, gradient_at_end.ravel())
    y_bar, p_bar = _pulled_back(linear, seed)
    first, _ = _separated(problem, y_bar)
    return HessianProduct(first[:n].reshape(shape), engine.as_arguments(p_bar[: p_direction.size], problem.args))


def _stored(linear) -> tuple[np.ndarray, int]:
    """The states before all steps of a run."""
    n = linear.n_steps - linear.begin
    states, state = np.empty((n, linear.width)), linear.open(linear.problem.initial)
    linear.forward(state, linear.begin, n, states)
    return states, n


def _pulled_back(linear, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients with respect to the flat initial state and the parameters, from that of the end."""
    states, n = _stored(linear)
    bar, sums = linear.spread(w), linear.new_sums()
    linear.backward(states, linear.begin, n, bar, sums)
    return linear.close(linear.problem.initial, bar, sums), sums.p


def _direction(engine, problem: Problem, y0, args) -> tuple[np.ndarray, np.ndarray]:
    if y0 is None and args is None:
        raise TypeError("give a direction: `y0`, `args` or both")
    n = problem.initial.size
    direction = np.zeros(n) if y0 is None else real_numbers("y0", y0).ravel()
    if direction.size != n:
        raise ValueError(f"`y0` must be a direction of {n} numbers, found {direction.size}")
    if args is not None and len(args) != len(problem.args):
        raise ValueError(
            f"`args` must be as many directions as there are arguments, {len(problem.args)}, found {len(args)}"
        )
    return direction, engine.as_block((None,) * len(problem.args) if args is None else args, problem.args)


def _tangent(engine, problem: Problem, scheme, chosen: Steps, direction, p_direction) -> Tangent:
    both = engine.tangent_problem(problem, direction, p_direction)
    solution = solve(both, scheme, steps=chosen.as_argument, save_every=0)
    first, second = _separated(problem, solution.y[-1].ravel())
    return Tangent(first.reshape(shape_of(problem)), second.reshape(shape_of(problem)))


def _separated(problem: Problem, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """State and tangent out of those of a tangent problem: (q, q', p, p') for problems in halves."""
    if not _has_halves(problem):
        n = problem.initial.size
        return flat[:n], flat[n:]
    q, dq, p, dp = np.split(flat, 4)
    return np.concatenate((q, p)), np.concatenate((dq, dp))


def _interleaved(problem: Problem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The other way round."""
    if not _has_halves(problem):
        return np.concatenate((first, second))
    (q, p), (dq, dp) = np.split(first, 2), np.split(second, 2)
    return np.concatenate((q, dq, p, dp))


def _has_halves(problem: Problem) -> bool:
    """Whether the tangent problem is in halves as the problem is."""
    return isinstance(problem, SecondOrder) or (isinstance(problem, Partitioned) and problem.separable)
