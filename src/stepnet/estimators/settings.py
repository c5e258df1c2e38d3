"""Settings as JSON: numbers, names, and records by their names and numbers.  Nothing is pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepnet import training
from stepnet.checkpoints import Checkpoints
from stepnet.fields import Activation, activation
from stepnet.nets.losses import Loss, get
from stepnet.nets.losses.catalogue import LOSSES
from stepnet.nets.penalties import Penalty
from stepnet.schemes import catalogue

RECORDS = {
    each.__name__: each
    for each in (
        training.SGD, training.Momentum, training.Nesterov, training.AdaGrad, training.RMSprop, training.Adam,
        training.AdamW, training.Proximal, training.LBFGS, training.GaussNewton, training.LineSearch,
        training.TrustRegion, training.MSA, training.ClipNorm, training.ClipValue, training.Constant,
        training.StepDecay, training.Exponential, training.Cosine, training.InverseTime, training.WarmUp, Penalty,
        Checkpoints,
    )
}  # fmt: skip


@dataclass(frozen=True)
class NotStored:
    """A setting that cannot be stored, such as a function, by its `repr`.

    Parameters
    ----------
    text : str
        The `repr` of the setting.

    Examples
    --------
    >>> from stepnet.estimators import NotStored
    >>> NotStored("<function f>").text
    '<function f>'
    """

    text: str


BY_NAME: dict[str, Callable[..., Any]] = {
    "dtype": np.dtype, "activation": activation, "scheme": catalogue.get, "not stored": NotStored,
}  # fmt: skip


class Unwritable(Exception):
    """Raised for a setting that cannot be described."""


def require_stored(settings: dict[str, Any]) -> None:
    """Refuse to train with settings that were not stored."""
    for name, value in settings.items():
        if isinstance(value, NotStored):
            raise ValueError(
                f"`{name}` was not stored in the file; set it again before `fit`; it was {value.text:.200}"
            )


def describe(value: Any) -> Any:
    """A setting as JSON; one that cannot be rebuilt by its `repr`."""
    if isinstance(value, NotStored):
        return {"not stored": value.text}
    try:
        return _describe(value)
    except Unwritable:
        return {"not stored": repr(value)}


def _describe(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_describe(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_describe(each) for each in value]}
    if isinstance(value, dict):
        return {"pairs": [[_describe(key), _describe(each)] for key, each in value.items()]}
    if RECORDS.get(type(value).__name__) is type(value):
        numbers = {each.name: _describe(getattr(value, each.name)) for each in fields(value)}
        return {"record": type(value).__name__, "numbers": numbers}
    return _describe_by_name(value)


def _describe_by_name(value: Any) -> dict[str, Any]:
    """Describe a record of a catalogue by its name."""
    if isinstance(value, Loss) and LOSSES.get(value.name) is value.family:
        weights = None if value.class_weights is None else value.class_weights.tolist()
        numbers = {**value.numbers, "reduction": value.reduction, "class_weights": weights}
        return {"loss": value.name, "numbers": numbers}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": np.dtype(value).name}
    if isinstance(value, Activation):
        return {"activation": value.name}
    name = getattr(value, "name", None)
    if isinstance(name, str) and name in catalogue.names() and catalogue.get(name) == value:
        return {"scheme": name}
    raise Unwritable


def build(description: Any) -> Any:
    """Build a setting from its description."""
    if isinstance(description, list):
        return [build(each) for each in description]
    if not isinstance(description, dict):
        return description
    if "record" in description:
        return RECORDS[description["record"]](**{name: build(each) for name, each in description["numbers"].items()})
    if "loss" in description:
        return get(description["loss"], **description["numbers"])
    if "tuple" in description:
        return tuple(build(each) for each in description["tuple"])
    if "pairs" in description:
        return {build(key): build(each) for key, each in description["pairs"]}
    (kind, name), *_ = description.items()
    return BY_NAME[kind](name)
