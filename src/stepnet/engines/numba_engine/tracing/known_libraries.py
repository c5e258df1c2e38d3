"""Known functions of Python, NumPy and similar libraries: their results depend only on their arguments."""

from __future__ import annotations

import builtins
import cmath
import itertools
import math
import operator
import sys
import sysconfig
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np

PURE = frozenset((
    "abs", "all", "any", "bool", "bytes", "callable", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "frozenset", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object",
    "pow", "property", "range", "reversed", "round", "set", "slice", "sorted", "staticmethod", "classmethod", "sum",
    "super", "tuple", "type", "zip", "NotImplemented", "Ellipsis", "__build_class__", "__debug__", "__name__",
))  # fmt: skip
TEXT = frozenset(("str", "repr", "format", "ascii"))  # known, but Numba formats numbers differently
ROOTS = frozenset(("numpy", "math", "cmath", "scipy", "numba", "operator", "itertools", "functools", "builtins"))
IMPURE_MODULES = (
    "numpy.random", "numpy.testing", "numpy.ctypeslib", "numpy.f2py", "numpy.distutils", "scipy.stats", "scipy.io",
    "scipy.datasets", "numba.cuda", "numba.core",
)  # fmt: skip
IMPURE = frozenset((
    "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.fromregex", "numpy.memmap",
    "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "numpy.seterr", "numpy.seterrcall",
    "numpy.setbufsize", "numpy.geterr", "numpy.geterrcall", "numpy.getbufsize", "numpy.set_printoptions",
    "numpy.get_printoptions", "numpy.printoptions", "numpy.info", "numpy.show_config", "numpy.show_runtime",
    "numpy.vectorize", "numpy.frompyfunc", "numpy.frombuffer", "numpy.array2string", "numpy.array_repr",
    "numpy.array_str", "functools.lru_cache", "functools.cache", "functools.cached_property",
    "functools.singledispatch", "functools.singledispatchmethod", "numba.objmode", "numba.literal_unroll",
))  # fmt: skip
BUILTINS = dict(vars(builtins))
OWN = ("stepnet.operators", "stepnet.equations")  # whose records a right-hand side may call, as it may a user's own
APPLICATION = "stepnet.operators.application"  # kernels for arrays, which traced code never calls
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@lru_cache(maxsize=1024)
def is_library(module: str) -> bool:
    """Whether the contents of a module are known."""
    return module == APPLICATION or (module.split(".")[0] in ROOTS and not module.startswith(IMPURE_MODULES))


@lru_cache(maxsize=1024)
def is_standard(module: str) -> bool:
    """Whether a module belongs to the standard library."""
    return module.split(".")[0] in sys.stdlib_module_names


@lru_cache(maxsize=1024)
def is_installed(module: str) -> bool:
    """Whether a module is an installed package, and so probably not the user's own code."""
    if module.startswith(OWN):
        return False
    return (getattr(sys.modules.get(module), "__file__", None) or "").startswith(INSTALLED)


@lru_cache(maxsize=256)
def load_originals(module: ModuleType) -> dict[str, object]:
    """The contents of a library when it was first seen."""
    return dict(vars(module))


def is_pure_builtin(name: str) -> bool:
    """Whether a name of `builtins` is known and still has its original value."""
    value = BUILTINS.get(name)
    is_exception = isinstance(value, type) and issubclass(value, BaseException)
    return (name in PURE or name in TEXT or is_exception) and vars(builtins)[name] is value


def _list_known_values() -> dict[int, str]:
    """The names of library functions, types and ufuncs by id; `load_originals` keeps them alive."""
    found: dict[int, str] = {}
    for module in (np, np.linalg, np.fft, math, cmath, operator, itertools):
        for name, value in load_originals(module).items():
            full = f"{module.__name__}.{name}"
            if full not in IMPURE and (callable(value) or isinstance(value, np.dtype)):
                found.setdefault(id(value), full)
    pure = (name for name in BUILTINS if is_pure_builtin(name))
    found.update({id(BUILTINS[name]): f"builtins.{name}" for name in pure})
    return found


KNOWN = _list_known_values()


def find_known_name(value) -> str | None:
    """The name of a library function or type; None for anything else."""
    name = KNOWN.get(id(value))
    if name is not None:
        return name
    if isinstance(value, np.ufunc):
        special = sys.modules.get("scipy.special")
        return f"scipy.special.{value.__name__}" if getattr(special, value.__name__, None) is value else None
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        module, name, owner = value.__module__ or "", value.__qualname__, getattr(value, "__self__", None)
        is_bound = not (owner is None or isinstance(owner, ModuleType))
        is_exception = isinstance(value, type) and issubclass(value, BaseException) and is_standard(module)
        if is_exception:
            return f"{module}.{name}"
        if not is_bound and is_library(module) and f"{module}.{name}" not in IMPURE:
            return f"{module}.{name}"
    return None
