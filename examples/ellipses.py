"""An ellipse inside a ring: a flow of the plane cannot separate them, a flow with two more features can.

Steps of RK4 with smooth weights follow a flow, which preserves the topology of the plane, so the inside stays inside.
Four features are projected to the plane of largest variance, after the last step to the plane of the outputs.
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
    return sn.nets.hamiltonian(2, 2, 4, 10, scheme="verlet", degree=0, length=10.0, opening="augment", seed=seed)


NETS = {"2 features, RK4": plane, "2 features and 2 momenta, Verlet": momenta}


def learnt(make, seed: int, iterations: int):
    """A trained net, the test points, and the accuracy on them."""
    train, test = ellipses(seed=seed)
    net = make(seed)
    objective = training.Objective(net, "cross_entropy", sn.nets.penalties.l2(1e-5), smoothness=1e-4)
    training.minimise(objective, train, training.LBFGS(iterations))
    return net, test, objective.value(net.theta, test)[1]


def main(folder: Path, seeds=(0, 1, 2), iterations: int = 100) -> dict[str, float]:
    """Draw; return the median accuracy of each net."""
    medians = {}
    with plots.style():
        figure = Figure(figsize=(11, 4.1), layout="constrained", dpi=150)
        *rows, foot = figure.subfigures(len(NETS) + 1, 1, height_ratios=[1] * len(NETS) + [0.12])
        for row, (name, make) in zip(rows, NETS.items(), strict=True):
            found = [learnt(make, seed, iterations) for seed in seeds]
            shares = [share for *_, share in found]
            medians[name] = float(np.median(shares))
            print(f"{name:<34} test accuracy {medians[name]:.2%}, seeds from {min(shares):.2%} to {max(shares):.2%}")
            net, test, share = found[-1]
            *moved, last = row.subplots(1, 7, width_ratios=[1] * 6 + [1.6])
            plots.layers(net, test.x, test.y, axes=moved, depths=6)
            plots.regions(net, test.x, test.y, last).set_title("regions")
            row.suptitle(f"{name}: {share:.1%} right (median of {len(seeds)} seeds {medians[name]:.1%})")
        plots.class_legend(foot, ("inside", "ring"), ncols=2, loc="center")
    figure.savefig(folder / "ellipses.png")
    return medians


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
