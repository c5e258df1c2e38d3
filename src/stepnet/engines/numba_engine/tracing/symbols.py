"""Numbers and arrays that record the operations performed on them.

`Symbol` stands for a number, `SymbolArray` for an array of them: an object array, so that indexing, slicing,
reshaping, `roll`, `concatenate`, `sum`, `@` and similar operations are NumPy's own.  Whatever needs a value (a branch,
a conversion to float) raises `CannotTrace`.

Comparisons give booleans, which count as 0 and 1 among numbers, as in NumPy; sums and products of two boolean arrays
are logical.  Unsupported options are refused: a trace must never differ from NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepnet.engines.numba_engine.tracing.graph import BOOLEAN, COMPOSED, ELEMENTARY, EVALUATE, LOGICAL, Graph

ON_BOOLEANS = frozenset((*BOOLEAN, "xor", "select", "div", "pow", "max", "min", "abs"))  # others give float16 in NumPy


class CannotTrace(Exception):
    """The function does something that straight-line code cannot express."""


class Symbol:
    """A node of a graph that behaves like a float (or, if it is a comparison, like a boolean)."""

    __slots__ = ("graph", "number")
    __array_priority__ = 100

    def __init__(self, graph: Graph, number: int):
        self.graph, self.number = graph, number

    @property
    def is_boolean(self) -> bool:
        return self.graph.is_boolean(self.number)

    def __bool__(self):
        raise CannotTrace("it branches on data")

    def __float__(self):
        raise CannotTrace("it converts a traced number to a float")

    __int__ = __index__ = __complex__ = __float__

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return apply_ufunc(ufunc, method, inputs, options)

    def __repr__(self):
        raise CannotTrace("it converts a traced number to text")

    __str__ = __repr__

    def __format__(self, spec):
        raise CannotTrace("it converts a traced number to text")

    def __hash__(self):
        raise CannotTrace("it uses a traced number as a key")

    shape, ndim, size, dtype = (), 0, 1, np.dtype(float)

    @property
    def T(self):
        return self

    real = T

    def conjugate(self):
        return self

    def copy(self):
        return self

    def item(self):
        return self


# ---- single operations -------------------------------------------------------------------------------------------


def is_boolean(value) -> bool:
    """Whether a number or symbol is a boolean."""
    return value.is_boolean if isinstance(value, Symbol) else isinstance(value, (bool, np.bool_))


def apply(operation: str, *values):
    """Apply an operation to symbols and numbers; on numbers alone it is evaluated."""
    graph = next((value.graph for value in values if isinstance(value, Symbol)), None)
    if graph is not None:
        return Symbol(graph, graph.apply(operation, *_as_operands(graph, operation, values)))
    if operation in COMPOSED:
        graph = Graph(100)
        return graph.value(graph.apply(operation, *_as_operands(graph, operation, values)))
    with np.errstate(all="ignore"):
        return EVALUATE[operation](*(np.float64(value) if type(value) is float else value for value in values))


def _as_operands(graph: Graph, operation: str, values) -> list[int]:
    """The operands as nodes: booleans where the operation takes them, else numbers."""
    if operation in LOGICAL or operation == "xor":
        if not all(is_boolean(value) for value in values):
            raise CannotTrace("it uses bitwise operations")
        return [_as_operand(graph, value) for value in values]
    if operation not in ON_BOOLEANS and all(is_boolean(value) for value in values):
        raise CannotTrace(f"it takes {operation} of booleans")
    if operation == "select":
        condition, *choices = values
        return [_as_operand(graph, as_truth(condition)), *(_as_operand(graph, number(choice)) for choice in choices)]
    return [_as_operand(graph, number(value)) for value in values]


def _as_operand(graph: Graph, value) -> int:
    if isinstance(value, Symbol):
        return value.number
    if isinstance(value, (bool, np.bool_, int, float, np.integer, np.floating)):
        return graph.constant(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _as_operand(graph, value[()])
    raise CannotTrace(f"it mixes traced numbers with {type(value).__name__}")


def number(value):
    """Booleans as 1 and 0, anything else as it is."""
    if not is_boolean(value):
        return value
    if not isinstance(value, Symbol):
        return float(value)
    graph = value.graph
    return Symbol(graph, graph.apply("select", value.number, graph.constant(1.0), graph.constant(0.0)))


def as_truth(value):
    """Whether a value is nonzero."""
    return value if is_boolean(value) else apply("ne", value, 0.0)


def choose(condition, x, y):
    """x where the condition holds, else y; a choice between two booleans is a boolean."""
    if is_boolean(x) and is_boolean(y):
        condition = as_truth(condition)
        return apply("or", apply("and", condition, x), apply("and", apply("not", condition), y))
    return apply("select", condition, x, y)


# ---- Python's operators ------------------------------------------------------------------------------------------


def _make_binary(operation: str, is_reflected: bool = False):
    def method(self, other):
        if isinstance(other, np.ndarray) and other.ndim > 0:
            return NotImplemented
        values = (other, self) if is_reflected else (self, other)
        if operation in ("add", "mul") and self.is_boolean and is_boolean(other):
            if operation == "add":  # 2 in Python, True in NumPy
                raise CannotTrace("it adds booleans")
            return apply("and", *values)
        return apply(operation, *values)

    return method


_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "mod": "mod", "floordiv": "floordiv",
    "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
for _name, _operation in _OPERATORS.items():
    setattr(Symbol, f"__{_name}__", _make_binary(_operation))
    setattr(Symbol, f"__r{_name}__", _make_binary(_operation, is_reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Symbol, f"__{_name}__", _make_binary(_name))
Symbol.__invert__ = lambda self: apply("not", self)  # type: ignore[operator]
Symbol.__neg__ = lambda self: apply("neg", self)  # type: ignore[operator]
Symbol.__pos__ = lambda self: self  # type: ignore[operator]
Symbol.__abs__ = lambda self: apply("abs", self)  # type: ignore[attr-defined]


# ---- NumPy's elementwise functions -------------------------------------------------------------------------------

UFUNCS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.negative: "neg", np.power: "pow",
    np.float_power: "pow", np.remainder: "mod", np.floor_divide: "floordiv", np.fmod: "fmod", np.absolute: "abs",
    np.fabs: "abs", np.sign: "sign", np.copysign: "copysign", np.maximum: "max", np.minimum: "min", np.fmax: "fmax",
    np.fmin: "fmin", np.arctan2: "arctan2", np.hypot: "hypot", np.logaddexp: "logaddexp", np.heaviside: "heaviside",
    np.floor: "floor", np.ceil: "ceil", np.square: "square", np.reciprocal: "reciprocal", np.deg2rad: "deg2rad",
    np.radians: "deg2rad", np.rad2deg: "rad2deg", np.degrees: "rad2deg", np.less: "lt", np.less_equal: "le",
    np.greater: "gt", np.greater_equal: "ge", np.equal: "eq", np.not_equal: "ne", np.isnan: "isnan", np.isinf: "isinf",
    np.isfinite: "isfinite", np.logical_and: "and", np.logical_or: "or", np.logical_xor: "xor", np.logical_not: "not",
    np.bitwise_and: "and", np.bitwise_or: "or", np.bitwise_xor: "xor", np.invert: "not",
    **{getattr(np, name): name for name in ELEMENTARY},
}  # fmt: skip
TRUTH_OF_NUMBERS = (np.logical_and, np.logical_or, np.logical_xor, np.logical_not)
_ELEMENTWISE: dict = {
    **{ufunc: (lambda *x, operation=operation: apply(operation, *x)) for ufunc, operation in UFUNCS.items()},
    **{ufunc: (lambda *x, name=UFUNCS[ufunc]: apply(name, *map(as_truth, x))) for ufunc in TRUTH_OF_NUMBERS},
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
}
_OF_BOOLEANS = {np.add: np.logical_or, np.multiply: np.logical_and}
_WITHOUT_EFFECT = ("casting", "order", "subok")  # on float64 results


def apply_ufunc(ufunc, method: str, inputs, options):
    """Apply a NumPy ufunc to symbols element by element; `@` runs in NumPy's loop for object arrays."""
    plain = [_plain(x) for x in inputs]
    options = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
    out = options.pop("out", None)
    dtype = options.pop("dtype", None)
    if ufunc not in TRUTH_OF_NUMBERS:
        require_real(dtype)
    if ufunc is np.matmul and method == "__call__" and not options:
        result = np.matmul(*plain)
    elif ufunc not in _ELEMENTWISE or method not in ("__call__", "reduce", "accumulate", "outer"):
        raise CannotTrace(f"it calls {ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
    elif method == "reduce":
        result = _reduce(ufunc, *plain, **options)
    elif method == "accumulate":
        result = np.frompyfunc(_ELEMENTWISE[ufunc], 2, 1).accumulate(_count(ufunc, plain[0]), **options)
    else:
        result = _apply_elementwise(ufunc, method, plain, **options)
    return wrap(result) if out is None else _store(result, out[0])


def _apply_elementwise(ufunc, method: str, plain, where=True):
    if where is not True:
        raise CannotTrace(f"it calls np.{ufunc.__name__} with a mask")
    if ufunc in _OF_BOOLEANS and all(_are_booleans(x) for x in plain):
        ufunc = _OF_BOOLEANS[ufunc]
    return getattr(np.frompyfunc(_ELEMENTWISE[ufunc], ufunc.nin, 1), method)(*plain)


def _reduce(ufunc, x, axis=0, keepdims=False, initial=np._NoValue, where=True):
    """Reduce over one axis, several axes or all (None)."""
    if where is not True:
        raise CannotTrace("it reduces with a mask")
    operation = np.frompyfunc(_ELEMENTWISE[ufunc], ufunc.nin, 1)
    x = _count(ufunc, np.asarray(x, dtype=object))
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % x.ndim)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    shape = tuple(x.shape[i] for i in rest)
    total = None if initial is np._NoValue else initial
    for part in x.transpose(*axes, *rest).reshape(-1, *shape):
        total = part if total is None else operation(box(total), box(part))
    if total is None:
        if ufunc.identity is None:
            raise CannotTrace(f"it calls np.{ufunc.__name__}.reduce on nothing")
        total = np.full(shape, float(ufunc.identity))
    if keepdims is True:
        kept = tuple(1 if i in axes else x.shape[i] for i in range(x.ndim))
        return np.asarray(box(total), dtype=object).reshape(kept)
    return total


def _count(ufunc, x):
    """Booleans as numbers: their sums and products along an axis are integers."""
    return np.frompyfunc(number, 1, 1)(x) if ufunc in _OF_BOOLEANS else x


def _are_booleans(x) -> bool:
    """Whether NumPy would have a boolean array here; usually the first entry decides."""
    if isinstance(x, np.ndarray):
        return x.dtype == bool or (x.dtype == object and x.size > 0 and all(map(is_boolean, x.flat)))
    return is_boolean(x)


def _store(result, out):
    """Store the result in the user's array."""
    if not isinstance(out, SymbolArray):
        raise CannotTrace(f"it stores traced numbers in an array of {getattr(out, 'dtype', type(out).__name__)}")
    out[...] = wrap(result)
    return out


def require_real(dtype) -> None:
    """Refuse dtypes other than float64, to which NumPy would round."""
    if dtype is not None and np.dtype(dtype) not in (np.dtype(float), np.dtype(object)):
        raise CannotTrace(f"it converts to type {np.dtype(dtype)}")


def _plain(x):
    return np.asarray(x, dtype=object) if isinstance(x, SymbolArray) else box(x)


def box(x):
    """A symbol as a zero-dimensional array, which NumPy treats as an opaque scalar."""
    if isinstance(x, Symbol):
        box = np.empty((), dtype=object)
        box[()] = x
        return box
    return x


def wrap(result):
    """An object array or scalar from NumPy in a form that is traced further."""
    if isinstance(result, np.ndarray) and result.dtype == object:
        return result[()] if result.ndim == 0 else result.view(SymbolArray)
    return result


# ---- arrays ------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[Callable, Callable] = {}
"""What stands in for functions of NumPy; see `numpy_substitutes`."""
UNTRACEABLE = frozenset((
    np.sort, np.argsort, np.argmax, np.argmin, np.nonzero, np.searchsorted, np.interp, np.fft.fft, np.fft.ifft,
    np.linalg.solve, np.linalg.inv, np.linalg.eig, np.linalg.det, np.round, np.median, np.std, np.var,
    np.piecewise, np.select, np.asarray_chkfinite,
))  # fmt: skip


class SymbolArray(np.ndarray):
    """An object array of symbols and numbers whose ufuncs add nodes."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function, kinds, arguments, keywords):
        own = FUNCTIONS.get(function)
        if own is not None:
            return own(*arguments, **keywords)
        if function in UNTRACEABLE:
            raise CannotTrace(f"it calls {function.__module__}.{function.__name__}")
        return super().__array_function__(function, kinds, arguments, keywords)

    def __setitem__(self, key, value):
        """Store a value; in an array of numbers booleans become numbers.  A traced mask selects old or new values."""
        if isinstance(key, SymbolArray):
            if key.shape != self.shape or np.ndim(value) != 0 or not _are_booleans(np.asarray(key)):
                raise CannotTrace("it stores an array under a mask that depends on data")
            key, value = ..., FUNCTIONS[np.where](key, value, self)
        if _has_booleans(value) and not _are_booleans(np.asarray(self)):
            value = np.frompyfunc(number, 1, 1)(_plain(value))
        super().__setitem__(key, value)

    def max(self, *arguments, **options):
        return FUNCTIONS[np.max](self, *arguments, **options)

    def min(self, *arguments, **options):
        return FUNCTIONS[np.min](self, *arguments, **options)

    def mean(self, *arguments, **options):
        return FUNCTIONS[np.mean](self, *arguments, **options)

    def clip(self, min=None, max=None):  # type: ignore[override]
        return FUNCTIONS[np.clip](self, min, max)

    def astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
        require_real(dtype)
        return np.frompyfunc(number, 1, 1)(np.asarray(self)).view(SymbolArray) if copy else self

    @property  # type: ignore[misc]
    def real(self):
        return self

    def __bool__(self):
        raise CannotTrace("it branches on data")


def _has_booleans(value) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == object and any(map(is_boolean, value.flat))
    return isinstance(value, Symbol) and value.is_boolean


def as_symbols(values) -> SymbolArray:
    """Anything array-like as a `SymbolArray`; booleans next to numbers become numbers."""
    if isinstance(values, SymbolArray):
        return values
    array = np.asarray(box(values), dtype=object)
    if _has_booleans(array) and not _are_booleans(array):
        array = np.frompyfunc(number, 1, 1)(array)
    return np.array(array, dtype=object).view(SymbolArray)


def holds_symbols(value) -> bool:
    """Whether a value, or a list or tuple in it, contains a symbol."""
    if isinstance(value, (list, tuple)):
        return any(holds_symbols(item) for item in value)
    return isinstance(value, (Symbol, SymbolArray)) or (isinstance(value, np.ndarray) and value.dtype == object)
