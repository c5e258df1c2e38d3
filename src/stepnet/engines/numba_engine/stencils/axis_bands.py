"""The matrices of differences along one axis as bands: rows that are all alike, and special rows near both ends.

The transpose of such a matrix is one again, so the kernels that apply operators also apply their transposes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.operators.extension import build_extension_matrix
from stepnet.operators.linear_form import AxisTerm

MOST_SPECIAL = 24  # rows at one end; closures of order 8 take 8


class AxisBand(NamedTuple):
    """Matrices along one axis with a common pattern, one for each of `terms`.

    Row i of the middle reads i + offsets[j] with the weights interior[m, j].  Special row r reads the indices
    special[r], counted from the end if negative, with the weights special_weights[r][m]; rows are counted from the
    beginning for r < n_low, then up to the end of the axis.
    """

    n: int
    n_low: int
    n_high: int
    offsets: tuple[int, ...]
    interior: np.ndarray
    special: tuple[tuple[int, ...], ...]
    special_weights: tuple[np.ndarray, ...]


def is_wrapped(band: AxisBand) -> bool:
    """Whether all special rows are rows of the middle that reach around a periodic axis."""
    rows = [*range(band.n_low), *range(-band.n_high, 0)]
    return all(
        len(columns) == len(band.offsets)
        and all((i + offset - j) % band.n == 0 for offset, j in zip(band.offsets, columns, strict=True))
        and np.array_equal(weights, band.interior)
        for i, columns, weights in zip(rows, band.special, band.special_weights, strict=True)
    )


def find_pairs(offsets: tuple[int, ...], weights: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The places of opposite offsets with equal weights (terms, offsets), whatever the rates of the terms are."""
    found = ((k, offsets.index(-offset)) for k, offset in enumerate(offsets) if offset < 0 and -offset in offsets)
    return tuple((j, k) for j, k in found if np.array_equal(weights[:, j], weights[:, k]))


def build_axis_matrix(term: AxisTerm, n: int) -> np.ndarray:
    """The dense matrix of a term, without its rate, along an axis of length n."""
    extension = term.extension
    rows = np.zeros((n, n + extension.below + extension.above))
    at = np.arange(n)
    for offset, weight in zip(term.offsets, term.weights, strict=True):
        rows[at, at + extension.below + offset] += weight
    return rows @ build_extension_matrix(extension, n)


def build_axis_band(terms: tuple[AxisTerm, ...], n: int, is_transposed: bool = False) -> AxisBand | None:
    """The band of terms along the same axis, None if the axis is too short for it.

    It is read off a matrix of a shorter axis, on which closures and wrap-around look the same.
    """
    reach = max(max(*map(abs, term.offsets), term.extension.below, term.extension.above) for term in terms)
    m = min(n, 4 * MOST_SPECIAL + 2 * reach)
    matrices = np.array([build_axis_matrix(term, m) for term in terms])
    if is_transposed:
        matrices = matrices.transpose(0, 2, 1).copy()
    middle = m // 2
    used = np.flatnonzero(np.any(matrices[:, middle] != 0, axis=0))
    offsets = tuple(sorted({0, *(used - middle).tolist()}))
    is_plain = np.array([_is_like_middle(matrices, i, middle, offsets) for i in range(m)])
    n_low = int(np.argmax(is_plain)) if is_plain.any() else m
    n_high = int(np.argmax(is_plain[::-1]))
    is_short = n_low + n_high > min(m - 1, 2 * MOST_SPECIAL) or not is_plain[n_low : m - n_high].all()
    if is_short or (m < n and max(n_low, n_high) > MOST_SPECIAL):
        return None
    rows = [*range(n_low), *range(m - n_high, m)]
    special, weights = [], []
    for i in rows:
        columns = _list_columns(matrices[:, i], i, offsets)
        weights.append(matrices[:, i, columns])
        special.append(tuple(int(j) if j < m // 2 else int(j) - m for j in columns))
    interior = matrices[:, middle, [middle + offset for offset in offsets]]
    return AxisBand(n, n_low, n_high, offsets, interior, tuple(special), tuple(weights))


def _list_columns(rows: np.ndarray, i: int, offsets: tuple[int, ...]) -> np.ndarray:
    """The columns that row i reads; a wrapped row has them in the order of the middle, for the same rounding."""
    columns, wrapped = np.flatnonzero(np.any(rows != 0, axis=0)), (i + np.array(offsets)) % rows.shape[1]
    is_wrapped = np.unique(wrapped).size == wrapped.size and np.isin(columns, wrapped).all()
    if is_wrapped:
        return wrapped
    return columns if columns.size else np.array([i])


def _is_like_middle(matrices: np.ndarray, i: int, middle: int, offsets: tuple[int, ...]) -> bool:
    """Whether row i is the middle row moved to i; weights of closures may equal those of the middle up to rounding."""
    m = matrices.shape[1]
    if i + offsets[0] < 0 or i + offsets[-1] >= m:
        return False
    moved = np.zeros_like(matrices[:, i])
    moved[:, [i + offset for offset in offsets]] = matrices[:, middle, [middle + offset for offset in offsets]]
    return bool(np.array_equal(moved, matrices[:, i]))
