"""A stage of a net on tensors: a field advanced by a scheme over equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import torch
from torch import Tensor

from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import Memory
from stepnet.engines.torch_engine.adjoint.autograd_node import solve_exactly
from stepnet.engines.torch_engine.adjoint.step_blocks import TapedRun
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    FixedStepRun,
    StateRead,
    compile_program,
    read_state,
    read_states_at,
)
from stepnet.engines.torch_engine.layers.chains import TensorField, build_layered_run
from stepnet.engines.torch_engine.layers.tables import build_stage_table
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_written_down
from stepnet.fields import Depth, Field, HeldWeights
from stepnet.schemes.step_program import SchemeProgram


class NetStage:
    """A field advanced by a scheme over equal steps; weights are arguments."""

    def __init__(
        self, field: Field, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights
    ):  # fmt: skip
        self.names, self.n_controls, self.n_steps = tuple(field.parameters), depth.controls, steps
        self.moves = compile_program(scheme_program, is_parted=field.kind != "first")
        self.table = build_stage_table(self.moves, steps, length, depth)
        self.on_tensors = TensorField(field)

    def build_run(self, weights: Sequence[Tensor]) -> FixedStepRun:
        """The run with these weights: the control values of every parameter, one after the other."""
        n = self.n_controls
        controls = {name: tuple(weights[i * n : (i + 1) * n]) for i, name in enumerate(self.names)}
        return build_layered_run(self.on_tensors, self.moves, self.table, controls)

    def forward(self, theta: Sequence[Tensor], x: Tensor, memory: Memory = "all") -> Tensor:
        """The end state `(batch, features)`, with exact gradients under a memory policy; weights as in `build_run`."""
        state, readings = self.on_tensors.state(x), (StateRead(self.n_steps, read_state),)
        is_all = isinstance(memory, str) and memory == "all"
        if is_all or torch.compiler.is_compiling() or is_written_down() or len(x) == 0:
            (end,) = read_states_at(self.build_run(theta), state, readings)
        else:
            if isinstance(memory, str) and memory == "segments":
                memory = Checkpoints(slots=isqrt(self.n_steps))
            taped = TapedRun(self.build_run(theta), readings, tuple(theta), self.build_run, is_batch=True)
            (end,) = solve_exactly(taped, memory, state)
        return torch.cat(end, dim=1)


def build_stage(
    field: Field, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights
) -> NetStage:  # fmt: skip
    """A stage of a net."""
    return NetStage(field, scheme_program, steps, length, depth)
