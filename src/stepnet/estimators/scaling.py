"""Shifts and factors that give columns mean 0 and variance 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EPS = np.finfo(np.float64).eps


class Scaling(NamedTuple):
    """(values - shift) / spread, column by column."""

    shift: np.ndarray
    spread: np.ndarray


def none(columns: int) -> Scaling:
    """The identity."""
    return Scaling(np.zeros(columns), np.ones(columns))


def standard(values: np.ndarray, weights: np.ndarray | None = None) -> Scaling:
    """Weighted mean and standard deviation; a column that is constant up to rounding is not scaled.

    The bound is that of the two-pass algorithm; Chan, Golub & LeVeque (1983), Am. Stat. 37:242.
    """
    # Scaling by powers of two is exact and prevents overflow and underflow of squares.
    size = np.ldexp(1.0, np.frexp(np.abs(values).max(axis=0))[1] - 1)
    sized, count = values / size, len(values)
    if weights is not None and (weights == weights[0]).all():
        weights = None
    mean = np.average(sized, axis=0, weights=weights)
    variance = np.average((sized - mean) ** 2, axis=0, weights=weights)
    is_constant = variance <= count * EPS * variance + (count * EPS * mean) ** 2
    return Scaling(mean * size, np.where(is_constant, 1.0, np.sqrt(variance) * size))
