"""Noise in the layers and averages over nets: the EnResNet of Wang et al. (2019) as one setting, on digits.

An EnResNet adds noise after each residual layer and averages the probabilities of a few nets.  A Feynman-Kac
classifier averages one net over many paths.  The table has accuracies on clean images, on images with Gaussian noise
and on images attacked by the fast gradient sign method.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import stepnet as sn
from stepnet.estimators import FeynmanKacClassifier

matplotlib.use("Agg")
from matplotlib.figure import Figure

SIZE, SHAKE, TRAINED = 2.0 / 16.0, 0.3, 1000
NOISE = 0.3
SETTINGS = {"width": 32, "steps": 8, "rate": 0.01, "scale": False, "length": 2.0}


def train(X: np.ndarray, y: np.ndarray, noise: float, paths: int, nets: int, epochs: int) -> list[FeynmanKacClassifier]:
    return [
        FeynmanKacClassifier(diffusion=noise, paths=paths, random_state=seed, epochs=epochs, **SETTINGS).fit(X, y)
        for seed in range(nets)
    ]


def predict(models: list[FeynmanKacClassifier], X: np.ndarray) -> np.ndarray:
    return np.mean([model.predict_proba(X) for model in models], axis=0).argmax(axis=1)


def attack(models: list[FeynmanKacClassifier], X: np.ndarray, y: np.ndarray, paths: int) -> np.ndarray:
    """One step along the signs of the gradient of the loss, averaged over nets and paths."""

    def loss(z):
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return -float(np.log(p[np.arange(len(y)), y]).sum()), p - np.eye(10)[y]

    slope = np.zeros_like(X)
    for model in models:
        for path in range(paths):
            slope += model.net_.gradient(X, loss, noise=sn.nets.SampleNoise(seed=7, path=path)).x
    return X + SIZE * np.sign(slope)


def main(folder: Path, epochs: int = 12) -> dict[str, float]:
    images, labels = load_digits(return_X_y=True)
    images, order = images / 16.0, np.random.default_rng(0).permutation(len(images))
    train_rows, test_rows = order[:TRAINED], order[TRAINED:]
    X, y = images[test_rows], labels[test_rows]
    shaken = X + SHAKE * np.random.default_rng(1).normal(size=X.shape)
    cases = {
        "ResNet": (0.0, 2, 1),
        "EnResNet, 1 net, 2 paths": (NOISE, 2, 1),
        "EnResNet, 3 nets, 2 paths": (NOISE, 2, 3),
        "3 nets without noise": (0.0, 2, 3),
        "Feynman-Kac, 64 paths": (NOISE, 64, 1),
    }
    print(f"{'':28}{'clean':>8}{'Gaussian':>10}{'FGSM':>8}")
    table = {}
    for name, (noise, paths, nets) in cases.items():
        models = train(images[train_rows], labels[train_rows], noise, paths, nets, epochs)
        attacked = attack(models, X, y, 4 if noise else 1)
        table[name] = [np.mean(predict(models, points) == y) for points in (X, shaken, attacked)]
        print(f"{name:28}{table[name][0]:8.1%}{table[name][1]:10.1%}{table[name][2]:8.1%}")
    figure = Figure(figsize=(8, 4), layout="constrained", dpi=150)
    axes = figure.subplots()
    for i, (name, row) in enumerate(table.items()):
        axes.bar(np.arange(3) + 0.16 * (i - 2), row, 0.15, label=name)
    axes.set_xticks(range(3), ["clean", f"Gaussian {SHAKE:g}", f"FGSM {SIZE:g}"])
    axes.set(ylabel="accuracy on 797 digits", ylim=(0.0, 1.0))
    axes.legend(fontsize=8, loc="upper right")
    figure.savefig(folder / "noisy_ensembles.png")
    return {f"{name}, clean": row[0] for name, row in table.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
