"""Copies of functions and of the objects they refer to, so that a run on symbols does not change the user's objects."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from functools import cached_property, partial
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)

import numpy as np

from stepnet.engines.numba_engine.codegen.compiler_facts import Dispatcher
from stepnet.engines.numba_engine.tracing.bytecode import find_code_facts
from stepnet.engines.numba_engine.tracing.function_key import has_plain_layout, is_holder, list_attributes
from stepnet.engines.numba_engine.tracing.known_libraries import find_known_name, is_installed, is_library, is_standard

SEQUENCES = (list, set, tuple, frozenset)
MADE_BY_TYPE = ("__dict__", "__weakref__", "__abstractmethods__", "_abc_impl")


def make_blank_copy(function: FunctionType) -> FunctionType:
    """A copy with its own globals and closure; the closure is empty until `fill`."""
    cells = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, select_globals(function), function.__name__, function.__defaults__, cells or None
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def select_globals(function: FunctionType) -> dict:
    """The globals that the code of a function names, and its module's own; copies would keep any others alive."""
    names, codes = {"__name__", "__file__", "__builtins__"}, [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {name: value for name, value in function.__globals__.items() if name in names}


def fill(copy: FunctionType, function: FunctionType, exchange: Callable) -> None:
    """Set every global that the code names and every closure variable to `exchange(value)`."""
    for name in find_code_facts(function.__code__).variables:
        if name in copy.__globals__:
            copy.__globals__[name] = exchange(function.__globals__[name])
    for new, old in zip(copy.__closure__ or (), function.__closure__ or (), strict=True):
        if has_contents(old):
            new.cell_contents = exchange(old.cell_contents)


def has_contents(cell: CellType) -> bool:
    """Whether a closure variable is set."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class Copies:
    """Copies of all objects that functions refer to; `replaced` maps the id of a library object to its substitute.

    References between objects are preserved.  After a run, `are_unchanged` says whether it stored into any of them.
    """

    def __init__(self, replaced: dict[int, object]):
        self._replaced = replaced
        self._made: dict[int, object] = {}
        self._alive: list = []  # keeps objects alive, so that their ids stay unique
        self._unfilled: list[tuple[FunctionType, FunctionType]] = []
        self._contents: dict[int, tuple[object, object]] = {}

    def of(self, value):
        """The deep copy of a value."""
        copy = self._exchange(value)
        while self._unfilled:
            new, old = self._unfilled.pop()
            fill(new, old, self._exchange)
            new.__defaults__ = self._exchange(old.__defaults__)
            new.__kwdefaults__ = self._exchange(old.__kwdefaults__)
            new.__dict__.update({name: self._exchange(item) for name, item in vars(old).items()})
        for number, made in self._made.items():
            if number not in self._contents:
                self._contents[number] = made, list_contents(made)
        return copy

    def are_unchanged(self) -> bool:
        """Whether the contents of all copies are unchanged."""
        return all(is_same(list_contents(copy), before) for copy, before in self._contents.values())

    def _exchange(self, value):
        if id(value) in self._replaced:
            return self._replaced[id(value)]
        if id(value) in self._made:
            return self._made[id(value)]
        kind = type(value)
        if isinstance(value, Dispatcher):
            return self._exchange(value.py_func)
        if kind is FunctionType:
            return value if is_library(value.__module__ or "") else self._function(value)
        if kind is np.ndarray:
            return self._keep(value, value.copy())
        if kind is list:
            copy = self._keep(value, [])
            copy.extend([self._exchange(item) for item in value])
            return copy
        if isinstance(value, dict):
            if type(value).__module__ not in ("builtins", "collections"):
                return value
            copy = self._keep(value, kind())
            copy.update({key: self._exchange(item) for key, item in value.items()})
            return copy
        if kind in SEQUENCES:
            return self._keep(value, kind([self._exchange(item) for item in value]))
        if kind is MethodType:
            return MethodType(self._exchange(value.__func__), self._exchange(value.__self__))
        if kind is partial:
            keywords = {name: self._exchange(item) for name, item in value.keywords.items()}
            return partial(self._exchange(value.func), *[self._exchange(item) for item in value.args], **keywords)
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, type):
            return self._class(value)
        return self._object(value)

    def _keep(self, value, copy):
        self._made[id(value)] = copy
        self._alive.append(value)
        return copy

    def _function(self, function: FunctionType) -> FunctionType:
        copy = self._keep(function, make_blank_copy(function))
        self._unfilled.append((copy, function))
        return copy

    def _module(self, module: ModuleType):
        if is_library(module.__name__) or is_standard(module.__name__):
            return module
        return self._keep(module, ModuleCopy(module, self))

    def _class(self, kind: type) -> type:
        """A user class with copies of its functions; other classes as they are."""
        is_foreign = is_installed(kind.__module__) or is_standard(kind.__module__)
        if find_known_name(kind) is not None or is_foreign or type(kind) not in (type, ABCMeta):
            return kind
        bases = tuple(self._exchange(base) for base in kind.__bases__)
        members = {name: self._member(member) for name, member in vars(kind).items() if name not in MADE_BY_TYPE}
        own = {
            name: member
            for name, member in members.items()
            if not isinstance(member, (MemberDescriptorType, GetSetDescriptorType))
        }
        return self._keep(kind, type(kind)(kind.__name__, bases, own))

    def _member(self, member):
        if isinstance(member, property):
            return property(*[self._exchange(f) for f in (member.fget, member.fset, member.fdel)])
        if isinstance(member, (staticmethod, classmethod)):
            return type(member)(self._exchange(member.__func__))
        if isinstance(member, cached_property):
            return cached_property(self._exchange(member.func))
        return self._exchange(member)

    def _object(self, value):
        kind = type(value)
        if is_holder(kind):
            copy = self._keep(value, SimpleNamespace())
            copy.__dict__.update({name: self._exchange(item) for name, item in vars(value).items()})
            return copy
        new = self._exchange(kind)
        if new is kind or not has_plain_layout(kind):  # type: ignore[arg-type]
            return value
        if isinstance(value, tuple):
            copy = self._keep(value, tuple.__new__(new, [self._exchange(item) for item in tuple(value)]))
        else:
            copy = self._keep(value, object.__new__(new))
        for name, item in list_attributes(value).items():
            object.__setattr__(copy, name, self._exchange(item))
        return copy


def unjit(function):
    """A copy of a function in which jitted functions are replaced by the Python functions they wrap."""
    return Copies({}).of(function)


class ModuleCopy(ModuleType):
    """A module whose contents are copied on access."""

    def __init__(self, module: ModuleType, copies: Copies):
        super().__init__(module.__name__)
        self.__dict__["_original"], self.__dict__["_copies"] = module, copies

    def __getattr__(self, name: str):
        copy = self._copies.of(getattr(self._original, name))
        self.__dict__[name] = copy
        return copy

    def __setattr__(self, name: str, value):
        raise TypeError(f"it sets `{name}` of the module {self.__name__}")


def list_contents(copy):
    """The contents of a copy, in a form that `is_same` compares."""
    if isinstance(copy, np.ndarray):
        return copy.tobytes()
    if isinstance(copy, (list, tuple)):
        return list(copy)
    if isinstance(copy, (set, frozenset)):
        return set(copy)
    if isinstance(copy, dict):
        return dict(copy)
    if isinstance(copy, ModuleCopy):
        return None
    return dict(vars(copy)) if isinstance(copy, type) else list_attributes(copy)


def is_same(now, before) -> bool:
    """Whether contents are the same objects as before."""
    if isinstance(now, list):
        return len(now) == len(before) and all(x is y for x, y in zip(now, before, strict=True))
    if isinstance(now, dict):
        return list(now) == list(before) and all(now[name] is before[name] for name in now)
    return now == before
