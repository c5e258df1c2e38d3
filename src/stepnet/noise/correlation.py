"""Equations whose components of the Brownian motion are correlated: L dW in place of dW, with L L' = R."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.problem import SDE
from stepnet.validation import array, check, instance

ROUNDING = 1e-12
"""Of the entries and eigenvalues of a correlation matrix that was computed in float64 from data of order one."""
CORRELATED = {"diagonal": "commutative"}
"""Types of noise that correlation changes: the columns g_i(y_i) L_ij e_i of different j commute."""


@check(sde=instance(SDE), correlation=array(None, None, dtype=np.float64))
def correlate(sde: SDE, correlation: Any) -> SDE:
    """The equation with increments dW of the correlation matrix R: E dW_i dW_j = R_ij dt.

    dW becomes L dW with the lower triangular factor L of R = L L', so that the first component stays what it was.
    Diagonal noise becomes commutative noise, with a matrix; correlate before or after `convert`, the process is the
    same.

    Parameters
    ----------
    sde : SDE
        The equation, with m components of noise.
    correlation : array_like
        R (m, m), symmetric and positive semidefinite, with ones on the diagonal.

    Returns
    -------
    SDE
        The same drift, and the diffusion g L.

    Raises
    ------
    ValueError
        For a matrix that is not a correlation matrix of m components.

    Examples
    --------
    >>> import stepnet as sn
    >>> assets = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0, 1.0], (0.0, 1.0))
    >>> both = sn.noise.correlate(assets, [[1.0, 0.7], [0.7, 1.0]])
    >>> both.noise, both.diffusion_shape
    ('commutative', (2, 2))
    """
    factor = factor_correlation(correlation, sde.n_components)
    if sde.noise == "scalar":
        return sde
    is_vector = sde.diffusion_shape == sde.y0.shape
    diffusion = multiply_rows(sde.diffusion, factor) if is_vector else multiply(sde.diffusion, factor)
    return replace(sde, diffusion=diffusion, noise=CORRELATED.get(sde.noise, sde.noise))


def multiply_rows(diffusion: Callable[..., Any], factor: np.ndarray) -> Callable[..., Any]:
    """diag(g) L as a function, for a diffusion with one number for each entry of the state."""

    def correlated(t: float, y: np.ndarray, *args: Any) -> Any:
        g = np.asarray(diffusion(t, y, *args))
        return g.reshape((*g.shape, 1)) * factor.reshape((*g.shape, factor.shape[1]))

    return correlated


def multiply(diffusion: Callable[..., Any], factor: np.ndarray) -> Callable[..., Any]:
    """g L as a function."""

    def correlated(t: float, y: np.ndarray, *args: Any) -> Any:
        return np.asarray(diffusion(t, y, *args)) @ factor

    return correlated


def factor_correlation(correlation: np.ndarray, m: int) -> np.ndarray:
    """The lower triangular L with L L' = R; columns of zeros where R is singular."""
    if correlation.shape != (m, m):
        raise ValueError(
            f"`correlation` must have the shape ({m}, {m}), one row for each component of the noise, "
            f"found {correlation.shape}"
        )
    if not np.isfinite(correlation).all():
        raise ValueError(f"`correlation` must be finite, found {correlation!r:.80}")
    if np.abs(correlation - correlation.T).max() > ROUNDING or np.abs(np.diag(correlation) - 1.0).max() > ROUNDING:
        raise ValueError("`correlation` must be symmetric with ones on the diagonal; scale `diffusion` for variances")
    least = np.linalg.eigvalsh(correlation)[0]
    if least < -m * ROUNDING:
        raise ValueError(
            f"`correlation` must be positive semidefinite, found the eigenvalue {least:.3g}: "
            "no random variables have these correlations"
        )
    return _factor(correlation)


def _factor(matrix: np.ndarray) -> np.ndarray:
    """Cholesky's factor, with a column of zeros for each pivot that vanishes to rounding."""
    rest, factor = matrix.copy(), np.zeros_like(matrix)
    for j in range(len(matrix)):
        if rest[j, j] > len(matrix) * ROUNDING:
            factor[j:, j] = rest[j:, j] / np.sqrt(rest[j, j])
            rest -= np.outer(factor[:, j], factor[:, j])
    return factor
