"""Products of df/dy with vectors from either side: (df/dy) v by pushforwards, w (df/dy) by pullbacks.

C functions have the signatures of `jvp` and `vjp` in `machine_code`, and of `jvp8` in `dual_rhs`.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from stepnet.engines.numba_engine.array_tracing.loops import Loops
from stepnet.engines.numba_engine.codegen.dual_numbers import WIDTH
from stepnet.engines.numba_engine.codegen.dual_rhs import compile_dual
from stepnet.engines.numba_engine.codegen.loop_code import compile_trace
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock, are_floats, as_inputs, replace_values
from stepnet.engines.numba_engine.rhs.call_form import CallForm, wrap_python_call
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.comparison import N_CHECKS
from stepnet.engines.numba_engine.rhs.ladder import find_c_address
from stepnet.engines.numba_engine.tracing.function_key import reach
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace

_REAL, _REALS, _COUNT = ctypes.c_double, ctypes.c_void_p, ctypes.c_int64
JVP = ctypes.CFUNCTYPE(ctypes.c_int32, _REAL, _REALS, _REALS, _REAL, _REALS, _REALS, _REALS, _COUNT)
JVP8 = ctypes.CFUNCTYPE(ctypes.c_int32, _REAL, _REALS, _REALS, _REALS, _REALS, _COUNT)
VJP = ctypes.CFUNCTYPE(ctypes.c_int32, _REAL, *[_REALS] * 6, _COUNT)

_kept: OrderedDict = OrderedDict()
_MOST_KEPT = 256


@dataclass(frozen=True)
class Pushforward:
    """V -> (df/dy) V: `columns(t, y, V)` takes V of shape (n, k) for any k.

    `address` is its C function, `p` its parameter block and `width` the number of columns it takes at once: 1 with the
    signature of `jvp`, 8 with that of `jvp8`, 0 if there is no C function.
    """

    rung: str
    columns: Callable
    address: int = 0
    width: int = 0
    p: np.ndarray | None = None
    keep_alive: object = field(default=None, repr=False)


@dataclass(frozen=True)
class Pullback:
    """w -> w (df/dy): `product(t, y, w)` on flat arrays, and its source."""

    rung: str
    product: Callable


def wrap_c_slopes(code, n_out: int, p: np.ndarray) -> Callable:
    """A function (t, y) that calls the code of a right-hand side."""
    call = SIGNATURE(code.address)

    def slopes(t, y, keep_alive=code):
        y, dy = np.ascontiguousarray(y, float), np.empty(n_out)
        call(t, y.ctypes.data, dy.ctypes.data, p.ctypes.data, y.size)
        return dy

    return slopes


def build_traced_pushforward(form: CallForm, block: ArgumentBlock, tracing: Trace | Loops) -> Pushforward:
    """The pushforward by the code of a trace, one column at a time."""
    key = ("traced", *_key(form, block), block.frozen)
    code = _recall_or_make(key, lambda: compile_trace(tracing, "jvp"))
    return wrap_c_pushforward("traced", form, block, code.address, code)


def wrap_c_pushforward(rung: str, form: CallForm, block: ArgumentBlock, address: int, keep_alive) -> Pushforward:
    function, p, p_dot = JVP(address), block.values, np.zeros(block.values.size)

    def columns(t, y, V, keep_alive=keep_alive):
        directions, out = np.ascontiguousarray(V.T), np.empty((V.shape[1], form.n_out))
        for v, product in zip(directions, out, strict=True):
            pointers = (v.ctypes.data, p_dot.ctypes.data, product.ctypes.data)
            if function(t, y.ctypes.data, p.ctypes.data, 0.0, *pointers, y.size) != 0:
                _replay(form, block, t, y)
        return out.T

    return Pushforward(rung, columns, address, 1, p, keep_alive)


def build_dual_pushforward(form: CallForm, block: ArgumentBlock, result) -> Pushforward:
    """The pushforward by dual numbers, eight columns at a time; the right-hand side returned `result` in Python."""
    key = ("dual", *_key(form, block), type(result).__name__, np.shape(result))
    code = _recall_or_make(key, lambda: compile_dual(form, block, result))
    function, p = JVP8(code.address), block.values

    def columns(t, y, V, keep_alive=code):
        out = np.empty((form.n_out, V.shape[1]))
        for start in range(0, V.shape[1], WIDTH):
            some = V[:, start : start + WIDTH]
            directions, products = np.zeros((form.n_in, WIDTH)), np.empty((form.n_out, WIDTH))
            directions[:, : some.shape[1]] = some
            pointers = (y.ctypes.data, directions.ctypes.data, products.ctypes.data, p.ctypes.data)
            if function(t, *pointers, y.size) != 0:
                _replay(form, block, t, y)
            out[:, start : start + WIDTH] = products[:, : some.shape[1]]
        return out

    return Pushforward("dual", columns, code.address, WIDTH, p, code)


def build_dual_matrix(form: CallForm, block: ArgumentBlock, result) -> Callable:
    """`matrix(t, y)`: derivatives with respect to time, state and parameters in a row, by dual numbers."""
    inputs = as_inputs(block)
    key = ("dual inputs", *_key(form, inputs), type(result).__name__, np.shape(result))
    code = _recall_or_make(key, lambda: compile_dual(form, inputs, result, are_all_dual=True))
    function, size = JVP8(code.address), 1 + form.n_in + block.values.size

    def matrix(t, y, keep_alive=code):
        inputs, out = np.concatenate(([t], y, block.values)), np.empty((form.n_out, size))
        for start in range(0, size, WIDTH):
            directions, products = np.eye(size, WIDTH, -start), np.empty((form.n_out, WIDTH))
            pointers = (inputs.ctypes.data, directions.ctypes.data, products.ctypes.data, 0)
            if function(t, *pointers, y.size) != 0:
                _replay(form, block, t, y)
            out[:, start : start + WIDTH] = products[:, : size - start]
        return out

    return matrix


def build_difference_matrix(form: CallForm, block: ArgumentBlock) -> Callable:
    """The same by central differences, accurate to about ten digits at best."""
    n, step = form.n_in, np.finfo(float).eps ** (1 / 3)

    def slopes(inputs):
        out = np.empty(form.n_out)
        moved = replace(form, args=replace_values(block, inputs[1 + n :]))
        wrap_python_call(moved, inputs[1 + n :])(inputs[0], inputs[1 : 1 + n], out)
        return out

    def matrix(t, y):
        inputs = np.concatenate(([t], y, block.values))
        out = np.zeros((form.n_out, inputs.size))
        scales = np.concatenate(([max(1.0, abs(t))], np.full(n, np.abs(y).max(initial=1.0)), np.abs(block.values)))
        for j in np.flatnonzero(np.concatenate((np.ones(1 + n, bool), are_floats(block)))):
            h = np.zeros(inputs.size)
            h[j] = step * max(1.0, scales[j])
            out[:, j] = (slopes(inputs + h) - slopes(inputs - h)) / (2 * h[j])
        return out

    return matrix


def build_difference_pushforward(form: CallForm, block: ArgumentBlock) -> Pushforward:
    """The pushforward by central differences, (f(y + hv) - f(y - hv)) / 2h: about ten digits at best."""
    evaluate, relative_step = wrap_python_call(form, block.values), np.finfo(float).eps ** (1 / 3)

    def columns(t, y, V):
        out, plus, minus = np.zeros((form.n_out, V.shape[1])), np.empty(form.n_out), np.empty(form.n_out)
        for k, v in enumerate(V.T):
            if np.any(v):
                h = relative_step * max(1.0, np.max(np.abs(y))) / np.max(np.abs(v))
                evaluate(t, y + h * v, plus)
                evaluate(t, y - h * v, minus)
                out[:, k] = (plus - minus) / (2 * h)
        return out

    return Pushforward("differences", columns)


def wrap_user_pushforward(form: CallForm, block: ArgumentBlock, jvp) -> Pushforward:
    """The pushforward by the user's `jvp(t, y, v, *args)`, or a C function with the signature of `jvp`."""
    address = find_c_address(jvp)
    if address is not None:
        return wrap_c_pushforward("user", form, block, address, jvp)

    def columns(t, y, V):
        out = np.empty((form.n_out, V.shape[1]))
        for k, v in enumerate(V.T):
            product = np.asarray(jvp(t, as_state(form, y), as_state(form, v), *form.args))
            out[:, k] = _validate_product("jvp", product, form.n_out).ravel()
        return out

    return Pushforward("user", columns)


def build_traced_pullback(form: CallForm, block: ArgumentBlock, tracing: Trace | Loops) -> Pullback:
    """The pullback by the code of a trace, which is compiled at first use."""
    key = ("pullback", *_key(form, block), block.frozen)

    def product(t, y, w):
        code = _recall_or_make(key, lambda: compile_trace(tracing, "vjp"))  # kept alive until it has run
        return _wrap_c_pullback(form, block, code.address, t, y, w)

    return Pullback("traced", product)


def wrap_user_pullback(form: CallForm, block: ArgumentBlock, vjp) -> Pullback:
    """The pullback by the user's `vjp(t, y, w, *args)`, or a C function with the signature of `vjp`."""
    address = find_c_address(vjp)
    if address is not None:
        return Pullback("user", lambda t, y, w, keep_alive=vjp: _wrap_c_pullback(form, block, address, t, y, w))

    def product(t, y, w):
        found = np.asarray(vjp(t, as_state(form, y), w.reshape(form.output)[()], *form.args))
        return _validate_product("vjp", found, form.n_in).ravel()

    return Pullback("user", product)


def _wrap_c_pullback(
    form: CallForm, block: ArgumentBlock, address: int, t: float, y: np.ndarray, w: np.ndarray
) -> np.ndarray:
    t_bar, y_bar, p_bar = np.zeros(1), np.zeros(form.n_in), np.zeros(block.values.size)
    pointers = (array.ctypes.data for array in (y, block.values, w, t_bar, y_bar, p_bar))
    if VJP(address)(t, *pointers, y.size) != 0:
        _replay(form, block, t, y)
    return y_bar


def _validate_product(name: str, found: np.ndarray, n: int) -> np.ndarray:
    if found.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must return {n} numbers, found {type(found[()]).__name__}")
    if found.size != n:
        raise ValueError(f"`{name}` must return {n} numbers, found an array of shape {found.shape}")
    return found


def _key(form: CallForm, block: ArgumentBlock) -> tuple:
    """What machine code depends on: the function, and the shapes and types of its arguments."""
    reached = reach(form.function, block.constants)
    if reached.opaque:
        raise CannotTrace(reached.opaque)
    return reached.key, form.inputs, form.output, form.is_in_place, block.slots


def _recall_or_make(key: tuple, build: Callable):
    """Machine code built earlier in this process, or now; freed when neither this cache nor a caller holds it."""
    code = _kept.get(key)
    if code is None:
        code = _kept[key] = build()
        if len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return code


def as_state(form: CallForm, y: np.ndarray):
    """The flat state in the form that the user's functions take."""
    return y.reshape(form.inputs[0])[()] if len(form.inputs) == 1 else y


def _replay(form: CallForm, block: ArgumentBlock, t: float, y: np.ndarray):
    """Run the Python original where its compiled copy raised, to show the user's own exception."""
    wrap_python_call(form, block.values)(t, y, np.empty(form.n_out))
    raise RuntimeError(f"the derivative of `{form.label}` raised at t = {t:g}, though `{form.label}` itself does not")


def choose_points_near(y: np.ndarray):
    """Points near y at which to try a function."""
    generator = np.random.default_rng(0)
    return (y + 0.1 * (np.abs(y) + 0.1) * generator.standard_normal(y.size) for _ in range(N_CHECKS))
