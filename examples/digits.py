"""Handwritten digits of 8 x 8 pixels by two dynamics, with 70 % of them for training and 30 % for testing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from data import digits

from stepnet import plots, training
from stepnet.estimators import NetClassifier

matplotlib.use("Agg")
from matplotlib.figure import Figure

NETS = ("resnet", "hamiltonian")


def main(folder: Path, seeds=(0, 1, 2), epochs: int = 20) -> dict[str, float]:
    """Draw; return the median accuracy of each net."""
    medians = {}
    for name in NETS:
        reached, begin = [], time.perf_counter()
        for seed in seeds:
            train, test = digits(seed=seed)
            model = NetClassifier(
                name, width=32, steps=8, optimiser=training.Adam(training.Cosine(0.005, epochs)), epochs=epochs,
                alpha=1e-3, random_state=seed,
            )  # fmt: skip
            model.fit(train.x, train.y)
            reached.append(model.score(test.x, test.y))
        seconds, medians[name] = (time.perf_counter() - begin) / len(seeds), float(np.median(reached))
        size = model.net_.theta.size
        print(f"{name:<14} test accuracy {medians[name]:.2%} (540 digits), {size} weights, {seconds:.1f} s")

    with plots.style():
        figure = Figure(figsize=(10, 2.9), layout="constrained", dpi=150)
        plots.layers(model, test.x, test.y, axes=figure.subplots(1, 5), s=10)
        plots.class_legend(figure, range(10), ncols=10, loc="outside lower center")
        figure.suptitle(f"{name}: {reached[-1]:.1%} right (median of {len(seeds)} seeds {medians[name]:.1%})")
    figure.savefig(folder / "digits.png")
    return medians


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
