"""The functions phi_k of exponential integrators: phi_0 = exp, phi_{k+1}(z) = (phi_k(z) - 1/k!) / z.

phi_k(0) = 1/k!.  Near zero the recursion loses all digits, so numbers take the Taylor series there; matrices are scaled
to norm 1/2 and their series is doubled (Hochbruck & Ostermann (2010), Acta Numerica 19:209).
"""

from __future__ import annotations

from math import factorial

import numpy as np

SMALL = 1.5  # |z| up to which the series is used; beyond it the recursion loses a digit at most
TERMS = 30  # of the series: 1.5^30 / 30! is below 1e-27
TERMS_OF_MATRICES = 18  # 0.5^18 / 18! is below 1e-21

PhiTerms = tuple[tuple[float, int, float], ...]
"""(w, k, c) for each term of sum w phi_k(c z); k = -1 stands for c z exp(c z)."""


def evaluate_phi(z: np.ndarray, most: int) -> list[np.ndarray]:
    """phi_0 to phi_most of numbers."""
    z = np.asarray(z)
    is_small = np.abs(z) <= SMALL
    near, far = np.where(is_small, z, 0.0), np.where(is_small, 1.0, z)
    found = [np.exp(z)]
    recursive = np.exp(far)
    for k in range(1, most + 1):
        recursive = (recursive - 1.0 / factorial(k - 1)) / far
        series = np.zeros_like(near) + 1.0 / factorial(k + TERMS)
        for m in range(TERMS - 1, -1, -1):
            series = series * near + 1.0 / factorial(k + m)
        found.append(np.where(is_small, series, recursive))
    return found


def evaluate_phi_of_matrix(M: np.ndarray, most: int) -> list[np.ndarray]:
    """phi_0 to phi_most of a matrix: phi_k(2 M) = 2^-k (phi_0 phi_k + sum_{j=1..k} phi_j / (k - j)!)(M)."""
    size = float(np.abs(M).sum(axis=1).max(initial=0.0))
    doublings = max(0, int(np.ceil(np.log2(2.0 * size)))) if size > 0.0 else 0
    M, unit = M / 2.0**doublings, np.eye(len(M))
    found = []
    for k in range(most + 1):
        series = unit / factorial(k + TERMS_OF_MATRICES)
        for m in range(TERMS_OF_MATRICES - 1, -1, -1):
            series = series @ M + unit / factorial(k + m)
        found.append(series)
    for _ in range(doublings):
        found = [
            found[0] @ found[0],
            *(
                (found[0] @ found[k] + sum(found[j] / factorial(k - j) for j in range(1, k + 1))) / 2.0**k
                for k in range(1, most + 1)
            ),
        ]
    return found


def differentiate_phi(terms: PhiTerms) -> PhiTerms:
    """z d/dz of a sum of terms: z phi_k' = phi_(k-1) - k phi_k."""
    found: list[tuple[float, int, float]] = []
    for weight, k, c in terms:
        found += [(weight, -1, c)] if k == 0 else [(weight, k - 1, c), (-k * weight, k, c)]
    return tuple(found)


def sum_phi(z: np.ndarray, terms: PhiTerms) -> np.ndarray:
    """sum w phi_k(c z) of numbers."""
    total = np.zeros_like(z)
    for weight, k, c in terms:
        phi = evaluate_phi(c * z, max(k, 0))
        total += weight * (phi[k] if k >= 0 else c * z * phi[0])
    return total


def sum_phi_of_matrix(z: np.ndarray, terms: PhiTerms) -> np.ndarray:
    """sum w phi_k(c z) of a matrix."""
    total = np.zeros_like(z)
    for c in sorted({c for _, _, c in terms}):
        some = [(weight, k) for weight, k, other in terms if other == c]
        phi = evaluate_phi_of_matrix(c * z, max(0, *(k for _, k in some)))
        for weight, k in some:
            total += weight * (phi[k] if k >= 0 else c * z @ phi[0])
    return total
