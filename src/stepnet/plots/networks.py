"""Pictures of networks: how layers move points, what regions they make, how training went."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.ticker import LogLocator, NullLocator
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.sparse.csgraph import shortest_path

from stepnet.plots.axes import an_axes, axes_of, two_entries
from stepnet.plots.class_colours import (
    CLASSES,
    choose_colours,
    class_colour,
    class_colours,
    find_places,
    labels_of,
    list_classes,
    make_paler,
)
from stepnet.validation import array, check, function, having, optional, real, sequence, whole

FINEST, MOST_PANELS = 10_000, 1000
READ = 0.05  # of the largest: directions in which outputs vary less are left out, as where two mirror each other


def _counts(name: str, value):
    """A number of panels, or the numbers of states."""
    if isinstance(value, (int, np.integer)) and value < 1:
        raise ValueError(f"`{name}` must be at least one, found {value}")
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return whole(1, MOST_PANELS)(name, value) if is_number else sequence(whole(-MOST_PANELS, MOST_PANELS))(name, value)


def a_graph(name: str, value) -> np.ndarray:
    """A square matrix of finite numbers, one row for every node."""
    found = array()(name, value.toarray() if issparse(value) else value)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be a square matrix of finite numbers, found the shape {found.shape}")
    return found


def a_run(name: str, value):
    """A run, a minimum, or a list of them."""
    one = having("history", what="a Run or a Minimum")
    return sequence(one, 1)(name, value) if isinstance(value, (list, tuple)) else one(name, value)


@check(net=having("features", what="a net or an estimator"), depths=_counts, edges=optional(array(None, 2, dtype=int)))
def layers(
    net, x, labels=None, *, depths: int | Sequence[int] = 5, components: tuple[int, int] | None = None, block: int = 0,
    edges=None, classes=None, axes=None, **points,
):  # fmt: skip
    """Points as they move through the steps of a net, one panel for each of some depths.

    Parameters
    ----------
    net : Net, NodeModel or an estimator
        Anything with `features(x, block)` of shape (depths, samples, width), and outputs.
    x : array
        Inputs.
    labels : array (samples,), optional
        Whole numbers or names give classes, other numbers a scale of colours.
    depths : int or sequence of int
        How many panels, from the first state to the last and as even as whole numbers allow, or which states.
    components : (int, int), optional
        Two features to show.  By default an orthogonal projection on the plane in which the points of a depth spread
        most, at the last depth of the last block on the directions that the outputs read; it is turned so that points
        move as little as they can from one panel to the next.
    edges : array (m, 2), optional
        Pairs of points to join by a line.
    classes : sequence, optional
        All classes in the order of their colours; those of an estimator are known.  Without it, whole numbers from 0
        to 9 have the colour of their number, and other labels that of their place among those present.
    axes : sequence of axes, optional
        One for each depth; a new figure with a row of them otherwise.

    Returns
    -------
    array of axes
    """
    states = net.features(x, block)
    chosen = _depths(depths, len(states))
    if axes is None:
        size = (2.1 * len(chosen), 2.4)
        axes = plt.figure(figsize=size, layout="constrained").subplots(1, len(chosen), squeeze=False)[0]
    axes = np.atleast_1d(np.asarray(axes, object)).ravel()
    for each in axes:
        an_axes("axes", each)
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


@check(predict=function, axes=an_axes, resolution=whole(2, FINEST), margin=real("[0, inf)"))
def regions(
    predict: Callable, x, labels, axes=None, *, classes=None, resolution: int = 300, margin: float = 0.08, **points
):
    """Where in a plane a classifier finds which class, with samples on top.

    Parameters
    ----------
    predict : callable
        From points (n, 2) to their classes (n,), or to outputs (n, classes) of which the largest counts.
    x, labels : arrays
        Samples (n, 2) and their classes.
    classes : sequence, optional
        All classes in the order of outputs and colours.  Without it, they are those of the estimator that predicts, or
        the numbers of the outputs if the labels are numbers, or whatever is among labels and predictions.
    resolution : int
        Points of the grid in each direction.
    margin : float
        Space around the samples, as a part of their spread.
    """
    axes = axes_of(axes)
    x, labels = array()("x", x), labels_of(labels)
    if x.ndim != 2 or x.shape[1] != 2 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"`x` must be points in a plane, finite and of the shape (n, 2), found {x.shape}")
    low, high = x.min(axis=0), x.max(axis=0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    lines = [np.linspace(*ends, resolution) for ends in zip(low, high, strict=True)]
    found = np.asarray(predict(np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2)))
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


@check(adjacency=a_graph, axes=an_axes, positions=optional(array(None, 2)))
def graph(adjacency, labels=None, axes=None, *, positions=None, classes=None, **points):
    """A graph in the plane: nodes lie about as far apart as there are edges between them.

    Parameters
    ----------
    adjacency : array (nodes, nodes)
        Of a connected graph.
    labels, classes : optional
        As in `layers`.
    positions : array (nodes, 2), optional
        Where nodes are, as `graph_positions(adjacency)` gives it.
    """
    axes = axes_of(axes)
    place = graph_positions(adjacency) if positions is None else positions
    if len(place) != len(adjacency):
        raise ValueError(f"`positions` must be one for each of {len(adjacency)} nodes, found {len(place)}")
    axes.add_collection(LineCollection(place[np.argwhere(np.triu(adjacency, 1))], colors="#bbbbbb", lw=0.6, zorder=0))
    colours = choose_colours(labels, len(place), classes)
    axes.scatter(*place.T, **{"s": 30, "lw": 0.5, "edgecolor": "#555555", **colours, **points})
    _square(axes, place)
    return axes


@check(adjacency=a_graph)
def graph_positions(adjacency) -> np.ndarray:
    """Places (nodes, 2) that make sum (|x_i - x_j| / d_ij - 1)^2 small, d the length of the shortest path.

    Kamada & Kawai (1989), Inf. Process. Lett. 31:7.
    """
    d = shortest_path(adjacency > 0, directed=False, unweighted=True)
    if not np.isfinite(d).all():
        raise ValueError("`adjacency` must be that of a connected graph; give `positions` otherwise")
    n = len(d)
    np.fill_diagonal(d, 1.0)
    middle = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * middle @ (d - np.eye(n)) ** 2 @ middle)
    begin = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))  # classical scaling

    def stress(flat):
        difference = flat.reshape(n, 1, 2) - flat.reshape(1, n, 2)
        distance = np.sqrt(np.sum(difference**2, axis=2) + 1e-12)
        rest = distance / d - 1
        np.fill_diagonal(rest, 0.0)
        slope = 4 * np.sum((rest / (d * distance))[:, :, None] * difference, axis=1)
        return float(np.sum(rest**2)), slope.ravel()

    return minimize(stress, begin.ravel(), jac=True, method="L-BFGS-B").x.reshape(n, 2)


@check(run=a_run, axes=an_axes)
def history(run, axes=None, **line):
    """How a loss fell, logarithmic if it is positive.

    `run` is a `Run` of mini-batches (validation dashed), a `Minimum`, or the list of them that `multilevel` gives,
    whose levels follow one another, with a line where each begins.
    """
    axes = axes_of(axes)
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


def _levels(minima: Sequence, axes) -> dict:
    """The values of all levels in a row, with a line where a new one begins."""
    values = np.concatenate([each.history for each in minima])
    for number, end in enumerate(np.cumsum([len(each.history) for each in minima])[:-1]):
        axes.axvline(end + 0.5, color="#999999", lw=0.8, ls="--", zorder=0, label=None if number else "net refined")
    return {"training": (np.arange(1, len(values) + 1), values)}


def _depths(depths, count: int) -> list[int]:
    """The numbers of the states to show."""
    if isinstance(depths, (int, np.integer)):
        return sorted(set(np.linspace(0, count - 1, int(depths)).round().astype(int).tolist()))
    found = [range(count)[number] for number in depths if -count <= number < count]
    if not found or len(found) != len(depths):
        raise ValueError(f"`depths` must be numbers of the states 0 to {count - 1}, found {list(depths)}")
    return found


def _is_last(net, block: int) -> bool:
    """Whether the outputs are read from this block; those before it are too far away for a linear map."""
    for each in (net, getattr(net, "net_", None), getattr(net, "net", None)):
        design = getattr(each, "design", None)
        if design is not None:
            return block in (-1, len(design.blocks) - 1)
    return True


def _planes(states: np.ndarray, outputs: list, x, components) -> list[np.ndarray]:
    """Places (samples, 2) in a plane for every depth."""
    if components is not None:
        entries = two_entries("components", components, states.shape[2])
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
        if before is not None:  # the turn or reflection that brings it nearest (Procrustes)
            left, _, right = np.linalg.svd(place.T @ before)
            place = place @ left @ right
        found.append(place)
        before = place
    return found


def _plane(centred: np.ndarray, outputs) -> np.ndarray:
    """Two orthonormal directions (width, 2): those of the outputs, if there are any, before those of the spread."""
    directions = np.hstack((_spread(centred), np.eye(centred.shape[1], 2)))  # the last two if all points are one
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
    """Directions (width, count) in which points spread most, the most first, from the smaller of the two products."""
    n, width = centred.shape
    product = centred.T @ centred if width <= n else centred @ centred.T
    first = max(0, len(product) - count)
    found = eigh(product, subset_by_index=(first, len(product) - 1))[1][:, ::-1]
    return found if width <= n else centred.T @ found


def _square(axes, place: np.ndarray) -> None:
    """Equal scales and a square window around all points."""
    middle = (place.min(axis=0) + place.max(axis=0)) / 2
    half = 0.54 * max(float(np.ptp(place, axis=0).max()), 1e-12)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    _draw_frame(axes)


def _draw_frame(axes):
    """A quiet frame without ticks."""
    axes.set(xticks=(), yticks=())
    for side in axes.spines.values():
        side.set(visible=True, color="#cccccc")
    return axes
