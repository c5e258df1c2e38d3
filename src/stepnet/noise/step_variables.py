"""Random variables of a step of length h as functions of its increment W and space-time Levy area H.

The functions take numbers or arrays and call no others, so that engines can compile each of them.
"""

from __future__ import annotations

from typing import Any


def average_path(W: Any, H: Any) -> Any:
    """I10 / h: the mean of W(s) - W(t) over the step."""
    return 0.5 * W + H


def second_integral(W: Any, h: Any) -> Any:
    """I11, the Ito integral of W dW."""
    return 0.5 * (W * W - h)


def third_integral(W: Any, h: Any) -> Any:
    """I111 / h, a third of the Ito integral of W^2 dW."""
    return W * (W * W - 3.0 * h) / (6.0 * h)


def scaled_second_integral(W: Any, h: Any, root: Any) -> Any:
    """I11 / sqrt(h)."""
    return 0.5 * (W * W - h) / root


def scaled_square(V: Any, h: Any, root: Any) -> Any:
    """(V^2 - h) / sqrt(h)."""
    return (V * V - h) / root


def scaled_pair(V1: Any, V2: Any, U: Any, root: Any) -> Any:
    """(V1 V2 + U) / sqrt(h)."""
    return (V1 * V2 + U) / root


def pair_integral(W1: Any, W2: Any, diagonal: Any) -> Any:
    """The symmetric part of the integral of W1 dW2; `diagonal` is h for the same Ito component, else 0."""
    return 0.5 * (W1 * W2 - diagonal)
