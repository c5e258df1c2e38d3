"""Exact derivatives of solves: of the numerical map itself, in as much memory as is allowed.

`gradient` runs the steps of a scheme forward and their adjoint back (discretise, then optimise); the continuous
adjoint (optimise, then discretise) is there to compare with.  Adaptive steps are chosen first and then held fixed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from stepnet.adjoint_equation import UNSAFE, solved_back
from stepnet.checkpoints import Checkpoints
from stepnet.engines.contract import Given
from stepnet.errors import AdjointWarning, NoDerivative
from stepnet.event_gradient import EventRun
from stepnet.integrate import scheme_for, solve
from stepnet.planning import Choices, checked_times, step_plan
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split, restarted
from stepnet.reversal import AUTOMATIC_BYTES, DRIFT, Cost, Seeds, reversible, store_all, with_checkpoints

NEAR = 1e-9  # steps by which a wanted time may miss that of a given step
MEMORY = ("auto", "all", "reversible", "continuous", "interpolated")


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
        Gradients with respect to the arguments, in their shapes; None for those that are no floats.
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

    @property
    def q0(self) -> np.ndarray:
        """The part of positions, for problems in halves."""
        return self._half(0)

    @property
    def p0(self) -> np.ndarray:
        """The part of momenta or velocities, for problems in halves."""
        return self._half(1)

    v0 = p0

    def _half(self, which: int) -> np.ndarray:
        if not isinstance(self.problem, (Partitioned, SecondOrder)):
            raise AttributeError(f"an {type(self.problem).__name__} has no halves; see `y0`")
        return np.split(self.y0, 2)[which].reshape(self.problem.q0.shape)


class Steps(NamedTuple):
    """The steps to differentiate: their number, their times if they are not even, and where the loss reads."""

    number: int
    grid: np.ndarray | None
    places: np.ndarray

    @property
    def as_argument(self):
        """What `solve` takes for `steps`."""
        return self.number if self.grid is None else self.grid


def gradient(
    problem: Problem,
    scheme,
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
    from stepnet.engines.numba_engine import differentiation as engine  # loads Numba

    scheme = scheme_for(problem, scheme)
    choices = Choices(rtol, atol, first_step, max_step, controller, norm, max_steps)
    _require_memory(memory)
    if times and problem.t_span[0] == problem.t_span[1]:
        raise ValueError("`times` needs a `t_span` that is longer than zero")
    original = problem
    if running is not None:
        if not isinstance(problem, ODE):
            raise TypeError(f"`running` is for an `ODE`, found {type(problem).__name__}")
        problem = engine.running_problem(problem, running)
    if event is not None:
        ended = _to_event(engine, problem, scheme, event, steps, choices, (save_at, running), times)
        problem = original = replace(problem, t_span=(problem.t_span[0], ended.t))
        chosen = Steps(len(ended.grid) - 1, ended.grid, np.array([len(ended.grid) - 1]))
    else:
        ended, chosen = None, _steps(problem, scheme, steps, choices, save_at)
    shape = shape_of(original) if save_at is None else (len(chosen.places), *shape_of(original))
    reader = _Reader(engine, loss, end_gradient, shape, original.initial.size, running is not None, ended)
    if memory in ("continuous", "interpolated"):
        if save_at is not None or times or event is not None:
            raise ValueError(
                f'`memory`="{memory}" is for losses of the end state, without `save_at`, `event` and `times`'
            )
        if not isinstance(problem, ODE):
            raise TypeError(f'`memory`="{memory}" is for an `ODE`, found {type(problem).__name__}')
        how = choices._asdict() if steps is None else {"steps": chosen.as_argument}
        found = solved_back(engine, problem, scheme, memory, how, reader, differences)
        _warn_if_unsafe(found.return_error)
        return Gradient(
            reader.value, found.y0[: original.initial.size].reshape(shape_of(original)),
            engine.as_arguments(found.p, original.args), None, reader.y, found.words, "traced",
            Cost(chosen.number, 0, 1, 8 * found.n_numbers, found.return_error), original,
        )  # fmt: skip
    linear = engine.Linearised(problem, scheme, chosen.number, chosen.grid, times, differences)
    _require_argument_gradients(linear)
    if times and not linear.is_complete:
        raise NoDerivative(
            f"`times` needs df/dt, which is not known ({linear.rung}); give a right-hand side that can be traced"
        )
    places = chosen.places if running is None else np.append(chosen.places, chosen.number)
    seeds = Seeds(linear, places, reader)
    about = (original, scheme, chosen, places, running, times)
    with _as_failed_solve(engine, problem, scheme, chosen):
        run, cost, words = _in_memory(engine, about, linear, seeds, memory)
        y0 = run.close()
    args = engine.as_arguments(run.sums.p + reader.p_bar, original.args)
    t_span = _time_gradients(problem, run.sums.t) if times else None
    own = y0[: original.initial.size].reshape(shape_of(original))
    return Gradient(reader.value, own, args, t_span, reader.y, words, linear.rung, cost, original)


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
    chosen = _steps(problem, scheme, steps, Choices(**choices), None)
    return _tangent(engine, problem, scheme, chosen, *_direction(engine, problem, y0, args))


class Jacobian(NamedTuple):
    """Derivatives of the end state: with respect to the initial one, and to each argument."""

    y0: np.ndarray
    args: tuple


def jacobian(problem: Problem, scheme, *, steps=None, differences: bool = False, **choices) -> Jacobian:
    """The matrix d y_end / d y0 of flat states, and d y_end / d args: one run forward, one back for each row."""
    from stepnet.engines.numba_engine import differentiation as engine

    scheme = scheme_for(problem, scheme)
    chosen = _steps(problem, scheme, steps, Choices(**choices), None)
    linear = engine.Linearised(problem, scheme, chosen.number, chosen.grid, False, differences)
    _require_argument_gradients(linear)
    n = problem.initial.size
    rows, p_rows = np.zeros((n, n)), []
    with _as_failed_solve(engine, problem, scheme, chosen):
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


def hvp(problem: Problem, scheme, loss, *, y0=None, args=None, steps=None, gauss_newton: bool = False, **choices):
    """The Hessian of `loss(y_end)` times a direction (`y0`, `args`): the adjoint of the tangent, forward over reverse.

    With `gauss_newton` the second derivatives of the steps are left out: J' H J times the direction, H of the loss.
    """
    from stepnet.engines.numba_engine import differentiation as engine

    scheme = scheme_for(problem, scheme)
    chosen = _steps(problem, scheme, steps, Choices(**choices), None)
    direction, p_direction = _direction(engine, problem, y0, args)
    shape, n = shape_of(problem), problem.initial.size
    end = _tangent(engine, problem, scheme, chosen, direction, p_direction)
    scalar = engine.scalar_of(loss, end.y)
    curved = scalar.hessian_product(end.y, end.dy).ravel()
    if gauss_newton:
        linear = engine.Linearised(problem, scheme, chosen.number, chosen.grid, False, False)
        y_bar, p_bar = _pulled_back(linear, curved)
        return HessianProduct(y_bar.reshape(shape), engine.as_arguments(p_bar, problem.args))
    _, gradient_at_end = scalar.value_and_gradient(end.y)
    both = engine.tangent_problem(problem, direction, p_direction)
    linear = engine.Linearised(both, scheme, chosen.number, chosen.grid, False, False)
    seed = _interleaved(problem, curved, gradient_at_end.ravel())
    y_bar, p_bar = _pulled_back(linear, seed)
    first, _ = _separated(problem, y_bar)
    return HessianProduct(first[:n].reshape(shape), engine.as_arguments(p_bar[: p_direction.size], problem.args))


# ---- steps ----------------------------------------------------------------------------------------------------------


def _steps(problem: Problem, scheme, steps, choices: Choices, save_at) -> Steps:
    """Given steps as they are; adaptive ones by a first run, which ends a step at every wanted time."""
    plan = step_plan(problem, scheme, steps, choices)
    wanted = None if save_at is None else checked_times("save_at", save_at, problem.t_span)
    if isinstance(plan, Given):
        return Steps(plan.n_steps, plan.grid, _places(problem, plan, wanted))
    t0, t1 = problem.t_span
    stops = (
        [t1] if wanted is None else [*(t for t in np.unique(wanted)[:: -1 if t1 < t0 else 1] if t not in (t0, t1)), t1]
    )
    grid, piece = [np.array([t0])], problem
    how = choices._asdict()
    for stop in stops:
        piece = replace(piece, t_span=(piece.t_span[0], stop))
        solution = solve(piece, scheme, **how)
        grid.append(solution.t[1:])
        if len(solution.t) > 2:
            how["first_step"] = abs(float(solution.t[-2] - solution.t[-3]))
        piece = restarted(piece, solution.y[-1], (stop, t1))
    times = np.concatenate(grid)
    places = [len(times) - 1] if wanted is None else np.searchsorted(*_ascending(times, wanted, t1 < t0))
    return Steps(len(times) - 1, times, np.asarray(places))


def _ascending(times: np.ndarray, wanted: np.ndarray, is_backward: bool) -> tuple[np.ndarray, np.ndarray]:
    return (-times, -wanted) if is_backward else (times, wanted)


def _to_event(engine, problem: Problem, scheme, event, steps, choices: Choices, others, times: bool) -> EventRun:
    if any(each is not None for each in others) or times:
        raise ValueError("`event` is for losses of the end state, without `save_at`, `running` and `times`")
    step_plan(problem, scheme, steps, choices)
    return EventRun(engine, problem, scheme, event, choices._asdict() if steps is None else {"steps": steps})


def _places(problem: Problem, plan: Given, wanted: np.ndarray | None) -> np.ndarray:
    """The steps at which wanted times lie."""
    if wanted is None:
        return np.array([plan.n_steps])
    t0, t1 = problem.t_span
    h = (t1 - t0) / plan.n_steps
    if plan.grid is None:
        places = np.rint((wanted - t0) / h).astype(np.int64) if h != 0 else np.zeros(len(wanted), np.int64)
        found = t0 + h * places
    else:
        after = np.searchsorted(*_ascending(plan.grid, wanted, t1 < t0)).clip(1, plan.n_steps)
        is_before = np.abs(plan.grid[after - 1] - wanted) <= np.abs(plan.grid[after] - wanted)
        places = after - is_before
        found = plan.grid[places]
    missed = np.abs(found - wanted) > NEAR * abs(h) + 4 * np.spacing(max(abs(t0), abs(t1)))
    if np.any(missed):
        raise ValueError(
            f"`save_at` must be among the times of the given steps, but {wanted[missed][0]} is not; give `steps` as "
            f"times that have it among them"
        )
    return places


# ---- what the loss reads --------------------------------------------------------------------------------------------


class _Reader:
    """The loss of the states that were collected: called once, it gives their gradients and remembers the value.

    With a running cost, that is the last entry of every state, and one more state is that of the end.
    """

    def __init__(self, engine, loss, end_gradient, shape: tuple[int, ...], n: int, has_running: bool, ended):
        is_neither, is_both = loss is None and end_gradient is None, loss is not None and end_gradient is not None
        if is_both or (is_neither and not has_running and ended is None):
            raise TypeError(f"give either `loss` or `end_gradient`, found {'both' if is_both else 'neither'}")
        if loss is not None and not callable(loss):
            raise TypeError(f"`loss` must be a function, found {type(loss).__name__}")
        self._engine, self._loss, self._n, self._has_running = engine, loss, n, has_running
        self._ended, self._is_time = ended, is_neither and ended is not None
        self.p_bar: np.ndarray | float = 0.0  # of the event with respect to the parameters
        self._gradient = np.zeros(shape) if end_gradient is None else _checked_gradient(end_gradient, shape)
        self.value, self.y = float("nan"), np.zeros(shape)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        own = states[: len(states) - self._has_running, : self._n]
        self.y = own.reshape(self.y.shape).copy()
        if self._loss is None:
            self.value, found = float(np.sum(self._gradient * self.y)), self._gradient
        else:
            self.value, found = self._engine.scalar_of(self._loss, self.y).value_and_gradient(self.y)
        gradients = np.zeros(states.shape)
        gradients[: len(own), : self._n] = np.reshape(found, own.shape)
        if self._has_running:
            self.value += float(states[-1, -1])
            gradients[-1, -1] = 1.0
        if self._ended is not None:
            if self._is_time:
                self.value = self._ended.t
            _, along_y, self.p_bar = self._ended.multiplier(gradients[-1], float(self._is_time))
            gradients[-1] += along_y
        return gradients

    def at_end(self, end: np.ndarray) -> np.ndarray:
        """The gradient with respect to the flat end state, which is all that the loss reads."""
        return self(np.tile(end, (1 + self._has_running, 1))).sum(axis=0)


def _real(name: str, value) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must hold real numbers, found {value!r:.60}")
    return array.astype(float)


def _checked_gradient(value, shape: tuple[int, ...]) -> np.ndarray:
    found = _real("end_gradient", value)
    if found.shape != shape:
        raise ValueError(f"`end_gradient` must have the shape {shape} of what the loss would read, found {found.shape}")
    if not np.all(np.isfinite(found)):
        raise ValueError("`end_gradient` must be finite")
    return found


# ---- memory ---------------------------------------------------------------------------------------------------------


def _require_memory(memory) -> None:
    is_bytes = isinstance(memory, (int, np.integer)) and not isinstance(memory, bool) and memory > 0
    if not (isinstance(memory, Checkpoints) or is_bytes or (isinstance(memory, str) and memory in MEMORY)):
        raise ValueError(
            f"`memory` must be one of {', '.join(map(repr, MEMORY))}, a number of bytes or `Checkpoints`, "
            f"found {memory!r:.60}"
        )


def _in_memory(engine, about: tuple, linear, seeds: Seeds, memory):
    """Run forward and back; the run, what it cost, and how it was done in words."""
    everything = 8 * linear.width * (linear.n_steps - linear.begin)
    if memory == "auto":
        memory = "all" if everything <= AUTOMATIC_BYTES else "reversible" if linear.is_reversible else AUTOMATIC_BYTES
    if memory == "all":
        return *store_all(linear, seeds), "all states kept"
    if memory == "reversible":
        if not linear.is_reversible:
            raise ValueError(
                f'`memory`="reversible" asks for a scheme that can be run back step by step, which {about[1].name} '
                f"cannot; take `Checkpoints` or a splitting scheme"
            )
        run, cost = reversible(linear, seeds)
        if cost.drift <= DRIFT:
            return run, cost, "states reconstructed backward"
        seeds = Seeds(linear, seeds.places, seeds.loss)
        run, again = with_checkpoints(linear, seeds, Checkpoints(bytes=AUTOMATIC_BYTES))
        words = f"checkpoints, because reconstruction missed the initial state by {cost.drift:.1e}"
        return run, replace(again, drift=cost.drift), words
    choice = memory if isinstance(memory, Checkpoints) else Checkpoints(bytes=int(memory))
    name = "" if choice.disk is None else _name(engine, choice, *about)
    run, cost = with_checkpoints(linear, seeds, choice, name)
    return run, cost, f"checkpoints, {cost.states} states at most"


def _name(engine, choice: Checkpoints, problem, scheme, chosen: Steps, places, running, times: bool) -> str:
    """A name for the directory of a run: the same for the same run only, whatever its loss."""
    from stepnet.engines.contract import Plan, Saving

    plan = Plan(Given(chosen.number, chosen.grid), Saving(None, 0))
    run = engine.identity(problem, scheme, plan), problem.initial.tobytes(), places.tobytes(), times
    also = engine.function_key(running), engine.function_key(getattr(problem, "vjp", None))
    return hashlib.sha256(repr((run, also, choice.slots, choice.bytes)).encode()).hexdigest()[:24]


@contextmanager
def _as_failed_solve(engine, problem: Problem, scheme, chosen: Steps):
    """Steps that cannot be taken, told as `solve` tells it."""
    try:
        yield
    except engine.SweepFailed as failure:
        reason = failure
    else:
        return
    solve(problem, scheme, steps=chosen.as_argument, save_every=0)
    raise reason


def _require_argument_gradients(linear) -> None:
    if not linear.has_parameters:
        warnings.warn(
            f"derivatives with respect to `args` are not known ({linear.rung}), so `Gradient.args` is zero; give a "
            f"right-hand side that can be traced",
            AdjointWarning,
            stacklevel=3,
        )


def _warn_if_unsafe(return_error: float) -> None:
    if not return_error < UNSAFE:
        warnings.warn(
            f"solving back misses the initial state by {return_error:.1e} (relative), so the continuous gradient is "
            f"not to be trusted; see `stability.adjoint_safety`",
            AdjointWarning,
            stacklevel=3,
        )


def _time_gradients(problem: Problem, sums: np.ndarray) -> tuple[float, float]:
    """t_n = t0 + theta_n (t1 - t0) with fixed theta_n."""
    at_end = sums[1] / (problem.t_span[1] - problem.t_span[0])
    return float(sums[0] - at_end), float(at_end)


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


# ---- tangents -------------------------------------------------------------------------------------------------------


def _direction(engine, problem: Problem, y0, args) -> tuple[np.ndarray, np.ndarray]:
    if y0 is None and args is None:
        raise TypeError("give a direction: `y0`, `args` or both")
    n = problem.initial.size
    direction = np.zeros(n) if y0 is None else _real("y0", y0).ravel()
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


def shape_of(problem: Problem) -> tuple[int, ...]:
    return problem.y0.shape if isinstance(problem, (ODE, Split)) else problem.initial.shape
