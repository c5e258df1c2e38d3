"""Axes and entries that figures are asked for."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from stepnet.validation import instance, optional, sequence, whole

an_axes = optional(instance(Axes, what="axes of matplotlib"))


def axes_of(axes: Axes | None) -> Axes:
    """The axes that were given, or those of now."""
    return plt.gca() if axes is None else axes


def two_entries(name: str, value, count: int) -> tuple[int, int]:
    """Two numbers of entries, of so many."""
    found = sequence(whole(-count, count - 1))(name, value)
    if len(found) != 2:
        raise ValueError(f"`{name}` must be two numbers of entries, found {len(found)}")
    return found
