"""The stochastic part of `stepnet demo`: paths, density and strong order of geometric Brownian motion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.noise import BrownianPath, brownian
from stepnet.problem import SDE
from stepnet.storage.atomic_files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRIFT, DIFFUSION = 0.5, 0.8
CELLS, PATHS = 1024, 10_000
STEPS = (16, 32, 64, 128, 256, 512, 1024)
SCHEMES = {"euler_maruyama": 0.5, "milstein": 1.0, "sriw1": 1.5}
"""Schemes and their strong orders with diagonal noise."""
SHOWN = 6


class StrongErrors(NamedTuple):
    """Mean errors E|y_N - y(1)| of a scheme for each number of steps, and the measured order."""

    scheme: str
    errors: np.ndarray
    order: float


def motion() -> SDE:
    """dy = a y dt + b y dW, y(0) = 1; runs with any number of steps use the same Brownian paths."""
    drift, diffusion = (lambda t, y, a, b: a * y), (lambda t, y, a, b: b * y)
    return SDE(drift, diffusion, np.ones(1), (0.0, 1.0), (DRIFT, DIFFUSION), seed=1, cells=CELLS)


def solve_exactly(t: np.ndarray | float, W: np.ndarray) -> np.ndarray:
    """y(t) = exp((a - b^2 / 2) t + b W(t))."""
    return np.exp((DRIFT - 0.5 * DIFFUSION**2) * t + DIFFUSION * W)


def evaluate_density(y: np.ndarray) -> np.ndarray:
    """The density of y(1), which is lognormal."""
    z = (np.log(y) - DRIFT + 0.5 * DIFFUSION**2) / DIFFUSION
    return np.exp(-0.5 * z * z) / (np.sqrt(2 * np.pi) * DIFFUSION * y)


def measure_strong_errors() -> list[StrongErrors]:
    """Against the closed form on the same Brownian paths."""
    exact = solve_exactly(1.0, brownian(1, np.arange(PATHS), 0.0, 1.0, cells=CELLS))
    found = []
    for scheme in SCHEMES:
        ends = (solve_ensemble(motion(), scheme, paths=PATHS, steps=steps).y_end for steps in STEPS)
        errors = np.array([np.mean(np.abs(end - exact)) for end in ends])
        found.append(StrongErrors(scheme, errors, -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]))
    return found


def format_errors(found: list[StrongErrors]) -> str:
    """Errors for the smallest and the largest number of steps, and orders, one line per scheme."""
    title = f"Geometric Brownian motion, {PATHS} paths: mean error at t = 1 against the closed form"
    few, many = (f"{steps} steps" for steps in (STEPS[0], STEPS[-1]))
    head = f"{'scheme':<22}{few:>12}{many:>12}{'strong order':>14}{'declared':>10}"
    lines = [title, head, "-" * len(head)]
    for scheme, errors, order in found:
        lines.append(f"{scheme:<22}{errors[0]:>12.1e}{errors[-1]:>12.1e}{order:>14.2f}{SCHEMES[scheme]:>10g}")
    return "\n".join(lines)


def draw_figure(found: list[StrongErrors], folder: Path) -> Path:
    """Draw paths, density and strong errors; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from stepnet import plots

    folder.mkdir(parents=True, exist_ok=True)
    with plots.style():
        figure = Figure(figsize=(12, 4), layout="constrained")
        axes: Any = figure.subplots(1, 3)
        _draw_paths(axes[0])
        _draw_density(axes[1])
        _draw_orders(found, axes[2])
        figure.suptitle(f"Geometric Brownian motion, $dy = {DRIFT:g}\\,y\\,dt + {DIFFUSION:g}\\,y\\,dW$")
        write_file(folder / "brownian.png", partial(figure.savefig, format="png"))
    return folder / "brownian.png"


def _draw_paths(axes: Axes) -> None:
    steps = STEPS[0]
    t, fine = np.linspace(0.0, 1.0, steps + 1), np.linspace(0.0, 1.0, CELLS + 1)
    runs = solve_ensemble(motion(), "milstein", paths=SHOWN, steps=steps, save_at=t)
    for path in range(SHOWN):
        (line,) = axes.plot(fine, solve_exactly(fine, BrownianPath(1, path, cells=CELLS)(fine)[:, 0]), lw=0.6)
        axes.plot(t, runs.y[path, :, 0], "o", ms=2.5, color=line.get_color())
    axes.set(title=f"closed form (lines), {steps} steps of milstein (dots)", xlabel="$t$", ylabel="$y$")


def _draw_density(axes: Axes) -> None:
    ends = solve_ensemble(motion(), "milstein", paths=PATHS, steps=STEPS[-1]).y_end[:, 0]
    edges = np.linspace(0.0, 5.0, 51)
    counts, _ = np.histogram(ends, edges)
    y = np.linspace(0.01, edges[-1], 400)
    axes.stairs(counts / (PATHS * np.diff(edges)), edges, fill=True, alpha=0.4, label=f"{PATHS} paths")
    axes.plot(y, evaluate_density(y), color="black", lw=1.0, label="lognormal density")
    axes.set(title="density of $y(1)$", xlabel="$y$", xlim=(0.0, edges[-1]))
    axes.legend()


def _draw_orders(found: list[StrongErrors], axes: Axes) -> None:
    h = 1.0 / np.array(STEPS)
    for scheme, errors, order in found:
        (line,) = axes.loglog(h, errors, "o-", ms=4, label=f"{scheme}, order {order:.2f}")
        slope = 1.5 * errors[-1] * (h / h[-1]) ** SCHEMES[scheme]
        axes.loglog(h, slope, "--", lw=0.7, color=line.get_color())
    axes.set(title="strong errors; dashed: declared orders", xlabel="$h$", ylabel="mean error at $t = 1$")
    axes.legend(fontsize=7)


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Compute paths, print the table and write the figure."""
    found = measure_strong_errors()
    echo("\n" + format_errors(found))
    try:
        path = draw_figure(found, folder)
    except ModuleNotFoundError:
        return  # the section on orbits has reported that matplotlib is missing
    echo(f"\nFigure: {path}")
