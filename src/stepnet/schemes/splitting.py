"""Splitting schemes as records: flows of the parts, one after the other, over fractions of the step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepnet.errors import SchemeError
from stepnet.records import flag
from stepnet.schemes.order import HIGHEST, TOLERANCE, Conditions, partitioned_defect
from stepnet.schemes.tableau import an_order, floats, freeze, require_finite
from stepnet.validation import check, text, whole

MOST_PARTS = 10_000


class TableauPair(NamedTuple):
    """A splitting as a partitioned method: Q_i = q + h sum a_ij f(P_j), P_i = p + h sum a^_ij g(Q_j)."""

    b: np.ndarray
    A: np.ndarray
    b_hat: np.ndarray
    A_hat: np.ndarray


@check(name=text, order=an_order)
@dataclass(frozen=True)
class Splitting:
    """exp(b_m h B) exp(a_m h A) ... exp(b_1 h B) exp(a_1 h A): part A moves first.

    For a separable problem A moves q with p fixed (drift) and B moves p with q fixed (kick); for a sum of right-hand
    sides A and B are the flows of its parts.  A scheme that begins with a kick has a_1 = 0.  With `nystrom` the
    order holds only when A is linear, as in q'' = a(t, q).
    """

    name: str
    order: int
    a: tuple[float, ...]
    b: tuple[float, ...]
    reference: str
    nystrom: bool = False

    def __post_init__(self):
        freeze(self, a=floats("a", self.a), b=floats("b", self.b), nystrom=flag("nystrom", self.nystrom))
        if len(self.a) != len(self.b):
            raise SchemeError(f"{self.name}: `a` and `b` must be equally long, found {len(self.a)} and {len(self.b)}")
        require_finite(self.name, a=self.a, b=self.b)
        if self.order < 1:
            raise SchemeError(f"{self.name}: `order` must be at least 1, found {self.order}")
        if self.order > HIGHEST:
            raise SchemeError(f"{self.name}: orders are checked up to {HIGHEST}, so it cannot promise {self.order}")
        for p in range(1, self.order + 1):
            defect = partitioned_defect(self.conditions, self.tableaux.b, self.tableaux.b_hat, p, self.nystrom)
            if not defect <= TOLERANCE:
                raise SchemeError(
                    f"{self.name}: promises order {self.order}, but a condition of order {p} is missed by {defect:.1e} "
                    f"(relative; up to {TOLERANCE:.0e} is rounding)"
                )

    @cached_property
    def tableaux(self) -> TableauPair:
        """The partitioned Runge-Kutta method that the drifts and kicks amount to."""
        m = len(self.a)
        a, b = np.array(self.a, float), np.array(self.b, float)
        A = np.tril(np.ones((m, m))) * a  # kick i sees the drifts 1..i
        A_hat = np.tril(np.ones((m, m)), -1) * b  # drift i sees the kicks 1..i-1
        pair = TableauPair(a, A, b, A_hat)
        for array in pair:
            array.flags.writeable = False
        return pair

    @cached_property
    def conditions(self) -> Conditions:
        """Its order conditions on trees whose colours alternate."""
        return Conditions(self.tableaux.A_hat, self.tableaux.A)

    @check(parts=whole(1, MOST_PARTS))
    def sequence(self, parts: int = 2) -> tuple[tuple[int, float], ...]:
        """The flows in order as (part, fraction) pairs, zero fractions left out and neighbours of one part joined.

        More than two parts are composed from chi = (part 1, then 2, ...) and its mirror image with the fractions
        a_1, b_1 - a_1, a_2 - b_1 + a_1, ...; McLachlan (1995), SIAM J. Sci. Comput. 16:151, shows the order is kept.
        """
        if parts > 2 and self.nystrom:
            raise SchemeError(f"{self.name}: a Nystrom scheme needs a linear part and cannot join {parts} general ones")
        if parts == 2:
            flows = [pair for a, b in zip(self.a, self.b, strict=True) for pair in ((0, a), (1, b))]
        else:
            flows, fraction = [], 0.0
            for k, total in enumerate(x for pair in zip(self.a, self.b, strict=True) for x in pair):
                fraction = total - fraction
                indices = range(parts) if k % 2 == 0 else range(parts - 1, -1, -1)
                flows += [(part, fraction) for part in indices]
        return _join(flows)


def _join(flows) -> tuple[tuple[int, float], ...]:
    joined: list[tuple[int, float]] = []
    for part, fraction in flows:
        if abs(fraction) < 1e-15:
            continue
        if joined and joined[-1][0] == part:
            joined[-1] = (part, joined[-1][1] + fraction)
        else:
            joined.append((part, fraction))
    return tuple(joined)
