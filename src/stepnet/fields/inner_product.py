"""Inner products whose rounding does not depend on the threads of BLAS."""

from __future__ import annotations

import numpy as np


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """sum_i a_i b_i over all entries."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sum(a * b))
