"""Kernels: compiled at first use for the types of their arguments, kept on disk in a versioned place of our own.

Numba's own cache looks at one file's modification time, so it misses edits of a helper elsewhere and recompiles after
every clone.  Ours is keyed by the text of all engine sources, the versions and the CPU (docs/decisions/cache.md).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from functools import cache
from pathlib import Path
from pickle import UnpicklingError

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import njit, typeof, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

ENGINE_SOURCES = Path(__file__).parents[1]
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}, "_nrt": False}
"""Without its runtime (`_nrt`) Numba counts no references, which took a quarter of the time, and cannot allocate."""

NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""For what only kernels call; wrappers take a third of the time to compile."""

inlined = njit(**OPTIONS, **NO_WRAPPERS, forceinline=True)
"""Decorator of the small functions that kernels are made of; they are compiled into their callers."""

compiled = njit(**OPTIONS, **NO_WRAPPERS, forceinline=False)
"""Decorator of larger functions.  Numba hands `forceinline` down to whatever an inlined function calls; with copies of
these in all their callers, LLVM took three times as long."""


def cache_directory() -> Path:
    """Where compiled kernels live: `STEPNET_CACHE_DIR`, else the user's cache, in a folder named by `source_stamp`."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepnet"
    return Path(os.environ.get("STEPNET_CACHE_DIR") or default) / source_stamp()


@cache
def source_stamp() -> str:
    """A hash of every engine source file, the compiler versions and the CPU: whatever the machine code depends on."""
    digest = hashlib.sha256()
    for path in sorted(ENGINE_SOURCES.rglob("*.py")):
        digest.update(path.relative_to(ENGINE_SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    features = llvm.get_host_cpu_features().flatten()
    for fact in (numba.__version__, llvmlite.__version__, np.__version__, llvm.get_host_cpu_name(), features):
        digest.update(fact.encode())
    return digest.hexdigest()[:16]


@cache
def announce_compilation() -> None:
    """Say once per process, on stderr, why the first call takes so long; STEPNET_QUIET=1 silences it."""
    if sys.stderr is not None and os.environ.get("STEPNET_QUIET", "0") in ("", "0"):
        message = "stepnet: compiling kernels for this machine (once; later runs load them from disk) ..."
        print(message, file=sys.stderr, flush=True)


class _Locator(_CacheLocator):
    def __init__(self, function):
        self._function = function

    def get_cache_path(self):
        return str(cache_directory())

    def get_source_stamp(self):
        return source_stamp()

    def get_disambiguator(self):
        return self._function.__module__.rsplit(".", 1)[-1]

    @classmethod
    def from_function(cls, function, source_file):
        return cls(function)


class _KernelCacheImpl(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _KernelCache(FunctionCache):
    _impl_class = _KernelCacheImpl

    def load_overload(self, sig, target_context):
        """As Numba's own, but without filling its registries first: 0.25 s that object code does not need."""
        found = None
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)
        if found is None:
            announce_compilation()
        return found


def _compile_or_forget(owner, compile_it) -> None:
    """Compile with the cache on disk, or in memory only if that place cannot be used."""
    try:
        compile_it()
    except (OSError, EOFError, ValueError, UnpicklingError):  # no such place, or a damaged file in it
        owner._cache = NullCache()
        announce_compilation()
        compile_it()


class Kernel:
    """A function for the driver to call, compiled at its first use for states of float64 or float32.

    Arguments are numbers, writeable C-ordered arrays and named tuples of them, of the same types at every call.
    """

    seconds = 0.0  # spent so far on loading and compiling kernels

    def __init__(self, function):
        self._dispatcher = njit(**OPTIONS)(function)
        self._dispatcher._cache = _KernelCache(function)
        self._entries: dict[np.dtype, object] = {}
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, dtype: np.dtype, *arguments):
        """Run the kernel on arguments for states of this type."""
        entry = self._entries.get(dtype)
        if entry is None:
            started = time.perf_counter()
            signature = tuple(typeof(argument) for argument in arguments)
            _compile_or_forget(self._dispatcher, lambda: self._dispatcher.compile(signature))
            # Called directly: Numba's dispatcher would look up the types of all arguments again, which takes longer
            # than many a solve.
            entry = self._entries[dtype] = self._dispatcher.overloads[signature].entry_point
            Kernel.seconds += time.perf_counter() - started
        return entry(*arguments)


class FieldKernel:
    """A right-hand side of our own as a C function, compiled and kept on disk like a kernel."""

    def __init__(self, function):
        self._function = function
        self._compiled: dict = {}

    @cache  # noqa: B019  as above
    def address(self, dtype: np.dtype) -> int:
        """Where the C function for states of this real type begins."""
        real = types.float32 if dtype == np.float32 else types.float64
        pointers = (types.CPointer(real), types.CPointer(real), types.CPointer(types.float64))
        signature = ((types.float64, *pointers, types.int64), types.int32)
        compiled = CFunc(self._function, signature, locals={}, options={**OPTIONS, "_nrt": True})  # `carray` needs it
        compiled._cache = _KernelCache(self._function)
        rtsys.initialize(cpu_target.target_context)
        _compile_or_forget(compiled, compiled.compile)
        self._compiled[dtype] = compiled  # the address lives as long as this object
        return compiled.address
