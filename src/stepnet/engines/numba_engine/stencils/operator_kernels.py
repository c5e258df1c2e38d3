"""Sums of stencils applied to arrays: one sweep over the rows of the grid, in blocks of rows by several threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from stepnet.engines.numba_engine.stencils import grid_sweeps as gs
from stepnet.engines.numba_engine.stencils.stencil_code import ADDED_SLOPE, ONE_SLOPE, Sweep
from stepnet.engines.numba_engine.stencils.sweep_tables import GridTables, build_grid_tables
from stepnet.operators.extension import AxisExtension
from stepnet.operators.linear import StencilOperator
from stepnet.operators.linear_form import AxisTerm, LinearForm, Rate, depends_on_time, list_operator_terms

_POINTERS = (ctypes.c_void_p,) * 7
CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_double, ctypes.c_int64, ctypes.c_int64, *_POINTERS)  # without the GIL
END = 128  # points at each end of a line that are computed apart from its middle; closures reach less far


class RowSweep:
    """One pass over rows of a grid whose addresses are given."""

    def __init__(self, tables: GridTables, dtype: np.dtype, is_added: bool):
        self.sweep = Sweep(tables, ADDED_SLOPE if is_added else ONE_SLOPE, dtype)
        self._function = CALL(gs.sweep_rows.address())
        self._rates = np.ones(64)

    def __call__(self, source: int, target: int, rows: tuple[int, int], n_columns: int | None = None) -> None:
        """Compute rows `rows[0]` to `rows[1] - 1`; `n_columns` is the length of a part of a line."""
        slots, integers = np.zeros(64, np.int64), np.empty(gs.SCRATCH_INTEGERS, np.int64)
        slots[:4] = source, target, *rows
        table, sums, reals = self.sweep.integers, np.zeros(1), np.empty(self.sweep.n_reals)
        if n_columns is not None:
            table = table.copy()
            table[gs.N_COLUMNS] = n_columns
        arrays = slots, table, self.sweep.numbers, self._rates, sums, reals, integers
        self._function(0.0, 1, gs.ROWS, *(array.ctypes.data for array in arrays))


class StencilKernel:
    """A compiled operator on contiguous arrays whose last axes are those of its grid."""

    def __init__(self, tables: GridTables, dtype: np.dtype, is_added: bool):
        self._shape, self._band, self._itemsize = tables.form.shape, tables.band, dtype.itemsize
        self._n_rows = prod(self._shape[:-1])
        self._sweep = RowSweep(tables, dtype, is_added)
        self._middle = RowSweep(_remove_ends(tables), dtype, is_added) if len(self._shape) == 1 else None

    def __call__(self, u: np.ndarray, out: np.ndarray, workers: int) -> None:
        """Store the result in `out`, or add it; the bits do not depend on the number of threads."""
        calls: list[Callable[[], None]] = []
        for source, target in zip(u.reshape(-1, *self._shape), out.reshape(-1, *self._shape), strict=True):
            calls += self._split(source, target, workers)
        if workers == 1 or len(calls) == 1:
            for call in calls:
                call()
            return
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda call: call(), calls))

    def _split(self, u: np.ndarray, out: np.ndarray, workers: int) -> list[Callable[[], None]]:
        """The calls for one field: blocks of rows, or parts of a line."""
        if len(self._shape) == 1 and workers > 1:
            return self._split_line(u, out, workers)
        source, target = u.ctypes.data, out.ctypes.data
        return [partial(self._sweep, source, target, rows) for rows in cut_range(0, self._n_rows, workers)]

    def _split_line(self, u: np.ndarray, out: np.ndarray, workers: int) -> list[Callable[[], None]]:
        """Parts of the middle of a line, and both ends, which are those of a shorter line."""
        size, middle = self._itemsize, self._middle

        def compute_part(first: int, last: int) -> None:
            middle(u.ctypes.data + first * size, out.ctypes.data + first * size, (0, 1), last - first)

        def compute_ends() -> None:
            short, found = (np.concatenate((each[:END], each[-END:])) for each in (u, out))
            self._sweep(short.ctypes.data, found.ctypes.data, (0, 1), 2 * END)
            n_low, n_high = self._band.n_low, self._band.n_high
            out[:n_low], out[len(out) - n_high :] = found[:n_low], found[2 * END - n_high :]

        cuts = cut_range(self._band.n_low, len(u) - self._band.n_high, workers)
        return [compute_ends, *(partial(compute_part, *cut) for cut in cuts)]


def cut_range(first: int, last: int, count: int) -> list[tuple[int, int]]:
    """Up to `count` parts of first, ..., last - 1 of about equal lengths."""
    ends = np.linspace(first, last, count + 1).astype(int).tolist()
    return [(a, b) for a, b in pairwise(ends) if a < b]


def _remove_ends(tables: GridTables) -> GridTables:
    """The same line without special points."""
    header = tables.integers.copy()
    header[[gs.N_ENDS, gs.N_PATCHES]] = 0
    band = tables.band._replace(n_low=0, n_high=0, special=(), special_weights=())
    return tables._replace(integers=header, band=band, patch_rates=())


def build_operator_kernel(
    operator: StencilOperator, dtype: np.dtype, is_transposed: bool = False, is_added: bool = False
) -> StencilKernel | None:
    """The kernel of an operator, or of the transpose of its linear part; None if array functions have to apply it.

    With `is_added` it adds to what it is given.  Along an axis without differences the operator has the stencil 0.
    """
    shape = operator.grid.shape
    terms = list_operator_terms(operator, Rate(0))
    used = {term.extension.axis for term in terms}
    unused = [axis for axis in range(-len(shape), 0) if axis not in used]
    zeros = tuple(AxisTerm(Rate(0), (0,), (0.0,), AxisExtension(axis, 0, 0, None)) for axis in unused)
    form = LinearForm(shape, terms + zeros)
    if not is_transposed and (depends_on_time(form) or (dtype == np.float32 and _has_arrays(form))):
        return None
    tables = build_grid_tables(form, dtype, is_transposed)
    if tables is None or (len(shape) == 1 and shape[0] < 2 * END):
        return None
    return StencilKernel(tables, dtype, is_added)


def _has_arrays(form: LinearForm) -> bool:
    """Whether a boundary has an array of values: it is in double precision, and so is the result."""
    rules = [rule for term in form.terms for rule in term.extension.rules or ()]
    return any(isinstance(rule.boundary.value, np.ndarray) for rule in rules)
