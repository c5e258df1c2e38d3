"""The Jacobian arguments of SciPy's `solve_ivp`, and complex states, as arguments of an `ODE`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.validation import whole

BANDS = ("lband", "uband")


def convert_jacobian_options(options: dict[str, Any], n: int) -> dict[str, Any]:
    """`jac`, `jac_sparsity`, `lband` and `uband` as keyword arguments of an `ODE`.

    With `lband` or `uband`, the entry (i, j) of the Jacobian is at [uband + i - j, j] of what `jac` returns.  A pattern
    has no effect if `jac` is given.
    """
    jac, pattern = options.get("jac"), options.get("jac_sparsity")
    bands = [options.get(name) for name in BANDS]
    if all(band is None for band in bands):
        return {"jac": jac} if jac is not None else {"jac_sparsity": pattern}
    lower, upper = (0 if band is None else whole(0, n - 1)(name, band) for name, band in zip(BANDS, bands, strict=True))
    rows, columns = _list_band(n, lower, upper)
    found: dict[str, Any] = {"jac_sparsity": _build_pattern(rows, columns, n)}
    if jac is not None:
        found["jac"] = _unpack(jac, rows, columns, (lower + upper + 1, n), upper)
    return found


def _list_band(n: int, lower: int, upper: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries within a band."""
    offsets = np.repeat(np.arange(-upper, lower + 1), n)
    columns = np.tile(np.arange(n), lower + upper + 1)
    rows = columns + offsets
    is_inside = (rows >= 0) & (rows < n)
    return rows[is_inside], columns[is_inside]


def _build_pattern(rows: np.ndarray, columns: np.ndarray, n: int) -> Any:
    from scipy.sparse import coo_array

    return coo_array((np.ones(len(rows)), (rows, columns)), (n, n)).tocsc()


def _unpack(jac: Any, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], upper: int) -> Any:
    """The Jacobian, constant or a function, from its diagonals."""
    n = shape[1]

    def unpack(packed: Any) -> Any:
        from scipy.sparse import coo_array

        found = np.asarray(packed, float)
        if found.shape != shape:
            raise ValueError(
                f"`jac` must have shape {shape}, the diagonals of `lband` and `uband` in packed form, "
                f"found {found.shape}"
            )
        return coo_array((found[upper + rows - columns, columns], (rows, columns)), (n, n)).tocsc()

    if not callable(jac):
        return unpack(jac)

    def unpacked(t: Any, y: Any, *args: Any) -> Any:
        return unpack(jac(t, y, *args))

    return unpacked


# ---- complex states -------------------------------------------------------------------------------------------------


def write_as_real(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a complex state as one of its real and imaginary parts, entry by entry."""

    def real(t: Any, u: Any, *args: Any) -> Any:
        return np.ascontiguousarray(function(t, u.view(complex), *args), complex).view(float)

    return real


def take_complex(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a complex state, with any result, as one of its real and imaginary parts."""

    def real(t: Any, u: Any, *args: Any) -> Any:
        return function(t, np.ascontiguousarray(u).view(complex), *args)

    return real


def convert_complex_jacobian(found: dict[str, Any]) -> dict[str, Any]:
    """The Jacobian of a complex differentiable function as that of the real and imaginary parts.

    An entry a + ib becomes the block ((a, -b), (b, a)).
    """
    jac, pattern = found.get("jac"), found.get("jac_sparsity")
    if jac is None:
        return found if pattern is None else {"jac_sparsity": np.kron(_as_dense(pattern) != 0, np.ones((2, 2)))}
    if callable(jac):
        return {"jac": lambda t, u, *args: _write_blocks(jac(t, u.view(complex), *args))}
    return {"jac": _write_blocks(jac)}


def _as_dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)


def _write_blocks(matrix: Any) -> np.ndarray:
    dense = _as_dense(matrix).astype(complex)
    return np.kron(dense.real, np.eye(2)) + np.kron(dense.imag, np.array([[0.0, -1.0], [1.0, 0.0]]))
