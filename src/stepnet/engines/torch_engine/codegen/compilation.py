"""Marks for `torch.compile` that do not load it: importing `torch._dynamo` takes longer than importing torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

F = TypeVar("F", bound=Callable[..., Any])


def mark_constant(function: F) -> F:
    """`torch.compiler.assume_constant_result`: compilers call the function once and store its result."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def break_graph(function: F) -> F:
    """`torch.compiler.disable`: compilers end a graph before a call of the function and begin another one after it."""

    disabled = _disable_dynamo(function)  # loads `torch._dynamo` on its first call

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_loaded = "torch._dynamo" in sys.modules  # if not, nothing is being compiled
        return disabled(*args, **kwargs) if is_loaded else function(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
