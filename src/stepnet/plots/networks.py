"""Figures of networks: propagation of points through layers, decision regions, graphs and training histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.ticker import LogLocator, NullLocator
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.sparse.csgraph import shortest_path

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes, validate_entry_pair
from stepnet.plots.class_colours import (
    CLASSES,
    choose_colours,
    class_colour,
    class_colours,
    find_places,
    list_classes,
    make_paler,
    validate_labels,
)
from stepnet.records import explain_passed_arguments
from stepnet.validation import array, check, function, having, optional, real, sequence, whole

FINEST, MOST_PANELS = 10_000, 1000
READ = 0.05  # directions in which outputs vary less than this fraction of the largest variation are omitted


def _counts(name: str, value: Any) -> Any:
    """Return a number of panels, or indices of states."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return whole(1, MOST_PANELS)(name, value) if is_number else sequence(whole(-MOST_PANELS, MOST_PANELS))(name, value)


def validate_graph(name: str, value: Any) -> np.ndarray:
    """Return a square matrix of finite numbers, one row per node."""
    found = array()(name, value.toarray() if issparse(value) else value)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be a square matrix of finite numbers, found the shape {found.shape}")
    return found


def validate_run(name: str, value: Any) -> Any:
    """Return a run, a minimum, or a list of minima."""
    one = having("history", what="a Run or a Minimum")
    return sequence(one, 1)(name, value) if isinstance(value, (list, tuple)) else one(name, value)


@explain_passed_arguments
@check(net=having("features", what="a net or an estimator"), depths=_counts, edges=optional(array(None, 2, dtype=int)))
def layers(
    net: Any,
    x: Any,
    labels: Any = None,
    *,
    depths: int | Sequence[int] = 5,
    components: tuple[int, int] | None = None,
    block: int = 0,
    edges: Any = None,
    classes: Any = None,
    axes: Any = None,
    **points: Any,
) -> Any:
    """Plot the states of points at some depths of a net, one panel per depth.

    Parameters
    ----------
    net : Net, NodeModel or an estimator
        Anything with `features(x, block)` of shape (depths, samples, width), and outputs.
    x : array
        Inputs.
    labels : array (samples,), optional
        Integers or names are classes, other numbers are mapped to a colour scale.
    depths : int or sequence of int
        The number of panels, evenly spaced from the first state to the last, or the indices of states.
    components : (int, int), optional
        Two features to show.  By default an orthogonal projection onto the plane of largest variance at each depth, at
        the last depth of the last block onto the directions that determine the outputs; it is rotated to minimise the
        change between panels.
    edges : array (m, 2), optional
        Pairs of points to connect by a line.
    classes : sequence, optional
        All classes in the order of their colours; by default those of the estimator.  Otherwise integers from 0 to 9
        have the colour of their number, and other labels that of their index among those present.
    axes : sequence of axes, optional
        One for each depth; by default a row in a new figure.
    block : int, optional
        Which block of the net.
    **points
        Options of matplotlib's `scatter`.

    Returns
    -------
    array of axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> net = sn.nets.resnet(2, 1, width=3, steps=8)
    >>> len(sn.plots.layers(net, np.random.default_rng(0).normal(size=(9, 2)), depths=3))
    3
    """
    states = net.features(x, block)
    chosen = _depths(depths, len(states))
    if axes is None:
        size = (2.1 * len(chosen), 2.4)
        axes = plt.figure(figsize=size, layout="constrained").subplots(1, len(chosen), squeeze=False)[0]
    axes = np.atleast_1d(np.asarray(axes, object)).ravel()
    for each in axes:
        OPTIONAL_AXES("axes", each)
    if len(axes) != len(chosen):
        raise ValueError(f"`axes` must be one for each of {len(chosen)} depths, found {len(axes)}")
    colours = choose_colours(labels, states.shape[1], classes, of=net)
    read = net if callable(net) else net.outputs
    outputs = [read(x) if number == len(states) - 1 and _is_last(net, block) else None for number in chosen]
    for each, place, number in zip(axes, _planes(states[chosen], outputs, x, components), chosen, strict=True):
        if edges is not None:
            if edges.size and not (edges.min() >= 0 and edges.max() < len(place)):
                raise ValueError(f"`edges` must be numbers of {len(place)} points, found {edges.max()}")
            each.add_collection(LineCollection(place[edges], colors="#dddddd", lw=0.3, zorder=0))
        each.scatter(*place.T, **{"s": 6, "lw": 0, **colours, **points})
        each.set_title("start" if number == 0 else f"step {number}")
        _square(each, place)
    return axes


@explain_passed_arguments
@check(predict=function, axes=OPTIONAL_AXES, resolution=whole(2, FINEST), margin=real("[0, inf)"))
def regions(
    predict: Callable[..., Any],
    x: Any,
    labels: Any,
    axes: Any = None,
    *,
    classes: Any = None,
    resolution: int = 300,
    margin: float = 0.08,
    **points: Any,
) -> Any:
    """Plot the decision regions of a classifier in the plane, with samples on top.

    Parameters
    ----------
    predict : callable
        Maps points (n, 2) to their classes (n,), or to outputs (n, classes) of which the largest determines the class.
    x, labels : arrays
        Samples (n, 2) and their classes.
    classes : sequence, optional
        All classes in the order of outputs and colours.  By default those of the estimator that predicts, or the
        indices of the outputs if the labels are numbers, or those in labels and predictions.
    resolution : int
        Points of the grid in each direction.
    margin : float
        Space around the samples, as a fraction of their range.
    axes
        Axes to draw into; by default the current ones.
    **points
        Options of matplotlib's `scatter`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> x = np.random.default_rng(0).normal(size=(9, 2))
    >>> axes = sn.plots.regions(lambda points: (points[:, 0] > 0).astype(int), x, x[:, 0] > 0, resolution=20)
    """
    axes = choose_axes(axes)
    x, labels = array()("x", x), validate_labels(labels)
    if x.ndim != 2 or x.shape[1] != 2 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"`x` must be points in a plane, finite and of the shape (n, 2), found {x.shape}")
    low, high = x.min(axis=0), x.max(axis=0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    lines = [np.linspace(*ends, resolution) for ends in zip(low, high, strict=True)]
    found = np.asarray(predict(np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2)))
    if found.ndim not in (1, 2) or len(found) != resolution**2:
        raise ValueError(
            f"`predict` must give one class or row for each of {resolution**2} points, found {found.shape}"
        )
    classes = list_classes(classes, labels, found, of=getattr(predict, "__self__", None))
    numbers = np.argmax(found, axis=1) if found.ndim == 2 else find_places(found, classes, "the predictions")
    colours = ListedColormap([make_paler(class_colour(k)) for k in range(len(classes))])
    axes.imshow(
        numbers.reshape(resolution, resolution), colours, vmin=-0.5, vmax=len(classes) - 0.5, origin="lower",
        extent=(low[0], high[0], low[1], high[1]), interpolation="nearest", aspect="equal",
    )  # fmt: skip
    axes.scatter(*x.T, **{"s": 6, "lw": 0, **class_colours(labels, len(x), classes), **points})
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    return _draw_frame(axes)


@explain_passed_arguments
@check(adjacency=validate_graph, axes=OPTIONAL_AXES, positions=optional(array(None, 2)))
def graph(
    adjacency: Any, labels: Any = None, axes: Any = None, *, positions: Any = None, classes: Any = None, **points: Any
) -> Any:
    """Plot a graph in the plane, with distances of nodes close to their path lengths.

    Parameters
    ----------
    adjacency : array (nodes, nodes)
        Adjacency matrix of a connected graph.
    labels, classes : optional
        As in `layers`.
    positions : array (nodes, 2), optional
        Positions of the nodes, by default `graph_positions(adjacency)`.
    axes
        Axes to draw into; by default the current ones.
    **points
        Options of matplotlib's `scatter`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> axes = sn.plots.graph(ring)
    """
    axes = choose_axes(axes)
    place: Any = graph_positions(adjacency) if positions is None else positions
    if len(place) != len(adjacency):
        raise ValueError(f"`positions` must be one for each of {len(adjacency)} nodes, found {len(place)}")
    axes.add_collection(LineCollection(place[np.argwhere(np.triu(adjacency, 1))], colors="#bbbbbb", lw=0.6, zorder=0))
    colours = choose_colours(labels, len(place), classes)
    axes.scatter(*place.T, **{"s": 30, "lw": 0.5, "edgecolor": "#555555", **colours, **points})
    _square(axes, place)
    return axes


@check(adjacency=validate_graph)
def graph_positions(adjacency: Any) -> np.ndarray:
    """Positions (nodes, 2) that minimise sum (|x_i - x_j| / d_ij - 1)^2, d the length of the shortest path.

    Kamada & Kawai (1989), Inf. Process. Lett. 31:7.

    Parameters
    ----------
    adjacency
        Adjacency matrix (nodes, nodes) of a connected graph.

    Returns
    -------
    ndarray
        Positions (nodes, 2).

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> sn.plots.graph_positions(np.eye(4, k=1) + np.eye(4, k=-1)).shape
    (4, 2)
    """
    d = shortest_path(adjacency > 0, directed=False, unweighted=True)
    if not np.isfinite(d).all():
        raise ValueError("`adjacency` must be that of a connected graph; give `positions` otherwise")
    n = len(d)
    np.fill_diagonal(d, 1.0)
    middle = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * middle @ (d - np.eye(n)) ** 2 @ middle)
    begin = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))  # classical scaling

    def stress(flat: np.ndarray) -> tuple[float, np.ndarray]:
        difference = flat.reshape(n, 1, 2) - flat.reshape(1, n, 2)
        distance = np.sqrt(np.sum(difference**2, axis=2) + 1e-12)
        rest = distance / d - 1
        np.fill_diagonal(rest, 0.0)
        slope = 4 * np.sum((rest / (d * distance))[:, :, None] * difference, axis=1)
        return float(np.sum(rest**2)), slope.ravel()

    return minimize(stress, begin.ravel(), jac=True, method="L-BFGS-B").x.reshape(n, 2)


@explain_passed_arguments
@check(run=validate_run, axes=OPTIONAL_AXES)
def history(run: Any, axes: Any = None, **line: Any) -> Any:
    """Plot the history of a loss, logarithmic if it is positive.

    `run` is a `Run` of mini-batches (validation dashed), a `Minimum`, or the list of minima returned by `multilevel`,
    whose levels are concatenated, with a line where each begins.

    Parameters
    ----------
    run
        A `Run`, a `Minimum`, or a list of minima.
    axes
        Axes to draw into; by default the current ones.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> net, data = sn.nets.resnet(2, 1, width=3, steps=2), sn.training.Data(np.ones((4, 2)), np.ones((4, 1)))
    >>> run = sn.training.train(sn.training.Objective(net, "mse"), data, sn.training.Recipe(epochs=3))
    >>> axes = sn.plots.history(run)
    """
    axes = choose_axes(axes)
    curves: dict[str | None, Any]
    if isinstance(run, (list, tuple)):
        curves, unit = _levels(run, axes), "iteration"
    elif isinstance(run.history, dict):
        names = {"loss": "training", "validation_loss": "validation"}
        known = {label: run.history[name] for name, label in names.items() if np.isfinite(run.history[name]).any()}
        curves, unit = {label: (np.arange(1, run.epochs + 1), values) for label, values in known.items()}, "epoch"
    else:
        curves, unit = {None: (np.arange(1, len(run.history) + 1), run.history)}, "iteration"
    for style, (label, (where, values)) in zip(("-", "--"), curves.items(), strict=False):
        axes.plot(where, values, style, **{"lw": 1.2, "color": CLASSES[style != "-"], "label": label, **line})
    positive = all(np.all(values > 0) for _, values in curves.values())
    axes.set(xlabel=unit, ylabel="loss", yscale="log" if positive else "linear")
    if positive:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()
    return axes


def _levels(minima: Sequence[Any], axes: Any) -> dict[str | None, Any]:
    """The values of all levels, concatenated, with a line where each begins."""
    values = np.concatenate([each.history for each in minima])
    for number, end in enumerate(np.cumsum([len(each.history) for each in minima])[:-1]):
        axes.axvline(end + 0.5, color="#999999", lw=0.8, ls="--", zorder=0, label=None if number else "net refined")
    return {"training": (np.arange(1, len(values) + 1), values)}


def _depths(depths: Any, count: int) -> list[int]:
    """The indices of the states to show."""
    if isinstance(depths, (int, np.integer)):
        return sorted(set(np.linspace(0, count - 1, int(depths)).round().astype(int).tolist()))
    found = [range(count)[number] for number in depths if -count <= number < count]
    if not found or len(found) != len(depths):
        raise ValueError(f"`depths` must be numbers of the states 0 to {count - 1}, found {list(depths)}")
    return found


def _is_last(net: Any, block: int) -> bool:
    """Whether this is the last block, whose states determine the outputs by the readout."""
    for each in (net, getattr(net, "net_", None), getattr(net, "net", None)):
        design = getattr(each, "design", None)
        if design is not None:
            return block in (-1, len(design.blocks) - 1)
    return True


def _planes(states: np.ndarray, outputs: list[Any], x: Any, components: Any) -> list[np.ndarray]:
    """Positions (samples, 2) in a plane for each depth."""
    if components is not None:
        entries = validate_entry_pair("components", components, states.shape[2])
        return [state[:, list(entries)] for state in states]
    if states.shape[2] == 1:
        return [np.hstack((state, np.zeros_like(state))) for state in states]
    if states.shape[2] == 2:
        return list(states)
    x = np.asarray(x)
    before = x - x.mean(axis=0) if x.ndim == 2 and x.shape[1] == 2 else None
    found: list[np.ndarray] = []
    for state, read in zip(states, outputs, strict=True):
        centred = state - state.mean(axis=0)
        place = centred @ _plane(centred, read)
        if before is not None:  # the closest rotation or reflection (Procrustes)
            left, _, right = np.linalg.svd(place.T @ before)
            place = place @ left @ right
        found.append(place)
        before = place
    return found


def _plane(centred: np.ndarray, outputs: Any) -> np.ndarray:
    """Two orthonormal directions (width, 2): first those of the outputs, if any, then those of largest variance."""
    directions = np.hstack((_spread(centred), np.eye(centred.shape[1], 2)))  # the last two if all points coincide
    if outputs is not None:
        fit = np.linalg.lstsq(centred, outputs - outputs.mean(axis=0), rcond=1e-6)[0]
        _, sizes, turn = np.linalg.svd(centred @ fit, full_matrices=False)
        read = (fit @ turn.T)[:, sizes > READ * sizes.max(initial=0.0)]
        directions = np.hstack((read[:, :2], directions))
    basis = np.zeros((len(directions), 0))
    for direction in directions.T:
        rest = direction - basis @ (basis.T @ direction)
        if np.linalg.norm(rest) > READ * np.linalg.norm(direction) and basis.shape[1] < 2:
            basis = np.hstack((basis, (rest / np.linalg.norm(rest))[:, None]))
    return basis


def _spread(centred: np.ndarray, count: int = 4) -> np.ndarray:
    """Principal directions (width, count) of points, from the smaller of the two Gram matrices."""
    n, width = centred.shape
    product = centred.T @ centred if width <= n else centred @ centred.T
    first = max(0, len(product) - count)
    found = eigh(product, subset_by_index=(first, len(product) - 1))[1][:, ::-1]
    return found if width <= n else centred.T @ found


def _square(axes: Any, place: np.ndarray) -> None:
    """Equal scales and a square window around all points."""
    middle = (place.min(axis=0) + place.max(axis=0)) / 2
    half = 0.54 * max(float(np.ptp(place, axis=0).max()), 1e-12)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    _draw_frame(axes)


def _draw_frame(axes: Any) -> Any:
    """Draw a light frame without ticks."""
    axes.set(xticks=(), yticks=())
    for side in axes.spines.values():
        side.set(visible=True, color="#cccccc")
    return axes
