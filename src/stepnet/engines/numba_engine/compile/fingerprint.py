"""Everything a compiled right-hand side depends on, as a key: its bytecode and the values it refers to.

Numba freezes globals and closures into machine code.  Compiling again when one of them changed is what keeps a
memory of compiled functions from going stale.
"""

from __future__ import annotations

import builtins
import dis
import sys
import sysconfig
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
from numba.core.dispatcher import Dispatcher

BUILTIN_TYPES = (float, int, bool, complex, range, list, tuple, enumerate, zip, map, np.float64, np.ndarray)
BUILTIN_IDS = frozenset(map(id, BUILTIN_TYPES))
ARRAY_FUNCTION = type(np.roll)  # of NumPy's functions written in Python
LIBRARIES = ("numpy", "math", "cmath", "scipy", "numba")  # what they hold does not change
SIMPLE = (int, float, complex, bool, str, bytes, type(None))
BUILTINS = vars(builtins)
SCALARS = (*SIMPLE, np.generic)
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
PLAIN_SIZE = type("Plain", (), {}).__basicsize__  # of objects that have nothing but their attributes


class Address(int):
    """Where an object is, which is another number in another process."""


MOST_SEEN = 1000  # objects that a key describes; what lies beyond is known by its identity


def fingerprint(function, seen: dict | None = None):
    """A hashable key of a function: bytecode, constants, defaults, closure and the globals it names.

    Every object is described once; `seen` holds those that were, so that cycles and webs of objects come to an end.
    """
    seen = {} if seen is None else seen
    if not isinstance(function, FunctionType):
        function = function.py_func if isinstance(function, Dispatcher) else function
        if not isinstance(function, FunctionType):
            return _value(function, fingerprint.__code__, seen)
    if id(function) in seen:
        return ("again", seen[id(function)][0])
    seen[id(function)] = len(seen), function
    code = function.__code__
    cells, defaults = [cell.cell_contents for cell in function.__closure__ or ()], function.__defaults__ or ()
    keywords = function.__kwdefaults__.items() if function.__kwdefaults__ else ()
    values = tuple([_value(value, code, seen) for value in (*cells, *defaults, *keywords)])
    return (_code_key(code), len(cells), values, _globals_key(code, function.__globals__, seen))


def uses_random_numbers(function) -> bool:
    """Whether a function draws random numbers, whose sequence compiled code would not share with NumPy."""
    function = function.py_func if isinstance(function, Dispatcher) else function
    return isinstance(function, FunctionType) and not {"random", "default_rng", "rng"}.isdisjoint(
        _names(function.__code__)
    )


def is_opaque(key) -> bool:
    """Whether a fingerprint holds an object that is known by its identity only, so that it may change unseen."""
    if not isinstance(key, tuple):
        return False
    return (len(key) > 1 and key[0] == "object") or any(is_opaque(part) for part in key)


def writes_outside(function) -> bool:
    """Whether a function sets attributes, globals or variables of the function around it."""
    instructions = list(dis.get_instructions(function.__code__))
    outside = {"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"}
    free = function.__code__.co_freevars
    return any(i.opname in outside or (i.opname == "STORE_DEREF" and i.argval in free) for i in instructions)


@lru_cache(maxsize=1024)
def is_library(module: str) -> bool:
    """Whether a module is one whose contents do not change."""
    return module.split(".")[0] in LIBRARIES


def value_key(value):
    """A hashable key of any value that compiled code may freeze."""
    return _value(value, fingerprint.__code__, {})


@lru_cache(maxsize=1024)
def _code_key(code: CodeType):
    constants = tuple(_code_key(c) if isinstance(c, CodeType) else (type(c).__name__, repr(c)) for c in code.co_consts)
    return (code.co_code, constants, code.co_names, code.co_varnames)


def _globals_key(code: CodeType, namespace: dict, seen: dict):
    found = []
    for name in _names(code):
        if name in namespace:
            found.append((name, _value(namespace[name], code, seen)))
        elif name not in BUILTINS:
            found.append((name, None))
    return tuple(found)


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _value(value, code: CodeType, seen: dict):
    if isinstance(value, SCALARS):
        return (type(value).__name__, repr(value))
    if isinstance(value, ModuleType) and is_library(value.__name__):
        return value.__name__
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, (BuiltinFunctionType, np.ufunc, ARRAY_FUNCTION)) or id(value) in BUILTIN_IDS:
        return ("name", value.__name__)
    if isinstance(value, (FunctionType, Dispatcher)):
        return fingerprint(value, seen)
    place = (id(value), id(code)) if isinstance(value, ModuleType) else id(value)  # code tells what it uses of a module
    if place in seen:
        return ("again", seen[place][0])
    if len(seen) >= MOST_SEEN:
        return ("object", id(value))
    seen[place] = len(seen), value
    if isinstance(value, (tuple, list, set, frozenset)):
        return (type(value).__name__, *(_value(item, code, seen) for item in value))
    if isinstance(value, dict):
        return ("dict", *((repr(key), _value(item, code, seen)) for key, item in value.items()))
    if isinstance(value, ModuleType):
        used = ((name, vars(value)[name]) for name in _names(code) if name in vars(value))
        return (
            value.__name__,
            tuple((name, _value(x, code, seen)) for name, x in used if not isinstance(x, ModuleType)),
        )
    parts = _parts(value)
    if parts is not None:
        return (type(value).__name__, *(_value(part, code, seen) for part in parts))
    numbers = ((name, repr(x)) for name, x in getattr(value, "__dict__", {}).items() if isinstance(x, SIMPLE))
    return ("object", id(value), tuple(numbers) if not isinstance(value, type) else ())


def _parts(value) -> tuple | None:
    """What a method, or a class or object of the user's own, consists of; None for what has parts that are not seen."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    kind = value if isinstance(value, type) else type(value)
    home = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if kind.__basicsize__ != PLAIN_SIZE or not hasattr(value, "__dict__") or home.startswith(INSTALLED):
        return None
    members = {
        f"{base.__qualname__}.{name}": member
        for base in kind.__mro__[:-1]
        for name, member in vars(base).items()
        if name == "__call__" or not name.startswith("__")
    }
    place = Address(id(kind))
    return (place, members) if isinstance(value, type) else (place, members, vars(value))
