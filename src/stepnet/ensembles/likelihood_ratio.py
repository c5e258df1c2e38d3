"""`likelihood_ratio_gradient`: derivatives of expectations of payoffs that need not be smooth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepnet.ensembles.ensemble import build_ensemble_spec, choose_workers
from stepnet.problem import SDE, state_shape
from stepnet.records import explain_arguments, show_fields, validate_count
from stepnet.solution import Status
from stepnet.solving.integrate import import_engine
from stepnet.solving.planning import AdaptiveOptions


class LikelihoodRatioGradient(NamedTuple):
    """An expectation, its derivatives with respect to the numbers of `args`, and the standard errors of both.

    Parameters
    ----------
    value : float
        The mean of the payoffs.
    args : array
        The derivatives with respect to the numbers of `args`.
    value_error, args_error : float, array
        Standard errors.
    paths : int
        The number of paths.

    Examples
    --------
    >>> import stepnet as sn
    >>> sde = sn.SDE(lambda t, y, a: a * y, lambda t, y, a: 0.2 * y, [1.0], (0.0, 1.0), (0.05,))
    >>> found = sn.likelihood_ratio_gradient(sde, lambda y: y[0], paths=1000, steps=8)
    >>> found.paths, found.args.shape
    (1000, (1,))
    """

    value: float
    args: np.ndarray
    value_error: float
    args_error: np.ndarray
    paths: int

    def __repr__(self) -> str:
        return show_fields(self)


@explain_arguments()
def likelihood_ratio_gradient(
    problem: SDE, payoff: Callable[..., Any], *, paths: int, steps: int, workers: int | None = None
) -> LikelihoodRatioGradient:
    """Estimate the derivative of E payoff(y_end) with respect to `args` by weights instead of derivatives of `payoff`.

    The weight of a path is the derivative of the logarithm of its density under Euler-Maruyama with equal steps, so
    that `payoff` may be discontinuous.  Payoffs minus the mean of the others are weighted, which is unbiased and has
    less variance. The variance of derivatives with respect to the diffusion grows with the number of steps; where
    `payoff` is smooth, `gradient_ensemble` is more accurate.  (P. Glasserman 2003, Monte Carlo Methods in Financial
    Engineering, 7.3)

    Parameters
    ----------
    problem : SDE
        With Ito calculus and noise "diagonal", or "additive" with one component for each entry; `diffusion` must not
        vanish.
    payoff : callable
        `payoff(y_end)` of the end state of one path, a number.
    paths, steps : int
        The number of paths, from `problem.path` on, and of equal steps.
    workers : int, optional
        Threads, as in `solve_ensemble`.

    Returns
    -------
    LikelihoodRatioGradient

    Raises
    ------
    TypeError, ValueError
        If the noise is not of one of these types, or a path does not reach the end.

    Examples
    --------
    The probability that a geometric Brownian motion ends above 1, and its derivatives:

    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y, a, s: a * y, lambda t, y, a, s: s * y, [1.0], (0.0, 1.0), (0.05, 0.2))
    >>> found = sn.likelihood_ratio_gradient(gbm, lambda y: float(y[0] > 1.0), paths=4096, steps=16)
    >>> found.args.shape
    (2,)
    """
    if not isinstance(problem, SDE):
        raise TypeError(f"`problem` must be an `SDE`, found {type(problem).__name__}")
    if not callable(payoff):
        raise TypeError(f"`payoff` must be a function of the end state, found {type(payoff).__name__}")
    if problem.calculus != "ito" or problem.correction != 0.0:
        raise ValueError("`problem` must be an Ito equation as it was given; write the drift of the Ito form")
    if problem.noise not in ("diagonal", "additive") or problem.diffusion_shape != problem.y0.shape:
        raise ValueError(
            f"`problem` must have one component of noise for each entry of the state, noise='diagonal' or 'additive', "
            f"found {problem.noise!r} with a diffusion of shape {problem.diffusion_shape}"
        )
    steps = validate_count("steps", steps, 1)
    spec = build_ensemble_spec(problem, "euler_maruyama", None, None, None, steps, AdaptiveOptions(), None, paths)
    members = spec.members
    if members.args.shape[1] == 0:
        raise ValueError("`problem` must have numbers in `args` to differentiate with respect to, found none")
    workers = choose_workers(workers, members.number)
    found = import_engine().run_weighted_paths(spec.problem, spec.stepping, members, workers)
    if found.is_interrupted:
        raise KeyboardInterrupt
    bad = [i for i, status in enumerate(found.status) if status is not Status.COMPLETED]
    if bad:
        raise ValueError(f"{len(bad)} of {members.number} paths have no end or no density, the first of them {bad[0]}")
    n = problem.initial.size
    ends = found.y[:, 0, :n].reshape(-1, *state_shape(problem))
    weights = found.y[:, 0, n:].reshape(len(ends), -1, n).sum(axis=2)
    return _average(np.array([float(payoff(y)) for y in ends]), weights)


def _average(values: np.ndarray, weights: np.ndarray) -> LikelihoodRatioGradient:
    """Means and standard errors of values, and of their deviations from the mean of the others times weights."""
    count = len(values)
    others = (values.sum() - values) / max(1, count - 1)
    terms, root = (values - others)[:, None] * weights, np.sqrt(count)
    errors = values.std(ddof=1) / root, terms.std(axis=0, ddof=1) / root
    return LikelihoodRatioGradient(float(values.mean()), terms.mean(axis=0), float(errors[0]), errors[1], count)
