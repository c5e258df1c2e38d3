"""Lorenz parameters from noisy data: least squares by L-BFGS, the gradient through 400 steps of RK4."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from scipy.optimize import minimize

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

T_END, STEPS = 2.0, 400
TIMES = np.linspace(0.05, T_END, 40)
TRUE, GUESS = np.array([10.0, 28.0, 8 / 3]), np.array([9.0, 25.0, 3.0])
NOISE = 0.05


def lorenz(t, y, p):
    return [p[0] * (y[1] - y[0]), y[0] * (p[1] - y[2]) - y[1], y[0] * y[1] - p[2] * y[2]]


def problem(p):
    return sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, T_END), args=(p,))


def main(folder: Path) -> None:
    exact = sn.solve(problem(TRUE), "dop853", rtol=1e-10, atol=1e-10, save_at=TIMES).y
    data = exact + NOISE * np.random.default_rng(1).standard_normal(exact.shape)

    def misfit(ys):
        return 0.5 * np.sum((ys - data) ** 2)

    def value_and_gradient(p):
        found = sn.gradient(problem(p), "rk4", misfit, steps=STEPS, save_at=TIMES)
        return found.value, found.args[0]

    fit = minimize(value_and_gradient, GUESS, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    for name, true, guess, value in zip(("sigma", "rho", "beta"), TRUE, GUESS, fit.x, strict=True):
        print(f"{name:<6} true {true:8.4f}   guess {guess:8.4f}   found {value:8.4f}")
    print(f"misfit {fit.fun:.4f} after {fit.nfev} gradients; noise alone leaves about {0.5 * NOISE**2 * data.size:.4f}")

    figure = Figure(figsize=(9, 4), layout="constrained", dpi=150)
    axes = figure.subplots()
    for p, label, style in ((GUESS, "guess", ":"), (fit.x, "found", "-")):
        solution = sn.solve(problem(p), "rk4", steps=STEPS)
        for k in range(3):
            axes.plot(solution.t, solution.y[:, k], style, color=f"C{k}", label=f"{'xyz'[k]}, {label}")
    axes.plot(TIMES, data, "k.", ms=4, label=["data", None, None])
    axes.set_xlabel("t")
    axes.legend(ncols=2)
    figure.savefig(folder / "gradients.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
