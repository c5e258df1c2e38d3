"""Execution of schedules: actions become calls of a run, which holds the states and takes the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stepnet.checkpoints.actions import Kind
from stepnet.checkpoints.schedule import CHUNK, Schedule
from stepnet.validation import check, function, having, instance, optional, whole


class ScheduledRun(Protocol):
    """The interface of a run: it has a current state, slots, and a gradient that it pulls back.

    State k is the one before step k.  The pre- and postconditions of each call are given by `Kind`.
    """

    def advance(self, start: int, stop: int) -> None:
        """Run the steps start..stop from the current state."""

    def keep(self, start: int, slot: int) -> None:
        """Copy the current state `start` into a slot."""

    def restore(self, start: int, slot: int) -> None:
        """Make the state `start` in a slot the current one."""

    def drop(self, start: int, slot: int) -> None:
        """Free a slot, which holds the state `start` or the stages of that step."""

    def reverse(self, start: int) -> None:
        """Run the step `start` from the current state and pull the gradient back through it."""


class StageKeepingRun(ScheduledRun, Protocol):
    """A run whose slots may also hold the stages of a step, as `mixed` schedules require."""

    def keep_step(self, start: int, slot: int) -> None:
        """Run the step `start` from the current state and keep its stages in a slot."""

    def reverse_kept(self, start: int, slot: int) -> None:
        """Pull the gradient back through the step `start` by its stages in a slot."""


NOTED = frozenset((Kind.KEEP, Kind.REVERSE, Kind.KEEP_STEP, Kind.REVERSE_KEPT))  # a run may be resumed after these
A_RUN = having("advance", "keep", "restore", "drop", "reverse", what="a run")


@check(schedule=instance(Schedule), run=A_RUN, begin=whole(), end=optional(whole()), note=optional(function))
def execute(
    schedule: Schedule,
    run: ScheduledRun | StageKeepingRun,
    begin: int = 0,
    end: int | None = None,
    note: Callable[[int], None] | None = None,
) -> None:
    """Execute the actions of a schedule on a run.

    Parameters
    ----------
    schedule : Schedule
    run : ScheduledRun or StageKeepingRun
        The second only for schedules that keep the stages of steps (`mixed`).
    begin, end : int, optional
        The range of actions to execute, by default all; those before `schedule.turn` are the forward run, so a run that
        has already ended begins there.
    note : callable, optional
        `note(n)` is called after each action that has kept a state or reversed a step; a run may be resumed from there
        with `begin=n`.

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> class Print:
    ...     def advance(self, start, stop): print("advance", start, stop)
    ...     def keep(self, start, slot): print("keep", start)
    ...     def restore(self, start, slot): print("restore", start)
    ...     def drop(self, start, slot): print("drop", start)
    ...     def reverse(self, start): print("reverse", start)
    >>> checkpoints.execute(checkpoints.binomial(2, 1), Print())
    keep 0
    advance 0 1
    reverse 1
    restore 0
    drop 0
    reverse 0
    """
    rows, done, calls = schedule.actions[begin:end], begin, _list_calls(run)
    for first in range(0, len(rows), CHUNK):
        for kind, start, stop, slot in rows[first : first + CHUNK].tolist():
            calls[kind](start, stop, slot)
            done += 1
            if note is not None and kind in NOTED:
                note(done)


def _list_calls(run: Any) -> tuple[Callable[[int, int, int], None], ...]:
    """What each kind of action calls, in the order of `Kind`."""
    return (
        lambda start, stop, slot: run.advance(start, stop),
        lambda start, stop, slot: run.keep(start, slot),
        lambda start, stop, slot: run.restore(start, slot),
        lambda start, stop, slot: run.reverse(start),
        lambda start, stop, slot: run.drop(start, slot),
        lambda start, stop, slot: _require_stages(run).keep_step(start, slot),
        lambda start, stop, slot: _require_stages(run).reverse_kept(start, slot),
    )


def _require_stages(run: Any) -> StageKeepingRun:
    if not hasattr(run, "keep_step") or not hasattr(run, "reverse_kept"):
        raise TypeError(
            f"the schedule keeps stages of steps, for which `run` needs `keep_step` and `reverse_kept`; "
            f"{type(run).__name__} has none, so use a schedule of states such as `binomial`"
        )
    return run
