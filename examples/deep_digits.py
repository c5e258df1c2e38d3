"""Handwritten digits by 1202 Hamiltonian layers, whose states are not stored but run backwards."""

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
from stepnet import training

matplotlib.use("Agg")
from matplotlib.figure import Figure

LAYERS, WIDTH, LENGTH = 1202, 32, 10.0
CONTROLS = 8  # weights are piecewise linear in depth, through so many values
EPOCHS, BATCH = 15, 256
SEEDS = (0, 1, 2)


class Result(NamedTuple):
    """A trained net, the share of test digits that it gets right, and seconds of training."""

    net: sn.nets.Net
    run: training.Run
    accuracy: float
    seconds: float


def digits(seed: int) -> tuple[training.Data, training.Data]:
    """Three quarters to train on, a quarter to test on, both less the mean of the first."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.25, stratify=y, random_state=seed)
    mean = x.mean(axis=0)
    return training.Data(x - mean, y), training.Data(x_test - mean, y_test)


def deep_net(seed: int, layers: int = LAYERS) -> sn.nets.Net:
    return sn.nets.hamiltonian(
        64, 10, WIDTH, layers, length=LENGTH, degree=1, controls=CONTROLS, seed=seed, memory="reversible"
    )


def trained(seed: int) -> Result:
    data, test = digits(seed)
    net = deep_net(seed)
    recipe = training.Recipe(
        training.AdamW(training.Cosine(0.02, EPOCHS), decay=0.2), epochs=EPOCHS, batch_size=BATCH, seed=seed
    )
    started = time.perf_counter()
    run = training.train(training.Objective(net, "cross_entropy"), data, recipe)
    seconds = time.perf_counter() - started
    return Result(net, run, float(np.mean(np.argmax(net(test.x), axis=1) == test.y)), seconds)


def peak_megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(folder: Path) -> None:
    results = []
    for seed in SEEDS:
        results.append(trained(seed))
        print(
            f"seed {seed}: {LAYERS} layers, test accuracy {results[-1].accuracy:.4f}, {results[-1].seconds:.0f} s, "
            f"peak memory {peak_megabytes():.0f} MB",
            flush=True,
        )
    print(f"median accuracy {np.median([each.accuracy for each in results]):.4f}")

    figure = Figure(figsize=(9, 4), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    for seed, result in zip(SEEDS, results, strict=True):
        left.semilogy(np.arange(1, EPOCHS + 1), result.run.history["loss"], label=f"seed {seed}")
    left.set_xlabel("epoch")
    left.set_ylabel("training loss")
    left.legend()
    K = results[0].net.weights["blocks.0.K"].reshape(CONTROLS, -1)
    right.plot(np.linspace(1, LAYERS, CONTROLS), K[:, ::20], lw=1)
    right.set_xlabel("layer")
    right.set_ylabel("some weights")
    figure.savefig(folder / "deep_digits.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
