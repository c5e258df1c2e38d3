"""Defects of order conditions, from arrays of coefficients.

Defects are *relative*: |condition| divided by the same sum taken over absolute values, so that large coefficients that
cancel do not dominate.  Exact coefficients rounded to float64 give a few 1e-16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from stepnet.schemes.trees import StageWeights, Tree, densities, is_linear_below, trees, weigh_colourings

TOLERANCE = 2e-15  # relative defect that still counts as zero; the published tables stay below 3e-16 in float64
HIGHEST = 9  # conditions are generated up to this order: 486 trees


class Conditions:
    """The order conditions of one Runge-Kutta method, or of a partitioned one given by two matrices.

    For a Rosenbrock method, `single` is the matrix alpha + gamma.
    """

    def __init__(self, *matrices: np.ndarray, single: np.ndarray | None = None) -> None:
        self._values = StageWeights(*matrices, single=single)
        self._sizes = StageWeights(*map(np.abs, matrices), single=None if single is None else np.abs(single))

    def stage_weights(self, tree: Tree) -> np.ndarray:
        """Phi_i(tree) for all stages i."""
        return self._values(tree)

    def defect(
        self, b: np.ndarray, order: int, which: int = 0, scale: float = 1.0, kept: slice | np.ndarray = slice(None)
    ) -> float:
        """Largest relative defect of sum_i b_i Phi_i(tree) = scale/gamma(tree) over the `kept` trees of an order.

        The roots of partitioned methods use matrix `which`.
        """
        exact = scale / densities(order)[kept]
        size = np.maximum(self._sizes.of_order(order, which)[kept] @ np.abs(b), exact)
        missed = np.abs(self._values.of_order(order, which)[kept] @ b - exact)
        return float(np.max(missed / size, initial=0.0))


def runge_kutta_defect(conditions: Conditions, b: np.ndarray, order: int) -> float:
    """Defect over the trees with `order` vertices."""
    return conditions.defect(b, order)


def partitioned_defect(
    conditions: Conditions, b: np.ndarray, b_hat: np.ndarray, order: int, linear_q: bool = False
) -> float:
    """The same for q' = f(p), p' = g(q): Q_i = q + h sum a_ij f(P_j), P_i = p + h sum a^_ij g(Q_j).

    `conditions` holds (A^, A): the slope f of q is evaluated at the stages of p.  Only trees whose colours alternate
    occur; with `linear_q` (f(p) = p, Nystrom) those with a branching f vanish.
    """
    in_q = np.array([not linear_q or is_linear_below(tree, True) for tree in trees(order)])
    in_p = np.array([not linear_q or is_linear_below(tree, False) for tree in trees(order)])
    return max(conditions.defect(b, order, 0, kept=in_q), conditions.defect(b_hat, order, 1, kept=in_p))


def additive_defect(matrices: Sequence[np.ndarray], weights: Sequence[np.ndarray], order: int) -> float:
    """Largest relative defect over the trees with `order` vertices, each vertex belonging to one of the parts."""
    worst, sizes = 0.0, [np.abs(matrix) for matrix in matrices]
    for tree, gamma in zip(trees(order), densities(order), strict=True):
        values, size = weigh_colourings(tree, matrices), weigh_colourings(tree, sizes)
        for b in weights:
            missed = np.abs(values @ b - 1 / gamma) / np.maximum(size @ np.abs(b), 1 / gamma)
            worst = max(worst, float(np.max(missed)))
    return worst


def find_simplified_order(A: np.ndarray, b: np.ndarray, c: np.ndarray) -> int:
    """The order that Butcher's simplifying assumptions B(p), C(eta) and D(zeta) imply: p <= eta + zeta + 1, 2 eta + 2.

    It needs no trees, so it also holds beyond `HIGHEST`.  Hairer & Wanner (1996), Solving Ordinary Differential
    Equations II, IV.5.
    """
    c = np.where(np.abs(c - 1.0) <= TOLERANCE, 1.0, c)  # row sums, whose rounding would be all that 1 - c^k leaves
    powers = c ** np.arange(4 * len(b) + 2)[:, None]  # row k: c^k; 0^0 = 1

    def holds(terms: np.ndarray, exact: np.ndarray, k: int) -> bool:
        size = np.maximum(np.abs(terms).sum(axis=0), np.abs(exact))
        return bool(np.all(np.abs(terms.sum(axis=0) - exact) <= TOLERANCE * (k + len(b)) * size))

    def count(is_met: Callable[[int], bool], most: int) -> int:
        return next((k - 1 for k in range(1, most + 1) if not is_met(k)), most)

    p = count(lambda k: holds(b * powers[k - 1], np.array(1 / k), k), 4 * len(b))
    eta = count(lambda k: holds((A * powers[k - 1]).T, powers[k] / k, k), 2 * len(b))
    zeta = count(lambda k: holds((b * powers[k - 1])[:, None] * A, b / k - b * powers[k] / k, k), 2 * len(b))
    return min(p, eta + zeta + 1, 2 * eta + 2)


def multistep_defect(alpha: np.ndarray, beta: np.ndarray, derivative: int, order: int) -> float:
    """Relative defect of y_{n+1} = sum alpha_j y_{n-j} + h^d sum beta_j y^(d)_{n-j} on t^m for m < order + d.

    Time is measured from t_{n+1} in steps, so the left-hand side is 1 for m = 0 and 0 otherwise.
    """
    s_alpha, s_beta = -1.0 - np.arange(len(alpha)), -1.0 - np.arange(len(beta))
    worst = 0.0
    for m in range(order + derivative):
        factor = float(np.prod(m - np.arange(derivative)))
        slope_terms = factor * beta * s_beta ** (m - derivative) if m >= derivative else np.zeros_like(beta)
        terms = np.concatenate((alpha * s_alpha**m, slope_terms))
        target = 1.0 if m == 0 else 0.0
        worst = max(worst, abs(terms.sum() - target) / max(np.abs(terms).sum(), 1.0))
    return worst


def find_attained(defect: Callable[[int], float], highest: int = HIGHEST, tolerance: float = TOLERANCE) -> int:
    """The order attained: the last p with `defect(1), ..., defect(p)` all zero to the tolerance."""
    order = 0
    while order < highest and defect(order + 1) <= tolerance:
        order += 1
    return order


@cache
def n_conditions(order: int) -> int:
    """The number of conditions for a Runge-Kutta method of this order."""
    return sum(len(trees(p)) for p in range(1, order + 1))
