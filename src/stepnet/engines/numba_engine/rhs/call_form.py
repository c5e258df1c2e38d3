"""How to call a user's right-hand side, found from its signature and one trial call."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from types import CodeType, FunctionType, MethodType

import numpy as np

from stepnet.c_functions import check_function

IN_PLACE_NAMES = ("dy", "out")
UNSET = {
    8: 0x7FF8_0000_DEAD_BEEF,
    4: 0x7FC0_DEAD,
}  # NaNs that no arithmetic produces: entries that still have this value were not set


@dataclass(frozen=True)
class CallForm:
    """A Python right-hand side: the shapes of its inputs and output, and whether it returns or fills its result.

    `inputs` are the shapes of the states it takes (one, or q and p), which are contiguous in memory.  `label` is its
    name in error messages.
    """

    function: Callable
    args: tuple
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    dtype: np.dtype
    label: str
    is_in_place: bool
    takes_parameters: bool

    @property
    def n_in(self) -> int:
        return sum(prod(shape) for shape in self.inputs)

    @property
    def n_out(self) -> int:
        return prod(self.output)

    @property
    def wanted(self) -> str:
        """What it should return, for error messages."""
        return f"an array of shape {self.output}, as the state has" if self.output else "one number"


def find_call_form(function, args: tuple, inputs, output, dtype, label: str) -> CallForm:
    """Recognise `f(t, y, *args)` and the in-place `f(t, y, dy, p)`, whose third parameter is called `dy` or `out`."""
    check_function(label, function)
    if not callable(function):
        raise TypeError(f"`{label}` must be a C function whose address is known, found {function!r:.80}")
    names = list_parameter_names(function)
    position = 1 + len(inputs)
    is_in_place = len(names) > position and names[position] in IN_PLACE_NAMES
    return CallForm(
        function, args, tuple(inputs), output, np.dtype(dtype), label, is_in_place, len(names) > position + 1
    )


def list_parameter_names(function) -> list[str]:
    """The names of the positional parameters of a function, as far as they are known."""
    function = getattr(function, "py_func", function)
    if isinstance(function, FunctionType):
        return list(function.__code__.co_varnames[: function.__code__.co_argcount])
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def list_plain_functions(function, seen: set | None = None) -> Iterator[FunctionType]:
    """A right-hand side and the functions it names, in its closure, its module or its object."""
    seen = set() if seen is None else seen
    function = getattr(function, "py_func", function)
    if isinstance(function, partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__")
    if not isinstance(function, FunctionType) or function in seen:
        return
    seen.add(function)
    yield function
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    for value in (*named, *(cell.cell_contents for cell in function.__closure__ or ())):
        if isinstance(value, (FunctionType, MethodType, partial)) or hasattr(value, "py_func"):
            yield from list_plain_functions(value, seen)


def handles_exceptions(function) -> bool:
    """Whether it has an `except` or `finally`: compiled code continues with NaN where Python raises."""
    return any(_has_handler(plain.__code__) for plain in list_plain_functions(function))


def _has_handler(code: CodeType) -> bool:
    """Whether the bytecode has exception handlers other than those of `with`."""
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names.count("PUSH_EXC_INFO") > names.count("WITH_EXCEPT_START") or any(map(_has_handler, inner))


def wrap_python_call(form: CallForm, parameters: np.ndarray):
    """A function `evaluate(t, y, dy)` on flat arrays that calls the user's Python function and checks its result."""
    function = getattr(form.function, "py_func", form.function)

    def evaluate(t, y, dy):
        if form.is_in_place:
            extra = (parameters,) if form.takes_parameters else ()
            function(t, *split(form, y), _reshape(dy, form.output, True), *extra)
        else:
            dy[...] = np.ravel(validate_result(form, function(t, *split(form, y), *form.args)))

    return evaluate


def split(form: CallForm, y: np.ndarray) -> list:
    """The states that the function takes, as parts of the flat state."""
    if len(form.inputs) == 1:
        return [_reshape(y, form.inputs[0], form.is_in_place)]
    pieces, offset = [], 0
    for shape in form.inputs:
        pieces.append(_reshape(y[offset : offset + prod(shape)], shape, form.is_in_place))
        offset += prod(shape)
    return pieces


def _reshape(flat, shape, is_in_place: bool):
    return flat if len(shape) == 1 or (shape == () and is_in_place) else flat.reshape(shape)[()]


def validate_result(form: CallForm, result) -> np.ndarray:
    """The result as an array of the state's dtype and shape; raises an explanatory error if that fails."""
    if result is None:
        raise TypeError(
            f"`{form.label}` returned None; return {form.wanted}, or name the third parameter `dy` and fill it in place"
        )
    try:
        array = np.asarray(result)
        is_number = array.dtype.kind in "biufc"
    except ValueError:  # a ragged list
        is_number = False
    if not is_number:
        raise TypeError(f"`{form.label}` must return numbers, found {type(result).__name__}: {result!r:.80}")
    if array.dtype.kind == "c" and form.dtype.kind != "c":
        raise TypeError(
            f"`{form.label}` returned complex slopes for a real state; give a complex `y0`, as in `y0 + 0j`"
        )
    if array.shape != form.output and array.size == form.n_out and form.n_out == 1:
        array = array.reshape(form.output)
    if array.shape != form.output:
        raise ValueError(f"`{form.label}` must return {form.wanted}, found shape {array.shape}")
    return array


def try_once(form: CallForm, parameters: np.ndarray | None, t: float, y: np.ndarray):
    """Call the user's function once in Python; returns its result and the flat slopes.

    Exceptions are not caught, so that the user's own traceback is shown.
    """
    function = getattr(form.function, "py_func", form.function)
    y = y.copy()
    y.flags.writeable = False
    if not form.is_in_place:
        result = function(t, *split(form, y), *form.args)
        return result, validate_result(form, result).astype(form.dtype).ravel()
    dy = np.empty(form.n_out, form.dtype)
    width = dy.real.dtype.itemsize
    bits = dy.view({8: np.uint64, 4: np.uint32}[width])
    bits[...] = UNSET[width]
    wrap_python_call(form, parameters)(t, y, dy)
    unset = np.flatnonzero(bits == UNSET[width]) // (dy.itemsize // width)
    if unset.size:
        raise ValueError(
            f"`{form.label}` did not set `dy[{unset[0]}]` at t = {t:g}; "
            f"an in-place right-hand side must fill every entry"
        )
    return None, dy
