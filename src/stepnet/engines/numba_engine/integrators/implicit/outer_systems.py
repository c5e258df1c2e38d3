"""Linear systems solved outside the kernels: LAPACK for large dense ones, SciPy's sparse LU, and matrix-free GMRES.

The kernel calls a C function f(h, y, x, p, m): for m > 0 it factorises M - h lambda df/dy for the shift lambda number
m - 1, for m < 0 it replaces x by the solution with the shift number -m - 1.  A result other than 0 means failure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.problem import Gmres

UNSOLVED = 3  # singular, or not converged


class Factors(Protocol):
    """A factorised matrix."""

    def solve(self, x: np.ndarray) -> np.ndarray | None:
        """The solution, None if there is none."""


class MatrixEntries(NamedTuple):
    """Places and values of the entries of df/dy, which change from call to call, and of the mass matrix."""

    n: int
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    mass_rows: np.ndarray
    mass_columns: np.ndarray
    mass_values: np.ndarray


class OuterSystems:
    """The C function of the systems of a run; an exception is stored in `.exception`, as for right-hand sides.

    `factorise(factor)` returns the factors of M - factor df/dy, None if it is singular.
    """

    def __init__(self, factorise: Callable[[complex], Factors | None], shifts: np.ndarray, vectors):
        self.exception: BaseException | None = None
        self.has_stopped = False
        self.is_stopped = lambda: False
        self._factorise, self._shifts, self._vectors = factorise, shifts, vectors
        self._factors: list[Factors | None] = [None] * len(shifts)
        self.function = SIGNATURE(self._call)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def _call(self, h, y, x, p, m) -> int:
        try:
            if self.is_stopped():
                self.has_stopped = True
                return 2
            if m > 0:
                shift = self._shifts[m - 1]
                self._factors[m - 1] = None
                self._factors[m - 1] = self._factorise(h * (shift.real if shift.imag == 0.0 else shift))
                return 0 if self._factors[m - 1] is not None else UNSOLVED
            return self._solve(-m - 1)
        except BaseException as exception:  # ctypes would print and ignore it, even a KeyboardInterrupt
            self.exception = exception
            return 1

    def _solve(self, m: int) -> int:
        factors, vector = self._factors[m], self._vectors[int(self._shifts[m].imag != 0.0)]
        solution = None if factors is None else factors.solve(vector)
        if solution is None:
            return UNSOLVED
        vector[:] = solution
        return 0


# ---- dense ----------------------------------------------------------------------------------------------------------


class DenseFactors(NamedTuple):
    """LU factors by LAPACK."""

    lu: np.ndarray
    pivots: np.ndarray
    getrs: Callable

    def solve(self, x: np.ndarray) -> np.ndarray:
        return self.getrs(self.lu, self.pivots, x)[0]


def factorise_dense(entries: MatrixEntries, factor: complex) -> DenseFactors | None:
    """The factors of M - factor df/dy."""
    from scipy.linalg import get_lapack_funcs

    matrix = np.zeros((entries.n, entries.n), np.result_type(factor, float), order="F")
    np.add.at(matrix, (entries.rows, entries.columns), -factor * entries.values[: len(entries.rows)])
    _add_mass(matrix, entries)
    if not np.isfinite(matrix).all():
        return None
    getrf, getrs = get_lapack_funcs(("getrf", "getrs"), (matrix,))
    lu, pivots, info = getrf(matrix, overwrite_a=True)
    return DenseFactors(lu, pivots, getrs) if info == 0 else None


def _add_mass(matrix: np.ndarray, entries: MatrixEntries) -> None:
    if len(entries.mass_rows):
        np.add.at(matrix, (entries.mass_rows, entries.mass_columns), entries.mass_values)
    else:
        matrix[np.diag_indices(entries.n)] += 1.0


# ---- sparse ---------------------------------------------------------------------------------------------------------


class SparseMatrices:
    """M - factor df/dy in compressed column format: the places are found once, the values for each factor."""

    def __init__(self, entries: MatrixEntries):
        n, unit = entries.n, np.arange(entries.n)
        is_unit = len(entries.mass_rows) == 0
        mass_rows, mass_columns = (unit, unit) if is_unit else (entries.mass_rows, entries.mass_columns)
        keys = np.concatenate((entries.columns * n + entries.rows, mass_columns * n + mass_rows))
        places, self._where = np.unique(keys, return_inverse=True)
        self._indices = (places % n).astype(np.int32)
        self._starts = np.searchsorted(places, n * np.arange(n + 1)).astype(np.int32)
        self._n, self._values, self._n_entries = n, entries.values, len(entries.rows)
        mass = np.ones(n) if is_unit else entries.mass_values
        self._mass = np.bincount(self._where[self._n_entries :], mass, len(places))
        turned = np.sort(places % n * n + places // n)
        self._ordering = ORDERING if np.array_equal(turned, places) else "COLAMD"

    def factorise(self, factor: complex) -> Factors | None:
        """The factors by SuperLU."""
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        where, values = self._where[: self._n_entries], self._values[: self._n_entries]
        data = self._mass - factor * np.bincount(where, values, len(self._mass))
        if not np.isfinite(data).all():
            return None
        matrix = csc_array((data, self._indices, self._starts), (self._n, self._n))
        try:
            return splu(matrix, permc_spec=self._ordering)
        except RuntimeError:  # exactly singular
            return None


ORDERING = "MMD_AT_PLUS_A"  # for places that are symmetric, as those of equations in space: half of the fill


# ---- matrix-free ----------------------------------------------------------------------------------------------------


class LinearisationPoint:
    """Where df/dy is evaluated: set by the kernel's call for the entries of df/dy, of which there are none."""

    def __init__(self) -> None:
        self.t, self.y = 0.0, np.zeros(0)


class GmresSystem(NamedTuple):
    """M - factor df/dy at a point, by products, with its preconditioner."""

    operator: Any
    preconditioner: Any
    settings: Gmres

    def solve(self, x: np.ndarray) -> np.ndarray | None:
        from scipy.sparse.linalg import gmres

        if not np.isfinite(x).all():
            return None
        how = self.settings
        restart = min(how.restart, how.max_iterations, x.size)
        found, info = gmres(
            self.operator, x, rtol=how.rtol, atol=0.0, restart=restart, maxiter=-(-how.max_iterations // restart),
            M=self.preconditioner,
        )  # fmt: skip
        if info == 0:  # SciPy does not test the result of the last cycle
            return found
        rest = np.linalg.norm(self.operator.matvec(found) - x)
        return found if rest <= how.rtol * np.linalg.norm(x) else None


class MatrixFreeSystems:
    """Builds the systems of GMRES from products (df/dy) v at the current point."""

    def __init__(self, settings: Gmres, columns: Callable, args: tuple, mass: Any, shape: tuple[int, ...], point):
        self._settings, self._columns, self._args, self._mass, self._shape = settings, columns, args, mass, shape
        self._point: LinearisationPoint = point

    def factorise(self, factor: complex) -> GmresSystem:
        """The system for a factor, with the user's preconditioner for it."""
        from scipy.sparse.linalg import LinearOperator

        t, y, columns, mass = self._point.t, self._point.y, self._columns, self._mass

        def multiply(v):
            v = np.ravel(v)
            parts = np.column_stack((v.real, v.imag)) if np.iscomplexobj(v) else v[:, None]
            product = columns(t, y, parts)
            product = product[:, 0] + 1j * product[:, 1] if np.iscomplexobj(v) else product[:, 0]
            return (v if mass is None else mass @ v) - factor * product

        dtype = np.result_type(factor, float)
        operator = LinearOperator((y.size, y.size), matvec=multiply, dtype=dtype)
        return GmresSystem(operator, self._build_preconditioner(t, y, factor, dtype), self._settings)

    def _build_preconditioner(self, t: float, y: np.ndarray, factor: complex, dtype) -> Any:
        from scipy.sparse.linalg import LinearOperator, aslinearoperator

        if self._settings.preconditioner is None:
            return None
        given = self._settings.preconditioner(t, y.reshape(self._shape), factor, *self._args)
        if not hasattr(given, "shape"):
            if not callable(given):
                raise TypeError(
                    f"`preconditioner` must return a function, a matrix or a LinearOperator, found "
                    f"{type(given).__name__}"
                )
            function = given
            given = LinearOperator((y.size, y.size), matvec=lambda v: np.ravel(function(np.ravel(v))), dtype=dtype)
        if tuple(given.shape) != (y.size, y.size):
            raise ValueError(
                f"`preconditioner` must return an operator of shape {(y.size, y.size)}, found {tuple(given.shape)}"
            )
        return aslinearoperator(given)
