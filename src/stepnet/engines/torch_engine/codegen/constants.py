"""Records built from constants, for functions that `torch.compile` traces.

It must not trace the construction of a scheme or a program, but it may call a function of constants, ignore the result
and read the attributes of an object in a module.  So the result is stored as a named attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from stepnet.engines.torch_engine.codegen.compilation import mark_constant

_SHELF = SimpleNamespace()


def _name(function: str, arguments: tuple[Any, ...]) -> str:
    """The name of a result; compilers do not read attributes with dots in their names."""
    return f"{function}{arguments}".replace(".", "|")


def build_from_constants(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make`, a function of strings, numbers and booleans, so that it also works during tracing."""

    @mark_constant
    def put(*arguments: Any) -> bool:
        setattr(_SHELF, _name(make.__name__, arguments), make(*arguments))
        return True

    def made(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling():
            return make(*arguments)
        put(*arguments)
        return getattr(_SHELF, _name(make.__name__, arguments))

    return made
