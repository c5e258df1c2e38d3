"""A pendulum with friction from noisy observations: the right-hand side is a network, the loss looks at all times.

Gradients are exact through every step.  The fit begins with the first second and a half and looks twice as far each
time, since paths of an untrained field lead astray.  The field is learnt from three paths; the fourth, and what comes
after the observations, it has never seen.
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

STARTS, UNSEEN = ((2.6, 0.0), (-1.2, 1.9), (0.6, -1.0)), (-2.2, -0.4)
HORIZONS, END = (1.5, 3.0, 6.0), 12.0
TIMES = np.arange(1, 31) / 5
NOISE, HIDDEN = 0.03, 24


def pendulum(t, y):
    return [y[1], -np.sin(y[0]) - 0.15 * y[1]]


def network(t, y, W, b, V, c):
    return V @ np.tanh(W @ y + b) + c


def unpacked(theta: np.ndarray) -> tuple[np.ndarray, ...]:
    W, b, V, c = np.split(theta, np.cumsum([2 * HIDDEN, HIDDEN, 2 * HIDDEN]))
    return W.reshape(HIDDEN, 2), b, V.reshape(2, HIDDEN), c


def misfit(theta: np.ndarray, data: list, horizon: float) -> tuple[float, np.ndarray]:
    """The mean square over the observations up to a time, and its gradient."""
    times = TIMES[horizon + 1e-9 > TIMES]
    value, slope = 0.0, np.zeros_like(theta)
    for start, seen in zip(STARTS, data, strict=True):

        def square(ys, seen=seen):
            return np.mean((ys - seen[: len(times)]) ** 2)

        problem = sn.ODE(network, start, (0.0, horizon), args=unpacked(theta))
        found = sn.gradient(problem, "rk4", square, steps=round(20 * horizon), save_at=times)
        value += found.value / len(data)
        slope += np.concatenate([bar.ravel() for bar in found.args]) / len(data)
    return value, slope


def main(folder: Path, iterations: int = 300) -> None:
    random = np.random.default_rng(0)
    data = [sn.solve(sn.ODE(pendulum, start, (0.0, TIMES[-1])), "dop853", save_at=TIMES).y for start in STARTS]
    data = [exact + NOISE * random.normal(size=exact.shape) for exact in data]
    theta = random.normal(scale=0.35, size=5 * HIDDEN + 2)
    for horizon in HORIZONS:
        options = {"maxiter": iterations}
        fit = minimize(misfit, theta, args=(data, horizon), jac=True, method="L-BFGS-B", options=options)
        theta = fit.x
        print(f"up to t = {horizon:g}: mean square {fit.fun:.2e} after {fit.nfev} gradients; noise has {NOISE**2:.1e}")

    with plots.style():
        draw(theta, data).savefig(folder / "neural_ode.png")


def draw(theta: np.ndarray, data: list) -> Figure:
    """Paths that were seen and one that was not, beside the true ones, and the errors in words."""
    figure = Figure(figsize=(10, 3.6), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    later = np.linspace(0, END, 401)
    for number, start in enumerate((*STARTS, UNSEEN)):
        true, found = (
            sn.solve(sn.ODE(field, start, (0.0, END), args=args), "dop853", save_at=later).y
            for field, args in ((pendulum, ()), (network, unpacked(theta)))
        )
        error = np.sqrt(np.mean((true - found) ** 2, axis=1))
        name = "unseen" if start == UNSEEN else "seen"
        print(f"{name:<6} path from {start}: error {error[later <= 6].max():.3f} up to t = 6, {error.max():.3f} in all")
        look = {"color": plots.COLOURS[number], "lw": 1.3, "label": name if number > 1 else None}
        left.plot(*found.T, **look)
        right.plot(later, found[:, 0], **look)
        left.plot(*true.T, "k:", lw=0.9)
        right.plot(later, true[:, 0], "k:", lw=0.9, label="true" if start == UNSEEN else None)
        if start != UNSEEN:
            left.plot(*data[number].T, ".", color=plots.COLOURS[number], ms=4)
            right.plot(TIMES, data[number][:, 0], ".", color=plots.COLOURS[number], ms=4)
    right.axvspan(TIMES[-1], END, color="#f3f3f3", zorder=-1)
    left.set(xlabel="angle", ylabel="velocity", aspect="equal")
    right.set(xlabel="t", ylabel="angle", xlim=(0, END))
    right.legend(ncols=3, loc="lower right")
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
