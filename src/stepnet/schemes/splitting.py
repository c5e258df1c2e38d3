"""Splitting schemes as records: compositions of the flows of the parts over fractions of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepnet.errors import SchemeError
from stepnet.records import validate_flag
from stepnet.schemes.order import HIGHEST, TOLERANCE, Conditions, partitioned_defect
from stepnet.schemes.tableau import AN_ORDER, floats, freeze, require_finite
from stepnet.validation import check, text, whole

MOST_PARTS = 10_000


class TableauPair(NamedTuple):
    """A splitting as a partitioned method: Q_i = q + h sum a_ij f(P_j), P_i = p + h sum a^_ij g(Q_j)."""

    b: np.ndarray
    A: np.ndarray
    b_hat: np.ndarray
    A_hat: np.ndarray


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class Splitting:
    """exp(b_m h B) exp(a_m h A) ... exp(b_1 h B) exp(a_1 h A): part A is applied first.

    For a separable problem A advances q with p fixed (drift) and B advances p with q fixed (kick); for a sum of
    right-hand sides A and B are the flows of its parts.  A scheme that begins with a kick has a_1 = 0.  With `nystrom`
    the order holds only when A is linear, as in q'' = a(t, q).

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    a, b : tuple of float
        Fractions of the step of part A and of part B.
    reference : str
        The source of the coefficients.
    nystrom : bool, optional
        Whether the order holds only when A is linear.

    Examples
    --------
    >>> import stepnet as sn
    >>> strang = sn.schemes.Splitting("strang_2", 2, (0.5, 0.5), (1.0, 0.0), "Strang (1968)")
    >>> sn.schemes.conditions.is_symmetric(strang)
    True
    """

    name: str
    order: int
    a: tuple[float, ...]
    b: tuple[float, ...]
    reference: str
    nystrom: bool = False

    def __post_init__(self) -> None:
        freeze(self, a=floats("a", self.a), b=floats("b", self.b), nystrom=validate_flag("nystrom", self.nystrom))
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
        """The partitioned Runge-Kutta method equivalent to the drifts and kicks."""
        m = len(self.a)
        a, b = np.array(self.a, float), np.array(self.b, float)
        A = np.tril(np.ones((m, m))) * a  # kick i depends on the drifts 1..i
        A_hat = np.tril(np.ones((m, m)), -1) * b  # drift i depends on the kicks 1..i-1
        pair = TableauPair(a, A, b, A_hat)
        for array in pair:
            array.flags.writeable = False
        return pair

    @cached_property
    def conditions(self) -> Conditions:
        """Its order conditions on trees whose colours alternate."""
        return Conditions(self.tableaux.A_hat, self.tableaux.A)

    @cached_property
    def is_fsal(self) -> bool:
        """First same as last: a step begins with the last part of the previous step and reuses its slope."""
        flows = self.sequence()
        return len(flows) > 1 and flows[0][0] == flows[-1][0]

    @check(parts=whole(1, MOST_PARTS))
    def sequence(self, parts: int = 2) -> tuple[tuple[int, float], ...]:
        """The flows in order as (part, fraction) pairs, zero fractions omitted and adjacent flows of one part merged.

        More than two parts are composed from chi = (part 1, then 2, ...) and its mirror image with the fractions a_1,
        b_1 - a_1, a_2 - b_1 + a_1, ...; McLachlan (1995), SIAM J. Sci. Comput. 16:151, shows that the order is
        preserved.
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


def _join(flows: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    joined: list[tuple[int, float]] = []
    for part, fraction in flows:
        if abs(fraction) < 1e-15:
            continue
        if joined and joined[-1][0] == part:
            joined[-1] = (part, joined[-1][1] + fraction)
        else:
            joined.append((part, fraction))
    return tuple(joined)
