"""Derivatives along directions, whole matrices of them, and second derivatives.

The tangent of a problem is a problem itself, the state with its tangent beside it, so all that is known of problems
holds for it: its adjoint is that of second derivatives (forward over reverse).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from stepnet.chosen_steps import (
    Steps,
    as_failed_solve,
    identity_of,
    linearised,
    require_argument_gradients,
    steps_of,
)
from stepnet.integrate import scheme_for, solve
from stepnet.memory_choices import EXACT, in_memory, require_memory
from stepnet.planning import Choices
from stepnet.problem import Partitioned, Problem, SecondOrder, state_shape
from stepnet.reading import flattened, real_numbers
from stepnet.reversal import Seeds


class Tangent(NamedTuple):
    """An end state and its derivative along a direction."""

    y: np.ndarray
    dy: np.ndarray


def tangent(problem: Problem, scheme, *, y0=None, args=None, steps=None, **choices) -> Tangent:
    """The derivative of the end state along a direction of the initial state (`y0`) and of the arguments (`args`).

    Steps are chosen and then held fixed, as in `gradient`, which takes the same options.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme, problem = scheme_for(problem, scheme), engine.with_reals(problem)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    return _tangent(engine, problem, scheme, chosen, *_direction(engine, problem, y0, args))


class Jacobian(NamedTuple):
    """Derivatives of the end state: with respect to the initial one, and to each argument."""

    y0: np.ndarray
    args: tuple


def jacobian(problem: Problem, scheme, *, steps=None, memory="auto", differences: bool = False, **choices) -> Jacobian:
    """The matrix d y_end / d y0 of flat states, and d y_end / d args: one run forward, and all rows back together.

    `memory` is that of `gradient`, without the choices that are not exact.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme, problem = scheme_for(problem, scheme), engine.with_reals(problem)
    require_memory(memory, EXACT)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    linear = linearised(engine, problem, scheme, chosen, False, differences)
    require_argument_gradients(linear, engine.whole_places(problem))
    rows = np.eye(problem.initial.size)[:, None]
    facts = partial(identity_of, engine, problem, scheme, chosen, "jacobian")
    y_bars, p_bars = _pulled_back(engine, linear, chosen, lambda _: rows, memory, facts)
    columns = zip(*(engine.as_arguments(p_bar, problem.args, linear.has_parameters) for p_bar in p_bars), strict=True)
    return Jacobian(np.array(y_bars), tuple(None if column[0] is None else np.array(column) for column in columns))


class HessianProduct(NamedTuple):
    """Second derivatives of a loss times a direction, with respect to the initial state and to the arguments."""

    y0: np.ndarray
    args: tuple

    @property
    def flat(self) -> np.ndarray:
        """All of them as one array."""
        return flattened(self.y0, self.args)


def hvp(
    problem: Problem, scheme, loss, *, y0=None, args=None, steps=None, memory="auto", gauss_newton: bool = False,
    **choices,
) -> HessianProduct:  # fmt: skip
    """The Hessian of `loss(y_end)` times a direction (`y0`, `args`): the adjoint of the tangent, forward over reverse.

    With `gauss_newton` the second derivatives of the steps are left out: J' H J times the direction, H of the loss.
    `memory` is that of `gradient`, without the choices that are not exact.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme, problem = scheme_for(problem, scheme), engine.with_reals(problem)
    require_memory(memory, EXACT)
    chosen = steps_of(problem, scheme, steps, Choices(**choices), None)
    direction, p_direction = _direction(engine, problem, y0, args)
    facts = partial(
        identity_of, engine, problem, scheme, chosen, direction.tobytes(), p_direction.tobytes(), gauss_newton
    )
    if gauss_newton:
        end = _tangent(engine, problem, scheme, chosen, direction, p_direction)
        curved = engine.scalar_of(loss, end.y).hessian_product(end.y, end.dy)
        linear = linearised(engine, problem, scheme, chosen)
        (y_bar,), (p_bar,) = _pulled_back(engine, linear, chosen, lambda _: curved, memory, facts)
    else:

        def seed(states):
            y, dy = (half.reshape(state_shape(problem)) for half in _separated(problem, states[0]))
            scalar = engine.scalar_of(loss, y)
            curved, (_, gradient) = scalar.hessian_product(y, dy), scalar.value_and_gradient(y)
            return _interleaved(problem, curved.ravel(), gradient.ravel())

        linear = linearised(engine, engine.tangent_problem(problem, direction, p_direction), scheme, chosen)
        (both,), (p_bar,) = _pulled_back(engine, linear, chosen, seed, memory, facts)
        y_bar, _ = _separated(problem, both)
    own = engine.as_arguments(p_bar[: p_direction.size], problem.args)
    return HessianProduct(y_bar.reshape(state_shape(problem)), own)


def _pulled_back(engine, linear, chosen: Steps, loss: Callable, memory, facts: Callable) -> tuple[list, list]:
    """Gradients with respect to the flat initial state and the parameters, of each loss of the end."""
    with as_failed_solve(engine, linear.problem, linear.scheme, chosen):
        run, _, _ = in_memory(linear, Seeds(linear, chosen.places, loss), memory, facts)
        return run.close(), [sums.p for sums in run.sums]


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
    both = engine.tangent_problem(problem, direction, p_direction, may_call=True)
    solution = solve(both, scheme, steps=chosen.as_argument, save_every=0)
    first, second = _separated(problem, solution.y[-1].ravel())
    return Tangent(first.reshape(state_shape(problem)), second.reshape(state_shape(problem)))


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
