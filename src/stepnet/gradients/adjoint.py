"""Exact derivatives of the numerical map, within a memory budget.

`gradient` runs the steps of a scheme forward and their adjoint backward (discretise, then optimise); the continuous
adjoint (optimise, then discretise) is available for comparison.  Adaptive steps are chosen first and then held fixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.checkpoints.budget import Memory, validate_memory
from stepnet.errors import AdjointWarning, NoDerivative
from stepnet.gradients.adjoint_equation import UNSAFE, solve_adjoint_equation
from stepnet.gradients.event_gradient import EventRun
from stepnet.gradients.loss_readout import (
    EventReadout,
    LossReadout,
    RunningCostReadout,
    StateLoss,
    StateReadout,
    flatten_derivatives,
)
from stepnet.gradients.memory_policy import (
    CONTINUOUS,
    EXACT,
    choose_streamed_states,
    reverse_after_search,
    reverse_in_memory,
)
from stepnet.gradients.reversal import Cost, Seeds
from stepnet.gradients.state_store import StreamedStates
from stepnet.gradients.step_selection import (
    StepSelection,
    as_failed_solve,
    build_differentiable_run,
    find_identity,
    require_argument_gradients,
    require_differentiable_steps,
    select_steps,
)
from stepnet.problem import ODE, Langevin, Partitioned, Problem, SecondOrder, state_shape
from stepnet.records import explain_arguments, show_fields
from stepnet.solving.integrate import find_scheme
from stepnet.solving.planning import AdaptiveOptions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
    from stepnet.engines.numba_engine.adjoint.step_sweeps import GradientSums
    from stepnet.events import Event
    from stepnet.schemes.controllers import Controller


@dataclass(frozen=True, eq=False)
class Gradient:
    """A value and its derivatives.

    Parameters
    ----------
    value : float
        The loss.
    y0 : array
        Gradient with respect to the initial state, in its shape (flat for a partitioned state; see `q0`, `p0`, `v0`).
    args : tuple
        Gradients with respect to the arguments, in their shapes; None for those that are not floats, and for all if
        only the derivative with respect to the state is known (a `vjp` or `jac` in Python).
    t_span : (float, float) or None
        Gradients with respect to t0 and t1, if requested.
    y : array
        The states the loss depends on: the end state, or the states at `save_at`.
    memory : str
        How the states of the reverse sweep were obtained, as text.
    rung : str
        Where the derivatives of the right-hand side came from: user, traced, dual or differences.
    cost : Cost
        Steps, memory and, for reversible runs, the reconstruction error.
    problem : Problem
        The problem.

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.gradient(sn.ODE(lambda t, y: -y, [2.0], (0.0, 1.0)), "rk4", lambda y: y[0] ** 2, steps=10)
    >>> round(found.value, 4), found.y0.round(4)
    (0.5413, array([0.5413]))
    """

    value: float
    y0: np.ndarray
    args: tuple[Any, ...]
    t_span: tuple[float, float] | None
    y: np.ndarray
    memory: str
    rung: str
    cost: Cost
    problem: Problem = field(repr=False)

    __repr__ = show_fields

    @property
    def q0(self) -> np.ndarray:
        """The gradient with respect to the initial positions of a partitioned or second-order problem."""
        return self._half(0)

    @property
    def p0(self) -> np.ndarray:
        """The gradient with respect to the initial momenta or velocities."""
        return self._half(1)

    v0 = p0

    @property
    def flat(self) -> np.ndarray:
        """All gradients in one array: the initial state, then the arguments that have a gradient."""
        return flatten_derivatives(self.y0, self.args)

    def _half(self, which: int) -> np.ndarray:
        if not isinstance(self.problem, (Partitioned, SecondOrder, Langevin)):
            raise AttributeError(f"an {type(self.problem).__name__} has no partitioned state; use `y0`")
        return np.split(self.y0, 2)[which].reshape(self.problem.q0.shape)


@explain_arguments()
def gradient(
    problem: Problem,
    scheme: Any = None,
    loss: Callable[..., Any] | None = None,
    *,
    end_gradient: ArrayLike | None = None,
    running: Callable[..., Any] | None = None,
    steps: ArrayLike | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller: Controller | str | None = None,
    norm: str | None = None,
    max_steps: int | None = None,
    save_at: Sequence[float] | np.ndarray | None = None,
    event: Event | Callable[..., Any] | None = None,
    memory: Memory | int = "auto",
    times: bool = False,
    differences: bool = False,
) -> Gradient:
    """Compute the gradient of a loss of the numerical solution, exact to rounding.

    Parameters
    ----------
    problem, scheme, steps, rtol, atol, first_step, max_step, controller, norm, max_steps
        As in `solve`.  Adaptive steps are chosen in a first run and then held fixed.
    loss : callable, optional
        `loss(y_end)`, or `loss(ys)` of the states (times, *state) with `save_at`.  If it returns a number it is traced;
        otherwise it must return the pair (value, gradient).
    end_gradient : array_like, optional
        The gradient with respect to the end state or the saved states, instead of `loss`.
    running : callable, optional
        `running(t, y, *args)`: a cost rate whose integral is added to the loss (for an `ODE`).
    save_at : array_like, optional
        Times of the states that enter the loss; adaptive steps end there, fixed ones must include them.
    event : Event or callable, optional
        The run ends at the first zero of `event(t, y, *args)`, whose time is differentiated too (one-step schemes).
        Without `loss` and `end_gradient` the value is that time.
    memory : str, int or Checkpoints, optional
        "all" stores every state; `Checkpoints(slots)` or a number of bytes stores some and recomputes the others with
        as few steps as possible; "reversible" reconstructs them (splitting and leapfrog schemes); "auto" (default)
        chooses among these.  "continuous" and "interpolated" solve the adjoint equation instead, which is not exact.
    times : bool, optional
        Also compute the gradient with respect to `t_span`, with which all steps are scaled.
    differences : bool, optional
        Allow finite differences of a right-hand side whose derivative is not known.

    Returns
    -------
    Gradient

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, k: -k * y, [1.0], (0.0, 1.0), args=(2.0,))
    >>> found = sn.gradient(problem, "rk4", lambda y: y[0], steps=100)
    >>> round(float(found.args[0]), 5)
    -0.13534
    """
    from stepnet.engines import numba_engine as engine  # loads Numba

    scheme, problem = find_scheme(problem, scheme, steps), engine.convert_to_floats(problem, running, event)
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    memory = validate_memory(memory, (*EXACT, *CONTINUOUS), may_use_disk=True)
    if times and problem.t_span[0] == problem.t_span[1]:
        raise ValueError("`times` needs a `t_span` of nonzero length")
    if running is not None and not isinstance(problem, ODE):
        raise TypeError(
            f"`running` is for an `ODE`, found {type(problem).__name__}; add the cost as an entry of the state"
        )
    if problem.form.is_stochastic:
        _refuse_times_of_paths(times, event)
    task = GradientTask(engine, problem, scheme, loss, end_gradient, running, steps, choices, memory, differences)
    if memory not in CONTINUOUS:
        require_differentiable_steps(scheme)
    if memory in CONTINUOUS:
        if save_at is not None or times or event is not None:
            raise ValueError(
                f'`memory`="{memory}" is for losses of the end state, without `save_at`, `event` and `times`'
            )
        return _solve_continuous(task)
    if event is not None:
        if save_at is not None or running is not None or times:
            raise ValueError("`event` is for losses of the end state, without `save_at`, `running` and `times`")
        plan = _plan_until_event(task, event)
    else:
        plan = _plan_steps(task, save_at)
    linear = build_differentiable_run(engine, plan.problem, scheme, plan.chosen, times, differences)
    require_argument_gradients(linear, engine.find_unconverted(plan.original))
    if times and not linear.is_complete:
        raise NoDerivative(
            f"`times` needs df/dt, which is not known ({linear.rung}); give a right-hand side that can be traced"
        )
    (y0,), (sums,), cost, words = _pull_back(task, plan, linear, times)
    t_span = _find_time_gradients(plan.problem, sums.t) if times else None
    args = engine.as_arguments(sums.p + plan.readout.p_bar, plan.original.args, linear.has_parameters)
    own = y0[: plan.original.initial.size].reshape(state_shape(plan.original))
    cost = replace(cost, advances=cost.advances + plan.chosen.n_searched)
    return Gradient(
        plan.readout.value, own, args, t_span, plan.readout.y, words, linear.rung, cost, plan.original
    )  # fmt: skip


def _refuse_times_of_paths(times: bool, event: Any) -> None:
    if times:
        raise ValueError(
            "`times` is not available for an `SDE` or `Langevin`, whose noise depends on the times of its steps; scale "
            "time by an argument of an `SDE`: drift times c, diffusion times sqrt(c)"
        )
    if event is not None:
        raise TypeError(
            "`event` is not available for an `SDE` or `Langevin`: the exit time of a path is not a smooth function of "
            "its arguments; use `likelihood_ratio_gradient` for the expectation, or a loss of the states at `save_at`"
        )


class GradientTask(NamedTuple):
    """The validated arguments of `gradient`; the loss is a function of the states of `problem`."""

    engine: Any
    problem: Problem
    scheme: Any
    loss: Callable[..., Any] | None
    end_gradient: Any
    running: Callable[..., Any] | None
    steps: Any
    choices: AdaptiveOptions
    memory: Memory
    differences: bool

    def with_running_cost(self) -> Problem:
        """The problem that is stepped: augmented by the integral of a running cost, if there is one."""
        return self.problem if self.running is None else self.engine.running_problem(self.problem, self.running)

    def build_readout(self, n_saved: int | None = None) -> LossReadout:
        """Build the loss readout of the end state or of `n_saved` saved states, and the running cost."""
        own = state_shape(self.problem)
        shape = own if n_saved is None else (n_saved, *own)
        if self.running is None:
            return StateReadout(StateLoss(self.engine, self.loss, self.end_gradient, shape))
        return RunningCostReadout(StateLoss(self.engine, self.loss, self.end_gradient, shape, is_optional=True))


class GradientPlan(NamedTuple):
    """The steps to differentiate and the loss readout.

    `problem` is the one that is stepped, `original` the one whose derivatives are returned; `passed` holds the states
    that were kept while adaptive steps were chosen.
    """

    problem: Problem
    original: Problem
    chosen: StepSelection
    readout: LossReadout
    passed: StreamedStates | None = None


def _plan_steps(task: GradientTask, save_at: Sequence[float] | np.ndarray | None) -> GradientPlan:
    """Plan steps over the whole time span, with a loss at the end or at save times."""
    problem = task.with_running_cost()
    passed = choose_streamed_states(task.memory, problem.initial.size) if task.steps is None else None
    chosen = select_steps(problem, task.scheme, task.steps, task.choices, save_at, passed)
    readout = task.build_readout(None if save_at is None else len(save_at))
    chosen = chosen._replace(places=readout.select_places(chosen.places, chosen.number))
    return GradientPlan(problem, task.problem, chosen, readout, passed if chosen.number > 0 else None)


def _plan_until_event(task: GradientTask, event: Event | Callable[..., Any]) -> GradientPlan:
    """Plan steps up to a terminal event, with a loss there."""
    engine, problem = task.engine, task.problem
    ended = EventRun(engine, problem, task.scheme, event, task.steps, task.choices, task.differences)
    problem = replace(problem, t_span=(problem.t_span[0], ended.t))
    n = len(ended.grid) - 1
    loss = StateLoss(engine, task.loss, task.end_gradient, state_shape(problem), is_optional=True)
    return GradientPlan(problem, problem, StepSelection(n, ended.grid, np.array([n]), n), EventReadout(loss, ended))


def _pull_back(
    task: GradientTask, plan: GradientPlan, linear: DifferentiableRun, times: bool
) -> tuple[list[np.ndarray], list[GradientSums], Cost, str]:
    """The gradient with respect to the flat initial state, the sums, the cost, and the memory policy as text."""
    engine, scheme, chosen = task.engine, task.scheme, plan.chosen

    def find_facts() -> tuple[Any, ...]:
        return find_identity(engine, plan.original, scheme, chosen, engine.function_key(task.running), times)

    seeds = Seeds(linear, chosen.places, plan.readout)
    with as_failed_solve(engine, plan.problem, scheme, chosen):
        if plan.passed is not None:
            run, cost, words = reverse_after_search(linear, seeds, plan.passed, chosen)
        else:
            run, cost, words = reverse_in_memory(linear, seeds, task.memory, find_facts)
        return run.close(), run.sums, cost, words


def _solve_continuous(task: GradientTask) -> Gradient:
    """Compute the gradient by the adjoint equation."""
    engine, original, memory = task.engine, task.problem, str(task.memory)
    how = task.choices._asdict() if task.steps is None else {"steps": task.steps}
    readout = task.build_readout()
    if not isinstance(original, ODE):
        raise TypeError(f'`memory`="{memory}" is for an `ODE`, found {type(original).__name__}')
    problem: ODE = task.with_running_cost()  # type: ignore[assignment]
    found = solve_adjoint_equation(engine, problem, task.scheme, memory, how, readout, task.differences)
    _warn_if_unsafe(found.return_error)
    y0 = found.y0[: original.initial.size].reshape(state_shape(original))
    args = engine.as_arguments(found.p, original.args, found.has_parameters)
    cost = Cost(found.n_steps, 0, found.n_states, 8 * found.n_numbers, found.return_error)
    return Gradient(readout.value, y0, args, None, readout.y, found.words, found.rung, cost, original)


def _warn_if_unsafe(return_error: float) -> None:
    if not return_error < UNSAFE:
        warnings.warn(
            f"solving backward misses the initial state by {return_error:.1e} (relative), so the continuous gradient "
            f"is unreliable; see `stability.adjoint_safety`",
            AdjointWarning,
            stacklevel=5,
        )


def _find_time_gradients(problem: Problem, sums: np.ndarray) -> tuple[float, float]:
    """t_n = t0 + theta_n (t1 - t0) with fixed theta_n."""
    at_end = sums[1] / (problem.t_span[1] - problem.t_span[0])
    return float(sums[0] - at_end), float(at_end)
