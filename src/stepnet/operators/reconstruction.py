"""Values at faces from values at cell centres: limited slopes (MUSCL) and weighted essentially non-oscillatory (WENO).

Both give the value at the upper face of the middle cell, seen from inside it; mirrored arguments give the lower face.
"""

from __future__ import annotations

from typing import Any

from stepnet.operators.array_functions import ArrayFunctions

WENO_EPSILON = 1e-6  # of Jiang & Shu: keeps the weights finite where the data are constant


def minmod(a: Any, b: Any, functions: ArrayFunctions) -> Any:
    """The smaller of two slopes of equal sign, else zero."""
    low, high = functions.minimum, functions.maximum
    return high(low(a, b), 0.0) + low(high(a, b), 0.0)


def van_leer(a: Any, b: Any, functions: ArrayFunctions) -> Any:
    """The harmonic mean of two slopes of equal sign, else zero (van Leer 1974)."""
    product = a * b
    is_monotone = product > 0.0
    return functions.where(is_monotone, 2.0 * product / functions.where(is_monotone, a + b, 1.0), 0.0)


def monotonised_central(a: Any, b: Any, functions: ArrayFunctions) -> Any:
    """The central slope, at most twice each one-sided slope (van Leer 1977)."""
    return minmod(minmod(2.0 * a, 2.0 * b, functions), 0.5 * (a + b), functions)


def superbee(a: Any, b: Any, functions: ArrayFunctions) -> Any:
    """The steepest slope that is still monotone (Roe 1985)."""
    first, second = minmod(2.0 * a, b, functions), minmod(a, 2.0 * b, functions)
    low, high = functions.minimum, functions.maximum
    return high(high(first, second), 0.0) + low(low(first, second), 0.0)


LIMITERS = {"minmod": minmod, "van_leer": van_leer, "mc": monotonised_central, "superbee": superbee}


def reconstruct_weno5(v: tuple[Any, Any, Any, Any, Any]) -> Any:
    """The value at the face between v[2] and v[3] to fifth order where the data are smooth.

    Jiang & Shu (1996), J. Comput. Phys. 126:202.
    """
    a, b, c, d, e = v
    candidates = (
        (2.0 * a - 7.0 * b + 11.0 * c) * (1.0 / 6.0),
        (5.0 * c - b + 2.0 * d) * (1.0 / 6.0),
        (2.0 * c + 5.0 * d - e) * (1.0 / 6.0),
    )
    roughness = (
        13.0 / 12.0 * _square(a - 2.0 * b + c) + 0.25 * _square(a - 4.0 * b + 3.0 * c),
        13.0 / 12.0 * _square(b - 2.0 * c + d) + 0.25 * _square(b - d),
        13.0 / 12.0 * _square(c - 2.0 * d + e) + 0.25 * _square(3.0 * c - 4.0 * d + e),
    )
    weights = [ideal / _square(WENO_EPSILON + each) for ideal, each in zip((0.1, 0.6, 0.3), roughness, strict=True)]
    total = weights[0] + weights[1] + weights[2]
    return (weights[0] * candidates[0] + weights[1] * candidates[1] + weights[2] * candidates[2]) / total


def _square(x: Any) -> Any:
    return x * x
