"""Writes the actions of nested blocks; a block that was written before is copied and shifted.

A block of n steps with s slots keeps its first state, advances m steps, reverses the right part (n - m steps with s - 1
slots), restores the first state and reverses the left part (m steps with s slots).  The rule of a schedule determines m
and the blocks that are not split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepnet.checkpoints.actions import Action, Kind
from stepnet.checkpoints.counts import balanced_split, mixed_split

NO_SLOT = -1
Task = tuple[Any, ...]  # a method of the writer and its arguments
ROWS_PER_STEP = 5  # a reversal, and for each split an advance, a keep, a restore and a drop
LONGEST_SCHEDULE = 2**28  # steps; the actions of more would take tens of gigabytes


class BlockRule(NamedTuple):
    """How blocks of n steps with s slots are reversed."""

    bare: Callable[[int, int], bool]
    """Whether the first state of (n, s) need not be kept."""
    short: Callable[[int, int, int], np.ndarray | None]
    """All rows of (n, s) whose first slot is the third argument, or None if it must be split."""
    split: Callable[[int, int], int]
    """The length m of the left part."""


class ScheduleWriter:
    """Rows of actions for one schedule; a block with s slots begins at slot `slots` - s."""

    def __init__(self, n_steps: int, slots: int, rule: BlockRule, forward: Sequence[Action] = ()) -> None:
        if n_steps > LONGEST_SCHEDULE:
            raise ValueError(f"`n_steps` must be at most {LONGEST_SCHEDULE} for a schedule, found {n_steps}")
        self._rows = np.empty((ROWS_PER_STEP * n_steps + len(forward), 4), np.int64)
        self._end = 0
        self._slots = slots
        self._rule = rule
        self._written: dict[tuple[int, int], tuple[int, int, int]] = {}
        if len(forward):
            self._append(np.array(forward, np.int64))

    @property
    def rows(self) -> np.ndarray:
        """The rows written so far."""
        return self._rows[: self._end]

    def reverse(self, start: int, n: int, s: int) -> None:
        """Reverse n steps with s free slots, the state `start` being current."""
        if not self._rule.bare(n, s):
            self.put(Kind.KEEP, start, start, self._slots - s)
        self._nested(start, n, s)

    def reverse_kept(self, start: int, n: int, s: int) -> None:
        """Reverse n steps with s slots, the first of which holds the state `start`."""
        self._restore(start, n, s)
        self._nested(start, n, s)

    def put(self, kind: Kind, start: int, stop: int, slot: int = NO_SLOT) -> None:
        """Write one row."""
        self._rows[self._end] = kind, start, stop, slot
        self._end += 1

    def _nested(self, start: int, n: int, s: int) -> None:
        """Write a block with a stack of tasks instead of recursion, which may be thousands of levels deep."""
        work: list[Task] = [(self._block, start, n, s)]
        while work:
            write, *numbers = work.pop()
            work += write(*numbers)

    def _block(self, start: int, n: int, s: int) -> list[Task]:
        """Reverse n steps from the current state, which is kept if the rule requires it; return the remaining tasks."""
        if self._copy_written(start, n, s) or self._write_short(start, n, s):
            return []
        m, first = self._rule.split(n, s), self._end
        self.put(Kind.ADVANCE, start, start + m)
        if not self._rule.bare(n - m, s - 1):
            self.put(Kind.KEEP, start + m, start + m, self._slots - s + 1)
        right, left = (self._block, start + m, n - m, s - 1), (self._list_left_tasks, start, m, s)
        return [(self._remember, start, n, s, first), left, right]

    def _list_left_tasks(self, start: int, m: int, s: int) -> list[Task]:
        self._restore(start, m, s)
        return self._block(start, m, s)

    def _restore(self, start: int, n: int, s: int) -> None:
        self.put(Kind.RESTORE, start, start, self._slots - s)
        if self._rule.bare(n, s):
            self.put(Kind.DROP, start, start, self._slots - s)

    def _copy_written(self, start: int, n: int, s: int) -> bool:
        if (n, s) not in self._written:
            return False
        first, last, origin = self._written[n, s]
        shift = start - origin
        self._append(self._rows[first:last], np.array([0, shift, shift, 0]))
        return True

    def _write_short(self, start: int, n: int, s: int) -> bool:
        rows = self._rule.short(n, s, self._slots - s)
        if rows is None:
            return False
        first = self._end
        self._append(rows, np.array([0, start, start, 0]))
        self._remember(start, n, s, first)
        return True

    def _remember(self, start: int, n: int, s: int, first: int) -> list[Task]:
        self._written[n, s] = first, self._end, start
        return []

    def _append(self, rows: np.ndarray, shift: int | np.ndarray = 0) -> None:
        end = self._end + len(rows)
        np.add(rows, shift, out=self._rows[self._end : end])
        self._end = end


# ---- slots that hold states -----------------------------------------------------------------------------------------


def _write_short_states(n: int, s: int, slot: int) -> np.ndarray | None:
    if n <= s + 1:
        return _keep_all_states(n, slot)
    if s == 1:
        return np.concatenate((_write_restarts(n, 1, slot), _keep_all_states(1, slot)))
    return None


def _keep_all_states(n: int, slot: int) -> np.ndarray:
    """Keep every state except the last; the first one is kept already."""
    up = np.arange(n - 1)
    down = up[::-1]
    return np.concatenate((
        _write_rows((Kind.KEEP, up, up, slot + up), (Kind.ADVANCE, up, up + 1, NO_SLOT))[1:],
        _write_last_step(n),
        _write_rows(
            (Kind.RESTORE, down, down, slot + down),
            (Kind.DROP, down, down, slot + down),
            (Kind.REVERSE, down, down + 1, NO_SLOT),
        ),
    ))  # fmt: skip


def _write_restarts(n: int, most: int, slot: int) -> np.ndarray:
    """From the state in the only slot to the last step, to the one before, ... until `most` steps remain."""
    down = np.arange(n - 1, most - 1, -1)
    rows = _write_rows(
        (Kind.ADVANCE, 0 * down, down, NO_SLOT),
        (Kind.REVERSE, down, down + 1, NO_SLOT),
        (Kind.RESTORE, 0 * down, 0, slot),
    )
    return np.concatenate((rows, _write_rows((Kind.DROP, np.array([0]), 0, slot))))


# ---- slots that hold states or stages of a step ---------------------------------------------------------------------


def _write_short_mixed(n: int, s: int, slot: int) -> np.ndarray | None:
    if n <= s + 1:
        return _keep_all_stages(n, slot)
    if s == 1:
        return np.concatenate((_write_restarts(n, 2, slot), _keep_all_stages(2, slot)))
    return None


def _keep_all_stages(n: int, slot: int) -> np.ndarray:
    """Keep the stages of every step except the last."""
    up = np.arange(n - 1)
    down = up[::-1]
    return np.concatenate((
        _write_rows((Kind.KEEP_STEP, up, up + 1, slot + up)),
        _write_last_step(n),
        _write_rows((Kind.REVERSE_KEPT, down, down + 1, slot + down), (Kind.DROP, down, down, slot + down)),
    ))  # fmt: skip


def _write_last_step(n: int) -> np.ndarray:
    return _write_rows((Kind.REVERSE, np.array([n - 1]), n, NO_SLOT))


def _write_rows(*patterns: tuple[Any, ...]) -> np.ndarray:
    """The patterns (kind, start, stop, slot) in turn, once for each entry of `start`."""
    rows = np.empty((len(patterns[0][1]), len(patterns), 4), np.int64)
    for i, pattern in enumerate(patterns):
        for column, values in enumerate(pattern):
            rows[:, i, column] = values
    return rows.reshape(-1, 4)


STATES = BlockRule(lambda n, s: n == 1, _write_short_states, balanced_split)
MIXED = BlockRule(lambda n, s: n <= s + 1, _write_short_mixed, mixed_split)
