"""Errors of phase and amplitude on an oscillator, as the first terms of power series in h omega."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.conditions import stability_function
from stepnet.schemes.conditions.families import check_scheme, linear_tableau
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.splitting import Splitting

N_TERMS = 24  # of the power series; explicit schemes up to order 9 have their first errors far below
NEGLIGIBLE = 1e-13  # rounding left where terms of the series of exp cancel


class PhaseErrors(NamedTuple):
    """nu - arg xi = dispersion nu^(q + 1) + ..., 1 - |xi| = dissipation nu^(r + 1) + ..., with nu = h omega.

    xi(i nu) is the factor of a step on y' = i omega y, or on q'' = -omega^2 q for schemes of second-order problems; q
    and r are `dispersion_order` and `dissipation_order`.  A scheme without dissipation has the order infinity and the
    coefficient 0.
    """

    dispersion_order: float
    dispersion: float
    dissipation_order: float
    dissipation: float


@check_scheme
def find_phase_errors(scheme: Any) -> PhaseErrors:
    """The orders and coefficients of dispersion and dissipation; van der Houwen & Sommeijer (1987), SIAM J. Numer.

    Anal. 24:595.  They follow from log xi(z) = z + sum_k c_k z^k at z = i nu, whose odd terms are the phase.
    """
    c = _log_factor(scheme)
    c[1] -= 1
    powers = np.arange(len(c))
    signs = np.where(powers % 4 < 2, -1.0, 1.0)  # of i^k in nu - arg xi (k odd) and -log |xi| (k even)
    found = np.where(np.abs(c) > NEGLIGIBLE, signs * c, 0.0)
    return PhaseErrors(*_find_leading(found, 1), *_find_leading(found, 2))


def _find_leading(terms: np.ndarray, first: int) -> tuple[float, float]:
    """The order and the first coefficient that is not zero among every other term."""
    powers = [k for k in range(first, len(terms), 2) if terms[k] != 0]
    return (powers[0] - 1, float(terms[powers[0]])) if powers else (float("inf"), 0.0)


def _log_factor(scheme: Any) -> np.ndarray:
    """The power series of log xi(z)."""
    if linear_tableau(scheme) is not None:
        P, Q = stability_function(scheme)
        return _log(P.coef) - _log(Q.coef)
    if isinstance(scheme, PartitionedRK):
        return _log_of_trace(_expand_half_trace(scheme))
    return _log_of_flows(scheme) if isinstance(scheme, Splitting) else _log_of_root(scheme)


def _log(series: Any) -> np.ndarray:
    """log of a series that begins with 1: k l_k = k a_k - sum_{0<j<k} j l_j a_(k-j)."""
    a, found = _pad(series), np.zeros(N_TERMS)
    for k in range(1, N_TERMS):
        j = np.arange(1, k)
        found[k] = a[k] - (j * found[1:k] * a[k - j]).sum() / k
    return found


def _exp(series: np.ndarray) -> np.ndarray:
    """exp of a series that begins with 0: k e_k = sum_j j a_j e_(k-j)."""
    found = np.zeros(N_TERMS)
    found[0] = 1.0
    for k in range(1, N_TERMS):
        j = np.arange(1, k + 1)
        found[k] = (j * series[1 : k + 1] * found[k - j]).sum() / k
    return found


def _pad(series: Any) -> np.ndarray:
    found = np.zeros(N_TERMS)
    found[: min(len(series), N_TERMS)] = series[:N_TERMS]
    return found


def _log_of_flows(scheme: Splitting) -> np.ndarray:
    """From the product of the drifts and kicks on q'' = z^2 q, whose determinant is 1."""
    z, one, zero = Polynomial([0.0, 1.0]), Polynomial([1.0]), Polynomial([0.0])
    rows = [[one, zero], [zero, one]]  # in the variables (q, p / z), where both parts are z times a constant
    for part, fraction in scheme.sequence():
        rows[part] = [a + fraction * z * b for a, b in zip(rows[part], rows[1 - part], strict=True)]
    return _log_of_trace((0.5 * (rows[0][0] + rows[1][1])).coef)


def _expand_half_trace(scheme: PartitionedRK) -> np.ndarray:
    """The power series of trace / 2 on q'' = z^2 q: in (q, p / z) a step is 1 + z b' (1 - z K)^-1 1."""
    b, A, _, A_hat = scheme.tableaux
    s = len(b)
    K = np.block([[np.zeros((s, s)), A_hat], [A, np.zeros((s, s))]])  # stages of p / z, then of q, by their slopes
    starts, ends = np.kron(np.eye(2), np.ones((s, 1))), np.kron(np.eye(2), b)
    found, power = [1.0], starts
    for _ in range(N_TERMS):
        step = ends @ power  # of (q, p / z), from (p / z, q)
        found.append(0.5 * float(step[0, 1] + step[1, 0]))
        power = K @ power
    return np.array(found)


def _log_of_trace(half_trace: np.ndarray) -> np.ndarray:
    """log xi from cosh(log xi) = trace / 2 of a step with determinant 1.

    With u = log xi and C its cosh, sinh u dC/dz is u' (C^2 - 1); so u is the integral of C' / sqrt(C^2 - 1).
    """
    C = Polynomial(np.append(half_trace, [0.0] * 3))
    square = _pad(np.append((C * C - 1).coef, [0.0] * 3)[2:])  # (C^2 - 1) / z^2 = 1 + ...
    slope = _pad(C.deriv().coef[1:])  # C' / z
    derivative = np.convolve(slope, _exp(-0.5 * _log(square)))[:N_TERMS]
    return np.concatenate(([0.0], derivative[:-1] / np.arange(1, N_TERMS)))


def _log_of_root(scheme: Multistep | FixedBDF) -> np.ndarray:
    """The root near 1 of (1 - z gamma) xi^k = sum_j (alpha_j + z^d beta_j) xi^(k-1-j).

    Its logarithm is found one coefficient at a time; gamma is 0 for explicit schemes.
    """
    k, d = scheme.n_steps, scheme.derivative
    alpha = _pad(scheme.alpha)
    beta, gamma = (np.zeros(N_TERMS), scheme.gamma) if isinstance(scheme, FixedBDF) else (_pad(scheme.beta), 0.0)

    def residual(log_root: np.ndarray) -> np.ndarray:
        found = _exp(k * log_root)
        found[1:] -= gamma * found[:-1].copy()
        for j in range(k):
            power = _exp((k - 1 - j) * log_root)
            found -= alpha[j] * power
            found[d:] -= beta[j] * power[:-d]
        return found

    found = np.zeros(N_TERMS)
    found[1] = 1.0
    unit = np.eye(N_TERMS)
    for m in range(2, N_TERMS - 1):  # the coefficient m enters the residual first, and linearly, at m + d - 1
        place = m + d - 1
        defect = residual(found)[place]
        found[m] = -defect / (residual(found + unit[m])[place] - defect)
    return found
