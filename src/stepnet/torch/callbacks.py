"""Callbacks that torchdiffeq looks up in `func` and calls at each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine import (
    TensorProblem,
    Watch,
    watch_nothing,
)

NAMES = ("callback_step", "callback_accept_step", "callback_reject_step")


def find_callbacks(func: object, problem: TensorProblem, are_steps_given: bool) -> Watch:
    """Calls `func.callback_step(t, y, h)` before a step, and the callbacks of accepted and rejected steps after it."""
    found: dict[str, Callable[..., Any]] = {name: getattr(func, name) for name in NAMES if hasattr(func, name)}
    if are_steps_given and len(found) > ("callback_step" in found):
        warnings.warn("fixed steps are never rejected: only `callback_step` is called", stacklevel=4)
    if not found:
        return watch_nothing
    latest: list[float] = []

    def watch(what: str, t: float, y: Tensor, h: float) -> None:
        callback = found.get(f"callback_{what}")
        is_again = are_steps_given and bool(latest) and (float(t) - latest[-1]) * float(h) <= 0
        if callback is None or is_again:  # steps run again in the reverse sweep are reported once
            return
        latest[:] = [float(t)]
        number: Callable[[float], Tensor] = lambda x: torch.as_tensor(x, dtype=torch.float64, device=y.device)
        problem.convert_function(lambda t, state: callback(t, state, number(abs(h))))(number(t), y)

    return watch


def report_adjoint_steps(slopes: Callable[..., Any], func: object) -> Callable[..., Any]:
    """The slopes of the adjoint equation, with the adjoint callbacks of `func`."""
    for name in NAMES:
        if hasattr(func, f"{name}_adjoint"):
            setattr(slopes, name, getattr(func, f"{name}_adjoint"))
    return slopes


def warn_of_adjoint_callbacks(func: object) -> None:
    """Warn that adjoint callbacks are not called where no adjoint equation is solved."""
    found = [f"{name}_adjoint" for name in NAMES if hasattr(func, f"{name}_adjoint")]
    if found:
        warnings.warn(
            f'{found} are called only with `memory`="continuous": otherwise the reverse sweep repeats the same steps',
            stacklevel=3,
        )
