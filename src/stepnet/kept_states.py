"""Kept states of a reverse run: arrays in memory, files in a directory that outlive the process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepnet.checkpoints import Action, Kind, Schedule, online

if TYPE_CHECKING:
    from stepnet.reversal import Reversal

PROGRESS_SECONDS = 5.0  # between two notes of how far a run with a directory has come


class KeptStates:
    """What the slots of a schedule hold, and a note in the directory of how far the run has come."""

    def __init__(self, schedule: Schedule, directory: Path | None = None, name: str = "", memory: dict | None = None):
        self._memory: dict[int, np.ndarray] = {} if memory is None else memory
        self._slots, self._has_directory = schedule.slots, directory is not None
        self._directory = Path() if directory is None else directory / name
        self._free: list[np.ndarray] = []  # to be filled again: fresh memory would cost more than the copy
        self._noted = time.monotonic()
        self._dropped: list[Path] = []
        if self._has_directory:
            self._directory.mkdir(parents=True, exist_ok=True)

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
            with np.load(self._file(action)) as numbers:
                np.copyto(state, numbers["state"])

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
        """How many actions an earlier run has done, and its state, its numbers put back; 0 if it had another loss."""
        path = self._directory / "progress.npz"
        if not self._has_directory or not path.is_file():
            return 0, state
        with np.load(path) as numbers:
            run.seeds.put(numbers["seeds"], numbers["seen"])
            if "gradients" in numbers.files:
                if not np.array_equal(run.seeds.gradients, numbers["gradients"]):
                    run.seeds.forget()
                    return 0, run.open()
                run.turn()
                for i, (bar, sums) in enumerate(zip(run.bars, run.sums, strict=True)):
                    bar[...], sums.p[...], sums.t[...] = numbers["bars"][i], numbers["p"][i], numbers["t"][i]
            self._memory = {int(n[5:]): numbers[n] for n in numbers.files if n.startswith("slot_")}
            return int(numbers["done"]), numbers["state"]

    def finish(self) -> None:
        """The gradient is there, so nothing needs to be kept."""
        if self._has_directory:
            for path in (*self._directory.glob("*.npz"), *self._directory.glob("*.tmp")):
                path.unlink()
            self._directory.rmdir()

    def _file(self, action: Action) -> Path:
        """Named by its place in the run, so that it never holds another state."""
        return self._directory / f"state-{action.start}.npz"


class PassedStates:
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
    """All or nothing."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        np.savez(file, **numbers)
    temporary.replace(path)
