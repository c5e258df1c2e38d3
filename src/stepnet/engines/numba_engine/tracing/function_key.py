"""Everything that a function can reach: a key by value, and whether all of it is known.

Compiled code freezes the values that a right-hand side refers to.  It may replace the Python function as long as the
function depends only on its arguments and on values that the key describes.  Known values are listed (in
`known_libraries` and by type below); a function that reaches anything else is opaque and runs in Python.  References
are found in the bytecode, which names variables and attributes (`bytecode`); of an object, only the attributes and
methods that some code names are followed.
"""

from __future__ import annotations

import builtins
from abc import ABCMeta
from collections import OrderedDict
from functools import cached_property, lru_cache, partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.compiler_facts import Dispatcher
from stepnet.engines.numba_engine.tracing.bytecode import CodeFacts, find_code_facts
from stepnet.engines.numba_engine.tracing.fixed_references import References, recall, remember
from stepnet.engines.numba_engine.tracing.known_libraries import (
    BUILTINS,
    IMPURE,
    TEXT,
    find_known_name,
    is_installed,
    is_library,
    is_pure_builtin,
    is_standard,
    load_originals,
)

SIMPLE = frozenset((int, float, complex, bool, str, bytes, type(None), type(NotImplemented), type(Ellipsis)))
SEQUENCES = frozenset((tuple, list))
DICTIONARIES = frozenset((dict, OrderedDict))
C_MEMBERS = (
    MemberDescriptorType, GetSetDescriptorType, WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType,
    BuiltinFunctionType, type(vars(NamedTuple("Pair", [("first", int)]))["first"]),
)  # fmt: skip
PLAIN_SIZE = type("Plain", (), {}).__basicsize__  # size of objects that hold only attributes
POINTER = np.dtype(np.intp).itemsize
MOST_SEEN = 1000  # objects; a function that reaches more is opaque
CONSTRUCTION = frozenset(("__init__", "__new__", "__post_init__"))
SETTING = frozenset(("__setattr__", "__delattr__"))
WRITING = frozenset(("__repr__", "__str__", "__format__"))
UNCALLED = frozenset((
    "__hash__", "__init_subclass__", "__class_getitem__", "__reduce__", "__reduce_ex__", "__getstate__",
    "__setstate__", "__sizeof__", "__dir__", "__del__", "__replace__", "__getnewargs__", "__subclasshook__",
))  # fmt: skip
REFLECTION = frozenset((
    "__globals__", "__builtins__", "__closure__", "__code__", "__subclasses__", "__self__", "__func__", "__wrapped__",
    "__import__", "__reduce__", "__reduce_ex__", "f_globals", "f_locals", "f_back", "gi_frame", "cell_contents",
))  # fmt: skip


class FunctionKey(NamedTuple):
    """`key` describes by value what a function reaches; `opaque` gives the reason if some of it is not known.

    It `reads_variables` that could be rebound, and `reads_objects` that could change.  It `rebinds` outer variables,
    and `mutates` if it may store into objects.  If it `makes_text`, compiled code may format numbers differently.  If
    it `calls_jitted` functions, these may hold values that Numba froze when it compiled them.  It `is_self_contained`
    if its code names nothing outside it and stores into nothing, so that its result depends on its arguments alone.
    """

    key: tuple
    opaque: str = ""
    reads_variables: bool = False
    reads_objects: bool = False
    rebinds: bool = False
    mutates: bool = False
    makes_text: bool = False
    calls_jitted: bool = False
    is_self_contained: bool = False


def reach(function, constants: tuple = ()) -> FunctionKey:
    """What a function reaches through its code, its closure and its non-numeric arguments."""
    is_alone = type(function) is FunctionType and not constants
    if is_alone:
        known = recall(function) or _reach_nothing(function)
        if known is not None:
            return known
    walk = ValueWalk()
    key = (walk.visit(function), *[walk.visit(value) for value in constants])
    if walk.holders:
        key = (key, *walk.settle())
    reads = walk.reads_variables, walk.reads_objects
    found = FunctionKey(key, walk.opaque, *reads, walk.rebinds, walk.mutates, walk.makes_text, walk.calls_jitted)
    if is_alone:
        remember(function, walk.references, found)
    return found


def _reach_nothing(function: FunctionType) -> FunctionKey | None:
    """What a function reaches if it names nothing outside it; None for others."""
    if function.__defaults__ or function.__kwdefaults__ or function.__dict__:
        return None
    return reach_of_code(function.__code__)


@lru_cache(maxsize=4096)
def reach_of_code(code: CodeType) -> FunctionKey | None:
    """What a function reaches if its code names nothing outside it; None for others."""
    facts = find_code_facts(code)
    if facts.variables or code.co_freevars or facts.imports or not REFLECTION.isdisjoint(facts.attributes):
        return None
    key = (find_code_key(code),)
    return FunctionKey(key, mutates=facts.mutates, makes_text=facts.makes_text, is_self_contained=not facts.mutates)


def find_value_key(value) -> tuple:
    """A hashable key of a value and of everything it refers to."""
    walk = ValueWalk()
    walk.takes_all = True
    return (walk.visit(value), *walk.settle())


@lru_cache(maxsize=4096)
def find_code_key(code: CodeType) -> tuple:
    """A key of what a code object does."""
    constants = tuple(
        find_code_key(c) if isinstance(c, CodeType) else (type(c).__name__, repr(c)) for c in code.co_consts
    )
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)


class Holder(NamedTuple):
    """An object, class or module of which only the members named in some code are visited; `done` are those visited."""

    value: object
    number: int
    done: set[str]


class ValueWalk:
    """A walk over values.  Every object is described once, so that reference cycles terminate."""

    takes_all = reads_variables = reads_objects = rebinds = mutates = False
    makes_text = sets_attributes = calls_jitted = False
    opaque = ""

    def __init__(self):
        self.seen: dict[int, int] = {}
        self.alive: list = []  # keeps objects alive, so that their ids stay unique
        self.names: set[str] = set()
        self.holders: list[Holder] = []
        self.built: set[int] = set()  # classes that may be called
        self.references = References()

    def refuse(self, reason: str, value=None) -> tuple:
        """Record the first reason for which the function is opaque."""
        self.opaque = self.opaque or (f"it uses random numbers ({reason})" if "random" in reason else reason)
        return ("opaque", type(value).__name__)

    # ---- values

    def visit(self, value) -> tuple:
        kind = type(value)
        if kind in SIMPLE:
            return (kind.__name__, repr(value))
        if kind is FunctionType:
            return self.visit_function(value)
        if kind is np.ndarray:
            return self.visit_array(value)
        name = find_known_name(value)
        if name is not None:
            return ("library", name)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            self.references.are_fixed &= kind is not np.void
            return (kind.__name__, repr(value))
        self.references.are_fixed &= kind is tuple
        if isinstance(value, Dispatcher):
            self.calls_jitted = True
            return self.visit_function(value.py_func)
        if id(value) in self.seen:
            return ("again", self.seen[id(value)])
        if len(self.seen) >= MOST_SEEN:
            return self.refuse(f"it refers to more than {MOST_SEEN} objects", value)
        number = self.remember(value)
        if kind in SEQUENCES:
            self.reads_objects |= kind is list
            return (kind.__name__, *[self.visit(item) for item in value])
        if kind in DICTIONARIES:
            self.reads_objects = True
            return (kind.__name__, *[(self.visit(key), self.visit(item)) for key, item in value.items()])  # type: ignore[attr-defined]
        if kind in (set, frozenset):
            self.reads_objects |= kind is set
            return (kind.__name__, *sorted([self.visit(item) for item in value], key=repr))  # type: ignore[attr-defined]
        if kind in (range, slice, np.dtype) or isinstance(value, np.dtype):
            return (kind.__name__, repr(value))
        if kind is MethodType:
            return ("method", self.visit(value.__func__), self.visit(value.__self__))
        if kind is partial:
            return ("partial", self.visit(value.func), self.visit(value.args), self.visit(value.keywords))
        if kind is ModuleType or isinstance(value, ModuleType):
            return self.visit_module(value, number)
        if isinstance(value, type):
            self.built.add(id(value))
            return self.visit_class(value)
        return self.visit_object(value, number)

    def remember(self, value) -> int:
        self.seen[id(value)] = number = len(self.seen)
        self.alive.append(value)
        return number

    def visit_array(self, value: np.ndarray) -> tuple:
        if value.dtype.hasobject:
            return self.refuse("it refers to an array of objects", value)
        self.reads_objects = True
        self.references.are_fixed = False
        kind = value.dtype.str if value.dtype.names is None else repr(value.dtype)
        return (value.shape, kind, value.tobytes())

    def visit_function(self, function: FunctionType) -> tuple:
        module = function.__module__ or ""
        if is_library(module):
            return ("library", module, function.__qualname__)
        if id(function) in self.seen:
            return ("again", self.seen[id(function)])
        if len(self.seen) >= MOST_SEEN:
            return self.refuse(f"it refers to more than {MOST_SEEN} objects", function)
        number = self.remember(function)
        if is_standard(module):
            return self.refuse(f"it calls {module}.{function.__qualname__}", function)
        self.references.add_function(function)
        code = function.__code__
        facts = find_code_facts(code)
        self.mutates |= facts.mutates
        self.makes_text |= facts.makes_text
        self.sets_attributes |= facts.sets_attributes
        self.names |= facts.attributes
        self._require_known(facts)
        cells = [
            self._visit_cell(*each, facts) for each in zip(code.co_freevars, function.__closure__ or (), strict=True)
        ]
        found = [self._visit_global(name, function.__globals__, facts) for name in facts.variables]
        key: tuple = (find_code_key(code), *cells, *found)
        if function.__defaults__:
            key = (*key, "defaults", *[self.visit(value) for value in function.__defaults__])
        if function.__kwdefaults__:
            key = (*key, "keywords", self.visit(function.__kwdefaults__))
        if function.__dict__:
            self.holders.append(Holder(function, number, set()))
        return key

    def _require_known(self, facts: CodeFacts) -> None:
        if facts.rebinds:
            self.rebinds = True
            self.refuse(f"it sets the variable `{facts.rebinds[0]}` outside itself")
        for module in facts.imports:
            if not is_library(module):
                self.refuse(f"it imports {module}")
        if not REFLECTION.isdisjoint(facts.attributes):
            self.refuse(f"it uses `{min(REFLECTION & facts.attributes)}`")

    def _visit_cell(self, name: str, cell, facts: CodeFacts) -> tuple:
        try:
            value = cell.cell_contents
        except ValueError:  # a variable that is not set yet
            self.references.are_fixed = False
            return ("unset",)
        self.references.add_cell(cell)
        if isinstance(value, type) and name in ("__class__", "cls"):  # needed by `super()`
            return self.visit_class(value) if id(value) not in self.seen else ("again", self.seen[id(value)])
        return (name, self._visit_variable(name, value, facts))

    def _visit_global(self, name: str, namespace: dict, facts: CodeFacts) -> tuple:
        self.references.add_variable(namespace, name)
        if name in namespace:
            return (name, self._visit_variable(name, namespace[name], facts))
        self.references.add_variable(vars(builtins), name)
        if name in BUILTINS and not is_pure_builtin(name):
            self.refuse(f"it uses `{name}`")
        self.makes_text |= name in TEXT
        return (name,)

    def _visit_variable(self, name: str, value, facts: CodeFacts) -> tuple:
        if isinstance(value, ModuleType):
            return tuple([self._visit_chain(value, chain) for chain in sorted(facts.chains.get(name, ()))])
        if not isinstance(value, (FunctionType, type, np.ufunc, BuiltinFunctionType, Dispatcher)):
            self.reads_variables = True
        return self.visit(value)

    # ---- modules

    def _visit_chain(self, module: ModuleType, chain: tuple[str, ...]) -> tuple:
        """The key of `module.a.b.c`; of a module that is used directly, any attribute may be read."""
        if not chain:
            return self.visit(module)
        name, *rest = chain
        is_known = self._require_known_module(module)
        self.references.add_variable(vars(module), name)
        if name not in vars(module):
            if not is_known and "__getattr__" in vars(module):
                self.refuse(f"it uses `{name}` of the module {module.__name__}")
            return (module.__name__, name)
        if is_known:
            self._require_original(module, name)
        value = vars(module)[name]
        if isinstance(value, ModuleType):
            return self._visit_chain(value, tuple(rest))
        self.reads_objects |= not is_known
        return (module.__name__, name) if is_known and not isinstance(value, np.ndarray) else (name, self.visit(value))

    def _require_known_module(self, module: ModuleType) -> bool:
        """Whether a module is a known library; other modules of Python and NumPy make the function opaque."""
        if is_library(module.__name__):
            return True
        if is_standard(module.__name__) or module.__name__.startswith("numpy") or find_known_name(module) is not None:
            self.refuse(f"it uses the module {module.__name__}")
        return False

    def _require_original(self, module: ModuleType, name: str) -> None:
        full = f"{module.__name__}.{name}"
        if full in IMPURE:
            self.refuse(f"it uses {full}")
        elif load_originals(module).get(name) is not vars(module)[name] and not isinstance(
            vars(module)[name], ModuleType
        ):
            self.refuse(f"{full} was replaced")

    def visit_module(self, module: ModuleType, number: int) -> tuple:
        self.reads_objects |= not self._require_known_module(module)
        self.holders.append(Holder(module, number, set()))
        return ("module", module.__name__)

    # ---- classes and objects

    def visit_class(self, kind: type) -> tuple:
        """A user class: the members that some code names, and the methods that operators call."""
        self.references.are_fixed = False
        if id(kind) not in self.seen:
            self.remember(kind)
        if type(kind) not in (type, ABCMeta):
            return self.refuse(f"it uses the class {kind.__qualname__}, which has a metaclass", kind)
        for base in kind.__mro__[1:]:
            if find_known_name(base) is None and (is_installed(base.__module__) and base.__module__ != "abc"):
                return self.refuse(f"it uses the class {kind.__qualname__}", kind)
        if is_installed(kind.__module__) or is_standard(kind.__module__):
            return self.refuse(f"it uses the class {kind.__module__}.{kind.__qualname__}", kind)
        if any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1]):
            return self.refuse(f"it uses the class {kind.__qualname__}, which changes its subclasses", kind)
        self.holders.append(Holder(kind, self.seen[id(kind)], set()))
        return ("class", kind.__module__, kind.__qualname__)

    def visit_object(self, value, number: int) -> tuple:
        kind = type(value)
        self.reads_objects = True
        if is_holder(kind):
            self.holders.append(Holder(value, number, set()))
            return ("namespace",)
        if not has_plain_layout(kind):  # type: ignore[arg-type]
            return self.refuse(f"it uses an object of type {kind.__module__}.{kind.__qualname__}", value)
        described = ("again", self.seen[id(kind)]) if id(kind) in self.seen else self.visit_class(kind)
        if isinstance(value, tuple):
            described = (*described, *[self.visit(item) for item in tuple(value)])
        self.holders.append(Holder(value, number, set()))
        return ("object", described)

    def settle(self) -> list[tuple]:
        """Visit the named members of objects, classes and modules until no new names appear."""
        found: list[tuple] = []
        size = -1
        while size != (size := len(found)):
            for holder in list(self.holders):
                for name, member in list_members_named(holder, self):
                    holder.done.add(name)
                    found.append((holder.number, name, self._visit_member(holder.value, name, member)))
        return found

    def _visit_member(self, owner, name: str, member) -> tuple:
        if isinstance(owner, ModuleType):
            return self._visit_chain(owner, (name,))
        if isinstance(member, property):
            return ("property", *[self.visit(f) for f in (member.fget, member.fset, member.fdel)])
        if isinstance(member, (staticmethod, classmethod)):
            return (type(member).__name__, self.visit(member.__func__))
        if isinstance(member, cached_property):
            return ("cached", self.visit(member.func))
        if isinstance(member, C_MEMBERS) and isinstance(owner, type):
            return (name,)
        return self.visit(member)


def list_members_named(holder: Holder, walk: ValueWalk) -> list[tuple[str, object]]:
    """The members of a holder that count and were not visited yet."""
    value, done = holder.value, holder.done
    members = list_class_members(value) if isinstance(value, type) else list_attributes(value)
    if isinstance(value, ModuleType):
        return [(name, members[name]) for name in sorted(walk.names & members.keys() - done)]
    if isinstance(value, type):
        counts = partial(_class_member_counts, walk, id(value) in walk.built)
        return [(name, member) for name, member in members.items() if name not in done and counts(name)]
    takes_all = walk.takes_all or takes_any_attribute(type(value)) or "__dict__" in walk.names  # type: ignore[arg-type]
    return [(name, x) for name, x in members.items() if name not in done and (takes_all or name in walk.names)]


def _class_member_counts(walk: ValueWalk, is_built: bool, name: str) -> bool:
    if name in walk.names or (walk.takes_all and not name.startswith("__")):
        return True
    if not (name.startswith("__") and name.endswith("__")) or name in UNCALLED:
        return False
    if name in CONSTRUCTION:
        return is_built
    if name in SETTING:
        return walk.sets_attributes
    return walk.makes_text if name in WRITING else name not in DATA_OF_CLASSES


DATA_OF_CLASSES = frozenset((
    "__module__", "__doc__", "__annotations__", "__dict__", "__weakref__", "__slots__", "__match_args__",
    "__dataclass_fields__", "__dataclass_params__", "__qualname__", "__static_attributes__", "__firstlineno__",
    "__annotate__", "__annotations_cache__", "__annotate_func__", "__abstractmethods__", "__parameters__",
    "__orig_bases__", "__type_params__",
))  # fmt: skip


def is_holder(kind: type) -> bool:
    """Whether a class is one of the standard library's plain namespaces."""
    return kind is SimpleNamespace or (kind.__module__ == "argparse" and kind.__qualname__ == "Namespace")


@lru_cache(maxsize=1024)
def has_plain_layout(kind: type) -> bool:
    """Whether objects of a class hold only attributes, slots and, if they are tuples, items."""
    slots = sum(isinstance(member, MemberDescriptorType) for base in kind.__mro__ for member in vars(base).values())
    size = kind.__basicsize__ - POINTER * slots
    base = tuple if issubclass(kind, tuple) else object
    extra = PLAIN_SIZE - object.__basicsize__
    return size in (base.__basicsize__, base.__basicsize__ + extra, base.__basicsize__ + POINTER) and (
        base is object or kind.__itemsize__ == tuple.__itemsize__
    )


@lru_cache(maxsize=1024)
def takes_any_attribute(kind: type) -> bool:
    """Whether a class defines its own attribute lookup, which may read any attribute."""
    return any("__getattr__" in vars(base) or "__getattribute__" in vars(base) for base in kind.__mro__[:-1])


def list_class_members(kind: type) -> dict[str, object]:
    """The members of a class and of its bases, except those of `object` and of libraries."""
    found: dict[str, object] = {}
    for base in kind.__mro__:
        if find_known_name(base) is None:
            for name, member in vars(base).items():
                found.setdefault(name, member)
    return found


def list_attributes(value) -> dict[str, object]:
    """The attributes and slots of an object, function or module, found without running its code."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType) and base not in (FunctionType, ModuleType):
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # a slot that is not set
                    continue
    return found
