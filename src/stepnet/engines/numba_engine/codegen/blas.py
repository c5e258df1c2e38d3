"""The BLAS that SciPy provides: the address of its matrix product, and its number of threads."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from stepnet.engines.numba_engine.codegen.fork_safety import register_lock
from stepnet.engines.numba_engine.codegen.vectors import VectorWriter

if TYPE_CHECKING:
    from threadpoolctl import LibController

PLAIN, TRANSPOSED = 78, 84  # N and T
I8, I32 = ir.IntType(8), ir.IntType(32)


@cache
def find_gemm_address(dtype: np.dtype) -> int:
    """The address of BLAS's matrix product."""
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm" if dtype == np.float32 else "dgemm")


@intrinsic
def call_gemm(typing_context, address, ta, tb, m, n, k, A, a0, lda, B, b0, ldb, beta, C, c0, ldc):
    """C = op(A) op(B) + beta C in Fortran order, by the BLAS function at `address`."""
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


class SingleThread:
    """Restricts BLAS to one thread while layers run, so that results do not depend on the number of cores."""

    def __init__(self) -> None:
        self._lock, self._users = register_lock(Lock()), 0
        self._before: list[int] = []

    @cached_property
    def libraries(self) -> list[LibController]:
        """The BLAS libraries that SciPy may call: those of its wheel, else all that are loaded."""
        from scipy.linalg import cython_blas  # loads its BLAS
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().select(user_api="blas").lib_controllers
        package = Path(cython_blas.__file__).parents[1]
        folders = {package, package.with_name("scipy.libs")}  # wheels contain it in one of them
        return [library for library in found if folders & set(Path(library.filepath).parents)] or found

    def __enter__(self) -> None:
        libraries = self.libraries
        with self._lock:
            if self._users == 0:
                self._before = [library.get_num_threads() for library in libraries]
                for library in libraries:
                    _set_threads(library, 1)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for library, before in zip(self.libraries, self._before, strict=True):
                    _set_threads(library, before)


def _set_threads(library: LibController, count: int) -> None:
    """Set the number of threads from any thread; newer versions of threadpoolctl let only one thread do so."""
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(count)
    if release is not None:
        release(force=True)


SINGLE_THREAD = SingleThread()


def describe_blas() -> str:
    """Name, version and number of threads of the BLAS libraries that layers call."""
    known = [
        f"{each.internal_api} {each.get_version()} ({each.num_threads} threads)" for each in SINGLE_THREAD.libraries
    ]
    return ", ".join(known) or "unknown, so its number of threads is not set"
