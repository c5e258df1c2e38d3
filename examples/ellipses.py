"""An ellipse inside a ring: a flow in the plane cannot pull them apart, one with two more features can.

Steps of RK4 along smooth weights follow a flow, which never tears nor folds the plane, so the inside stays inside.
Haber & Ruthotto (2017), arXiv:1705.03341.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from data import ellipses

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure


def plane(seed: int):
    return sn.nets.antisymmetric(2, 2, 2, 10, scheme="rk4", degree=1, length=20.0, opening="augment", seed=seed)


def momenta(seed: int):
    return sn.nets.hamiltonian(2, 2, 4, 10, length=10.0, opening="augment", seed=seed)


NETS = {"2 features, RK4": plane, "2 features and 2 momenta, Verlet": momenta}


def main(folder: Path, seeds=(0, 1, 2), iterations: int = 100) -> None:
    with plots.style():
        figure = Figure(figsize=(11, 4.0), layout="constrained", dpi=150)
        rows = figure.subfigures(len(NETS), 1)
    for row, (name, make) in zip(rows, NETS.items(), strict=True):
        reached = []
        for seed in seeds:
            train, test = ellipses(seed=seed)
            net = make(seed)
            objective = training.Objective(net, "cross_entropy", sn.nets.penalties.l2(1e-5), smoothness=1e-4)
            training.minimise(objective, train, training.LBFGS(iterations))
            reached.append(objective.value(net.theta, test)[1])
        print(f"{name:<34} test accuracy {np.median(reached):.2%}, seeds from {min(reached):.2%} to {max(reached):.2%}")
        with plots.style():
            *moved, last = row.subplots(1, 6, width_ratios=[1, 1, 1, 1, 1, 1.6])
            plots.layers(net, test.x, test.y, axes=moved)
            plots.regions(net, test.x, test.y, last).set_title("regions")
            row.suptitle(f"{name}: {np.median(reached):.1%} right")
    figure.savefig(folder / "ellipses.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
