"""Validation of the arguments of nets: arrays, losses, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.nets.layout import Layout
from stepnet.records import convert_integers, validate_thread_count


def validate_real_array(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """Return an array of real numbers in a precision; refuse values it cannot represent."""
    try:
        given = np.asarray(value)
    except ValueError:
        raise TypeError(f"`{name}` must be an array of numbers, found {type(value).__name__}") from None
    given = convert_integers(name, given)
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(given if given.dtype.kind != "c" else given.real, dtype)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"`{name}` must be an array of numbers, found {type(value).__name__}") from None
    if given.dtype.kind == "c":
        raise TypeError(f"`{name}` must be real, found complex numbers; use `.real`, or both parts as features")
    return found


def validate_batch(name: str, x: Any, layout: Layout, dtype: np.dtype) -> np.ndarray:
    """Return finite inputs `(batch, features)`, channel by channel."""
    array = validate_real_array(name, x, dtype)
    if array.ndim < 2 or array.shape[0] == 0 or not layout.admits(array.shape[1:]):
        if len(layout.axes) > 1:
            raise ValueError(f"`{name}` {layout.explain(array.shape)}")
        raise ValueError(
            f"`{name}` must be a batch of inputs with {layout.size} features each, shape (batch, ...), "
            f"found the shape {array.shape}"
        )
    array = np.ascontiguousarray(layout.flatten(array))
    if not np.isfinite(array).all():
        if np.isfinite(np.asarray(x)).all():
            largest = np.abs(np.asarray(x)).max()
            raise ValueError(f"`{name}` must be within the range of {dtype}, found {largest:g}; scale it")
        raise ValueError(f"`{name}` must be finite")
    return array


def validate_shape(name: str, value: Any, shape: tuple[int, ...], of: str, dtype: np.dtype) -> np.ndarray:
    """Return an array of a given shape."""
    array = validate_real_array(name, value, dtype)
    if array.shape != shape:
        raise ValueError(f"`{name}` must have the shape {shape} of {of}, found {array.shape}")
    return np.ascontiguousarray(array)


def validate_parameter_shape(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array, of any numeric dtype; refuse one without the shape of the parameters."""
    if not isinstance(value, np.ndarray) or value.shape != shape:
        found = value.shape if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"`{name}` must be an array of the shape {shape} of the parameters, found {found}")
    return value


def require_function(loss: object) -> None:
    if not callable(loss):
        raise TypeError(f"`loss` must be a function of the outputs, found {type(loss).__name__}")


def evaluate_loss(loss: Callable[..., Any], y: np.ndarray) -> tuple[float, np.ndarray]:
    """The value of a loss and its gradient; the loss may overwrite its argument."""
    found = loss(y.copy())
    try:
        value, y_bar = found
    except (TypeError, ValueError, NotImplementedError):  # the last from views of memory
        raise TypeError(
            f"`loss` must return a value and its gradient with respect to the outputs, found {type(found).__name__}"
        ) from None
    value, array = validate_real_array("loss", value, np.dtype(float)), validate_real_array("loss", y_bar, y.dtype)
    if value.ndim:
        raise TypeError(f"`loss` must return a number as its value, found an array of shape {value.shape}")
    if array.shape != y.shape:
        raise ValueError(f"the gradient of `loss` must have the shape {y.shape} of the outputs, found {array.shape}")
    return float(value), array


def validate_workers(workers: Any) -> int | None:
    """Return a number of threads, or None for one per core."""
    return None if workers is None else validate_thread_count(workers)
