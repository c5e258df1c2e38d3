"""Equilibria of a problem by Newton's method, and their type from the eigenvalues of the Jacobian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.problem import Problem
from stepnet.records import show_fields
from stepnet.stability.first_order import DETERMINISTIC, FirstOrderField, choose_state
from stepnet.validation import check, optional, real, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

ON_AXIS = 1e-8  # real parts below this fraction of the largest eigenvalue count as zero
CONVERGED = 1e-10  # step of Newton's method relative to the state, after which one more step is exact to rounding
SHORTEST = 1e-3  # fraction of a Newton step
SMALL = 1e-8  # residual of a zero relative to |J| (1 + |y|); minima of |f| have larger ones


@dataclass(frozen=True, repr=False, eq=False)
class Equilibrium:
    """A state y with f(t, y) = 0.

    Parameters
    ----------
    y : array
        The flat state.
    eigenvalues : array
        Those of df/dy, by decreasing real part.
    kind : str
        "stable node", "stable focus", "saddle", "saddle focus", "unstable node", "unstable focus", "centre" or
        "degenerate" (an eigenvalue is zero).

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: [y[1], -y[0] - 0.1 * y[1]], [1.0, 0.0], (0.0, 1.0))
    >>> sn.stability.equilibrium(problem).kind
    'stable focus'
    """

    y: np.ndarray
    eigenvalues: np.ndarray
    kind: str

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def is_stable(self) -> bool:
        """Whether all eigenvalues have negative real parts: nearby solutions are attracted."""
        return self.kind in ("stable node", "stable focus")


@check(problem=DETERMINISTIC, t=optional(real()), iterations=whole(1, 10_000))
def equilibrium(
    problem: Problem, y: ArrayLike | None = None, *, t: float | None = None, iterations: int = 100
) -> Equilibrium:
    """Find an equilibrium, f(t, y) = 0, by a damped Newton method.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    y : array_like, optional
        The initial guess, by default the initial state of the problem.
    t : float, optional
        The time at which f is evaluated, by default the initial one.
    iterations : int, optional
        Maximum number of iterations.

    Returns
    -------
    Equilibrium

    Raises
    ------
    ValueError
        If the iteration does not converge.

    Examples
    --------
    >>> import stepnet as sn
    >>> def lorenz(t, y):
    ...     return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]
    >>> found = sn.stability.equilibrium(sn.ODE(lorenz, [8.0, 8.0, 27.0], (0.0, 1.0)))
    >>> found.kind, found.y.round(4).tolist()
    ('saddle focus', [8.4853, 8.4853, 27.0])
    """
    field = FirstOrderField(problem)
    field.require_slopes()
    time = problem.t_span[0] if t is None else t
    start = choose_state("y", y, problem.initial)
    found = solve_equations(
        lambda state: field.slope(time, state), lambda state: field.jacobian(time, state), start, iterations
    )
    if found is None:
        raise ValueError(f"`y` must be near an equilibrium; {iterations} iterations of Newton's method found none")
    eigenvalues = sort_eigenvalues(field.jacobian(time, found))
    return Equilibrium(found, eigenvalues, classify(eigenvalues))


def solve_equations(
    function: Callable[[np.ndarray], np.ndarray], derivative: Callable[[np.ndarray], np.ndarray], y: np.ndarray,
    iterations: int,
) -> np.ndarray | None:  # fmt: skip
    """A zero by Newton's method; steps are halved until the residual decreases.  None if it does not converge."""
    residual, is_last = function(y), False
    for _ in range(iterations):
        J = derivative(y)
        if is_last:
            is_zero = np.linalg.norm(residual) <= SMALL * np.linalg.norm(J) * (1 + np.linalg.norm(y))
            return y if is_zero else None
        step = np.linalg.lstsq(J, -residual, rcond=None)[0]
        share, size = 1.0, np.linalg.norm(residual)
        trial, after = y + step, function(y + step)
        while not np.linalg.norm(after) < size and share > SHORTEST:
            share *= 0.5
            trial, after = y + share * step, function(y + share * step)
        if not np.isfinite(after).all():
            return None
        if not size:
            return y
        y, residual = trial, after
        is_last = bool(np.linalg.norm(step) <= CONVERGED * (1 + np.linalg.norm(y)))
    return None


def sort_eigenvalues(matrix: Any) -> np.ndarray:
    """Eigenvalues by decreasing real part, of a pair that with the positive imaginary part first."""
    found = np.linalg.eigvals(matrix)
    return found[np.lexsort((-found.imag, -found.real.round(12)))]


def classify(eigenvalues: np.ndarray) -> str:
    """The type of an equilibrium."""
    size = np.abs(eigenvalues).max(initial=0.0)
    if size == 0 or (np.abs(eigenvalues) <= ON_AXIS * size).any():
        return "degenerate"
    grow, decay = eigenvalues.real > ON_AXIS * size, eigenvalues.real < -ON_AXIS * size
    shape = "focus" if (np.abs(eigenvalues.imag) > ON_AXIS * size).any() else "node"
    if grow.any() and decay.any():
        return "saddle focus" if shape == "focus" else "saddle"
    if not (grow | decay).all():
        return "centre" if not grow.any() and not decay.any() else "degenerate"
    return f"{'unstable' if grow.any() else 'stable'} {shape}"
