"""Records made from constants, for functions that `torch.compile` traces.

It must not trace the making of a scheme or a program; it may call a function of constants and forget the answer, and
read the attributes of an object that lives in a module.  So the answer is put on a shelf, under a name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from stepnet.engines.torch_engine.codegen.compilation import mark_constant

_SHELF = SimpleNamespace()


def build_from_constants(make: Callable) -> Callable:
    """`make` for arguments that are strings, numbers and truth values, the same while tracing."""
    name = make.__name__

    @mark_constant
    def put(*arguments) -> bool:
        setattr(_SHELF, f"{name}{arguments}", make(*arguments))
        return True

    def made(*arguments) -> Any:
        if not torch.compiler.is_compiling():
            return make(*arguments)
        put(*arguments)
        return getattr(_SHELF, f"{name}{arguments}")

    return made
