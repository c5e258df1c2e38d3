"""Rooted trees and the elementary weights of a method on them.

A tree is the sorted tuple of its subtrees; the single vertex is `()`.  Reference: Hairer, Norsett & Wanner,
*Solving Ordinary Differential Equations I*, II.2; for the alternating weights of partitioned methods *Geometric
Numerical Integration*, III.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import factorial, prod

import numpy as np

Tree = tuple["Tree", ...]


@cache
def trees(order: int) -> tuple[Tree, ...]:
    """All rooted trees with `order` vertices (1, 1, 2, 4, 9, 20, 48, 115, 286, ... of them)."""
    return tuple(sorted(_forests(order - 1, order - 1)))


@cache
def _forests(vertices: int, largest: int) -> tuple[Tree, ...]:
    """All sorted tuples of trees with `vertices` vertices in total and at most `largest` in one tree."""
    if vertices == 0:
        return ((),)
    found = set()
    for size in range(min(vertices, largest), 0, -1):
        for first in trees(size):
            for rest in _forests(vertices - size, size):
                found.add(tuple(sorted((first, *rest))))
    return tuple(found)


@cache
def n_vertices(tree: Tree) -> int:
    """The number of vertices, which is the order of the condition."""
    return 1 + sum(map(n_vertices, tree))


@cache
def density(tree: Tree) -> int:
    """gamma(tree): the exact flow has the elementary weight 1/gamma."""
    return n_vertices(tree) * prod(map(density, tree))


@cache
def symmetry(tree: Tree) -> int:
    """sigma(tree): the number of automorphisms."""
    return prod(symmetry(child) ** tree.count(child) * factorial(tree.count(child)) for child in set(tree))


@cache
def densities(order: int) -> np.ndarray:
    """gamma of all `trees(order)`."""
    return np.array([float(density(tree)) for tree in trees(order)])


@cache
def _position(tree: Tree) -> int:
    """The index of a tree in the list of all trees by order, from 1; 0 denotes no tree."""
    return 1 + sum(len(trees(p)) for p in range(1, n_vertices(tree))) + trees(n_vertices(tree)).index(tree)


@cache
def _subtrees(order: int) -> np.ndarray:
    """The positions of the subtrees of each of `trees(order)`, padded with 0 to rows of equal length."""
    shapes = trees(order)
    rows = np.zeros((len(shapes), max(map(len, shapes))), np.int64)
    for row, tree in zip(rows, shapes, strict=True):
        row[: len(tree)] = [_position(child) for child in tree]
    return rows


class StageWeights:
    """Product over the subtrees of `matrix @ weights(subtree)`, for all trees of an order together.

    A partitioned method for q' = f(p), p' = g(q) has two matrices, which alternate from level to level; an ordinary
    one has a single matrix.  With `single`, this matrix replaces the other one where a vertex has a single subtree, as
    in Rosenbrock methods (Hairer & Wanner, *Solving Ordinary Differential Equations II*, IV.7).
    """

    def __init__(self, *matrices: np.ndarray, single: np.ndarray | None = None) -> None:
        self._matrices = matrices
        self._single = single
        self._seen: dict[tuple[int, int], np.ndarray] = {}

    def of_order(self, order: int, which: int = 0) -> np.ndarray:
        """A row of stage weights for each of `trees(order)`, with matrix `which` at the roots."""
        if (order, which) not in self._seen:
            found = self._multiply_subtrees(self._matrices[which], order, which)
            if self._single is not None:
                is_single = np.array([len(tree) == 1 for tree in trees(order)])
                found[is_single] = self._multiply_subtrees(self._single, order, which)[is_single]
            self._seen[order, which] = found
        return self._seen[order, which]

    def _multiply_subtrees(self, matrix: np.ndarray, order: int, which: int) -> np.ndarray:
        other = (which + 1) % len(self._matrices)
        below = [self.of_order(p, other) @ matrix.T for p in range(1, order)]
        factors = np.concatenate((np.ones((1, len(matrix)), matrix.dtype), *below))
        return factors[_subtrees(order)].prod(axis=1)

    def __call__(self, tree: Tree, which: int = 0) -> np.ndarray:
        """Weights of the stages for one tree."""
        order = n_vertices(tree)
        return self.of_order(order, which)[trees(order).index(tree)]


def weigh_colourings(tree: Tree, matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Stage weights of a tree for every way to give its vertices, except the root, one of the parts of y' = f + g.

    A row for each of them.  Reference: Araujo, Murua & Sanz-Serna (1997), SIAM J. Numer. Anal. 34:1926.
    """
    weights = np.ones((1, len(matrices[0])), matrices[0].dtype)
    for child in tree:
        inner = weigh_colourings(child, matrices)
        below = np.concatenate([inner @ matrix.T for matrix in matrices])
        weights = (weights[:, None] * below[None]).reshape(-1, weights.shape[1])
    return weights


@cache
def is_linear_below(tree: Tree, at_root: bool) -> bool:
    """Whether every vertex on alternate levels (the root's level if `at_root`) has at most one subtree.

    Other trees belong to second derivatives of a linear part, so they vanish for q' = p (Nystrom conditions).
    """
    return (not at_root or len(tree) <= 1) and all(is_linear_below(child, not at_root) for child in tree)
