"""The comparison of `stepnet demo`: two orbits, several schemes, errors, drifts and times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.problem import ODE, Problem, SecondOrder
from stepnet.solution import Solution
from stepnet.solving.integrate import solve
from stepnet.storage.atomic_files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPLER_PERIODS, KEPLER_STEP = 40, 0.05
ECCENTRICITY = 0.6
LOOSE, TIGHT = 1e-6, 1e-10

ARENSTORF_MU = 0.012277471
ARENSTORF_START = (0.994, 0.0, 0.0, -2.00158510637908252240537862224)
ARENSTORF_PERIOD = 17.0652165601579625588917206249
"""The closed orbit of Arenstorf; Hairer, Norsett & Wanner I, II.0."""


def attraction(t: float, q: np.ndarray) -> np.ndarray:
    """q'' = -q / |q|^3."""
    r2 = q[0] * q[0] + q[1] * q[1]
    return -q / (r2 * np.sqrt(r2))


def kepler() -> SecondOrder:
    """An ellipse of eccentricity 0.6 over a whole number of periods, so the final state equals the initial one."""
    e = ECCENTRICITY
    velocity = np.sqrt((1 + e) / (1 - e))
    q0, v0 = np.array([1 - e, 0.0]), np.array([0.0, velocity])
    return SecondOrder(attraction, q0, v0, (0.0, 2 * np.pi * KEPLER_PERIODS))


def kepler_energy(solution: Solution) -> np.ndarray:
    """H = |v|^2 / 2 - 1 / |q| at every saved time."""
    q, v = solution.q, solution.v
    return 0.5 * np.sum(v * v, axis=1) - 1 / np.linalg.norm(q, axis=1)


def restricted_three_bodies(t: float, y: np.ndarray, mu: float) -> list[float]:
    """A satellite in the field of Earth and Moon, in the co-rotating frame."""
    x, y_, vx, vy = y[0], y[1], y[2], y[3]
    to_earth = ((x + mu) ** 2 + y_**2) ** 1.5
    to_moon = ((x - 1 + mu) ** 2 + y_**2) ** 1.5
    ax = x + 2 * vy - (1 - mu) * (x + mu) / to_earth - mu * (x - 1 + mu) / to_moon
    ay = y_ - 2 * vx - (1 - mu) * y_ / to_earth - mu * y_ / to_moon
    return [vx, vy, ax, ay]


def jacobi_energy(solution: Solution) -> np.ndarray:
    """The Jacobi integral |v|^2 / 2 - |r|^2 / 2 - (1 - mu) / r_earth - mu / r_moon at every saved time."""
    (x, y, vx, vy), mu = solution.y.T, ARENSTORF_MU
    to_earth, to_moon = np.hypot(x + mu, y), np.hypot(x - 1 + mu, y)
    return 0.5 * (vx**2 + vy**2 - x**2 - y**2) - (1 - mu) / to_earth - mu / to_moon


def arenstorf() -> ODE:
    """One period of the Arenstorf orbit, which closes."""
    return ODE(restricted_three_bodies, np.array(ARENSTORF_START), (0.0, ARENSTORF_PERIOD), args=(ARENSTORF_MU,))


def solve_kepler() -> list[Solution]:
    """Solutions with equal steps, and with an adaptive pair for comparison."""
    problem = kepler()
    steps = round(problem.t_span[1] / KEPLER_STEP)
    names = ("symplectic_euler_kick", "verlet", "yoshida4", "blanes_moan6", "rk4")
    equal = [_repeat_run(problem, name, steps=steps) for name in names]
    return [*equal, _repeat_run(problem, "dop853", rtol=TIGHT, atol=TIGHT)]


def solve_arenstorf() -> list[Solution]:
    """Solutions by four pairs at two tolerances, and by 24 000 equal steps, which are less accurate."""
    problem = arenstorf()
    pairs = [
        _repeat_run(problem, name, rtol=tolerance, atol=tolerance)
        for tolerance in (LOOSE, TIGHT)
        for name in ("dopri5", "tsit5", "dop853", "verner98")
    ]
    return [*pairs, _repeat_run(problem, "rk4", steps=24_000)]


def _repeat_run(problem: Problem, scheme: str, **options: Any) -> Solution:
    """Solve twice and return the second solution, whose run time does not include loading the kernel."""
    solve(problem, scheme, **options)
    return solve(problem, scheme, **options)


def format_table(title: str, runs: list[Solution], change: Callable[[Solution], float]) -> str:
    """Error of the end against the beginning, `change` of the energy, steps, evaluations and time, one line per run."""
    head = f"{'scheme':<22}{'steps':>9}{'evaluations':>13}{'closing error':>15}{'energy drift':>14}{'time':>11}"
    lines = [title, head, "-" * len(head)]
    for run in runs:
        cost = run.statistics
        error = np.linalg.norm(run.y[-1] - run.y[0])
        drift = f"{change(run):>14.1e}"
        time = f"{1e3 * cost.run_time:>8.2f} ms"
        lines.append(f"{run.scheme.name:<22}{cost.accepted:>9}{cost.evaluations:>13}{error:>15.1e}{drift}{time}")
    return "\n".join(lines)


def kepler_drift(run: Solution) -> float:
    """Change of the mean energy from the first tenth of the run to the last."""
    H = kepler_energy(run)
    tenth = max(1, len(H) // 10)
    return float(abs(H[-tenth:].mean() - H[:tenth].mean()))


def arenstorf_drift(run: Solution) -> float:
    """Change of the Jacobi integral from the beginning of the run to its end."""
    H = jacobi_energy(run)
    return float(abs(H[-1] - H[0]))


def draw_figures(kepler_solutions: list[Solution], arenstorf_solutions: list[Solution], folder: Path) -> list[Path]:
    """Draw the orbits, the energies and the step sizes; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    from stepnet import plots

    folder.mkdir(parents=True, exist_ok=True)
    with plots.style():
        drawn = {
            "kepler.png": _draw_kepler(kepler_solutions),
            "arenstorf.png": _draw_arenstorf(arenstorf_solutions),
        }
        for name, figure in drawn.items():
            write_file(folder / name, partial(figure.savefig, format="png"))
    return [folder / name for name in drawn]


def _draw_kepler(runs: list[Solution]) -> Figure:
    from matplotlib.figure import Figure

    from stepnet import plots

    figure = Figure(figsize=(11, 6), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(2, 1))
    orbits, energies = halves
    drawn = [*runs[:-1], solve(kepler(), "dop853", rtol=TIGHT, atol=TIGHT, dense=True)]
    for ax, run in zip(orbits.subplots(2, 3, sharex=True, sharey=True).flat, drawn, strict=True):
        plots.orbit(run, ax, lw=0.4)
        ax.plot(0, 0, "o", color="black", ms=3)
        ax.set(title=run.scheme.name, xlabel="$q_1$", ylabel="$q_2$")
        ax.label_outer()
    axes = energies.subplots()
    for run in runs:
        plots.energy_error(run, kepler_energy, axes)
    axes.legend(fontsize=7, loc="lower right")
    figure.suptitle(f"Kepler, e = {ECCENTRICITY}, {KEPLER_PERIODS} periods, h = {KEPLER_STEP} (dop853: adaptive)")
    return figure


def _draw_arenstorf(runs: list[Solution]) -> Figure:
    from matplotlib.figure import Figure

    from stepnet import plots

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    tight = solve(arenstorf(), "dop853", rtol=TIGHT, atol=TIGHT, dense=True)
    plots.orbit(tight, left)
    left.plot(tight.y[:, 0], tight.y[:, 1], ".", ms=4)
    for name, x, side in (("Earth", -ARENSTORF_MU, "center"), ("Moon", 1 - ARENSTORF_MU, "right")):
        left.plot(x, 0, "o", color="black", ms=4)
        left.annotate(name, (x, 0), xytext=(0, -14), textcoords="offset points", ha=side)
    title = f"Arenstorf orbit: {tight.statistics.accepted} steps of dop853"
    left.set(title=title, xlabel="$x$, turning with Earth and Moon", ylabel="$y$")
    for run in runs[4:8]:
        plots.step_sizes(run, right)
    right.set_title(f"step sizes at tolerance {TIGHT:.0e}")
    right.legend(loc="lower center")
    return figure


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Integrate, print the tables and write the figures."""
    kepler_solutions, arenstorf_solutions = solve_kepler(), solve_arenstorf()
    periods = f"{KEPLER_PERIODS} periods, h = {KEPLER_STEP}"
    title = f"Kepler, e = {ECCENTRICITY}, {periods} (dop853: adaptive, tolerance {TIGHT:.0e})"
    echo("\n" + format_table(title, kepler_solutions, kepler_drift))
    title = f"Arenstorf orbit, one period: four pairs at tolerance {LOOSE:.0e}, at {TIGHT:.0e}, and equal steps"
    echo("\n" + format_table(title, arenstorf_solutions, arenstorf_drift))
    try:
        paths = draw_figures(kepler_solutions, arenstorf_solutions, folder)
    except ModuleNotFoundError as missing:
        echo(f"\nNo figures: {missing.name} is not installed; `pip install stepnet[plot]` brings it.")
        return
    echo("\nFigures: " + ", ".join(str(path) for path in paths))
