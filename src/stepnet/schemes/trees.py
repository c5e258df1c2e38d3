"""Rooted trees and the elementary weights of a method on them.

A tree is the sorted tuple of its subtrees; the single vertex is `()`.  Reference: Hairer, Norsett & Wanner,
*Solving Ordinary Differential Equations I*, II.2; for the alternating weights of partitioned methods *Geometric
Numerical Integration*, III.2.
"""

from __future__ import annotations

from functools import cache
from math import factorial, prod

import numpy as np

Tree = tuple


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


class StageWeights:
    """Product over the subtrees of `matrix @ weights(subtree)`, for one method, every tree once.

    A partitioned method for q' = f(p), p' = g(q) has two matrices, which alternate from level to level; an ordinary
    one has a single matrix.
    """

    def __init__(self, *matrices: np.ndarray):
        self._matrices = matrices
        self._seen: dict[tuple[Tree, int], np.ndarray] = {}

    def __call__(self, tree: Tree, which: int = 0) -> np.ndarray:
        """Weights of the stages for a tree whose root reads matrix `which`."""
        if (tree, which) not in self._seen:
            matrix = self._matrices[which]
            weight = np.ones(matrix.shape[0])
            for child in tree:
                weight = weight * (matrix @ self(child, (which + 1) % len(self._matrices)))
            self._seen[tree, which] = weight
        return self._seen[tree, which]


@cache
def is_linear_below(tree: Tree, at_root: bool) -> bool:
    """Whether every vertex on alternate levels (the root's level if `at_root`) has at most one subtree.

    Other trees belong to second derivatives of a linear part, so they vanish for q' = p (Nystrom conditions).
    """
    return (not at_root or len(tree) <= 1) and all(is_linear_below(child, not at_root) for child in tree)
