"""Measurement of the reliability of the continuous adjoint for a problem."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.errors import AdjointWarning, SolveFailed
from stepnet.gradients.adjoint import gradient
from stepnet.gradients.adjoint_equation import UNSAFE
from stepnet.gradients.derivatives import jacobian
from stepnet.problem import ODE, Problem
from stepnet.solving.integrate import solve

WRONG = 0.01  # relative error from which a gradient counts as unsafe
N_SAMPLES = 200  # of the Jacobian along the solution


@dataclass(frozen=True)
class AdjointSafety:
    """Whether the continuous adjoint is reliable for a problem.

    Parameters
    ----------
    return_error : float
        Relative distance of the initial state from the one obtained by solving backward.
    growth : float
        Upper bound of the factor by which errors grow backward in time, exp of the integral of the logarithmic norm
        of -df/dy along the solution.
    relative_error, angle : float
        Relative distance and angle in degrees between the continuous and the exact gradient.
    is_safe : bool
    verdict : str
        A summary in one sentence.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.stability.adjoint_safety(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=50).is_safe
    True
    """

    return_error: float
    growth: float
    relative_error: float
    angle: float
    is_safe: bool
    verdict: str


def adjoint_safety(
    problem: ODE, scheme: Any = None, loss: Any = None, *, end_gradient: Any = None, steps: Any = None, **choices: Any
) -> AdjointSafety:
    """Solve a problem forward and backward, and compare the gradient of the adjoint equation with the exact one.

    The default loss is half the squared end state.

    Parameters
    ----------
    problem, scheme, loss, end_gradient, steps
        As in `gradient`.
    **choices
        Further options of `gradient`.

    Returns
    -------
    AdjointSafety

    Examples
    --------
    >>> import stepnet as sn
    >>> stiff = sn.ODE(lambda t, y: -100.0 * y, [1.0], (0.0, 1.0))
    >>> sn.stability.adjoint_safety(stiff, "dopri5").is_safe
    False
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {type(problem).__name__}")
    if problem.form.is_stochastic:
        kind = type(problem).__name__
        raise TypeError(f"`adjoint_safety` is for an `ODE`, found {kind}; gradients of stochastic equations are exact")
    if loss is None and end_gradient is None:

        def loss(y: np.ndarray) -> Any:
            return 0.5 * np.sum(y * y)

    how = {"end_gradient": end_gradient, "steps": steps, **choices}
    exact = gradient(problem, scheme, loss, **how)
    growth = _measure_growth(problem, scheme, steps, choices)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AdjointWarning)
            other = gradient(problem, scheme, loss, memory="continuous", **how)
    except SolveFailed as failure:
        verdict = f"the continuous adjoint is unsafe here: it could not be solved back ({failure.solution.message})"
        return AdjointSafety(float("inf"), growth, float("inf"), 180.0, False, verdict)
    a, b = exact.flat, other.flat
    size, other_size = np.linalg.norm(a), np.linalg.norm(b)
    error = float(np.linalg.norm(a - b) / size) if size > 0 else float(other_size > 0)
    cosine = float(a @ b / (size * other_size)) if size > 0 and other_size > 0 else 1.0
    angle = float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))) if np.isfinite(cosine) else 180.0
    returned = other.cost.drift
    is_safe = bool(returned < UNSAFE and error < WRONG)
    verdict = (
        f"the continuous adjoint is {'safe' if is_safe else 'unsafe'} here: solving back misses the initial state by "
        f"{returned:.1e}, errors may grow by {growth:.1e} on the way, and its gradient is off by {error:.1e} "
        f"({angle:.2g} degrees)"
    )
    return AdjointSafety(returned, growth, error, angle, is_safe, verdict)


def _measure_growth(problem: ODE, scheme: Any, steps: Any, choices: dict[str, Any]) -> float:
    """exp of the integral of the largest eigenvalue of -(J + J')/2 along the solution, J that of its direction."""
    solution, J = solve(problem, scheme, steps=steps, **choices), jacobian(problem)
    some = np.linspace(0, len(solution.t) - 1, min(len(solution.t), N_SAMPLES)).astype(int)
    sign, norms = -1.0 if problem.t_span[1] >= problem.t_span[0] else 1.0, []
    for t, y in zip(solution.t[some], solution.y[some], strict=True):
        matrix = np.asarray(J.dense(float(t), y.ravel()))
        norms.append(np.linalg.eigvalsh(sign * (matrix + matrix.T) / 2)[-1])
    with np.errstate(over="ignore"):
        return float(np.exp(np.trapezoid(norms, np.abs(solution.t[some] - solution.t[0]))))
