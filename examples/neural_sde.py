"""Drift and diffusion of a stochastic equation from observed pairs of states, as two networks.

Many paths from each of some start points are seen again after a short time.  The networks are trained so that the means
and variances of their own paths are those of the observations (moment matching, weighted by the errors of both), with
the exact derivatives of the paths on fixed noise.  Half of the paths have the noise of the others with the other sign.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from scipy.optimize import minimize

import stepnet as sn

matplotlib.use("Agg")
from matplotlib.figure import Figure

STARTS, SIDE, GAP = 32, 1.6, 0.25
SEEN, PATHS, STEPS = 4096, 1024, 5
HIDDEN = 6
SIZES = 2 * [HIDDEN, HIDDEN, HIDDEN, 1]


class Process(NamedTuple):
    """What is to be found."""

    drift: Callable
    diffusion: Callable


DOUBLE_WELL = Process(lambda t, y: y - y**3, lambda t, y: 0.4 + 0.1 * y**2)
ORNSTEIN_UHLENBECK = Process(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y)


def perceptron(y, W, b, V, c):
    """A network of one number, at one state (1,) or many (points,)."""
    return sum(V[i] * np.tanh(W[i] * y + b[i]) for i in range(HIDDEN)) + c[0]


def drift(t, y, sign, W, b, V, c, *rest):
    return perceptron(y, W, b, V, c)


def diffusion(t, y, sign, *weights):
    return sign[0] * np.log(1.0 + np.exp(perceptron(y, *weights[4:])))


def split(theta: np.ndarray) -> list[np.ndarray]:
    return np.split(theta, np.cumsum(SIZES)[:-1])


class Moments(NamedTuple):
    """Means and variances (starts,) after the gap in time."""

    mean: np.ndarray
    variance: np.ndarray


def find_moments(ends: np.ndarray) -> Moments:
    rows = ends.reshape(STARTS, -1)
    return Moments(rows.mean(axis=1), rows.var(axis=1))


def observe(process: Process, seed: int) -> tuple[np.ndarray, Moments]:
    """Start points, and the moments of the paths from them."""
    x = np.linspace(-SIDE, SIDE, STARTS)
    sde = sn.SDE(process.drift, process.diffusion, [0.0], (0.0, GAP), seed=seed)
    y0 = np.repeat(x, SEEN)[:, None]
    return x, find_moments(sn.solve_ensemble(sde, "sriw1", y0=y0, paths=np.arange(len(y0)), steps=32).y_end)


class Fit:
    """The distance of the moments of the networks from those observed, and its exact gradient."""

    def __init__(self, x: np.ndarray, seen: Moments):
        self.seen, self.y0 = seen, np.repeat(x, PATHS)[:, None]
        self.signs = np.resize([1.0, -1.0], len(self.y0))
        self.paths = np.arange(len(self.y0)) // 2
        share = 1.0 / SEEN + 1.0 / PATHS
        self.weights = Moments(1.0 / (share * seen.variance), 0.5 / (share * seen.variance**2))

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        sde = sn.SDE(drift, diffusion, [0.0], (0.0, GAP), (np.ones(1), *split(theta)), seed=1)
        rows = np.column_stack((self.signs, np.broadcast_to(theta, (len(self.y0), len(theta)))))
        how = {"y0": self.y0, "args": rows, "paths": self.paths, "steps": STEPS}
        ends = sn.solve_ensemble(sde, "sriw1", **how).y_end.reshape(STARTS, PATHS)
        found = find_moments(ends)
        gaps = Moments(found.mean - self.seen.mean, found.variance - self.seen.variance)
        value = sum(float(np.sum(w * gap**2)) for w, gap in zip(self.weights, gaps, strict=True)) / (2 * STARTS)
        by_mean, by_variance = (w * gap / STARTS for w, gap in zip(self.weights, gaps, strict=True))
        bars = by_mean[:, None] / PATHS + by_variance[:, None] * 2.0 * (ends - found.mean[:, None]) / PATHS
        back = sn.gradient_ensemble(sde, "sriw1", end_gradient=bars.reshape(-1, 1), **how)
        return value, back.args.sum(axis=0)[1:]


def recover(process: Process, iterations: int = 150, seed: int = 2) -> tuple[np.ndarray, dict[str, float]]:
    """The weights of both networks, and the relative errors of drift and diffusion between the outer start points."""
    x, seen = observe(process, seed)
    theta = np.random.default_rng(0).normal(scale=0.5, size=sum(SIZES))
    theta = minimize(Fit(x, seen), theta, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x
    y, weights, errors = np.linspace(-SIDE, SIDE, 201), split(theta), {}
    for name, network, exact in (("drift", drift, process.drift), ("diffusion", diffusion, process.diffusion)):
        wanted = exact(0.0, y)
        error = network(0.0, y, np.ones(1), *weights) - wanted
        errors[name] = float(np.sqrt(np.sum(error**2) / np.sum(wanted**2)))
    return theta, errors


def find_density(process: Process, y: np.ndarray) -> np.ndarray:
    """The stationary density exp(int 2 f / g^2) / g^2 on a grid, with total 1."""
    rate = 2.0 * process.drift(0.0, y) / process.diffusion(0.0, y) ** 2
    h = y[1] - y[0]
    found = np.exp(np.concatenate(([0.0], np.cumsum(0.5 * h * (rate[1:] + rate[:-1]))))) / process.diffusion(0, y) ** 2
    return found / (h * found.sum())


def main(folder: Path, iterations: int = 150) -> dict[str, float]:
    theta, errors = recover(DOUBLE_WELL, iterations)
    for name, error in errors.items():
        print(f"{name}: relative error {error:.2%}")
    y, weights = np.linspace(-SIDE, SIDE, 201), split(theta)
    learnt = Process(*(lambda t, y, f=f: f(t, y, np.ones(1), *weights) for f in (drift, diffusion)))
    figure = Figure(figsize=(13, 4), layout="constrained", dpi=150)
    for axes, name, exact, own in zip(figure.subplots(1, 3)[:2], errors, DOUBLE_WELL, learnt, strict=True):
        axes.plot(y, exact(0.0, y), "k", lw=1.0, label="exact")
        axes.plot(y, own(0.0, y), "--", label=f"network, error {errors[name]:.1%}")
        axes.set(title=name, xlabel="y")
        axes.legend()
    axes = figure.axes[2]
    axes.plot(y, find_density(DOUBLE_WELL, y), "k", lw=1.0, label="exact")
    axes.plot(y, find_density(learnt, y), "--", label="networks")
    axes.set(title=f"stationary density, from paths of length {GAP:g}", xlabel="y", ylim=(0.0, None))
    axes.legend()
    figure.savefig(folder / "neural_sde.png")
    return errors


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
