"""Bifurcation diagram of a driven double well: its states once per period, and Lyapunov exponents.

x'' = x - x^3 - 0.3 x' + gamma cos(1.2 t), from a start in each well (Guckenheimer & Holmes 1983, section 2.2).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn
from stepnet.ensembles.reductions import Lyapunov

matplotlib.use("Agg")
from matplotlib.figure import Figure

PERIOD = 2 * np.pi / 1.2
SKIPPED, KEPT = 200, 60  # periods
GRID = {"gamma": np.linspace(0.2, 0.65, 1500), "y0[0]": np.array([-1.0, 1.0])}
CHOICES = {"rtol": 1e-6, "atol": 1e-8, "workers": 1}


def double_well(t, y, gamma):
    return [y[1], y[0] - y[0] * y[0] * y[0] - 0.3 * y[1] + gamma * np.cos(1.2 * t)]


def main(folder: Path) -> None:
    problem = sn.ODE(double_well, [0.0, 0.0], (0.0, (SKIPPED + KEPT) * PERIOD), args=(0.2,))
    begin = time.perf_counter(), time.process_time()
    times = PERIOD * np.arange(SKIPPED, SKIPPED + KEPT)
    x = sn.sweep(problem, "dopri5", GRID, save_at=times, **CHOICES).result.y[..., 0]
    exponents = sn.sweep(problem, "dopri5", GRID, reduce=Lyapunov(5 * PERIOD, 60 * PERIOD), **CHOICES).result
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    print(
        f"{exponents.size} orbits and exponents over {SKIPPED + KEPT} periods in {wall:.1f} s, {cpu:.1f} s of one core"
    )
    print(f"{np.mean(exponents > 0.01):.0%} of the orbits are chaotic, the largest exponent is {exponents.max():.3f}")

    figure = Figure(figsize=(8, 6), layout="constrained", dpi=200)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    gamma = GRID["gamma"]
    for k, colour in enumerate(("#1b5e8c", "#c8553d")):
        above.plot(np.repeat(gamma, KEPT), x[:, k].ravel(), ",", color=colour, alpha=0.5)
        below.plot(gamma, exponents[:, k], lw=0.6, color=colour)
    below.axhline(0, color="black", lw=0.5)
    above.set_ylabel("x once per period")
    below.set(xlabel="gamma", ylabel="exponent", xlim=(gamma[0], gamma[-1]))
    figure.savefig(folder / "bifurcations.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
