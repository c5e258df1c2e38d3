"""What the tests of results of the literature share: seeds, accuracies, and printing of the measured values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

SEEDS = (0, 1, 2)


def accuracy(net, data) -> float:
    """The share of samples whose class a net finds."""
    return float(np.mean(net(data.x).argmax(axis=1) == data.y))


def show(what: str, measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Print what is expected, and the median and all values of each row; medians are returned by name."""
    medians = {name: float(np.median(values)) for name, values in measured.items()}
    print(f"\n{what}")
    for name, values in measured.items():
        print(f"  {name:44s} median {medians[name]:.4g}   of {', '.join(f'{value:.4g}' for value in values)}")
    return medians
