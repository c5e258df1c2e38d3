"""Figures of the stability of nets: gradients over depth, robustness, Jacobians in a region, probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.plots.class_colours import choose_colours
from stepnet.plots.stability import spectrum_in_region
from stepnet.plots.trajectories import COLOURS
from stepnet.records import MOST_COUNT, explain_passed_arguments
from stepnet.stability.arguments import deterministic_scheme
from stepnet.stability.certificates import BlockCertificate
from stepnet.stability.gradient_growth import GradientNorms
from stepnet.stability.robustness_curves import RobustnessCurves
from stepnet.validation import array, check, function, instance, real, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

MARKERS = "os^"
FINEST = 4000  # points of a grid in each direction


@explain_passed_arguments
@check(found=instance(GradientNorms), axes=OPTIONAL_AXES)
def gradient_norms(found: GradientNorms, axes: Axes | None = None, **line: Any) -> Axes:
    """Plot the norms of gradients with respect to the states over the depth of a net, logarithmic.

    Parameters
    ----------
    found : GradientNorms
    axes : matplotlib Axes, optional
        The current ones by default.
    **line
        Options of matplotlib's `plot`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> axes = sn.plots.gradient_norms(sn.stability.gradient_norms(sn.nets.resnet(2, 2, 4, 8), np.eye(2)))
    """
    axes = choose_axes(axes)
    axes.semilogy(np.maximum(found.gradients, np.finfo(float).tiny), **{"lw": 1.0, **line})
    axes.set(xlabel="layer", ylabel="gradient of the state")
    return axes


@check(found=instance(RobustnessCurves), axes=OPTIONAL_AXES)
def robustness(found: RobustnessCurves, axes: Axes | None = None, *, label: str = "") -> Axes:
    """Plot the accuracy of a classifier over the size of perturbations, a line for each attack.

    Parameters
    ----------
    found : RobustnessCurves
    axes : matplotlib Axes, optional
        The current ones by default; several models can share them.
    label : str, optional
        The name of the model, before those of attacks.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> found = sn.stability.robustness(lambda x: (x[:, 0] > 0).astype(int), np.eye(2), [1, 0], [0, 1],
    ...                                 attacks=["gaussian"])
    >>> axes = sn.plots.robustness(found, label="half plane")
    """
    axes = choose_axes(axes)
    n = len(axes.lines)
    for k, (name, values) in enumerate(zip(found.attacks, found.accuracies, strict=True)):
        axes.plot(found.radii, values, f"{MARKERS[k % 3]}-", ms=4, lw=1.0, color=COLOURS[(n + k) % len(COLOURS)],
                  label=f"{label} {name}".strip())  # fmt: skip
    axes.set(xlabel="size of perturbations", ylabel="accuracy", ylim=(-0.02, 1.02))
    axes.legend(fontsize="small")
    return axes


@check(block=instance(BlockCertificate), scheme=deterministic_scheme, axes=OPTIONAL_AXES)
def layer_ranges(block: BlockCertificate, scheme: Any, axes: Axes | None = None) -> Axes:
    """Draw the bounds of the numerical ranges of the layers of a block, times h, in the region of its scheme.

    Parameters
    ----------
    block : BlockCertificate
    scheme : str or scheme
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.stability.certificate(sn.nets.antisymmetric(2, 2, 4, 8))
    >>> axes = sn.plots.layer_ranges(found.blocks[0], "euler")
    """
    low, high, top = (block.h * block.numerical_ranges).T
    corners = np.concatenate([low + 1j * top, high + 1j * top, low - 1j * top, high - 1j * top])
    axes = spectrum_in_region(scheme, corners, axes)
    axes.collections[-1].remove()  # the corners; rectangles show more
    for left, right, height in zip(low, high, top, strict=True):
        axes.add_patch(Rectangle((left, -height), right - left, 2 * height, ec=COLOURS[1], fill=False, lw=0.6))
    return axes


@check(predict=function, x=array(None, 2), resolution=whole(2, FINEST), margin=real("[0, inf)"))
def probabilities(
    predict: Callable[..., Any], x: ArrayLike, labels: Any = None, axes: Any = None, *, of: int = 1,
    resolution: int = 150, margin: float = 0.1,
) -> Any:  # fmt: skip
    """Draw the probability of a class over the plane, and next to it the width of its interval if that is known.

    Parameters
    ----------
    predict : callable
        Maps points (n, 2) to probabilities (n, classes), or to a tuple of these and the lower and upper ends of their
        intervals, as `FeynmanKacClassifier.predict_proba(x, return_interval=True)`.
    x : array_like (n, 2)
        Samples, which determine the window.
    labels : array_like (n,), optional
        Their classes.
    axes : matplotlib Axes or pair of them, optional
        By default the current ones; two for a probability with intervals.
    of : int, optional
        The index of the class.
    resolution : int, optional
        Points of the grid in each direction.
    margin : float, optional
        Space around the samples, as a fraction of their range.

    Returns
    -------
    array of matplotlib Axes

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> def predict(points):
    ...     p = 1 / (1 + np.exp(-points[:, 0]))
    ...     return np.stack((1 - p, p), axis=1)
    >>> axes = sn.plots.probabilities(predict, np.random.default_rng(0).normal(size=(9, 2)), resolution=10)
    """
    x = np.asarray(x, float)
    axes = np.atleast_1d(np.asarray(choose_axes(None) if axes is None else axes, object)).ravel()
    whole(-MOST_COUNT, MOST_COUNT)("of", of)
    for each in axes:
        OPTIONAL_AXES("axes", each)
    if not len(x) or not np.isfinite(x).all():
        raise ValueError(f"`x` must be finite points in a plane, found {x!r:.60}")
    low, high = x.min(axis=0), x.max(axis=0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    lines = [np.linspace(*ends, resolution) for ends in zip(low, high, strict=True)]
    found = predict(np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2))
    tables = [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]
    if any(each.ndim != 2 or len(each) != resolution**2 or not -each.shape[1] <= of < each.shape[1] for each in tables):
        raise ValueError(f"`predict` must give a row with the class {of} for each of {resolution**2} points")
    maps = [each[:, of].reshape(resolution, resolution) for each in tables]
    shown = [("probability", maps[0], (0.0, 1.0), "RdBu_r")]
    if len(maps) == 3:
        width = maps[2] - maps[1]
        shown.append(("width of the interval", width, (0.0, max(float(width.max()), 1e-12)), "viridis"))
    for place, (label, values, limits, colours) in zip(axes, shown, strict=False):
        mesh = place.pcolormesh(*lines, values, vmin=limits[0], vmax=limits[1], cmap=colours, rasterized=True)
        place.figure.colorbar(mesh, ax=place, label=label)
        if place is axes[0]:
            place.contour(*lines, values, levels=[0.5], colors="black", linewidths=0.8)
        if labels is not None:
            place.scatter(*x.T, s=5, lw=0.2, edgecolors="white", **choose_colours(labels, len(x), None))
        place.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    return axes
