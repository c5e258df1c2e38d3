"""Functions that torchdiffeq looks for in `func` and calls at every step."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.step_control import Watch, watch_nothing
from stepnet.torch.states import TensorProblem

NAMES = ("callback_step", "callback_accept_step", "callback_reject_step")


def find_callbacks(func, problem: TensorProblem, are_steps_given: bool) -> Watch:
    """Calls `func.callback_step(t, y, h)` before a step, and those of accepted and refused ones after it."""
    found: dict[str, Callable] = {name: getattr(func, name) for name in NAMES if hasattr(func, name)}
    if are_steps_given and len(found) > ("callback_step" in found):
        warnings.warn("given steps are never refused: of the callbacks only `callback_step` is called", stacklevel=4)
    if not found:
        return watch_nothing
    latest: list[float] = []

    def watch(what: str, t: float, y: Tensor, h: float) -> None:
        callback = found.get(f"callback_{what}")
        is_again = are_steps_given and bool(latest) and (float(t) - latest[-1]) * float(h) <= 0
        if callback is None or is_again:  # steps that are run again on the way back are told once
            return
        latest[:] = [float(t)]
        number = lambda x: torch.as_tensor(x, dtype=torch.float64, device=y.device)
        problem.called(lambda t, state: callback(t, state, number(abs(h))))(number(t), y)

    return watch


def report_adjoint_steps(slopes: Callable, func) -> Callable:
    """The slopes of the adjoint equation, with the callbacks that `func` has for its steps."""
    for name in NAMES:
        if hasattr(func, f"{name}_adjoint"):
            setattr(slopes, name, getattr(func, f"{name}_adjoint"))
    return slopes


def warn_of_adjoint_callbacks(func) -> None:
    """Where no second equation is solved on the way back there are no steps of it to tell of."""
    found = [f"{name}_adjoint" for name in NAMES if hasattr(func, f"{name}_adjoint")]
    if found:
        warnings.warn(
            f'{found} are called with `memory`="continuous" only: else the way back runs the same steps again',
            stacklevel=3,
        )
