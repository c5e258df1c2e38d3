"""Figures of solutions on grids: heat maps over space and time, and animations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.operators.grid import Grid
from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.records import explain_passed_arguments
from stepnet.solution import Solution
from stepnet.validation import check, instance, optional, real, whole

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes


@explain_passed_arguments
@check(solution=instance(Solution), grid=instance(Grid), axes=OPTIONAL_AXES, time=optional(real()),
       component=whole())  # fmt: skip
def heat_map(
    solution: Solution, grid: Grid, axes: Axes | None = None, *, time: float | None = None, component: int = 0,
    **mesh: Any,
) -> Axes:  # fmt: skip
    """Draw a solution on a grid: over space and time in one dimension, at one time in two.

    Parameters
    ----------
    solution : Solution
    grid : Grid
        Of one or two dimensions.
    axes : matplotlib Axes, optional
        The current ones by default.
    time : float, optional
        In two dimensions, the saved time that is nearest to this one; by default the last.
    component : int, optional
        Which of several unknowns on the grid.
    **mesh
        Options of matplotlib's `pcolormesh`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> grid = sn.operators.Grid(32, 0.0, 1.0)
    >>> heat = sn.equations.heat(grid, np.sin(2 * np.pi * grid.coordinates[0]), (0.0, 0.1), diffusivity=0.1)
    >>> axes = sn.plots.heat_map(sn.solve(heat, "rkl2", steps=20), grid)
    """
    axes, values = choose_axes(axes), select_fields(solution, grid, component)
    options = {"cmap": "viridis", "shading": "nearest", "rasterized": True, **mesh}
    if len(grid.shape) == 1:
        found = axes.pcolormesh(grid.find_axis(0), solution.t, values, **options)
        axes.set(xlabel="x", ylabel="t")
    else:
        k = len(solution.t) - 1 if time is None else int(np.argmin(np.abs(solution.t - time)))
        found = axes.pcolormesh(grid.find_axis(0), grid.find_axis(1), values[k].T, **options)
        axes.set(xlabel="x", ylabel="y", aspect="equal", title=f"t = {solution.t[k]:.4g}")
    axes.figure.colorbar(found, ax=axes)
    return axes


@check(solution=instance(Solution), grid=instance(Grid), axes=OPTIONAL_AXES, component=whole(),
       interval=real("(0, inf)"))  # fmt: skip
def animate(
    solution: Solution, grid: Grid, axes: Axes | None = None, *, component: int = 0, interval: float = 50.0
) -> FuncAnimation:
    """Animate a solution on a grid of one or two dimensions, one frame for each saved time.

    Parameters
    ----------
    solution : Solution
    grid : Grid
    axes : matplotlib Axes, optional
        The current ones by default.
    component : int, optional
        Which of several unknowns on the grid.
    interval : float, optional
        Milliseconds between frames.

    Returns
    -------
    matplotlib FuncAnimation
        Write it by `.save("film.gif", writer="pillow")`; keep a reference to it while it is shown.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> grid = sn.operators.Grid(32, 0.0, 1.0)
    >>> heat = sn.equations.heat(grid, np.sin(2 * np.pi * grid.coordinates[0]), (0.0, 0.1), diffusivity=0.1)
    >>> film = sn.plots.animate(sn.solve(heat, "rkl2", steps=4), grid)
    >>> film.save("film.gif", writer="pillow")
    """
    from matplotlib.animation import FuncAnimation

    axes, values = choose_axes(axes), select_fields(solution, grid, component)
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 1.0
    title, artist = axes.set_title(""), None  # type: Any, Any
    if len(grid.shape) == 1:
        (artist,) = axes.plot(grid.find_axis(0), values[0])
        axes.set(xlabel="x", ylabel="u", ylim=(low - margin, high + margin))
    else:
        artist = axes.pcolormesh(
            grid.find_axis(0), grid.find_axis(1), values[0].T, cmap="viridis", shading="nearest", vmin=low, vmax=high
        )
        axes.set(xlabel="x", ylabel="y", aspect="equal")

    def draw(k: int) -> tuple[Any, ...]:
        artist.set_ydata(values[k]) if values.ndim == 2 else artist.set_array(values[k].T)
        title.set_text(f"t = {solution.t[k]:.4g}")
        return artist, title

    return FuncAnimation(axes.figure, draw, frames=len(solution.t), interval=interval)  # type: ignore[arg-type]


def select_fields(solution: Solution, grid: Grid, component: int) -> np.ndarray:
    """One unknown on the grid at all times (times, *grid.shape)."""
    if len(grid.shape) > 2:
        raise ValueError(f"`grid` must have one or two dimensions to be drawn, found {len(grid.shape)}")
    size, states = int(np.prod(grid.shape)), np.asarray(solution.y).reshape(len(solution.t), -1)
    count = states.shape[1] // size
    if count * size != states.shape[1] or not count:
        raise ValueError(f"`grid` must have the shape of the state, found {grid.shape} for {states.shape[1]} numbers")
    if component >= count:
        raise ValueError(f"`component` must be below {count}, found {component}")
    return states.reshape(len(states), count, *grid.shape)[:, component]
