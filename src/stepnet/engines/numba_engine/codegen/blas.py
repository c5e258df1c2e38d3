"""The BLAS that SciPy brings along: the address of its product of matrices, and how many threads it takes."""

from __future__ import annotations

import ctypes
from functools import cache, cached_property
from threading import Lock

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from stepnet.engines.numba_engine.codegen.fork_safety import free_in_children
from stepnet.engines.numba_engine.codegen.vectors import VectorWriter

PLAIN, TRANSPOSED = 78, 84  # N and T
I8, I32 = ir.IntType(8), ir.IntType(32)


@cache
def find_gemm_address(dtype: np.dtype) -> int:
    """The address of BLAS's product of matrices."""
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm" if dtype == np.float32 else "dgemm")


@intrinsic
def call_gemm(typing_context, address, ta, tb, m, n, k, A, a0, lda, B, b0, ldb, beta, C, c0, ldc):
    """C = op(A) op(B) + beta C in Fortran's order, by the BLAS function at `address`."""
    real, whole = C.dtype, types.int64
    signature = types.void(types.uintp, *[whole] * 5, A, whole, whole, B, whole, whole, real, C, whole, whole)

    def generate(context, builder, signature, arguments):
        address, ta, tb, m, n, k, A_, a0, lda, B_, b0, ldb, beta, C_, c0, ldc = arguments
        kit = VectorWriter(context, builder, real)
        kind = kit.kind

        def by_reference(value, narrow=I32):
            slot = cgutils.alloca_once(builder, narrow)
            builder.store(builder.trunc(value, narrow) if narrow in (I32, I8) else value, slot)
            return slot

        def matrix(array_type, array, offset):
            return builder.inttoptr(kit.address(array_type, array, offset), kind.as_pointer())

        one = cgutils.alloca_once_value(builder, ir.Constant(kind, 1.0))
        values = [
            by_reference(ta, I8), by_reference(tb, I8), by_reference(m), by_reference(n), by_reference(k), one,
            matrix(A, A_, a0), by_reference(lda), matrix(B, B_, b0), by_reference(ldb),
            by_reference(beta, kind), matrix(C, C_, c0), by_reference(ldc),
        ]  # fmt: skip
        function = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(address, function.as_pointer()), values)
        return context.get_dummy_value()

    return signature, generate


class _Threads:
    """BLAS keeps to one thread while layers run, so that bits do not depend on the machine's cores."""

    def __init__(self):
        self._lock, self._users, self._before = free_in_children(Lock()), 0, 1

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
