"""The names that a function reads, writes and imports, from its bytecode."""

from __future__ import annotations

import dis
from collections import defaultdict
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
REBINDING = ("STORE_GLOBAL", "DELETE_GLOBAL")
REBINDING_FREE = ("STORE_DEREF", "DELETE_DEREF")
STORING = ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
FORMATTING = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "BUILD_STRING")
MUTATORS = frozenset((
    "add", "append", "appendleft", "at", "clear", "copyto", "difference_update", "discard", "extend", "fill",
    "fill_diagonal", "insert", "intersection_update", "itemset", "move_to_end", "partition", "place", "pop", "popitem",
    "popleft", "put", "put_along_axis", "putmask", "remove", "resize", "reverse", "rotate", "setdefault", "setfield",
    "setflags", "shuffle", "sort", "symmetric_difference_update", "update",
))  # fmt: skip


class CodeFacts(NamedTuple):
    """The facts about a code object and the functions defined inside it.

    `variables` are the outer variables that it reads, and `chains[name]` the attributes that it accesses of each, as
    tuples: ("linalg", "norm") for `np.linalg.norm`, () where the variable itself is used.  `rebinds` are the outer
    variables that it assigns; it `mutates` if it may store into an object, possibly a local one.
    """

    variables: tuple[str, ...]
    chains: dict[str, frozenset[tuple[str, ...]]]
    attributes: frozenset[str]
    imports: tuple[str, ...]
    rebinds: tuple[str, ...]
    mutates: bool
    makes_text: bool
    sets_attributes: bool


@lru_cache(maxsize=4096)
def find_code_facts(code: CodeType) -> CodeFacts:
    """The facts about a code object."""
    variables: dict[str, None] = {}
    chains: dict[str, set] = defaultdict(set)
    attributes: set[str] = set()
    imports: list[str] = []
    rebinds: list[str] = []
    mutates = makes_text = sets_attributes = False
    for nested in _list_codes(code):
        instructions = list(dis.get_instructions(nested))
        for place, instruction in enumerate(instructions):
            name, what = instruction.opname, instruction.argval
            if name in GLOBAL:
                variables[what] = None
            if name in GLOBAL or name in FREE:
                chains[what].add(_chain(instructions, place + 1))
            elif name in ATTRIBUTE or name == "IMPORT_FROM":
                attributes.add(what)
            elif name == "MATCH_CLASS":  # accesses attributes without naming them
                attributes.add("__dict__")
            elif name == "IMPORT_NAME":
                imports.append(what)
            elif name in REBINDING or (name in REBINDING_FREE and what in code.co_freevars):
                rebinds.append(what)
            mutates = mutates or name in STORING
            makes_text = makes_text or name in FORMATTING
            sets_attributes = sets_attributes or name in ("STORE_ATTR", "DELETE_ATTR")
    frozen = {name: frozenset(found) for name, found in chains.items()}
    mutates = mutates or not MUTATORS.isdisjoint(attributes)
    makes_text = makes_text or "format" in attributes
    flags = mutates, makes_text, sets_attributes
    return CodeFacts(tuple(variables), frozen, frozenset(attributes), tuple(imports), tuple(rebinds), *flags)


def _list_codes(code: CodeType):
    """A code object and those of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_codes(constant)


def _chain(instructions: list, place: int) -> tuple[str, ...]:
    """The chain of attribute accesses that begins at instruction `place`."""
    names = []
    while place < len(instructions) and instructions[place].opname in ATTRIBUTE:
        names.append(instructions[place].argval)
        place += 1
    return tuple(names)
