"""Validate the arguments of `solve` and build the plan of a run.

Every user error is detected here or in the problem record; messages name the argument in backticks, what was found and
what is required.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from stepnet.c_functions import check_function, is_function
from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Saving
from stepnet.equations.step_limits import find_step_refusal
from stepnet.errors import UnknownName
from stepnet.events import Event
from stepnet.problem import SDE, Gmres, Problem, Split, state_shape
from stepnet.records import convert_integers, validate_count
from stepnet.schemes.capabilities import (
    find_mass_refusal,
    find_noise_refusal,
    find_parts_refusal,
    find_refusal,
    is_adaptive,
    is_implicit,
    is_langevin,
    is_stochastic,
    needs_axes,
    needs_linear_part,
    reads_jacobian,
    takes_changed_states,
    takes_fixed_steps,
    takes_projections,
    takes_uneven_steps,
)
from stepnet.schemes.conditions import is_symplectic
from stepnet.schemes.controllers import Controller
from stepnet.schemes.controllers import controller as controller_of

DEFAULT_RTOL, DEFAULT_ATOL, DEFAULT_MAX_STEPS = 1e-6, 1e-9, 10_000_000
STOCHASTIC_RTOL, STOCHASTIC_ATOL = 1e-3, 1e-6  # errors of paths decrease with the power 3/2 of the step size at best
NORMS = ("rms", "max")
LEAST_TOLERANCE = 1e-100
LONGEST_REMEMBERED = 1000  # entries of a state for which tolerances are kept for the next solve
MOST_STEPS = 2**53  # beyond it t0 + i h does not distinguish neighbouring steps


def _is_real_on_axes(problem: Problem, scheme: Any) -> bool:
    """Whether systems along the axes of a grid are solved, which kernels do in both precisions."""
    return problem.initial.dtype == np.float32 and needs_axes(scheme, problem)


def require_match(problem: Problem, scheme: Any) -> None:
    """Refuse a scheme that cannot run the problem, with the reason."""
    refusal = find_refusal(scheme, problem.form)
    if refusal is None and isinstance(problem, Split):
        refusal = find_parts_refusal(scheme, problem.parts)
    if refusal is None and isinstance(problem, SDE):
        refusal = find_noise_refusal(scheme, problem.noise, problem.calculus)
    mass = getattr(problem, "mass_matrix", None)
    if refusal is None and mass is not None:
        refusal = find_mass_refusal(scheme, mass.is_singular)
        refusal = refusal and f"`mass` is {'singular' if mass.is_singular else 'given'}: {refusal}"
    if refusal is None and reads_jacobian(scheme) and isinstance(getattr(problem, "linear_solver", None), Gmres):
        refusal = (
            f"{scheme.name} reads df/dy to see how stiff a problem is, but `linear_solver` = gmres computes products; "
            f'use "sparse", or a scheme such as ndf or radau5'
        )
    if refusal is not None:
        raise TypeError(refusal)
    solves_systems = is_implicit(scheme) or needs_linear_part(scheme)
    if solves_systems and problem.initial.dtype != np.float64 and not _is_real_on_axes(problem, scheme):
        raise TypeError(f"{scheme.name} solves states of float64, found {problem.initial.dtype}; convert the state")


class AdaptiveOptions(NamedTuple):
    """The arguments of `solve` and `start` for adaptive steps only, not yet validated; None where not given."""

    rtol: object = None
    atol: object = None
    first_step: object = None
    max_step: object = None
    controller: Controller | str | None = None
    norm: object = None
    max_steps: object = None

    @property
    def are_defaults(self) -> bool:
        """Whether none is given."""
        return all(each is None for each in self)

    @property
    def are_plain_tolerances(self) -> bool:
        """Whether nothing but tolerances is given, as floats that need no further check."""
        return _is_plain(self.rtol) and _is_plain(self.atol) and all(each is None for each in self[2:])


def _is_plain(tolerance: object) -> bool:
    return tolerance is None or (type(tolerance) is float and LEAST_TOLERANCE <= tolerance < np.inf)


def plan_steps(
    problem: Problem, scheme: Any, steps: Any, choices: AdaptiveOptions, may_be_endless: bool = False
) -> FixedSteps | AdaptiveSteps:
    """Plan fixed or adaptive steps; with `may_be_endless` the time span may be infinite, as something else ends it."""
    if not isfinite(problem.t_span[1]) and (steps is not None or not may_be_endless):
        raise ValueError(
            f"`t_span` must be finite, found {problem.t_span}; an infinite end needs adaptive steps of `solve` with a "
            f"`terminal` event, or of `start`"
        )
    if steps is None:
        return plan_adaptive_steps(problem, scheme, choices)
    return plan_fixed_steps(problem, scheme, steps, choices)


def plan_adaptive_steps(problem: Problem, scheme: Any, choices: AdaptiveOptions) -> AdaptiveSteps:
    """Plan the adaptive steps of a pair."""
    rtol, atol, first_step, max_step, controller, norm, max_steps = choices
    if not is_adaptive(scheme):
        if is_stochastic(scheme):
            other = "" if is_langevin(scheme) else ", or use a pair such as sriw1 or, for additive noise, sra1"
            raise ValueError(f"{scheme.name} has no error estimate to choose its steps by; give `steps`{other}")
        if is_symplectic(scheme):
            raise ValueError(
                f"{scheme.name} is symplectic and keeps its long-time behaviour only with equal steps, so it takes no "
                f"`rtol`; give `steps`, or use a pair such as dop853"
            )
        raise ValueError(
            f"{scheme.name} has no error estimate to choose its steps by; give `steps`, or use a pair such as dopri5"
        )
    if controller is not None and not takes_fixed_steps(scheme):
        raise ValueError(f"{scheme.name} chooses order and length of a step together and takes no `controller`")
    is_noisy = is_stochastic(scheme)
    if not is_noisy and choices.are_plain_tolerances and problem.initial.size <= LONGEST_REMEMBERED:
        rtol, atol = DEFAULT_RTOL if rtol is None else rtol, DEFAULT_ATOL if atol is None else atol
        return _plan_equal_tolerances(problem.initial.size, rtol, atol)
    if norm is not None and (not isinstance(norm, str) or norm not in NORMS):
        raise UnknownName("norm", norm, NORMS)
    are_given = rtol is not None and atol is not None  # a default tolerance is attainable
    defaults = (STOCHASTIC_RTOL, STOCHASTIC_ATOL) if is_noisy else (DEFAULT_RTOL, DEFAULT_ATOL)
    rtol = _validate_tolerance("rtol", defaults[0] if rtol is None else rtol, problem)
    atol = _validate_tolerance("atol", defaults[1] if atol is None else atol, problem)
    if are_given:
        _require_attainable(rtol, atol)
    return AdaptiveSteps(
        rtol=rtol,
        atol=atol,
        first_step=None if first_step is None else _require_positive("first_step", first_step),
        max_step=np.inf if max_step is None else _require_positive("max_step", max_step),
        controller=controller_of(("PI" if is_noisy else "I") if controller is None else controller),
        norm=norm or "rms",
        max_steps=validate_count("max_steps", DEFAULT_MAX_STEPS if max_steps is None else max_steps, 1),
    )


@lru_cache(maxsize=8)
def _plan_equal_tolerances(size: int, rtol: float, atol: float) -> AdaptiveSteps:
    """Adaptive steps with the same tolerances for all entries; cached, because the arrays are never written to."""
    tolerances = np.full(size, rtol), np.full(size, atol)
    return AdaptiveSteps(*tolerances, None, np.inf, controller_of("I"), "rms", DEFAULT_MAX_STEPS)


def plan_fixed_steps(problem: Problem, scheme: Any, steps: Any, choices: AdaptiveOptions) -> FixedSteps:
    """Plan fixed steps, from their number or their times."""
    if not choices.are_defaults:
        name = next(name for name, value in choices._asdict().items() if value is not None)
        raise ValueError(f"`{name}` is for adaptive steps, but `steps` are given; leave one of them out")
    if not takes_fixed_steps(scheme):
        raise ValueError(
            f"{scheme.name} chooses its steps itself, so it takes no `steps`; give `rtol` and `atol`, or use a scheme "
            f"for fixed steps such as radau5 or rk4"
        )
    if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool):
        n_steps = validate_count("steps", steps, 1, MOST_STEPS, "times are 64-bit floating-point numbers")
        _require_stable(problem, scheme, abs(problem.t_span[1] - problem.t_span[0]) / n_steps)
        return FixedSteps(n_steps)
    grid = _as_times("steps", steps, "; for a step size h give `steps=round((t1 - t0) / h)`")
    if not takes_uneven_steps(scheme):
        raise ValueError(f"{scheme.name} is a scheme for equal steps; give `steps` as a number")
    t0, t1 = problem.t_span
    _require_monotone("steps", grid, t0, t1)
    if len(grid) < 2 or grid[0] != t0 or grid[-1] != t1:
        raise ValueError(f"`steps` must begin at {t0} and end at {t1} as `t_span` does, found {grid}")
    if np.any(np.diff(grid) == 0) and t0 != t1:
        raise ValueError("`steps` must not repeat a time")
    _require_stable(problem, scheme, float(np.max(np.abs(np.diff(grid)))))
    return FixedSteps(len(grid) - 1, grid)


def _require_stable(problem: Problem, scheme: Any, longest: float) -> None:
    """Refuse fixed steps that are unstable for an equation that knows its limit."""
    refusal = find_step_refusal(problem, scheme, longest)
    if refusal is not None:
        raise ValueError(refusal)


def plan_saving(problem: Problem, save_at: Any, save_every: Any) -> Saving:
    """Plan which states are saved."""
    every = validate_count("save_every", save_every, 0)
    return Saving(None if save_at is None else validate_times("save_at", save_at, problem.t_span), every)


def validate_events(scheme: Any, events: Any, has_steps: bool = True) -> tuple[Event, ...]:
    """Return events, given as records or as functions with SciPy's attributes `terminal` and `direction`.

    `has_steps` says whether steps are fixed.
    """
    if isinstance(events, Event) or is_function(events):
        events = (events,)
    try:
        chosen = tuple([_validate_event(event) for event in (() if events is None else events)])
    except TypeError as wrong:
        if np.iterable(events):
            raise
        raise TypeError(f"`events` must be functions or `Event` records, found {events!r:.60}") from wrong
    if chosen and is_langevin(scheme):
        raise TypeError(f"{scheme.name} locates no `events`: write the equation as an `SDE` for its exit times")
    if is_stochastic(scheme):
        _require_exits(chosen)
        if chosen and not has_steps:
            raise ValueError("`events` of an `SDE` need fixed steps: give `steps`")
    if not takes_changed_states(scheme) and any(event.reset is not None for event in chosen):
        raise TypeError(
            f"{scheme.name} continues from its history, which a `reset` would invalidate; use a one-step scheme"
        )
    return chosen


def _require_exits(events: tuple[Event, ...]) -> None:
    """Refuse events of paths other than first exits."""
    for event in events:
        if event.terminal != 1:
            raise ValueError(
                f"`events` of an `SDE` must be terminal, as a path crosses a level infinitely often: give "
                f"`Event(g, terminal=True)`, found terminal={event.terminal!r}"
            )
        if event.touch:
            raise ValueError("`touch` is for smooth solutions; a path of an `SDE` that touches a level also crosses it")
        if event.at_start:
            raise ValueError("`at_start` is not for an `SDE`: a path that begins on a level leaves it at once")


def validate_projection(scheme: Any, project: Any) -> Any:
    """Return the projection applied after each step, or None."""
    if project is None:
        return None
    check_function("project", project)
    if is_stochastic(scheme):
        raise TypeError(f"{scheme.name} takes no `project`; change the state inside `drift` and `diffusion`")
    if not takes_projections(scheme):
        raise TypeError(
            f"{scheme.name} continues from its history, which `project` would invalidate; use a one-step scheme"
        )
    return project


def _validate_event(event: Any) -> Event:
    if isinstance(event, Event):
        return event
    direction = int(np.sign(getattr(event, "direction", 0) or 0))
    return Event(event, direction, getattr(event, "terminal", False) or False)


def validate_times(name: str, value: Any, t_span: tuple[float, float]) -> np.ndarray:
    """Return times within the time span, sorted in the direction of integration."""
    times = _as_times(name, value)
    _require_monotone(name, times, *t_span)
    return times


def _as_times(name: str, value: Any, hint: str = "") -> np.ndarray:
    try:
        times = np.asarray(value)
    except ValueError:
        raise TypeError(f"`{name}` must be an array of times, found a ragged sequence") from None
    times = convert_integers(name, times)
    if times.ndim != 1 or times.dtype.kind not in "iuf":
        wanted = "a whole number or an array of times" if hint else "a one-dimensional array of times"
        raise TypeError(f"`{name}` must be {wanted}, found {value!r:.60}{hint}")
    return np.array(times, dtype=float)


def _require_monotone(name: str, times: np.ndarray, t0: float, t1: float) -> None:
    """Refuse times outside the span or against the direction of integration."""
    if _is_monotone(times, t0, t1):
        return
    if not np.all(np.isfinite(times)):
        raise ValueError(f"`{name}` must be finite, found {times[~np.isfinite(times)][0]}")
    outside = (times < min(t0, t1)) | (times > max(t0, t1))
    if np.any(outside):
        raise ValueError(f"`{name}` must lie in `t_span` = ({t0}, {t1}), found {times[outside][0]}")
    back = np.flatnonzero(np.diff(times) * np.sign(t1 - t0) < 0)
    if back.size:
        before, after = times[back[0]], times[back[0] + 1]
        raise ValueError(f"`{name}` must run from {t0} to {t1} without turning back, found {after} after {before}")


def _is_monotone(times: np.ndarray, t0: float, t1: float) -> bool:
    """Whether times are sorted from t0 to t1 and lie between them; False if one is NaN."""
    low, high, upward = (t0, t1, times) if t0 <= t1 else (t1, t0, times[::-1])
    is_inside = len(times) == 0 or (low <= upward[0] and upward[-1] <= high)
    return bool(is_inside and (upward[:-1] <= upward[1:]).all())


def _validate_tolerance(name: str, value: Any, problem: Problem) -> np.ndarray:
    """Return one tolerance per entry of the flat state."""
    if isinstance(value, float) and 0.0 < value < np.inf:
        tolerance = np.empty(problem.initial.size)
        tolerance.fill(value)
        return tolerance
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError(f"`{name}` must be a number or an array of numbers, found a ragged sequence") from None
    array = convert_integers(name, array)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"`{name}` must be a number or an array of numbers, found {value!r:.60}")
    bad = array[~(np.isfinite(array) & (array > 0))]
    if bad.size:
        raise ValueError(f"`{name}` must be positive and finite, found {bad.ravel()[0]}")
    shape = state_shape(problem)
    try:
        return np.array(np.broadcast_to(array.astype(float), shape)).ravel()
    except ValueError:
        raise ValueError(
            f"`{name}` must be one number or have the shape {shape} of the state, found {array.shape}"
        ) from None


def _require_attainable(rtol: np.ndarray, atol: np.ndarray) -> None:
    """Refuse tolerances that no step can meet: errors are divided by atol + rtol |y|."""
    largest = np.maximum(rtol, atol)
    if (largest < LEAST_TOLERANCE).any():
        raise ValueError(
            f"`rtol` and `atol` must not both be below {LEAST_TOLERANCE:g}, which rounding alone exceeds; found "
            f"{rtol[np.argmin(largest)]:g} and {atol[np.argmin(largest)]:g}"
        )


def _require_positive(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (is_number and value > 0 and (value < 1e308 or value == np.inf)):
        raise ValueError(f"`{name}` must be a positive number, found {value!r:.60}")
    return float(value)
