"""`solve_ensemble`: one problem with many initial states and parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Members, Plan, Saving
from stepnet.errors import Interrupted
from stepnet.events import Event
from stepnet.problem import MOST_PATH, SDE, Langevin, Problem, state_shape
from stepnet.records import convert_integers, explain_arguments, validate_count, validate_thread_count
from stepnet.schemes.capabilities import needs_increments_only
from stepnet.schemes.controllers import Controller
from stepnet.solution import EnsembleSolution
from stepnet.solving.integrate import find_scheme, import_engine
from stepnet.solving.planning import AdaptiveOptions, plan_steps, validate_events, validate_projection, validate_times

MANY = 256  # members from which a second thread pays off


@explain_arguments()
def solve_ensemble(
    problem: Problem,
    scheme: Any = None,
    *,
    y0: ArrayLike | None = None,
    args: Any = None,
    paths: ArrayLike | None = None,
    increments: ArrayLike | None = None,
    t_span: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    controller: Controller | str | None = None,
    norm: str | None = None,
    save_at: ArrayLike | None = None,
    events: Event | Callable[..., Any] | Sequence[Event | Callable[..., Any]] = (),
    project: Callable[..., Any] | None = None,
    max_steps: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> EnsembleSolution:
    """Integrate a problem from many initial states, with many parameters, or both.

    A member is one row of each argument that has rows; all must have the same number of rows.  Each member has its own
    steps and its own status: one that fails is stopped and reports the reason, the others continue.  The result of a
    member depends only on its own numbers, not on other members, their order or the number of threads.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder, Split, SDE or Langevin
        What to solve, with the values that all members share.
    scheme, steps, first_step, max_step, controller, norm, events, project, max_steps
        As in `solve`.
    y0 : array_like, optional
        Initial states (members, *state); for partitioned and second-order problems flat ones (members, entries).
    args : array_like, optional
        The numbers of `args`, (members, numbers), in the order of the problem's `args`.
    paths : int or array_like of int, optional
        For an `SDE` or `Langevin`: the number of paths, from `problem.path` on, or the path of each member.  A number
        of paths is taken for each row of `y0` and `args`; the members are then all paths of the first row, all paths
        of the second row, and so on.  Without it each row is assigned the next path.  Members with the same path see
        the same noise.
    increments : array_like, optional
        For an `SDE`: increments of W, (paths, steps, components), instead of those of its Brownian paths, for schemes
        that need nothing else of W.  A member takes the row of its path; by default each row has one member.
    t_span : array_like, optional
        One time span (t0, t1), or one for every member (members, 2).
    rtol, atol : float or array_like, optional
        Tolerances as in `solve`; with two axes one row for every member.
    save_at : array_like, optional
        Save times, for all members or (members, times); by default the end states are saved.
    workers : int, optional
        Threads; by default one per core, and one for fewer than 256 members.
    progress : bool, optional
        Show a progress bar.

    Returns
    -------
    EnsembleSolution

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.ODE(lambda t, y, k: -k * y, [1.0], (0.0, 1.0), args=(1.0,))
    >>> sn.solve_ensemble(problem, "rk4", args=np.array([[0.5], [1.0], [2.0]]), steps=50).y[:, 0, 0].round(4)
    array([0.6065, 0.3679, 0.1353])
    """
    choices = AdaptiveOptions(rtol, atol, first_step, max_step, controller, norm, max_steps)
    paths, increments = _validate_increments(problem, increments, paths)
    spec = build_ensemble_spec(problem, scheme, y0, args, t_span, steps, choices, save_at, paths)
    problem, scheme, members = spec.problem, spec.scheme, spec.members
    if increments is not None:
        members = _insert_increments(spec, increments)
    watched, moved = validate_events(scheme, events, steps is not None), validate_projection(scheme, project)
    plan = Plan(spec.stepping, Saving(None, 0), watched, False, moved)
    with _open_bar(members.number, progress) as show:
        outcome = import_engine().run_ensemble(
            problem, scheme, plan, members, choose_workers(workers, members.number), show
        )
    solution = _as_solution(problem, scheme, members, outcome)
    if outcome.is_interrupted:
        raise Interrupted(solution)
    return solution


class EnsembleSpec(NamedTuple):
    """The validated arguments of an ensemble."""

    problem: Problem
    scheme: object
    stepping: FixedSteps | AdaptiveSteps
    members: Members


def build_ensemble_spec(
    problem: Problem,
    scheme: Any,
    y0: Any,
    args: Any,
    t_span: Any,
    steps: Any,
    choices: AdaptiveOptions,
    save_at: Any,
    paths: Any = None,
) -> EnsembleSpec:
    """Validate the arguments of `solve_ensemble` and build the members."""
    problem = _insert_numbers(problem, args)
    scheme = find_scheme(problem, scheme, steps)
    tolerances: dict[str, Any] = {"rtol": choices.rtol, "atol": choices.atol}
    rows = {name: _build_rows(name, value) for name, value in {"y0": y0, "args": args}.items() if value is not None}
    for name, value in {"t_span": t_span, "save_at": save_at, **tolerances}.items():
        if value is not None and np.ndim(value) == 2:
            rows[name] = _build_rows(name, value)
    chosen, rows = _combine_with_paths(problem, paths, rows)
    count = _count_members(rows) if chosen is None else len(chosen)
    if problem.form.is_stochastic and ("t_span" in rows or "save_at" in rows):
        raise ValueError("`t_span` and `save_at` of an SDE are the same for all members: give one row")
    if t_span is not None and "t_span" not in rows:
        problem = replace(problem, t_span=t_span)
    first = {name: value[0] if name in rows and count else value for name, value in tolerances.items()}
    stepping = plan_steps(problem, scheme, steps, choices._replace(**first))
    members = _build_members(problem, stepping, rows, count, save_at)._replace(paths=chosen)
    return EnsembleSpec(problem, scheme, stepping, members)


def _combine_with_paths(
    problem: Problem, paths: Any, rows: dict[str, np.ndarray]
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """The Brownian path of each member of a stochastic problem, None for others; and the rows of the members."""
    if not isinstance(problem, (SDE, Langevin)):
        if paths is not None:
            raise TypeError(f"`paths` is for an `SDE` or `Langevin`, found {type(problem).__name__}")
        return None, rows
    n_rows = _count_members(rows) if rows else 1
    if paths is None:
        return problem.path + np.arange(n_rows), rows
    if np.ndim(paths) == 0:
        chosen = problem.path + np.arange(validate_count("paths", paths, 1, MOST_PATH + 1 - problem.path))
        repeated = {name: np.repeat(values, len(chosen), axis=0) for name, values in rows.items()}
        return np.tile(chosen, n_rows), repeated
    chosen = _build_rows("paths", paths)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.size == 0 or chosen.min() < 0:
        raise ValueError(f"`paths` must be a number or a row of path numbers from 0 on, found {paths!r:.60}")
    if chosen.max() > MOST_PATH:
        raise ValueError(f"`paths` must be at most {MOST_PATH}, found {chosen.max()}")
    if rows and n_rows != len(chosen):
        raise ValueError(
            f"`paths` and the rows of {' and '.join(f'`{name}`' for name in rows)} must be equally many, found "
            f"{len(chosen)} and {n_rows}; give the number of paths to run each row with all of them"
        )
    return chosen.astype(np.int64), rows


def _validate_increments(problem: Problem, increments: Any, paths: Any) -> tuple[Any, np.ndarray | None]:
    """The paths, by default one for each row of the increments, and the increments as an array."""
    if increments is None:
        return paths, None
    if not isinstance(problem, SDE):
        raise TypeError(f"`increments` are for an `SDE`, found {type(problem).__name__}")
    found = _build_rows("increments", increments)
    if found.ndim != 3 or 0 in found.shape:
        raise ValueError(f"`increments` must have the shape (paths, steps, components), found {found.shape}")
    return np.arange(len(found)) if paths is None else paths, _require_finite("increments", found, np.dtype(float))


def _insert_increments(spec: EnsembleSpec, increments: np.ndarray) -> Members:
    """The members with increments that fit their steps and paths."""
    scheme: Any
    problem, scheme, stepping, members = spec
    if not isinstance(problem, SDE) or not isinstance(stepping, FixedSteps) or members.paths is None:
        raise TypeError("`increments` are for an `SDE` with fixed steps")
    if not needs_increments_only(scheme):
        raise ValueError(
            f"`increments` do not suffice for {scheme.name}, which needs {', '.join(scheme.variables)}; "
            f"use another scheme, such as euler_maruyama or milstein"
        )
    wanted = (stepping.n_steps, problem.n_components)
    if increments.shape[1:] != wanted:
        raise ValueError(
            f"`increments` must have the shape (paths, {wanted[0]}, {wanted[1]}), found {increments.shape}"
        )
    if members.paths.max() >= len(increments):
        raise ValueError(f"`paths` must be less than {len(increments)}, the rows of `increments`")
    return members._replace(increments=increments)


def _insert_numbers(problem: Problem, args: Any) -> Problem:
    """The problem, with the arguments of the first member if it has none itself, so that their number is known."""
    if args is None or problem.args or np.ndim(args) != 2 or not len(args):
        return problem
    return replace(problem, args=tuple(np.asarray(args, float)[0].tolist()))


def _build_rows(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"`{name}` must have one row for every member, found a ragged sequence") from None
    array = convert_integers(name, array)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must hold numbers, found dtype {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"`{name}` must have one row for every member, found the number {array}")
    return array


def _count_members(rows: dict[str, np.ndarray]) -> int:
    """The number of members."""
    if not rows:
        raise ValueError("give `y0` or `args` with one row for every member of the ensemble")
    first, *others = rows
    for name in others:
        if len(rows[name]) != len(rows[first]):
            raise ValueError(
                f"`{first}` and `{name}` must have equally many rows, found {len(rows[first])} and {len(rows[name])}"
            )
    return len(rows[first])


def _build_members(problem: Problem, stepping: Any, rows: dict[str, np.ndarray], count: int, save_at: Any) -> Members:
    n, is_adaptive = problem.initial.size, isinstance(stepping, AdaptiveSteps)
    y0 = problem.initial[None]
    if "y0" in rows:
        y0 = _validate_states(rows["y0"], count, state_shape(problem), problem.initial.dtype)
    spans = np.array([problem.t_span])
    if "t_span" in rows:
        spans = _validate_numbers("t_span", rows["t_span"], 2, "(t0, t1)")
    tolerances = []
    for name in ("rtol", "atol"):
        if name in rows and is_adaptive:
            wide = np.broadcast_to(
                _validate_numbers(name, rows[name], (1, n), "a number, or one for each entry"), (count, n)
            )
            if not (wide > 0).all():
                raise ValueError(f"`{name}` must be positive, found {wide.min()}")
            tolerances.append(np.array(wide, order="C"))
        else:
            tolerances.append(np.array([getattr(stepping, name)]) if is_adaptive else np.ones((1, n)))
    args = import_engine().collect_numbers(problem.args)[None]
    if "args" in rows:
        _require_floats(problem.args)
        args = _validate_numbers("args", rows["args"], args.shape[1], "the numbers of the problem's `args`")
    rtol, atol = tolerances
    return Members(count, y0, args, spans, rtol, atol, _validate_wanted_times(save_at, spans, count))


def _require_floats(args: tuple[Any, ...]) -> None:
    for value in args:
        is_array = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        if not is_array and not isinstance(value, (float, np.floating)):
            raise TypeError(
                f"`args` of the problem must be floats or arrays of floats to differ from member to member, "
                f"found {value!r:.60}"
            )


def _validate_states(rows: np.ndarray, count: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return flat states, one row per member."""
    if rows.shape[1:] not in (shape, (prod(shape),)):
        raise ValueError(f"`y0` must have the shape (members, {', '.join(map(str, shape))}), found {rows.shape}")
    return _require_finite("y0", rows, dtype).reshape(count, prod(shape))


def _validate_numbers(name: str, rows: np.ndarray, widths: Any, meaning: str) -> np.ndarray:
    """Return rows of finite real numbers."""
    widths = (widths,) if isinstance(widths, int) else widths
    if rows.ndim != 2 or rows.shape[1] not in widths:
        wanted = " or ".join(f"(members, {width})" for width in dict.fromkeys(widths))
        raise ValueError(f"`{name}` must have the shape {wanted}: {meaning}; found {rows.shape}")
    return _require_finite(name, rows, np.dtype(float))


def _require_finite(name: str, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a copy of these numbers; refuse any that is not finite."""
    if rows.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"`{name}` must be real as the problem is, found complex numbers")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))
    if bad.size:
        raise ValueError(f"`{name}` must be finite, but {bad.size} of its rows are not, the first of them row {bad[0]}")
    return np.array(rows, dtype, order="C")


def _validate_wanted_times(save_at: Any, spans: np.ndarray, count: int) -> np.ndarray:
    """Return the save times, one row per member or one for all."""
    if save_at is None:
        return np.zeros((1, 0))
    times = _build_rows("save_at", save_at)
    if times.ndim > 2:
        raise ValueError(f"`save_at` must have the shape (times,) or (members, times), found {times.shape}")
    times = np.array(np.atleast_2d(times), float, order="C")
    wide = np.broadcast_to(times, (max(len(times), len(spans)), times.shape[1]))
    for row, span in zip(wide, np.broadcast_to(spans, (len(wide), 2)), strict=True):
        validate_times("save_at", row, tuple(span))
    return times


def count_usable_cores() -> int:
    """The number of cores this process may use, where the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(workers: Any, count: int) -> int:
    """Choose the number of threads."""
    if workers is None:
        return 1 if count < MANY else count_usable_cores()
    return validate_thread_count(workers)


@contextmanager
def _open_bar(count: int, is_wanted: bool) -> Any:
    if not is_wanted:
        yield lambda n: None
        return
    with tqdm(total=count, unit="members") as bar:
        yield bar.update


def _as_solution(problem: Problem, scheme: Any, members: Members, outcome: Any) -> EnsembleSolution:
    if members.save_at.shape[1]:
        t = np.array(np.broadcast_to(members.save_at, (members.number, members.save_at.shape[1])))
    else:
        t = outcome.t_end[:, None]
    y = outcome.y.reshape(*outcome.y.shape[:2], *state_shape(problem))
    return EnsembleSolution(t=t, y=y, problem=problem, scheme=scheme, members=members, **_collect_facts(outcome))


def _collect_facts(outcome: Any) -> dict[str, Any]:
    kept = outcome._asdict()
    del kept["y"], kept["is_interrupted"]
    return kept
