"""Exact derivatives of solves: of the numerical map itself, in as much memory as is allowed.

`gradient` runs the steps of a scheme forward and their adjoint back (discretise, then optimise); the continuous
adjoint (optimise, then discretise) is there to compare with.  Adaptive steps are chosen first and then held fixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from stepnet.errors import AdjointWarning, NoDerivative
from stepnet.gradients.adjoint_equation import UNSAFE, solve_adjoint_equation
from stepnet.gradients.event_gradient import EventRun
from stepnet.gradients.loss_readout import LossReadout, flatten_derivatives
from stepnet.gradients.memory_policy import (
    CONTINUOUS,
    EXACT,
    choose_streamed_states,
    require_memory,
    reverse_after_search,
    reverse_in_memory,
)
from stepnet.gradients.reversal import Cost, Seeds
from stepnet.gradients.step_selection import (
    StepSelection,
    as_failed_solve,
    build_differentiable_run,
    find_identity,
    require_argument_gradients,
    select_steps,
)
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, state_shape
from stepnet.records import explain_arguments, show_fields
from stepnet.solving.integrate import find_scheme
from stepnet.solving.planning import AdaptiveOptions


@dataclass(frozen=True, eq=False)
class Gradient:
    """A value and its derivatives.

    Parameters
    ----------
    value : float
        The loss.
    y0 : array
        Gradient with respect to the initial state, in its shape (flat for problems in halves; see `q0`, `p0`, `v0`).
    args : tuple
        Gradients with respect to the arguments, in their shapes; None for those that are no floats, and for all of
        them if only the derivative with respect to the state is known (a `vjp` or `jac` in Python).
    t_span : (float, float) or None
        Gradients with respect to the beginning and the end, if they were asked for.
    y : array
        What the loss read: the end state, or the states at `save_at`.
    memory : str
        How it was found, in words.
    rung : str
        Where the derivatives of the right-hand side came from: user, traced, dual or differences.
    cost : Cost
        Steps, memory and, for reversible runs, the drift.
    """

    value: float
    y0: np.ndarray
    args: tuple
    t_span: tuple[float, float] | None
    y: np.ndarray
    memory: str
    rung: str
    cost: Cost
    problem: Problem = field(repr=False)

    __repr__ = show_fields

    @property
    def q0(self) -> np.ndarray:
        """The part of positions, for problems in halves."""
        return self._half(0)

    @property
    def p0(self) -> np.ndarray:
        """The part of momenta or velocities, for problems in halves."""
        return self._half(1)

    v0 = p0

    @property
    def flat(self) -> np.ndarray:
        """All of them as one array: with respect to the initial state, then to the arguments that have one."""
        return flatten_derivatives(self.y0, self.args)

    def _half(self, which: int) -> np.ndarray:
        if not isinstance(self.problem, (Partitioned, SecondOrder)):
            raise AttributeError(f"an {type(self.problem).__name__} has no halves; see `y0`")
        return np.split(self.y0, 2)[which].reshape(self.problem.q0.shape)


@explain_arguments()
def gradient(
    problem: Problem,
    scheme=None,
    loss: Callable | None = None,
    *,
    end_gradient=None,
    running: Callable | None = None,
    steps=None,
    rtol=None,
    atol=None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller=None,
    norm: str | None = None,
    max_steps: int | None = None,
    save_at=None,
    event=None,
    memory="auto",
    times: bool = False,
    differences: bool = False,
) -> Gradient:
    """The gradient of a loss of the numerical solution, exact to rounding.

    Parameters
    ----------
    problem, scheme, steps, rtol, atol, first_step, max_step, controller, norm, max_steps
        As in `solve`.  Adaptive steps are chosen in a first run and then held fixed.
    loss : callable, optional
        `loss(y_end)`, or `loss(ys)` of the states (times, *state) with `save_at`.  If it returns a number it is traced;
        else let it return the pair (value, gradient).
    end_gradient : array_like, optional
        The gradient with respect to the end state (or the saved ones), instead of `loss`.
    running : callable, optional
        `running(t, y, *args)`: a cost rate whose integral is added to the loss (for an `ODE`).
    save_at : array_like, optional
        Times at which the loss reads the solution; adaptive steps end there, given ones must have them among theirs.
    event : Event or callable, optional
        The run ends at the first zero of `event(t, y, *args)`, whose time moves with all the rest (one-step schemes).
        Without `loss` and `end_gradient` the value is that time.
    memory : str, int or Checkpoints, optional
        "all" keeps every state; `Checkpoints(slots)` or a number of bytes keeps some and computes the others again, as
        rarely as possible; "reversible" reconstructs them (splitting schemes and leapfrogs); "auto" (default) chooses
        among these.  "continuous" and "interpolated" solve the adjoint equation instead, which is not exact.
    times : bool, optional
        Also find the gradient with respect to `t_span`, all steps being scaled with it.
    differences : bool, optional
        Allow finite differences of a right-hand side whose derivative is not known.

    Returns
    -------
    Gradient
    """
    from stepnet.engines.numba_engine.adjoint import differentiation as engine  # loads Numba

    scheme, problem = find_scheme(problem, scheme, steps), engine.with_reals(problem, running, event)
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    require_memory(memory, (*EXACT, *CONTINUOUS))
    if times and problem.t_span[0] == problem.t_span[1]:
        raise ValueError("`times` needs a `t_span` that is longer than zero")
    original = problem
    if running is not None:
        if not isinstance(problem, ODE):
            raise TypeError(f"`running` is for an `ODE`, found {type(problem).__name__}")
        problem = engine.running_problem(problem, running)
    if memory in CONTINUOUS:
        if save_at is not None or times or event is not None:
            raise ValueError(
                f'`memory`="{memory}" is for losses of the end state, without `save_at`, `event` and `times`'
            )
        how = choices._asdict() if steps is None else {"steps": steps}
        reader = LossReadout(
            engine, loss, end_gradient, state_shape(original), original.initial.size, running is not None
        )
        return _solve_continuous(engine, problem, original, scheme, memory, how, reader, differences)
    ended = passed = None
    if event is not None:
        if save_at is not None or running is not None or times:
            raise ValueError("`event` is for losses of the end state, without `save_at`, `running` and `times`")
        ended = EventRun(engine, problem, scheme, event, steps, choices, differences)
        problem = original = replace(problem, t_span=(problem.t_span[0], ended.t))
        n = len(ended.grid) - 1
        chosen = StepSelection(n, ended.grid, np.array([n]), n)
    else:
        passed = choose_streamed_states(memory, problem.initial.size) if steps is None else None
        chosen = select_steps(problem, scheme, steps, choices, save_at, passed)
    if running is not None:
        chosen = chosen._replace(places=np.append(chosen.places, chosen.number))
    shape = state_shape(original) if save_at is None else (len(save_at), *state_shape(original))
    reader = LossReadout(engine, loss, end_gradient, shape, original.initial.size, running is not None, ended)
    linear = build_differentiable_run(engine, problem, scheme, chosen, times, differences)
    require_argument_gradients(linear, engine.whole_places(original))
    if times and not linear.is_complete:
        raise NoDerivative(
            f"`times` needs df/dt, which is not known ({linear.rung}); give a right-hand side that can be traced"
        )
    seeds = Seeds(linear, chosen.places, reader)
    with as_failed_solve(engine, problem, scheme, chosen):
        if passed is not None and chosen.number > 0:
            run, cost, words = reverse_after_search(linear, seeds, passed, chosen)
        else:

            def facts() -> tuple:
                return find_identity(engine, original, scheme, chosen, engine.function_key(running), times)

            run, cost, words = reverse_in_memory(linear, seeds, memory, facts)
        (y0,), (sums,) = run.close(), run.sums
    args = engine.as_arguments(sums.p + reader.p_bar, original.args, linear.has_parameters)
    t_span = _find_time_gradients(problem, sums.t) if times else None
    own = y0[: original.initial.size].reshape(state_shape(original))
    cost = replace(cost, advances=cost.advances + chosen.n_searched)
    return Gradient(reader.value, own, args, t_span, reader.y, words, linear.rung, cost, original)


def _solve_continuous(engine, problem, original, scheme, memory, how, reader, differences: bool) -> Gradient:
    """By the adjoint equation."""
    if not isinstance(problem, ODE):
        raise TypeError(f'`memory`="{memory}" is for an `ODE`, found {type(problem).__name__}')
    found = solve_adjoint_equation(engine, problem, scheme, memory, how, reader, differences)
    _warn_if_unsafe(found.return_error)
    y0 = found.y0[: original.initial.size].reshape(state_shape(original))
    args = engine.as_arguments(found.p, original.args, found.has_parameters)
    cost = Cost(found.n_steps, 0, found.n_states, 8 * found.n_numbers, found.return_error)
    return Gradient(reader.value, y0, args, None, reader.y, found.words, found.rung, cost, original)


def _warn_if_unsafe(return_error: float) -> None:
    if not return_error < UNSAFE:
        warnings.warn(
            f"solving back misses the initial state by {return_error:.1e} (relative), so the continuous gradient is "
            f"not to be trusted; see `stability.adjoint_safety`",
            AdjointWarning,
            stacklevel=5,
        )


def _find_time_gradients(problem: Problem, sums: np.ndarray) -> tuple[float, float]:
    """t_n = t0 + theta_n (t1 - t0) with fixed theta_n."""
    at_end = sums[1] / (problem.t_span[1] - problem.t_span[0])
    return float(sums[0] - at_end), float(at_end)
