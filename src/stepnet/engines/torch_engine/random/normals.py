"""Philox words, uniforms and normal numbers as tensors, in 64-bit integers that never overflow; no value is read.

Words and uniforms have the bits of `stepnet.noise` on every device.  Normals differ by at most 2 units in the last
place, since square roots are not always rounded to nearest and devices may fuse multiplications and additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from stepnet.noise import normals
from stepnet.noise.philox import KEY_STEPS, LOW_WORD, MULTIPLIERS, ROUNDS

Words: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]

__all__ = ["convert_to_normals", "convert_to_uniforms", "draw_words"]


def draw_words(
    counter: Sequence[int | Tensor],
    key: int | Tensor | tuple[Tensor, Tensor],
    device: torch.device | None = None,
) -> Words:
    """Philox4x32-10: the four words of each counter, as int64 tensors; the words of the counter broadcast.

    The key is a number, a scalar tensor that is not read, or its low and high words as tensors.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*[_place(word, device) for word in counter])
    k0, k1 = key if isinstance(key, tuple) else (key & LOW_WORD, key >> 32)
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], c0)
        high1, low1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW_WORD, (k1 + KEY_STEPS[1]) & LOW_WORD
    return c0, c1, c2, c3


def _place(word: int | Tensor, device: torch.device | None) -> Tensor:
    return word if isinstance(word, Tensor) else torch.full((), word, dtype=torch.int64, device=device)


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a product, without integer overflow, whose result compilers may change."""
    low = word * (factor & 0xFFFF)
    upper = word * (factor >> 16) + (low >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (low & 0xFFFF)


def convert_to_uniforms(words: Words) -> tuple[Tensor, Tensor]:
    """Two numbers in (0, 1), (k + 1/2) 2^-52."""
    a, b, c, d = words
    return _convert(a, b), _convert(c, d)


def _convert(high: Tensor, low: Tensor) -> Tensor:
    return (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52


def convert_to_normals(words: Words) -> tuple[Tensor, Tensor]:
    """Two independent normal numbers from every four words; see `stepnet.noise.normals` for the formulas."""
    a, b, c, d = words
    r = torch.sqrt(_evaluate_twice_log(_convert(a, b)))
    q = (((c & 0x3FFFFFFF) << 22) | (d >> 10) | 1).double() * 2.0**-54 - 0.125
    z = q * q
    small = r * (q * _evaluate(normals.SINE, z))
    large = r * (1.0 + z * _evaluate(normals.COSINE, z))
    large = torch.where((c >> 31) != 0, -large, large)
    is_exchanged = ((c >> 30) & 1) != 0
    return torch.where(is_exchanged, small, large), torch.where(is_exchanged, large, small)


def _evaluate_twice_log(u: Tensor) -> Tensor:
    bits = u.view(torch.int64) + (normals.ONE_BITS - normals.ROOT_HALF_BITS)
    m = ((bits & normals.MANTISSA) + normals.ROOT_HALF_BITS).view(torch.float64)
    e = (bits >> 52).double() - 1023.0
    s = (1.0 - m) / (1.0 + m)
    z = s * s
    return s * (4.0 + z * _evaluate(normals.LOGARITHM, z)) - e * normals.TWICE_LN2


def _evaluate(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    total = coefficients[-1] * z + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * z + c
    return total
