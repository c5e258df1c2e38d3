"""The section of `stepnet demo` on PDEs: a pattern, a diffusivity recovered by the adjoint, the equation of a net."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepnet import equations, nets, operators, training
from stepnet.gradients.adjoint import gradient
from stepnet.problem import ODE
from stepnet.solving.integrate import solve
from stepnet.storage.atomic_files import write_file

CELLS, END = 64, 2000.0  # of the pattern
POINTS, STEPS, ITERATIONS = 32, 100, 100  # of the diffusivity
NOISES, PATHS, SIDE = (0.0, 0.4), 512, 5.0
CELLS_OF_NET = 141
SHOWN = np.linspace(-1.5, 1.5, 13)


class Recovery(NamedTuple):
    """A diffusivity, what was recovered of it from a later state, and the misfits before and after."""

    x: np.ndarray
    true: np.ndarray
    found: np.ndarray
    misfits: tuple[float, float]


class Probabilities(NamedTuple):
    """The probability of a class on a grid and, on the points of `SHOWN` squared, by the equation and by paths."""

    noise: float
    field: np.ndarray
    by_equation: np.ndarray
    by_paths: np.ndarray
    half_width: float  # of the widest interval of 95 % around averages over paths


def grow_pattern() -> np.ndarray:
    """Gray and Scott's equations from a square of the second substance."""
    grid = operators.Grid((CELLS, CELLS), 0.0, 1.0)
    x, y = grid.coordinates
    square = (np.abs(x - 0.5) < 0.1) & (np.abs(y - 0.5) < 0.1)
    rough = 0.02 * np.random.default_rng(0).normal(size=(2, CELLS, CELLS))
    u0 = np.stack((np.where(square, 0.5, 1.0), np.where(square, 0.25, 0.0))) + rough
    problem = equations.gray_scott(grid, u0, (0.0, END), feed=0.037, kill=0.06)
    return solve(problem, "rk4", steps=1000, save_every=0).y[-1, 1]


def recover_diffusivity() -> Recovery:
    """By L-BFGS with exact gradients, from the states that two initial states have become."""
    from scipy.optimize import minimize

    grid = operators.Grid(POINTS, 0.0, 1.0, boundary="dirichlet")
    (x,) = grid.coordinates
    true = 1.0 + 0.4 * np.sin(2 * np.pi * x) - 0.2 * np.cos(4 * np.pi * x)
    starts = [np.sin(np.pi * x), np.sin(2 * np.pi * x)]

    def build(start: np.ndarray, k: np.ndarray) -> ODE:
        return equations.diffusion(grid, start, (0.0, 0.02), k)

    measured = [solve(build(start, true), "rk4", steps=STEPS, save_every=0).y[-1] for start in starts]

    def evaluate(k: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = 0.0, np.zeros(POINTS)
        for start, seen in zip(starts, measured, strict=True):
            loss = lambda u, seen=seen: (0.5 * float(np.sum((u - seen) ** 2)), u - seen)
            found = gradient(build(start, k), "rk4", loss, steps=STEPS)
            total, slope = total + found.value, slope + found.args[0]
        return 1e4 * total, 1e4 * slope

    first = np.ones(POINTS)
    options = {"maxiter": ITERATIONS}
    bounds = [(0.2, 2.0)] * POINTS
    best = minimize(evaluate, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return Recovery(x, true, best.x, (evaluate(first)[0] / 1e4, best.fun / 1e4))


def _build_net(noise: float | None) -> nets.Net:
    return nets.neural_ode(2, 2, (8,), 20, scheme="rk4", diffusion=noise)


def _second_class(outputs: np.ndarray) -> np.ndarray:
    return nets.losses.softmax(outputs)[:, 1:]


def train_net() -> tuple[nets.Net, training.Data]:
    """Two noisy arcs."""
    rng, labels = np.random.default_rng(0), np.arange(300) % 2
    angle = rng.uniform(0, np.pi, 300)
    arc = np.stack((np.cos(angle), np.sin(angle)), axis=1) - [0.0, 0.25]
    signs = np.where(labels == 1, -1.0, 1.0)[:, None]
    points = signs * (arc - [0.5, 0.0]) + 0.1 * rng.normal(size=(300, 2))
    net, data = _build_net(None), training.Data(points, labels)
    objective = training.Objective(net, "cross_entropy", nets.penalties.l2(1e-2))
    training.minimise(objective, data, training.LBFGS(40))
    return net, data


def compare_probabilities(net: nets.Net, noise: float, cells: int = CELLS_OF_NET, paths: int = PATHS) -> Probabilities:
    """The equation of the net on a grid, compared with the net itself or averages over its noisy paths."""
    grid = operators.Grid((cells, cells), -SIDE, SIDE, boundary="neumann")
    problem = nets.network_pde(net, noise, grid, transform=_second_class)
    steps = int(1.2 / equations.find_largest_step(problem, "rk4")) + 20
    field = solve(problem, "rk4", steps=steps, save_every=0).y[-1, 0]
    points = np.stack(np.meshgrid(SHOWN, SHOWN, indexing="ij"), axis=-1).reshape(-1, 2)
    found = _interpolate(grid, field, points)
    if noise == 0.0:
        return Probabilities(noise, field, found, _second_class(net(points))[:, 0], 0.0)
    noisy = _build_net(noise)
    noisy.put(net.theta)
    keys, path = np.repeat(np.arange(len(points)), paths), np.tile(np.arange(paths), len(points))
    sampled = _second_class(noisy(np.repeat(points, paths, axis=0), noise=nets.SampleNoise(1, keys, path)))
    values = sampled.reshape(-1, paths)
    half_width = 1.96 * float(np.max(values.std(axis=1))) / paths**0.5
    return Probabilities(noise, field, found, values.mean(axis=1), half_width)


def _interpolate(grid: operators.Grid, field: np.ndarray, points: np.ndarray) -> np.ndarray:
    from scipy.interpolate import RegularGridInterpolator

    return RegularGridInterpolator([grid.find_axis(0), grid.find_axis(1)], field, method="cubic")(points)


def format_findings(recovery: Recovery, compared: list[Probabilities]) -> str:
    """What was found, one line for each."""
    before, after = recovery.misfits
    error = np.max(np.abs(recovery.found - recovery.true)) / np.max(recovery.true)
    lines = [
        "Partial differential equations",
        f"diffusivity recovered by the adjoint: misfit {before:.1e} -> {after:.1e}, largest error {error:.1%}",
    ]
    for each in compared:
        other = "the net itself" if each.noise == 0.0 else f"{PATHS} paths per point (+- {each.half_width:.3f})"
        largest = np.max(np.abs(each.by_equation - each.by_paths))
        lines.append(f"equation of a net, noise {each.noise:g}: largest difference from {other} {largest:.3f}")
    return "\n".join(lines)


def draw_figure(
    pattern: np.ndarray, recovery: Recovery, data: training.Data, compared: list[Probabilities], folder: Path
) -> Path:
    """Draw all parts; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from stepnet import plots

    folder.mkdir(parents=True, exist_ok=True)
    with plots.style():
        figure = Figure(figsize=(15, 3.8), layout="constrained")
        axes: Any = figure.subplots(1, 4)
        axes[0].imshow(pattern.T, origin="lower", cmap="magma", extent=(0, 1, 0, 1))
        axes[0].set_title(f"Gray-Scott, $v$ at $t = {END:g}$")
        axes[1].plot(recovery.x, recovery.true, color="black", lw=1.0, label="true")
        axes[1].plot(recovery.x, recovery.found, "o", ms=3, label="recovered from two states")
        axes[1].set(title="diffusivity by the adjoint and L-BFGS", xlabel="$x$", ylabel="$k$", ylim=(0.0, None))
        axes[1].legend()
        for place, each in zip(axes[2:], compared, strict=True):
            draw_probabilities(place, each, data)
        write_file(folder / "equations.png", partial(figure.savefig, format="png"))
    return folder / "equations.png"


def draw_probabilities(axes: Any, each: Probabilities, data: training.Data) -> None:
    """The probability by the equation as an image, its contour 1/2 by the other way, and the data."""
    image = axes.imshow(
        each.field.T, origin="lower", cmap="RdBu_r", extent=(-SIDE, SIDE, -SIDE, SIDE), vmin=0.0, vmax=1.0
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    x, y = np.meshgrid(SHOWN, SHOWN, indexing="ij")
    axes.contour(x, y, each.by_paths.reshape(x.shape), [0.5], colors="black", linestyles="dashed")
    axes.scatter(*data.x.T, c=data.y, s=7, cmap="RdBu_r", edgecolors="black", linewidths=0.3)
    other = "net" if each.noise == 0.0 else "paths"
    title = f"equation of a net, noise {each.noise:g}\ndashed: 1/2 by the {other}"
    axes.set(title=title, xlim=(-1.8, 1.8), ylim=(-1.8, 1.8))


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Solve, print what was found and write the figure."""
    recovery, (net, data) = recover_diffusivity(), train_net()
    compared = [compare_probabilities(net, noise) for noise in NOISES]
    echo("\n" + format_findings(recovery, compared))
    try:
        path = draw_figure(grow_pattern(), recovery, data, compared, folder)
    except ModuleNotFoundError:
        return  # the section on orbits has reported that matplotlib is missing
    echo(f"\nFigure: {path}")
