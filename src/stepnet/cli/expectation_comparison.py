"""The Monte Carlo part of `stepnet demo`: classifiers with noise, and the cost of multilevel Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.montecarlo import MultilevelEstimate, multilevel
from stepnet.problem import SDE
from stepnet.storage.atomic_files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATE, VOLATILITY, PRICE = 0.05, 0.2, 0.104505835721856
"""Of a call by the formula of Black and Scholes, with strike and start 1 at time 1."""
TARGETS = (4e-3, 2e-3, 1e-3, 5e-4)
NOISE = (0.0, 0.5, 1.5)
SAMPLES, PATHS, PIXELS, SIDE = 400, 64, 48, 4.4
SETTINGS: dict[str, Any] = {"width": 8, "steps": 8, "length": 2.0, "epochs": 40, "rate": 0.03, "random_state": 0}


class Surface(NamedTuple):
    """Probabilities of a class on a grid, the widths of their intervals, and the accuracy on other samples."""

    noise: float
    probability: np.ndarray
    width: np.ndarray
    accuracy: float


def market() -> SDE:
    """dy = r y dt + s y dW, y(0) = 1."""
    return SDE(lambda t, y: RATE * y, lambda t, y: VOLATILITY * y, np.ones(1), (0.0, 1.0), seed=1)


def estimate_call() -> list[MultilevelEstimate]:
    """The price of a call for each target error."""
    payoff, rate = (lambda y: np.maximum(y[0] - 1.0, 0.0)), (lambda t, y: RATE)
    how: dict[str, Any] = {"potential": rate, "scheme": "milstein", "steps": 1}
    return [multilevel(market(), payoff, error=error, **how) for error in TARGETS]


def format_costs(found: list[MultilevelEstimate]) -> str:
    """Errors and costs for all targets, and the levels of the last one."""
    head = f"{'target':>8}{'error':>10}{'levels':>8}{'steps':>10}{'plain Monte Carlo':>22}"
    title = "Price of a call by multilevel Monte Carlo: requested root mean square error, error of one run"
    lines = [title, head, "-" * len(head)]
    for target, each in zip(TARGETS, found, strict=True):
        numbers = f"{target:>8.0e}{abs(each.value - PRICE):>10.1e}{len(each.levels):>8}{each.cost:>10.1e}"
        lines.append(f"{numbers}{each.plain_cost / each.cost:>10.0f} x the steps")
    return "\n".join([*lines, "", f"Levels for the target {TARGETS[-1]:.0e}:", found[-1].table()])


def draw_moons(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two half circles of points with normal errors."""
    random = np.random.default_rng(0)
    y, angle = random.integers(0, 2, count), random.uniform(0.0, np.pi, count)
    x = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    x[y == 1] = (1.0, 0.5) - x[y == 1]
    return x + 0.25 * random.normal(size=x.shape), y


def measure_surfaces() -> tuple[np.ndarray, np.ndarray, list[Surface]]:
    """Samples of two moons, their classes, and a classifier for each noise level."""
    from stepnet.estimators import FeynmanKacClassifier

    X, y = draw_moons(2 * SAMPLES)
    grid = np.stack(np.meshgrid(*_find_axes()), axis=-1).reshape(-1, 2)
    found = []
    for noise in NOISE:
        model = FeynmanKacClassifier(diffusion=noise, paths=PATHS, **SETTINGS).fit(X[:SAMPLES], y[:SAMPLES])
        mean, lower, upper = (each[:, 1].reshape(PIXELS, PIXELS) for each in model.predict_proba(grid, True))
        found.append(Surface(noise, mean, upper - lower, model.score(X[SAMPLES:], y[SAMPLES:])))
    return X[:SAMPLES], y[:SAMPLES], found


def format_surfaces(found: list[Surface]) -> str:
    """Accuracies, the steepest slope of the probability, and the widest interval."""
    head = f"{'noise':>8}{'accuracy':>10}{'steepest slope':>16}{'widest interval':>17}"
    title = f"Two moons by a Feynman-Kac classifier, {PATHS} paths of each sample"
    lines = [title, head, "-" * len(head)]
    for each in found:
        slope = np.max(np.hypot(*np.gradient(each.probability, SIDE / (PIXELS - 1))))
        lines.append(f"{each.noise:>8g}{each.accuracy:>10.1%}{slope:>16.2f}{each.width.max():>17.3f}")
    return "\n".join(lines)


def draw_figure(X: np.ndarray, y: np.ndarray, found: list[Surface], folder: Path) -> Path:
    """Draw probabilities above widths of intervals; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from stepnet import plots

    folder.mkdir(parents=True, exist_ok=True)
    with plots.style():
        figure = Figure(figsize=(11, 7), layout="constrained")
        axes: Any = figure.subplots(2, len(found), sharex=True, sharey=True)
        widest = max(each.width.max() for each in found)
        for above, below, each in zip(*axes, found, strict=True):
            shown = _draw_surface(above, each.probability, 1.0, "coolwarm")
            above.scatter(*X.T, c=y, s=4, cmap="coolwarm", edgecolors="black", linewidths=0.2)
            above.contour(*_find_axes(), each.probability, levels=[0.5], colors="black", linewidths=1.0)
            above.set_title(f"noise {each.noise:g}: accuracy {each.accuracy:.1%}")
            widths = _draw_surface(below, each.width, widest, "viridis")
        figure.colorbar(shown, ax=axes[0], label="probability")
        figure.colorbar(widths, ax=axes[1], label="width of the 95 % interval")
        write_file(folder / "classifier.png", partial(figure.savefig, format="png"))
    return folder / "classifier.png"


def _find_axes() -> tuple[np.ndarray, np.ndarray]:
    side = np.linspace(-0.5 * SIDE, 0.5 * SIDE, PIXELS)
    return side + 0.5, side + 0.25


def _draw_surface(axes: Axes, values: np.ndarray, top: float, colours: str) -> Any:
    return axes.pcolormesh(*_find_axes(), values, vmin=0.0, vmax=top, cmap=colours, shading="nearest")


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Print both tables and write the figure; the classifiers need scikit-learn."""
    echo("\n" + format_costs(estimate_call()))
    try:
        X, y, found = measure_surfaces()
        echo("\n" + format_surfaces(found))
        path = draw_figure(X, y, found, folder)
    except ModuleNotFoundError:
        return  # the section on orbits has reported that matplotlib is missing
    echo(f"\nFigure: {path}")
