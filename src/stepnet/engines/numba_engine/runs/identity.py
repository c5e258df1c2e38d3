"""The identity of a stored run: equal in every process, different for another problem, scheme or plan.

A value is identified by its contents, down to numbers, strings and bytecode: arrays by their bytes, functions by their
code and what it refers to, sets regardless of order, and other objects by what they pass to `pickle`.  A value that
cannot be decomposed like this, such as an open file or a pointer, has no identity and is refused.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import scipy.special

from stepnet.c_functions import Address
from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.codegen.compiler_facts import CFunc, Dispatcher
from stepnet.engines.numba_engine.tracing.bytecode import find_code_facts
from stepnet.errors import NoIdentity
from stepnet.problem import Problem

SCALARS = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
ARRAY_FUNCTION = type(np.roll)  # type of NumPy's functions written in Python
LIBRARIES = ("numpy", "scipy", "numba", "torch", "stepnet", *sys.stdlib_module_names)  # identified by their names
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
STATES = ("y0", "q0", "p0", "v0")  # fields of problems that hold the initial state
WRAPPERS = (staticmethod, classmethod)
MOST_PARTS = 100_000  # maximum number of parts of a value
DEEPEST = 100
PROTOCOL = 4  # of pickle
HIDING = frozenset(("compile", "eval", "exec", "globals", "input", "locals", "open", "__import__"))


def identity(problem: Problem, scheme, plan: Plan) -> str:
    """A hash of all functions and numbers of a problem, the shape and dtype of the state, the scheme and the steps."""
    stepping = plan.stepping
    return value_identity((*_list_facts(problem), scheme, type(stepping).__name__, stepping._asdict()))


def problem_identity(problem: Problem) -> str:
    """A hash of a problem, its initial state included."""
    return value_identity((*_list_facts(problem), problem.initial))


def value_identity(value) -> str:
    """A hash of any value: numbers, arrays, functions, records, objects and collections of them."""
    walk = _IdentityWalk()
    try:
        found = [walk.digest(value)]
        while walk.functions:
            found.append(walk.digest_function(walk.functions.popleft()))
    except RecursionError:
        raise _refuse_identity(value, "it is nested too deeply") from None
    return _hash(*found).hex()


def function_key(function) -> str | None:
    """The identity of a function, equal in every process; None for None."""
    return None if function is None else value_identity(function)


def _list_facts(problem: Problem) -> tuple:
    """The kind of a problem, the type of its state, and all its fields but the initial state."""
    facts = {each.name: getattr(problem, each.name) for each in fields(problem) if each.name not in STATES}
    return type(problem).__name__, problem.initial.dtype.str, problem.initial.shape, facts


class _IdentityWalk:
    """A traversal of a value.  Objects that occur again are not decomposed again, so cycles and shared references end.

    Functions are numbered as they occur and queued in `functions`, because they may form long chains.  `known` holds
    the digests of objects together with the objects, so that their addresses are not reused.
    """

    def __init__(self):
        self.functions: deque[FunctionType] = deque()
        self._n_functions = 0
        self._known: dict[int, tuple[bytes, object]] = {}
        self._path: dict[int, int] = {}
        self._n_parts = 0

    def digest(self, value) -> bytes:
        """The hash of a value."""
        if isinstance(value, SCALARS) and type(value) in SCALARS:
            return _hash(type(value).__name__, repr(value))
        if isinstance(value, np.ndarray) and not value.dtype.hasobject and type(value) is np.ndarray:
            return _hash("array", value.dtype.str, str(value.shape), np.ascontiguousarray(value).tobytes())
        place = id(value)
        if place in self._known:
            return self._known[place][0]
        if place in self._path:
            return _hash("cycle", str(len(self._path) - self._path[place]))
        self._n_parts += 1
        if self._n_parts > MOST_PARTS or len(self._path) > DEEPEST:
            raise _refuse_identity(value, "it has too many parts, or is nested too deeply")
        self._path[place] = len(self._path)
        found = self._digest_parts(value)
        del self._path[place]
        self._known[place] = found, value
        return found

    def _digest_parts(self, value) -> bytes:
        if isinstance(value, (set, frozenset)) and type(value) in (set, frozenset):
            return _hash(type(value).__name__, *sorted(value_identity(item) for item in value))
        if type(value) in (tuple, list):
            return _hash(type(value).__name__, *map(self.digest, value))
        if type(value) is dict:
            return _hash("dict", *sorted(self.digest(key) + self.digest(item) for key, item in value.items()))
        if isinstance(value, Address):
            raise _refuse_identity(value, "an address says nothing about the function that is there")
        if isinstance(value, CodeType):
            return self._digest_code(value)
        if isinstance(value, Dispatcher):
            return _hash("compiled", self.digest(value.py_func), self.digest(value.targetoptions))
        if isinstance(value, CFunc):
            return _hash("compiled", self.digest(value._pyfunc), str(value._sig))  # type: ignore[attr-defined]
        if isinstance(value, FunctionType):
            self.functions.append(value)
            self._n_functions += 1
            return _hash("function number", str(self._n_functions))
        if isinstance(value, type):
            return self._digest_class(value)
        if isinstance(value, ModuleType):
            return _hash("module", value.__name__)
        return self._digest_object(value)

    # ---- functions --------------------------------------------------------------------------------------------------

    def _digest_code(self, code: CodeType) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return _hash("code", code.co_code, self.digest(names), self.digest(code.co_consts))

    def digest_function(self, function: FunctionType) -> bytes:
        """Bytecode, defaults, closure and the globals that the code names, unless the function belongs to a library."""
        code = function.__code__
        outside = [_read_content(cell) for cell in function.__closure__ or ()]
        parts = [code, function.__defaults__, function.__kwdefaults__, outside]
        if _is_library(function.__module__):
            parts.append((function.__module__, function.__qualname__))
        elif not code.co_filename.startswith(INSTALLED):
            _require_visible(function)
            parts.append(_list_globals(code, function.__globals__, set()))
        return _hash("function", *map(self.digest, parts))

    # ---- classes and objects ----------------------------------------------------------------------------------------

    def _digest_class(self, kind: type) -> bytes:
        """A library class by its name, a user's class by its members."""
        if _is_installed(kind):
            package = sys.modules.get(kind.__module__.split(".")[0])
            version = "" if _is_library(kind.__module__) else str(getattr(package, "__version__", ""))
            return _hash("class", kind.__module__, kind.__qualname__, version)
        members = [
            (base.__name__, name, _simplify_member(member))
            for base in kind.__mro__[:-1]
            if not _is_installed(base)
            for name, member in vars(base).items()
            if _counts(name, member)
        ]
        bases = [base for base in kind.__mro__[1:-1] if _is_installed(base)]
        return _hash("class", kind.__name__, self.digest(members), *map(self.digest, bases))

    def _digest_object(self, value) -> bytes:
        """The contents of an object: what a copy of it would be built from."""
        name = _find_global_name(value)
        if name is not None:
            return _hash("name", *name)
        return _hash("object", *(self.digest(part) for part in self._parts_of(value)))

    def _parts_of(self, value) -> Iterable:
        if isinstance(value, (MethodType, BuiltinMethodType)):
            return getattr(value, "__func__", value.__name__), value.__self__
        if isinstance(value, partial):
            return value.func, value.args, value.keywords
        if isinstance(value, property):
            return value.fget, value.fset
        if isinstance(value, WRAPPERS):
            return (value.__func__,)
        if isinstance(value, cached_property):
            return (value.func,)
        if isinstance(value, np.generic):
            return type(value).__name__, value.dtype.str, value.tobytes()
        if isinstance(value, np.dtype):
            return (value.str, value.descr) if value.names else (value.str,)
        if is_dataclass(value) and _is_library(type(value).__module__):
            return type(value).__name__, [(each.name, getattr(value, each.name, None)) for each in fields(value)]
        if hasattr(value, "__wrapped__"):
            return type(value).__name__, value.__wrapped__
        return _reduce(value)


def _hash(*parts: str | bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.digest()


def _reduce(value) -> list:
    """What `pickle` would store of an object, without cached properties."""
    try:
        reduced = value.__reduce_ex__(PROTOCOL)
    except Exception as error:
        raise _refuse_identity(value, str(error)) from None
    if isinstance(reduced, str):
        raise _refuse_identity(value, "it is known by its name only")
    parts: tuple[Any, ...] = (*reduced, None, None, None)
    function, arguments, state, items, pairs = parts[:5]
    if isinstance(state, dict):
        cached = {name for base in type(value).__mro__ for name, x in vars(base).items() if _is_cached(x)}
        state = {name: part for name, part in state.items() if name not in cached}
    return [type(value), function, arguments, state, *(None if x is None else list(x) for x in (items, pairs))]


def _is_cached(member) -> bool:
    return isinstance(member, cached_property)


def _counts(name: str, member) -> bool:
    """Whether a member of a class was written by its author: operators are, generated and inherited methods are not."""
    if not name.startswith("__"):
        return name != "_abc_impl"
    return isinstance(member, FunctionType) and not member.__code__.co_filename.startswith(("<string>", *INSTALLED))


def _simplify_member(member):
    """A member of a class, in a form that has an identity."""
    if type(member).__name__ in ("getset_descriptor", "member_descriptor"):
        return type(member).__name__
    return member


def _find_global_name(value) -> tuple[str | bytes, ...] | None:
    """The name under which a module holds this value, which is all that identifies a compiled function."""
    if isinstance(value, np.ufunc):
        known = next((m for m in (np, scipy.special) if getattr(m, value.__name__, None) is value), None)
        return None if known is None else (known.__name__, value.__name__)
    is_compiled = type(value).__name__ == "cython_function_or_method" and value.__closure__ is None
    is_builtin = isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type(None)))
    if isinstance(value, ARRAY_FUNCTION) or is_compiled or is_builtin:
        module = str(value.__module__)
        return module, value.__qualname__, *_read_file_of(module)
    return None


def _read_file_of(module: str) -> tuple[bytes, ...]:
    """The content of the file of a compiled module, unless it belongs to a library."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return () if path is None or _is_library(module) else (Path(path).read_bytes(),)


def _list_globals(code: CodeType, namespace: dict, seen: set) -> list[tuple[str, object]]:
    """The globals that some code names; of a user's module, the attributes that the code may use."""
    found: list[tuple[str, object]] = []
    for name in _list_names(code) if seen else _list_global_names(code):
        if name not in namespace:
            continue
        value = namespace[name]
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            if id(value) not in seen:
                found.append((name, _list_globals(code, vars(value), {*seen, id(value)})))
        else:
            found.append((name, value))
    return found


def _list_names(code: CodeType) -> list[str]:
    """All names in some code: globals and attributes."""
    inner = (name for c in code.co_consts if isinstance(c, CodeType) for name in _list_names(c))
    return list(dict.fromkeys((*code.co_names, *inner)))


def _list_global_names(code: CodeType) -> list[str]:
    own = (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    inner = (name for c in code.co_consts if isinstance(c, CodeType) for name in _list_global_names(c))
    return list(dict.fromkeys((*own, *inner)))


def _read_content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _is_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in LIBRARIES


def _is_installed(kind: type) -> bool:
    home = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return _is_library(kind.__module__) or home.startswith(INSTALLED)


def _require_visible(function: FunctionType) -> None:
    """Refuse a function that may use objects its bytecode does not name."""
    facts = find_code_facts(function.__code__)
    hidden = [name for name in facts.variables if name in HIDING and name not in function.__globals__]
    hidden += [f"import {module}" for module in facts.imports if not _is_library(module)]
    if hidden:
        raise _refuse_identity(
            function, f"`{function.__qualname__}` uses `{hidden[0]}`, and so values that it does not name"
        )


def _refuse_identity(value, reason: str) -> NoIdentity:
    kind = type(value)
    return NoIdentity(
        f"the problem holds an object of the type {kind.__module__}.{kind.__qualname__}, which cannot be compared by "
        f"its value ({reason:.200}), so stored results could not be distinguished from those of another problem; "
        f"use numbers, arrays, functions and objects that `pickle` can store, or define `__reduce__` for this type"
    )
