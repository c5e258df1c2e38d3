"""The state of a minimisation: the best point, the values of its steps, and the cost."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from stepnet.training.progress import Bar

if TYPE_CHECKING:
    from stepnet.training.minimum import Minimum

ZERO_GRADIENT = "the gradient is zero to the tolerance"


class MinimisationState:
    """A minimisation in progress: the best point, the values of its steps and the cost, shown on a progress bar."""

    def __init__(self, shown: Bar, theta: np.ndarray):
        self._shown, self._kept = shown, (inf, theta, np.full_like(theta, np.nan))
        self._history: list[float] = []
        self.gradients = self.products = 0

    @property
    def value(self) -> float:
        """The value at the best point."""
        return self._kept[0]

    def keep(self, theta: np.ndarray, value: float, gradient: np.ndarray) -> None:
        """Replace the best point."""
        self._kept = value, theta, gradient

    def step(self, value: float) -> None:
        """Record the value of a step."""
        self._history.append(float(value))
        self._shown.move()

    def tell(self, **numbers: float) -> None:
        self._shown.tell(**numbers)

    def minimum(self, converged: bool, message: str) -> Minimum:
        """Build the result."""
        from stepnet.training.minimum import Minimum  # loads scipy.optimize

        value, theta, gradient = self._kept
        return Minimum(
            theta, value, gradient, converged, message, np.array(self._history), self.gradients, self.products
        )

    def build_interrupted(self) -> Minimum:
        """Build the result of an interrupted minimisation."""
        return self.minimum(False, f"interrupted by the user after {len(self._history)} steps; the best point is kept")


def require_start(value: float) -> None:
    """Refuse an initial value that is not finite."""
    if not isfinite(value):
        raise ValueError("the objective is not finite at the initial parameters; `theta` must give finite outputs")
