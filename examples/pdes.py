"""PDEs: a wave, a dam that breaks, a velocity recovered from data, and the equation of a network beside Monte Carlo.

The velocity field is found with L-BFGS and the exact adjoint of the solve.  The last row is `stepnet demo`'s network:
its output for noisy paths is the solution of a backward equation.  Wang, Yuan, Shi & Osher (2019), NeurIPS.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from scipy.optimize import minimize

import stepnet as sn
from stepnet import plots

matplotlib.use("Agg")
from matplotlib.figure import Figure

WAVES, DAM, POINTS = 96, 80, 40
CELLS, PATHS = 281, 30_000  # of the equation of a net, and at each point


def propagate_wave() -> np.ndarray:
    """A pulse reflected by two walls and passing around the other axis, by leapfrog; three moments."""
    grid = sn.operators.Grid((WAVES, WAVES), 0.0, 1.0, boundary=["dirichlet", "periodic"])
    x, y = grid.coordinates
    pulse = np.exp(-200 * ((x - 0.35) ** 2 + (y - 0.5) ** 2))
    problem = sn.equations.wave(grid, pulse, 0 * pulse, (0.0, 0.6))
    steps = 6 * int(0.1 / sn.equations.find_largest_step(problem, "verlet") + 1)
    solution = sn.solve(problem, "verlet", steps=steps, save_every=steps // 3)
    print(f"wave: {steps} steps of leapfrog")
    return solution.q.reshape(-1, WAVES, WAVES)[1:]


def break_dam() -> np.ndarray:
    """A column of water in a basin without walls; the depth."""
    grid = sn.operators.Grid((DAM, DAM), -1.0, 1.0, boundary="neumann")
    x, y = grid.coordinates
    depth = np.where(np.hypot(x, y) < 0.4, 2.0, 1.0)
    problem = sn.equations.shallow_water(grid, depth, np.zeros((2, DAM, DAM)), (0.0, 0.12))
    solution = sn.solve(problem, "ssprk3", steps=60, save_every=0)
    print(f"dam: depth from {solution.y[-1, 0].min():.3f} to {solution.y[-1, 0].max():.3f}")
    return solution.y[-1, 0]


def recover_velocity() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The velocity on a ring from the later states of two waves; returns x, the true velocity and the result."""
    grid = sn.operators.Grid(POINTS, 0.0, 1.0)
    (x,) = grid.coordinates
    true = 1.0 + 0.3 * np.sin(2 * np.pi * x)
    starts = [np.sin(2 * np.pi * x), np.cos(2 * np.pi * x)]

    def build(start, velocity):
        return sn.equations.transport(grid, start, (0.0, 0.3), velocity[None])

    seen = [sn.solve(build(start, true), "rk4", steps=40, save_every=0).y[-1] for start in starts]

    def misfit(velocity):
        value, slope = 0.0, np.zeros(POINTS)
        for start, end in zip(starts, seen, strict=True):
            loss = lambda u, end=end: (0.5 * float(np.sum((u - end) ** 2)), u - end)
            found = sn.gradient(build(start, velocity), "rk4", loss, steps=40)
            value, slope = value + found.value, slope + found.args[0][0]
        return value, slope

    best = minimize(misfit, np.ones(POINTS), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    print(f"velocity: misfit {misfit(np.ones(POINTS))[0]:.1e} -> {best.fun:.1e}, {best.nit} iterations")
    return x, true, best.x


def main(folder: Path) -> None:
    from stepnet.cli import equation_comparison

    with plots.style():
        figure = Figure(figsize=(15, 7), layout="constrained", dpi=120)
        axes = figure.subplots(2, 4)
        for place, state in zip(axes[0, :3], propagate_wave(), strict=True):
            place.imshow(state.T, origin="lower", cmap="RdBu_r", extent=(0, 1, 0, 1), vmin=-0.3, vmax=0.3)
        for place, t in zip(axes[0, :3], (0.2, 0.4, 0.6), strict=True):
            place.set_title(f"wave at $t = {t:g}$")
        image = axes[0, 3].imshow(break_dam().T, origin="lower", cmap="viridis", extent=(-1, 1, -1, 1))
        axes[0, 3].set_title("depth of shallow water")
        figure.colorbar(image, ax=axes[0, 3], shrink=0.8)
        x, true, found = recover_velocity()
        axes[1, 0].plot(x, true, color="black", label="true")
        axes[1, 0].plot(x, found, "o", ms=3, label="recovered")
        axes[1, 0].set(title="velocity by the adjoint and L-BFGS", ylim=(0.0, None))
        axes[1, 0].legend()
        net, data = equation_comparison.train_net()
        for place, noise in zip(axes[1, 1:], (0.0, 0.4, 0.8), strict=True):
            each = equation_comparison.compare_probabilities(net, noise, CELLS, PATHS)
            equation_comparison.draw_probabilities(place, each, data)
            difference = np.max(np.abs(each.by_equation - each.by_paths))
            print(f"network, noise {noise}: largest difference {difference:.3f}, half-widths {each.half_width:.3f}")
    figure.savefig(folder / "pdes.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
