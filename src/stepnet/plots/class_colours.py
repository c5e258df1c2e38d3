"""One colour for each class, in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from stepnet.records import explain_passed_arguments, format_value
from stepnet.validation import check, having, sequence

# Okabe & Ito's colours, which are safe for colour-blind readers, and two more.
CLASSES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933", "#555555", "#44aa99")
PALE = 0.25  # opacity of a colour that fills a region
DARKER = 0.6  # factor for a colour that is used again after ten classes


@explain_passed_arguments
@check(place=having("legend", what="a figure or axes"), classes=sequence(lambda name, value: value))
def class_legend(place: Any, classes: Sequence[Any], *others: Any, **options: Any) -> Any:
    """A legend in a figure, subfigure or axes: a dot for each class, then other labelled artists.

    Parameters
    ----------
    place
        A figure, subfigure or axes.
    classes : sequence of Any
        The classes in the order of their colours.
    *others
        Further labelled artists.
    **options
        Options of matplotlib's `legend`.

    Returns
    -------
    matplotlib.legend.Legend

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from stepnet import plots
    >>> len(plots.class_legend(plt.figure(), ["a", "b"]).get_texts())
    2
    """
    dots = [
        Line2D([], [], ls="", marker="o", ms=5, mew=0, color=class_colour(k), label=str(each))  # type: ignore[arg-type]
        for k, each in enumerate(classes)
    ]
    return place.legend(handles=[*dots, *others], **{"handletextpad": 0.1, "columnspacing": 1.2, **options})


def choose_colours(labels: Any, count: int, classes: Any, of: Any = None) -> dict[str, Any]:
    """The arguments of a scatter plot with labels, or without."""
    if labels is None:
        return {"color": CLASSES[0]}
    labels = validate_labels(labels)
    if classes is None and labels.dtype.kind == "f":
        _require_one_each(labels, count)
        return {"c": labels, "cmap": "cividis"}
    return class_colours(labels, count, list_classes(classes, labels, labels, of))


def validate_labels(labels: Any) -> np.ndarray:
    """Return labels, numbers or names, one per point."""
    try:
        found = np.asarray(labels)
    except (TypeError, ValueError):
        raise TypeError(f"`labels` must be numbers or names (n,), found {format_value(labels)}") from None
    if found.dtype.kind not in "biufUS" or found.ndim != 1:
        raise TypeError(f"`labels` must be numbers or names (n,), found {found.dtype} of the shape {found.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError("`labels` must be finite, found NaN or infinity")
    return found


def class_colours(labels: np.ndarray, count: int, classes: np.ndarray) -> dict[str, Any]:
    """The same for labels that are classes."""
    _require_one_each(labels, count)
    return {"color": [class_colour(k) for k in find_places(labels, classes, "`labels`")]}


def _require_one_each(labels: np.ndarray, count: int) -> None:
    if labels.shape != (count,):
        raise ValueError(f"`labels` must be one for each of {count} points, found the shape {labels.shape}")


def list_classes(classes: Any, labels: np.ndarray, found: np.ndarray, of: Any = None) -> np.ndarray:
    """All classes in the order of colours: as given, those of an estimator, or those in labels and predictions."""
    outputs = found.shape[1] if found.ndim == 2 else None
    classes = getattr(of, "classes_", None) if classes is None else classes
    if classes is None:
        present = np.unique(labels if outputs else np.concatenate((labels.ravel(), found.ravel())))
        is_numbered = present.dtype.kind in "biuf" and np.array_equal(present, present.astype(int)) and present[0] >= 0
        if is_numbered and present[-1] < (outputs or len(CLASSES)):
            return np.arange(outputs or int(present[-1]) + 1)
        classes = present
    try:
        classes = np.asarray(classes)
    except ValueError:  # rows of different lengths
        raise ValueError(f"`classes` must be numbers or names, one or more, found {classes!r:.60}") from None
    if classes.ndim != 1 or not len(classes) or classes.dtype.kind not in "biufUS":
        raise ValueError(f"`classes` must be numbers or names, one or more, found the shape {classes.shape}")
    if outputs not in (None, len(classes)):
        raise ValueError(f"`classes` must be one for each of {outputs} outputs, found {len(classes)}: {list(classes)}")
    return classes


def find_places(labels: np.ndarray, classes: np.ndarray, what: str) -> np.ndarray:
    """The index of each label's class."""
    order = np.argsort(classes)
    found = order[np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)]
    strange = np.unique(labels[classes[found] != labels])
    if strange.size:
        raise ValueError(f"`classes` must have all of {what}, found {list(classes)} without {list(strange)}")
    return found


def class_colour(number: int) -> tuple[float, ...]:
    return tuple(DARKER ** (number // len(CLASSES)) * part for part in to_rgb(CLASSES[number % len(CLASSES)]))


def make_paler(colour: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(1 - PALE * (1 - part) for part in colour)
