"""The BLAS that SciPy brings along: the address of its product of matrices, and how many threads it takes."""

from __future__ import annotations

import ctypes
from functools import cache, cached_property
from threading import Lock

import numpy as np
from numba.extending import get_cython_function_address


@cache
def gemm_address(dtype: np.dtype) -> int:
    """The address of BLAS's product of matrices."""
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm" if dtype == np.float32 else "dgemm")


class _Threads:
    """BLAS keeps to one thread while layers run, so that bits do not depend on the machine's cores."""

    def __init__(self):
        self._lock, self._users, self._before = Lock(), 0, 1

    @cached_property
    def _functions(self):
        from scipy.linalg import cython_blas

        library = ctypes.CDLL(cython_blas.__file__)
        for prefix in ("scipy_openblas", "openblas"):
            if hasattr(library, f"{prefix}_set_num_threads"):
                return getattr(library, f"{prefix}_get_num_threads"), getattr(library, f"{prefix}_set_num_threads")
        return (lambda: 1), (lambda n: None)  # a BLAS without threads of its own, or one we cannot ask

    def __enter__(self) -> None:
        get, put = self._functions
        with self._lock:
            if self._users == 0:
                self._before = get()
                put(1)
            self._users += 1

    def __exit__(self, *_) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._functions[1](self._before)


SINGLE_THREAD = _Threads()
