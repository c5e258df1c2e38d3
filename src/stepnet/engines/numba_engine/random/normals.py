"""Philox words and normal numbers inside kernels, bit-identical to `stepnet.noise`; loops over paths are vectorised."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact, from_bits, to_bits
from stepnet.noise import normals, philox

U = np.uint64
M0, M1 = map(U, philox.MULTIPLIERS)
STEP0, STEP1 = map(U, philox.KEY_STEPS)
ROUNDS = philox.ROUNDS
LOW, HALF = U(philox.LOW_WORD), U(32)
L0, L1, L2, L3, L4, L5, L6 = normals.LOGARITHM
S0, S1, S2, S3, S4, S5, S6 = normals.SINE
C0, C1, C2, C3, C4, C5, C6 = normals.COSINE
TWICE_LN2 = normals.TWICE_LN2
MANTISSA, ROOT_HALF, ONE = map(U, (normals.MANTISSA, normals.ROOT_HALF_BITS, normals.ONE_BITS))
SHIFT_TO_ONE = U(normals.ONE_BITS - normals.ROOT_HALF_BITS)
BELOW_ONE = 1.0 - 2.0**-53
POWER_52, POWER_52_BITS = 2.0**52, U(0x433 << 52)
EXPONENT_OFFSET = POWER_52 + 1023.0
QUARTER_BITS = U(0x3FD << 52)
SIGN, SECOND = U(1 << 63), U(1 << 62)
ZERO, UNIT, SHIFT_10, SHIFT_12, SHIFT_52 = map(U, (0, 1, 10, 12, 52))


@exact
def draw_words(c0, c1, c2, c3, key):
    """Philox4x32-10 as two 64-bit words, the first word of each pair high; only low halves of counter words count.

    The products read low halves only, so high halves may hold anything until the end.
    """
    k0, k1 = key & LOW, key >> HALF
    for _ in range(ROUNDS):
        p0, p1 = M0 * (c0 & LOW), M1 * (c2 & LOW)
        c0, c1, c2, c3 = (p1 >> HALF) ^ (c1 ^ k0), p1, (p0 >> HALF) ^ (c3 ^ k1), p0
        k0, k1 = k0 + STEP0, k1 + STEP1
    return (c0 << HALF) | (c1 & LOW), (c2 << HALF) | (c3 & LOW)


@exact
def convert_to_uniform(word):
    """(k + 1/2) 2^-52 with the first 52 bits k."""
    return from_bits((word >> SHIFT_12) | ONE) - BELOW_ONE


@exact
def convert_to_normals(first, second):
    """Two independent normal numbers; see `stepnet.noise.normals` for the formulas."""
    bits = to_bits(convert_to_uniform(first)) + SHIFT_TO_ONE
    m = from_bits((bits & MANTISSA) + ROOT_HALF)
    e = from_bits((bits >> SHIFT_52) | POWER_52_BITS) - EXPONENT_OFFSET
    s = (1.0 - m) / (1.0 + m)
    z = s * s
    p = (((((L6 * z + L5) * z + L4) * z + L3) * z + L2) * z + L1) * z + L0
    r = np.sqrt(s * (4.0 + z * p) - e * TWICE_LN2)
    q = from_bits(((second >> SHIFT_10) & MANTISSA) | UNIT | QUARTER_BITS) - 0.375
    z = q * q
    small = r * (q * ((((((S6 * z + S5) * z + S4) * z + S3) * z + S2) * z + S1) * z + S0))
    large = r * (1.0 + z * ((((((C6 * z + C5) * z + C4) * z + C3) * z + C2) * z + C1) * z + C0))
    large = from_bits(to_bits(large) ^ (second & SIGN))
    if second & SECOND != ZERO:
        return small, large
    return large, small
