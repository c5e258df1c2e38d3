"""Where a minimisation is, and where it ended."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from stepnet.records import show_fields
from stepnet.training.progress import Bar

ZERO_GRADIENT = "the gradient is zero to the tolerance"


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a minimisation ended.  `history` has the value after every step; `products` counts those with J' H J."""

    theta: np.ndarray
    value: float
    gradient: np.ndarray
    converged: bool
    message: str
    history: np.ndarray
    gradients: int
    products: int = 0

    __repr__ = show_fields


class MinimisationState:
    """A minimisation under way: the point that is kept, the values of its steps, what it has cost; shown on a bar."""

    def __init__(self, shown: Bar, theta: np.ndarray):
        self._shown, self._kept = shown, (inf, theta, np.full_like(theta, np.nan))
        self._history: list[float] = []
        self.gradients = self.products = 0

    @property
    def value(self) -> float:
        """At the point that is kept."""
        return self._kept[0]

    def keep(self, theta: np.ndarray, value: float, gradient: np.ndarray) -> None:
        """Keep this point instead."""
        self._kept = value, theta, gradient

    def step(self, value: float) -> None:
        """A step is done."""
        self._history.append(float(value))
        self._shown.move()

    def tell(self, **numbers: float) -> None:
        self._shown.tell(**numbers)

    def minimum(self, converged: bool, message: str) -> Minimum:
        """The end."""
        value, theta, gradient = self._kept
        return Minimum(
            theta, value, gradient, converged, message, np.array(self._history), self.gradients, self.products
        )

    def interrupted(self) -> Minimum:
        """An end that was not its own."""
        return self.minimum(False, f"interrupted by the user after {len(self._history)} steps; what was found is kept")


def require_start(value: float) -> None:
    """A beginning that can be made smaller."""
    if not isfinite(value):
        raise ValueError("the objective is not finite where it begins; `theta` must give finite outputs")
