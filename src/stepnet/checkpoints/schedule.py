"""Schedules: the actions of an adjoint run as integers, without any state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepnet.checkpoints.actions import COLUMNS, KINDS, ROW, Action, Kind
from stepnet.checkpoints.drawing import COLUMN, draw
from stepnet.records import format_value, validate_count

CHUNK = 4096  # rows converted to Python integers at a time


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Actions that reverse `n_steps` steps, the last one first.

    Parameters
    ----------
    name : str
    n_steps : int
        Steps (or blocks of steps) to reverse.
    slots : int
        Slots in memory, numbered 0 .. slots - 1.
    actions : int64 array (actions, 4)
        Columns kind, start, stop, slot as in `Action`; the run begins with state 0 current and every slot free.
    disk_slots : int
        Slots on disk, numbered slots .. slots + disk_slots - 1.

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> schedule = checkpoints.binomial(10, 3)
    >>> schedule.n_steps, schedule.advances, schedule.peak
    (10, 15, 3)
    """

    name: str
    n_steps: int
    slots: int
    actions: np.ndarray
    disk_slots: int = 0

    def __post_init__(self) -> None:
        for field, least in (("n_steps", 0), ("slots", 1), ("disk_slots", 0)):
            object.__setattr__(self, field, validate_count(field, getattr(self, field), least))
        try:
            actions = np.ascontiguousarray(self.actions)
        except (TypeError, ValueError):
            raise TypeError(f"`actions` must be int64 of shape (m, 4), found {format_value(self.actions)}") from None
        if actions.dtype != np.int64 or actions.ndim != 2 or actions.shape[1] != 4:
            raise ValueError(f"`actions` must be int64 of shape (m, 4), found {actions.dtype} of {actions.shape}")
        if len(actions):
            _require_ranges(actions, self.n_steps, self.slots + self.disk_slots)
        frozen = actions.view()
        frozen.flags.writeable = False
        object.__setattr__(self, "actions", frozen)

    @property
    def records(self) -> np.ndarray:
        """The same rows as a structured array with the fields kind, start, stop, slot."""
        return self.actions.view(ROW)[:, 0]

    def __iter__(self) -> Iterator[Action]:
        for begin in range(0, len(self.actions), CHUNK):
            for kind, start, stop, slot in self.actions[begin : begin + CHUNK].tolist():
                yield Action(KINDS[kind], start, stop, slot)

    def __len__(self) -> int:
        return len(self.actions)

    def __repr__(self) -> str:
        disk = f" and {self.disk_slots} on disk" if self.disk_slots else ""
        return (
            f"Schedule({self.name}: {self.n_steps} steps, {self.slots} slots{disk}, {self.advances} advances, "
            f"{len(self)} actions)"
        )

    @cached_property
    def advances(self) -> int:
        """Steps run forward, without those inside the reversed steps."""
        _, start, stop, _ = self.actions.T
        return int(np.sum(stop - start, where=self._is(Kind.ADVANCE, Kind.KEEP_STEP)))

    @cached_property
    def evaluations(self) -> int:
        """Steps run forward, with those inside the reversed steps."""
        return self.advances + int(self._is(Kind.REVERSE).sum())

    @cached_property
    def peak(self) -> int:
        """The largest number of slots in memory that are taken at one time."""
        return self._most_taken(self.actions[:, 3] < self.slots)

    @cached_property
    def disk_peak(self) -> int:
        """The largest number of slots on disk that are taken at one time."""
        return self._most_taken(self.actions[:, 3] >= self.slots)

    @cached_property
    def disk_traffic(self) -> int:
        """Writes to and reads from disk."""
        moved = self._is(Kind.KEEP, Kind.RESTORE, Kind.KEEP_STEP, Kind.REVERSE_KEPT)
        return int(np.sum(moved & (self.actions[:, 3] >= self.slots)))

    @cached_property
    def turn(self) -> int:
        """The index of the first Reverse: the actions before it are the forward run."""
        return int(np.argmax(self._is(Kind.REVERSE))) if len(self) else 0

    def draw(self, width: int = 100, height: int = 60) -> str:
        """A text drawing: time goes to the right, one line for each run forward and the reversal that ends it.

        `o` is a taken slot (`D` on disk, `s` with stages), `--` a step forward, `<` a reversed one.  A long schedule is
        drawn with several steps to a column (`width` characters in all) and only its first `height` lines.
        """
        return draw(self, validate_count("width", width, COLUMN), validate_count("height", height, 1))

    def _is(self, *kinds: Kind) -> np.ndarray:
        wanted = np.zeros(len(KINDS), bool)
        wanted[list(kinds)] = True
        return wanted[self.actions[:, 0]]

    def _most_taken(self, here: np.ndarray) -> int:
        change = self._is(Kind.KEEP, Kind.KEEP_STEP).astype(np.int64) - self._is(Kind.DROP)
        return int(np.cumsum(change * here).max(initial=0))


def _require_ranges(actions: np.ndarray, n_steps: int, slots: int) -> None:
    least, most = (0, 0, 0, -1), (len(KINDS) - 1, n_steps, n_steps, slots - 1)
    for name, column, low, high in zip(COLUMNS, actions.T, least, most, strict=True):
        lowest, highest = column.min(), column.max()
        if lowest < low or highest > high:
            raise ValueError(f"`actions`: {name} must be within {low}..{high}, found {lowest}..{highest}")
