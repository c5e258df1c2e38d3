"""Schedules for runs of unknown length, such as those with adaptive steps.

`step` is called after each step except the last; it returns what to do with the state before that step, which must
still be available.  `finish` returns the whole schedule: up to `Schedule.turn` the forward run, as if only the finally
kept states had been kept, then the reversal of the last step and of the intervals between the kept states, each
optimal.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from math import comb
from typing import Any

import numpy as np

from stepnet.checkpoints.actions import Action, Kind
from stepnet.checkpoints.counts import fewest_advances
from stepnet.checkpoints.schedule import Schedule
from stepnet.checkpoints.schedule_writer import NO_SLOT, STATES, ScheduleWriter
from stepnet.records import validate_count

NOW_AND_THEN = 3  # sum of the weights of the two possible ends: 1 for now, 2 for a step later
_advances = lru_cache(maxsize=1 << 16)(fewest_advances)


class Online:
    """Keeps and drops states along a run of unknown length, with a fixed number of slots.

    After beta(s, r) steps the kept states are those of the optimal schedule for that length, for every r.  In between,
    states of the next such schedule are never dropped; of the others, the one is dropped without which the reversal is
    cheapest if the run ends now or (with twice the weight) a step later.  So every length up to beta(s, 2) is reversed
    with the fewest advances and every length up to beta(s, 3) with at most one more (tested up to 12 slots); no rule is
    optimal throughout.  A decision takes about a microsecond for each slot.  References: Stumm & Walther (2010), SIAM
    J. Sci. Comput. 32:836, optimal and nearly optimal rules up to beta(s, 3); Wang, Moin & Iaccarino (2009), SIAM J.
    Sci. Comput. 31:2549, fewest repetitions of any one step for every length.

    Parameters
    ----------
    slots : int
        Maximum number of states in memory.

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.Online(3).slots
    3
    """

    def __init__(self, slots: int) -> None:
        self.slots = validate_count("slots", slots, 1)
        self.n_passed = 0
        self.kept: list[tuple[int, int]] = []
        """(position, slot) of the kept states, in order."""
        self._repetitions = 0
        self._lasting: set[int] = set()

    def step(self) -> tuple[Action, ...]:
        """Record a step that is not the last; return what to do with the state before it (Drop another and Keep it)."""
        k = self.n_passed
        self.n_passed += 1
        if comb(self.slots + self._repetitions, self.slots) < k + 2:
            self._repetitions += 1
            self._lasting = _find_optimal_places(self.slots, self._repetitions)
        return self._place(k)

    def finish(self) -> Schedule:
        """Record the last step; return the schedule of the whole run, which continues at its `turn`."""
        n = self.n_passed + 1
        tape = ScheduleWriter(n, self.slots, STATES, _write_forward(self.kept, n))
        turn = len(tape.rows)
        _reverse_between(tape, n, [position for position, _ in self.kept], lambda i: self.slots - i)
        held = [slot for _, slot in self.kept]
        free = set(range(self.slots)).difference(held)
        place = np.array([*held, *free, NO_SLOT])  # the last entry is for rows without a slot
        tape.rows[turn:, 3] = place[tape.rows[turn:, 3]]
        return Schedule("online", n, self.slots, tape.rows)

    def _place(self, k: int) -> tuple[Action, ...]:
        if len(self.kept) < self.slots:
            return (self._keep(k, len(self.kept)),)
        worst = self._least_missed([position for position, _ in self.kept] + [k], k + 1)
        if worst == len(self.kept):
            return ()
        position, slot = self.kept.pop(worst)
        return Action(Kind.DROP, position, position, slot), self._keep(k, slot)

    def _keep(self, k: int, slot: int) -> Action:
        self.kept.append((k, slot))
        return Action(Kind.KEEP, k, k, slot)

    def _least_missed(self, places: list[int], end: int) -> int:
        """The index to omit from s + 1 places; of equal ones the latest.

        Without place j the intervals before it are unchanged, two are merged, and those after it have one more slot.
        """
        s, slots = self.slots, range(self.slots, 0, -1)
        lengths = [b - a for a, b in pairwise(places)]
        own = map(_advances, lengths, slots)
        joined = map(_advances, (c - a for a, c in zip(places, places[2:], strict=False)), slots)
        roomier = list(map(_advances, lengths[1:], slots))
        before = list(accumulate(own, initial=0))
        after = [*accumulate(reversed(roomier[1:]), initial=0)][::-1]
        last = _weight_intervals(end - places[s])
        costs = [NOW_AND_THEN * (x + y + z) + last for x, y, z in zip(before, joined, after, strict=False)]
        costs.append(NOW_AND_THEN * before[s - 1] + _weight_intervals(end - places[s - 1]))
        candidates = [j for j in range(s, 0, -1) if places[j] not in self._lasting]
        return min(candidates, key=lambda j: costs[j - 1])


class TwoLevel:
    """Keeps every `period`-th state on disk, for any length; each period is reversed with slots in memory.

    A period costs t(period, slots + 1) advances after the forward run, since its kept state is one more slot; the total
    is `two_level_advances`.  No gradient of this package uses it; `execute` runs its schedule for other code.

    Parameters
    ----------
    period : int
        Steps between states on disk.
    slots : int
        Slots in memory with which a period is reversed.

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.TwoLevel(period=10, slots=3).period
    10
    """

    def __init__(self, period: int, slots: int) -> None:
        self.period = validate_count("period", period, 1)
        self.slots = validate_count("slots", slots, 1)
        self.n_passed = 0

    def step(self) -> tuple[Action, ...]:
        """Record a step that is not the last; return what to do with the state before it (Keep it or nothing)."""
        k = self.n_passed
        self.n_passed += 1
        return () if k % self.period else (Action(Kind.KEEP, k, k, self.slots + k // self.period),)

    def finish(self) -> Schedule:
        """Record the last step; return the schedule of the whole run, which continues at its `turn`."""
        n = self.n_passed + 1
        places = list(range(0, self.n_passed, self.period))
        tape = ScheduleWriter(
            n, self.slots + 1, STATES, _write_forward([(k, self.slots + i) for i, k in enumerate(places)], n)
        )
        turn = len(tape.rows)
        _reverse_between(tape, n, places, lambda i: self.slots + 1)
        start, slot = tape.rows[turn:, 1], tape.rows[turn:, 3]
        slot[:] = np.where(slot == 0, self.slots + start // self.period, np.where(slot > 0, slot - 1, NO_SLOT))
        return Schedule("two_level", n, self.slots, tape.rows, len(places))


def online(slots: int) -> Online:
    """A run of unknown length with `slots` states in memory, see `Online`.

    Parameters
    ----------
    slots : int
        Maximum number of states in memory.

    Returns
    -------
    Online

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.online(5).slots
    5
    """
    return Online(slots)


def two_level(period: int, slots: int) -> TwoLevel:
    """A run of unknown length with every `period`-th state on disk and `slots` in memory, see `TwoLevel`.

    Parameters
    ----------
    period : int
        Steps between states on disk.
    slots : int
        Slots in memory with which a period is reversed.

    Returns
    -------
    TwoLevel

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.two_level(period=10, slots=3).slots
    3
    """
    return TwoLevel(period, slots)


def _find_optimal_places(slots: int, repetitions: int) -> set[int]:
    """The positions of the states that reverse beta(s, r) steps: after beta(s, r-1), beta(s-1, r-1) more, ..."""
    lengths = [comb(s + repetitions - 1, s) for s in range(slots, 1, -1)]
    return {0, *np.cumsum(lengths).tolist()}


def _weight_intervals(length: int) -> int:
    """The last interval, which has one slot: once if the run ends now, twice if it ends a step later."""
    return _advances(length, 1) + (NOW_AND_THEN - 1) * _advances(length + 1, 1)


def _write_forward(kept: list[tuple[int, int]], n: int) -> list[Action]:
    """From kept state to kept state and on to the state before the last step."""
    ends = [position for position, _ in kept[1:]] + [n - 1]
    return [
        action
        for (start, slot), stop in zip(kept, ends, strict=False)
        for action in (Action(Kind.KEEP, start, start, slot), Action(Kind.ADVANCE, start, stop, NO_SLOT))
    ]


def _reverse_between(tape: ScheduleWriter, n: int, places: list[int], slots_of: Any) -> None:
    """Reverse the last step from the state before it, then the intervals from kept state to kept state."""
    tape.put(Kind.REVERSE, n - 1, n)
    stop = n - 1
    for i in range(len(places) - 1, -1, -1):
        tape.reverse_kept(places[i], stop - places[i], slots_of(i))
        stop = places[i]
