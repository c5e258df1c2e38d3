"""A run of layers of which everything is kept: its records, and views of where it begins and ends, to be used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layer_runs import Stage


class Tape:
    """The records of all steps of a stage on some tiles, a whole number of its groups."""

    def __init__(self, stage: Stage, tiles: int):
        self.stage, self.tiles, self.groups = stage, tiles, stage.groups(tiles)
        self.count = 1 if stage.is_single else stage.count
        self._room = stage.room(stage.stored, self.groups, self.count + 1)
        self._opening = stage.room(stage.opening, self.groups, 2) if stage.has_opening else None
        records, width = stage.records(self._room), stage.stored.bar_size
        if stage.is_single:
            start, stop = stage.value_place
            bars = stage.bars(self._room, 0)
            self._begun, self._ended = (
                self._tiled(each) for each in (records[0, :, :start], records[0, :, start:stop])
            )
            self._begun_bar, self._ended_bar = self._tiled(bars[:, :start]), self._tiled(bars[:, start:stop])
            return
        first, last = stage.bars(self._room, 0), stage.bars(self._room, self.count)
        begun, begun_bar = records[0, :, :width], first
        if self._opening is not None:
            opened = stage.records(self._opening)
            self._handed = begun, opened[1, :, :width]
            self._handed_bar = stage.bars(self._opening, 1), first
            begun, begun_bar = opened[0, :, :width], stage.bars(self._opening, 0)
        self._last_bar = last
        self._begun, self._begun_bar = self._rows(begun), self._rows(begun_bar)
        self._ended, self._ended_bar = self._rows(records[self.count, :, :width]), self._rows(last)

    def _tiled(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of a chain by itself as (tiles, 1, features, 1, samples)."""
        return numbers.reshape(self.tiles, 1, -1, 1, self.stage.samples)

    def _rows(self, carry: np.ndarray) -> np.ndarray:
        """The rows of the state as (groups, rows, features, tiles in a group, samples)."""
        motion, group = self.stage.motion, self.stage.group
        rows = carry.reshape(self.groups, motion.step.n_rows, -1, group, self.stage.samples)
        state = motion.state
        return rows[:, state[0] : state[-1] + 1 : max(1, state[-1] - state[0])]

    def _put(self, rows: np.ndarray, x: np.ndarray) -> None:
        groups, n_rows, features, group, samples = rows.shape
        rows[...] = x.reshape(groups, group, n_rows, features, samples).transpose(0, 2, 3, 1, 4)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return rows.transpose(0, 3, 1, 2, 4).copy().reshape(self.tiles, -1, self.stage.samples)

    def run(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The end state from x; all that is wanted for the way back is kept."""
        stage = self.stage
        self._put(self._begun, x)
        if self._opening is not None:
            stage.run(self._opening, stage.opening, theta, 0, 1)
            self._handed[0][...] = self._handed[1]
        stage.run(self._room, stage.stored, theta, stage.n_opening, self.count)
        return self._read(self._ended)

    def pull(self, theta: np.ndarray, theta_bar: np.ndarray, y_bar: np.ndarray) -> np.ndarray:
        """The gradient of x from that of the end state; weights' gradients are added to `theta_bar`."""
        stage = self.stage
        if not stage.is_single:
            self._last_bar[...] = 0
        self._put(self._ended_bar, y_bar)
        stage.pull(self._room, stage.stored, theta, theta_bar, stage.n_opening, self.count)
        if self._opening is not None:
            self._handed_bar[0][...] = self._handed_bar[1]
            stage.pull(self._opening, stage.opening, theta, theta_bar, 0, 1)
        return self._read(self._begun_bar)
