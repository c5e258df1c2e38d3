"""A double well with noise: the probability to end on the right, for many start points, and the cost of levels."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

NOISE = (0.15, 0.5, 1.0)
POINTS, PATHS, STEPS = 161, 2048, 100


def drift(t, y, sigma):
    return y - y**3


def diffusion(t, y, sigma):
    return sigma + 0.0 * y


def is_right(y):
    return np.where(y[0] > 0.0, 1.0, 0.0)


def smooth_right(y):
    return 0.5 * (1.0 + np.tanh(4.0 * y[0]))


def main(folder: Path) -> None:
    x = np.linspace(-2.0, 2.0, POINTS)[:, None]
    figure = Figure(figsize=(11, 4), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    for sigma in NOISE:
        sde = sn.SDE(drift, diffusion, [0.0], (0.0, 2.0), (sigma,))
        found = sn.montecarlo.feynman_kac(sde, is_right, x, steps=STEPS, paths=PATHS)
        (line,) = left.plot(x[:, 0], found.value, label=f"noise {sigma}")
        left.fill_between(x[:, 0], *found.interval, color=line.get_color(), alpha=0.25, lw=0)
        print(f"noise {sigma}: u(0.5) = {np.interp(0.5, x[:, 0], found.value):.4f}, {found.cost:.1e} steps")
    left.set(xlabel="start point x", ylabel="probability to be on the right at t = 2")
    left.legend()
    sde = sn.SDE(drift, diffusion, [0.5], (0.0, 2.0), (0.5,))
    targets = [5e-3, 2e-3, 1e-3, 5e-4]
    runs = [sn.montecarlo.multilevel(sde, smooth_right, error=eps, steps=4) for eps in targets]
    right.loglog(targets, [run.cost for run in runs], "o-", label="multilevel")
    right.loglog(targets, [run.plain_cost for run in runs], "s--", label="plain, same standard error and bias")
    right.set(xlabel="target error", ylabel="steps")
    right.legend()
    print(runs[-1].table())
    figure.savefig(folder / "feynman_kac.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
