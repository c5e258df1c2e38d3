"""Exponential Runge-Kutta schemes: the linear part of an equation is solved exactly, the other part is explicit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial
from typing import Any

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.order import Conditions
from stepnet.schemes.phi_functions import evaluate_phi
from stepnet.schemes.tableau import AN_ORDER, Butcher, butcher, floats, freeze, require_finite, require_order
from stepnet.validation import check, instance, sequence, text

COX = "Cox & Matthews (2002), J. Comput. Phys. 176:430"
HOCHBRUCK = "Hochbruck & Ostermann (2005), SIAM J. Numer. Anal. 43:1069"
MOST_PHI = 6
PROBES = np.array([0.7, -1.3 + 0.4j, -9.0])  # values of z = h L at which identities are checked
ROUNDING = 1e-13


@dataclass(frozen=True)
class PhiTerm:
    """weight phi_k(c z): a term of a coefficient of an exponential scheme.

    Parameters
    ----------
    weight : float
        Its factor.
    k : int
        Which function phi_k.
    c : float
        The fraction of the step.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.PhiTerm(0.5, 1, 1.0).k
    1
    """

    weight: float
    k: int
    c: float = 1.0

    def __post_init__(self) -> None:
        freeze(self, weight=floats("weight", (self.weight,))[0], c=floats("c", (self.c,))[0])
        require_finite("PhiTerm", weight=[self.weight], c=[self.c])
        if not isinstance(self.k, (int, np.integer)) or not 0 <= self.k <= MOST_PHI:
            raise SchemeError(f"`k` must be a whole number from 0 to {MOST_PHI}, found {self.k!r}")


Coefficient = tuple[PhiTerm, ...]


def _keep(name: str, value: Any) -> Any:
    return value


A_COEFFICIENT = sequence(instance(PhiTerm))


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class ExponentialRK:
    """U_i = phi_0(c_i h L) y + h sum_{j<i} a_ij(h L) N(t + c_j h, U_j),
    y_new = phi_0(h L) y + h sum b_i(h L) N(t + c_i h, U_i)

    for y' = N(t, y) + L y with a constant matrix L.  Coefficients are sums of terms w phi_k(c h L).

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain for L = 0.
    c : tuple of float
        Nodes; the first one is 0.
    A : tuple
        Rows of the strict lower triangle, the empty first row included; each entry is a tuple of `PhiTerm`.
    b : tuple
        Weights, each a tuple of `PhiTerm`.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> phi_1 = (sn.schemes.PhiTerm(1.0, 1),)
    >>> sn.schemes.ExponentialRK("euler_e", 1, (0.0,), ((),), (phi_1,), "Pope (1963)").order
    1
    """

    name: str
    order: int
    c: tuple[float, ...]
    A: tuple[tuple[Coefficient, ...], ...]
    b: tuple[Coefficient, ...]
    reference: str

    def __post_init__(self) -> None:
        rows = tuple(sequence(A_COEFFICIENT)(f"A[{i}]", row) for i, row in enumerate(sequence(_keep)("A", self.A)))
        freeze(self, c=floats("c", self.c), A=rows, b=sequence(A_COEFFICIENT)("b", self.b))
        s = len(self.b)
        if s == 0 or [len(row) for row in self.A] != list(range(s)) or len(self.c) != s:
            raise SchemeError(
                f"{self.name}: `A` must have {s} rows with 0, 1, ... entries and `c` {s} nodes, because `b` has {s}; "
                f"found rows with {[len(row) for row in self.A]} entries and {len(self.c)} nodes"
            )
        require_finite(self.name, c=self.c)
        require_order(self.name, "b", Conditions(self.butcher.A), self.butcher.b, self.order)
        _require_equilibria(self)

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def butcher(self) -> Butcher:
        """The explicit tableau for L = 0."""
        s = len(self.b)
        A = np.zeros((s, s))
        for i, row in enumerate(self.A):
            A[i, :i] = [_find_limit(terms) for terms in row]
        return butcher(A, np.array([_find_limit(terms) for terms in self.b]))


def _find_limit(terms: Coefficient) -> float:
    """The value at z = 0."""
    return float(sum(term.weight / factorial(term.k) for term in terms))


def _evaluate(terms: Coefficient) -> np.ndarray:
    return sum((term.weight * evaluate_phi(term.c * PROBES, term.k)[term.k] for term in terms), 0.0 * PROBES)


def _require_equilibria(scheme: ExponentialRK) -> None:
    """Refuse coefficients that miss sum_j a_ij = c_i phi_1(c_i z) or sum b_j = phi_1(z): then constant N is exact."""
    rows = [*zip(scheme.c, scheme.A, strict=True), (1.0, scheme.b)]
    for i, (c, row) in enumerate(rows):
        label = f"row {i} of `A`" if i < len(scheme.b) else "`b`"
        gap = np.max(np.abs(sum(map(_evaluate, row), 0.0 * PROBES) - c * evaluate_phi(c * PROBES, 1)[1]))
        if not gap <= ROUNDING:
            raise SchemeError(
                f"{scheme.name}: {label} must sum to c phi_1(c z) with c = {c}, so that a constant part is integrated "
                f"exactly; missed by {gap:.1e}"
            )


def _phi(*terms: tuple[float, int], c: float = 1.0) -> Coefficient:
    return tuple(PhiTerm(weight, k, c) for weight, k in terms)


ETD1 = ExponentialRK("etd1", 1, (0.0,), ((),), (_phi((1.0, 1)),), f"{HOCHBRUCK}; exponential Euler")
ETDRK2 = ExponentialRK(
    "etdrk2", 2, (0.0, 1.0), ((), (_phi((1.0, 1)),)), (_phi((1.0, 1), (-1.0, 2)), _phi((1.0, 2))), COX
)
_HALF = _phi((0.5, 1), c=0.5)
ETDRK4 = ExponentialRK(
    "etdrk4", 4, (0.0, 0.5, 0.5, 1.0),
    A=(
        (),
        (_HALF,),
        ((), _HALF),
        ((*_phi((1.0, 1)), *_phi((-1.0, 1), c=0.5)), (), _phi((1.0, 1), c=0.5)),
    ),
    b=(
        _phi((1.0, 1), (-3.0, 2), (4.0, 3)), _phi((2.0, 2), (-4.0, 3)), _phi((2.0, 2), (-4.0, 3)),
        _phi((-1.0, 2), (4.0, 3)),
    ),
    reference=COX,
)  # fmt: skip
