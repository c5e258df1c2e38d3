"""Handwritten digits by 1202 Hamiltonian layers, whose states are not stored but reconstructed.

The figure shows the states of test digits at several depths, and the accuracy of the readout if it were applied there.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure

LAYERS, WIDTH, LENGTH = 1202, 32, 10.0
CONTROLS = 8  # weights are piecewise linear in depth, through so many values
EPOCHS, BATCH = 15, 256
SEEDS = (0, 1, 2)


class Result(NamedTuple):
    """A trained net, how training went, the share of test digits that it gets right, and seconds of training."""

    net: sn.nets.Net
    run: training.Run
    test: training.Data
    accuracy: float
    seconds: float


def digits(seed: int) -> tuple[training.Data, training.Data]:
    """Three quarters for training and a quarter for testing, both with the mean of the training data subtracted."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.25, stratify=y, random_state=seed)
    mean = x.mean(axis=0)
    return training.Data(x - mean, y), training.Data(x_test - mean, y_test)


def deep_net(seed: int, layers: int = LAYERS) -> sn.nets.Net:
    return sn.nets.hamiltonian(
        64, 10, WIDTH, layers, length=LENGTH, scheme="verlet", degree=1, controls=CONTROLS, seed=seed,
        memory="reversible",
    )  # fmt: skip


def trained(seed: int, layers: int = LAYERS, epochs: int = EPOCHS) -> Result:
    data, test = digits(seed)
    net = deep_net(seed, layers)
    recipe = training.Recipe(
        training.AdamW(training.Cosine(0.02, epochs), decay=0.2), epochs=epochs, batch_size=BATCH, seed=seed
    )
    started = time.perf_counter()
    run = training.train(training.Objective(net, "cross_entropy"), data, recipe)
    seconds = time.perf_counter() - started
    return Result(net, run, test, float(np.mean(np.argmax(net(test.x), axis=1) == test.y)), seconds)


def peak_megabytes() -> float:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def early(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Some depths, and the accuracy of the readout at each of them."""
    states = result.net.features(result.test.x)
    depths = np.unique(np.linspace(0, len(states) - 1, 101).round().astype(int))
    W, b = result.net.weights["readout.W"], result.net.weights["readout.b"]
    found = np.argmax(states[depths] @ W.reshape(b.size, -1).T + b, axis=2)
    return depths, np.mean(found == result.test.y, axis=1)


def main(folder: Path, seeds=SEEDS, layers: int = LAYERS, epochs: int = EPOCHS) -> dict[str, float]:
    """Draw; return the median accuracy, and the peak memory of training in megabytes."""
    results = []
    for seed in seeds:
        results.append(trained(seed, layers, epochs))
        print(
            f"seed {seed}: {layers} layers, test accuracy {results[-1].accuracy:.4f}, {results[-1].seconds:.0f} s, "
            f"peak memory {peak_megabytes():.0f} MB",
            flush=True,
        )
    told = {"accuracy": float(np.median([each.accuracy for each in results])), "megabytes": peak_megabytes()}
    print(f"median accuracy {told['accuracy']:.4f}")
    with plots.style():
        draw(dict(zip(seeds, results, strict=True)), told["accuracy"]).savefig(folder / "deep_digits.png")
    return told


def draw(results: dict[int, Result], median: float) -> Figure:
    """Digits at some depths, losses, and accuracies along depth."""
    figure = Figure(figsize=(10, 5), layout="constrained", dpi=150)
    above, below = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    seed, shown = next(reversed(results.items()))
    plots.layers(shown.net, shown.test.x, shown.test.y, axes=above.subplots(1, 6), depths=6)
    plots.class_legend(above, range(10), ncols=10, loc="outside lower center")
    steps = shown.net.design.blocks[0].steps
    above.suptitle(
        f"test digits in {steps} layers, seed {seed}: {shown.accuracy:.1%} right "
        f"(median of {len(results)} seeds {median:.1%})"
    )
    left, right = below.subplots(1, 2)
    for (seed, result), colour in zip(results.items(), plots.COLOURS, strict=False):
        plots.history(result.run, left, color=colour, label=f"seed {seed}")
        depths, shares = early(result)
        right.plot(depths, 100 * shares, lw=1.2, color=colour, label=f"seed {seed}")
    left.set_ylabel("training loss")
    left.legend()
    right.set(xlabel="layer", ylabel="% right", title="if the read-out looked at this depth", ylim=(0, 100))
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
