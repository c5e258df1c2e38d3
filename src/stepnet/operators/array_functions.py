"""The few functions of arrays that operators need besides arithmetic and slices, for NumPy; engines have their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArrayFunctions:
    """Functions with NumPy's meaning; `concatenate` and `stack` take a sequence and an axis."""

    concatenate: Callable[..., Any]
    stack: Callable[..., Any]
    maximum: Callable[..., Any]
    minimum: Callable[..., Any]
    where: Callable[..., Any]
    sqrt: Callable[..., Any]


NUMPY = ArrayFunctions(np.concatenate, np.stack, np.maximum, np.minimum, np.where, np.sqrt)


def take(u: Any, axis: int, start: int, stop: int | None) -> Any:
    """u[..., start:stop, ...] along an axis that is counted from the end (-1 is the last)."""
    return u[(..., slice(start, stop), *(slice(None),) * (-axis - 1))]


def insert_axis(u: Any, axis: int) -> Any:
    """An array of a side with a new axis of length 1; numbers unchanged."""
    return u[(..., None, *(slice(None),) * (-axis - 1))] if np.ndim(u) else u
