"""`solve`: the way in.  Everything is checked here, once; below this line there are numbers only."""

from __future__ import annotations

import warnings

import numpy as np

from stepnet.engines.contract import Outcome, Plan
from stepnet.errors import Interrupted, SolveFailed, StiffnessWarning, UnknownName
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split
from stepnet.schemes import catalogue
from stepnet.schemes.conditions import is_pair, is_symplectic
from stepnet.schemes.controllers import controller as controller_of
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.solution import Solution, Status

DEFAULT_RTOL, DEFAULT_ATOL = 1e-6, 1e-9
DEFAULT_MAX_STEPS = 10_000_000
NORMS = ("rms", "max")
STIFF = 0.8  # of the stability limit


def solve(
    problem: Problem,
    scheme,
    *,
    steps=None,
    rtol=None,
    atol=None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller=None,
    norm: str | None = None,
    save_at=None,
    save_every: int = 1,
    max_steps: int = DEFAULT_MAX_STEPS,
    progress: bool = False,
    check: bool = True,
) -> Solution:
    """Integrate a problem from the beginning to the end of its time span.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        What to solve.
    scheme : record or str
        A scheme or its name, such as "dopri5", "rk4" or "verlet"; see `schemes.names()`.
    steps : int or array_like, optional
        The number of even steps, or the times of given ones (from t0 to t1).  Without it a pair chooses its own steps.
    rtol, atol : float or array_like, optional
        Tolerances of adaptive steps, for all entries of the state or one each (1e-6 and 1e-9).
    first_step, max_step : float, optional
        Length of the first adaptive step, and of the longest.
    controller : Controller or str, optional
        How the error chooses the next step: "I" (default), "PI" or "PID".
    norm : {"rms", "max"}, optional
        Norm of the error over the state: root mean square (default) or maximum.
    save_at : array_like, optional
        Times to save at, in the direction of integration.  The steps do not depend on them.
    save_every : int, optional
        Save every k-th step, the first and the last; 0 saves the end only.
    max_steps : int, optional
        Most attempted steps of an adaptive run.
    progress : bool, optional
        Show a bar.
    check : bool, optional
        Raise `SolveFailed` or `Interrupted` if the end is not reached; otherwise return the part that was.

    Returns
    -------
    Solution
    """
    if not isinstance(problem, (ODE, Partitioned, SecondOrder, Split)):
        raise TypeError(f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {type(problem).__name__}")
    scheme = catalogue.get(scheme)
    _require_match(problem, scheme)
    plan = Plan(
        **_stepping(problem, scheme, steps, rtol, atol, first_step, max_step, controller, norm),
        **_saving(problem, save_at, save_every),
        max_steps=_positive_integer("max_steps", max_steps),
        progress=bool(progress),
    )
    from stepnet.engines import numba_engine  # loads Numba, so only when something is solved

    solution = _as_solution(problem, scheme, numba_engine.run(problem, scheme, plan))
    if check and solution.status is Status.INTERRUPTED:
        raise Interrupted(solution)
    if check and not solution.success:
        raise SolveFailed(solution) from solution.failure.exception
    if solution.success and solution.statistics.stiffness > STIFF:
        warnings.warn(
            f"{scheme.name}: the steps were limited by stability ({solution.statistics.stiffness:.2g} of the limit), not "
            f"by accuracy: the problem is stiff, and an implicit or stabilised scheme would need far fewer",
            StiffnessWarning,
            stacklevel=2,
        )
    return solution


def _as_solution(problem: Problem, scheme, outcome: Outcome) -> Solution:
    y = outcome.y
    if isinstance(problem, (ODE, Split)):
        y = y.reshape(len(outcome.t), *problem.y0.shape)
    message = outcome.status.value
    failure = outcome.failure
    if failure is not None:
        message += f" at t = {failure.t:.6g}"
        if failure.component is not None:
            message += (
                f": slope {failure.component} is not finite in stage {failure.stage + 1}, step h = {failure.h:.3g}"
            )
        if failure.advice:
            message += f"; {failure.advice}"
    return Solution(outcome.t, y, outcome.status, message, outcome.statistics, scheme, problem, failure)


def _require_match(problem: Problem, scheme) -> None:
    """Refuse a scheme that cannot run the problem, with the reason."""
    if isinstance(scheme, Splitting):
        if isinstance(problem, ODE):
            raise TypeError(
                f"{scheme.name} moves the parts of a problem in turn, and an `ODE` has no parts; "
                f"use `Partitioned`, `SecondOrder` or `Split`"
            )
        if isinstance(problem, Partitioned) and not problem.separable:
            raise TypeError(f"{scheme.name} needs dq(t, p) and dp(t, q); a problem with separable=False has none")
        if scheme.nystrom and not isinstance(problem, SecondOrder):
            raise TypeError(f"{scheme.name} keeps its order only for q'' = a(t, q); use `SecondOrder`")
    if isinstance(scheme, Multistep) and scheme.derivative == 2 and not isinstance(problem, SecondOrder):
        raise TypeError(f"{scheme.name} integrates q'' = a(t, q); use `SecondOrder`")


def _stepping(problem, scheme, steps, rtol, atol, first_step, max_step, controller, norm) -> dict:
    """The part of a plan that says how to step."""
    is_adaptive = steps is None
    if not is_adaptive:
        given = {
            "rtol": rtol,
            "atol": atol,
            "first_step": first_step,
            "max_step": max_step,
            "controller": controller,
            "norm": norm,
        }
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"`{name}` belongs to adaptive steps, but `steps` are given; leave one of them out")
        n_steps, grid = _given_steps(problem, scheme, steps)
        return dict(n_steps=n_steps, grid=grid, rtol=None, atol=None, first_step=None, max_step=np.inf,
                    controller=controller_of("I"), norm="rms")  # fmt: skip
    if is_symplectic(scheme):
        raise ValueError(
            f"{scheme.name} is symplectic and keeps its long-time behaviour only with equal steps, so `rtol` is refused; "
            f"give `steps`, or take a pair such as dop853"
        )
    if not is_pair(scheme):
        raise ValueError(
            f"{scheme.name} has no error estimate to choose steps by; give `steps`, or take a pair such as dopri5"
        )
    if norm is not None and norm not in NORMS:
        raise UnknownName("norm", norm, NORMS)
    return dict(
        n_steps=None,
        grid=None,
        rtol=_tolerance("rtol", DEFAULT_RTOL if rtol is None else rtol, problem),
        atol=_tolerance("atol", DEFAULT_ATOL if atol is None else atol, problem),
        first_step=None if first_step is None else _positive("first_step", first_step),
        max_step=np.inf if max_step is None else _positive("max_step", max_step),
        controller=controller_of("I" if controller is None else controller),
        norm=norm or "rms",
    )  # fmt: skip


def _given_steps(problem, scheme, steps) -> tuple[int, np.ndarray | None]:
    if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool):
        return _positive_integer("steps", steps), None
    grid = np.asarray(steps)
    if grid.ndim != 1 or grid.dtype.kind not in "iuf":
        raise TypeError(
            f"`steps` must be a whole number of steps or the array of their times, found {steps!r:.60}; "
            f"for a step size h give `steps=round((t1 - t0) / h)`"
        )
    if isinstance(scheme, Multistep):
        raise ValueError(f"{scheme.name} is a multistep scheme for equal steps; give `steps` as a number")
    grid = np.ascontiguousarray(grid, dtype=float)
    t0, t1 = problem.t_span
    _require_monotone("steps", grid, t0, t1)
    if len(grid) < 2 or grid[0] != t0 or grid[-1] != t1:
        raise ValueError(
            f"`steps` must begin at {t0} and end at {t1} as `t_span` does, found {grid[:1]} to {grid[-1:]}"
        )
    if np.any(np.diff(grid) == 0) and t0 != t1:
        raise ValueError("`steps` must not repeat a time")
    return len(grid) - 1, grid


def _saving(problem, save_at, save_every) -> dict:
    """The part of a plan that says what to keep."""
    if isinstance(save_every, bool) or not isinstance(save_every, (int, np.integer)) or save_every < 0:
        raise ValueError(f"`save_every` must be a whole number, 0 for the end only, found {save_every!r}")
    if save_at is None:
        return dict(save_at=None, save_every=int(save_every))
    times = np.asarray(save_at)
    if times.ndim != 1 or times.dtype.kind not in "iuf":
        raise TypeError(f"`save_at` must be a one-dimensional array of times, found {save_at!r:.60}")
    times = np.ascontiguousarray(times, dtype=float)
    _require_monotone("save_at", times, *problem.t_span)
    return dict(save_at=times, save_every=int(save_every))


def _require_monotone(name: str, times: np.ndarray, t0: float, t1: float) -> None:
    """Refuse times outside the span or against the direction of integration."""
    if not np.all(np.isfinite(times)):
        raise ValueError(f"`{name}` must be finite, found {times[~np.isfinite(times)][0]}")
    outside = (times < min(t0, t1)) | (times > max(t0, t1))
    if np.any(outside):
        raise ValueError(f"`{name}` must lie in `t_span` = ({t0}, {t1}), found {times[outside][0]}")
    falls = np.flatnonzero(np.diff(times) * np.sign(t1 - t0) < 0)
    if falls.size:
        i = falls[0]
        raise ValueError(
            f"`{name}` must run from {t0} to {t1} without turning back, but entry {i + 1} is {times[i + 1]} after {times[i]}"
        )


def _tolerance(name: str, value, problem) -> np.ndarray:
    """One tolerance for every entry of the flat state."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"`{name}` must be a number or an array of numbers, found {value!r:.60}")
    bad = array[~(np.isfinite(array) & (array > 0))]
    if bad.size:
        raise ValueError(f"`{name}` must be positive and finite, found {bad.ravel()[0]}")
    shape = problem.y0.shape if isinstance(problem, (ODE, Split)) else problem.initial.shape
    try:
        return np.ascontiguousarray(np.broadcast_to(array.astype(float), shape)).ravel()
    except ValueError:
        raise ValueError(
            f"`{name}` must be one number or have the shape {shape} of the state, found {array.shape}"
        ) from None


def _positive(name: str, value) -> float:
    if isinstance(value, bool) or not np.isscalar(value) or not value > 0:
        raise ValueError(f"`{name}` must be a positive number, found {value!r}")
    return float(value)


def _positive_integer(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, found {value!r}")
    return int(value)
