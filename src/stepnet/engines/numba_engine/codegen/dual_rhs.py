"""A right-hand side on dual numbers: derivatives of the user's own function, including its loops and branches."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaWarning
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic, overload
from numba.np.numpy_support import is_nonelike

from stepnet.engines.numba_engine.codegen.dual_numbers import DUAL, TANGENTS, WIDTH, DualType, make_dual, register
from stepnet.engines.numba_engine.codegen.numba_compilation import OPTIONS, _make_body
from stepnet.engines.numba_engine.codegen.owned_code import own_code
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock
from stepnet.engines.numba_engine.rhs.call_form import CallForm
from stepnet.engines.numba_engine.rhs.tuple_returns import rewrite_returns
from stepnet.engines.numba_engine.tracing.function_copies import select_globals

INNER_OPTIONS = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # duals have no Python counterpart


# ---- copies of functions in which NumPy creates arrays of duals --------------------------------------------------


def compile_on_duals(function, seen: dict) -> Dispatcher:
    """A compiled copy of a function, and of the functions it calls, in which NumPy creates arrays of duals."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        raise TypeError(f"it is not a plain Python function but {type(function).__name__}")
    if id(function) in seen:
        return seen[id(function)]
    namespace = select_globals(function)
    cells = tuple(CellType(_replace(cell.cell_contents, seen)) for cell in function.__closure__ or ())
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    dispatcher = seen[id(function)] = njit(**INNER_OPTIONS)(copy)
    for name in set(function.__code__.co_names) & namespace.keys():
        namespace[name] = _replace(namespace[name], seen)
    return dispatcher


def _replace(value, seen: dict):
    is_own = isinstance(value, FunctionType) and value.__module__.split(".")[0] not in ("numpy", "numba")
    if is_own or isinstance(value, Dispatcher):
        return compile_on_duals(value, seen)
    return _collect_replacements().get(id(value), value)


@cache
def _collect_replacements() -> dict:
    """NumPy with its array-creating functions replaced, and these functions themselves, by the id of the originals."""
    own: dict[Any, Any] = {np.array: _make_array, np.asarray: _make_array, np.full: _make_full}
    own |= {function: _make_filled(function) for function in (np.zeros, np.ones, np.empty)}
    module = ModuleType("numpy_of_duals")
    names = {function.__name__: replacement for function, replacement in own.items()}
    vars(module).update(
        vars(np) | names | {"__name__": module.__name__}
    )  # under its old name Numba would rewrite np.array
    return {id(np): module, **{id(function): replacement for function, replacement in own.items()}}


def _is_real(dtype) -> bool:
    """Whether NumPy would create floats: no dtype, `float` or one of NumPy's float types."""
    if is_nonelike(dtype) or getattr(dtype, "typing_key", None) is float:
        return True
    return isinstance(parse_dtype(dtype), types.Float)


def _make_filled(function):
    def make(shape, dtype=None):
        """Replaces np.zeros, np.ones or np.empty in compiled code."""

    @overload(make)
    def make_duals(shape, dtype=None):
        if _is_real(dtype):
            return lambda shape, dtype=None: function(shape, DUAL)
        return lambda shape, dtype=None: function(shape, dtype)

    return make


def _make_full(shape, fill_value, dtype=None):
    """Replaces np.full in compiled code."""


def _make_array(values, dtype=None):
    """Replaces np.array in compiled code."""


@overload(_make_full)
def _fill_with_duals(shape, fill_value, dtype=None):
    if _is_real(dtype) and not isinstance(fill_value, types.Integer):
        return lambda shape, fill_value, dtype=None: np.full(shape, fill_value, DUAL)
    return lambda shape, fill_value, dtype=None: np.full(shape, fill_value, dtype)


@overload(_make_array)
def _make_array_of_duals(values, dtype=None):
    is_list = isinstance(values, (types.List, types.UniTuple))
    if not (is_list and _is_real(dtype) and isinstance(values.dtype, (DualType, types.Float))):
        return lambda values, dtype=None: np.array(values, dtype)

    def make(values, dtype=None):
        out = np.empty(len(values), DUAL)
        for i in range(len(values)):
            out[i] = values[i]
        return out

    return make


# ---- a right-hand side on duals ----------------------------------------------------------------------------------


def compile_dual(form: CallForm, block: ArgumentBlock, result, are_all_dual: bool = False) -> CFunc:
    """Compile the derivative of a right-hand side that returned `result` in Python; raises whatever Numba raises.

    int32 jvp8(double t, const double *y, const double *y_dot, double *out, const double *p, int64 n)

    `y_dot` is (n, 8), `out` becomes (df/dy) y_dot, and the return value is 1 if the right-hand side raised.  If
    `are_all_dual`, `y` holds time, state and parameters in a row, with as many rows of `y_dot`; `t`, `p` are not read.
    """
    register()
    function = getattr(form.function, "py_func", form.function)
    with own_code(), _allow_duals_beside_arrays(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        rewritten = rewrite_returns(function)
        if rewritten is not function and not form.is_in_place:
            try:
                return _compile(rewritten, form, block, tuple(np.ravel(result)), are_all_dual)
            except Exception:  # e.g. it returns an array elsewhere: compile it unchanged
                pass
        return _compile(function, form, block, result, are_all_dual)


@contextmanager
def _allow_duals_beside_arrays():
    """While these functions compile, Numba lets duals be combined with arrays, as it does with numbers."""
    plain = types.number_domain
    types.number_domain = plain | {DUAL}
    try:
        yield
    finally:
        types.number_domain = plain


def _compile(function, form: CallForm, block: ArgumentBlock, result, are_all_dual: bool) -> CFunc:
    seen: dict = {}
    args = tuple(compile_on_duals(value, seen) if isinstance(value, FunctionType) else value for value in block.args)
    body = njit(**INNER_OPTIONS)(_make_body(compile_on_duals(function, seen), form, block._replace(args=args), result))
    states, parameters = types.Array(DUAL, 1, "C"), types.Array(types.float64, 1, "C")
    others = (DUAL, states) if are_all_dual else (types.float64, parameters)
    signature = types.none(others[0], states, states, others[1])
    body.compile(signature)
    n_in, n_out, n_parameters = form.n_in, form.n_out, block.values.size

    def jvp8(t, y, y_dot, out, p, n):
        state, slopes = np.empty(n_in, DUAL), np.empty(n_out, DUAL)
        for i in range(n_in):
            state[i] = _join(y, y_dot, i)
        status = _call_guarded(body, t, state, slopes, carray(p, (n_parameters,)))
        for i in range(n_out):
            _store_tangents(slopes[i], out, i)
        return status

    def jvp8_of_all(t, y, y_dot, out, p, n):
        inputs, slopes = np.empty(n_in + n_parameters, DUAL), np.empty(n_out, DUAL)
        for i in range(n_in + n_parameters):
            inputs[i] = _join(y, y_dot, 1 + i)
        status = _call_guarded(body, _join(y, y_dot, 0), inputs[:n_in], slopes, inputs[n_in:])
        for i in range(n_out):
            _store_tangents(slopes[i], out, i)
        return status

    reals = types.CPointer(types.float64)
    arguments = (types.float64, reals, reals, reals, reals, types.int64)
    return cfunc(types.int32(*arguments), error_model="numpy", nogil=True)(jvp8_of_all if are_all_dual else jvp8)


@intrinsic
def _join(typing_context, y, y_dot, i):
    """The dual number of y[i] and the row y_dot[i]."""

    def generate(context, builder, signature, arguments):
        y, y_dot, i = arguments
        return make_dual(builder, builder.load(builder.gep(y, [i])), builder.load(_row(builder, y_dot, i), align=8))

    return DUAL(y, y_dot, types.intp), generate


@intrinsic
def _store_tangents(typing_context, x, out, i):
    """out[i] = x_dot."""

    def generate(context, builder, signature, arguments):
        x, out, i = arguments
        builder.store(builder.extract_value(x, 1), _row(builder, out, i), align=8)
        return context.get_dummy_value()

    return types.none(x, out, types.intp), generate


def _row(builder, matrix, i):
    pointer = builder.gep(matrix, [builder.mul(i, i.type(WIDTH))])
    return builder.bitcast(pointer, TANGENTS.as_pointer())


@intrinsic
def _call_guarded(typing_context, function, t, y, dy, p):
    """Call a compiled function; returns 1 if it raised, instead of ignoring the exception."""
    (compiled,) = function.dispatcher.overloads.values()

    def generate(context, builder, signature, arguments):
        (overload,) = signature.args[0].dispatcher.overloads.values()
        context.add_linking_libs((overload.library,))
        inner = types.none(*signature.args[1:])
        status, _ = context.call_internal_no_propagate(builder, overload.fndesc, inner, arguments[1:])
        return builder.zext(status.is_error, ir.IntType(32))

    return types.int32(function, *compiled.signature.args), generate
