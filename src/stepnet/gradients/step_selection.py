"""The steps to differentiate: fixed ones unchanged, adaptive ones chosen first and then held fixed."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.checkpoints.counts import validate_steps
from stepnet.engines.contract import FixedSteps, Plan, Saving, StateStream
from stepnet.errors import AdjointWarning
from stepnet.gradients.reversal import count_steps_in_block
from stepnet.gradients.state_store import StreamedStates
from stepnet.problem import Problem
from stepnet.schemes.capabilities import find_step_choice_refusal
from stepnet.solving.integrate import solve, solve_streaming
from stepnet.solving.planning import AdaptiveOptions, plan_steps, validate_times

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun

NOTHING = np.zeros(0)
NEAR = 1e-9  # fraction of a step by which a save time may differ from the time of a fixed step


class StepSelection(NamedTuple):
    """The steps to differentiate: their number, their times if they are not equal, and the steps that enter the loss.

    Adaptive steps were taken in a first run: `n_searched` of them, with the flat `states` at the steps `read`.
    """

    number: int
    grid: np.ndarray | None
    places: np.ndarray
    n_searched: int = 0
    read: np.ndarray = NOTHING
    states: np.ndarray = NOTHING

    @property
    def as_argument(self) -> int | np.ndarray:
        """The argument `steps` of `solve`."""
        return self.number if self.grid is None else self.grid

    def times(self, t_span: tuple[float, float]) -> np.ndarray:
        """The times of the steps that enter the loss."""
        if self.grid is not None:
            return self.grid[self.places]
        t0, t1 = t_span
        return np.where(self.places == self.number, t1, t0 + self.places * ((t1 - t0) / max(1, self.number)))


def require_differentiable_steps(scheme: Any) -> None:
    """Refuse a scheme whose steps depend on earlier choices of orders, for exact gradients."""
    refusal = find_step_choice_refusal(
        scheme,
        'so that no exact gradient of a run exists here; give `memory="continuous"` for the adjoint equation, or',
    )
    if refusal is not None:
        raise TypeError(refusal)


def select_steps(
    problem: Problem, scheme: Any, steps: ArrayLike | None, choices: AdaptiveOptions, save_at: ArrayLike | None,
    passed: StreamedStates | None = None,
) -> StepSelection:  # fmt: skip
    """Fixed steps unchanged; adaptive ones from a first run, in which a step ends at each save time.

    That run stores the times of its steps and passes the states before them to `passed`.
    """
    plan = plan_steps(problem, scheme, steps, choices)
    wanted = None if save_at is None else validate_times("save_at", save_at, problem.t_span)
    if isinstance(plan, FixedSteps):
        validate_steps("steps", plan.n_steps)
        return StepSelection(plan.n_steps, plan.grid, _find_places(problem, plan, wanted))
    return _search_steps(problem, scheme, choices, wanted, passed)


def _search_steps(
    problem: Problem, scheme: Any, choices: AdaptiveOptions, wanted: np.ndarray | None, passed: StreamedStates | None
) -> StepSelection:
    (t0, t1), n = problem.t_span, problem.initial.size
    stops = NOTHING if wanted is None else _select_inside(wanted, t0, t1)
    times, read, states = array("d"), [], []

    def take(t: np.ndarray, y: np.ndarray) -> None:
        here = _locate_stops(t, stops, t1 < t0)
        read.append(len(times) + here)
        states.append(y[here])
        times.frombytes(t.tobytes())
        if passed is not None:
            passed.look(y)

    passing = StateStream(count_steps_in_block(n) if passed is None else passed.block, take)
    last = solve_streaming(problem, scheme, None, choices, passing, stops=stops)
    flat = last.y.reshape(-1, n)
    take(last.t[:-1], flat[:-1])
    number = len(times)
    times.append(t1)
    grid = np.frombuffer(times)
    places = np.array([number]) if wanted is None else np.searchsorted(*_sort_ascending(grid, wanted, t1 < t0))
    return StepSelection(
        number, grid, places, number, np.append(np.concatenate(read), number), np.vstack((*states, flat[-1:]))
    )


def _select_inside(wanted: np.ndarray, t0: float, t1: float) -> np.ndarray:
    """The distinct save times strictly inside the interval, in the direction of integration."""
    ascending = np.unique(wanted[(wanted != t0) & (wanted != t1)])
    return ascending if t0 < t1 else ascending[::-1].copy()


def _locate_stops(times: np.ndarray, stops: np.ndarray, is_backward: bool) -> np.ndarray:
    """The indices of stops among times, both in the direction of integration."""
    here = np.searchsorted(*_sort_ascending(times, stops, is_backward))
    is_there = here < len(times)
    is_there[is_there] = times[here[is_there]] == stops[is_there]
    return here[is_there]


def _sort_ascending(times: np.ndarray, wanted: np.ndarray, is_backward: bool) -> tuple[np.ndarray, np.ndarray]:
    return (-times, -wanted) if is_backward else (times, wanted)


def _find_places(problem: Problem, plan: FixedSteps, wanted: np.ndarray | None) -> np.ndarray:
    """The step numbers of the save times."""
    if wanted is None:
        return np.array([plan.n_steps])
    t0, t1 = problem.t_span
    h = (t1 - t0) / plan.n_steps
    if plan.grid is None:
        places = np.rint((wanted - t0) / h).astype(np.int64) if h != 0 else np.zeros(len(wanted), np.int64)
        found = t0 + h * places
    else:
        after = np.searchsorted(*_sort_ascending(plan.grid, wanted, t1 < t0)).clip(1, plan.n_steps)
        is_before = np.abs(plan.grid[after - 1] - wanted) <= np.abs(plan.grid[after] - wanted)
        places = after - is_before
        found = plan.grid[places]
    missed = np.abs(found - wanted) > NEAR * abs(h) + 4 * np.spacing(max(abs(t0), abs(t1)))
    if np.any(missed):
        raise ValueError(
            f"`save_at` must be among the times of the fixed steps, but {wanted[missed][0]} is not; give `steps` as "
            f"an array of times that includes it"
        )
    return places


def build_differentiable_run(
    engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection, has_times: bool = False,
    differences: bool = False,
) -> DifferentiableRun:  # fmt: skip
    """The steps of a scheme, to be run forward and in reverse."""
    return engine.linearise(problem, scheme, FixedSteps(chosen.number, chosen.grid), has_times, differences)


def require_argument_gradients(linear: DifferentiableRun, unconverted: Sequence[int] = ()) -> None:
    """Warn where derivatives with respect to arguments are not known.

    `unconverted` holds the positions of integers and lists that could not be replaced by floats.
    """
    if unconverted and linear.has_parameters:
        names = " and ".join(f"`args[{place}]`" for place in unconverted)
        warnings.warn(
            f"{names}: the right-hand side does not take floats instead, because it uses integers as an index or a "
            f"count, or a list as a list; there is no derivative with respect to it, and its gradient is None",
            AdjointWarning,
            stacklevel=3,
        )
    if not linear.has_parameters:
        warnings.warn(
            f"derivatives with respect to `args` are not known ({linear.rung}), so they are None; let `vjp` be a "
            f"C function, or leave it out for a right-hand side that can be traced",
            AdjointWarning,
            stacklevel=4,
        )


@contextmanager
def as_failed_solve(engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection) -> Iterator[None]:
    """Report steps that cannot be taken in the way `solve` does."""
    try:
        yield
    except engine.SweepFailed as failure:
        reason = failure
    else:
        return
    solve(problem, scheme, steps=chosen.as_argument, save_every=0)
    raise reason


def find_identity(
    engine: ModuleType, problem: Problem, scheme: Any, chosen: StepSelection, *others: Any
) -> tuple[Any, ...]:
    """The values that identify a run, except its loss; `others` are added to them."""
    plan = Plan(FixedSteps(chosen.number, chosen.grid), Saving(None, 0))
    run = engine.identity(problem, scheme, plan), problem.initial.tobytes(), chosen.places.tobytes()
    return run, engine.function_key(getattr(problem, "vjp", None)), others
