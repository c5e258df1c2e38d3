"""Partitioned Runge-Kutta schemes for (q, p), symplectic for every Hamiltonian: the record, and the Lobatto pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.collocation import build_lobatto_iiia, build_lobatto_iiib
from stepnet.schemes.implicit import A_LOBATTO_COUNT
from stepnet.schemes.order import HIGHEST, TOLERANCE, additive_defect, find_simplified_order
from stepnet.schemes.splitting import TableauPair
from stepnet.schemes.tableau import AN_ORDER, floats, freeze, require_finite
from stepnet.validation import check, sequence, text

GEOMETRIC = "Hairer, Lubich & Wanner (2006), Geometric Numerical Integration"
ROUNDING = 1e-14  # of the entries of a symplectic pair, which are at most of size 1


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class PartitionedRK:
    """Q_i = q + h sum_j a_ij dq(t_j, Q_j, P_j),  P_i = p + h sum_j a^_ij dp(t_j, Q_j, P_j),  t_j = t + c_j h,

    and both halves of the new state have the weights b; c are the row sums of `A`.  The record is for symplectic pairs,
    b_i a^_ij + b_j a_ji = b_i b_j, which preserve the symplectic form of Hamiltonians that need not be separable
    (Hairer, Lubich & Wanner (2006), VI.4).

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    A, A_hat : tuple
        Rows of the matrices of q and of p.
    b : tuple of float
        Weights.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> euler = sn.schemes.PartitionedRK("euler_pair", 1, ((1.0,),), ((0.0,),), (1.0,), "de Vogelaere (1956)")
    >>> sn.schemes.conditions.is_symplectic(euler)
    True
    """

    name: str
    order: int
    A: tuple[tuple[float, ...], ...]
    A_hat: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    reference: str

    def __post_init__(self) -> None:
        rows = sequence(floats)
        freeze(self, A=rows("A", self.A), A_hat=rows("A_hat", self.A_hat), b=floats("b", self.b))
        s = len(self.b)
        for label, matrix in (("A", self.A), ("A_hat", self.A_hat)):
            if s == 0 or [len(row) for row in matrix] != [s] * s:
                raise SchemeError(
                    f"{self.name}: `{label}` must have {s} rows with {s} entries each, because `b` has {s}; "
                    f"found rows with {[len(row) for row in matrix]} entries"
                )
            require_finite(self.name, **{label: [x for row in matrix for x in row]})
        require_finite(self.name, b=self.b)
        if self.order < 1:
            raise SchemeError(f"{self.name}: `order` must be at least 1, found {self.order}")
        _require_pair_order(self)
        defect = find_symplecticity_defect(self.tableaux)
        if not defect <= ROUNDING:
            raise SchemeError(
                f"{self.name}: the pair must be symplectic, b_i a^_ij + b_j a_ji = b_i b_j, found a defect of "
                f"{defect:.1e}; change `A_hat`, or build an `ImplicitRK` from `A`"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def tableaux(self) -> TableauPair:
        """Both tableaux as arrays."""
        b = np.array(self.b, float)
        pair = TableauPair(b, np.array(self.A, float), b, np.array(self.A_hat, float))
        for array in pair:
            array.flags.writeable = False
        return pair

    @cached_property
    def c(self) -> tuple[float, ...]:
        """The nodes."""
        return tuple(self.tableaux.A.sum(axis=1).tolist())


def find_pair_defect(pair: TableauPair, order: int) -> float:
    """Largest relative defect over the trees with `order` vertices, each of which belongs to q or to p."""
    return additive_defect([pair.A, pair.A_hat], [pair.b], order)


def find_symplecticity_defect(pair: TableauPair) -> float:
    """max |b_i a^_ij + b_j a_ji - b_i b_j|."""
    b, A, b_hat, A_hat = pair
    return float(np.max(np.abs(b[:, None] * A_hat + (b_hat[:, None] * A).T - np.outer(b, b_hat))))


def is_symmetric_pair(pair: TableauPair) -> bool:
    """Whether a step with -h inverts a step with h."""
    matrices = (pair.A, pair.A_hat)
    return all(np.allclose(A + A[::-1, ::-1], pair.b[None], rtol=0, atol=1e-12) for A in matrices)


def find_simplified_pair_order(pair: TableauPair) -> int:
    """The order that B(p), and C(eta) and D(zeta) of both matrices imply; that of a symmetric pair is even.

    The proof for one matrix (Hairer, Norsett & Wanner I, II.7) removes the vertices of a tree one by one, and so holds
    for trees whose vertices belong to either of them.
    """
    c = pair.A.sum(axis=1)
    found = min(find_simplified_order(A, pair.b, c) for A in (pair.A, pair.A_hat))
    return found + found % 2 if is_symmetric_pair(pair) else found


def _require_pair_order(scheme: PartitionedRK) -> None:
    """By trees up to `HIGHEST`, above it by the simplifying assumptions."""
    for p in range(1, min(scheme.order, HIGHEST) + 1):
        defect = find_pair_defect(scheme.tableaux, p)
        if not defect <= TOLERANCE:
            raise SchemeError(
                f"{scheme.name}: promises order {scheme.order}, but a condition of order {p} is missed by {defect:.1e} "
                f"(relative; up to {TOLERANCE:.0e} is rounding)"
            )
    if scheme.order > HIGHEST and find_simplified_pair_order(scheme.tableaux) < scheme.order:
        raise SchemeError(
            f"{scheme.name}: promises order {scheme.order}, but the simplifying assumptions, which are checked above "
            f"order {HIGHEST}, imply only {find_simplified_pair_order(scheme.tableaux)}"
        )


@check(stages=A_LOBATTO_COUNT)
def lobatto_iiia_iiib(stages: int) -> PartitionedRK:
    """Build the pair Lobatto IIIA-IIIB, of order 2s - 2: symplectic and symmetric, for Hamiltonians of any form.

    q is advanced by Lobatto IIIA and p by Lobatto IIIB.  With two stages it is the generalised Stormer-Verlet scheme,
    and Verlet's scheme where the Hamiltonian is separable.

    Parameters
    ----------
    stages : int
        Number of stages s, at least 2.

    Returns
    -------
    PartitionedRK

    Examples
    --------
    >>> import stepnet as sn
    >>> pair = sn.schemes.lobatto_iiia_iiib(3)
    >>> pair.order, sn.schemes.conditions.is_symplectic(pair)
    (4, True)
    """
    nodes, hat = build_lobatto_iiia(stages), build_lobatto_iiib(stages)
    reference = f"Jay (1996), SIAM J. Numer. Anal. 33:368; {GEOMETRIC}, II.2 and VI.4"
    return PartitionedRK(f"lobatto_iiia_iiib({stages})", 2 * stages - 2, nodes.A, hat.A, nodes.b, reference)


LOBATTO_IIIA_IIIB2 = replace(lobatto_iiia_iiib(2), name="lobatto_iiia_iiib2")
LOBATTO_IIIA_IIIB4 = replace(lobatto_iiia_iiib(3), name="lobatto_iiia_iiib4")
LOBATTO_IIIA_IIIB6 = replace(lobatto_iiia_iiib(4), name="lobatto_iiia_iiib6")
