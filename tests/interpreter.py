"""Executes schedules on integers: a state is the number of steps before it, the stages of a step are its number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stepnet.checkpoints import Action, Kind, Schedule


@dataclass
class Interpreter:
    """What an adjoint run would hold and do; every action must be legal when it comes."""

    n_steps: int
    slots: int
    disk_slots: int = 0
    current: int | None = 0
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    reversed_down_to: int = -1
    runs: Counter = field(default_factory=Counter)
    n_held: int = 0
    n_on_disk: int = 0
    peak: int = 0
    disk_peak: int = 0
    disk_traffic: int = 0

    def __post_init__(self):
        self.reversed_down_to = self.n_steps

    def execute(self, action: Action) -> None:
        kind, start, stop, slot = action
        {
            Kind.ADVANCE: self.advance,
            Kind.KEEP: self.keep,
            Kind.RESTORE: self.restore,
            Kind.REVERSE: self.reverse,
            Kind.DROP: self.drop,
            Kind.KEEP_STEP: self.keep_step,
            Kind.REVERSE_KEPT: self.reverse_kept,
        }[kind](start, stop, slot)
        if kind in (Kind.KEEP, Kind.RESTORE, Kind.KEEP_STEP, Kind.REVERSE_KEPT):
            self.disk_traffic += slot >= self.slots

    def advance(self, start, stop, slot):
        assert self.current == start < stop < self.reversed_down_to
        assert slot == -1
        self.runs.update(range(start, stop))
        self.current = stop

    def keep(self, start, stop, slot):
        assert self.current == start == stop
        self._fill(slot, "state", start)

    def restore(self, start, stop, slot):
        assert start == stop
        assert self.held[slot] == ("state", start)
        self.current = start

    def reverse(self, start, stop, slot):
        assert self.current == start
        assert slot == -1
        self._reversed(start, stop)

    def drop(self, start, stop, slot):
        assert start == stop
        assert self.held.pop(slot)[1] == start
        self._count(slot, -1)

    def keep_step(self, start, stop, slot):
        assert stop == start + 1
        self.advance(start, stop, -1)
        self._fill(slot, "stages", start)

    def reverse_kept(self, start, stop, slot):
        assert self.held[slot] == ("stages", start)
        self._reversed(start, stop)

    def _fill(self, slot, what, position):
        assert 0 <= slot < self.slots + self.disk_slots
        assert slot not in self.held, "a slot is dropped before it is used again"
        self.held[slot] = what, position
        self._count(slot, 1)

    def _count(self, slot, change):
        if slot < self.slots:
            self.n_held += change
        else:
            self.n_on_disk += change
        self.peak, self.disk_peak = max(self.peak, self.n_held), max(self.disk_peak, self.n_on_disk)

    def _reversed(self, start, stop):
        assert stop == start + 1 == self.reversed_down_to, "each step once, the last one first"
        self.reversed_down_to = start
        self.current = None


def interpret(schedule: Schedule) -> Interpreter:
    """Run to the end; the counts of the schedule must be those of the run."""
    run = Interpreter(schedule.n_steps, schedule.slots, schedule.disk_slots)
    for action in schedule:
        run.execute(action)
    assert run.reversed_down_to == 0
    assert not run.held, "every slot is free in the end"
    assert run.runs.total() == schedule.advances
    assert run.peak == schedule.peak <= schedule.slots
    assert run.disk_peak == schedule.disk_peak <= schedule.disk_slots
    assert run.disk_traffic == schedule.disk_traffic
    return run
