"""The ladder from a right-hand side to a C address: given as one, traced, compiled by Numba, or called in Python."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from stepnet.c_functions import Address, check_function
from stepnet.engines.numba_engine.array_tracing.array_trace import MOST_UNKNOWNS, trace_short_or_loops
from stepnet.engines.numba_engine.array_tracing.loops import Loops
from stepnet.engines.numba_engine.codegen.compiler_facts import CFunc
from stepnet.engines.numba_engine.codegen.loop_code import compile_loops
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock, pack
from stepnet.engines.numba_engine.rhs.call_form import CallForm, find_call_form, try_once, wrap_python_call
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE, Callback
from stepnet.engines.numba_engine.rhs.comparison import Comparison, evaluate_slopes_nearby, gives, strip_jit
from stepnet.engines.numba_engine.tracing.function_key import FunctionKey, reach
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.errors import UnknownName

RUNGS = ("address", "traced", "compiled", "python")  # from fast to slow
MOST_NODES_OF_DERIVATIVES = 20_000

LONGEST_REMEMBERED = 1000  # numbers of a state; for longer ones the key costs more than a new search

_kept: OrderedDict = OrderedDict()
_seen: OrderedDict = OrderedDict()
_MOST_KEPT = 256


class RungLimit(NamedTuple):
    """The first rung that may be tried, and why no faster one."""

    rung: str
    reason: str = ""


ANY = RungLimit("traced")
UNTRACED = RungLimit("compiled", "not traced: refused")


@dataclass(frozen=True)
class PythonOnly:
    """A function that must be called in Python, and why."""

    function: Callable
    reason: str

    def __call__(self, *args):
        return self.function(*args)


@dataclass(frozen=True)
class CompiledRHS:
    """A right-hand side ready for kernels: `address` is a C function, `p` its parameter block.

    `rung` says how the address was obtained and `reason` why not by a faster rung.  `replay(t, y)` runs the Python
    original, to show the user's own exception; `callbacks` are its callbacks on the rung `python`.  `reach` is what
    the function refers to, and `comparison` compares machine code with it.
    """

    address: int
    p: np.ndarray
    rung: str
    reason: str = ""
    replay: Callable[[float, np.ndarray], Any] | None = None
    callbacks: tuple[Callback, ...] = ()
    keep_alive: Any = field(default=None, repr=False)
    compile_time: float = 0.0
    cost: float = 0.0  # upper bound of the seconds per evaluation, as far as it is known
    n_calls: int = 1  # of the user's functions per evaluation
    reach: FunctionKey | None = field(default=None, repr=False)
    comparison: Comparison | None = field(default=None, repr=False)

    def __call__(self, t: float, y: np.ndarray) -> np.ndarray:
        """One evaluation from Python, for trials and diagnosis."""
        if self.address == 0:
            return y.copy()
        y, dy = np.ascontiguousarray(y), np.full(max(1, y.size), np.nan, y.dtype)
        if SIGNATURE(self.address)(t, y.ctypes.data, dy.ctypes.data, self.p.ctypes.data, y.size) != 0:
            raise RuntimeError(f"the right-hand side raised at t = {t}")
        return dy[: y.size] if y.size else dy


def build_identity_field(p: np.ndarray) -> CompiledRHS:
    """q' = v of a second-order problem: no function, which kernels recognise by the address 0."""
    return CompiledRHS(0, p, "address", n_calls=0)


def make_field(
    function,
    args: tuple,
    inputs,
    output,
    t_span: tuple[float, float],
    y: np.ndarray,
    label: str,
    limit: RungLimit = ANY,
) -> CompiledRHS:
    """Try the rungs from the fastest on; the trial call is at the flat state `y` at the beginning of `t_span`.

    Machine code that was built earlier is compared with Python again, at a point that differs from call to call, unless
    the result of the function depends only on its arguments.
    """
    block, t = pack(args), t_span[0]
    if isinstance(function, PythonOnly):
        function, limit = function.function, RungLimit("python", function.reason)
    if type(function) is not FunctionType:
        found = _find_machine_code(function, block, label)
        if found is not None:
            return found
    reached = reach(function, block.constants)
    is_long = y.size + block.values.size > LONGEST_REMEMBERED
    key = None
    if not is_long and not reached.opaque:
        numbers = (block.slots, block.values.tobytes(), t, y.tobytes())
        key = (id(function), reached.key, numbers, (inputs, output, y.dtype, label), limit, _read_first_rung())
        seen = _seen.get(key)
        if seen is not None and (reached.is_self_contained or seen.comparison.agrees_somewhere(t_span, y)):
            return seen
    form = find_call_form(function, args, inputs, output, y.dtype, label)
    found = _climb(form, block, reached, t_span, y, limit)
    if key is not None and not found.callbacks:
        _remember(_seen, key, replace(found, compile_time=0.0))
    return found


def _find_machine_code(function, block: ArgumentBlock, label: str) -> CompiledRHS | None:
    """A right-hand side that is given as machine code; None for a Python function."""
    if isinstance(function, MachineCode):  # the derivative of another right-hand side
        return CompiledRHS(function.address, block.values, "traced", keep_alive=function)
    check_function(label, function)
    address = find_c_address(function)
    if address is None:
        return None
    if not block.is_numeric:
        raise TypeError(f"`args` of a C function must be numbers or arrays of floats, found {block.args!r}")
    return CompiledRHS(address, block.values, "address", keep_alive=function, cost=1.0)


def _remember(memory: OrderedDict, key, value) -> None:
    memory[key] = value
    if len(memory) > _MOST_KEPT:
        memory.popitem(last=False)


def _climb(
    form: CallForm, block: ArgumentBlock, reached: FunctionKey, t_span, y: np.ndarray, limit: RungLimit
) -> CompiledRHS:
    """The fastest rung that can run the function and gives the results of Python."""
    if form.is_in_place and not block.is_numeric:
        raise TypeError(f"`args` of the in-place `{form.label}` must be numbers or arrays of floats, found {form.args}")
    began = time.perf_counter()
    result, slopes = try_once(form, block.values, t_span[0], y)
    started = time.perf_counter()
    replay = partial(_replay, form, block.values)
    trial = TrialCall(form, block, reached, result, slopes, t_span, y)
    reasons = [limit.reason] if limit.reason else []
    if reached.opaque:
        reasons.append(f"not traced or compiled: {reached.opaque}")
    for rung in _list_rungs_to_try(limit) if not reached.opaque else ():
        code, comparison, reason = _recall_or_build(rung, trial)
        if code is not None:
            elapsed, cost = time.perf_counter() - started, min(started - began, _estimate_traced_cost(code))
            facts = {"compile_time": elapsed, "cost": cost, "reach": reached, "comparison": comparison}
            return CompiledRHS(code.address, block.values, rung, "; ".join(reasons), replay, (), code, **facts)
        reasons.append(reason)
    first = (t_span[0], y.copy(), slopes)
    callback = Callback(wrap_python_call(form, block.values), (form.n_in,), (form.n_out,), y.dtype, first)
    facts = {"compile_time": time.perf_counter() - started, "cost": started - began, "reach": reached}
    return CompiledRHS(
        callback.address, block.values, "python", "; ".join(reasons), replay, (callback,), callback, **facts
    )


class TrialCall(NamedTuple):
    """A function that was called once in Python, at the beginning of `t_span`: its result and its slopes."""

    form: CallForm
    block: ArgumentBlock
    reach: FunctionKey
    result: Any
    slopes: np.ndarray
    t_span: tuple[float, float]
    y: np.ndarray

    def compare(self, code) -> Comparison:
        """The comparison of machine code with this function."""
        return Comparison(code.address, self.form, self.block.values, self.reach.calls_jitted)


def _estimate_traced_cost(code) -> float:
    """Upper bound of the seconds per evaluation of straight-line code: a few nanoseconds per operation."""
    traced = getattr(code, "trace", None)
    return 1e-8 + 5e-9 * len(traced.graph.nodes) if traced is not None else np.inf


def _list_rungs_to_try(limit: RungLimit) -> tuple[str, ...]:
    """The rungs that give machine code, the fastest first; STEPNET_RUNG names the first one to try."""
    first = _read_first_rung() or "traced"
    if first not in RUNGS:
        raise UnknownName("rung in STEPNET_RUNG", first, RUNGS)
    slowest = max(RUNGS.index(first), RUNGS.index(limit.rung))
    return tuple(rung for rung in ("traced", "compiled") if RUNGS.index(rung) >= slowest)


def _read_first_rung() -> str | None:
    """The value of STEPNET_RUNG; `os.environ.get` takes five times as long for an unset variable."""
    return os.environ["STEPNET_RUNG"] if "STEPNET_RUNG" in os.environ else None  # noqa: SIM401


def _trace_code(trial: TrialCall):
    form, block = trial.form, trial.block
    code = _find_stencil_code(form, block)
    if code is not None:
        return code
    if form.dtype != np.float64:
        raise CannotTrace(f"states are {form.dtype}")
    traced = trace_short_or_loops(form, block)
    return compile_loops(traced, "f") if isinstance(traced, Loops) else compile_traced(traced)


def _find_stencil_code(form: CallForm, block: ArgumentBlock):
    """Machine code of a linear equation on a grid, which knows its stencils and so needs no symbols.

    Traces of short states are faster, but of float64 only.
    """
    describe = getattr(form.function, "find_linear_form", None)
    if describe is None or (form.n_in <= MOST_UNKNOWNS and form.dtype == np.float64):
        return None
    from stepnet.engines.numba_engine.stencils.stencil_code import build_stencil_code  # only equations need it

    linear = describe(*block.args)
    return build_stencil_code(linear, form.dtype) if linear is not None and linear.shape == form.output else None


def compile_traced(traced: Trace) -> MachineCode:
    """Machine code of the right-hand side, which keeps its trace."""
    code = MachineCode(write_assembly(traced, "f"), "f")
    code.trace = traced
    return code


def validate_code(code, form: CallForm, block: ArgumentBlock, t_span, y: np.ndarray):
    """The code, if it gives the results of Python at a few times and states near `y`."""
    if _is_equal_nearby(code, form, block, t_span, y):
        return code
    if reach(form.function, block.constants).calls_jitted and _is_equal_nearby(code, strip_jit(form), block, t_span, y):
        return code
    raise CannotTrace("the trace differs from Python at another point")


def _is_equal_nearby(code, form: CallForm, block: ArgumentBlock, t_span, y: np.ndarray) -> bool:
    call, p = SIGNATURE(code.address), block.values
    return all(gives(call, p, t, near, slopes) for t, near, slopes in evaluate_slopes_nearby(form, p, t_span, y))


def _compile_native(trial: TrialCall):
    if trial.reach.makes_text:
        raise CannotTrace("it formats text, and compiled code formats numbers differently")
    from stepnet.engines.numba_engine.codegen.numba_compilation import compile_native  # loads much of Numba

    return compile_native(trial.form, trial.block, trial.result)


BUILD = {"traced": _trace_code, "compiled": _compile_native}


def _recall_or_build(rung: str, trial: TrialCall):
    """Machine code from the memory of this process or built now, and its comparison; or None, None and the reason."""
    form, block = trial.form, trial.block
    kind = (type(trial.result).__name__, np.shape(trial.result))
    frozen = block.frozen if rung == "traced" else ()
    shapes = (form.inputs, form.output, form.dtype.str, form.is_in_place)
    key = (rung, trial.reach.key, shapes, block.slots, kind, frozen)
    code = _kept.get(key)
    if code is not None and not isinstance(code, str):
        comparison = trial.compare(code)
        if _is_right(comparison, trial):
            return code, comparison, ""
        code = None  # it was correct when it was built, so something has changed undetected
    if code is None:
        code = _build_new(rung, trial)
        _remember(_kept, key, code)
    return (None, None, code) if isinstance(code, str) else (code, trial.compare(code), "")


def _build_new(rung: str, trial: TrialCall):
    """Machine code that gives the results of Python at a few points, or the reason why there is none."""
    try:
        code = BUILD[rung](trial)
        validate_code(code, trial.form, trial.block, trial.t_span, trial.y)
    except Exception as exception:  # of this package, Numba or the user's function: any means "not on this rung"
        return f"not {rung}: {summarise(exception)}"
    if not _is_right(trial.compare(code), trial):
        return f"not {rung}: its result differs from Python's (does it use random numbers or side effects?)"
    return code


def _is_right(comparison: Comparison, trial: TrialCall) -> bool:
    """Whether code gives the result of Python at the trial point and at another one."""
    t, y = trial.t_span[0], trial.y
    is_here = comparison.gives(t, y, trial.slopes) or comparison.agrees(t, y)
    return is_here and comparison.agrees_somewhere(trial.t_span, y)


def find_c_address(function) -> int | None:
    """The address of an `Address`, ctypes function, LowLevelCallable or Numba cfunc; None for other objects."""
    if isinstance(function, FunctionType):
        return None
    if isinstance(function, Address):
        return function.value
    if isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return ctypes.cast(function, ctypes.c_void_p).value
    if type(function).__name__ == "LowLevelCallable":
        return find_c_address(function.function)
    return int(function.address) if isinstance(function, CFunc) else None


def _replay(form: CallForm, values: np.ndarray, t: float, y: np.ndarray) -> np.ndarray:
    """Run the Python original."""
    dy = np.empty(form.n_out, form.dtype)
    wrap_python_call(form, values)(t, y, dy)
    return dy


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def summarise(exception: Exception) -> str:
    """An exception in one line, without the colours that Numba adds if colorama is installed."""
    lines = [line.strip() for line in COLOUR.sub("", str(exception)).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During:", "File", "Cannot unify"))]
    return (useful or lines or [type(exception).__name__])[0][:160]
