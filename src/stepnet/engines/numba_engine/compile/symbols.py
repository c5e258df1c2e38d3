"""Numbers and arrays that write down what is done to them.

`Symbol` stands for a number, `SymbolArray` for an array of them: an object array, so that indexing, slicing,
reshaping, `roll`, `concatenate`, `sum`, `@` and the like are NumPy's own.  Whatever would need a value (a branch, a
conversion to float) raises `CannotTrace`.
"""

from __future__ import annotations

import math
import types

import numpy as np

from stepnet.engines.numba_engine.compile.graph import BOOLEAN, ELEMENTARY, EVALUATE, Graph


class CannotTrace(Exception):
    """The function does something that straight-line code cannot."""


class Symbol:
    """A node of a graph that behaves like a float (or, if it is a comparison, like a boolean)."""

    __slots__ = ("graph", "number")
    __array_priority__ = 100

    def __init__(self, graph: Graph, number: int):
        self.graph, self.number = graph, number

    @property
    def is_boolean(self) -> bool:
        node = self.graph.nodes[self.number]
        return node[0] in BOOLEAN or (node[0] == "const" and isinstance(node[1], bool))

    def __bool__(self):
        raise CannotTrace("it branches on data")

    def __float__(self):
        raise CannotTrace("it turns a traced number into a float")

    __int__ = __index__ = __complex__ = __float__

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return apply_ufunc(ufunc, method, inputs, options)

    def __repr__(self):
        return f"<symbol {self.graph.nodes[self.number]}>"

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


def _operand(graph: Graph, value) -> int:
    if isinstance(value, Symbol):
        return value.number
    if isinstance(value, (bool, np.bool_, int, float, np.integer, np.floating)):
        return graph.constant(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _operand(graph, value[()])
    raise CannotTrace(f"it mixes traced numbers with {type(value).__name__}")


def apply(operation: str, *values):
    """An operation on symbols and numbers; on numbers alone it is carried out."""
    graph = next((value.graph for value in values if isinstance(value, Symbol)), None)
    if graph is None:
        return EVALUATE[operation](*values)
    return Symbol(graph, graph.apply(operation, *(_operand(graph, value) for value in values)))


def _binary(operation: str, is_reflected: bool = False):
    def method(self, other):
        if isinstance(other, np.ndarray) and other.ndim > 0:
            return NotImplemented
        return apply(operation, other, self) if is_reflected else apply(operation, self, other)

    return method


_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "mod": "mod"}
for _name, _operation in _OPERATORS.items():
    setattr(Symbol, f"__{_name}__", _binary(_operation))
    setattr(Symbol, f"__r{_name}__", _binary(_operation, is_reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Symbol, f"__{_name}__", _binary(_name))
Symbol.__hash__ = object.__hash__
Symbol.__and__ = Symbol.__rand__ = _binary("and")
Symbol.__or__ = Symbol.__ror__ = _binary("or")
Symbol.__invert__ = lambda self: apply("not", self)
Symbol.__neg__ = lambda self: apply("neg", self)
Symbol.__pos__ = lambda self: self
Symbol.__abs__ = lambda self: apply("abs", self)
Symbol.__floordiv__ = lambda self, other: apply("floor", apply("div", self, other))
Symbol.__rfloordiv__ = lambda self, other: apply("floor", apply("div", other, self))

UFUNCS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.negative: "neg", np.power: "pow",
    np.float_power: "pow", np.remainder: "mod", np.absolute: "abs", np.fabs: "abs", np.sign: "sign", np.maximum: "max",
    np.minimum: "min", np.fmax: "max", np.fmin: "min", np.arctan2: "arctan2", np.hypot: "hypot", np.floor: "floor",
    np.ceil: "ceil", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge", np.equal: "eq",
    np.not_equal: "ne", np.logical_and: "and", np.logical_or: "or", np.logical_not: "not", np.bitwise_and: "and",
    np.bitwise_or: "or", np.invert: "not",
    **{getattr(np, name): name for name in ELEMENTARY},
}  # fmt: skip
_DERIVED = {
    np.square: lambda x: apply("mul", x, x),
    np.reciprocal: lambda x: apply("div", 1.0, x),
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.deg2rad: lambda x: apply("mul", x, math.pi / 180),
    np.rad2deg: lambda x: apply("mul", x, 180 / math.pi),
    np.heaviside: lambda x, h: apply("select", apply("lt", x, 0.0), 0.0, apply("select", apply("eq", x, 0.0), h, 1.0)),
    np.floor_divide: lambda x, y: apply("floor", apply("div", x, y)),
    np.logaddexp: lambda x, y: apply("add", apply("max", x, y), apply("log1p", apply("exp", -abs(x - y)))),
}
_ELEMENTWISE = {
    **{ufunc: (lambda *x, operation=operation: apply(operation, *x)) for ufunc, operation in UFUNCS.items()},
    **_DERIVED,
}


def apply_ufunc(ufunc, method: str, inputs, options):
    """A NumPy ufunc on symbols, element by element; `@` runs on NumPy's own object loop."""
    plain = [np.asarray(x, dtype=object) if isinstance(x, SymbolArray) else _boxed(x) for x in inputs]
    out = options.pop("out", None)
    options = {name: value for name, value in options.items() if name not in ("dtype", "casting", "order", "subok")}
    if ufunc is np.matmul and method == "__call__":
        result = np.matmul(*plain)
    elif ufunc not in _ELEMENTWISE or method not in ("__call__", "reduce", "accumulate", "outer"):
        raise CannotTrace(f"it calls np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
    else:
        elementwise = np.frompyfunc(_ELEMENTWISE[ufunc], ufunc.nin, 1)
        call = _reduce if method == "reduce" else getattr(type(elementwise), method)
        result = call(elementwise, *plain, **options)
    if out is not None:
        np.asarray(out[0], dtype=object)[...] = result
        return out[0]
    return _wrapped(result)


def _reduce(operation, x, axis=0, keepdims=False, initial=None, where=True):
    """Fold the slices along one axis, several or all (None)."""
    if where is not True:
        raise CannotTrace("it reduces with a mask")
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % x.ndim)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    shape = tuple(x.shape[i] for i in rest)
    slices = x.transpose(*axes, *rest).reshape(-1, *shape)
    total = initial if isinstance(initial, Symbol) or type(initial) in (int, float) else None
    for part in slices:
        total = part if total is None else operation(_boxed(total), _boxed(part))
    if total is None:
        total = np.zeros(shape)
    if keepdims:
        kept = tuple(1 if i in axes else x.shape[i] for i in range(x.ndim))
        return np.asarray(_boxed(total), dtype=object).reshape(kept)
    return total


def _boxed(x):
    if isinstance(x, Symbol):
        box = np.empty((), dtype=object)
        box[()] = x
        return box
    return x


def _wrapped(result):
    if isinstance(result, np.ndarray) and result.dtype == object:
        return result[()] if result.ndim == 0 else result.view(SymbolArray)
    return result


class SymbolArray(np.ndarray):
    """An object array of symbols and numbers whose ufuncs write nodes."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function, kinds, arguments, keywords):
        own = FUNCTIONS.get(function)
        if own is not None:
            return own(*arguments, **keywords)
        if function in UNTRACEABLE:
            raise CannotTrace(f"it calls np.{function.__name__}")
        return super().__array_function__(function, kinds, arguments, keywords)

    def max(self, axis=None, **_):
        return np.maximum.reduce(self.ravel() if axis is None else self, axis=axis or 0)

    def min(self, axis=None, **_):
        return np.minimum.reduce(self.ravel() if axis is None else self, axis=axis or 0)

    def clip(self, low=None, high=None, **_):
        return clip(self, low, high)

    def mean(self, axis=None, **_):
        count = self.size if axis is None else self.shape[axis]
        return self.sum(axis=axis) / count

    def astype(self, dtype, *_, **__):
        if np.dtype(dtype).kind not in "fO":
            raise CannotTrace(f"it turns traced numbers into {np.dtype(dtype)}")
        return self.copy()

    @property
    def real(self):
        return self

    def __bool__(self):
        raise CannotTrace("it branches on data")


def where(condition, *choices):
    """np.where with three arguments."""
    if len(choices) != 2:
        raise CannotTrace("it asks np.where for indices")
    plain = [np.asarray(x, dtype=object) if isinstance(x, SymbolArray) else _boxed(x) for x in (condition, *choices)]
    return _wrapped(np.frompyfunc(lambda c, x, y: apply("select", c, x, y), 3, 1)(*plain))


def clip(x, low=None, high=None, **_):
    """np.clip: min(max(x, low), high)."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def norm(x, ord=None, axis=None, keepdims=False):
    """np.linalg.norm of a vector (2, 1 or infinity) or over one axis."""
    x = as_symbols(x)
    if axis is None:
        if x.ndim > 1 and ord not in (None, "fro"):
            raise CannotTrace("it asks for a matrix norm")
        x, axis = x.ravel(), 0
    if ord in (None, 2, "fro"):
        return np.sqrt(np.add.reduce(x * x, axis=axis, keepdims=keepdims))
    if ord == 1:
        return np.add.reduce(abs(x), axis=axis, keepdims=keepdims)
    if ord == np.inf:
        return np.maximum.reduce(abs(x), axis=axis, keepdims=keepdims)
    raise CannotTrace(f"it asks for the norm of order {ord}")


def as_symbols(values) -> SymbolArray:
    """Anything array-like as an object array that traces."""
    if isinstance(values, SymbolArray):
        return values
    if isinstance(values, Symbol):
        return _boxed(values).view(SymbolArray)
    return np.array(values, dtype=object).view(SymbolArray)


def _like(fill):
    def create(prototype, dtype=None, **_):
        return _created(np.shape(prototype), fill)

    return create


def _created(shape, fill, dtype=None, **_):
    array = np.empty(shape, dtype=object)
    array[...] = fill
    return array.view(SymbolArray)


def _extreme(operation):
    def reduce(x, axis=None, **_):
        x = as_symbols(x)
        return operation.reduce(x.ravel() if axis is None else x, axis=axis or 0)

    return reduce


def _mean(x, axis=None, **_):
    return as_symbols(x).mean(axis=axis)


def _dot(x, y, **_):
    return _wrapped(np.dot(np.asarray(as_symbols(x), dtype=object), np.asarray(as_symbols(y), dtype=object)))


def _outer(x, y, **_):
    return as_symbols(x).ravel()[:, None] * as_symbols(y).ravel()[None, :]


def _cross(x, y, **_):
    x, y = as_symbols(x), as_symbols(y)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise CannotTrace("it calls np.cross in two dimensions")
    a, b = np.moveaxis(x, -1, 0), np.moveaxis(y, -1, 0)
    return np.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], axis=-1)


FUNCTIONS = {
    np.where: where, np.clip: clip, np.linalg.norm: norm, np.mean: _mean, np.dot: _dot, np.outer: _outer,
    np.inner: lambda x, y: np.add.reduce(as_symbols(x) * as_symbols(y), axis=-1),
    np.vdot: lambda x, y: np.add.reduce(as_symbols(x).ravel() * as_symbols(y).ravel()),
    np.cross: _cross, np.max: _extreme(np.maximum), np.min: _extreme(np.minimum), np.amax: _extreme(np.maximum),
    np.amin: _extreme(np.minimum), np.zeros_like: _like(0.0), np.ones_like: _like(1.0), np.empty_like: _like(None),
    np.full_like: lambda prototype, fill, **_: _created(np.shape(prototype), fill), np.real: lambda x: x,
}  # fmt: skip
UNTRACEABLE = frozenset((
    np.sort, np.argsort, np.argmax, np.argmin, np.nonzero, np.searchsorted, np.interp, np.fft.fft, np.fft.ifft,
    np.linalg.solve, np.linalg.inv, np.linalg.eig, np.linalg.det, np.isnan, np.isfinite, np.any, np.all, np.round,
    np.median, np.std, np.var, np.gradient, np.convolve, np.piecewise, np.select,
))  # fmt: skip


class _Shim(types.ModuleType):
    """A module with some of its functions replaced, for the globals of a function being traced."""

    def __init__(self, module, replaced: dict):
        super().__init__(module.__name__)
        self.__dict__.update(replaced)
        self.__wrapped__ = module

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)


def _array(values, dtype=None, **_):
    array = np.array(values, dtype=object)
    return array.view(SymbolArray)


NUMPY = _Shim(np, {
    "array": _array, "asarray": _array, "zeros": lambda shape, *_, **__: _created(shape, 0.0),
    "ones": lambda shape, *_, **__: _created(shape, 1.0), "empty": lambda shape, *_, **__: _created(shape, None),
    "full": lambda shape, fill, *_, **__: _created(shape, fill),
    **{function.__name__: own for function, own in FUNCTIONS.items() if function is not np.linalg.norm},
    "linalg": _Shim(np.linalg, {"norm": norm}),
    **{name: getattr(np, name) for name in ("concatenate", "stack", "hstack", "vstack", "roll", "diff")},
})  # fmt: skip
_MATH_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh",
               "acosh": "arccosh", "atanh": "arctanh", "fabs": "abs"}  # fmt: skip


def _math_function(name: str, operation: str):
    plain = getattr(math, name)
    return lambda *x: apply(operation, *x) if any(isinstance(v, Symbol) for v in x) else plain(*x)


MATH = _Shim(math, {
    name: _math_function(name, _MATH_NAMES.get(name, name))
    for name in dir(math)
    if _MATH_NAMES.get(name, name) in EVALUATE
})  # fmt: skip
