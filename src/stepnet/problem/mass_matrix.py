"""Mass matrices: M of M y' = f(t, y), constant, and its division into differential and algebraic equations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

LARGEST_DENSE = 1500  # rows up to which the null space of a matrix without rows of zeros is computed
RANK = 1e-12  # singular values relative to the largest, rows scaled to one, below which they count as zero


@dataclass(frozen=True, eq=False)
class MassMatrix:
    """A constant matrix M, dense or in a sparse format of SciPy, n by n.

    If M is singular, M y' = f(t, y) is a differential-algebraic equation: with the rows R of independent combinations
    of its equations, and N of those that vanish on M, it is R M y' = R f and 0 = N f.
    """

    given: Any

    @property
    def n(self) -> int:
        """The number of equations."""
        return int(self.given.shape[0])

    @cached_property
    def sparse(self) -> Any:
        """M in compressed row format, without stored zeros."""
        from scipy.sparse import csr_array

        matrix = csr_array(self.given, dtype=float)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, columns and values of the entries that are not zero."""
        found = self.sparse.tocoo()
        return found.row.astype(np.int64), found.col.astype(np.int64), np.ascontiguousarray(found.data)

    @property
    def is_singular(self) -> bool:
        """Whether some of the equations are algebraic."""
        return bool(self.division[1].shape[0])

    @cached_property
    def division(self) -> tuple[Any, Any]:
        """R and N as sparse matrices: unit rows if M has rows of zeros, else orthonormal ones."""
        from scipy.sparse import csr_array, eye_array

        matrix, n = self.sparse, self.n
        is_zero = np.diff(matrix.indptr) == 0
        unit = eye_array(n, format="csr")
        if is_zero.any():
            _require_independent(matrix[~is_zero])
            return unit[~is_zero], unit[is_zero]
        scaled = csr_array(matrix / np.maximum(abs(matrix).max(axis=1).toarray().reshape(-1, 1), 1e-300))
        if _is_regular(scaled):
            return unit, unit[:0]
        if n > LARGEST_DENSE:
            raise ValueError(
                f"`mass` is singular without rows of zeros, and {n} rows are too many to separate its equations; write "
                f"the algebraic equations as rows of zeros"
            )
        left, sizes, _ = np.linalg.svd(scaled.toarray())
        rank = int(np.count_nonzero(sizes > RANK * sizes[0]))
        back = 1.0 / np.maximum(abs(matrix).max(axis=1).toarray().ravel(), 1e-300)
        return csr_array(left[:, :rank].T * back), csr_array(left[:, rank:].T * back)

    @cached_property
    def inverse(self) -> np.ndarray:
        """M^-1 as an array."""
        found = np.linalg.inv(self.sparse.toarray())
        found.flags.writeable = False
        return found

    @cached_property
    def _factors(self) -> Any:
        from scipy.sparse.linalg import splu

        return splu(self.sparse.tocsc())

    def solve(self, v: np.ndarray) -> np.ndarray:
        """M^-1 v."""
        return self._factors.solve(v)

    def solve_transposed(self, v: np.ndarray) -> np.ndarray:
        """M'^-1 v."""
        return self._factors.solve(v, trans="T")


def _require_independent(rows: Any) -> None:
    """Refuse differential equations that depend on each other."""
    count = rows.shape[0]
    if count and not _is_regular(_scale(rows) @ _scale(rows).T):
        raise ValueError(
            f"`mass` has {count} rows that are not zero, and they are linearly dependent; combine the equations so "
            f"that the algebraic ones are rows of zeros"
        )


def _scale(rows: Any) -> Any:
    from scipy.sparse import csr_array

    return csr_array(rows / np.maximum(abs(rows).max(axis=1).toarray().reshape(-1, 1), 1e-300))


def _is_regular(matrix: Any) -> bool:
    """Whether a square matrix has full rank: by its singular values if it is small, else by its factors."""
    if matrix.shape[0] <= LARGEST_DENSE // 4:
        sizes = np.linalg.svd(matrix.toarray(), compute_uv=False)
        return bool(sizes[-1] > RANK * sizes[0])
    from scipy.sparse.linalg import splu

    try:
        diagonal = np.abs(splu(matrix.tocsc()).U.diagonal())
    except RuntimeError:  # exactly singular
        return False
    return bool(diagonal.min() > RANK * diagonal.max())
