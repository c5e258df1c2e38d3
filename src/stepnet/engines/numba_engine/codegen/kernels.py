"""Kernels: compiled at first use for the types of their arguments, stored on disk (`disk_cache`).

Numba's own cache checks the modification time of a single file, so it misses changes in other modules, recompiles
after every clone, and trusts any file that it finds.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numba import njit, typeof, types
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from stepnet.engines.numba_engine.codegen import disk_cache

FLOAT64 = np.dtype(np.float64)
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}, "_nrt": False}
"""Without its runtime (`_nrt`) Numba does not count references (a quarter of the time), and cannot allocate."""

NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only kernels call; compiling wrappers takes a third of the time."""

inlined = njit(**OPTIONS, **NO_WRAPPERS, forceinline=True)
"""Decorator of the small functions that kernels are made of; they are compiled into their callers."""

compiled = njit(**OPTIONS, **NO_WRAPPERS, forceinline=False)
"""Decorator of larger functions.  Numba applies `forceinline` also to the functions that an inlined one calls; with
copies of these in all their callers, LLVM took three times as long."""


@cache
def announce_compilation() -> None:
    """Announce once per process, on stderr, why the first call takes so long; STEPNET_QUIET=1 silences it."""
    if sys.stderr is not None and os.environ.get("STEPNET_QUIET", "0") in ("", "0"):
        message = "stepnet: compiling kernels for this machine (once; later runs load them from disk) ..."
        print(message, file=sys.stderr, flush=True)


class _KernelCache:
    """The cache interface of Numba's dispatchers on this package's files, one for each function and signature."""

    def __init__(self, function):
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._bytecode = function.__code__.co_code

    def load_overload(self, signature, target_context):
        """The compiled function, if it is cached.

        Numba would fill its registries first, which takes 0.25 s and is not needed for object code.
        """
        data = disk_cache.read(self._file_name(signature, target_context.codegen()))
        if data is None:
            announce_compilation()
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, signature, compiled_result) -> None:
        """Store a compiled function for later processes, unless it contains addresses of this one."""
        if not compiled_result.library.has_dynamic_globals:
            name = self._file_name(signature, compiled_result.codegen)
            disk_cache.write(name, dumps(compiled_result._reduce()))

    def _file_name(self, signature, codegen) -> str:
        key = repr((signature, codegen.magic_tuple(), self._bytecode))
        return f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kernel"


def as_argument(array: np.ndarray, dtype=None) -> np.ndarray:
    """The array if a kernel can take it, else a C-ordered, aligned and writeable copy in native byte order."""
    wanted = (array.dtype if dtype is None else np.dtype(dtype)).newbyteorder("=")
    return array if array.flags.carray and array.dtype == wanted else np.array(array, wanted, order="C")


def _describe(argument):
    """What machine code assumes about an argument: its type, or dtype and number of dimensions of an array."""
    if isinstance(argument, np.ndarray):
        if not (argument.flags.carray and argument.dtype.isnative and type(argument) is np.ndarray):
            raise TypeError(
                f"kernels take C-ordered, aligned, writeable arrays in the machine's byte order (see `as_argument`), "
                f"found dtype {argument.dtype}, strides {argument.strides} and flags {argument.flags.num:#x}"
            )
        return argument.dtype, argument.ndim
    return (type(argument), *map(_describe, argument)) if isinstance(argument, tuple) else type(argument)


_lasting: set[type] = set()


def check_once(kind: type) -> type:
    """Decorator of named tuples that serve many calls: a kernel checks the same tuple only once."""
    _lasting.add(kind)
    return kind


UNLIKE = object()  # returned if the arguments have other types than those that the code was compiled for


def _write_checked_call(arguments: tuple, run: Callable) -> Callable:
    """Generate a function that calls `run` if its arguments are like these, else returns UNLIKE.

    It is `_describe` unrolled, which takes a third of the time.
    """
    constants: dict[str, object] = {"run": run, "UNLIKE": UNLIKE}

    def write(name: str, value) -> str:
        known = f"c{len(constants)}"
        constants[known] = value.dtype if isinstance(value, np.ndarray) else type(value)
        if isinstance(value, np.ndarray):
            return f"{name}.dtype is {known} and {name}.ndim == {value.ndim} and {name}.flags.carray"
        tests = [f"{name}.__class__ is {known}"]
        if isinstance(value, tuple):
            tests.append(f"len({name}) == {len(value)}")
            tests += [write(f"{name}[{i}]", item) for i, item in enumerate(value)]
        test = " and ".join(tests)
        if type(value) not in _lasting:
            return test
        constants[f"{known}_last"] = last = [value]
        constants[f"{known}_keep"] = partial(last.__setitem__, 0)  # returns None
        return f"({name} is {known}_last[0] or ({test} and not {known}_keep({name})))"

    tests = [write(f"a{i}", argument) for i, argument in enumerate(arguments)]
    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    text = f"lambda {names}: run({names}) if {' and '.join(tests)} else UNLIKE"
    return eval(text, constants)  # the text is generated above


class Entry(NamedTuple):
    """Machine code, and a function that calls it if it was compiled for such arguments."""

    run: Callable
    run_if_like: Callable


class Kernel:
    """A function called by the driver, compiled at first use for each combination of argument types.

    Arguments are numbers, writeable C-ordered arrays and named tuples of them.
    """

    seconds = 0.0  # spent so far on loading and compiling kernels

    def __init__(self, function):
        self._dispatcher = njit(**OPTIONS)(function)
        self._dispatcher._cache = _KernelCache(function)
        self._entries: dict[tuple, Entry] = {}
        self._last = Entry(function, lambda *arguments: UNLIKE)
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments):
        """Run the machine code for arguments of these types, which is usually that of the previous call.

        Numba's dispatcher would look up all types again, which takes longer than some solves.
        """
        result = self._last.run_if_like(*arguments)
        if result is UNLIKE:
            self._last = entry = self._find(arguments)
            return entry.run(*arguments)
        return result

    def _find(self, arguments: tuple) -> Entry:
        """The entry for arguments of these types, compiled if there is none yet."""
        key = tuple(map(_describe, arguments))
        if key not in self._entries:
            started = time.perf_counter()
            signature = tuple(typeof(argument) for argument in arguments)
            self._dispatcher.compile(signature)
            run = self._dispatcher.overloads[signature].entry_point
            self._entries[key] = Entry(run, _write_checked_call(arguments, run))
            Kernel.seconds += time.perf_counter() - started
        return self._entries[key]


class FieldKernel:
    """A right-hand side of this package as a C function, compiled and stored on disk like a kernel.

    A `signature` other than that of right-hand sides is for other functions that generated code calls.
    """

    def __init__(self, function, signature=None):
        self._function, self._signature = function, signature
        self._compiled: dict = {}

    @cache  # noqa: B019  as above
    def address(self, dtype: np.dtype = FLOAT64) -> int:
        """The address of the C function for states of this real type."""
        real = types.float32 if dtype == np.float32 else types.float64
        pointers = (types.CPointer(real), types.CPointer(real), types.CPointer(types.float64))
        signature = self._signature or types.int32(types.float64, *pointers, types.int64)
        compiled = CFunc(
            self._function, (signature.args, signature.return_type), locals={}, options={**OPTIONS, "_nrt": True}
        )  # `carray` needs the runtime
        compiled._cache = _KernelCache(self._function)  # type: ignore[attr-defined]
        rtsys.initialize(cpu_target.target_context)
        compiled.compile()
        self._compiled[dtype] = compiled  # the address is valid as long as this object exists
        return compiled.address
