"""Henon-Heiles from order to chaos: where orbits cross q1 = 0, at three energies (Henon & Heiles 1964)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

ENERGIES = {"1/12": 1 / 12, "1/8": 1 / 8, "1/6": 1 / 6}
STEP, TIME, ORBITS = 0.05, 4000.0, 12


def force(t, q):
    return [-q[0] - 2 * q[0] * q[1], -q[1] - q[0] ** 2 + q[1] ** 2]


def energy(q, v):
    kinetic = 0.5 * np.sum(v * v, axis=-1)
    return kinetic + 0.5 * np.sum(q * q, axis=-1) + q[..., 0] ** 2 * q[..., 1] - q[..., 1] ** 3 / 3


def starts(level):
    """Points (0, y) with velocity (v, 0) of this energy, spread over the allowed interval."""
    for y in np.linspace(-0.4, 0.6, ORBITS):
        kinetic = level - 0.5 * y**2 + y**3 / 3
        if kinetic > 0:
            yield [0.0, y], [np.sqrt(2 * kinetic), 0.0]


def crossings(solution):
    """(q2, v2) where q1 goes through zero upward, by linear interpolation between steps."""
    q, v = solution.q, solution.v
    i = np.flatnonzero((q[:-1, 0] < 0) & (q[1:, 0] >= 0))
    theta = (-q[i, 0] / (q[i + 1, 0] - q[i, 0]))[:, None]
    return ((1 - theta) * q[i] + theta * q[i + 1])[:, 1], ((1 - theta) * v[i] + theta * v[i + 1])[:, 1]


def main(folder: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained", dpi=150)
    for axes, (name, level) in zip(figure.subplots(1, 3, sharey=True), ENERGIES.items(), strict=True):
        worst = 0.0
        for q0, v0 in starts(level):
            problem = sn.SecondOrder(force, q0, v0, (0.0, TIME))
            solution = sn.solve(problem, "blanes_moan4", steps=round(TIME / STEP))
            axes.plot(*crossings(solution), ".", ms=1)
            worst = max(worst, np.ptp(energy(solution.q, solution.v)))
        axes.set(title=f"E = {name}", xlabel="q2")
        print(f"E = {name}: largest energy error {worst:.1e} over {round(TIME / STEP)} steps")
    figure.axes[0].set_ylabel("v2")
    figure.savefig(folder / "poincare_section.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
