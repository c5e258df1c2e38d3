"""Ranges of activations and of their slopes over intervals of their arguments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.fields.activations import Activation

SELU_STEEP, SELU_SCALE = 1.0507009873554805 * 1.6732632423543773, 1.0507009873554805
SLOPES = {
    "tanh": (0.0, 1.0), "relu": (0.0, 1.0), "leaky_relu": (0.01, 1.0), "softplus": (0.0, 1.0),
    "gelu": (-0.12891, 1.12891), "silu": (-0.09984, 1.09984), "elu": (0.0, 1.0), "selu": (0.0, SELU_STEEP),
    "sigmoid": (0.0, 0.25), "identity": (1.0, 1.0),
}  # fmt: skip
"""The intervals that hold the derivatives of activations everywhere."""

TURNS = {
    "tanh": ((0.0, (1.0,)),), "sigmoid": ((0.0, (0.25,)),), "relu": ((0.0, (0.0, 1.0)),),
    "leaky_relu": ((0.0, (0.01, 1.0)),), "elu": ((0.0, (1.0,)),), "selu": ((0.0, (SELU_STEEP, SELU_SCALE)),),
    "gelu": ((-np.sqrt(2.0), (-0.12891,)), (np.sqrt(2.0), (1.12891,))),
    "silu": ((-2.3993572805, (-0.09984,)), (2.3993572805, (1.09984,))),
}  # fmt: skip
"""Arguments between which slopes are monotone, with the slopes there, one-sided ones included."""

VALLEYS = {"gelu": (-0.7517915, -0.1699713), "silu": (-1.2784645, -0.2784646)}
"""Minima of activations that are not monotone, their values rounded down."""

ROUNDING = 1e-12  # relative, of values and slopes, by which ranges are widened


class Interval(NamedTuple):
    """Numbers between `low` and `high`, entry by entry."""

    low: np.ndarray
    high: np.ndarray


def scale(interval: Interval, factor: float) -> Interval:
    """The products with a number."""
    ends = factor * interval.low, factor * interval.high
    return Interval(*ends) if factor >= 0 else Interval(*ends[::-1])


def map_linearly(matrix: np.ndarray, interval: Interval) -> Interval:
    """The smallest interval that holds the products of a matrix with the vectors of an interval."""
    centre, radius = 0.5 * (interval.high + interval.low), 0.5 * (interval.high - interval.low)
    middle, reach = matrix @ centre, np.abs(matrix) @ radius
    return Interval(middle - reach, middle + reach)


def find_value_range(activation: Activation, u: Interval) -> Interval:
    """The values of an activation over intervals of its argument."""
    ends = activation.value(u.low), activation.value(u.high)
    low, high = np.minimum(*ends), np.maximum(*ends)
    if activation.name in VALLEYS:
        place, value = VALLEYS[activation.name]
        low = np.where((u.low <= place) & (place <= u.high), np.minimum(low, value), low)
    return _widen(low, high)


def find_slope_range(activation: Activation, u: Interval) -> Interval:
    """The slopes of an activation over intervals of its argument: those at the ends and at turns between them."""
    ends = activation.derivative(u.low), activation.derivative(u.high)
    low, high = np.minimum(*ends), np.maximum(*ends)
    for place, slopes in TURNS.get(activation.name, ()):
        is_inside = (u.low <= place) & (place <= u.high)
        low = np.where(is_inside, np.minimum(low, min(slopes)), low)
        high = np.where(is_inside, np.maximum(high, max(slopes)), high)
    return _widen(low, high)


def _widen(low: np.ndarray, high: np.ndarray) -> Interval:
    return Interval(low - ROUNDING * (1 + np.abs(low)), high + ROUNDING * (1 + np.abs(high)))
