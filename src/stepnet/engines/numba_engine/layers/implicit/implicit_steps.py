"""Steps of implicit schemes over layers: step programs with implicit stages on groups of tiles.

The layer kernels evaluate chains and their derivatives; the operations of a step are in Python, because Newton's
iteration decides how many of them there are.  A record of a step holds the rows before it and its solved stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stepnet.engines.numba_engine.layers import layer_kernels
from stepnet.engines.numba_engine.layers.implicit.chain_runs import ChainRun, StageChain, build_stage_chain
from stepnet.engines.numba_engine.layers.implicit.implicit_stages import StageSolver
from stepnet.engines.numba_engine.layers.tables import EMPTY_PROGRAM, RowLayout, lay_out
from stepnet.schemes.step_program import Noise, Product, Slope, Solve, StepProgram, Sum, Term

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layers.stage_runs import NetStage

Rows = np.ndarray  # (groups, features, samples)


class ImplicitLayers:
    """An implicit program, of steps or of the opening, over a stage; the counterpart of the kernels `forward`, ... ."""

    def __init__(self, stage: NetStage, program: StepProgram):
        self.stage, self.program = stage, program
        self.n_features, self.samples = stage.field.row_size, stage.group * stage.samples
        self.row_width = self.n_features * self.samples
        self.width = program.n_rows * self.row_width
        self.chains = [self._list_chains(operation) for operation in self.program.operations]
        self.n_solved = [len(each.c) if isinstance(each, Solve) else 0 for each in self.program.operations]
        self.noise_layout = None
        noise = next((each for each in self.program.operations if isinstance(each, Noise)), None)
        if noise is not None:
            program = StepProgram(1, (noise, Sum((Term(1, 1.0, 0),))), (2,))
            self.noise_layout = lay_out(program, stage.field, stage.layer_steps, stage.dtype, is_stored=False)

    def _list_chains(self, operation) -> list[StageChain]:
        """One chain for each stage of an operation that evaluates the field."""
        if isinstance(operation, Slope):
            return [build_stage_chain(self.stage, operation.part, operation.c, operation.step)]
        if isinstance(operation, Solve):
            return [build_stage_chain(self.stage, operation.part, c, operation.step) for c in operation.c]
        return []

    def lay_out(self, is_stored: bool) -> RowLayout:
        """A record is the rows of state, followed by the solved stages if it is stored."""
        record = self.width + is_stored * self.row_width * sum(self.n_solved)
        return RowLayout(EMPTY_PROGRAM, record, self.width, 0, self)

    # ---- steps, as the kernels take them ----------------------------------------------------------------------------

    def run(self, workspace, layout: RowLayout, theta, step: int, count: int, slot: int, noise) -> None:
        """Run steps from `step` on; their records begin at `slot`."""
        records = self.stage.records(workspace)
        with StepRun(self, workspace.tiles, theta, noise) as steps:
            for k in range(count):
                here, following = (records[(slot + j) % workspace.period] for j in (k, k + 1))
                steps.execute(self._read(here), step + k)
                self._write(here, layout, steps.solved)
                following[:, : self.width] = steps.end.reshape(workspace.tiles, -1)

    def push(
        self, workspace, layout: RowLayout, theta, theta_dot, step: int, count: int, is_known: bool, noise
    ) -> None:
        """Compute tangents from slot 0 on, with the stages of the records if they are known."""
        records, dots = (self.stage.records(workspace, is_dot) for is_dot in (False, True))
        with StepRun(self, workspace.tiles, theta, noise) as steps:
            for k in range(count):
                here, following = (records[j % workspace.period] for j in (k, k + 1))
                steps.place(self._read(here), step + k, self._read_solved(here) if is_known else None)
                if not is_known:
                    self._write(here, layout, steps.solved)
                    following[:, : self.width] = steps.end.reshape(workspace.tiles, -1)
                found = steps.push(theta_dot, self._read(dots[k % 2]))
                dots[(k + 1) % 2][:, : self.width] = found.reshape(workspace.tiles, -1)

    def pull(self, workspace, theta, theta_bar, step: int, count: int, slot: int, noise) -> None:
        """Pull back through steps from `step` on, whose records begin at `slot`."""
        records = self.stage.records(workspace)
        with StepRun(self, workspace.tiles, theta, noise) as steps:
            for k in range(count - 1, -1, -1):
                here = records[(slot + k) % workspace.period]
                steps.place(self._read(here), step + k, self._read_solved(here))
                bar = self._read(self.stage.bars(workspace, slot + k + 1))
                self.stage.bars(workspace, slot + k)[:] = steps.pull(theta_bar, bar).reshape(workspace.tiles, -1)

    def _read(self, record: np.ndarray) -> list[Rows]:
        rows = record[:, : self.width].reshape(len(record), self.program.n_rows, self.n_features, self.samples)
        return [np.ascontiguousarray(rows[:, i]) for i in range(self.program.n_rows)]

    def _write(self, record: np.ndarray, layout: RowLayout, solved: Sequence[np.ndarray]) -> None:
        if layout.record > self.width:
            stages = np.concatenate(solved).swapaxes(0, 1)
            record[:, self.width : layout.record] = stages.reshape(len(record), -1)

    def _read_solved(self, record: np.ndarray) -> list[np.ndarray]:
        """The stages of each operation, (stages, groups, features, samples)."""
        shape = len(record), -1, self.n_features, self.samples
        stages = np.ascontiguousarray(record[:, self.width :].reshape(shape).swapaxes(0, 1))
        counts = [n for n in self.n_solved if n]
        return np.split(stages, np.cumsum(counts)[:-1])


class StepRun:
    """Steps of a chunk, one at a time: their rows, and the runs of chains that derivatives are taken from."""

    def __init__(self, steps: ImplicitLayers, groups: int, theta: np.ndarray, noise: layer_kernels.LayerNoise):
        self.steps, self.groups, self.theta, self.noise = steps, groups, theta, noise
        self.program, self.stage = steps.program, steps.stage
        self.runs = [[ChainRun(chain, groups, theta) for chain in chains] for chains in steps.chains]
        self.solvers = {
            i: StageSolver(operation, self.runs[i], self.stage.h)
            for i, operation in enumerate(self.program.operations)
            if isinstance(operation, Solve)
        }
        self.rows: list[Rows] = []
        self.solved: list[np.ndarray] = []

    def __enter__(self) -> StepRun:
        return self

    def __exit__(self, *error: object) -> None:
        for runs in self.runs:
            for run in runs:
                run.close()

    @property
    def end(self) -> np.ndarray:
        """The rows of state after the step, side by side."""
        return self._join(self.rows)

    def _join(self, rows: Sequence[Rows]) -> np.ndarray:
        return np.stack([rows[i] for i in self.program.outputs], axis=1)

    def execute(self, state: Sequence[Rows], step: int, known: Sequence[np.ndarray] | None = None) -> None:
        """Compute the rows of a step from those of the state, with stages that are known or solved for."""
        self.rows, self.solved = [*state], []
        for i, operation in enumerate(self.program.operations):
            if isinstance(operation, Solve):
                base = self.rows[operation.row]
                K = self.solvers[i].solve(base, step) if known is None else known[len(self.solved)]
                self.solved.append(K)
                self.rows.append(self.solvers[i].combine(K))
            elif isinstance(operation, Slope):
                self.rows.append(self.runs[i][0].evaluate(self.rows[operation.row], step))
            elif isinstance(operation, Noise):
                self.rows.append(self._draw(step))
            elif isinstance(operation, Product):
                self.rows.append(self.rows[operation.diffusion] * self.rows[operation.noise])
            else:
                self.rows.append(self._add(self.rows, operation.terms))

    def place(self, state: Sequence[Rows], step: int, known: Sequence[np.ndarray] | None = None) -> None:
        """As `execute`, and prepare the derivatives at the solved stages."""
        self.execute(state, step, known)
        for solver, K in zip(self.solvers.values(), self.solved, strict=True):
            solver.place(self.rows[solver.operation.row], K, step)

    def push(self, theta_dot: np.ndarray, state_dot: Sequence[Rows]) -> np.ndarray:
        """The tangent of the end of the step."""
        dots = [*state_dot]
        for i, operation in enumerate(self.program.operations):
            if isinstance(operation, Solve):
                dots.append(self.solvers[i].push(dots[operation.row], theta_dot))
            elif isinstance(operation, Slope):
                dots.append(self.runs[i][0].push(dots[operation.row], theta_dot))
            elif isinstance(operation, Noise):
                dots.append(np.zeros_like(dots[0]))
            elif isinstance(operation, Product):
                dots.append(dots[operation.diffusion] * self.rows[operation.noise])
            else:
                dots.append(self._add(dots, operation.terms))
        return self._join(dots)

    def pull(self, theta_bar: np.ndarray, end_bar: Sequence[Rows]) -> np.ndarray:
        """The gradient at the beginning of the step from that at its end; gradients of weights are added."""
        n_rows, bars = self.program.n_rows, [np.zeros_like(end_bar[0]) for _ in self.rows]
        for row, bar in zip(self.program.outputs, end_bar, strict=True):
            bars[row] += bar
        for i in range(len(self.program.operations) - 1, -1, -1):
            operation, own = self.program.operations[i], bars[n_rows + i]
            if isinstance(operation, Solve):
                bars[operation.row] += self.solvers[i].pull(own, theta_bar)
            elif isinstance(operation, Slope):
                bars[operation.row] += self.runs[i][0].pull(own, theta_bar)
            elif isinstance(operation, Product):
                bars[operation.diffusion] += own * self.rows[operation.noise]
            elif not isinstance(operation, Noise):
                for term in operation.terms:
                    bars[term.row] += term.weight * self.stage.h**term.power * own
        return np.stack(bars[:n_rows], axis=1)

    def _add(self, rows: Sequence[Rows], terms) -> Rows:
        total = np.zeros_like(rows[0])
        for term in terms:
            total += term.weight * self.stage.h**term.power * rows[term.row]
        return total

    def _draw(self, step: int) -> Rows:
        """The increments of a step, by the kernels of explicit steps."""
        layout, n = self.steps.noise_layout, self.steps
        workspace = self.stage.acquire_workspace(layout, self.groups, 2)
        self.stage.run(workspace, layout, self.theta, step, 1, noise=self.noise)
        found = self.stage.records(workspace)[1, :, : n.row_width].reshape(self.groups, n.n_features, n.samples)
        self.stage.release_workspace(workspace)
        return found
