"""Figures of dynamical systems: phase portraits, trajectories, sections, branches, fields over initial states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes, validate_entry_pair
from stepnet.plots.class_colours import CLASSES
from stepnet.plots.trajectories import COLOURS
from stepnet.records import explain_passed_arguments
from stepnet.solution import Solution
from stepnet.solving.integrate import solve
from stepnet.stability.branches import Branch
from stepnet.stability.first_order import DETERMINISTIC, FirstOrderField, choose_state
from stepnet.stability.lyapunov_fields import LyapunovField
from stepnet.stability.sections import PoincareSection
from stepnet.validation import array, check, instance, optional, real, sequence, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

MARKS = {"fold": "s", "hopf": "o"}


def _window(name: str, value: Any) -> tuple[float, float]:
    found = sequence(real())(name, value)
    if len(found) != 2 or not found[0] < found[1]:
        raise ValueError(f"`{name}` must be two increasing numbers, found {value!r:.60}")
    return found


@explain_passed_arguments
@check(problem=DETERMINISTIC, x=_window, y=_window, axes=OPTIONAL_AXES, resolution=whole(2, 400), t=optional(real()))
def phase_portrait(
    problem: Any, x: Sequence[float], y: Sequence[float], axes: Axes | None = None, *, starts: ArrayLike = (),
    scheme: Any = "dopri5", resolution: int = 25, t: float | None = None, **line: Any,
) -> Axes:  # fmt: skip
    """Draw the vector field of a problem with two unknowns as stream lines, and the solutions from some states.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        With a flat state of two entries; its time span is that of the solutions.
    x, y : (float, float)
        The window.
    axes : matplotlib Axes, optional
        The current ones by default.
    starts : array_like (n, 2), optional
        Initial states of solutions, which are drawn as lines from a dot.
    scheme : str or scheme, optional
        A pair, for these solutions.
    resolution : int, optional
        Points of the field in each direction.
    t : float, optional
        The time of the field, by default the initial one.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> pendulum = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [1.0, 0.0], (0.0, 6.0))
    >>> axes = sn.plots.phase_portrait(pendulum, (-4, 4), (-3, 3), starts=[[1.0, 0.0], [2.0, 0.0]])
    """
    field = FirstOrderField(problem)
    if field.size != 2:
        raise ValueError(f"`problem` must have a state of two entries, found {field.size}")
    field.require_slopes()
    begins = array()("starts", starts)
    if begins.size and begins.shape[-1:] != (2,):
        raise ValueError(f"`starts` must be points (points, 2), found the shape {begins.shape}")
    time, axes = problem.t_span[0] if t is None else t, choose_axes(axes)
    u, v = np.linspace(x[0], x[1], resolution), np.linspace(y[0], y[1], resolution)
    slopes = np.array([[field.slope(time, np.array([a, b])) for a in u] for b in v])
    axes.streamplot(u, v, slopes[..., 0], slopes[..., 1], color="#bbbbbb", linewidth=0.6, arrowsize=0.7, density=1.1)
    for k, start in enumerate(begins.reshape(-1, 2)):
        run = _solve_from(field, start, scheme)
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(*run.T, **{"lw": 1.2, "color": colour, **line})
        axes.plot(*start, "o", ms=3, color=colour)
    axes.set(xlim=x, ylim=y, xlabel="y[0]", ylabel="y[1]")
    return axes


def _solve_from(field: FirstOrderField, start: np.ndarray, scheme: Any) -> np.ndarray:
    """The states of a solution (times, 2), up to where it ends."""
    problem = replace(field.problem, y0=choose_state("starts", start, field.problem.initial))
    span = np.linspace(*problem.t_span, 400)
    return np.asarray(solve(problem, scheme, save_at=span, check=False).y).reshape(-1, 2)


@explain_passed_arguments
@check(solution=instance(Solution), axes=OPTIONAL_AXES)
def trajectory(
    solution: Solution, axes: Any = None, *, components: tuple[int, int, int] = (0, 1, 2), **line: Any
) -> Any:
    """Plot three components of the flat state in space.

    Parameters
    ----------
    solution : Solution
    axes : matplotlib Axes3D, optional
        By default new ones in a new figure.
    components : tuple of int, optional
        The entries of the flat state.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib Axes3D

    Examples
    --------
    >>> import stepnet as sn
    >>> helix = sn.ODE(lambda t, y: [y[1], -y[0], 0.1], [1.0, 0.0, 0.0], (0.0, 20.0))
    >>> axes = sn.plots.trajectory(sn.solve(helix, "rk4", steps=200))
    """
    states = np.asarray(solution.y).reshape(len(solution.t), -1)
    found = sequence(whole(-states.shape[1], states.shape[1] - 1))("components", components)
    if len(found) != 3:
        raise ValueError(f"`components` must be three numbers of entries, found {len(found)}")
    axes = plt.figure(layout="constrained").add_subplot(projection="3d") if axes is None else axes
    if not hasattr(axes, "set_zlabel"):
        raise TypeError('`axes` must be three-dimensional, as from `figure.add_subplot(projection="3d")`')
    axes.plot(*states[:, list(found)].T, **{"lw": 0.6, **line})
    axes.set(xlabel=f"y[{found[0]}]", ylabel=f"y[{found[1]}]", zlabel=f"y[{found[2]}]")
    return axes


@explain_passed_arguments
@check(found=instance(PoincareSection), axes=OPTIONAL_AXES)
def poincare_points(
    found: PoincareSection, axes: Axes | None = None, *, components: tuple[int, int] = (0, 1), **points: Any
) -> Axes:
    """Plot two components of the states on a Poincare section.

    Parameters
    ----------
    found : PoincareSection
    axes : matplotlib Axes, optional
        The current ones by default.
    components : tuple of int, optional
        The entries of the flat state.
    **points
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> circle = sn.ODE(lambda t, y: [y[1], -y[0]], [0.0, 1.0], (0.0, 20.0))
    >>> found = sn.stability.poincare_section(circle, lambda t, y: y[0], "dopri5")
    >>> axes = sn.plots.poincare_points(found)
    """
    axes = choose_axes(axes)
    i, j = validate_entry_pair("components", components, found.points.shape[1])
    axes.plot(found.points[:, i], found.points[:, j], **{"marker": ".", "ms": 1.5, "ls": "", **points})
    axes.set(xlabel=f"y[{i}]", ylabel=f"y[{j}]")
    return axes


@check(branch=instance(Branch), axes=OPTIONAL_AXES, component=optional(whole()))
def bifurcation_diagram(branch: Branch, axes: Axes | None = None, *, component: int | None = None) -> Axes:
    """Draw a branch of equilibria over its argument: stable parts solid, others dashed, folds and Hopf points marked.

    Parameters
    ----------
    branch : Branch
    axes : matplotlib Axes, optional
        The current ones by default.
    component : int, optional
        The entry of the state on the vertical axis; by default the largest entry.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, a: a - y * y, [1.0], (0.0, 1.0), (1.0,))
    >>> axes = sn.plots.bifurcation_diagram(sn.stability.continuation(problem, "a", -1.0))
    """
    axes, n = choose_axes(axes), branch.states.shape[1]
    if component is not None and component >= n:
        raise ValueError(f"`component` must be below {n}, found {component}")

    def measure(y: np.ndarray) -> np.ndarray:
        return y.max(axis=-1) if component is None else y[..., component]

    heights, is_stable = measure(branch.states), branch.is_stable
    for wanted, style in ((True, "-"), (False, "--")):
        part = np.where(is_stable == wanted, heights, np.nan)
        edges = np.flatnonzero(np.diff(is_stable.astype(int))) + (0 if wanted else 1)  # pieces share a point
        part[edges] = heights[edges]
        axes.plot(branch.parameters, part, style, color=COLOURS[0], label="stable" if wanted else "unstable")
    for kind in dict.fromkeys(each.kind for each in branch.special):
        some = [each for each in branch.special if each.kind == kind]
        values = [each.parameter for each in some], [measure(each.y) for each in some]
        axes.plot(*values, MARKS[kind], color=COLOURS[1], ms=5, label="Hopf" if kind == "hopf" else kind, zorder=3)
    axes.set(xlabel=branch.argument, ylabel="largest entry" if component is None else f"y[{component}]")
    axes.legend(fontsize="small")
    return axes


@check(found=instance(LyapunovField), axes=OPTIONAL_AXES)
def lyapunov_map(found: LyapunovField, axes: Axes | None = None) -> Axes:
    """Draw finite-time Lyapunov exponents over the plane of initial states, with a colour bar.

    Parameters
    ----------
    found : LyapunovField
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> pendulum = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [0.0, 0.0], (0.0, 6.0))
    >>> field = sn.stability.lyapunov_field(pendulum, np.linspace(-3, 3, 9), np.linspace(-2, 2, 7), "rk4", steps=60)
    >>> axes = sn.plots.lyapunov_map(field)
    """
    axes = choose_axes(axes)
    mesh = axes.pcolormesh(found.x, found.y, found.values, cmap="viridis", shading="nearest", rasterized=True)
    axes.figure.colorbar(mesh, ax=axes, label="exponent")
    axes.set(xlabel="y0[0]", ylabel="y0[1]")
    return axes


@check(labels=array(None, None), x=_window, y=_window, axes=OPTIONAL_AXES)
def basins(labels: ArrayLike, x: Sequence[float], y: Sequence[float], axes: Axes | None = None) -> Axes:
    """Draw basins of attraction: the colour of each initial state is that of the attractor it leads to.

    Parameters
    ----------
    labels : array_like (ny, nx)
        The numbers of attractors, -1 for none, as the reduction `Basins` of a sweep finds them.
    x, y : (float, float)
        The window of the initial states.
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> axes = sn.plots.basins([[0, 1, -1], [0, 0, 1]], (-1, 1), (0, 1))
    """
    axes, found = choose_axes(axes), np.asarray(labels).astype(int)
    if not found.size or found.min() < -1 or found.max() >= 1000:
        raise ValueError(f"`labels` must be numbers of attractors from -1 to 999, found {found!r:.60}")
    count = found.max() + 1
    colours = ListedColormap(["#222222", *(CLASSES[k % len(CLASSES)] for k in range(count))])
    axes.imshow(
        found, colours, vmin=-1.5, vmax=count - 0.5, origin="lower", extent=(x[0], x[1], y[0], y[1]), aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    axes.set(xlabel="y0[0]", ylabel="y0[1]")
    return axes
