"""The state store of a reverse sweep: arrays in memory, or files in a directory that outlive the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.checkpoints import Kind, Schedule, online
from stepnet.errors import DamagedFile
from stepnet.storage.atomic_files import write_scratch_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import read_npz, report_damage, require_array

if TYPE_CHECKING:
    from stepnet.gradients.reversal import Reversal

PROGRESS_SECONDS = 5.0  # between two writes of the progress of a run with a directory


class StateStore:
    """The contents of the slots of a schedule, and a file in the directory that records progress."""

    def __init__(
        self, schedule: Schedule, directory: Path | None = None, name: str = "",
        memory: dict[int, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._memory: dict[int, np.ndarray] = {} if memory is None else memory
        self._slots, self._has_directory = schedule.slots, directory is not None
        self._directory = Path() if directory is None else directory / name
        self._n_actions = len(schedule)
        self._free: list[np.ndarray] = []  # reused, because allocation costs more than the copy
        self._noted = time.monotonic()
        self._dropped: list[Path] = []

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory against other processes; afterwards remove it if it is empty."""
        if not self._has_directory:
            yield
            return
        with hold_lock(self._directory, "disk"):
            yield
        with suppress(OSError):
            self._directory.rmdir()

    def keep(self, start: int, slot: int, state: np.ndarray) -> None:
        """Copy the state before block `start` into a slot."""
        if slot < self._slots:
            buffer = self._free.pop() if self._free else np.empty_like(state)
            np.copyto(buffer, state)
            self._memory[slot] = buffer
        else:
            _write(self._file(start), state=state)

    def restore(self, start: int, slot: int, state: np.ndarray) -> None:
        """Copy the contents of a slot into `state`."""
        if slot < self._slots:
            np.copyto(state, self._memory[slot])
        else:
            file = self._file(start)
            with report_damage(file, "a state of this run", f"; delete {str(self._directory)!r} to start over"):
                stored = read_npz(file, ("state",))["state"]
                np.copyto(state, require_array("`state`", stored, state.shape, state.dtype))

    def drop(self, start: int, slot: int) -> None:
        """Free a slot."""
        if slot < self._slots:
            self._free.append(self._memory.pop(slot))
        else:  # the last progress file may still need it
            self._dropped.append(self._file(start))

    def note(self, run: Reversal, done: int, state: np.ndarray) -> None:
        """Write everything that the rest of the run depends on, every few seconds."""
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
        """Restore the progress of an earlier run; return its number of actions and its state, or 0 if its loss differs.

        Damaged files are ignored.
        """
        path = self._directory / "progress.npz"
        if not self._has_directory or not path.is_file():
            return 0, state
        try:
            with report_damage(path, "the progress of this run"):
                return self._resume(run, state, read_npz(path, lambda name: True))
        except DamagedFile:
            run.seeds.forget()
            run.bars, run.sums = [], []
            return 0, run.open()

    def _resume(self, run: Reversal, state: np.ndarray, numbers: dict[str, np.ndarray]) -> tuple[int, np.ndarray]:
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
        """Remove the files; the gradient has been computed."""
        if self._has_directory:
            for path in (*self._directory.glob("*.npz"), *self._directory.glob("*.tmp")):
                path.unlink()

    def _file(self, start: int) -> Path:
        """The file for the state before block `start`; its name is unique in the run."""
        return self._directory / f"state-{start}.npz"


class StreamedStates:
    """The states kept of a run whose length is known only when it has ended.

    The unit is a block of steps.  A run of any length needs at most `slots` states, and its reverse sweep takes only
    slightly more steps than if the length had been known (`checkpoints.Online`).
    """

    def __init__(self, slots: int, block: int):
        self.block = block
        self.kept: dict[int, np.ndarray] = {}  # flat states by slot
        self.before = np.zeros(0)  # the state before the last block
        self._decisions, self._n_passed = online(slots), 0

    def look(self, states: np.ndarray) -> None:
        """Take the next states (steps, entries), each the state before a step."""
        for i in range(-self._n_passed % self.block, len(states), self.block):
            if self._n_passed + i > 0:  # the previous block is not the last
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
        """End the run; its schedule continues at the turn, from the state `before`."""
        return self._decisions.finish()


def _write(path: Path, **numbers: Any) -> None:
    """Write atomically, without fsync: damage by a loss of power is detected when the file is read."""
    write_scratch_file(path, lambda file: np.savez(file, **numbers))
