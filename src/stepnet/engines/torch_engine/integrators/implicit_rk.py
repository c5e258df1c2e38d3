"""Steps of implicit pairs with their error estimates: implicit Runge-Kutta, Rosenbrock and additive schemes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.implicit_stages import NewtonSettings
from stepnet.engines.torch_engine.integrators.step_program import TensorProgram, build_tensor_program, execute
from stepnet.schemes.pair_programs import build_pair_program


class PairStep(NamedTuple):
    """The new state and the error estimate."""

    y_new: Tensor
    error: Tensor


@lru_cache(maxsize=256)
def find_pair_program(scheme: Any, is_sum: bool = False) -> TensorProgram | None:
    """The program of a step with its error estimate; None for explicit schemes, which need no systems."""
    program = build_pair_program(scheme, is_sum)
    return None if program is None else build_tensor_program(program)


def take_pair_step(
    program: TensorProgram,
    functions: Sequence[Callable[..., Tensor]],
    times: Sequence[Tensor],
    h: float | Tensor,
    y: Tensor,
    newton: NewtonSettings,
) -> PairStep:
    """One step from y; `times` are t + c h for the nodes of the program."""
    return PairStep(*execute(program, functions, (y, torch.zeros_like(y)), times, h, (), newton))
