"""The few functions of arrays that operators need besides arithmetic and slices, for NumPy; engines have their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArrayFunctions:
    """Functions with NumPy's meaning; `concatenate` and `stack` take a sequence and an axis.

    `multiply_waves(u, symbol, axes)` multiplies in Fourier space.
    """

    concatenate: Callable[..., Any]
    stack: Callable[..., Any]
    maximum: Callable[..., Any]
    minimum: Callable[..., Any]
    where: Callable[..., Any]
    multiply_waves: Callable[..., Any]


def multiply_waves(u: np.ndarray, symbol: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """F^-1 (symbol F u) along the last axes; real arrays stay real."""
    result = np.fft.ifftn(symbol * np.fft.fftn(u, axes=axes), axes=axes)
    return result if np.iscomplexobj(u) else result.real


NUMPY = ArrayFunctions(np.concatenate, np.stack, np.maximum, np.minimum, np.where, multiply_waves)


def require_field(name: str, u: Any, shape: tuple[int, ...], functions: ArrayFunctions = NUMPY) -> None:
    """Refuse anything but an array (of NumPy, a tracer or torch) whose last axes are those of a grid.

    Right-hand sides call this, so it must be traceable, in contrast to `validation`: it formats no text.
    """
    if type(functions).__name__ != "ArrayFunctions":
        raise TypeError("`functions` must be ArrayFunctions, found " + type(functions).__name__)
    is_numpy = isinstance(u, np.ndarray)
    if not is_numpy and not type(u).__module__.startswith(("torch", "stepnet")):
        raise TypeError("`" + name + "` must be an array, found " + type(u).__name__)
    if is_numpy and type(u) is np.ndarray and u.dtype.kind not in "biufc":
        raise TypeError("`" + name + "` must be an array of numbers, found dtype " + u.dtype.name)
    if shape and tuple(u.shape[-len(shape) :]) != shape:
        raise ValueError("`" + name + "` must have the shape of the grid, found a different one: see `shape` of both")


def require_side_values(found: Any, u: Any, axis: int) -> None:
    """Refuse what a boundary function returned unless it is a number or has the shape of the side of u along `axis`.

    It is traceable, as `require_field`.
    """
    if isinstance(found, (bool, int, float, complex)):
        return
    if type(found) is np.ndarray and found.dtype.kind not in "biufc":
        raise TypeError(WRONG_SIDE_VALUES + "an array of dtype " + found.dtype.name)
    if not isinstance(found, (np.ndarray, np.number, np.bool_)) and not type(found).__module__.startswith(
        ("torch", "stepnet")
    ):
        raise TypeError(WRONG_SIDE_VALUES + type(found).__name__)
    shape = tuple(found.shape)
    n = len(u.shape) + axis  # axes in front of the one of the side
    side = tuple(u.shape[:n]) + tuple(u.shape[n + 1 :])
    if shape != side[len(side) - len(shape) :]:
        raise ValueError(WRONG_SIDE_VALUES + "an array of another shape: it needs that of the grid without this axis")


WRONG_SIDE_VALUES = "`boundary` functions must return a number or an array of numbers of the shape of the side, found "


def take(u: Any, axis: int, start: int, stop: int | None) -> Any:
    """u[..., start:stop, ...] along an axis that is counted from the end (-1 is the last)."""
    return u[(..., slice(start, stop), *(slice(None),) * (-axis - 1))]


def insert_axis(u: Any, axis: int) -> Any:
    """An array of a side with a new axis of length 1; numbers unchanged."""
    return u[(..., None, *(slice(None),) * (-axis - 1))] if np.ndim(u) else u
