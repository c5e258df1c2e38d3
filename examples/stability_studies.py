"""Studies of stability: a phase portrait, the fold of Bratu's problem, a double gyre, orders, robustness."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

VAN_DER_POL = sn.ODE(lambda t, y: [y[1], (1 - y[0] ** 2) * y[1] - y[0]], [0.1, 0.0], (0.0, 20.0))
N = 40  # intervals of Bratu's problem


def gyre(t, y):
    """Two vortices whose boundary oscillates; Shadden, Lekien & Marsden (2005), Physica D 212:271."""
    a = 0.25 * np.sin(2 * np.pi * t / 10)
    f, slope = a * y[0] ** 2 + (1 - 2 * a) * y[0], 2 * a * y[0] + 1 - 2 * a
    return [
        -0.1 * np.pi * np.sin(np.pi * f) * np.cos(np.pi * y[1]),
        0.1 * np.pi * np.cos(np.pi * f) * np.sin(np.pi * y[1]) * slope,
    ]


def bratu() -> sn.ODE:
    """u'' + lambda exp(u) = 0 on an interval of length one, by second differences."""
    second = N**2 * (np.diag(np.full(N - 2, 1.0), 1) + np.diag(np.full(N - 2, 1.0), -1) - 2 * np.eye(N - 1))
    return sn.ODE(lambda t, u, lam: second @ u + lam * np.exp(u), np.zeros(N - 1), (0.0, 1.0), args=(0.5,))


def attack(axes) -> None:
    """Robustness of a trained net: Gaussian noise, a step along the gradient, several projected steps."""
    random = np.random.default_rng(0)
    labels, angle = np.arange(400) % 2, random.uniform(0, 2 * np.pi, 400)
    radius = labels + random.uniform(0, 1, 400)
    x = np.stack((radius * np.cos(angle), 0.4 * radius * np.sin(angle)), axis=1)
    net = sn.nets.antisymmetric(2, 2, 4, 10, length=4.0, workers=1)
    objective = sn.training.Objective(net, "cross_entropy")
    net.put(sn.training.minimise(objective, sn.training.Data(x, labels), sn.training.LBFGS(150)).theta)
    found = sn.stability.robustness(net, x, labels, np.linspace(0, 0.5, 6))
    for name, accuracies in zip(found.attacks, found.accuracies, strict=True):
        print(f"{name}: accuracy {accuracies[0]:.1%}, {accuracies[2]:.1%} at radius 0.2")
    sn.plots.robustness(found, axes)


def main(folder: Path) -> None:
    with sn.plots.style():
        figure = Figure(figsize=(12, 7), layout="constrained")
        panels = figure.subplots(2, 3).ravel()
        sn.plots.phase_portrait(VAN_DER_POL, (-3, 3), (-3, 3), panels[0], starts=[[0.1, 0.0], [-2.5, 2.5]])
        print("van der Pol:", sn.stability.equilibrium(VAN_DER_POL).kind)

        branch = sn.stability.continuation(bratu(), "lam", 4.0, step=0.3)
        print(f"fold of Bratu's problem at lambda = {branch.special[0].parameter:.4f}")
        sn.plots.bifurcation_diagram(branch, panels[1])

        swirl = sn.ODE(gyre, [0.0, 0.0], (0.0, 15.0))
        grid = np.linspace(0, 2, 201), np.linspace(0, 1, 101)
        sn.plots.lyapunov_map(sn.stability.lyapunov_field(swirl, *grid, "rk4", steps=150), panels[2])

        short = sn.ODE(VAN_DER_POL.fun, [2.0, 0.0], (0.0, 4.0))
        study = sn.stability.convergence_study(short, ["euler", "heun2", "rk4", "dopri5"])
        print(study)
        sn.plots.convergence(study, panels[3])
        sn.plots.spectrum_in_region("rk4", sn.stability.spectra(VAN_DER_POL, "rk4", steps=80), panels[4])
        attack(panels[5])
        titles = ("van der Pol", "Bratu", "double gyre: stretching", "orders", "van der Pol: h eigenvalues", "attacks")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title)
        figure.savefig(folder / "stability_studies.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
