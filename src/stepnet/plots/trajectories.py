"""Figures of solutions: orbits, energies, step sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes, validate_entry_pair
from stepnet.plots.class_colours import CLASSES
from stepnet.records import explain_passed_arguments
from stepnet.solution import Solution
from stepnet.validation import array, check, function, instance

COLOURS = tuple(CLASSES[k] for k in (0, 1, 2, 6, 4, 8))  # as far apart as possible for colour-blind readers


@contextmanager
def style() -> Iterator[None]:
    """A context with light axes and a common colour cycle.

    Returns
    -------
    context manager

    Examples
    --------
    >>> import stepnet as sn
    >>> with sn.plots.style():
    ...     axes = sn.plots.step_sizes(sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5"))
    """
    rules: Any = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.titlesize": "medium",
        "font.size": 9,
        "legend.frameon": False,
        "figure.dpi": 150,
        "savefig.bbox": "tight",
    }
    with plt.rc_context(rules):
        yield


@explain_passed_arguments
@check(solution=instance(Solution), axes=OPTIONAL_AXES)
def orbit(solution: Solution, axes: Any = None, *, components: tuple[int, int] = (0, 1), **line: Any) -> Any:
    """Plot one component of the flat state over another with equal scales, interpolated if the solution is dense.

    Parameters
    ----------
    solution : Solution
        The solution.
    axes
        Axes to draw into; by default the current ones.
    components : tuple, optional
        The entries of the flat state on the two axes.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> rotation = sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 6.0))
    >>> axes = sn.plots.orbit(sn.solve(rotation, "rk4", steps=60))
    """
    axes = choose_axes(axes)
    t = solution.t if solution.pieces is None else _refine(solution.t)
    y = (solution.y if solution.pieces is None else solution(t)).reshape(len(t), -1)
    i, j = validate_entry_pair("components", components, y.shape[1])
    axes.plot(y[:, i], y[:, j], **{"lw": 0.8, **line})
    axes.set(xlabel=f"y[{i}]", ylabel=f"y[{j}]", aspect="equal")
    return axes


def _refine(t: np.ndarray, parts: int = 16) -> np.ndarray:
    """Refine times by dividing each interval."""
    inside = t[:-1, None] + np.diff(t)[:, None] * np.arange(parts) / parts
    return np.append(inside.ravel(), t[-1])


@explain_passed_arguments
@check(solution=instance(Solution), energy=function, axes=OPTIONAL_AXES)
def energy_error(solution: Solution, energy: Callable[[Solution], Any], axes: Any = None, **line: Any) -> Any:
    """Plot the running maximum of |H - H(0)|, logarithmic; `energy(solution)` returns one number per time.

    Parameters
    ----------
    solution : Solution
        The solution.
    energy : callable
        `energy(solution)` returns one number per time.
    axes
        Axes to draw into; by default the current ones.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> solution = sn.solve(sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 9.0)), "verlet", steps=90)
    >>> axes = sn.plots.energy_error(solution, lambda s: (s.q[:, 0] ** 2 + s.v[:, 0] ** 2) / 2)
    >>> axes.get_yscale()
    'log'
    """
    axes = choose_axes(axes)
    try:
        values = energy(solution)
    except TypeError as raised:
        raise TypeError(f"`energy` must be a function of a `Solution`; its call raised: {raised}") from raised
    H = array()("energy", values)
    if H.shape != solution.t.shape:
        raise ValueError(f"`energy` must give one number for each of {len(solution.t)} times, found {H.shape}")
    error = np.maximum.accumulate(np.abs(H - H[0]))
    axes.semilogy(solution.t[1:], np.maximum(error[1:], 1e-17), **{"lw": 1.0, "label": solution.scheme.name, **line})
    axes.set(xlabel="t", ylabel="largest energy error so far")
    return axes


@explain_passed_arguments
@check(solution=instance(Solution), axes=OPTIONAL_AXES)
def step_sizes(solution: Solution, axes: Any = None, **line: Any) -> Any:
    """Plot the step sizes over time, logarithmic.

    Parameters
    ----------
    solution : Solution
        The solution.
    axes
        Axes to draw into; by default the current ones.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> axes = sn.plots.step_sizes(sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5"))
    >>> axes.get_yscale()
    'log'
    """
    axes = choose_axes(axes)
    label = {"label": solution.scheme.name}
    axes.semilogy(solution.t[:-1], np.abs(np.diff(solution.t)), **{"lw": 0.8, **label, **line})
    axes.set(xlabel="t", ylabel="step size")
    return axes
