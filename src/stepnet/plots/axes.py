"""Validation of axes and entries of figures."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from stepnet.validation import instance, optional, sequence, whole

OPTIONAL_AXES = optional(instance(Axes, what="axes of matplotlib"))


def choose_axes(axes: Axes | None) -> Axes:
    """The given axes, or the current ones."""
    return plt.gca() if axes is None else axes


def validate_entry_pair(name: str, value: Any, count: int) -> tuple[int, int]:
    """Return two indices of entries below `count`."""
    found = sequence(whole(-count, count - 1))(name, value)
    if len(found) != 2:
        raise ValueError(f"`{name}` must be two numbers of entries, found {len(found)}")
    return found
