"""Kept states of a reverse run: arrays in memory, files in a directory that outlive the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepnet.checkpoints import Action, Kind, Schedule, online
from stepnet.errors import DamagedFile
from stepnet.storage.atomic_files import write_scratch_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import read_npz, report_damage, require_array

if TYPE_CHECKING:
    from stepnet.gradients.reversal import Reversal

PROGRESS_SECONDS = 5.0  # between two notes of how far a run with a directory has come


class StateStore:
    """What the slots of a schedule hold, and a note in the directory of how far the run has come."""

    def __init__(self, schedule: Schedule, directory: Path | None = None, name: str = "", memory: dict | None = None):
        self._memory: dict[int, np.ndarray] = {} if memory is None else memory
        self._slots, self._has_directory = schedule.slots, directory is not None
        self._directory = Path() if directory is None else directory / name
        self._n_actions = len(schedule)
        self._free: list[np.ndarray] = []  # to be filled again: fresh memory would cost more than the copy
        self._noted = time.monotonic()
        self._dropped: list[Path] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes out of the directory; in the end it is removed if nothing is left in it."""
        if not self._has_directory:
            yield
            return
        with hold_lock(self._directory, "disk"):
            yield
        with suppress(OSError):
            self._directory.rmdir()

    def keep(self, action: Action, state: np.ndarray) -> None:
        if action.slot < self._slots:
            room = self._free.pop() if self._free else np.empty_like(state)
            np.copyto(room, state)
            self._memory[action.slot] = room
        else:
            _write(self._file(action), state=state)

    def restore(self, action: Action, state: np.ndarray) -> None:
        if action.slot < self._slots:
            np.copyto(state, self._memory[action.slot])
        else:
            file = self._file(action)
            with report_damage(file, "a state of this run", f"; delete {str(self._directory)!r} to begin anew"):
                stored = read_npz(file, ("state",))["state"]
                np.copyto(state, require_array("`state`", stored, state.shape, state.dtype))

    def drop(self, action: Action) -> None:
        if action.slot < self._slots:
            self._free.append(self._memory.pop(action.slot))
        else:  # the last note may still need it
            self._dropped.append(self._file(action))

    def note(self, run: Reversal, done: int, state: np.ndarray) -> None:
        """Write down everything that the rest of the run depends on, now and then."""
        if not self._has_directory or time.monotonic() - self._noted < PROGRESS_SECONDS:
            return
        self._noted = time.monotonic()
        kept = {f"slot_{slot}": state for slot, state in self._memory.items()}
        back = {}
        if run.is_turned:
            p, t = zip(*run.sums, strict=True)
            back = {"gradients": run.seeds.gradients, "bars": run.bars, "p": p, "t": t}
        read = {"seeds": run.seeds.states, "seen": run.seeds.seen}
        _write(self._directory / "progress.npz", done=done, state=state, **read, **back, **kept)
        while self._dropped:
            self._dropped.pop().unlink(missing_ok=True)

    def resume(self, run: Reversal, state: np.ndarray) -> tuple[int, np.ndarray]:
        """How many actions an earlier run has done, and its state, its numbers put back; 0 if it had another loss.

        What is damaged is not gone on from.
        """
        path = self._directory / "progress.npz"
        if not self._has_directory or not path.is_file():
            return 0, state
        try:
            with report_damage(path, "the progress of this run"):
                return self._restored(run, state, read_npz(path, lambda name: True))
        except DamagedFile:
            run.seeds.forget()
            run.bars, run.sums = [], []
            return 0, run.open()

    def _restored(self, run: Reversal, state: np.ndarray, numbers: dict[str, np.ndarray]) -> tuple[int, np.ndarray]:
        done = int(require_array("`done`", numbers["done"], (), np.int64))
        if not 0 <= done <= self._n_actions:
            raise ValueError(f"`done` must be from 0 to {self._n_actions}, found {done}")
        seeds, seen = run.seeds.states, run.seeds.seen
        slots = {int(name[5:]): stored for name, stored in numbers.items() if name.startswith("slot_")}
        for stored in (numbers["state"], *slots.values()):
            require_array("a state", stored, state.shape, state.dtype)
        require_array("`seeds`", numbers["seeds"], seeds.shape, seeds.dtype, is_finite=False)
        run.seeds.put(numbers["seeds"], require_array("`seen`", numbers["seen"], seen.shape, seen.dtype))
        if "gradients" in numbers:
            if not np.array_equal(run.seeds.gradients, numbers["gradients"]):
                run.seeds.forget()
                return 0, run.open()
            run.turn()
            for i, (bar, sums) in enumerate(zip(run.bars, run.sums, strict=True)):
                for name, own in (("bars", bar), ("p", sums.p), ("t", sums.t)):
                    own[...] = require_array(f"`{name}`", numbers[name][i], own.shape, own.dtype, is_finite=False)
        self._memory = slots
        return done, numbers["state"]

    def finish(self) -> None:
        """The gradient is there, so nothing needs to be kept."""
        if self._has_directory:
            for path in (*self._directory.glob("*.npz"), *self._directory.glob("*.tmp")):
                path.unlink()

    def _file(self, action: Action) -> Path:
        """Named by its place in the run, so that it never holds another state."""
        return self._directory / f"state-{action.start}.npz"


class StreamedStates:
    """The states to keep of a run that passes by, whose length is known only when it has ended.

    The unit is a block of steps.  A run of any length needs no more than `slots` states, and goes back from them with
    hardly more steps than if its length had been known (`checkpoints.Online`).
    """

    def __init__(self, slots: int, block: int):
        self.block = block
        self.kept: dict[int, np.ndarray] = {}  # flat states by slot
        self.before = np.zeros(0)  # the state before the last block
        self._decisions, self._n_passed = online(slots), 0

    def look(self, states: np.ndarray) -> None:
        """The next states (steps, entries), each the one before a step that was taken or is about to be."""
        for i in range(-self._n_passed % self.block, len(states), self.block):
            if self._n_passed + i > 0:  # the block before is not the last
                self._decide()
            self.before = states[i].copy()
        self._n_passed += len(states)

    def _decide(self) -> None:
        for action in self._decisions.step():
            if action.kind == Kind.KEEP:
                self.kept[action.slot] = self.before
            else:
                del self.kept[action.slot]

    def finish(self) -> Schedule:
        """The run has ended: what is left to do begins at the turn of the schedule, from the state `before`."""
        return self._decisions.finish()


def _write(path: Path, **numbers) -> None:
    """All or nothing.  The disk is not waited for: what a loss of power damages is noticed when it is read."""
    write_scratch_file(path, lambda file: np.savez(file, **numbers))
