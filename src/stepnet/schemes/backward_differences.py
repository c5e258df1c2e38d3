"""Backward differentiation formulas (BDF) of fixed order with equal steps: the record, and the formulas themselves."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.implicit import RADAU3, RADAU5, SDIRK2, ImplicitRK
from stepnet.schemes.multistep import is_zero_stable
from stepnet.schemes.order import TOLERANCE
from stepnet.schemes.tableau import AN_ORDER, floats, freeze, require_finite
from stepnet.validation import check, instance, real, text

CURTISS = "Curtiss & Hirschfelder (1952), Proc. Natl. Acad. Sci. 38:235; Hairer & Wanner (1996), V.1"


@check(name=text, order=AN_ORDER, gamma=real("(0, inf)"), starter=instance(ImplicitRK))
@dataclass(frozen=True)
class FixedBDF:
    """y_{n+1} = sum_j alpha_j y_{n-j} + h gamma f(t_{n+1}, y_{n+1}),  j = 0, 1, ...

    The first steps are taken by `starter`, whose order is lower by at most one.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    alpha : tuple of float
        Coefficients of the states, the latest first.
    gamma : float
        Coefficient of the slope at the new state.
    starter : ImplicitRK
        A one-step scheme for the first steps.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> euler = sn.schemes.get("implicit_euler")
    >>> sn.schemes.FixedBDF("bdf1", 1, (1.0,), 1.0, euler, "Curtiss & Hirschfelder (1952)").order
    1
    """

    name: str
    order: int
    alpha: tuple[float, ...]
    gamma: float
    starter: ImplicitRK
    reference: str

    derivative = 1

    def __post_init__(self) -> None:
        freeze(self, alpha=floats("alpha", self.alpha), gamma=float(self.gamma))
        require_finite(self.name, alpha=self.alpha)
        if not 1 <= self.order <= len(self.alpha):
            raise SchemeError(
                f"{self.name}: `order` must be between 1 and {len(self.alpha)}, the number of entries of `alpha`, "
                f"found {self.order}"
            )
        defect = find_implicit_defect(self, self.order)
        if not defect <= TOLERANCE:
            raise SchemeError(f"{self.name}: promises order {self.order}, but misses a condition by {defect:.1e}")
        if not is_zero_stable(self):  # type: ignore[arg-type]
            raise SchemeError(f"{self.name}: not zero-stable, its characteristic polynomial breaks the root condition")
        if self.starter.order < self.order - 1:
            raise SchemeError(
                f"{self.name}: the `starter` must have order {self.order - 1} or more, "
                f"{self.starter.name} has {self.starter.order}"
            )

    @property
    def n_steps(self) -> int:
        """The number of earlier states that a step depends on."""
        return len(self.alpha)


def find_implicit_defect(scheme: Any, order: int) -> float:
    """The largest defect of an order condition of the implicit part; time is measured from the new state."""
    s, worst = -1.0 - np.arange(len(scheme.alpha)), 0.0
    for m in range(order + 1):
        terms = np.array(scheme.alpha) * s**m
        defect = terms.sum() + scheme.gamma * (m == 1) - (m == 0)
        worst = max(worst, abs(float(defect)) / max(float(np.abs(terms).sum()), 1.0))
    return worst


def expand_differences(steps: int) -> tuple[tuple[float, ...], Fraction]:
    """alpha and gamma of sum_{k=1..steps} (nabla^k y_{n+1}) / k = h f_{n+1}."""
    a = [Fraction(0)] * (steps + 1)
    for k in range(1, steps + 1):
        for j in range(k + 1):
            a[j] += Fraction((-1) ** j * comb(k, j), k)
    gamma = 1 / a[0]
    return tuple(float(-x * gamma) for x in a[1:]), gamma


def _build(steps: int, starter: ImplicitRK) -> FixedBDF:
    alpha, gamma = expand_differences(steps)
    return FixedBDF(f"bdf{steps}", steps, alpha, float(gamma), starter, CURTISS)


# Stiffly accurate starters without an explicit stage, so that algebraic equations have derivatives, too.
BDF2 = _build(2, SDIRK2)
BDF3 = _build(3, RADAU3)
BDF4 = _build(4, RADAU5)
BDF5 = _build(5, RADAU5)
