"""The description of a linear equation on a grid for its kernels: tables of taps, weights and boundary values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.stencils import grid_sweeps as gs
from stepnet.engines.numba_engine.stencils.axis_bands import AxisBand, build_axis_band, find_pairs, is_wrapped
from stepnet.engines.numba_engine.stencils.row_code import Pairs
from stepnet.operators.array_functions import take
from stepnet.operators.extension import extend
from stepnet.operators.linear_form import LinearForm, Rate


class GridTables(NamedTuple):
    """A linear form, or its transpose, as `header` integers followed by tables, and tables of numbers.

    `n_taps` are the rows that a function of rows in the middle and one of special rows read, `pairs` those of equal
    weights in the middle; `band` is that of the last axis.  `patch_rates` are the rates of the boundary parts.
    """

    form: LinearForm
    integers: np.ndarray
    numbers: np.ndarray
    n_weights: int
    n_taps: tuple[int, int]
    pairs: Pairs
    band: AxisBand
    row_bands: tuple[AxisBand, ...]
    patch_rates: tuple[Rate, ...]


class _TableWriter:
    """Appends tables of weights, in which every term has its own numbers, and of integers."""

    def __init__(self, n_terms: int):
        self.header = np.zeros(gs.HEADER, np.int64)
        self.integers: list[int] = []
        self.columns: list[np.ndarray] = []  # of weights: the numbers of all terms
        self._n_terms = n_terms

    def put_weights(self, terms: list[int], weights: np.ndarray) -> int:
        """Append a table (terms, entries) of the terms of one axis; returns its position."""
        position = len(self.columns)
        for column in np.asarray(weights).T:
            full = np.zeros(self._n_terms)
            full[terms] = column
            self.columns.append(full)
        return position

    def put_integers(self, values) -> int:
        position = gs.HEADER + len(self.integers)
        self.integers += [int(value) for value in values]
        return position


def build_grid_tables(form: LinearForm, dtype: np.dtype, is_transposed: bool = False) -> GridTables | None:
    """The tables of a form, None if an axis is too short or the closures are too wide."""
    shape, ndim, size = form.shape, len(form.shape), np.dtype(dtype).itemsize
    by_axis = [[m for m, term in enumerate(form.terms) if term.extension.axis == a - ndim] for a in range(ndim)]
    if not all(by_axis):
        return None
    bands = [
        build_axis_band(tuple(form.terms[m] for m in terms), n, is_transposed)
        for terms, n in zip(by_axis, shape, strict=True)
    ]
    if any(band is None for band in bands):
        return None
    writer = _TableWriter(len(form.terms))
    header = writer.header
    rows = int(np.prod(shape[:-1]))
    header[[gs.N_TERMS, gs.N_0, gs.N_1]] = (
        len(form.terms),
        (shape[0] if ndim > 1 else 1),
        (shape[1] if ndim == 3 else 1),
    )
    header[[gs.ROW_BYTES, gs.N_COLUMNS]] = size * shape[-1], shape[-1]
    header[[gs.AXIS + gs.AXIS_N, gs.AXIS + gs.AXIS_SIZE + gs.AXIS_N]] = 1
    n_taps, pairs = [1, 1], []
    for axis, band in enumerate(bands[:-1]):
        stride = size * int(np.prod(shape[axis + 1 :]))
        counts = _write_row_axis(writer, gs.AXIS + axis * gs.AXIS_SIZE, by_axis[axis], band, stride)
        pairs += [(n_taps[0] + j, n_taps[0] + k) for j, k in _find_tap_pairs(band)]
        n_taps = [total + count for total, count in zip(n_taps, counts, strict=True)]
    last = bands[-1]
    header[gs.COLUMN_WEIGHTS] = writer.put_weights(by_axis[-1], last.interior)
    for weights in last.special_weights:
        writer.put_weights(by_axis[-1], weights)
    header[gs.N_ENDS] = last.n_low + last.n_high
    header[gs.N_WEIGHTS] = len(writer.columns)
    patches, patch_rates = ([], ()) if is_transposed else _find_patches(form)
    numbers = [np.array(writer.columns).T.ravel()]
    if patches:
        _write_patches(writer, numbers, np.stack(patches).reshape(len(patches), rows, -1), bands)
    if max(n_taps) > gs.MOST_TAPS:
        return None
    integers = np.concatenate((header, np.array(writer.integers, np.int64)))
    n_special = n_taps[1] if ndim > 1 else 0
    return GridTables(
        form, integers, np.concatenate(numbers), len(writer.columns), (n_taps[0], n_special), tuple(pairs), last,
        tuple(bands[:-1]), patch_rates,
    )  # fmt: skip


def _find_tap_pairs(band: AxisBand) -> Pairs:
    """The pairs of equal weights among the rows other than the row itself."""
    own = band.offsets.index(0)
    return tuple((j, k - 1) for j, k in find_pairs(band.offsets, band.interior) if j < own)


def _write_row_axis(writer: _TableWriter, at: int, terms: list[int], band: AxisBand, stride: int) -> tuple[int, int]:
    """The block of an axis of rows; returns the numbers of taps in the middle and of special rows."""
    header, own = writer.header, band.offsets.index(0)
    others = [k for k in range(len(band.offsets)) if k != own]
    count = len(band.special)
    at_rows = [r if r < band.n_low else band.n - count + r for r in range(count)]
    moves = [
        [(j if j >= 0 else band.n + j) - i for j in columns] for i, columns in zip(at_rows, band.special, strict=True)
    ]
    n_special = max([len(others)] + [sum(move != 0 for move in row) for row in moves])
    header[[at + gs.AXIS_N, at + gs.AXIS_LOW, at + gs.AXIS_HIGH]] = band.n, band.n_low, band.n_high
    header[[at + gs.AXIS_BYTES, at + gs.N_INTERIOR, at + gs.N_SPECIAL]] = stride, len(others), n_special
    header[at + gs.IS_WRAPPED] = is_wrapped(band)
    header[at + gs.INTERIOR_OFFSETS] = writer.put_integers(band.offsets[k] for k in others)
    header[at + gs.INTERIOR_WEIGHTS] = writer.put_weights(terms, band.interior[:, others])
    header[at + gs.DIAGONAL] = writer.put_weights(terms, band.interior[:, [own]])
    offsets, weights, diagonal = [], [], []
    for row, table in zip(moves, band.special_weights, strict=True):
        kept = [k for k, move in enumerate(row) if move != 0]
        padding = n_special - len(kept)
        offsets += [row[k] for k in kept] + [0] * padding
        weights.append(np.pad(table[:, kept], ((0, 0), (0, padding))))
        diagonal.append(table[:, [row.index(0)]] if 0 in row else np.zeros((len(terms), 1)))
    header[at + gs.SPECIAL_OFFSETS] = writer.put_integers(offsets)
    header[at + gs.SPECIAL_WEIGHTS] = writer.put_weights(terms, np.concatenate(weights, 1)) if weights else 0
    header[at + gs.SPECIAL_DIAGONAL] = writer.put_weights(terms, np.concatenate(diagonal, 1)) if diagonal else 0
    return len(others), n_special


def _find_patches(form: LinearForm) -> tuple[list[np.ndarray], tuple[Rate, ...]]:
    """What boundary values add to the slopes: for each rate an array on the grid."""
    zero = np.zeros(form.shape)
    found: dict[Rate, np.ndarray] = {}
    for term in form.terms:
        if all(rule.boundary.is_homogeneous for rule in term.extension.rules or ()):
            continue
        extended, axis, n = extend(zero, term.extension, 0.0), term.extension.axis, form.shape[term.extension.axis]
        firsts = (term.extension.below + offset for offset in term.offsets)
        parts = [
            weight * take(extended, axis, first, first + n) for first, weight in zip(firsts, term.weights, strict=True)
        ]
        found[term.rate] = found.get(term.rate, zero) + sum(parts)
    return list(found.values()), tuple(found)


def _write_patches(writer: _TableWriter, numbers: list[np.ndarray], patches: np.ndarray, bands) -> None:
    """Patches (rates, rows, columns): at the special columns of all rows, and whole for special rows."""
    header, last = writer.header, bands[-1]
    ends = [*range(last.n_low), *range(patches.shape[2] - last.n_high, patches.shape[2])]
    shape = tuple(band.n for band in bands[:-1])
    is_special = np.zeros(shape, bool)
    for axis, band in enumerate(bands[:-1]):
        along = np.moveaxis(is_special, axis, 0)
        along[: band.n_low] = True
        along[band.n - band.n_high :] = True
    special = np.flatnonzero(is_special.ravel())
    ordinals = np.zeros(is_special.size, np.int64)
    ordinals[special] = np.arange(special.size)
    header[gs.N_PATCHES], header[gs.ORDINALS] = len(patches), writer.put_integers(ordinals)
    for place, rows in ((gs.EDGES, patches[:, :, ends]), (gs.FULL, patches[:, special])):
        header[place] = sum(map(len, numbers))
        numbers.append(np.ascontiguousarray(rows.transpose(1, 0, 2)).ravel())
