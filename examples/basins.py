"""Basins of attraction of a driven double well, for a million initial states: the boundary is fractal.

x'' = x - x^3 - x'/4 + 0.22 cos t swings in the left or in the right well (Moon & Li 1985, Phys. Rev. Lett. 55, 1439).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn
from stepnet.ensembles.reductions import Basins

matplotlib.use("Agg")
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

PERIODS, N = 15, 1000
X, V = np.linspace(-2.0, 2.0, N), np.linspace(-2.0, 2.0, N)
TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}


def double_well(t, y):
    return [y[1], y[0] - y[0] * y[0] * y[0] - 0.25 * y[1] + 0.22 * np.cos(t)]


def attractor(start: float) -> np.ndarray:
    """The state after a hundred periods: a fixed point of the map over one period."""
    problem = sn.ODE(double_well, [start, 0.0], (0.0, 200 * np.pi))
    return sn.solve(problem, "dopri5", **TOLERANCES, save_every=0).y[-1]


def main(folder: Path) -> None:
    wells = np.array([attractor(-1.0), attractor(1.0)])
    problem = sn.ODE(double_well, [0.0, 0.0], (0.0, 2 * np.pi * PERIODS))
    begin = time.perf_counter(), time.process_time()
    found = sn.sweep(problem, "dopri5", {"y0[1]": V, "y0[0]": X}, reduce=Basins(wells, 0.1), workers=1, **TOLERANCES)
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    print(f"{N * N} starts over {PERIODS} periods in {wall:.1f} s, {cpu:.1f} s of one core")
    for label, name in ((0, "left well"), (1, "right well"), (-1, "undecided")):
        print(f"{name:<11} {np.mean(found.result == label):7.2%}")

    figure = Figure(figsize=(6, 6), layout="constrained", dpi=200)
    axes = figure.subplots()
    colours = ListedColormap(["#222222", "#1b5e8c", "#f3d9a4"])
    axes.imshow(found.result, colours, vmin=-1, vmax=1, origin="lower", extent=(X[0], X[-1], V[0], V[-1]))
    axes.plot(*wells.T, "o", color="#c8553d", ms=5)
    axes.set(xlabel="x(0)", ylabel="x'(0)")
    figure.savefig(folder / "basins.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
