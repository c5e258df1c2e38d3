"""Validation of the data of problems: states, time spans, matrices, arguments."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import numpy as np

from stepnet.records import convert_integers

LONG = 10_000  # entries above which BLAS starts threads, which costs more than the product


def set_fields(record: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, found {value!r:.60}")


def validate_initial_state(name: str, value: Any) -> np.ndarray:
    """Return a finite state as a read-only array of float64, float32 or complex128."""
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError(f"`{name}` must be an array of numbers, found a ragged sequence") from None
    array = convert_integers(name, array)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must hold numbers, found dtype {array.dtype}")
    kind = np.complex128 if array.dtype.kind == "c" else np.float32 if array.dtype == np.float32 else np.float64
    array = np.ascontiguousarray(array, dtype=kind).reshape(array.shape)
    if not is_finite(array):
        bad = np.flatnonzero(~np.isfinite(array))[0]
        raise ValueError(f"`{name}` must be finite, but entry {bad} is {array.ravel()[bad]}")
    array.flags.writeable = False
    return array


def is_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite.  A finite squared norm or sum implies it and is cheaper to compute."""
    some = np.vdot(array, array) if array.size < LONG else array.sum()
    return isfinite(abs(some)) or bool(np.isfinite(array).all())


def validate_state(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a state that may replace one of this shape and dtype."""
    state = validate_initial_state(name, value)
    if state.shape != shape:
        raise ValueError(f"`{name}` must have the shape {shape} of the state, found {state.shape}")
    if state.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"`{name}` must be real as the state is, found complex numbers")
    return state.astype(dtype)


def validate_matrix(name: str, value: Any, n: int, alternative: str = "") -> Any:
    """Return a constant n by n matrix, sparse or as a read-only dense copy."""
    is_sparse = hasattr(value, "tocsc")
    try:
        matrix = value if is_sparse else np.array(value)
    except ValueError:
        raise ValueError(f"`{name}` must be a matrix{alternative}, found a ragged sequence") from None
    matrix = matrix if is_sparse else convert_integers(name, matrix)
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must be a matrix{alternative}, found {type(value).__name__}")
    if not matrix.dtype.isnative:
        matrix = matrix.astype(matrix.dtype.newbyteorder("="))
    if n == 1 and matrix.shape in ((), (1,)):
        matrix = matrix.reshape(1, 1)
    if matrix.shape != (n, n):
        raise ValueError(
            f"`{name}` must have shape {(n, n)}, found {matrix.shape}: one row for every slope, one column for every "
            f"entry of the state"
        )
    if not is_sparse:
        matrix.flags.writeable = False
    return matrix


def validate_mass_matrix(value: Any, y0: np.ndarray) -> Any:
    """Return a real, finite n by n matrix for a state of float64."""
    matrix = validate_matrix("mass", value, y0.size)
    if y0.dtype != np.float64:
        raise TypeError(f"`mass` is for states of float64, found {y0.dtype}; convert the state")
    if matrix.dtype.kind == "c":
        raise TypeError("`mass` must be real, found complex numbers")
    if not is_finite(matrix.data if hasattr(matrix, "tocsc") else matrix):
        raise ValueError("`mass` must be finite")
    return matrix


def validate_pair(first_name: str, first: Any, second_name: str, second: Any) -> tuple[np.ndarray, np.ndarray]:
    q, p = validate_initial_state(first_name, first), validate_initial_state(second_name, second)
    if q.shape != p.shape:
        raise ValueError(f"`{first_name}` and `{second_name}` must have equal shapes, found {q.shape} and {p.shape}")
    dtype = np.result_type(q, p)
    return validate_initial_state(first_name, q.astype(dtype)), validate_initial_state(second_name, p.astype(dtype))


def validate_span(value: Any) -> tuple[float, float]:
    try:
        first, last = value
        t0, t1 = _convert_time(first), _convert_time(last)
    except OverflowError:
        raise ValueError(f"`t_span` must be within the range of float64, found {value!r:.80}") from None
    except (TypeError, ValueError):
        raise ValueError(f"`t_span` must be two numbers (t0, t1), found {value!r:.80}") from None
    if not isfinite(t0) or isnan(t1):
        raise ValueError(f"`t_span` must begin at a finite time and end at a number, found ({t0}, {t1})")
    return t0, t1


def validate_forward_span(value: Any, kind: str) -> tuple[float, float]:
    t0, t1 = validate_span(value)
    if not (t0 < t1 and isfinite(t1)):
        raise ValueError(f"`t_span` of {kind} must be two finite times, the second later, found {(t0, t1)}")
    return t0, t1


def _convert_time(value: Any) -> float:
    if type(value) is not float and (isinstance(value, (str, bytes)) or np.iscomplexobj(value)):
        raise TypeError
    return float(value)


def validate_args(value: Any, old: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may replace the old ones: as many, with numbers and arrays of the same shapes."""
    args = convert_args(value)
    if len(args) != len(old):
        raise ValueError(f"`args` must hold {len(old)} argument{'s' * (len(old) != 1)} as before, found {len(args)}")
    for i, (new, before) in enumerate(zip(args, old, strict=True)):
        if isinstance(before, (int, float, complex, np.generic, np.ndarray)):
            shape, wanted = getattr(new, "shape", ()), np.shape(before)
            if not isinstance(new, (int, float, complex, np.generic, np.ndarray)) or shape != wanted:
                what = f"an array of shape {wanted}" if wanted else "a number"
                raise ValueError(f"`args[{i}]` must be {what} as before, found {new!r:.60}")
    return args


def convert_args(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"`args` must be a tuple, found {type(value).__name__}; for one argument write `args=(value,)`")
    return tuple(value)
