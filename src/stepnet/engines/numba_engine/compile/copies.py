"""Copies of functions in which what they refer to is exchanged, so that the user's own objects stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType


def blank_copy(function: FunctionType) -> FunctionType:
    """A copy whose globals and closure are its own; the closure is empty until `fill`."""
    cells = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, dict(function.__globals__), function.__name__, function.__defaults__, cells or None
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def fill(copy: FunctionType, function: FunctionType, exchange: Callable) -> None:
    """Put `exchange(value)` for every global that the code names and every variable of the closure."""
    for name in names_of(function.__code__) & copy.__globals__.keys():
        copy.__globals__[name] = exchange(function.__globals__[name])
    for new, old in zip(copy.__closure__ or (), function.__closure__ or (), strict=True):
        new.cell_contents = exchange(old.cell_contents)


def names_of(code: CodeType) -> set[str]:
    """The globals and attributes that code names, functions inside it included."""
    inner = (item for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*(names_of(item) for item in inner))
