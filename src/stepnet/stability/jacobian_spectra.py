"""Eigenvalues and logarithmic norms of the Jacobian along a solution, and the stability function there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.problem import Problem, ProblemForm
from stepnet.records import show_fields
from stepnet.schemes.capabilities import moves_parts
from stepnet.schemes.conditions import amplification
from stepnet.solving.integrate import solve
from stepnet.stability.arguments import deterministic_scheme
from stepnet.stability.equilibria import sort_eigenvalues
from stepnet.stability.first_order import DETERMINISTIC, FirstOrderField
from stepnet.validation import check, whole

SLACK = 1e-9  # rounding of |R(z)|
NEGLIGIBLE = 1e-10  # real parts below this fraction of the largest eigenvalue are left out of the stiffness ratio


@dataclass(frozen=True, repr=False, eq=False)
class JacobianSpectra:
    """Eigenvalues of df/dy at some times of a solution.

    Parameters
    ----------
    scheme : str
    times, h : array (samples,)
        The times, and the size of the step that begins there.
    eigenvalues : array (samples, n)
        By decreasing real part.
    log_norms : array (samples,)
        The largest eigenvalue of (J + J')/2: no two nearby solutions separate faster.
    amplification : array (samples, n)
        |R(h lambda)|.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: [-y[0], -1000 * y[1]], [1.0, 1.0], (0.0, 1.0))
    >>> found = sn.stability.spectra(problem, "rk4", steps=1000)
    >>> float(found.stiffness_ratios[0]), bool(found.is_stable.all())
    (1000.0, True)
    """

    scheme: str
    times: np.ndarray
    h: np.ndarray
    eigenvalues: np.ndarray
    log_norms: np.ndarray
    amplification: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def z(self) -> np.ndarray:
        """h lambda, the points to be compared with the stability region."""
        return self.h[:, None] * self.eigenvalues

    @property
    def stiffness_ratios(self) -> np.ndarray:
        """The largest |Re lambda| of decaying directions over the smallest, at each time; NaN where none decays."""
        rates = -self.eigenvalues.real
        rates = np.where(rates > NEGLIGIBLE * np.abs(self.eigenvalues).max(axis=1, keepdims=True), rates, np.nan)
        fastest, slowest = np.full(len(rates), np.nan), np.full(len(rates), np.nan)
        some = np.isfinite(rates).any(axis=1)
        fastest[some], slowest[some] = np.nanmax(rates[some], axis=1), np.nanmin(rates[some], axis=1)
        return fastest / slowest

    @property
    def is_stable(self) -> np.ndarray:
        """Whether no decaying or neutral direction grows numerically, |R(h lambda)| <= 1 where Re lambda <= 0."""
        neutral = NEGLIGIBLE * np.abs(self.eigenvalues).max(axis=1, keepdims=True)
        return ((self.amplification <= 1 + SLACK) | (self.eigenvalues.real > neutral)).all(axis=1)


@check(problem=DETERMINISTIC, samples=whole(1, 10**5))
def spectra(
    problem: Problem, scheme: Any = None, *, steps: Any = None, samples: int = 100, **options: Any
) -> JacobianSpectra:
    """Solve a problem and find the eigenvalues of its Jacobian along the solution.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        Partitioned problems have the Jacobian of y = (q, p).
    scheme, steps
        As in `solve`.
    samples : int, optional
        Maximum number of steps that are examined, evenly spread over the solution.
    **options
        Options of `solve`, such as `rtol` and `atol`.

    Returns
    -------
    JacobianSpectra

    Raises
    ------
    TypeError
        If the scheme has no single stability function, or treats the parts of a problem differently.

    Examples
    --------
    >>> import stepnet as sn
    >>> oscillator = sn.SecondOrder(lambda t, q: -9.0 * q, [1.0], [0.0], (0.0, 1.0))
    >>> found = sn.stability.spectra(oscillator, "verlet", steps=10, samples=1)
    >>> found.z.round(3).tolist(), bool(found.is_stable.all())
    ([[0.3j, -0.3j]], True)
    """
    for name in ("save_at", "save_every"):
        if name in options:
            raise TypeError(f"`{name}` would hide the sizes of steps; choose how many are examined by `samples`")
    if scheme is not None:
        chosen = deterministic_scheme("scheme", scheme)
        if problem.form is ProblemForm.SUM and moves_parts(chosen, problem.form):
            raise TypeError(
                f"`scheme` must take the sum of the parts, as eigenvalues are those of the sum, and {chosen.name} "
                "treats them differently; see `stability.region(scheme, stiff=...)` for IMEX and exponential schemes"
            )
    solution, field = solve(problem, scheme, steps=steps, **options), FirstOrderField(problem)
    some = np.unique(np.linspace(0, len(solution.t) - 2, min(len(solution.t) - 1, samples)).astype(int))
    h, states = np.diff(solution.t)[some], _flatten_states(solution)
    matrices = [field.jacobian(solution.t[k], states[k]) for k in some]
    eigenvalues = np.array([sort_eigenvalues(J) for J in matrices])
    log_norms = np.array([np.linalg.eigvalsh((J + J.T) / 2)[-1] for J in matrices])
    grown = amplification(solution.scheme, h[:, None] * eigenvalues)
    return JacobianSpectra(solution.scheme.name, solution.t[some], h, eigenvalues, log_norms, grown)


def _flatten_states(solution: Any) -> np.ndarray:
    """States (times, n), real."""
    return np.asarray(solution.y).reshape(len(solution.t), -1)
