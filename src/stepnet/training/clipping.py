"""Gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.records import keep_numbers
from stepnet.validation import array, check


@dataclass(frozen=True)
class ClipNorm:
    """g min(1, limit / |g|_2).  Pascanu, Mikolov & Bengio (2013), arXiv:1211.5063.

    Parameters
    ----------
    limit : float, optional
        Maximum norm.

    Examples
    --------
    >>> from stepnet import training
    >>> training.ClipNorm(5.0).limit
    5.0
    """

    limit: float = 1.0

    def __post_init__(self) -> None:
        keep_numbers(self, limit="(0, inf)")

    @check(gradient=array())
    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        if not np.isfinite(gradient).all():
            return gradient  # nothing to scale; divergence is reported by the loop
        length = sqrt(inner(gradient, gradient))
        if length <= self.limit:
            return gradient
        if length == inf:  # the squares overflow, not the entries
            return self(gradient / np.abs(gradient).max() * max(1.0, self.limit))
        return gradient * (self.limit / length)


@dataclass(frozen=True)
class ClipValue:
    """Clip each entry of the gradient to [-limit, limit].

    Parameters
    ----------
    limit : float, optional
        Maximum size of an entry.

    Examples
    --------
    >>> from stepnet import training
    >>> training.ClipValue(0.5).limit
    0.5
    """

    limit: float = 1.0

    def __post_init__(self) -> None:
        keep_numbers(self, limit="(0, inf)")

    @check(gradient=array())
    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        return np.clip(gradient, -self.limit, self.limit)
