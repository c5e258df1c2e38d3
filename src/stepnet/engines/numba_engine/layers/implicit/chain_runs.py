"""Values and derivatives of a chain at one stage time, on groups of tiles `(groups, features, samples)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers.implicit import system_kernels
from stepnet.engines.numba_engine.layers.tables import RowLayout, lay_out
from stepnet.schemes.step_program import Slope, StepProgram

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layers.stage_runs import NetStage


class StageChain(NamedTuple):
    """A chain of the field of a stage at a fixed point of every step, with the layout of the kernels that run it."""

    stage: NetStage
    layout: RowLayout
    n_in: int
    n_out: int


def build_stage_chain(stage: NetStage, part: int, c: float, step: int = 0) -> StageChain:
    """The chain of a part of the step program at t + c h, with weights held over steps from `step` steps later."""
    chain = stage.field.chain(part)
    program = StepProgram(1, (Slope(0, 0, c, step),), (1,))
    layout = lay_out(program, chain, stage.layer_steps, stage.dtype, is_stored=True)
    number = np.array([stage.field.find_chain(part)], np.int64)
    return StageChain(stage, layout._replace(program=layout.program._replace(part=number)), chain.n_in, chain.n_out)


class ChainRun:
    """The last evaluation of a chain, with what its derivatives need."""

    def __init__(self, chain: StageChain, groups: int, theta: np.ndarray):
        self.chain, self.stage, self.layout, self.theta = chain, chain.stage, chain.layout, theta
        self.groups, self.samples, self.step = groups, chain.stage.samples * chain.stage.group, 0
        self.start, self.stop = chain.n_in * self.samples, (chain.n_in + chain.n_out) * self.samples
        self.workspace = self.stage.acquire_workspace(self.layout, groups, 1, is_dual=True)
        self.no_dot = np.zeros_like(theta)

    def close(self) -> None:
        """Return the workspace."""
        self.stage.release_workspace(self.workspace)

    def evaluate(self, x: np.ndarray, step: int) -> np.ndarray:
        """The value at x in a step."""
        self.step, records = step, self.stage.records(self.workspace)[0]
        records[:, : self.start] = x.reshape(self.groups, -1)
        self.stage.run(self.workspace, self.layout, self.theta, step, 1)
        return self._read(records)

    def push(self, x_dot: np.ndarray, theta_dot: np.ndarray | None = None) -> np.ndarray:
        """The tangent of the last value, by default with constant weights."""
        dots = self.stage.records(self.workspace, is_dot=True)[0]
        dots[:, : self.start] = x_dot.reshape(self.groups, -1)
        theta_dot = self.no_dot if theta_dot is None else theta_dot
        self.stage.push(self.workspace, self.layout, self.theta, theta_dot, self.step, 1, is_known=True)
        return self._read(dots)

    def pull(self, bar: np.ndarray, theta_bar: np.ndarray) -> np.ndarray:
        """The gradient with respect to the last x from that of the value; that of the weights is added."""
        bars = self.stage.bars(self.workspace, 0)
        bars[:, self.start : self.stop] = bar.reshape(self.groups, -1)
        self.stage.pull(self.workspace, self.layout, self.theta, theta_bar, self.step, 1)
        return bars[:, : self.start].reshape(self.groups, self.chain.n_in, self.samples)

    def jacobians(self) -> np.ndarray:
        """df/dx at the last x, (groups * samples, out, in)."""
        found = np.empty((self.groups, self.samples, self.chain.n_out, self.chain.n_in), self.stage.dtype)
        system_kernels.tabulate_jacobians(
            self.stage.machine(self.workspace), self.stage.chains, self.layout.program, self.workspace, self.theta,
            self.no_dot, np.zeros_like(self.workspace.mixed), self.step, found,
        )  # fmt: skip
        return found.reshape(-1, self.chain.n_out, self.chain.n_in)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, self.start : self.stop].reshape(self.groups, self.chain.n_out, self.samples)
