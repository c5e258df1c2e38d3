"""Figures of checkpoint schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepnet.checkpoints.actions import Kind
from stepnet.checkpoints.schedule import Schedule
from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.plots.trajectories import COLOURS
from stepnet.validation import check, instance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ACTIONS = 20_000  # a figure of more cannot be read
REVERSALS = (Kind.REVERSE, Kind.REVERSE_KEPT)


@check(plan=instance(Schedule), axes=OPTIONAL_AXES)
def schedule(plan: Schedule, axes: Axes | None = None) -> Axes:
    """Draw a checkpoint schedule: steps to the right, actions downward.

    Thin lines are runs forward, thick ones reversed steps; a state is kept along a vertical line from a dot.

    Parameters
    ----------
    plan : Schedule
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from stepnet import checkpoints, plots
    >>> axes = plots.schedule(checkpoints.binomial(10, 3))
    """
    if len(plan) > MOST_ACTIONS:
        raise ValueError(f"`plan` must have {MOST_ACTIONS} actions at most to be drawn, found {len(plan)}")
    axes, row, kept = choose_axes(axes), 0, {}
    unused = {"forward", "reverse", "kept state"}

    def label(text: str) -> str | None:
        if text not in unused:
            return None
        unused.remove(text)
        return text

    for action in plan:
        kind, start, stop, slot = action
        if kind in (Kind.ADVANCE, Kind.KEEP_STEP):
            axes.plot([start, stop], [row, row], color=COLOURS[0], lw=1.0, label=label("forward"))
        elif kind in REVERSALS:
            axes.plot([start, stop], [row, row], color=COLOURS[1], lw=2.5, solid_capstyle="butt",
                      label=label("reverse"))  # fmt: skip
            row += 1
        if kind in (Kind.KEEP, Kind.KEEP_STEP):
            kept[slot] = start, row
        elif kind is Kind.DROP:
            _draw_kept(axes, *kept.pop(slot), row, label("kept state"))
    for place, begin in kept.values():
        _draw_kept(axes, place, begin, row, label("kept state"))
    axes.set(xlabel="step", ylabel="reversed steps", xlim=(-0.02 * plan.n_steps, 1.02 * plan.n_steps))
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)
    return axes


def _draw_kept(axes: Axes, place: int, begin: int, end: int, label: str | None) -> None:
    """A state in memory from one row to another."""
    axes.plot([place] * 2, [begin, end], color=COLOURS[2], lw=0.8, marker="o", ms=2.5, markevery=[0], label=label)
