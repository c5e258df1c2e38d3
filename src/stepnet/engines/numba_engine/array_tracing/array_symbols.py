"""Long arrays that record the operations performed on them, many entries at a time.

`NodeArray` holds node numbers of an `ArrayGraph` in an array of the same shape as the user's, so that views, slices
and stores are NumPy's.  Operations that are not listed here raise, and the function is not traced.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from stepnet.engines.numba_engine.array_tracing.array_graph import UNSET, ArrayGraph
from stepnet.engines.numba_engine.tracing.graph import BOOLEAN, COMPOSED, LOGICAL
from stepnet.engines.numba_engine.tracing.symbols import TRUTH_OF_NUMBERS, UFUNCS, CannotTrace, require_real

GIVE_BOOLEANS = BOOLEAN | {"xor", "isnan", "isinf", "isfinite"}
OF_BOOLEANS = LOGICAL | {"xor"}
IDENTITIES = (np.positive, np.conjugate)
FUNCTIONS: dict[Callable, Callable] = {}
"""What stands in for functions of NumPy; see `array_substitutes`."""


class NodeArray(NDArrayOperatorsMixin):
    """An array of nodes that behaves like a float64 array (or, if it consists of comparisons, like a bool array)."""

    __slots__ = ("bulk", "is_boolean", "numbers")
    __array_priority__ = 100

    def __init__(self, bulk: ArrayGraph, numbers, is_boolean: bool = False):
        self.bulk, self.numbers, self.is_boolean = bulk, np.asarray(numbers), is_boolean

    # ---- attributes of an array

    shape = property(lambda self: self.numbers.shape)
    ndim = property(lambda self: self.numbers.ndim)
    size = property(lambda self: self.numbers.size)
    T = property(lambda self: self.like(self.numbers.T))
    real = property(lambda self: self)
    dtype = property(lambda self: np.dtype(bool if self.is_boolean else float))

    def __len__(self):
        return len(self.numbers)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name):
        raise AttributeError(f"it uses `.{name}` of an array")

    def __bool__(self):
        raise CannotTrace("it branches on data")

    def __float__(self):
        raise CannotTrace("it converts a traced number to a float")

    __int__ = __index__ = __complex__ = __float__

    def __repr__(self):
        raise CannotTrace("it converts traced numbers to text")

    __str__ = __repr__

    def __format__(self, spec):
        raise CannotTrace("it converts traced numbers to text")

    def __hash__(self):
        raise CannotTrace("it uses traced numbers as a key")

    def like(self, numbers) -> NodeArray:
        """An array of other nodes with the same dtype."""
        return NodeArray(self.bulk, numbers, self.is_boolean)

    # ---- indexing

    def __getitem__(self, key):
        _require_plain(key)
        return self.like(self.numbers[key])

    def __setitem__(self, key, value):
        is_mask = isinstance(key, (NodeArray, np.ndarray)) and key.dtype.kind == "b" and key.shape == self.shape
        if is_mask and np.ndim(value) == 0:
            key, value = ..., FUNCTIONS[np.where](key, value, self)
        _require_plain(key)
        if self.is_boolean:
            raise CannotTrace("it stores in an array of booleans")
        self.numbers[key] = as_nodes(self.bulk, value)

    def reshape(self, *shape, order="C"):
        return self.like(self.numbers.reshape(*shape, order=order))

    def transpose(self, *axes):
        return self.like(self.numbers.transpose(*axes))

    def swapaxes(self, first, second):
        return self.like(self.numbers.swapaxes(first, second))

    def ravel(self):
        return self.like(self.numbers.ravel())

    def squeeze(self, axis=None):
        return self.like(self.numbers.squeeze(axis))

    def flatten(self):
        return self.like(self.numbers.flatten())

    def copy(self):
        return self.like(self.numbers.copy())

    def astype(self, dtype, copy=True):
        require_real(dtype)
        return NodeArray(self.bulk, as_nodes(self.bulk, self).copy())

    def fill(self, value):
        self[...] = value

    def conj(self):
        return self

    conjugate = conj

    # ---- arithmetic

    def sum(self, axis=None, dtype=None, *, keepdims=False):
        return np.add.reduce(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis=None, dtype=None, *, keepdims=False):
        return FUNCTIONS[np.mean](self, axis, dtype, keepdims=keepdims)

    def max(self, axis=None, *, keepdims=False):
        return np.maximum.reduce(self, axis=axis, keepdims=keepdims)

    def min(self, axis=None, *, keepdims=False):
        return np.minimum.reduce(self, axis=axis, keepdims=keepdims)

    def dot(self, other):
        return FUNCTIONS[np.dot](self, other)

    def clip(self, min=None, max=None):
        return FUNCTIONS[np.clip](self, min, max)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, dtype=None, **options):
        require_real(dtype)
        if ufunc is np.matmul and method == "__call__":
            result = multiply(self.bulk, *inputs)
        elif ufunc in IDENTITIES and method == "__call__":
            result = NodeArray(self.bulk, inputs[0].numbers.copy(), inputs[0].is_boolean)
        elif ufunc not in UFUNCS or method not in ("__call__", "reduce"):
            raise CannotTrace(f"it calls {ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
        elif method == "reduce":
            result = _reduce(self.bulk, UFUNCS[ufunc], *inputs, **options)
        else:
            result = _apply_entrywise(self.bulk, ufunc, inputs, **options)
        if out is None:
            return result
        if not isinstance(out[0], NodeArray):
            raise CannotTrace("it stores traced numbers in an array created outside")
        out[0][...] = result
        return out[0]

    def __array_function__(self, function, kinds, arguments, keywords):
        own = FUNCTIONS.get(function)
        if own is None:
            raise CannotTrace(f"it calls {function.__module__}.{function.__name__}")
        return own(*arguments, **keywords)


def _require_plain(key) -> None:
    if any(isinstance(part, NodeArray) for part in (key if isinstance(key, tuple) else (key,))):
        raise CannotTrace("it indexes with values that depend on data")


# ---- operations --------------------------------------------------------------------------------------------------


def holds_entries(value) -> bool:
    """Whether a value, or a list or tuple in it, contains a traced array."""
    if isinstance(value, (list, tuple)):
        return any(holds_entries(item) for item in value)
    return isinstance(value, NodeArray)


def as_entries(bulk: ArrayGraph, value) -> NodeArray:
    """Anything array-like as a `NodeArray`; lists of arrays are stacked."""
    if isinstance(value, NodeArray):
        return value
    if holds_entries(value):
        return NodeArray(bulk, np.stack([as_nodes(bulk, item) for item in value]))
    value = np.asarray(value)
    return NodeArray(bulk, bulk.constant(value), value.dtype == bool)


def as_nodes(bulk: ArrayGraph, value) -> np.ndarray:
    """The nodes of numbers; booleans count as 1 and 0."""
    value = as_entries(bulk, value)
    if not value.is_boolean:
        return value.numbers
    return bulk.apply("select", value.numbers, bulk.constant(1.0), bulk.constant(0.0))


def as_truths(bulk: ArrayGraph, value) -> np.ndarray:
    """The nodes of booleans: whether numbers are nonzero."""
    value = as_entries(bulk, value)
    return value.numbers if value.is_boolean else bulk.apply("ne", value.numbers, bulk.constant(0.0))


def find_graph(*values) -> ArrayGraph:
    """The graph that traced values belong to."""
    for value in values:
        if isinstance(value, NodeArray):
            return value.bulk
        if isinstance(value, (list, tuple)) and holds_entries(value):
            return find_graph(*value)
    raise CannotTrace("it calls a function of arrays without an array")


def apply(operation: str, *values) -> NodeArray:
    """Apply an operation to numbers."""
    bulk = find_graph(*values)
    return NodeArray(bulk, bulk.apply(operation, *(as_nodes(bulk, value) for value in values)))


def _apply_entrywise(bulk: ArrayGraph, ufunc, inputs, where=True, casting=None, order=None, subok=None) -> NodeArray:
    operation = UFUNCS[ufunc]
    if where is not True:
        raise CannotTrace(f"it calls np.{ufunc.__name__} with a mask")
    values = [as_entries(bulk, value) for value in inputs]
    are_booleans = all(value.is_boolean for value in values)
    if are_booleans and operation in ("add", "mul"):
        operation = {"add": "or", "mul": "and"}[operation]
    if operation in OF_BOOLEANS:
        if ufunc not in TRUTH_OF_NUMBERS and not are_booleans:
            raise CannotTrace("it uses bitwise operations")
        return NodeArray(bulk, bulk.apply(operation, *(as_truths(bulk, value) for value in values)), True)
    if are_booleans and operation not in GIVE_BOOLEANS:
        raise CannotTrace(f"it takes {operation} of booleans")
    return NodeArray(
        bulk, bulk.apply(operation, *(as_nodes(bulk, value) for value in values)), operation in GIVE_BOOLEANS
    )


def _reduce(bulk: ArrayGraph, operation: str, x, axis=0, keepdims=False, initial=np._NoValue, where=True) -> NodeArray:
    """Reduce over one axis, several axes or all (None)."""
    if where is not True or initial is not np._NoValue or operation in COMPOSED or operation in OF_BOOLEANS:
        raise CannotTrace(f"it reduces by {operation} with options")
    nodes = as_nodes(bulk, x)
    axes = tuple(range(nodes.ndim)) if axis is None else tuple(int(i) % nodes.ndim for i in np.atleast_1d(axis))
    rest = tuple(i for i in range(nodes.ndim) if i not in axes)
    shape = tuple(nodes.shape[i] for i in rest)
    total = bulk.total(operation, nodes.transpose(*rest, *axes).reshape(*shape, -1))
    return NodeArray(bulk, np.expand_dims(total, axes) if keepdims else total)


def multiply(bulk: ArrayGraph, x, y) -> NodeArray:
    """x @ y of vectors and matrices."""
    x, y = as_nodes(bulk, x), as_nodes(bulk, y)
    if x.ndim not in (1, 2) or y.ndim not in (1, 2) or x.shape[-1] != y.shape[0]:
        raise CannotTrace(f"it multiplies arrays of shapes {x.shape} and {y.shape}")
    left = x if x.ndim == 1 or y.ndim == 1 else x[:, None, :]
    return NodeArray(bulk, bulk.total("add", bulk.apply("mul", left, y.T)))


def make_unset(bulk: ArrayGraph, shape) -> NodeArray:
    """An array whose entries are not set yet."""
    return NodeArray(bulk, np.full(shape, UNSET, np.int32))
