"""Validation of seeds, paths and components."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet import validation
from stepnet.noise.counters import MOST_COMPONENTS, MOST_PATHS
from stepnet.records import validate_seed

PATH = validation.whole(0, MOST_PATHS - 1)
DIMENSION = validation.whole(1, MOST_COMPONENTS)


def check_seed(name: str, value: Any) -> int:
    """Return a seed of random numbers."""
    return validate_seed(value, name)


def validate_paths(name: str, value: Any) -> np.ndarray:
    """Return path numbers: one integer, or a one-dimensional array."""
    return validate_row(name, value, PATH)


def validate_row(name: str, value: Any, kind: validation.Kind) -> np.ndarray:
    """Return one integer of a kind, or a one-dimensional array."""
    if not hasattr(value, "__len__") or (isinstance(value, np.ndarray) and value.ndim == 0):
        return np.array(kind(name, value), np.int64)
    return np.array(validation.sequence(kind)(name, value), np.int64)
