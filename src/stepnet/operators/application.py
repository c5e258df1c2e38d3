"""Operators applied by compiled kernels: which arrays they take, and where the kernels come from.

The engine that compiles them depends on the operators and loads a compiler, so it is not imported here but loaded by
name at the first large array.  The results depend on the arguments alone, so engines may trace code that calls these
functions.
"""

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.operators.array_functions import NUMPY, ArrayFunctions
from stepnet.records import validate_thread_count

ENGINE = "stepnet.engines.numba_engine"
LEAST_POINTS = 2**16  # of a grid; for fewer, a kernel saves less than a millisecond
PRECISIONS = (np.dtype(np.float32), np.dtype(np.float64))


class OperatorKernel(Protocol):
    """A compiled operator on contiguous arrays."""

    def __call__(self, u: np.ndarray, out: np.ndarray, workers: int) -> None:
        """Store the result in `out`, or add it, with `workers` threads."""


_kernels: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def apply_stencils(operator: Any, u: Any, functions: ArrayFunctions = NUMPY, workers: Any = 1) -> np.ndarray | None:
    """operator(u) of a sum of stencils by a kernel; None if array functions must be used.

    Kernels take large arrays of float32 or float64 of NumPy, and boundary values that do not depend on time.
    """
    return _apply(operator, u, functions, workers, False)


def apply_transposed(operator: Any, w: np.ndarray, workers: Any = 1) -> np.ndarray | None:
    """The transpose of the linear part, as `apply_stencils`."""
    return _apply(operator, w, NUMPY, workers, True)


def apply_stack(parts: tuple[Any, ...], u: Any, functions: ArrayFunctions, workers: Any) -> np.ndarray | None:
    """The results of several operators, stacked."""
    kernels = _find_all(parts, u, functions, workers, [False] * len(parts))
    if kernels is None:
        return None
    u, out = np.ascontiguousarray(u), np.empty((len(parts), *u.shape), u.dtype)
    for kernel, each in zip(kernels, out, strict=True):
        kernel(u, each, workers)
    return out


def apply_sum(parts: tuple[Any, ...], u: Any, functions: ArrayFunctions, workers: Any) -> np.ndarray | None:
    """The sum of the results of operators, each on its component."""
    kernels = _find_all(parts, u, functions, workers, [k > 0 for k in range(len(parts))])
    if kernels is None:
        return None
    u, out = np.ascontiguousarray(u), np.empty(u.shape[1:], u.dtype)
    for kernel, each in zip(kernels, u, strict=True):
        kernel(each, out, workers)
    return out


def apply_diffusion(
    operator: Any, u: Any, k: Any, t: Any, functions: ArrayFunctions, workers: Any
) -> np.ndarray | None:
    """div(k grad u) at time t by a kernel; None if array functions must be used."""
    workers = validate_thread_count(workers)
    is_plain = _is_large(operator, u, functions) and _is_large(operator, k, functions)
    if not is_plain or u.dtype != k.dtype or not u.shape == k.shape == operator.grid.shape:
        return None
    known = _kernels.setdefault(operator, {})
    if u.dtype not in known:
        known[u.dtype] = import_module(ENGINE).build_diffusion_kernel(operator, u.dtype)
    return known[u.dtype](u, k, t, workers)


def _apply(operator: Any, u: Any, functions: ArrayFunctions, workers: Any, is_transposed: bool) -> np.ndarray | None:
    workers = validate_thread_count(workers)
    if not _is_large(operator, u, functions):
        return None
    kernel = _find_kernel(operator, u.dtype, is_transposed, False)
    if kernel is None:
        return None
    u, out = np.ascontiguousarray(u), np.empty(u.shape, u.dtype)
    kernel(u, out, workers)
    return out


def _find_all(
    parts: tuple[Any, ...], u: Any, functions: ArrayFunctions, workers: Any, are_added: list[bool]
) -> list[OperatorKernel] | None:
    """The kernels of all parts, None if one has none."""
    validate_thread_count(workers)
    if not all(_is_large(part, u, functions) for part in parts):
        return None
    found = [_find_kernel(part, u.dtype, False, added) for part, added in zip(parts, are_added, strict=True)]
    kernels = [each for each in found if each is not None]
    return kernels if len(kernels) == len(parts) else None


def _is_large(operator: Any, u: Any, functions: ArrayFunctions) -> bool:
    is_array = functions is NUMPY and type(u) is np.ndarray and u.dtype in PRECISIONS
    return is_array and prod(operator.grid.shape) >= LEAST_POINTS


def _find_kernel(operator: Any, dtype: np.dtype, is_transposed: bool, is_added: bool) -> OperatorKernel | None:
    known = _kernels.setdefault(operator, {})
    key = dtype, is_transposed, is_added
    if key not in known:
        known[key] = import_module(ENGINE).build_operator_kernel(operator, dtype, is_transposed, is_added)
    return known[key]
