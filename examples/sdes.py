"""Paths of an SDE with a closed form: trajectories, densities and strong orders of several schemes.

dy = -b^2 sin y cos^3 y dt + b cos^2 y dW has the solution y = arctan(b W + tan y0) (Kloeden & Platen 1992, 4.4).  Its
paths gather at -pi/2 and pi/2, and its density is that of a normal number mapped by arctan.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

B, Y0, T_END, SEED = 1.0, 0.2, 2.0, 1
CELLS = 512
STEPS = (16, 32, 64, 128, 256, 512)
TIMES = (0.125, 0.5, 2.0)
SCHEMES = ("euler_maruyama", "milstein", "milstein_derivative_free", "sriw1", "stochastic_heun", "reversible_heun")


def drift(t, y):
    return -B * B * np.sin(y) * np.cos(y) ** 3


def diffusion(t, y):
    return B * np.cos(y) ** 2


def closed_form(W: np.ndarray) -> np.ndarray:
    return np.arctan(B * W + np.tan(Y0))


def density(t: float, y: np.ndarray) -> np.ndarray:
    """That of arctan(x) where x is normal with mean tan(y0) and variance b^2 t."""
    z = (np.tan(y) - np.tan(Y0)) / (B * np.sqrt(t))
    return np.exp(-0.5 * z * z) / (np.sqrt(2 * np.pi * t) * B * np.cos(y) ** 2)


def problem_for(scheme: str) -> sn.SDE:
    """In the calculus of the scheme; the Brownian paths are the same for all schemes and numbers of steps."""
    ito = sn.SDE(drift, diffusion, [Y0], (0.0, T_END), seed=SEED, cells=CELLS)
    return ito.convert(sn.schemes.get(scheme).calculus)


def strong_errors(scheme: str, paths: int) -> np.ndarray:
    """Mean errors at the end for each number of steps."""
    W = sn.noise.brownian(SEED, np.arange(paths), 0.0, T_END, t_span=(0.0, T_END), cells=CELLS)
    problem = problem_for(scheme)
    ends = (sn.solve_ensemble(problem, scheme, paths=paths, steps=steps).y_end for steps in STEPS)
    return np.array([np.mean(np.abs(end - closed_form(W))) for end in ends])


def draw_paths(axes, shown: int) -> None:
    t = np.linspace(0.0, T_END, CELLS + 1)
    save_at = t[:: CELLS // 32]
    runs = sn.solve_ensemble(problem_for("milstein"), "milstein", paths=shown, steps=32, save_at=save_at)
    for path in range(shown):
        W = sn.noise.BrownianPath(SEED, path, t_span=(0.0, T_END), cells=CELLS)(t)[:, 0]
        (line,) = axes.plot(t, closed_form(W), lw=0.6)
        axes.plot(save_at, runs.y[path, :, 0], "o", ms=2, color=line.get_color())
    axes.set(title="closed form (lines) and 32 steps of milstein", xlabel="t", ylabel="y")


def draw_densities(axes, paths: int) -> None:
    edges = np.linspace(-np.pi / 2, np.pi / 2, 51)
    y = np.linspace(-1.57, 1.57, 400)
    runs = sn.solve_ensemble(problem_for("sriw1"), "sriw1", paths=paths, steps=CELLS, save_at=TIMES)
    for t, ends in zip(TIMES, runs.y[:, :, 0].T, strict=True):
        counts, _ = np.histogram(ends, edges)
        histogram = axes.stairs(counts / (paths * np.diff(edges)), edges, fill=True, alpha=0.35)
        axes.plot(y, density(t, y), color=histogram.get_facecolor(), alpha=1.0, lw=1.2, label=f"t = {t:g}")
    axes.set(title=f"densities of {paths} paths by sriw1 and in closed form", xlabel="y")
    axes.legend()


def main(folder: Path, paths: int = 20_000) -> dict[str, float]:
    figure = Figure(figsize=(14, 4.5), layout="constrained", dpi=150)
    left, middle, right = figure.subplots(1, 3)
    draw_paths(left, 8)
    draw_densities(middle, paths)
    orders = {}
    for marker, scheme in zip("osv^Dx", SCHEMES, strict=True):
        errors = strong_errors(scheme, paths)
        orders[scheme] = -float(np.polyfit(np.log(STEPS), np.log(errors), 1)[0])
        print(f"{scheme:<26} strong order {orders[scheme]:.3f}, mean error with {STEPS[-1]} steps {errors[-1]:.1e}")
        right.loglog(
            T_END / np.array(STEPS), errors, marker + "-", ms=4, lw=0.9, label=f"{scheme}: {orders[scheme]:.2f}"
        )
    right.set(title="strong errors and their slopes", xlabel="h", ylabel="mean error at the end")
    right.legend(fontsize=8)
    figure.savefig(folder / "sdes.png")
    return orders


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
