"""`gradient_ensemble`: exact gradients of a loss of every member of an ensemble."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepnet.engines.contract import AdaptiveSteps, FixedSteps, Plan, Saving
from stepnet.ensembles.ensemble import EnsembleSpec, build_ensemble_spec, choose_workers
from stepnet.gradients.adjoint import gradient
from stepnet.gradients.step_selection import require_differentiable_steps
from stepnet.problem import Problem, state_shape
from stepnet.records import explain_arguments, show_fields
from stepnet.solution import Status
from stepnet.solving.integrate import find_scheme, import_engine
from stepnet.solving.planning import AdaptiveOptions


@dataclass(frozen=True, eq=False)
class EnsembleGradient:
    """Losses and their gradients, member by member.

    Parameters
    ----------
    value : array
        The losses (members,).
    y0 : array
        Gradients with respect to the initial states (members, *state).
    args : array
        Gradients with respect to the numbers of `args` (members, numbers); NaN where they are not known.
    rung, reason : str
        How they were computed: in SIMD "lanes", or "one by one" for the given reason.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.gradient_ensemble(problem, "rk4", lambda y: y[0], y0=[[1.0], [2.0]], steps=10).y0.shape
    (2, 1)
    """

    value: np.ndarray
    y0: np.ndarray
    args: np.ndarray
    rung: str
    reason: str = ""

    __repr__ = show_fields

    def sum(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Value and gradients of the sum of the losses, for parameters that all members share."""
        return float(self.value.sum()), self.y0.sum(axis=0), self.args.sum(axis=0)

    def mean(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Value and gradients of the mean of the losses: over paths of an `SDE` estimates of those of expectations."""
        return float(self.value.mean()), self.y0.mean(axis=0), self.args.mean(axis=0)

    def standard_errors(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Standard errors of `mean`."""
        root = np.sqrt(len(self.value))
        value, y0, args = (each.std(axis=0, ddof=1) / root for each in (self.value, self.y0, self.args))
        return float(value), y0, args


@explain_arguments()
def gradient_ensemble(
    problem: Problem,
    scheme: Any = None,
    loss: Callable[..., Any] | None = None,
    *,
    end_gradient: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    args: Any = None,
    paths: ArrayLike | None = None,
    t_span: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    workers: int | None = None,
) -> EnsembleGradient:
    """Compute the gradient of a loss of the end state for each member of an ensemble, exact to rounding.

    Equal steps of a traced problem run in SIMD lanes, forward and in reverse; otherwise members run one by one as in
    `gradient`.  The noise of an `SDE` or `Langevin` is drawn again in the reverse sweep.

    Parameters
    ----------
    problem, scheme, y0, args, paths, t_span, steps, rtol, atol, workers
        As in `solve_ensemble`.
    loss : callable, optional
        `loss(y_end)` of one member's end state, as in `gradient`.
    end_gradient : array_like, optional
        The gradients with respect to the end states (members, *state), instead of `loss`.

    Returns
    -------
    EnsembleGradient

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.gradient_ensemble(problem, "rk4", lambda y: y[0] ** 2, y0=[[1.0], [2.0]], steps=10).value.round(4)
    array([0.1353, 0.5413])

    The derivative of E y(1)^2 with respect to y0 and to the two arguments, from 1000 paths:

    >>> gbm = sn.SDE(lambda t, y, a, s: a * y, lambda t, y, a, s: s * y, [1.0], (0.0, 1.0), (0.05, 0.2))
    >>> found = sn.gradient_ensemble(gbm, "milstein", lambda y: y[0] ** 2, paths=1000, steps=64)
    >>> value, y0, args = found.mean()
    >>> y0.shape, args.shape
    ((1,), (2,))
    """
    scheme, problem = find_scheme(problem, scheme, steps), import_engine().convert_to_floats(problem)
    require_differentiable_steps(scheme)
    choices = AdaptiveOptions(rtol=rtol, atol=atol)
    spec = build_ensemble_spec(problem, scheme, y0, args, t_span, steps, choices, None, paths)
    count, shape = spec.members.number, state_shape(spec.problem)
    if (loss is None) == (end_gradient is None):
        raise TypeError(f"give either `loss` or `end_gradient`, found {'neither' if loss is None else 'both'}")
    bars = None
    if end_gradient is not None:
        bars = np.array(end_gradient, float)
        if bars.shape != (count, *shape) or not np.isfinite(bars).all():
            raise ValueError(f"`end_gradient` must be finite and of shape {(count, *shape)}, found {bars.shape}")
    workers = choose_workers(workers, count)
    if isinstance(spec.stepping, AdaptiveSteps):
        return _differentiate_one_by_one(
            spec, loss, bars, workers, "adaptive steps are chosen and held fixed member by member"
        )
    if spec.problem.form.is_stochastic:
        return _differentiate_paths(spec, loss, bars, workers)
    found = _solve_ends(spec, workers)
    if found.rung != "lanes":
        return _differentiate_one_by_one(spec, loss, bars, workers, found.reason)
    ends = found.y.reshape(count, *shape)
    values, bars = _evaluate_losses(loss, bars, ends)
    back = import_engine().pull_back_members(*spec, bars.reshape(count, spec.problem.initial.size), workers)
    return EnsembleGradient(values, back.y0.reshape(ends.shape), back.p, "lanes")


def _differentiate_paths(spec: EnsembleSpec, loss: Any, bars: Any, workers: int) -> EnsembleGradient:
    """Losses and gradients of paths: in one sweep if the loss is traced, else after a first run to the ends."""
    engine, members, shape = import_engine(), spec.members, state_shape(spec.problem)
    scalar = values = None
    if loss is not None:
        one = members._replace(
            number=1, y0=members.y0[:1], args=members.args[:1], paths=np.array([members.row("paths", 0)])
        )
        scalar = engine.trace_loss_at(loss, shape, lambda: _solve_ends(spec._replace(members=one), 1).y.reshape(shape))
    if scalar is None or not scalar.is_compiled:
        ends = _solve_ends(spec, workers).y.reshape(members.number, *shape)
        values, bars = _evaluate_losses(loss, bars, ends)
        scalar, bars = None, bars.reshape(members.number, -1)
    try:
        back = engine.differentiate_paths(*spec, scalar, bars, workers)
    except engine.NoLanes as why:
        given = None if loss is not None else bars.reshape(members.number, *shape)
        return _differentiate_one_by_one(spec, loss, given, workers, str(why))
    values = back.value if values is None else values
    if not (np.isfinite(values).all() and np.isfinite(back.y0).all()):
        _solve_ends(spec, workers)  # reports paths without an end
        bad = np.flatnonzero(~(np.isfinite(values) & np.isfinite(back.y0).all(axis=1)))[0]
        raise ValueError(f"`loss` and its gradient must be finite, found {values[bad]} for member {bad}")
    return EnsembleGradient(values, back.y0.reshape(members.number, *shape), back.p, "lanes")


def _solve_ends(spec: EnsembleSpec, workers: int) -> Any:
    """The end states; an error if a member does not reach the end."""
    problem, scheme, stepping, members = spec
    found = import_engine().run_ensemble(
        problem, scheme, Plan(stepping, Saving(None, 0)), members, workers, lambda n: None
    )
    if found.is_interrupted:
        raise KeyboardInterrupt
    bad = [i for i, status in enumerate(found.status) if status is not Status.COMPLETED]
    if bad:
        raise ValueError(
            f"{len(bad)} of {members.number} members have no end to differentiate, the first of them {bad[0]}: "
            f"{found.status[bad[0]].value} at t = {found.t_end[bad[0]]:.6g}; leave them out"
        )
    return found


def _evaluate_losses(loss: Any, bars: Any, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values, and gradients with respect to the end states."""
    if loss is None:
        return np.sum(bars * ends, axis=tuple(range(1, ends.ndim))), bars
    if not len(ends):
        return np.zeros(0), np.zeros_like(ends)
    scalar = import_engine().trace_loss(loss, ends[0])
    values, gradients = zip(*map(scalar.value_and_gradient, ends), strict=True)
    return np.array(values), np.array(gradients)


def _differentiate_one_by_one(spec: EnsembleSpec, loss: Any, bars: Any, workers: int, reason: str) -> EnsembleGradient:
    problem, scheme, stepping, members = spec

    def of_member(i: int) -> Any:
        how: dict[str, Any] = {"rtol": members.row("rtol", i), "atol": members.row("atol", i)}
        if isinstance(stepping, FixedSteps):
            how = {"steps": stepping.n_steps if stepping.grid is None else stepping.grid}
        own = import_engine().member_problem(problem, members, i)
        if own.form.is_stochastic:
            own = replace(own, path=int(members.row("paths", i)))
        found = gradient(own, scheme, loss, end_gradient=None if bars is None else bars[i], **how)
        return found.value, found.y0, import_engine().flat_gradients(found.args, own.args)

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(of_member, range(members.number)))
    values, y0, args = zip(*found, strict=True) if found else ((), (), ())
    by_state = np.array(y0, float).reshape(len(found), *state_shape(problem))
    by_args = np.array(args, float).reshape(len(found), members.args.shape[1])
    return EnsembleGradient(np.array(values), by_state, by_args, "one by one", reason)
