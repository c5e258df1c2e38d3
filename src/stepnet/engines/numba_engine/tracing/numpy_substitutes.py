"""Substitutes for NumPy and math in functions that run on symbols.

A substitute has those of NumPy's parameters that it supports; any other keyword is a TypeError, and the function is not
traced.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from functools import wraps

import numpy as np

from stepnet.engines.numba_engine.tracing.graph import BINARY, EVALUATE
from stepnet.engines.numba_engine.tracing.symbols import (
    FUNCTIONS,
    CannotTrace,
    Symbol,
    SymbolArray,
    apply,
    as_symbols,
    box,
    choose,
    holds_symbols,
    is_boolean,
    require_real,
    wrap,
)

# ---- array creation ----------------------------------------------------------------------------------------------


def _make_fillable(array: np.ndarray):
    """Let a float64 array hold symbols; other dtypes stay as they are, because NumPy would round stored values."""
    return array.astype(object).view(SymbolArray) if array.dtype == np.float64 else array


def array(values, dtype=None, *, copy=True, order="K", ndmin=0):
    """np.array."""
    if not holds_symbols(values):
        return _make_fillable(np.array(values, dtype, ndmin=ndmin))
    require_real(dtype)
    if ndmin:
        raise CannotTrace("it calls np.array with `ndmin`")
    return as_symbols(values).copy() if copy else as_symbols(values)


def asarray(values, dtype=None, order=None, *, copy=None):
    """np.asarray."""
    return array(values, dtype, copy=copy)


def zeros(shape, dtype=float, order="C"):
    """np.zeros."""
    return _make_fillable(np.zeros(shape, dtype))


def ones(shape, dtype=float, order="C"):
    """np.ones."""
    return _make_fillable(np.ones(shape, dtype))


def empty(shape, dtype=float, order="C"):
    """np.empty: entries that are never set are detected."""
    made = np.empty(shape, dtype)
    return np.empty(shape, object).view(SymbolArray) if made.dtype == np.float64 else made


def full(shape, fill_value, dtype=None, order="C"):
    """np.full."""
    if not holds_symbols(fill_value):
        return _make_fillable(np.full(shape, fill_value, dtype))
    require_real(dtype)
    made = empty(shape)
    made[...] = box(fill_value)
    return made


def _make_like(make):
    def create(prototype, dtype=None, order="K", subok=True, shape=None):
        return make(*_shape_and_kind(prototype, dtype, shape))

    return create


def full_like(prototype, fill_value, dtype=None, order="K", subok=True, shape=None):
    """np.full_like."""
    shape, dtype = _shape_and_kind(prototype, dtype, shape)
    return full(shape, fill_value, dtype)


def _shape_and_kind(prototype, dtype, shape):
    """Shape and dtype of an array like another one: symbols count as float64, comparisons as bool."""
    values = as_symbols(prototype) if holds_symbols(prototype) else np.asarray(prototype)
    if dtype is None and isinstance(values, SymbolArray):
        dtype = bool if values.size > 0 and all(map(is_boolean, values.flat)) else float
    return values.shape if shape is None else shape, values.dtype if dtype is None else dtype


# ---- functions of arrays -----------------------------------------------------------------------------------------


def where(condition, *choices):
    """np.where with three arguments."""
    if len(choices) != 2:
        raise CannotTrace("it calls np.where with one argument")
    plain = [np.asarray(x, dtype=object) if isinstance(x, SymbolArray) else box(x) for x in (condition, *choices)]
    return wrap(np.frompyfunc(choose, 3, 1)(*plain))


def clip(x, a_min=None, a_max=None, *, min=None, max=None):
    """np.clip: min(max(x, a_min), a_max)."""
    low, high = a_min if min is None else min, a_max if max is None else max
    x = as_symbols(x)
    x = x if low is None else np.maximum(x, low)
    return wrap(np.asarray(box(x if high is None else np.minimum(x, high))))


def make_nan_to_num(where: Callable):
    """np.nan_to_num by `where`: replaces NaN and the infinities."""

    def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
        if copy is not True:
            raise CannotTrace("it calls np.nan_to_num without a copy")
        largest = np.finfo(float).max
        x = where(np.isnan(x), nan, x)
        x = where(x == np.inf, largest if posinf is None else posinf, x)
        return where(x == -np.inf, -largest if neginf is None else neginf, x)

    return nan_to_num


def _reduce_truths(ufunc):
    """np.any and np.all."""

    def reduce(x, axis=None, *, keepdims=False):
        return ufunc.reduce(as_symbols(as_symbols(x) != 0), axis=axis, keepdims=keepdims)

    return reduce


def _extreme(ufunc):
    def reduce(x, axis=None, *, keepdims=False, initial=np._NoValue):
        return ufunc.reduce(as_symbols(x), axis=axis, keepdims=keepdims, initial=initial)

    return reduce


def mean(x, axis=None, dtype=None, *, keepdims=False):
    """np.mean."""
    x = as_symbols(x)
    total = np.add.reduce(x, axis=axis, dtype=dtype, keepdims=keepdims)
    return total / (x.size // np.size(total))


def norm(x, ord=None, axis=None, keepdims=False):
    """np.linalg.norm of a vector (2, 1 or infinity) or over one axis."""
    x = as_symbols(x)
    if isinstance(axis, tuple) or (axis is None and keepdims) or (axis is None and x.ndim > 1 and ord is not None):
        raise CannotTrace("it computes a matrix norm")
    if axis is None:
        x, axis = x.ravel(), 0
    if ord in (None, 2):
        return np.sqrt(np.add.reduce(x * x, axis=axis, keepdims=keepdims))
    if ord == 1:
        return np.add.reduce(abs(x), axis=axis, keepdims=keepdims)
    if ord == np.inf:
        return np.maximum.reduce(abs(x), axis=axis, keepdims=keepdims)
    raise CannotTrace(f"it computes the norm of order {ord}")


def dot(x, y):
    """np.dot."""
    return wrap(np.dot(np.asarray(as_symbols(x), dtype=object), np.asarray(as_symbols(y), dtype=object)))


def inner(x, y):
    """np.inner of vectors."""
    x, y = as_symbols(x), as_symbols(y)
    if x.ndim != 1 or y.ndim != 1:
        raise CannotTrace("it calls np.inner of matrices")
    return np.add.reduce(x * y)


def vdot(x, y):
    """np.vdot."""
    return inner(as_symbols(x).ravel(), as_symbols(y).ravel())


def outer(x, y):
    """np.outer."""
    return as_symbols(x).ravel()[:, None] * as_symbols(y).ravel()[None, :]


def cross(x, y):
    """np.cross along the last axis."""
    x, y = as_symbols(x), as_symbols(y)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise CannotTrace("it calls np.cross in two dimensions")
    a, b = np.moveaxis(x, -1, 0), np.moveaxis(y, -1, 0)
    return np.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], axis=-1)


def gradient(x, *spacing, axis=None, edge_order=1):
    """np.gradient on uniform grids."""
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis))
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    if len(steps) != len(axes) or any(np.ndim(h) for h in steps):
        raise CannotTrace("it calls np.gradient on an uneven grid")
    found = [_slope(np.moveaxis(x, i, 0), h, edge_order, i) for i, h in zip(axes, steps, strict=True)]
    return found[0] if len(axes) == 1 else tuple(found)


def _slope(x, h, edge_order: int, axis: int):
    inner = (x[2:] - x[:-2]) / (2.0 * h)
    if edge_order == 1:
        first, last = (x[1:2] - x[:1]) / h, (x[-1:] - x[-2:-1]) / h
    else:
        first = (-1.5 / h) * x[:1] + (2.0 / h) * x[1:2] + (-0.5 / h) * x[2:3]
        last = (0.5 / h) * x[-3:-2] + (-2.0 / h) * x[-2:-1] + (1.5 / h) * x[-1:]
    return np.moveaxis(np.concatenate((first, inner, last)), 0, axis)


def convolve(x, kernel, mode="full"):
    """np.convolve of an array with a short kernel."""
    kernel = np.asarray(kernel) if not holds_symbols(kernel) else kernel
    if not isinstance(kernel, np.ndarray) or kernel.dtype.kind not in "iuf" or not len(kernel) <= min(len(x), 64):
        raise CannotTrace("it calls np.convolve with a kernel that is not a short list of numbers")
    n, m = len(x), len(kernel)
    padded = np.pad(x, m - 1)
    total = sum(kernel[j] * padded[m - 1 - j : 2 * m - 2 - j + n] for j in range(m))
    first, count = {"full": (0, n + m - 1), "same": ((m - 1) // 2, n), "valid": (m - 1, n - m + 1)}[mode]
    return total[first : first + count]


def _make_joining(function):
    """Wrap a function that joins arrays: booleans joined with numbers become numbers."""

    def join(*arguments, dtype=None, **options):
        require_real(dtype)
        joined = function(*(_as_plain(x) for x in arguments), **options)
        return as_symbols(joined) if joined.dtype == object else joined

    return join


def _as_plain(x):
    """The arrays in a sequence as plain object arrays, so that NumPy does not dispatch to the substitutes again."""
    if isinstance(x, (list, tuple)):
        return type(x)(_as_plain(item) for item in x)
    return np.asarray(x, dtype=object) if isinstance(x, (SymbolArray, Symbol)) else x


FUNCTIONS.update({  # type: ignore[misc]
    np.where: where, np.clip: clip, np.linalg.norm: norm, np.mean: mean, np.dot: dot, np.outer: outer,
    np.inner: inner, np.vdot: vdot, np.cross: cross, np.gradient: gradient,
    np.convolve: convolve, np.any: _reduce_truths(np.logical_or), np.all: _reduce_truths(np.logical_and),
    np.nan_to_num: make_nan_to_num(where),
    np.max: _extreme(np.maximum), np.min: _extreme(np.minimum),
    np.amax: _extreme(np.maximum), np.amin: _extreme(np.minimum), np.real: lambda x: x,
    np.zeros_like: _make_like(zeros), np.ones_like: _make_like(ones), np.empty_like: _make_like(empty),
    np.full_like: full_like,
    **{joining: _make_joining(joining) for joining in (np.concatenate, np.stack, np.hstack, np.vstack, np.append)},
})  # fmt: skip


# ---- the modules -------------------------------------------------------------------------------------------------


class Shim(types.ModuleType):
    """A module with some functions replaced, for the globals of a function that is traced."""

    def __init__(self, module, replaced: dict):
        super().__init__(module.__name__)
        self.__dict__.update(replaced)
        self.__wrapped__ = module

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)


def _choose_by_trace(function, own):
    """Call the substitute if an argument is traced, else NumPy's function."""

    @wraps(function)
    def call(*arguments, **options):
        is_traced = holds_symbols(arguments) or holds_symbols(list(options.values()))
        return own(*arguments, **options) if is_traced else function(*arguments, **options)

    return call


_MAKERS: dict[str, Callable] = {"zeros_like": np.zeros_like, "ones_like": np.ones_like, "empty_like": np.empty_like,
           "full_like": np.full_like}  # fmt: skip
NUMPY = Shim(np, {
    **{function.__name__: _choose_by_trace(function, own) for function, own in FUNCTIONS.items()},
    **{name: FUNCTIONS[function] for name, function in _MAKERS.items()},
    "array": array, "asarray": asarray, "asanyarray": asarray, "zeros": zeros, "ones": ones, "empty": empty,
    "full": full, "isscalar": lambda x: isinstance(x, Symbol) or np.isscalar(x),
    "linalg": Shim(np.linalg, {"norm": _choose_by_trace(np.linalg.norm, norm)}),
})  # fmt: skip
del NUMPY.__dict__["norm"]  # it belongs to np.linalg

_MATH_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh",
               "acosh": "arccosh", "atanh": "arctanh", "fabs": "abs"}  # fmt: skip


def _build_math_function(name: str, operation: str, kind: type, apply: Callable):
    plain, arity = getattr(math, name), 2 if operation in BINARY else 1

    def call(*x):
        if not any(isinstance(value, kind) for value in x):
            return plain(*x)
        if operation == "log" and len(x) == 2:
            return apply("div", call(x[0]), call(x[1]))
        if len(x) != arity:
            raise CannotTrace(f"it calls math.{name} of {len(x)} numbers")
        return apply(operation, *x)

    return call


def build_math_substitute(kind: type, apply: Callable) -> Shim:
    """The module math with functions that accept traced numbers of type `kind`."""
    names = {name: _MATH_NAMES.get(name, name) for name in dir(math)}
    known = {name: operation for name, operation in names.items() if operation in EVALUATE}
    return Shim(math, {name: _build_math_function(name, operation, kind, apply) for name, operation in known.items()})


MATH = build_math_substitute(Symbol, apply)
