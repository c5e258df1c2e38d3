"""Substitutes for NumPy and math in functions that run on `NodeArray`; parameters as in `numpy_substitutes`."""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.array_tracing.array_graph import ArrayGraph
from stepnet.engines.numba_engine.array_tracing.array_symbols import (
    FUNCTIONS,
    NodeArray,
    apply,
    as_entries,
    as_nodes,
    as_truths,
    find_graph,
    holds_entries,
    make_unset,
    multiply,
)
from stepnet.engines.numba_engine.tracing.numpy_substitutes import (
    Shim,
    build_math_substitute,
    convolve,
    gradient,
    make_nan_to_num,
)
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace, require_real
from stepnet.engines.numba_engine.tracing.trace import collect_replacements

PLACING = (
    np.roll, np.transpose, np.swapaxes, np.moveaxis, np.rollaxis, np.flip, np.fliplr, np.flipud, np.rot90, np.reshape,
    np.ravel, np.squeeze, np.expand_dims, np.broadcast_to, np.tile, np.repeat, np.take, np.delete, np.copy, np.split,
    np.array_split, np.hsplit, np.vsplit, np.atleast_1d, np.atleast_2d, np.diagonal,
)  # fmt: skip
JOINING = (np.concatenate, np.stack, np.hstack, np.vstack, np.column_stack, np.dstack)


def _make_placing(function):
    """Wrap a function that only rearranges entries, so that it rearranges their node numbers."""

    def move(x, *arguments, **options):
        moved = function(x.numbers, *arguments, **options)
        return [x.like(part) for part in moved] if isinstance(moved, (list, tuple)) else x.like(moved)

    return move


def _make_joining(function):
    def join(arrays, *arguments, dtype=None, **options):
        require_real(dtype)
        bulk = find_graph(arrays)
        return NodeArray(bulk, function([as_nodes(bulk, array) for array in arrays], *arguments, **options))

    return join


def append(x, values, axis=None):
    """np.append."""
    parts = (
        (x, values) if axis is not None else (as_entries(find_graph(x, values), part).ravel() for part in (x, values))
    )
    return np.concatenate(tuple(parts), axis=axis or 0)


def where(condition, *choices):
    """np.where with three arguments."""
    if len(choices) != 2:
        raise CannotTrace("it calls np.where with one argument")
    bulk = find_graph(condition, *choices)
    x, y = (as_nodes(bulk, choice) for choice in choices)
    return NodeArray(bulk, bulk.apply("select", as_truths(bulk, condition), x, y))


def clip(x, a_min=None, a_max=None, *, min=None, max=None):
    """np.clip."""
    low, high = a_min if min is None else min, a_max if max is None else max
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def mean(x, axis=None, dtype=None, *, keepdims=False):
    """np.mean."""
    total = x.sum(axis, dtype, keepdims=keepdims)
    return total / (x.size // total.size)


def dot(x, y):
    """np.dot of vectors and matrices."""
    return x * y if np.ndim(x) == 0 or np.ndim(y) == 0 else multiply(find_graph(x, y), x, y)


def vdot(x, y):
    """np.vdot."""
    bulk = find_graph(x, y)
    return dot(as_entries(bulk, x).ravel(), as_entries(bulk, y).ravel())


def outer(x, y):
    """np.outer."""
    bulk = find_graph(x, y)
    return as_entries(bulk, x).ravel()[:, None] * as_entries(bulk, y).ravel()


def norm(x, ord=None, axis=None, keepdims=False):
    """np.linalg.norm of a vector or over one axis."""
    if ord not in (None, 2) or isinstance(axis, tuple) or (axis is None and x.ndim > 1 and ord == 2):
        raise CannotTrace(f"it computes the norm of order {ord}")
    return np.sqrt((x * x).sum(axis, keepdims=keepdims))


def diff(x, n=1, axis=-1):
    """np.diff."""
    for _ in range(n):
        moved = np.moveaxis(x, axis, 0)
        x = np.moveaxis(moved[1:] - moved[:-1], 0, axis)
    return x


def trapezoid(y, x=None, dx=1.0):
    """np.trapezoid of a vector."""
    width = dx if x is None else np.diff(x)
    return ((y[1:] + y[:-1]) * width / 2.0).sum()


class _RowStack:
    """np.r_ of numbers and vectors."""

    def __getitem__(self, parts):
        if not holds_entries(parts):
            return np.r_[parts]
        return np.concatenate([part if np.ndim(part) else [part] for part in parts])


def pad(x, pad_width, mode="constant", *, constant_values=0.0):
    """np.pad with constants or entries of the array."""
    if mode not in ("constant", "edge", "wrap", "reflect", "symmetric"):
        raise CannotTrace(f"it pads by {mode}")
    options = {"constant_values": as_nodes(x.bulk, constant_values)} if mode == "constant" else {}
    return NodeArray(x.bulk, np.pad(as_nodes(x.bulk, x), pad_width, mode, **options))


def _make_like(make):
    def create(prototype, *value, dtype=None, order="K", subok=True, shape=None):
        prototype = prototype if isinstance(prototype, NodeArray) else np.asarray(prototype)
        return make(prototype.shape if shape is None else shape, *value, dtype=dtype or prototype.dtype)

    return create


FUNCTIONS.update({
    **{function: _make_placing(function) for function in PLACING},
    **{function: _make_joining(function) for function in JOINING},
    np.append: append, np.where: where, np.clip: clip, np.mean: mean, np.dot: dot, np.vdot: vdot, np.inner: dot,
    np.outer: outer, np.linalg.norm: norm, np.diff: diff, np.pad: pad, np.gradient: gradient, np.convolve: convolve,
    np.nan_to_num: make_nan_to_num(where), np.prod: np.multiply.reduce, np.trapezoid: trapezoid,
    np.sum: NodeArray.sum, np.max: NodeArray.max, np.min: NodeArray.min, np.amax: NodeArray.max, np.amin: NodeArray.min,
    np.shape: lambda x: x.shape, np.size: lambda x: x.size, np.ndim: lambda x: x.ndim, np.real: lambda x: x,
})  # fmt: skip


def replace_modules(bulk: ArrayGraph) -> dict:
    """NumPy and math with functions that return arrays of an `ArrayGraph`."""

    def is_real(dtype) -> bool:
        return dtype is None or np.dtype(dtype) == np.float64

    def full(shape, value, dtype=None, order="C"):
        if not is_real(dtype) or not (holds_entries(value) or np.asarray(value).dtype == float):
            return np.full(shape, value, dtype)
        made = make_unset(bulk, shape)
        made[...] = value
        return made

    def filled(value: float):
        return lambda shape, dtype=None, order="C": full(shape, value, dtype)

    def empty(shape, dtype=None, order="C"):
        return make_unset(bulk, shape) if is_real(dtype) else np.empty(shape, dtype)

    def array(values, dtype=None, *, copy=True, order="K"):
        if not holds_entries(values):
            plain = np.array(values, dtype)
            return as_entries(bulk, plain) if plain.dtype == np.float64 else plain
        require_real(dtype)
        found = as_entries(bulk, values)
        return found.copy() if copy else found

    def asarray(values, dtype=None, order=None):
        return array(values, dtype, copy=False)

    makers = {"zeros": filled(0.0), "ones": filled(1.0), "empty": empty, "full": full}
    likes = {f"{name}_like": _make_like(make) for name, make in makers.items()}
    arrays = {
        "r_": _RowStack(),
        "array": array,
        **dict.fromkeys(("asarray", "asanyarray", "ascontiguousarray"), asarray),
    }
    return collect_replacements(Shim(np, {**makers, **likes, **arrays}), build_math_substitute(NodeArray, apply))
