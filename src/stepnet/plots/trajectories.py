"""Pictures of solutions: orbits, energies, step sizes."""

from __future__ import annotations

from contextlib import contextmanager

import matplotlib.pyplot as plt
import numpy as np

from stepnet.plots.axes import an_axes, axes_of, two_entries
from stepnet.solution import Solution
from stepnet.validation import array, check, function, instance

COLOURS = ("#1b5e8c", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#555555")


@contextmanager
def style():
    """Quiet axes and a common set of colours for the figures drawn inside."""
    rules = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "axes.titlesize": "medium",
        "font.size": 9,
        "legend.frameon": False,
        "figure.dpi": 150,
        "savefig.bbox": "tight",
    }
    with plt.rc_context(rules):
        yield


@check(solution=instance(Solution), axes=an_axes)
def orbit(solution: Solution, axes=None, *, components: tuple[int, int] = (0, 1), **line):
    """One component of the flat state over another, equal scales; between the steps, too, if the solution is dense."""
    axes = axes_of(axes)
    t = solution.t if solution.pieces is None else _refine(solution.t)
    y = (solution.y if solution.pieces is None else solution(t)).reshape(len(t), -1)
    i, j = two_entries("components", components, y.shape[1])
    axes.plot(y[:, i], y[:, j], **{"lw": 0.8, **line})
    axes.set(xlabel=f"y[{i}]", ylabel=f"y[{j}]", aspect="equal")
    return axes


def _refine(t: np.ndarray, parts: int = 16) -> np.ndarray:
    """Times with more of them inside each interval."""
    inside = t[:-1, None] + np.diff(t)[:, None] * np.arange(parts) / parts
    return np.append(inside.ravel(), t[-1])


@check(solution=instance(Solution), energy=function, axes=an_axes)
def energy_error(solution: Solution, energy, axes=None, **line):
    """The largest |H - H(0)| so far over time, logarithmic; `energy(solution)` gives one number per time."""
    axes = axes_of(axes)
    H = array()("energy", energy(solution))
    if H.shape != solution.t.shape:
        raise ValueError(f"`energy` must give one number for each of {len(solution.t)} times, found {H.shape}")
    error = np.maximum.accumulate(np.abs(H - H[0]))
    axes.semilogy(solution.t[1:], np.maximum(error[1:], 1e-17), **{"lw": 1.0, "label": solution.scheme.name, **line})
    axes.set(xlabel="t", ylabel="largest energy error so far")
    return axes


@check(solution=instance(Solution), axes=an_axes)
def step_sizes(solution: Solution, axes=None, **line):
    """The lengths of the steps over time, logarithmic."""
    axes = axes_of(axes)
    label = {"label": solution.scheme.name}
    axes.semilogy(solution.t[:-1], np.abs(np.diff(solution.t)), **{"lw": 0.8, **label, **line})
    axes.set(xlabel="t", ylabel="step size")
    return axes
