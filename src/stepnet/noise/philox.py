"""Philox4x32-10: four random words of 32 bits as a function of a counter of 128 bits and a key of 64.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw (2011), Parallel random numbers: as easy as 1, 2, 3, SC '11.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Words: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW_WORD = 0xFFFFFFFF

_M0, _M1 = map(np.uint64, MULTIPLIERS)
_LOW, _HALF = np.uint64(LOW_WORD), np.uint64(32)


def draw_words(counter: Any, key: int) -> Words:
    """The four words of each counter, as arrays of uint64; the words of the counter broadcast."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = key & LOW_WORD, key >> 32
    for _ in range(ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW
        c2, c3 = (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW_WORD, (k1 + KEY_STEPS[1]) & LOW_WORD
    return c0, c1, c2, c3


def convert_to_uniforms(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers of (0, 1), (k + 1/2) 2^-52 with the first 52 bits k of two words each; no rounding is involved."""
    a, b, c, d = words
    return _convert(a, b), _convert(c, d)


def _convert(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    k = (high << np.uint64(20)) | (low >> np.uint64(12))
    return (k.astype(np.float64) + 0.5) * 2.0**-52
