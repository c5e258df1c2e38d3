"""A right-hand side compiled by Numba to a C function.

Its signature is `int32 f(double t, const T *y, T *dy, const double *p, int64 n)`; T is double, float or complex, as
for the state.
"""

from __future__ import annotations

import warnings
from itertools import count
from types import FunctionType, ModuleType

import numpy as np
from llvmlite import ir
from numba import jit, njit, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaWarning
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from stepnet.engines.numba_engine.codegen.integer_overflow import (
    MayOverflow,
    collect_annotations,
    require_small_integers,
)
from stepnet.engines.numba_engine.codegen.owned_code import own_code
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock
from stepnet.engines.numba_engine.rhs.call_form import CallForm, handles_exceptions
from stepnet.engines.numba_engine.rhs.tuple_returns import rewrite_returns
from stepnet.engines.numba_engine.tracing.function_copies import fill, make_blank_copy
from stepnet.engines.numba_engine.tracing.known_libraries import is_library

OPTIONS = {
    "error_model": "numpy", "boundscheck": True, "fastmath": {"contract"}, "nogil": True, "forceinline": True,
    "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip


LONGEST_TUPLE = 64  # stored entry by entry, which is not needed for long tuples of one type


def compile_native(form: CallForm, block: ArgumentBlock, result) -> NativeCode:
    """Compile a right-hand side that returned `result` in Python; raises whatever Numba raises.

    Kernels call the `.address` of the returned object.
    """
    if handles_exceptions(form.function):
        raise TypeError("it handles exceptions, and compiled math functions return NaN where Python raises")
    with own_code(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        function = form.function.py_func if isinstance(form.function, Dispatcher) else form.function
        rewritten = rewrite_returns(function)
        if rewritten is not function and not form.is_in_place and form.n_out <= LONGEST_TUPLE:
            try:
                return _compile(rewritten, form, block, tuple(np.ravel(result)))
            except MayOverflow:
                raise
            except Exception:  # e.g. it returns an array elsewhere: compile it unchanged
                pass
        return _compile(function, form, block, result)


def _compile(function, form: CallForm, block: ArgumentBlock, result) -> NativeCode:
    seen: dict[int, object] = {}
    body = njit(**OPTIONS)(_make_body(_uncompile(function, seen), form, block, result, seen))
    scalar = from_dtype(form.dtype)
    state, slopes = types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")
    signature = types.none(types.float64, state, slopes, types.Array(types.float64, 1, "C", readonly=True))
    body.compile(signature)
    for annotation in collect_annotations([each for each in seen.values() if isinstance(each, Dispatcher)]):
        require_small_integers(annotation)
    sizes = (form.n_in, form.n_out, block.values.size)
    return NativeCode(body.overloads[signature.args], signature, sizes)


class NativeCode:
    """A C function `.address` around a function compiled for (t, y, dy, p); returns 1 if that function raised.

    It is generated here because Numba's `cfunc` would run its whole pipeline again.
    """

    @global_compiler_lock
    def __init__(self, compiled, signature, sizes: tuple[int, int, int]):
        context = compiled.target_context
        library = context.codegen().create_library("right-hand side")
        module = library.create_ir_module("right-hand side")
        double, whole, status = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
        arrays = signature.args[1:]
        pointers = [context.get_value_type(array.dtype).as_pointer() for array in arrays]
        function = ir.Function(module, ir.FunctionType(status, [double, *pointers, whole]), f"field{next(_numbers)}")
        builder = ir.IRBuilder(function.append_basic_block())
        t, *data, _ = function.args
        views = [_view(context, builder, *each) for each in zip(arrays, data, sizes, strict=True)]
        found, _ = context.call_internal_no_propagate(builder, compiled.fndesc, signature, [t, *views])
        builder.ret(builder.zext(found.is_error, status))
        library.add_ir_module(module)
        library.add_linking_library(compiled.library)
        library.finalize()
        self.address = int(library.get_pointer_to_function(function.name))
        self._machine_code = library.machine_code  # keeps the code alive


_numbers = count()


def _view(context, builder, array, data, size: int):
    """Numba's record of a contiguous array over existing memory."""
    view, whole = make_array(array)(context, builder), context.get_constant(types.intp, size)
    bytes_each = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
    populate_array(view, data, (whole,), (bytes_each,), bytes_each, None)
    return view._getvalue()


def _make_body(inner, form: CallForm, block: ArgumentBlock, result, seen: dict | None = None):
    """A function that unpacks the arguments from `y` and `p`, calls the user's function and stores its result.

    `seen` collects copies of functions.
    """
    seen = {} if seen is None else seen
    states, offset = [], 0
    for shape in form.inputs:
        size = int(np.prod(shape))
        view = "y" if size == form.n_in else f"y[{offset}:{offset + size}]"
        states.append(_write_shaped_view(view, shape, form.is_in_place))
        offset += size
    lines = ["def body(t, y, dy, p):"]
    if form.is_in_place:
        extra = ["p"] if form.takes_parameters else []
        arguments = ["t", *states, _write_shaped_view("dy", form.output, True), *extra]
        lines += [f"    inner({', '.join(arguments)})"]
    else:
        arguments = ["t", *states, *(slot.expression() for slot in block.slots)]
        lines += [f"    out = inner({', '.join(arguments)})", *_write_stores(result, form.output)]
    constants = {f"constants_{i}": _uncompile(value, seen) for i, value in enumerate(block.args)}
    namespace = {"inner": inner, "int64": types.int64, "complex128": np.complex128, **constants}
    exec("\n".join(lines), namespace)  # the text is generated above and contains only numbers of the problem
    return namespace["body"]


def _uncompile(value, seen: dict):
    """A fresh, not yet compiled copy of a function and of all that it calls; other values as they are.

    Numba freezes globals into a jitted function when it is first compiled, so the user's compiled one may be stale.
    """
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, ModuleType) and not is_library(value.__name__):
        module = seen[id(value)] = ModuleType(value.__name__)
        module.__dict__.update(value.__dict__)
        for name, item in value.__dict__.items():
            if isinstance(item, Dispatcher):
                module.__dict__[name] = _uncompile(item, seen)
        return module
    is_jitted = isinstance(value, Dispatcher)
    function = value.py_func if is_jitted else value
    if not isinstance(function, FunctionType) or is_library(function.__module__ or ""):
        return value
    copy = make_blank_copy(function)
    seen[id(value)] = jit(**value.targetoptions)(copy) if is_jitted else njit(**OPTIONS)(copy)
    fill(copy, function, lambda item: _uncompile(item, seen))
    return seen[id(value)]


def _write_shaped_view(view: str, shape: tuple[int, ...], is_in_place: bool) -> str:
    """Source text of a flat view in the shape of the state; a scalar state is a number unless it is an output."""
    if len(shape) == 1 or (shape == () and is_in_place):
        return view
    return f"{view}[0]" if shape == () else f"{view}.reshape({shape})"


def _write_stores(result, shape: tuple[int, ...]) -> list[str]:
    """Source text that copies the result of the user's function to `dy`, checking its length."""
    n = int(np.prod(shape))
    if np.ndim(result) == 0:
        return ["    dy[0] = out"]
    if isinstance(result, tuple) and np.ndim(result) == 1 and n <= LONGEST_TUPLE:
        return [f"    if len(out) != {n}:", "        raise ValueError", *(f"    dy[{i}] = out[{i}]" for i in range(n))]
    if isinstance(result, (list, tuple)) and np.ndim(result) == 1:
        return [
            f"    if len(out) != {n}:",
            "        raise ValueError",
            f"    for i in range({n}):",
            "        dy[i] = out[i]",
        ]
    lines = [f"    if out.shape != {np.shape(result)}:", "        raise ValueError"]
    if np.ndim(result) == 1:
        return [*lines, f"    for i in range({n}):", "        dy[i] = out[i]"]
    return [*lines, "    i = 0", "    for slope in out.flat:", "        dy[i] = slope", "        i += 1"]
