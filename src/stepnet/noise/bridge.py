"""Division and joining of intervals with increment W and space-time Levy area H.

H = (1/h) int_s^{s+h} (W_u - W_s - (u - s)/h (W_{s+h} - W_s)) du is normal with variance h/12 and independent of
the increment.  Increments are multiples of a quantum (`quantise`), so that their sums and differences are exact.
The functions take numbers or arrays and call no others, so that engines can compile each of them.

J. Foster (2020), Numerical approximations for stochastic differential equations, thesis, Oxford, chapter 4.
"""

from __future__ import annotations

from typing import Any


def quantise(x: Any, rounder: Any) -> Any:
    """The nearest multiple of the quantum, where `rounder` is 1.5 2^52 quanta."""
    return (x + rounder) - rounder


def halve(W: Any, H: Any, kick: Any, twist: Any, rounder: Any) -> Any:
    """Both halves (W, H) of an interval of length h; `kick` has the variance h/16 and `twist` h/48."""
    W1 = (((0.5 * W + 1.5 * H) + kick) + rounder) - rounder
    H_both = 0.25 * H - 0.5 * kick
    return W1, H_both + twist, W - W1, H_both - twist


def divide(W: Any, H: Any, r: Any, kick: Any, twist: Any, rounder: Any) -> Any:
    """The parts of an interval of length h before and after its fraction r, 0 < r < 1.

    With D = r^3 + (1 - r)^3 the variance of `kick` is h r (1 - r) D, that of `twist` is h r (1 - r)^3 / (12 D).
    """
    s = 1.0 - r
    W1 = (((r * W + 6.0 * (r * s) * H) + kick) + rounder) - rounder
    weighted = H - 0.5 * (6.0 * (r * s) * H + kick)  # r H1 + s H2
    H1 = r * r / (1.0 - 3.0 * (r * s)) * weighted + twist
    return W1, H1, W - W1, (weighted - r * H1) / s


def join(W1: Any, H1: Any, length1: Any, W2: Any, H2: Any, length2: Any) -> Any:
    """(W, H) of the union of two adjacent intervals."""
    H = (length1 * (H1 - 0.5 * W2) + length2 * (H2 + 0.5 * W1)) / (length1 + length2)
    return W1 + W2, H


def remove(W: Any, H: Any, length: Any, W1: Any, H1: Any, length1: Any) -> Any:
    """(W, H) of an interval without its first part."""
    W2, length2 = W - W1, length - length1
    return W2, (length * H - length1 * (H1 - 0.5 * W2)) / length2 - 0.5 * W1
