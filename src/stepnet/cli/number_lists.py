"""Lists of numbers on the command line."""

from __future__ import annotations

import numpy as np


def parse_numbers(text: str) -> np.ndarray:
    """Parse first:last:count, or a list separated by commas."""
    try:
        if ":" in text:
            first, last, count = text.split(":")
            return np.linspace(float(first), float(last), int(count))
        return np.array([float(number) for number in text.split(",")])
    except ValueError:
        raise ValueError(f"numbers must be first:last:count or a,b,c, found {text!r}") from None
