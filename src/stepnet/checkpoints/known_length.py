"""Schedules for a number of steps known in advance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stepnet.checkpoints.actions import Kind
from stepnet.checkpoints.counts import validate_steps
from stepnet.checkpoints.schedule import Schedule
from stepnet.checkpoints.schedule_writer import MIXED, STATES, BlockRule, ScheduleWriter
from stepnet.records import validate_count


def store_all(n_steps: int) -> Schedule:
    """Every state is kept, so that no step is run twice: n - 1 slots, n - 1 advances.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.store_all(10).advances
    9
    """
    n = validate_steps("n_steps", n_steps)
    slots = max(n - 1, 1)
    return Schedule("store_all", n, slots, _write_nested(n, slots, STATES))


def uniform(n_steps: int, slots: int) -> Schedule:
    """Evenly spaced states are kept in the forward run; the intervals between them are reversed as in `binomial`.

    Interval i may use its own slot and those of the intervals after it, so the rule "keep every k-th state" costs sum
    t(length_i, s - i) advances after the forward run.  No gradient of this package uses it; `execute` runs it for other
    code.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    slots : int
        Maximum number of states kept at a time.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.uniform(10, 10).advances
    9
    """
    n, s = validate_steps("n_steps", n_steps), validate_count("slots", slots, 1)
    kept = min(s, n - 1)
    if kept < 2:
        return Schedule("uniform", n, s, _write_nested(n, s, STATES))
    places = [i * n // kept for i in range(kept)]
    tape = ScheduleWriter(n, s, STATES)
    for slot, (start, stop) in enumerate(pairwise(places)):
        tape.put(Kind.KEEP, start, start, slot)
        tape.put(Kind.ADVANCE, start, stop)
    tape.reverse(places[-1], n - places[-1], s - kept + 1)
    for slot in range(kept - 2, -1, -1):
        tape.reverse_kept(places[slot], places[slot + 1] - places[slot], s - slot)
    return Schedule("uniform", n, s, tape.rows)


def binomial(n_steps: int, slots: int) -> Schedule:
    """The fewest advances for a number of slots, t(n, s) = r n - C(s + r, s + 1); the initial state takes a slot.

    Reference: Griewank & Walther (2000), Algorithm 799: revolve, ACM Trans. Math. Softw. 26:19.

    Parameters
    ----------
    n_steps : int
        Steps (or blocks of steps) to reverse.
    slots : int
        Maximum number of states kept at a time.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.binomial(100, 10).advances == checkpoints.binomial_advances(100, 10)
    True
    """
    n, s = validate_steps("n_steps", n_steps), validate_count("slots", slots, 1)
    return Schedule("binomial", n, s, _write_nested(n, s, STATES))


def multistage(n_steps: int, memory_slots: int, disk_slots: int) -> Schedule:
    """The `binomial` schedule of memory and disk slots together, with the slots used least often on disk.

    The number of advances is minimal for the total number of slots.  A write and a read of a slot cost the same, and
    each slot of the binomial schedule is either in memory or on disk throughout, so the disk traffic is the sum over
    its slots.  Reference: Stumm & Walther (2009), SIAM J. Sci. Comput. 31:1946.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    memory_slots : int
        Slots in memory.
    disk_slots : int
        Slots on disk.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.multistage(100, 4, 6).advances == checkpoints.binomial(100, 10).advances
    True
    """
    n, memory = validate_steps("n_steps", n_steps), validate_count("memory_slots", memory_slots, 1)
    disk = validate_count("disk_slots", disk_slots, 0)
    used = min(memory + disk, n)
    rows = _write_nested(n, used, STATES)
    traffic = np.bincount(rows[np.isin(rows[:, 0], (Kind.KEEP, Kind.RESTORE)), 3], minlength=used)
    place = np.full(used + 1, -1)  # the last entry is for rows without a slot, whose slot is -1
    place[np.argsort(-traffic, kind="stable")] = np.arange(used)
    rows[:, 3] = place[rows[:, 3]]
    return Schedule("multistage", n, memory, rows, disk)


def mixed(n_steps: int, slots: int) -> Schedule:
    """The fewest evaluations when a slot may hold a state or all stages of one step, which reverse it directly.

    Runs cannot restart from stages.  The count is `mixed_evaluations`; this is worthwhile if the stages of a step take
    about as much memory as a state.  No gradient of this package uses it; `execute` runs it for a `StageKeepingRun`.
    References: Zhang & Constantinescu (2023), arXiv:2106.13879; Maddison (2023), arXiv:2305.09568.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    slots : int
        Slots for states or stages.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.mixed(10, 3).n_steps
    10
    """
    n, s = validate_steps("n_steps", n_steps), validate_count("slots", slots, 1)
    return Schedule("mixed", n, s, _write_nested(n, s, MIXED))


def _write_nested(n: int, s: int, rule: BlockRule) -> np.ndarray:
    tape = ScheduleWriter(n, s, rule)
    if n:
        tape.reverse(0, n, s)
    return tape.rows
