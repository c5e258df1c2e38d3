"""Small figures of everything that `stepnet.plots` draws, for comparison with stored images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

import stepnet as sn
from stepnet import checkpoints, plots

PENDULUM = sn.ODE(lambda t, y: [y[1], -np.sin(y[0]) - 0.1 * y[1]], [1.0, 0.0], (0.0, 12.0))
SWING = sn.SecondOrder(lambda t, q: -np.sin(q), [1.5], [0.0], (0.0, 60.0))


def lorenz(t, y):
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def turning(t, y, a):
    """Equilibria on a curve with two folds."""
    return [a + y[0] - y[0] ** 3 / 3, -y[1]]


def draw_phase_portrait(axes):
    plots.phase_portrait(PENDULUM, (-4, 4), (-3, 3), axes, starts=[[2.5, 0.0], [-3.5, 2.0]], resolution=15)


def draw_poincare_points(axes):
    problem = sn.SecondOrder(lambda t, q: -q * np.array([1.0, 2.0]), [0.0, 0.4], [1.0, 0.2], (0.0, 150.0))
    found = sn.stability.poincare_section(problem, lambda t, q, v: q[0], "yoshida4", steps=3000)
    plots.poincare_points(found, axes, components=(1, 3), ms=3)


def draw_bifurcation_diagram(axes):
    problem = sn.ODE(turning, [-2.0, 0.0], (0.0, 1.0), (-1.0,))
    plots.bifurcation_diagram(sn.stability.continuation(problem, "a", 1.0), axes, component=0)


def draw_lyapunov_map(axes):
    grid = np.linspace(-4, 4, 33), np.linspace(-3, 3, 25)
    plots.lyapunov_map(sn.stability.lyapunov_field(PENDULUM, *grid, "rk4", steps=60), axes)


def draw_basins(axes):
    x = np.linspace(-1, 1, 40)
    plots.basins(np.where(np.hypot(x, x[:, None]) > 1, -1, (x > x[:, None] ** 2).astype(int)), (-1, 1), (-1, 1), axes)


def draw_convergence(axes):
    names = ["euler", "heun2", "rk4"]
    plots.convergence(sn.stability.convergence_study(PENDULUM, names, steps=(100, 200, 400)), axes)


def draw_work_precision(axes):
    names, tolerances = ["dopri5", "dop853"], (1e-4, 1e-6, 1e-8)
    plots.work_precision(sn.stability.work_precision(PENDULUM, names, tolerances=tolerances, repeats=1), axes)


def draw_heat_map(axes):
    grid = sn.operators.Grid(40, 0.0, 1.0)
    wave = np.sin(2 * np.pi * grid.coordinates[0])
    plots.heat_map(sn.solve(sn.equations.heat(grid, wave, (0.0, 0.3), diffusivity=0.1), "rkl2", steps=30), grid, axes)


def draw_energy_error(axes):
    energy = lambda s: 0.5 * s.v[:, 0] ** 2 - np.cos(s.q[:, 0])
    for name in ("verlet", "rk4"):
        plots.energy_error(sn.solve(SWING, name, steps=300), energy, axes)
    axes.legend()


def draw_spectrum(axes):
    plots.spectrum_in_region("rk4", sn.stability.spectra(PENDULUM, "rk4", steps=8), axes)


def draw_formulas(axes):
    grid = {"real": np.linspace(-3, 8, 60), "imaginary": np.linspace(-5, 5, 61)}
    found = [sn.stability.region("bdf", order=k, **grid) for k in (1, 2, 3)]
    plots.stability_region(*found, sn.stability.region("ars343", stiff=-2.0, **grid), axes=axes)


def draw_gradient_norms(axes):
    for scheme in ("euler", "rk4"):
        net = sn.nets.antisymmetric(2, 2, 6, 20, length=10.0, scheme=scheme, workers=1)
        plots.gradient_norms(sn.stability.gradient_norms(net, POINTS), axes, label=scheme)


def draw_robustness(axes):
    halves = lambda x: (x[:, 0] > 0).astype(int)
    slope = lambda x, labels: np.stack([np.where(labels == 1, -1.0, 1.0), np.zeros(len(x))], axis=1)
    radii = np.linspace(0, 1.5, 7)
    plots.robustness(sn.stability.robustness(halves, POINTS, halves(POINTS), radii, gradient=slope), axes)


def draw_layer_ranges(axes):
    net = sn.nets.antisymmetric(2, 2, 6, 20, length=10.0, degree=1, workers=1)
    plots.layer_ranges(sn.stability.certificate(net).blocks[0], "rk4", axes)


def draw_regions(axes):
    plots.regions(lambda x: (np.sin(2 * x[:, 0]) > x[:, 1]).astype(int), POINTS, (POINTS[:, 1] < 0).astype(int), axes)


POINTS = np.random.default_rng(0).normal(size=(80, 2))
FIGURES: dict[str, Callable] = {
    "formulas": draw_formulas,
    "gradient_norms": draw_gradient_norms,
    "robustness": draw_robustness,
    "layer_ranges": draw_layer_ranges,
    "regions": draw_regions,
    "step_sizes": lambda axes: plots.step_sizes(sn.solve(PENDULUM, "dopri5"), axes),
    "phase_portrait": draw_phase_portrait,
    "poincare_points": draw_poincare_points,
    "bifurcation_diagram": draw_bifurcation_diagram,
    "lyapunov_map": draw_lyapunov_map,
    "basins": draw_basins,
    "convergence": draw_convergence,
    "work_precision": draw_work_precision,
    "heat_map": draw_heat_map,
    "energy_error": draw_energy_error,
    "spectrum_in_region": draw_spectrum,
    "schedule": lambda axes: plots.schedule(checkpoints.binomial(16, 3), axes),
    "stability_region": lambda axes: plots.stability_region("euler", "rk4", "dopri5", "verlet", axes=axes),
    "order_star": lambda axes: plots.order_star("rk4", axes),
    "mean_square_stability": lambda axes: plots.mean_square_stability("euler_maruyama", "milstein", axes=axes),
    "orbit": lambda axes: plots.orbit(sn.solve(PENDULUM, "rk4", steps=200), axes),
    "trajectory": lambda axes: plots.trajectory(
        sn.solve(sn.ODE(lorenz, [1.0, 1.0, 20.0], (0.0, 8.0)), "rk4", steps=1600), axes
    ),
}


def render(name: str, dpi: int = 50) -> np.ndarray:
    """The image of a figure (height, width, 3), from 0 to 255."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with plots.style():
        figure = Figure(figsize=(4.0, 3.2), dpi=dpi)
        figure.subplots_adjust(left=0.2, bottom=0.2, top=0.85)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot(projection="3d") if name == "trajectory" else figure.subplots()
        FIGURES[name](axes)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


def write(folder) -> None:
    """Store all images: `python tests/plots/figures.py` writes the baselines."""
    from matplotlib.image import imsave

    folder.mkdir(exist_ok=True)
    for name in FIGURES:
        imsave(folder / f"{name}.png", render(name).astype(np.uint8))


if __name__ == "__main__":
    from pathlib import Path

    write(Path(__file__).parent / "baseline")
