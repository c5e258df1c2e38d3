"""Floquet multipliers of periodic solutions: eigenvalues of the derivative of the map over one period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.gradients.tangents import jacobian
from stepnet.problem import Problem
from stepnet.records import show_fields
from stepnet.solving.integrate import solve
from stepnet.stability.arguments import require_exact_derivative
from stepnet.stability.first_order import DETERMINISTIC, FirstOrderField
from stepnet.validation import check, real

SLACK = 1e-6  # tolerance for multipliers on the unit circle
SAMPLES = 5  # times at which the equation is examined


@dataclass(frozen=True, repr=False, eq=False)
class FloquetMultipliers:
    """How perturbations of a periodic solution grow in one period.

    Parameters
    ----------
    period : float
    monodromy : array (n, n)
        The derivative of the state after a period with respect to the initial state.
    multipliers : array (n,)
        Its eigenvalues, by decreasing modulus.
    return_error : float
        |y(T) - y(0)| relative to the size of the solution.
    has_free_phase : bool
        Whether the equation does not depend on time and the solution moves: then every shift in time is a solution, and
        one multiplier is 1 up to numerical errors.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> found = sn.stability.FloquetMultipliers(2.0, np.eye(1), np.array([np.e]), 0.0)
    >>> found.exponents.real.round(6).tolist()
    [0.5]
    """

    period: float
    monodromy: np.ndarray
    multipliers: np.ndarray
    return_error: float
    has_free_phase: bool = False

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def exponents(self) -> np.ndarray:
        """log(multiplier) / period; the imaginary part is known up to multiples of 2 pi / period."""
        with np.errstate(divide="ignore"):
            return np.log(self.multipliers.astype(complex)) / self.period

    @property
    def is_stable(self) -> bool:
        """Whether no multiplier is outside of the unit circle, up to 1e-6; that of a free phase does not count."""
        counted = self.multipliers
        if self.has_free_phase:
            counted = np.delete(counted, np.argmin(np.abs(counted - 1)))
        return bool((np.abs(counted) <= 1 + SLACK).all())


@check(problem=DETERMINISTIC, tolerance=real("(0, inf)"))
def floquet(
    problem: Problem, scheme: Any = None, *, steps: Any = None, tolerance: float = 1e-3, **options: Any
) -> FloquetMultipliers:
    """Compute the Floquet multipliers of the periodic solution that begins at the initial state.

    The time span is one period.  The monodromy matrix is the exact derivative of the steps.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    scheme, steps
        As in `solve`.
    tolerance : float, optional
        Largest distance between the states after and before the period, relative to the size of the solution.
    **options
        Options of `jacobian` for adaptive steps, such as `rtol` and `atol`.

    Returns
    -------
    FloquetMultipliers

    Raises
    ------
    TypeError
        If the scheme chooses its order, as the derivative of its steps is not known.
    ValueError
        If the time span is not a period of the solution or of the equation.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> mathieu = sn.SecondOrder(lambda t, q: -(1.0 - 0.4 * np.cos(2 * t)) * q, [0.0], [0.0], (0.0, np.pi))
    >>> found = sn.stability.floquet(mathieu, "yoshida4", steps=200)
    >>> found.is_stable, round(float(np.prod(found.multipliers).real), 10)
    (False, 1.0)
    """
    require_exact_derivative(scheme)
    solution = solve(problem, scheme, steps=steps, **options)
    states = np.asarray(solution.y).reshape(len(solution.t), -1)
    size = max(float(np.abs(states).max()), np.finfo(float).tiny)
    missed = float(np.abs(states[-1] - states[0]).max()) / size
    period = problem.t_span[1] - problem.t_span[0]
    if not missed <= tolerance:
        raise ValueError(
            f"`problem` must have a time span of one period, after which the state is back; after {period:g} it is "
            f"off by {missed:.1e} of its size"
        )
    matrices = _sample_jacobians(problem, states[0])
    _require_periodic_equation(problem, matrices, tolerance)
    has_free_phase = bool((matrices == matrices[0]).all() and np.abs(states - states[0]).max() > tolerance * size)
    monodromy = jacobian(problem, scheme, steps=steps, **options).y0
    found = np.linalg.eigvals(monodromy)
    ordered = found[np.argsort(-np.abs(found), kind="stable")]
    return FloquetMultipliers(period, monodromy, ordered, missed, has_free_phase)


def _sample_jacobians(problem: Problem, y: np.ndarray) -> np.ndarray:
    """The Jacobian at one state, for times from the beginning to the end."""
    field = FirstOrderField(problem)
    return np.array([field.jacobian(t, y) for t in np.linspace(*problem.t_span, SAMPLES)])


def _require_periodic_equation(problem: Problem, matrices: np.ndarray, tolerance: float) -> None:
    """The Jacobian must be the same at both ends."""
    off = float(np.abs(matrices[-1] - matrices[0]).max() / max(np.abs(matrices).max(), np.finfo(float).tiny))
    if not off <= tolerance:
        raise ValueError(
            f"`problem` must have a time span of one period of its equation; the Jacobian at {problem.t_span[1]:g} "
            f"differs from that at {problem.t_span[0]:g} by {off:.1e} of its size"
        )
