"""A run of layers of which everything is kept: its records, and views of where it begins and ends, to be used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layer_runs import Stage


class Places(NamedTuple):
    """Views of where values, tangents or gradients begin and end, and what an opening hands on: to whom, and from."""

    begun: np.ndarray
    ended: np.ndarray
    handed: tuple[np.ndarray, np.ndarray] | None = None


class Tape:
    """The records of all steps of a stage on some tiles, a whole number of its groups; a dual one has tangents too."""

    def __init__(self, stage: Stage, tiles: int, is_dual: bool = False):
        self.stage, self.tiles, self.groups, self.is_dual = stage, tiles, stage.groups(tiles), is_dual
        self.count = 1 if stage.is_single else stage.count
        self._room = stage.room(stage.stored, self.groups, self.count + 1, is_dual)
        self._opening = stage.room(stage.opening, self.groups, 2, is_dual) if stage.has_opening else None
        self._last_bar = stage.bars(self._room, self.count)
        self._values, self._bars = self._states(is_dot=False), self._gradients()
        self._dots = self._states(is_dot=True) if is_dual else None

    def _states(self, is_dot: bool) -> Places:
        stage, width = self.stage, self.stage.stored.bar_size
        records = stage.records(self._room, is_dot)
        if stage.is_single:
            start, stop = stage.value_place
            return Places(self._tiled(records[0, :, :start]), self._tiled(records[0, :, start:stop]))
        begun, ended = records[0, :, :width], self._rows(records[self.count, :, :width])
        if self._opening is None:
            return Places(self._rows(begun), ended)
        opened = stage.records(self._opening, is_dot)
        return Places(self._rows(opened[0, :, :width]), ended, (begun, opened[1, :, :width]))

    def _gradients(self) -> Places:
        stage, first = self.stage, self.stage.bars(self._room, 0)
        if stage.is_single:
            start, stop = stage.value_place
            return Places(self._tiled(first[:, :start]), self._tiled(first[:, start:stop]))
        if self._opening is None:
            return Places(self._rows(first), self._rows(self._last_bar))
        before, after = (stage.bars(self._opening, slot) for slot in (0, 1))
        return Places(self._rows(before), self._rows(self._last_bar), (after, first))

    def _tiled(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of a chain by itself as (tiles, features, samples)."""
        return numbers.reshape(self.tiles, -1, self.stage.samples)

    def _rows(self, carry: np.ndarray) -> np.ndarray:
        """The rows of the state as (groups, tiles in a group, rows, features, samples)."""
        motion, group = self.stage.motion, self.stage.group
        rows = carry.reshape(self.groups, motion.step.n_rows, -1, group, self.stage.samples)
        state = motion.state
        return rows[:, state[0] : state[-1] + 1 : max(1, state[-1] - state[0])].transpose(0, 3, 1, 2, 4)

    def _put(self, rows: np.ndarray, x: np.ndarray) -> None:
        rows[...] = x.reshape(rows.shape)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return rows.copy().reshape(self.tiles, -1, self.stage.samples)

    def run(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The end state from x; all that is wanted for the way back is kept."""
        stage, (begun, ended, handed) = self.stage, self._values
        self._put(begun, x)
        if handed is not None:
            stage.run(self._opening, stage.opening, theta, 0, 1)
            handed[0][...] = handed[1]
        stage.run(self._room, stage.stored, theta, stage.n_opening, self.count)
        return self._read(ended)

    def push(self, theta: np.ndarray, theta_dot: np.ndarray, x_dot: np.ndarray) -> np.ndarray:
        """The tangent of the end state of the last run, for a dual tape."""
        stage, (begun, ended, handed) = self.stage, self._dots
        self._put(begun, x_dot)
        if handed is not None:
            stage.push(self._opening, stage.opening, theta, theta_dot, 0, 1, is_known=True)
            handed[0][...] = handed[1]
        stage.push(self._room, stage.stored, theta, theta_dot, stage.n_opening, self.count, is_known=True)
        return self._read(ended)

    def pull(self, theta: np.ndarray, theta_bar: np.ndarray, y_bar: np.ndarray) -> np.ndarray:
        """The gradient of x from that of the end state; weights' gradients are added to `theta_bar`."""
        stage, (begun, ended, handed) = self.stage, self._bars
        if not stage.is_single:
            self._last_bar[...] = 0
        self._put(ended, y_bar)
        stage.pull(self._room, stage.stored, theta, theta_bar, stage.n_opening, self.count)
        if handed is not None:
            handed[0][...] = handed[1]
            stage.pull(self._opening, stage.opening, theta, theta_bar, 0, 1)
        return self._read(begun)
