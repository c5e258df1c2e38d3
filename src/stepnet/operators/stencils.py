"""Finite-difference stencils: offsets and weights of one derivative, with their order checked when they are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from typing import Any

from stepnet import validation
from stepnet.records import keep, validate_number

MOST_DERIVATIVE, MOST_ORDER = 8, 8
MOMENT_TOLERANCE = 1e-12  # relative to the sum of the terms: weights are rounded once


@validation.check(derivative=validation.whole(0, MOST_DERIVATIVE), order=validation.whole(1, 2 * MOST_ORDER))
@dataclass(frozen=True)
class DifferenceStencil:
    """sum_j weights[j] u(x + offsets[j] h) / h^derivative = u^(derivative)(x) + O(h^order).

    The Taylor moments sum_j weights[j] offsets[j]^k are checked for all k < derivative + order: k! for k = derivative
    and zero for the others.

    Parameters
    ----------
    derivative : int
        Which derivative.
    order : int
        The order of the error.
    offsets, weights : sequence of floats
        Distances from x in grid spacings, and the weight of each.

    Raises
    ------
    ValueError
        If a moment is wrong, or offsets repeat.

    Examples
    --------
    >>> from stepnet.operators import DifferenceStencil
    >>> DifferenceStencil(2, 2, (-1, 0, 1), (1.0, -2.0, 1.0)).reach
    (1, 1)
    """

    derivative: int
    order: int
    offsets: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        offsets, weights = _validate_offsets(self.offsets), validation.sequence(_number)("weights", self.weights)
        keep(self, offsets=offsets, weights=weights)
        if len(offsets) != len(weights):
            raise ValueError(f"`weights` must be as many as `offsets`, found {len(weights)} and {len(offsets)}")
        for k in range(self.derivative + self.order):
            terms = [w * float(o) ** k for w, o in zip(weights, offsets, strict=True)]
            wanted = float(factorial(k)) if k == self.derivative else 0.0
            if abs(sum(terms) - wanted) > MOMENT_TOLERANCE * max(sum(map(abs, terms)), 1.0):
                raise ValueError(
                    f"`weights` must have the moment {wanted:g} of degree {k} for derivative {self.derivative} to "
                    f"order {self.order}, found {sum(terms):.6g}"
                )

    @property
    def reach(self) -> tuple[int, int]:
        """The number of neighbours that are read on the lower and on the upper side."""
        return max(0, -min(self.offsets)), max(0, max(self.offsets))


def _number(name: str, value: Any) -> float:
    return validate_number(name, value)


def _validate_offsets(value: Any) -> tuple[int, ...]:
    offsets = validation.sequence(validation.whole(-64, 64), 1)("offsets", value)
    if len(set(offsets)) != len(offsets):
        raise ValueError(f"`offsets` must differ from each other, found {offsets}")
    return offsets


def compute_weights(derivative: int, points: Sequence[Fraction], at: Fraction) -> list[Fraction]:
    """The weights of u^(derivative)(at) from values at `points`, exact for polynomials of degree < len(points).

    Fornberg (1988), Math. Comp. 51:699, in rational numbers.
    """
    table = [[Fraction(0)] * (derivative + 1) for _ in points]
    table[0][0] = Fraction(1)
    product = Fraction(1)
    for i in range(1, len(points)):
        denominator = Fraction(1)
        last = table[i - 1][:]
        for j in range(i):
            gap = points[i] - points[j]
            denominator *= gap
            row = table[j]
            for k in range(min(i, derivative), -1, -1):
                row[k] = ((points[i] - at) * row[k] - (k * row[k - 1] if k else 0)) / gap
        for k in range(min(i, derivative), -1, -1):
            before = k * last[k - 1] if k else Fraction(0)
            table[i][k] = product / denominator * (before - (points[i - 1] - at) * last[k])
        product = denominator
    return [row[derivative] for row in table]


@validation.check(derivative=validation.whole(1, MOST_DERIVATIVE))
def fit_stencil(derivative: int, offsets: Sequence[int]) -> DifferenceStencil:
    """The stencil of highest order on given offsets.

    Parameters
    ----------
    derivative : int
        Which derivative, from 1 to 8.
    offsets : sequence of ints
        Which neighbours to use, more than `derivative` of them.

    Returns
    -------
    DifferenceStencil

    Examples
    --------
    >>> from stepnet.operators import fit_stencil
    >>> fit_stencil(1, (-2, -1, 0)).weights
    (0.5, -2.0, 1.5)
    """
    offsets = _validate_offsets(offsets)
    if len(offsets) <= derivative:
        raise ValueError(f"`offsets` must be at least {derivative + 1} for derivative {derivative}, found {offsets}")
    exact = compute_weights(derivative, [Fraction(o) for o in offsets], Fraction(0))
    order = len(offsets) - derivative
    while sum(w * o ** (derivative + order) for w, o in zip(exact, offsets, strict=True)) == 0:
        order += 1  # symmetry gains an order
    return DifferenceStencil(derivative, order, offsets, tuple(map(float, exact)))


@validation.check(derivative=validation.whole(1, MOST_DERIVATIVE), order=validation.whole(2, MOST_ORDER))
def build_stencil(derivative: int, order: int = 2) -> DifferenceStencil:
    """The central stencil of a derivative.

    Parameters
    ----------
    derivative : int
        Which derivative, from 1 to 8.
    order : {2, 4, 6, 8}
        The order of the error.

    Returns
    -------
    DifferenceStencil

    Examples
    --------
    >>> from stepnet.operators import build_stencil
    >>> build_stencil(2, 4).offsets
    (-2, -1, 0, 1, 2)
    """
    if order % 2:
        raise ValueError(f"`order` of a central stencil must be even, found {order}")
    reach = (derivative + 1) // 2 + order // 2 - 1
    return fit_stencil(derivative, tuple(range(-reach, reach + 1)))
