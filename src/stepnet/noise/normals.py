"""Pairs of normal numbers from random words by the Box-Muller transform, with explicit polynomials.

The radius is sqrt(-2 log u), the angle |q| < 1/8 of a turn; one bit exchanges the coordinates and one is the sign of
the larger.  Only sums, products, quotients and roots are used, each rounded once, in a fixed order: implementations
without fused operations agree bit for bit.

G. E. P. Box, M. E. Muller (1958), A note on the generation of random normal deviates, Ann. Math. Statist. 29:610.
"""

from __future__ import annotations

import numpy as np

from stepnet.noise.philox import Words

LOGARITHM = tuple(
    2 * float.fromhex(c)
    for c in (
        "0x1.5555555555558p-1", "0x1.99999999952e2p-2", "0x1.2492492df148dp-2", "0x1.c71c62e5800a1p-3",
        "0x1.7462b4ab2ef6bp-3", "0x1.39fe606542ddep-3", "0x1.2b584aae78a57p-3",
    )
)  # fmt: skip
"""Of (4 artanh(s) - 4 s) / s^3 in powers of s^2 <= (3 - sqrt 8)^2: interpolation at Chebyshev points, error 5e-18."""

SINE = tuple(
    map(
        float.fromhex,
        (
            "0x1.921fb54442d18p+2", "-0x1.4abbce625be41p+5", "0x1.466bc677587f8p+6", "-0x1.32d2cce2e5b19p+6",
            "0x1.50782fda12d96p+5", "-0x1.e30071afc3e59p+3", "0x1.e3f38399551bfp+1",
        ),
    )
)  # fmt: skip
"""Of sin(2 pi q) / q in powers of q^2 <= 1/64, relative error 4e-18."""

COSINE = tuple(
    map(
        float.fromhex,
        (
            "-0x1.3bd3cc9be45dep+4", "0x1.03c1f081b5ac0p+6", "-0x1.55d3c7e3cb241p+6", "0x1.e1f5068688d5bp+5",
            "-0x1.a6d1eef479be1p+4", "0x1.f9ce245cada0bp+2", "-0x1.b2f3eb054afcdp+0",
        ),
    )
)  # fmt: skip
"""Of (cos(2 pi q) - 1) / q^2, absolute error of the cosine 2e-19."""

TWICE_LN2 = 2 * float.fromhex("0x1.62e42fefa39efp-1")
ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
ONE_BITS = 0x3FF << 52
MANTISSA = 2**52 - 1
LARGEST_NORMAL = 8.6  # above sqrt(-2 log 2^-53)


def convert_to_normals(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Two independent normal numbers from four words each."""
    a, b, c, d = words
    r = np.sqrt(_evaluate_twice_log(a, b))
    fraction = ((c & np.uint64(0x3FFFFFFF)) << np.uint64(22)) | (d >> np.uint64(10)) | np.uint64(1)
    q = fraction.astype(np.float64) * 2.0**-54 - 0.125
    z = q * q
    small = r * (q * _evaluate(SINE, z))
    large = r * (1.0 + z * _evaluate(COSINE, z))
    large = np.where(c >> np.uint64(31) != 0, -large, large)
    is_exchanged = (c >> np.uint64(30)) & np.uint64(1) != 0
    return np.where(is_exchanged, small, large), np.where(is_exchanged, large, small)


def _evaluate_twice_log(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """-2 log u = s (4 + s^2 P(s^2)) - 2 e log 2, with u = 2^e m, sqrt(1/2) <= m < sqrt(2), s = (1 - m) / (1 + m)."""
    k = (high << np.uint64(20)) | (low >> np.uint64(12))
    bits = ((k.astype(np.float64) + 0.5) * 2.0**-52).view(np.uint64) + np.uint64(ONE_BITS - ROOT_HALF_BITS)
    m = ((bits & np.uint64(MANTISSA)) + np.uint64(ROOT_HALF_BITS)).view(np.float64)
    e = (bits >> np.uint64(52)).astype(np.float64) - 1023.0
    s = (1.0 - m) / (1.0 + m)
    z = s * s
    return s * (4.0 + z * _evaluate(LOGARITHM, z)) - e * TWICE_LN2


def _evaluate(coefficients: tuple[float, ...], z: np.ndarray) -> np.ndarray:
    """The polynomial by Horner's rule."""
    total = coefficients[-1] * z + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * z + c
    return total
