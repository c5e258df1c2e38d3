"""A schedule as text: time runs to the right, forward runs and their reversals downward."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from stepnet.checkpoints.actions import Action, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepnet.checkpoints.schedule import Schedule

COLUMN = 2  # characters per step: its state, then its run
REVERSALS = (Kind.REVERSE, Kind.REVERSE_KEPT)


def draw(schedule: Schedule, width: int, height: int) -> str:
    """One line for each run forward and the reversal that ends it, below a ruler of steps."""
    per_column = -(-COLUMN * schedule.n_steps // width) or 1
    shown = list(islice(_draw_lines(schedule, per_column), height + 1))
    if len(shown) > height:
        shown[height:] = [f"... {schedule.n_steps - height} more"]
    return "\n".join([repr(schedule), _draw_ruler(schedule.n_steps, per_column), *shown])


def _draw_ruler(n_steps: int, per_column: int) -> str:
    """The last digit of each step, or the number of steps per column."""
    if per_column > 1:
        return f"{per_column} steps to a column"
    return "".join(f"{k % 10:<{COLUMN}}" for k in range(n_steps)).rstrip()


def _draw_lines(schedule: Schedule, per_column: int) -> Iterator[str]:
    """Yield lines, each ending with a reversed step and the slot that it frees."""
    taken: dict[int, tuple[int, str]] = {}
    n_cells = -(-schedule.n_steps // per_column)
    for run in _split_runs(schedule):
        cells = [" "] * (COLUMN * n_cells)
        freed = []
        for action in run:
            _trace(action, cells, per_column)
            freed += _follow(action, schedule.slots, taken)
        for position, mark in [*freed, *taken.values()]:
            cells[COLUMN * (position // per_column)] = mark
        yield "".join(cells).rstrip()


def _split_runs(schedule: Schedule) -> Iterator[list[Action]]:
    """The actions up to each reversal, with the drop that may follow it."""
    run: list[Action] = []
    turned = False
    for action in schedule:
        if turned and action.kind is not Kind.DROP:
            yield run
            run, turned = [], False
        run.append(action)
        turned = turned or action.kind in REVERSALS
    if run:
        yield run


def _follow(action: Action, slots: int, taken: dict[int, tuple[int, str]]) -> list[tuple[int, str]]:
    """Update the contents of the slots; return freed slots, which the current line still shows."""
    kind, start, _, slot = action
    if kind is Kind.KEEP:
        taken[slot] = start, "o" if slot < slots else "D"
    elif kind is Kind.KEEP_STEP:
        taken[slot] = start, "s"
    elif kind is Kind.DROP:
        return [taken.pop(slot)]
    return []


def _trace(action: Action, cells: list[str], per_column: int) -> None:
    """Draw a run forward up to its last state, or the reversed step that begins there."""
    first, last = (COLUMN * (k // per_column) for k in (action.start, action.stop))
    if action.kind in (Kind.ADVANCE, Kind.KEEP_STEP):
        cells[first : last + 1] = "-" * (last + 1 - first)
    elif action.kind in REVERSALS:
        cells[first + 1] = "<"
