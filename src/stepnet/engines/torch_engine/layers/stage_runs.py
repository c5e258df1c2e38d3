"""A stage of a net on tensors: a field advanced by a scheme over equal steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import NamedTuple

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
from stepnet.engines.torch_engine.random.paths import TensorNoise
from stepnet.engines.torch_engine.random.step_noise import PathNoise, StepNoise
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_written_down
from stepnet.fields import Depth, Field, HeldWeights
from stepnet.noise import NoiseGrid
from stepnet.schemes.step_program import SchemeProgram


class SampleDraws(NamedTuple):
    """What the noise of a batch is drawn from: a seed, the path of each sample, and the cells of the base grid."""

    seed: int
    paths: Tensor
    cells: int


class NetStage:
    """A field advanced by a scheme over equal steps; weights are arguments."""

    def __init__(
        self, field: Field, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights
    ):  # fmt: skip
        self.names, self.n_controls, self.n_steps = tuple(field.parameters), depth.controls, steps
        self.moves = compile_program(scheme_program, is_parted=field.kind != "first")
        self.table = build_stage_table(self.moves, steps, length, depth)
        self.on_tensors = TensorField(field)
        self.length, self.n_features = length, field.parts[-1].n_out

    def build_noise(self, draws: SampleDraws, dtype: torch.dtype) -> StepNoise:
        """The noise of the steps."""
        grid = NoiseGrid((0.0, self.length), draws.cells, levels=0)
        paths = TensorNoise(grid, draws.seed, draws.paths, self.n_features)
        ends = [self.length * (k / self.n_steps) for k in range(self.n_steps + 1)]
        return StepNoise(PathNoise(paths, ends), dtype)

    def build_run(self, weights: Sequence[Tensor], noise: StepNoise | None = None) -> FixedStepRun:
        """The run with these weights: the control values of every parameter, one after the other."""
        n = self.n_controls
        controls = {name: tuple(weights[i * n : (i + 1) * n]) for i, name in enumerate(self.names)}
        return build_layered_run(self.on_tensors, self.moves, self.table, controls, noise)

    def forward(
        self, theta: Sequence[Tensor], x: Tensor, memory: Memory = "all", draws: SampleDraws | None = None
    ) -> Tensor:
        """The end state `(batch, features)`, with exact gradients under a memory policy; weights as in `build_run`."""
        noise = None if draws is None else self.build_noise(draws, x.dtype)
        build: Callable[[Sequence[Tensor]], FixedStepRun] = lambda weights: self.build_run(weights, noise)
        state, readings = self.on_tensors.state(x), (StateRead(self.n_steps, read_state),)
        is_all = isinstance(memory, str) and memory == "all"
        if is_all or torch.compiler.is_compiling() or is_written_down() or len(x) == 0:
            (end,) = read_states_at(build(theta), state, readings)
        else:
            if isinstance(memory, str) and memory == "segments":
                memory = Checkpoints(slots=isqrt(self.n_steps))
            taped = TapedRun(build(theta), readings, tuple(theta), build, is_batch=True)
            (end,) = solve_exactly(taped, memory, state)
        return torch.cat(end, dim=1)


def build_stage(
    field: Field, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights
) -> NetStage:  # fmt: skip
    """A stage of a net."""
    return NetStage(field, scheme_program, steps, length, depth)
