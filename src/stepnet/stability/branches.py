"""Branches of equilibria over an argument, by pseudo-arclength continuation, with folds and Hopf points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from stepnet.problem import ODE, Problem
from stepnet.records import show_fields
from stepnet.stability.equilibria import CONVERGED, classify, solve_equations, sort_eigenvalues
from stepnet.stability.first_order import DETERMINISTIC, FirstOrderField, as_first_order, choose_state
from stepnet.validation import check, optional, real, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CORRECTIONS = 8  # iterations of the corrector; more mean that the step is too long
LONGER, SHORTER = 1.3, 0.5  # factors of the step
LEAST_STEP = 1e-8  # relative to the longest one
SHARP = 1e-13  # relative, of the arc length at which a special point is located


@dataclass(frozen=True, repr=False, eq=False)
class SpecialPoint:
    """A fold or a Hopf point of a branch.

    Parameters
    ----------
    kind : str
        "fold", where the branch turns back, or "hopf", where a pair of eigenvalues crosses the imaginary axis.
    parameter : float
    y : array
        The equilibrium.
    frequency : float
        The imaginary part of the pair at a Hopf point; 0 at a fold.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> sn.stability.SpecialPoint("fold", 1.0, np.zeros(1), 0.0).kind
    'fold'
    """

    kind: str
    parameter: float
    y: np.ndarray
    frequency: float

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True, repr=False, eq=False)
class Branch:
    """Equilibria along a curve.

    Parameters
    ----------
    argument : str
        The name of the argument that varies.
    parameters : array (points,)
    states : array (points, n)
    eigenvalues : array (points, n)
        By decreasing real part.
    special : tuple of SpecialPoint
        Folds and Hopf points in the order in which they were passed.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, a: a - y * y, [1.0], (0.0, 1.0), (1.0,))
    >>> fold = sn.stability.continuation(problem, "a", -1.0).special[0]
    >>> fold.kind, abs(round(fold.parameter, 6))
    ('fold', 0.0)
    """

    argument: str
    parameters: np.ndarray
    states: np.ndarray
    eigenvalues: np.ndarray
    special: tuple[SpecialPoint, ...]

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def is_stable(self) -> np.ndarray:
        """Whether each equilibrium attracts."""
        return self.eigenvalues.real.max(axis=1) < 0

    @property
    def kinds(self) -> list[str]:
        """The type of each equilibrium."""
        return [classify(each) for each in self.eigenvalues]


@check(problem=DETERMINISTIC, end=real(), step=optional(real("(0, inf)")), points=whole(2, 10**6))
def continuation(
    problem: Problem, argument: str, end: float, *, y: ArrayLike | None = None, step: float | None = None,
    points: int = 500,
) -> Branch:  # fmt: skip
    """Follow an equilibrium while an argument changes, around folds, and locate folds and Hopf points.

    Pseudo-arclength continuation: tangent predictor, Newton's method orthogonal to it; the derivative with respect to
    the argument is exact.  Keller (1977), in Applications of Bifurcation Theory, 359.  At a fold the tangent has no
    component of the argument; at a Hopf point the real part of a complex pair is zero.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        The value of its argument is that at which the branch begins.
    argument : str
        The name of an argument of the right-hand side that is a number.
    end : float
        The branch ends when the argument reaches this value, or returns to its first value after a fold.
    y : array_like, optional
        A state near the first equilibrium, by default the initial state.
    step : float, optional
        The longest step along the curve in the space of state and argument; by default 1/50 of the range of the
        argument.
    points : int, optional
        Maximum number of points.

    Returns
    -------
    Branch

    Raises
    ------
    ValueError
        If there is no equilibrium to begin with, or no such argument.

    Examples
    --------
    >>> import stepnet as sn
    >>> def brusselator(t, y, A, B):
    ...     return [A + y[0] ** 2 * y[1] - (B + 1) * y[0], B * y[0] - y[0] ** 2 * y[1]]
    >>> problem = sn.ODE(brusselator, [1.0, 1.0], (0.0, 1.0), (1.0, 1.0))
    >>> hopf = sn.stability.continuation(problem, "B", 3.0).special[0]
    >>> hopf.kind, round(hopf.parameter, 6), round(hopf.frequency, 6)
    ('hopf', 2.0, 1.0)
    """
    curve, first = _build_curve(problem, argument)
    if end == first:
        raise ValueError(f"`end` must differ from the value {first:g} of the argument {argument!r}")
    z = np.append(choose_state("y", y, problem.initial), first)
    start = solve_equations(lambda u: curve.residual(np.append(u, first)),
                            lambda u: curve.derivative(np.append(u, first))[:, :-1], z[:-1], 100)  # fmt: skip
    if start is None:
        raise ValueError("`y` must be near an equilibrium to begin with; Newton's method found none")
    longest = abs(end - first) / 50 if step is None else step
    z, direction = np.append(start, first), np.append(np.zeros(len(start)), np.sign(end - first))
    tangent, found, special, ds = curve.tangent(z, direction), [z], [], longest
    low, high = sorted((first, end))
    while len(found) < points and low - SHARP * longest <= z[-1] <= high + SHARP * longest:
        after = curve.correct(z, tangent, ds)
        if after is None:
            ds *= SHORTER
            if ds < LEAST_STEP * longest:
                break
            continue
        special += curve.find_special_points(z, tangent, ds, after)
        new = curve.tangent(after, tangent)
        z, tangent, ds = after, new, min(LONGER * ds, longest)
        found.append(z)
    if not low <= z[-1] <= high:
        found[-1] = curve.stop_at(found[-2], z, end if abs(z[-1] - end) < abs(z[-1] - first) else first)
    all_points = np.array(found)
    eigenvalues = np.array([sort_eigenvalues(curve.derivative(each)[:, :-1]) for each in found])
    low_ends = [each for each in special if low <= each.parameter <= high]
    return Branch(argument, all_points[:, -1], all_points[:, :-1], eigenvalues, tuple(low_ends))


class _Curve:
    """The zeros of F(z), z = (y, argument)."""

    def __init__(self, field: FirstOrderField, t: float):
        self.residual: Callable[[np.ndarray], np.ndarray] = lambda z: field.slope(t, z)[:-1]
        self.derivative: Callable[[np.ndarray], np.ndarray] = lambda z: field.jacobian(t, z)[:-1]

    def tangent(self, z: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The unit vector in the kernel of dF/dz that points along `direction`."""
        kernel = np.linalg.svd(self.derivative(z))[2][-1]
        return kernel if kernel @ direction >= 0 else -kernel

    def correct(self, z: np.ndarray, tangent: np.ndarray, ds: float) -> np.ndarray | None:
        """The point of the curve whose distance from z along the tangent is ds."""
        at = z + ds * tangent
        for _ in range(CORRECTIONS):
            F = np.append(self.residual(at), tangent @ (at - z) - ds)
            try:
                step = np.linalg.solve(np.vstack((self.derivative(at), tangent)), -F)
            except np.linalg.LinAlgError:
                return None
            at = at + step
            if np.linalg.norm(step) <= CONVERGED * (1 + np.linalg.norm(at)):
                return at
        return None

    def find_special_points(
        self, z: np.ndarray, tangent: np.ndarray, ds: float, after: np.ndarray
    ) -> list[SpecialPoint]:
        """Folds and Hopf points between z and the next point."""

        def turn(at: np.ndarray) -> float:
            return float(self.tangent(at, tangent)[-1])

        def crossing(at: np.ndarray) -> float:
            pair = self._nearest_pair(at)
            return np.inf if pair is None else pair.real

        found = []
        if tangent[-1] * turn(after) < 0:
            at = self._locate(turn, z, tangent, ds)
            found.append(SpecialPoint("fold", float(at[-1]), at[:-1], 0.0))
        ends = crossing(z), crossing(after)
        if np.isfinite(ends).all() and ends[0] * ends[1] < 0:
            at = self._locate(crossing, z, tangent, ds)
            pair = self._nearest_pair(at)
            if pair is not None and abs(pair.real) < 1e-6 * abs(pair):
                found.append(SpecialPoint("hopf", float(at[-1]), at[:-1], float(abs(pair.imag))))
        return found

    def _nearest_pair(self, z: np.ndarray) -> Any:
        """The complex eigenvalue closest to the imaginary axis."""
        found = np.linalg.eigvals(self.derivative(z)[:, :-1])
        pairs = found[found.imag > 1e-9 * np.abs(found).max(initial=0.0)]
        return pairs[np.argmin(np.abs(pairs.real))] if len(pairs) else None

    def _locate(self, test: Any, z: np.ndarray, tangent: np.ndarray, ds: float) -> np.ndarray:
        """The point of the curve where a test function changes its sign."""

        def at(s: float) -> np.ndarray:
            found = self.correct(z, tangent, s)
            return z if found is None else found

        s = brentq(lambda s: test(at(s)), 0.0, ds, xtol=SHARP * ds, rtol=1e-14)
        return at(float(s))

    def stop_at(self, before: np.ndarray, beyond: np.ndarray, end: float) -> np.ndarray:
        """The point of the curve at the end of the range, from those on both sides."""
        share = (end - before[-1]) / (beyond[-1] - before[-1])
        guess = before + share * (beyond - before)
        y = solve_equations(lambda u: self.residual(np.append(u, end)),
                            lambda u: self.derivative(np.append(u, end))[:, :-1], guess[:-1], 30)  # fmt: skip
        return beyond if y is None else np.append(y, end)


def _build_curve(problem: Problem, argument: Any) -> tuple[_Curve, float]:
    """The curve of equilibria, and the initial value of the argument."""
    from stepnet.engines.numba_engine import list_argument_names

    names = [str(name) for name in list_argument_names(problem)][: len(problem.args)]
    if not isinstance(argument, str) or argument not in names:
        raise ValueError(f"`argument` must be one of {', '.join(names) or 'the arguments (there are none)'}, "
                         f"found {argument!r:.60}")  # fmt: skip
    place, plain = names.index(argument), as_first_order(problem)
    value = problem.args[place]
    if np.ndim(value):
        raise ValueError(f"`argument` must be a number, found {argument!r} of the shape {np.shape(value)}")
    field = FirstOrderField(problem)
    field.require_slopes()
    n, shape = plain.initial.size, plain.y0.shape

    def extended(t: float, z: Any) -> Any:
        args = (*plain.args[:place], z[n], *plain.args[place + 1 :])
        return np.concatenate([np.asarray(plain.fun(t, z[:n].reshape(shape), *args)).reshape(n), np.zeros(1)])

    both = ODE(extended, np.append(plain.initial, float(value)), plain.t_span, trace=plain.trace)
    return _Curve(FirstOrderField(both), problem.t_span[0]), float(value)
