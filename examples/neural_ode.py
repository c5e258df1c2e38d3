"""A pendulum with friction from noisy observations: the right-hand side is a network, the loss includes all times.

Gradients are exact through every step.  The fit begins with the first second and a half and doubles the time span in
each round, because paths of an untrained field diverge from the data.  The field is trained on three paths; the fourth
path and the times after the observations are not used for training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

STARTS, UNSEEN = ((2.6, 0.0), (-1.2, 1.9), (0.6, -1.0)), (-2.2, -0.4)
HORIZONS, END = (1.5, 3.0, 6.0), 12.0
TIMES = np.arange(1, 31) / 5
NOISE, HIDDEN = 0.03, 24
LATER = "#eeeeee"


def pendulum(t, y):
    return [y[1], -np.sin(y[0]) - 0.15 * y[1]]


def network(t, y, W, b, V, c):
    """The field at one state (2,), or at many (2, paths)."""
    columns = (slice(None), *[None] * (y.ndim - 1))
    return V @ np.tanh(W @ y + b[columns]) + c[columns]


class Pulled(NamedTuple):
    """A loss, its gradient with respect to the weights, and the outputs it was evaluated on."""

    value: float
    theta: np.ndarray
    outputs: np.ndarray


class Paths:
    """Paths from many starts at some times as a model that can be trained: outputs are (starts, times x 2)."""

    def __init__(self, theta: np.ndarray):
        self.theta, self.times = theta, TIMES

    def put(self, theta: np.ndarray) -> None:
        self.theta = np.array(theta)

    def weights(self) -> tuple[np.ndarray, ...]:
        W, b, V, c = np.split(self.theta, np.cumsum([2 * HIDDEN, HIDDEN, 2 * HIDDEN]))
        return W.reshape(HIDDEN, 2), b, V.reshape(2, HIDDEN), c

    def _steps(self, starts):
        """What to solve, by which scheme, and how."""
        problem = sn.ODE(network, starts.T, (0.0, self.times[-1]), args=self.weights())
        return (problem, "rk4"), {"steps": round(20 * self.times[-1]), "save_at": self.times}

    def __call__(self, starts) -> np.ndarray:
        what, how = self._steps(starts)
        return _by_path(sn.solve(*what, **how).y)

    def gradient(self, starts, loss) -> Pulled:
        """The exact gradient of a loss of all paths at all times."""
        what, how = self._steps(starts)
        outputs = np.zeros(0)

        def read(ys):
            nonlocal outputs
            outputs = _by_path(ys)
            value, bar = loss(outputs)
            return value, bar.reshape(len(starts), len(ys), 2).transpose(1, 2, 0)

        found = sn.gradient(*what, read, **how)
        return Pulled(found.value, np.concatenate([bar.ravel() for bar in found.args]), outputs)


def _by_path(ys: np.ndarray) -> np.ndarray:
    """States (times, 2, paths) as rows, one for each path."""
    return ys.transpose(2, 0, 1).reshape(ys.shape[2], -1)


def main(folder: Path, iterations: int = 300) -> dict[str, float]:
    """Draw; return the last mean square and the largest errors on the training paths and on the other one."""
    random = np.random.default_rng(0)
    data = [sn.solve(sn.ODE(pendulum, start, (0.0, TIMES[-1])), "dop853", save_at=TIMES).y for start in STARTS]
    data = [exact + NOISE * random.normal(size=exact.shape) for exact in data]
    model = Paths(random.normal(scale=0.35, size=5 * HIDDEN + 2))
    objective = training.Objective(model, "mse")
    for horizon in HORIZONS:
        model.times = TIMES[horizon + 1e-9 > TIMES]
        seen = training.Data(np.array(STARTS), np.stack([each[: len(model.times)].ravel() for each in data]))
        fit = training.minimise(objective, seen, training.LBFGS(iterations))
        told = f"mean square {fit.value:.2e} after {fit.gradients} gradients; noise has {NOISE**2:.1e}"
        print(f"up to t = {horizon:g}: {told}")
    with plots.style():
        figure, errors = draw(model.weights(), data)
    figure.savefig(folder / "neural_ode.png")
    return {"mean square": fit.value, **errors}


def draw(weights: tuple, data: list) -> tuple[Figure, dict[str, float]]:
    """Training paths and one that was not used, next to the true ones, and the largest errors of both kinds."""
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    later, errors = np.linspace(0, END, 401), {"seen": 0.0, "unseen": 0.0}
    for start, colour in zip((*STARTS, UNSEEN), plots.COLOURS, strict=False):
        true, found = (
            sn.solve(sn.ODE(field, start, (0.0, END), args=args), "dop853", save_at=later).y
            for field, args in ((pendulum, ()), (network, weights))
        )
        error = np.sqrt(np.mean((true - found) ** 2, axis=1))
        name = "unseen" if start == UNSEEN else "seen"
        errors[name] = max(errors[name], float(error.max()))
        print(f"{name:<6} path from {start}: error {error[later <= 6].max():.3f} up to t = 6, {error.max():.3f} in all")
        for path, look in ((found, {"color": colour, "lw": 1.3}), (true, {"color": "black", "ls": ":", "lw": 0.9})):
            left.plot(*path.T, **look)
            right.plot(later, path[:, 0], **look)
    for (angle, velocity), colour in zip((each.T for each in data), plots.COLOURS, strict=False):
        left.plot(angle, velocity, ".", color=colour, ms=4)
        right.plot(TIMES, angle, ".", color=colour, ms=4)
    right.axvspan(TIMES[-1], END, color=LATER, zorder=-1)
    left.set(xlabel="angle", ylabel="velocity", aspect="equal")
    right.set(xlabel="t", ylabel="angle", xlim=(0, END))
    explain(figure)
    return figure, errors


def explain(figure: Figure) -> None:
    """The legend: lines, dots and the grey area."""
    seen = tuple(Line2D([], [], color=colour) for colour in plots.COLOURS[: len(STARTS)])
    dots = tuple(Line2D([], [], ls="", marker=".", color=colour) for colour in plots.COLOURS[: len(STARTS)])
    known = {
        "observations": dots,
        "found, three paths seen": seen,
        "found, a path never seen": Line2D([], [], color=plots.COLOURS[len(STARTS)]),
        "true": Line2D([], [], color="black", ls=":", lw=0.9),
        "after the observations": Patch(color=LATER),
    }
    look = {"handler_map": {tuple: HandlerTuple(ndivide=None)}, "handlelength": 2.5}
    figure.legend(known.values(), known.keys(), ncols=5, loc="outside lower center", **look)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
