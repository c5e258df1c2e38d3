"""References to immutable values: while each of them names the same object, what a function reaches has not changed."""

from __future__ import annotations

from collections import OrderedDict
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

MOST_KEPT = 256
UNSET = object()  # the value of a variable that does not exist


class References:
    """The references that a walk followed; `are_fixed` until it meets a value that may change in place."""

    def __init__(self) -> None:
        self.are_fixed = True
        self.variables: list[tuple[dict[str, Any], str, object]] = []
        self.cells: list[tuple[CellType, object]] = []
        self.functions: list[tuple[FunctionType, CodeType, tuple[Any, ...] | None]] = []

    def add_variable(self, namespace: dict[str, Any], name: str) -> None:
        """A variable of a module or an attribute of one, which may not exist."""
        self.variables.append((namespace, name, namespace.get(name, UNSET)))

    def add_cell(self, cell: CellType) -> None:
        """A variable of an enclosing function, which is set."""
        self.cells.append((cell, cell.cell_contents))

    def add_function(self, function: FunctionType) -> None:
        """A Python function; keyword defaults and attributes may change in place."""
        self.are_fixed = self.are_fixed and not (function.__kwdefaults__ or function.__dict__)
        self.functions.append((function, function.__code__, function.__defaults__))

    def are_current(self) -> bool:
        """Whether all references still name the same objects."""
        for namespace, name, value in self.variables:
            if namespace.get(name, UNSET) is not value:
                return False
        for cell, value in self.cells:
            try:
                if cell.cell_contents is not value:
                    return False
            except ValueError:  # the variable was deleted
                return False
        for function, code, defaults in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ or function.__dict__:
                return False
        return True


class Known(NamedTuple):
    """The stored result for a function whose references are fixed."""

    function: FunctionType
    references: References
    found: Any


_known: OrderedDict[int, Known] = OrderedDict()


def recall(function: FunctionType) -> Any:
    """The stored result for a function if its references are current, else None."""
    known = _known.get(id(function))
    is_same = known is not None and known.function is function  # type: ignore[comparison-overlap]
    return known.found if is_same and known.references.are_current() else None


def remember(function: FunctionType, references: References, found: Any) -> None:
    """Store the result for a function, if its references are fixed."""
    if references.are_fixed:
        _known[id(function)] = Known(function, references, found)
        if len(_known) > MOST_KEPT:
            _known.popitem(last=False)
