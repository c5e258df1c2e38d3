"""Lyapunov exponents of a problem: the mean growth rates of volumes of tangent vectors along its solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.errors import SolveFailed
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split
from stepnet.records import show_fields
from stepnet.solving.integrate import find_scheme
from stepnet.validation import check, instance, optional, real, whole

Advance = Callable[[np.ndarray, np.ndarray, tuple[float, float]], tuple[np.ndarray, np.ndarray]]
BLOCK = 32  # columns at once in a QR decomposition
BATCHES = 20  # of consecutive pieces, whose means are nearly independent


@check(times=instance(np.ndarray), rates=instance(np.ndarray))
@dataclass(frozen=True, repr=False, eq=False)
class LyapunovSpectrum:
    """Lyapunov exponents in decreasing order of directions, with their statistical errors.

    Parameters
    ----------
    times : array (pieces + 1,)
        The times between which growth was measured.
    rates : array (pieces, exponents)
        The growth rate of every direction in each piece of the time span.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -0.5 * y, [1.0], (0.0, 10.0))
    >>> sn.stability.lyapunov(problem, "rk4", steps=1000).exponents.round(6).tolist()
    [-0.5]
    """

    times: np.ndarray
    rates: np.ndarray

    def __post_init__(self) -> None:
        if self.rates.ndim != 2 or not self.rates.size or self.times.shape != (len(self.rates) + 1,):
            raise ValueError(
                f"`rates` must have the shape (pieces, exponents) for pieces + 1 `times`, found {self.rates.shape} for "
                f"{self.times.shape}"
            )

    @property
    def exponents(self) -> np.ndarray:
        """The means of the rates."""
        return self.rates.mean(axis=0)

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard errors of the exponents, from the means of 20 batches of pieces; NaN for fewer pieces."""
        n = len(self.rates) // BATCHES
        if n == 0:
            return np.full(self.rates.shape[1], np.nan)
        batches = self.rates[len(self.rates) - n * BATCHES :].reshape(BATCHES, n, -1).mean(axis=1)
        return batches.std(axis=0, ddof=1) / np.sqrt(BATCHES)

    @property
    def dimension(self) -> float:
        """The dimension of Kaplan and Yorke: j + (sum of the first j) / |next|, j the last with a sum >= 0.

        It is the number of exponents where all their sums are positive.
        """
        found = np.sort(self.exponents)[::-1]
        sums = np.cumsum(found)
        j = int(np.count_nonzero(np.minimum.accumulate(sums >= 0)))
        if j in (0, len(found)):
            return float(j)
        return j + float(sums[j - 1] / abs(found[j]))

    def __repr__(self) -> str:
        return show_fields(self)


@check(problem=instance(ODE, Partitioned, SecondOrder, Split), every=real("(0, inf)"), transient=real("[0, inf)"),
       exponents=optional(whole(1)), steps=optional(whole(1)))  # fmt: skip
def lyapunov(
    problem: Problem, scheme: Any = None, *, every: float = 1.0, transient: float = 0.0, exponents: int | None = None,
    steps: int | None = None, **options: Any,
) -> LyapunovSpectrum:  # fmt: skip
    """Compute the Lyapunov exponents of a problem along its solution.

    The state and each tangent vector are solved together, v' = (df/dy) v; at intervals `every` the tangents are made
    orthonormal by a QR decomposition, whose diagonal is their growth.  Benettin et al. (1980), Meccanica 15:9.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        Its time span is the time over which rates are averaged.
    scheme : str or scheme, optional
    every : float, optional
        The time between orthonormalisations; tangents must not align in this time.
    transient : float, optional
        Initial part of the time span, whose growth is not counted.
    exponents : int, optional
        Number of exponents, the largest ones; by default all.
    steps : int, optional
        Equal steps in the whole time span, a multiple of the number of its pieces.
    **options
        Options of `solve_ensemble`, such as `rtol` and `atol` of adaptive steps.

    Returns
    -------
    LyapunovSpectrum

    Raises
    ------
    ValueError
        If a number does not fit the time span or the state.
    SolveFailed
        If a run ends early.

    Examples
    --------
    >>> import stepnet as sn
    >>> def saddle(t, y):
    ...     return [0.5 * y[0], -y[1]]
    >>> problem = sn.ODE(saddle, [0.0, 0.0], (0.0, 30.0))
    >>> found = sn.stability.lyapunov(problem, "rk4", transient=10.0, steps=3000)
    >>> found.exponents.round(5).tolist()
    [0.5, -1.0]
    """
    from stepnet.engines.numba_engine import as_block, tangent_problem

    n = problem.initial.size
    k = n if exponents is None else exponents
    if k > n:
        raise ValueError(f"`exponents` must be at most {n}, the size of the state, found {k}")
    times, first = _divide(problem.t_span, every, transient)
    if steps is not None:
        if steps % (len(times) - 1):
            raise ValueError(f"`steps` must be a multiple of the {len(times) - 1} pieces of the span, found {steps}")
        options["steps"] = steps // (len(times) - 1)
    still = as_block([None] * len(problem.args), problem.args)
    both = tangent_problem(problem, np.ones(n), still, may_call=True)
    advance = _build_advance(problem, both, find_scheme(both, scheme, steps), k, options)
    y, V, growth = problem.initial.astype(float), _orthonormal(n, k), np.empty((len(times) - 1, k))
    for i, span in enumerate(pairwise(times)):
        y, V = advance(y, V, span)
        V, growth[i] = _orthonormalise(V)
    with np.errstate(divide="ignore"):
        rates = np.log(np.abs(growth)) / np.diff(times)[:, None]
    return LyapunovSpectrum(times[first:], rates[first:])


def _orthonormalise(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q and the diagonal of R of a QR decomposition; `np.linalg.qr` takes half as long again for small matrices."""
    from scipy.linalg import lapack

    size = BLOCK * V.shape[1]
    reflectors, factors, _, _ = lapack.dgeqrf(V, lwork=size)
    return lapack.dorgqr(reflectors, factors, lwork=size)[0], np.diagonal(reflectors)


def _build_advance(problem: Problem, both: Problem, scheme: Any, k: int, options: dict[str, Any]) -> Advance:
    """A function that solves for a state y (n,) and k tangents V (n, k) over a time span.

    Equal steps compute the state once for all tangents, where they can be written; else every tangent is a member of an
    ensemble, with a state of its own.
    """
    from stepnet.engines.numba_engine import build_tangent_block

    n, n_parts = problem.initial.size, 2 if problem.form.has_halves else 1

    def solve_members(y: np.ndarray, V: np.ndarray, span: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.empty((k, n_parts, 2, n // n_parts))  # of every tangent: its parts, each a state and its tangent
        rows[:, :, 0], rows[:, :, 1] = y.reshape(n_parts, -1), V.T.reshape(k, n_parts, -1)
        members = solve_ensemble(both, scheme, y0=rows.reshape(k, -1), t_span=span, **options)
        if not members.success.all():
            raise SolveFailed(members)
        found = members.y_end.reshape(rows.shape)
        return found[0, :, 0].ravel(), found[:, :, 1].reshape(k, n).T

    block = build_tangent_block(both, scheme, k) if set(options) == {"steps"} else None
    if block is None:
        return solve_members

    def advance(y: np.ndarray, V: np.ndarray, span: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        found = block.advance(y, V, span, options["steps"])
        is_finite = all(np.isfinite(each).all() for each in found)
        return found if is_finite else solve_members(y, V, span)  # which says where it failed

    return advance


def _divide(span: tuple[float, float], every: float, transient: float) -> tuple[np.ndarray, int]:
    """The ends of the pieces of a time span, and the number of the first that counts."""
    length = span[1] - span[0]
    if not 0 < length < np.inf:
        raise ValueError(f"`problem` must have a finite time span that goes forward, found {span}")
    n = max(1, round(length / every))
    if n > MOST_PIECES:
        raise ValueError(f"`every` must divide the time span into {MOST_PIECES} pieces at most, found {n}")
    first = int(np.ceil(transient / length * n - 1e-9)) if transient < length else n
    if first >= n:
        raise ValueError(f"`transient` must leave some of the time span {span}, found {transient:g}")
    return np.linspace(*span, n + 1), first


MOST_PIECES = 10**7


def _orthonormal(n: int, k: int) -> np.ndarray:
    """k generic orthonormal vectors (n, k), always the same."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(n, k)))[0]
