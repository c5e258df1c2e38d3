"""Stability regions |R(z)| <= 1 of explicit schemes, divided by their number of stages."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

NAMES = ("euler", "rk4", "dopri5", "dop853", "ssprk104", "carpenter_kennedy54")


def main(folder: Path) -> None:
    x, y = np.meshgrid(np.linspace(-2.1, 0.4, 600), np.linspace(-1, 1, 600))
    figure = Figure(figsize=(10, 6), layout="constrained", dpi=150)
    for axes, name in zip(figure.subplots(2, 3, sharex=True, sharey=True).flat, NAMES, strict=True):
        scheme = sn.schemes.get(name)
        stages = len(scheme.butcher.b)
        size = sn.schemes.conditions.amplification(scheme, stages * (x + 1j * y))
        axes.contourf(x, y, size, levels=[0, 0.25, 0.5, 0.75, 1.0], cmap="Blues_r")
        axes.contour(x, y, size, levels=[1.0], colors="black", linewidths=0.8)
        axes.axhline(0, color="grey", lw=0.4)
        axes.axvline(0, color="grey", lw=0.4)
        axes.set_title(f"{name} (s = {stages})")
        axes.set_aspect("equal")
        real = sn.schemes.conditions.real_stability_limit(scheme)
        imaginary = sn.schemes.conditions.imaginary_stability_limit(scheme)
        print(f"{name:<20} real {real:8.4f}   imaginary {imaginary:8.4f}   real per stage {real / stages:.3f}")
    figure.supxlabel("Re z / s")
    figure.supylabel("Im z / s")
    figure.savefig(folder / "stability_regions.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
