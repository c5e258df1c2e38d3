"""Philox words and normal numbers inside kernels, bit-identical to `stepnet.noise`.

The formulas are written for bundles of vectors; `draw_words` and `convert_to_normals` are those of single numbers, and
loops over them are vectorised.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact, from_bits
from stepnet.engines.numba_engine.codegen.intrinsics.exact_vectors import Bundle, exchange
from stepnet.noise import normals, philox

U = np.uint64
LOW, HALF = U(philox.LOW_WORD), U(32)
ONE = U(normals.ONE_BITS)
BELOW_ONE = 1.0 - 2.0**-53
POWER_52, POWER_52_BITS = 2.0**52, 0x433 << 52
QUARTER_BITS = 0x3FD << 52
SIGN, SECOND = 1 << 63, 1 << 62
ZERO, SHIFT_12 = U(0), U(12)
PAIR_OF_WORDS, PAIR_OF_NORMALS = types.UniTuple(types.uint64, 2), types.UniTuple(types.float64, 2)


def write_words(c0: Bundle, c1: Bundle, c2: Bundle, c3: Bundle, keys: list) -> tuple[Bundle, Bundle]:
    """Philox4x32-10 as two 64-bit words, the first word of each pair high; only low halves of counter words count.

    The products read low halves only, so high halves may hold anything until the end.
    """
    for k0, k1 in keys:
        p0 = (c0 & philox.LOW_WORD) * philox.MULTIPLIERS[0]
        p1 = (c2 & philox.LOW_WORD) * philox.MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ (c1 ^ k0), p1, (p0 >> 32) ^ (c3 ^ k1), p0
    return (c0 << 32) | (c1 & philox.LOW_WORD), (c2 << 32) | (c3 & philox.LOW_WORD)


def write_keys(key: Bundle) -> list[tuple[Bundle, Bundle]]:
    """The key of each round, high halves of which may hold anything."""
    k0, k1 = key & philox.LOW_WORD, key >> 32
    step0, step1 = philox.KEY_STEPS
    return [(k0 + i * step0, k1 + i * step1) for i in range(philox.ROUNDS)]


def write_normals(first: Bundle, second: Bundle) -> tuple[Bundle, Bundle]:
    """Two independent normal numbers; see `stepnet.noise.normals` for the formulas.

    Sine and cosine are computed while the division goes on.
    """
    u = ((first >> 12) | normals.ONE_BITS).bitcast() - BELOW_ONE
    bits = u.bitcast() + (normals.ONE_BITS - normals.ROOT_HALF_BITS)
    m = ((bits & normals.MANTISSA) + normals.ROOT_HALF_BITS).bitcast()
    e = ((bits >> 52) | POWER_52_BITS).bitcast() - (POWER_52 + 1023.0)
    s = (1.0 - m) / (1.0 + m)
    q = (((second >> 10) & normals.MANTISSA) | (QUARTER_BITS | 1)).bitcast() - 0.375
    z = q * q
    sine = q * write_polynomial(normals.SINE, z)
    cosine = 1.0 + z * write_polynomial(normals.COSINE, z)
    z = s * s
    r = (s * (4.0 + z * write_polynomial(normals.LOGARITHM, z)) - e * normals.TWICE_LN2).sqrt()
    small, large = r * sine, r * cosine
    large = (large.bitcast() ^ (second & SIGN)).bitcast()
    return exchange(second.find_set(SECOND), large, small)


def write_polynomial(coefficients: tuple[float, ...], z: Bundle) -> Bundle:
    """The polynomial by Horner's rule."""
    total = coefficients[-1] * z + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * z + c
    return total


def _pack(builder, pair: tuple[Bundle, Bundle]):
    return cgutils.pack_array(builder, [each.values[0] for each in pair])


@intrinsic
def _draw_words(typing_context, c0, c1, c2, c3, key):
    def generate(context, builder, signature, arguments):
        c0, c1, c2, c3, number = [Bundle(builder, [value]) for value in arguments]
        return _pack(builder, write_words(c0, c1, c2, c3, write_keys(number)))

    return PAIR_OF_WORDS(*[types.uint64] * 5), generate


@intrinsic
def _convert_to_normals(typing_context, first, second):
    def generate(context, builder, signature, arguments):
        return _pack(builder, write_normals(*[Bundle(builder, [value]) for value in arguments]))

    return PAIR_OF_NORMALS(types.uint64, types.uint64), generate


@exact
def draw_words(c0, c1, c2, c3, key):
    """Philox4x32-10 as two 64-bit words, the first word of each pair high; only low halves of counter words count."""
    return _draw_words(c0, c1, c2, c3, key)


@exact
def convert_to_normals(first, second):
    """Two independent normal numbers from two words."""
    return _convert_to_normals(first, second)


@exact
def convert_to_uniform(word):
    """(k + 1/2) 2^-52 with the first 52 bits k."""
    return from_bits((word >> SHIFT_12) | ONE) - BELOW_ONE
