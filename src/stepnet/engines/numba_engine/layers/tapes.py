"""Taped runs of layers: the records of all steps, with views of their first and last states; tapes are reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers.tile_noise import NO_NOISE

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layers.stage_runs import NetStage
    from stepnet.engines.numba_engine.layers.tile_noise import TileNoise

Vectors = Sequence[np.ndarray]  # one for each stage


class WorkspaceSlot:
    """Part of a workspace, written and read as `(tiles, features, samples)`; copied only if necessary."""

    def __init__(self, numbers: np.ndarray, tiles: int, samples: int):
        self._numbers, self.shape = numbers, (tiles, numbers.size // (tiles * samples), samples)
        view = numbers.reshape(self.shape)
        self._view = view if np.may_share_memory(view, numbers) else None

    def put(self, x: np.ndarray) -> None:
        if self._view is None:
            self._numbers[...] = x.reshape(self._numbers.shape)
        else:
            self._view[...] = x

    def read(self) -> np.ndarray:
        """The content, valid until the next run."""
        return self._numbers.reshape(self.shape) if self._view is None else self._view


class TapeSlots(NamedTuple):
    """First and last values, tangents or gradients, and what a starting procedure passes on: target and source."""

    begun: WorkspaceSlot
    ended: WorkspaceSlot
    handed: tuple[np.ndarray, np.ndarray] | None = None


class StageTape:
    """The records of all steps of a stage on some tiles, in whole groups; a dual tape also has tangents."""

    def __init__(self, stage: NetStage, tiles: int, is_dual: bool = False):
        self.stage, self.tiles, self.groups, self.is_dual = stage, tiles, stage.groups(tiles), is_dual
        self.count = 1 if stage.is_single else stage.count
        self._noise = NO_NOISE
        self._workspace = stage.acquire_workspace(stage.stored, self.groups, self.count + 1, is_dual)
        self._opening = stage.acquire_workspace(stage.opening, self.groups, 2, is_dual) if stage.has_opening else None
        self._last_bar = stage.bars(self._workspace, self.count)
        self._values, self._bars = self._states(is_dot=False), self._gradients()
        self._dots = self._states(is_dot=True) if is_dual else None
        self.no_tangent = np.broadcast_to(np.zeros((), stage.dtype), self._values.begun.shape)

    @property
    def nbytes(self) -> int:
        return sum(workspace.memory.nbytes for workspace in (self._workspace, self._opening) if workspace is not None)

    def _states(self, is_dot: bool) -> TapeSlots:
        stage, width = self.stage, self.stage.stored.bar_size
        records = stage.records(self._workspace, is_dot)
        if stage.is_single:
            start, stop = stage.value_place
            return TapeSlots(self._place(records[0, :, :start]), self._place(records[0, :, start:stop]))
        begun, ended = records[0, :, :width], self._rows(records[self.count % len(records), :, :width])
        if self._opening is None:
            return TapeSlots(self._rows(begun), ended)
        opened = stage.records(self._opening, is_dot)
        return TapeSlots(self._rows(opened[0, :, :width]), ended, (begun, opened[1, :, :width]))

    def _gradients(self) -> TapeSlots:
        stage, first = self.stage, self.stage.bars(self._workspace, 0)
        if stage.is_single:
            start, stop = stage.value_place
            return TapeSlots(self._place(first[:, :start]), self._place(first[:, start:stop]))
        if self._opening is None:
            return TapeSlots(self._rows(first), self._rows(self._last_bar))
        before, after = (stage.bars(self._opening, slot) for slot in (0, 1))
        return TapeSlots(self._rows(before), self._rows(self._last_bar), (after, first))

    def _place(self, numbers: np.ndarray) -> WorkspaceSlot:
        return WorkspaceSlot(numbers, self.tiles, self.stage.samples)

    def _rows(self, carry: np.ndarray) -> WorkspaceSlot:
        """The rows of the state as (groups, tiles in a group, rows, features, samples)."""
        scheme_program, group = self.stage.scheme_program, self.stage.group
        rows = carry.reshape(self.groups, scheme_program.step.n_rows, -1, group, self.stage.samples)
        state = scheme_program.state
        return self._place(rows[:, state[0] : state[-1] + 1 : max(1, state[-1] - state[0])].transpose(0, 3, 1, 2, 4))

    def run(self, theta: np.ndarray, x: np.ndarray, noise: TileNoise | None = None) -> np.ndarray:
        """The end state from x, valid until the next run; everything the reverse sweep needs is kept."""
        stage, (begun, ended, handed) = self.stage, self._values
        begun.put(x)
        self._noise = stage.group_noise(noise)
        if handed is not None:
            stage.run(self._opening, stage.opening, theta, 0, 1)
            handed[0][...] = handed[1]
        stage.run(self._workspace, stage.stored, theta, stage.n_opening, self.count, noise=self._noise)
        return ended.read()

    def push(self, theta: np.ndarray, theta_dot: np.ndarray, x_dot: np.ndarray) -> np.ndarray:
        """The tangent of the end state of the last run, for a dual tape."""
        stage, (begun, ended, handed) = self.stage, self._dots
        begun.put(x_dot)
        if handed is not None:
            stage.push(self._opening, stage.opening, theta, theta_dot, 0, 1, is_known=True)
            handed[0][...] = handed[1]
        drawn = self._noise
        stage.push(self._workspace, stage.stored, theta, theta_dot, stage.n_opening, self.count, True, drawn)
        return ended.read()

    def pull(self, theta: np.ndarray, theta_bar: np.ndarray, y_bar: np.ndarray, is_x_wanted: bool = True) -> np.ndarray:
        """The gradient of x from that of the end state; gradients of weights are added to `theta_bar`."""
        stage, (begun, ended, handed) = self.stage, self._bars
        if not stage.is_single:
            self._last_bar[...] = 0
        ended.put(y_bar)
        stage.pull(
            self._workspace, stage.stored, theta, theta_bar, stage.n_opening, self.count,
            is_x_wanted=is_x_wanted or not stage.is_single, noise=self._noise,
        )  # fmt: skip
        if handed is not None:
            handed[0][...] = handed[1]
            stage.pull(self._opening, stage.opening, theta, theta_bar, 0, 1)
        return begun.read()


class NetTape:
    """Tapes of consecutive stages: a run of some tiles through a net."""

    def __init__(self, stages: Sequence[NetStage], tiles: int, is_dual: bool = False):
        self.tiles, self.is_dual = tiles, is_dual
        self._tapes = [StageTape(stage.fit_group_size(tiles), tiles, is_dual) for stage in stages]
        self.nbytes = sum(tape.nbytes for tape in self._tapes)

    def run(self, thetas: Vectors, x: np.ndarray, noises: Sequence[TileNoise | None]) -> np.ndarray:
        """Outputs from x, with the noise of each stage; everything the reverse sweep needs is kept."""
        for tape, theta, noise in zip(self._tapes, thetas, noises, strict=True):
            x = tape.run(theta, x, noise)
        return x.copy()

    def push(self, thetas: Vectors, dots: Vectors) -> np.ndarray:
        """The tangents of the outputs of the last run with respect to the parameters."""
        x_dot = self._tapes[0].no_tangent
        for tape, theta, dot in zip(self._tapes, thetas, dots, strict=True):
            x_dot = tape.push(theta, dot, x_dot)
        return x_dot.copy()

    def pull(self, thetas: Vectors, bars: Vectors, y_bar: np.ndarray, is_x_wanted: bool) -> np.ndarray | None:
        """The gradient of x from that of the outputs, if requested; those of the parameters are added to `bars`."""
        for number in range(len(self._tapes) - 1, -1, -1):
            y_bar = self._tapes[number].pull(thetas[number], bars[number], y_bar, is_x_wanted or number > 0)
        return y_bar.copy() if is_x_wanted else None
