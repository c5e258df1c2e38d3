"""Directional derivatives, Jacobians and Hessian products of solves.

The tangent problem, the state augmented by its tangent, is itself a problem: its adjoint gives second derivatives
(forward over reverse).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.checkpoints.budget import Memory, validate_memory
from stepnet.engines.contract import FixedSteps
from stepnet.errors import NoDerivative
from stepnet.gradients.loss_readout import flatten_derivatives, require_real_numbers
from stepnet.gradients.memory_policy import EXACT, find_bytes, reverse_in_memory
from stepnet.gradients.reversal import Seeds
from stepnet.gradients.sensitivities import find_sensitivities
from stepnet.gradients.step_selection import (
    StepSelection,
    as_failed_solve,
    build_differentiable_run,
    find_identity,
    require_argument_gradients,
    require_differentiable_steps,
    select_steps,
)
from stepnet.problem import Problem, ProblemForm, state_shape
from stepnet.records import explain_arguments, show_fields
from stepnet.schemes.capabilities import needs_axes
from stepnet.solving.integrate import find_scheme, solve
from stepnet.solving.planning import AdaptiveOptions
from stepnet.validation import sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun


class Tangent(NamedTuple):
    """An end state, or the states at `save_at`, and their derivatives along a direction."""

    y: np.ndarray
    dy: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)


@explain_arguments(also=AdaptiveOptions._fields)
def tangent(
    problem: Problem, scheme: Any = None, *, y0: ArrayLike | None = None, args: Sequence[Any] | None = None,
    steps: ArrayLike | None = None, save_at: ArrayLike | None = None, **choices: Any,
) -> Tangent:  # fmt: skip
    """Compute the derivative of the end state along a direction of the initial state (`y0`) and arguments (`args`).

    With `save_at` it is the derivative of the states at those times, (times, *state).  Steps are chosen and then held
    fixed, as in `gradient`, which takes the same options.

    Parameters
    ----------
    problem, scheme, steps
        As in `gradient`.
    y0 : array_like, optional
        The direction of the initial state.
    args : sequence of Any, optional
        The direction of the arguments, one entry for each of them.
    save_at : array_like, optional
        Times of the derivatives.
    **choices
        Further options of `gradient` for adaptive steps.

    Returns
    -------
    Tangent
        The states and their derivatives.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.tangent(problem, "rk4", y0=[1.0], steps=10).dy.round(5)
    array([0.36788])
    """
    from stepnet.engines import numba_engine as engine

    scheme, problem = find_scheme(problem, scheme, steps), engine.convert_to_floats(problem)
    require_differentiable_steps(scheme)
    chosen = select_steps(problem, scheme, steps, AdaptiveOptions(**choices), save_at)
    times = None if save_at is None else chosen.times(problem.t_span)
    return _solve_tangent(engine, problem, scheme, chosen, *_validate_direction(engine, problem, y0, args), times)


class Jacobian(NamedTuple):
    """Derivatives of the end state, or the states at `save_at`, with respect to the initial state and each argument."""

    y0: np.ndarray
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        return show_fields(self)


@explain_arguments(also=AdaptiveOptions._fields)
def jacobian(
    problem: Problem, scheme: Any = None, *, steps: ArrayLike | None = None, save_at: ArrayLike | None = None,
    memory: Memory | int = "auto", differences: bool = False, **choices: Any,
) -> Jacobian:  # fmt: skip
    """Compute d y_end / d y0 of flat states and d y_end / d args by one forward run and a reverse sweep for all rows.

    With `save_at` these are the sensitivities d y(t_i) / d y0 (times, n, n) and d y(t_i) / d args (times, n, *argument)
    at all those times, from one run.

    Parameters
    ----------
    problem, scheme, steps
        As in `gradient`, and its options for adaptive steps.
    save_at : array_like, optional
        Times of the derivatives; adaptive steps end there, fixed ones must include them.
    memory : str, int or Checkpoints, optional
        As in `gradient`, without the policies that are not exact.  With `save_at` the derivatives are accumulated in
        the forward run, which stores one block of states.
    differences : bool, optional
        Allow finite differences of a right-hand side whose derivative is not known.
    **choices
        Options of `gradient` for adaptive steps.

    Returns
    -------
    Jacobian

    Examples
    --------
    >>> import stepnet as sn
    >>> rotation = sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 1.0))
    >>> sn.jacobian(rotation, "rk4", steps=100).y0.round(4)
    array([[ 0.5403,  0.8415],
           [-0.8415,  0.5403]])
    """
    from stepnet.engines import numba_engine as engine

    scheme, problem = find_scheme(problem, scheme, steps), engine.convert_to_floats(problem)
    require_differentiable_steps(scheme)
    memory = validate_memory(memory, EXACT, may_use_disk=True)
    chosen = select_steps(problem, scheme, steps, AdaptiveOptions(**choices), save_at)
    linear = build_differentiable_run(engine, problem, scheme, chosen, False, differences)
    require_argument_gradients(linear, engine.find_unconverted(problem))
    if save_at is not None:
        with as_failed_solve(engine, problem, scheme, chosen):
            y, p = find_sensitivities(linear, chosen.places, find_bytes(memory))
    else:
        rows = np.eye(problem.initial.size)[:, None]
        facts = partial(find_identity, engine, problem, scheme, chosen, "jacobian")
        y, p = map(np.array, _pull_back(engine, linear, chosen, lambda _: rows, memory, facts))
        p = p.reshape(len(y), linear.new_sums().p.size)
    return Jacobian(y, engine.as_argument_rows(p, problem.args, linear.has_parameters))


class HessianProduct(NamedTuple):
    """Second derivatives of a loss times a direction, with respect to the initial state and to the arguments."""

    y0: np.ndarray
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def flat(self) -> np.ndarray:
        """All entries in one array."""
        return flatten_derivatives(self.y0, self.args)


@explain_arguments(also=AdaptiveOptions._fields)
def hvp(
    problem: Problem, scheme: Any = None, loss: Callable[..., Any] | None = None, *, y0: ArrayLike | None = None,
    args: Sequence[Any] | None = None, steps: ArrayLike | None = None, memory: Memory | int = "auto",
    gauss_newton: bool = False, **choices: Any,
) -> HessianProduct:  # fmt: skip
    """Compute the Hessian of `loss(y_end)` times a direction (`y0`, `args`), forward over reverse.

    With `gauss_newton` the second derivatives of the steps are omitted: J' H J times the direction, with H of the loss.
    `memory` is as in `gradient`, without the policies that are not exact.

    Parameters
    ----------
    problem, scheme, steps
        As in `gradient`.
    loss : callable, optional
        `loss(y_end)`, which is traced.
    y0 : array_like, optional
        The direction of the initial state.
    args : sequence of Any, optional
        The direction of the arguments, one entry for each of them.
    memory
        As in `gradient`, without the policies that are not exact.
    gauss_newton : bool, optional
        Whether to omit the second derivatives of the steps.
    **choices
        Options of `gradient` for adaptive steps.

    Returns
    -------
    HessianProduct

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.hvp(problem, "rk4", lambda y: y[0] ** 2, y0=[1.0], steps=10).y0.round(4)
    array([0.2707])
    """
    from stepnet.engines import numba_engine as engine

    scheme, problem = find_scheme(problem, scheme, steps), engine.convert_to_floats(problem)
    require_differentiable_steps(scheme)
    memory = validate_memory(memory, EXACT, may_use_disk=True)
    if not callable(loss):
        raise TypeError(f"`loss` must be a function, found {type(loss).__name__}")
    chosen = select_steps(problem, scheme, steps, AdaptiveOptions(**choices), None)
    direction, p_direction = _validate_direction(engine, problem, y0, args)
    facts = partial(
        find_identity, engine, problem, scheme, chosen, direction.tobytes(), p_direction.tobytes(), gauss_newton
    )
    if gauss_newton:
        end = _solve_tangent(engine, problem, scheme, chosen, direction, p_direction)
        curved = engine.trace_loss(loss, end.y).hessian_product(end.y, end.dy)
        linear = build_differentiable_run(engine, problem, scheme, chosen)
        (y_bar,), (p_bar,) = _pull_back(engine, linear, chosen, lambda _: curved, memory, facts)
    else:

        def seed(states: np.ndarray) -> np.ndarray:
            y, dy = (half.reshape(state_shape(problem)) for half in _separate(problem, states[0]))
            scalar = engine.trace_loss(loss, y)
            curved, (_, gradient) = scalar.hessian_product(y, dy), scalar.value_and_gradient(y)
            return _interleave(problem, curved.ravel(), gradient.ravel())

        linear = _linearise_tangent(engine, problem, scheme, chosen, direction, p_direction)
        (both,), (p_bar,) = _pull_back(engine, linear, chosen, seed, memory, facts)
        y_bar, _ = _separate(problem, both)
    own = engine.as_arguments(p_bar[: p_direction.size], problem.args)
    return HessianProduct(y_bar.reshape(state_shape(problem)), own)


def _pull_back(
    engine: ModuleType, linear: DifferentiableRun, chosen: StepSelection, loss: Callable[[np.ndarray], np.ndarray],
    memory: Memory, facts: Callable[[], tuple[Any, ...]],
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Gradients of each loss of the end state with respect to the flat initial state and the parameters."""
    with as_failed_solve(engine, linear.problem, linear.scheme, chosen):
        run, _, _ = reverse_in_memory(linear, Seeds(linear, chosen.places, loss), memory, facts)
        return run.close(), [sums.p for sums in run.sums]


def _validate_direction(
    engine: ModuleType, problem: Problem, y0: ArrayLike | None, args: Sequence[Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    if y0 is None and args is None:
        raise TypeError("give a direction: `y0`, `args` or both")
    n = problem.initial.size
    direction = np.zeros(n) if y0 is None else require_real_numbers("y0", y0).ravel()
    if direction.size != n:
        raise ValueError(f"`y0` must be a direction of {n} numbers, found {direction.size}")
    args = None if args is None else sequence(lambda _, each: each)("args", args)
    if args is not None and len(args) != len(problem.args):
        raise ValueError(
            f"`args` must be as many directions as there are arguments, {len(problem.args)}, found {len(args)}"
        )
    return direction, engine.as_block((None,) * len(problem.args) if args is None else args, problem.args)


def _solve_tangent(
    engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection, direction: np.ndarray,
    p_direction: np.ndarray, save_at: np.ndarray | None = None,
) -> Tangent:  # fmt: skip
    _refuse_axes(problem, scheme)
    if problem.form.is_stochastic:
        states = _run_to_places(engine, problem, scheme, chosen, direction, p_direction)
    else:
        both = engine.tangent_problem(problem, direction, p_direction, may_call=True)
        solution = solve(both, scheme, steps=chosen.as_argument, save_at=save_at, save_every=0)
        states = solution.y.reshape(len(solution.t), -1)
    shape = state_shape(problem) if save_at is None else (len(save_at), *state_shape(problem))
    first, second = _separate(problem, states)
    return Tangent(first.reshape(shape), second.reshape(shape))


def _linearise_tangent(
    engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection, direction: np.ndarray,
    p_direction: np.ndarray,
) -> DifferentiableRun:  # fmt: skip
    """The steps of the problem with its tangent, to be run forward and in reverse."""
    _refuse_axes(problem, scheme)
    if problem.form.is_stochastic:
        plan = FixedSteps(chosen.number, chosen.grid)
        return engine.linearise_tangent(problem, scheme, plan, direction, p_direction)
    return build_differentiable_run(engine, engine.tangent_problem(problem, direction, p_direction), scheme, chosen)


def _refuse_axes(problem: Problem, scheme: Any) -> None:
    """Refuse schemes along the axes of a grid: an equation with its tangent has none, so its steps would differ."""
    if needs_axes(scheme, problem):
        raise NoDerivative(
            f"`scheme` {scheme.name} solves along the axes of a grid, but an equation with its tangent has none; "
            f"`gradient` and `jacobian` support it"
        )


def _run_to_places(
    engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection, direction: np.ndarray,
    p_direction: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The flat states of a stochastic problem with its tangent after the steps `chosen.places`."""
    linear = _linearise_tangent(engine, problem, scheme, chosen, direction, p_direction)
    with as_failed_solve(engine, problem, scheme, chosen):
        state, at, found = linear.open(linear.initial), 0, []
        for place in chosen.places.tolist():
            linear.forward(state, at, place - at)
            found.append(linear.extract_state(state).copy())
            at = place
    return np.array(found).reshape(len(found), linear.initial.size)


def _separate(problem: Problem, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separate state and tangent of a tangent problem, ordered (q, q', p, p') if the state is partitioned."""
    if not _has_halves(problem):
        n = problem.initial.size
        return flat[..., :n], flat[..., n:]
    q, dq, p, dp = np.split(flat, 4, axis=-1)
    return np.concatenate((q, p), axis=-1), np.concatenate((dq, dp), axis=-1)


def _interleave(problem: Problem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The inverse of `_separate`."""
    if not _has_halves(problem):
        return np.concatenate((first, second))
    (q, p), (dq, dp) = np.split(first, 2), np.split(second, 2)
    return np.concatenate((q, dq, p, dp))


def _has_halves(problem: Problem) -> bool:
    """Whether the problem, and so its tangent problem, has a partitioned state."""
    return problem.form.has_halves or problem.form is ProblemForm.LANGEVIN
