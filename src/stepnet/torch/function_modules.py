"""Modules that a function refers to, whose parameters and buffers it may read and change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from stepnet.engines.torch_engine import (
    Partitioned,
    SecondOrder,
    Split,
)

DEPTH = 4  # maximum nesting of functions, containers and objects
FOREIGN = ("torch", "numpy", "builtins")  # packages whose objects hold no user modules
MANY = 1000  # entries above which a container is assumed to hold data, not modules


def find_modules(func: Any) -> tuple[torch.nn.Module, ...]:
    """A module itself, or those in the closure, the globals, the attributes and the arguments of a function."""
    return tuple(dict.fromkeys(_iterate_modules(func, DEPTH, set())))


def list_parameters(modules: Sequence[torch.nn.Module]) -> tuple[torch.Tensor, ...]:
    """All parameters that require a gradient, each once."""
    return tuple(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))


def _iterate_modules(held: Any, depth: int, seen: set[int]) -> Iterator[torch.nn.Module]:
    if isinstance(held, torch.nn.Module):
        yield held
    elif depth > 0 and id(held) not in seen:
        seen.add(id(held))
        for part in _list_parts(held):
            yield from _iterate_modules(part, depth - 1, seen)


def _list_parts(held: Any) -> Iterator[Any]:
    """The objects that a function, a record of functions, a container or a callable object refers to."""
    if isinstance(held, (Partitioned, SecondOrder, Split)):
        yield from held.functions
    elif isinstance(held, partial):
        yield from (held.func, *held.args, *held.keywords.values())
    elif isinstance(held, MethodType):
        yield from (held.__self__, held.__func__)
    elif isinstance(held, FunctionType):
        yield from _list_parts_of_function(held)
    elif isinstance(held, (dict, list, tuple, set)):
        yield from () if len(held) > MANY else held.values() if isinstance(held, dict) else held
    elif type(held).__module__.partition(".")[0] not in FOREIGN and not isinstance(held, (type, ModuleType)):
        yield from getattr(held, "__dict__", {}).values()


def _list_parts_of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an unassigned variable
            continue
    yield from (function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__)
    yield from function.__defaults__ or ()
    yield getattr(function, "__wrapped__", None)
