"""The ladder from a right-hand side to a C address: taken as is, compiled by Numba, or called back in Python."""

from __future__ import annotations

import ctypes
import os
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from weakref import WeakKeyDictionary

import numpy as np
from numba.core.ccallback import CFunc

from stepnet.engines.numba_engine.compile.arguments import Block, pack
from stepnet.engines.numba_engine.compile.bulk_trace import trace_short_or_loops
from stepnet.engines.numba_engine.compile.callback import SIGNATURE, Callback
from stepnet.engines.numba_engine.compile.fingerprint import fingerprint, is_opaque, uses_random_numbers, writes_outside
from stepnet.engines.numba_engine.compile.form import Form, form_of, python_call, try_once
from stepnet.engines.numba_engine.compile.loop_code import loop_code
from stepnet.engines.numba_engine.compile.loops import Loops
from stepnet.engines.numba_engine.compile.machine_code import Code, assembly
from stepnet.engines.numba_engine.compile.symbols import CannotTrace
from stepnet.engines.numba_engine.compile.trace import Trace
from stepnet.errors import UnknownName

RUNGS = ("address", "traced", "compiled", "python")  # from fast to slow
AGREEMENT = {
    8: 1e-8,
    4: 1e-3,
}  # compiled against Python, relative to the largest slope; contraction changes last digits
MOST_NODES_OF_DERIVATIVES = 20_000
N_CHECKS = 3
LEAST_ADDRESS = 4096  # the first page of memory is nobody's, so a smaller number is a mistake and would crash

LONGEST_REMEMBERED = 1000  # numbers of a state; beyond this its key costs more than looking again

_kept: OrderedDict = OrderedDict()
_seen: OrderedDict = OrderedDict()
_calls: WeakKeyDictionary = WeakKeyDictionary()
_MOST_KEPT = 256


@dataclass(frozen=True)
class Field:
    """A right-hand side ready for kernels: `address` is a C function, `p` its parameter block.

    `rung` says how it came about and `reason` why not by a faster rung.  `replay(t, y)` runs the Python original, to
    show the user's own exception; `callbacks` are the ways into Python, on that rung.
    """

    address: int
    p: np.ndarray
    rung: str
    reason: str = ""
    replay: object = None
    callbacks: tuple[Callback, ...] = ()
    keep_alive: object = field(default=None, repr=False)
    compile_time: float = 0.0
    cost: float = 0.0  # seconds that an evaluation takes at most, as far as one can tell
    n_calls: int = 1  # of the user's functions in one evaluation

    def __call__(self, t: float, y: np.ndarray) -> np.ndarray:
        """One evaluation from Python, for first looks and for diagnosis."""
        if self.address == 0:
            return y.copy()
        y, dy = np.ascontiguousarray(y), np.full(max(1, y.size), np.nan, y.dtype)
        if SIGNATURE(self.address)(t, y.ctypes.data, dy.ctypes.data, self.p.ctypes.data, y.size) != 0:
            raise RuntimeError(f"the right-hand side raised at t = {t}")
        return dy[: y.size] if y.size else dy


def identity_field(p: np.ndarray) -> Field:
    """q' = v of a second-order problem: no function at all, which kernels know by the address 0."""
    return Field(0, p, "address", n_calls=0)


def make_field(
    function, args: tuple, inputs, output, t: float, y: np.ndarray, label: str, may_trace: bool = True
) -> Field:
    """Climb the ladder from the fastest rung.  `t` and the flat state `y` are where the function is tried first."""
    block = pack(args)
    if isinstance(function, Code):  # our own: the derivative of another right-hand side
        return Field(function.address, block.values, "traced", keep_alive=function)
    address = c_address(function)
    if address is not None and not address >= LEAST_ADDRESS:
        raise ValueError(f"`{label}` must be a function or the address of a C function, found {address}")
    if address is not None:
        if not block.is_numeric:
            raise TypeError(f"`args` of a C function must be numbers or arrays of floats, found {args!r}")
        return Field(address, block.values, "address", keep_alive=function, cost=1.0)
    is_long = y.size + block.values.size > LONGEST_REMEMBERED
    key = None if is_long else (may_trace, _look_key(function, block, inputs, output, t, y, label))
    seen = _seen.get(key)
    if seen is not None:
        return seen
    found = _climb(form_of(function, args, inputs, output, y.dtype, label), block, t, y, may_trace)
    if not is_long and not found.callbacks and not is_opaque(key):
        _remember(_seen, key, replace(found, compile_time=0.0))
    return found


def _look_key(function, block: Block, inputs, output, t: float, y: np.ndarray, label: str):
    """Everything that the first look at a right-hand side depends on."""
    numbers = (block.slots, block.values.tobytes(), t, y.tobytes())
    shapes = (inputs, output, y.dtype, label)
    return id(function), fingerprint(function), numbers, shapes, _first_rung()


def _remember(memory: OrderedDict, key, value) -> None:
    memory[key] = value
    if len(memory) > _MOST_KEPT:
        memory.popitem(last=False)


def _climb(form: Form, block: Block, t: float, y: np.ndarray, may_trace: bool) -> Field:
    """The fastest rung that can run the function and gives what Python gives."""
    if form.is_in_place and not block.is_numeric:
        raise TypeError(f"`args` of the in-place `{form.label}` must be numbers or arrays of floats, found {form.args}")
    began = time.perf_counter()
    result, slopes = try_once(form, block.values, t, y)
    started = time.perf_counter()
    replay = partial(_replay, form, block.values)
    reasons = [] if may_trace else ["not traced: refused"]
    for rung in _rungs_to_try(may_trace):
        code, reason = _built(rung, form, block, result, slopes, t, y)
        if code is not None:
            elapsed, cost = time.perf_counter() - started, min(started - began, _traced_cost(code))
            return Field(code.address, block.values, rung, "; ".join(reasons), replay, (), code, elapsed, cost)
        reasons.append(reason)
    callback = Callback(python_call(form, block.values), (form.n_in,), (form.n_out,), y.dtype)
    elapsed, cost = time.perf_counter() - started, started - began
    return Field(
        callback.address, block.values, "python", "; ".join(reasons), replay, (callback,), callback, elapsed, cost
    )


def _traced_cost(code) -> float:
    """Seconds of an evaluation by straight-line code at most: a few nanoseconds an operation."""
    traced = getattr(code, "trace", None)
    return 1e-8 + 5e-9 * len(traced.graph.nodes) if traced is not None else np.inf


def _rungs_to_try(may_trace: bool) -> tuple[str, ...]:
    """The ways to machine code, the fastest first; STEPNET_RUNG names the first one to try."""
    first = _first_rung() or "traced"
    if first not in RUNGS:
        raise UnknownName("rung in STEPNET_RUNG", first, RUNGS)
    rungs = ("traced", "compiled") if may_trace else ("compiled",)
    return tuple(rung for rung in rungs if RUNGS.index(rung) >= RUNGS.index(first))


def _first_rung() -> str | None:
    """What STEPNET_RUNG says; `os.environ.get` takes five times as long where there is nothing."""
    return os.environ["STEPNET_RUNG"] if "STEPNET_RUNG" in os.environ else None  # noqa: SIM401


def _trace_code(form: Form, block: Block, result, t: float, y: np.ndarray):
    if form.dtype != np.float64:
        raise CannotTrace(f"states are {form.dtype}")
    traced = trace_short_or_loops(form, block)
    code = loop_code(traced, "f") if isinstance(traced, Loops) else traced_code(traced)
    return checked_code(code, form, block, t, y)


def traced_code(traced: Trace) -> Code:
    """Machine code of the right-hand side itself, which remembers its trace."""
    code = Code(assembly(traced, "f"), "f")
    code.trace = traced
    return code


def _slopes_nearby(form: Form, block: Block, t: float, y: np.ndarray):
    """States near `y`, with the slopes that Python gives there; some may be outside the domain of the function."""
    evaluate = python_call(form, block.values)
    generator = np.random.default_rng(0)
    for _ in range(N_CHECKS):
        near = y + (0.1 * (np.abs(y) + 0.1) * generator.standard_normal(y.size)).astype(y.real.dtype)
        slopes = np.empty(form.n_out, form.dtype)
        try:
            with np.errstate(all="ignore"):
                evaluate(t, near, slopes)
        except Exception:
            continue
        yield near, slopes


def checked_code(code: Code, form: Form, block: Block, t: float, y: np.ndarray) -> Code:
    """The code, if it gives what Python gives at a few places near `y`."""
    for near, slopes in _slopes_nearby(form, block, t, y):
        if not _agrees(SIGNATURE(code.address), block.values, t, near, slopes):
            raise CannotTrace("the trace gave another result than Python elsewhere")
    return code


def _native_code(form: Form, block: Block, result, t: float, y: np.ndarray):
    if isinstance(form.function, FunctionType) and writes_outside(form.function):
        raise CannotTrace("it sets variables outside itself")
    from stepnet.engines.numba_engine.compile.native import compile_native  # loads much of Numba

    return compile_native(form, block, result)


BUILD = {"traced": _trace_code, "compiled": _native_code}


def _built(rung: str, form: Form, block: Block, result, slopes, t: float, y: np.ndarray):
    """Machine code from this process's memory or made now, or None and the reason why there is none."""
    if uses_random_numbers(form.function):
        return None, f"not {rung}: it uses random numbers"
    kind = (type(result).__name__, np.shape(result))
    frozen = block.frozen if rung == "traced" else ()
    shapes = (form.inputs, form.output, form.dtype.str, form.is_in_place)
    key = (rung, fingerprint(form.function), shapes, block.slots, kind, frozen)
    code = _kept.get(key)
    if code is None:
        try:
            code = BUILD[rung](form, block, result, t, y)
        except Exception as exception:  # ours, Numba's, or Python's from inside: any means "not on this rung"
            code = f"not {rung}: {first_line(exception)}"
        _remember(_kept, key, code)
    if isinstance(code, str):
        return None, code
    if not _agrees(_callable(code), block.values, t, y, slopes) and not _agrees(
        _callable(code), block.values, t, y, slopes, _typical_size(form, block, t, y)
    ):
        return None, f"not {rung}: it gave another result than Python (does it use random numbers or side effects?)"
    return code, ""


def c_address(function) -> int | None:
    """The address behind an integer, ctypes function, LowLevelCallable or Numba cfunc; None for a Python function."""
    if isinstance(function, (bool, FunctionType)):
        return None
    if isinstance(function, (int, np.integer)):
        return int(function)
    if isinstance(function, ctypes._CFuncPtr):
        return ctypes.cast(function, ctypes.c_void_p).value
    if type(function).__name__ == "LowLevelCallable":
        pointer = function.function
        return c_address(pointer) if not isinstance(pointer, int) else pointer
    return int(function.address) if isinstance(function, CFunc) else None


def _callable(code):
    """The C function of a piece of code, for calls from Python; made once, it costs as much as ten calls."""
    if code not in _calls:
        _calls[code] = SIGNATURE(code.address)
    return _calls[code]


def _typical_size(form: Form, block: Block, t: float, y: np.ndarray) -> float:
    """How large slopes are near `y`: at an equilibrium they are nothing but rounding."""
    sizes = [np.abs(slopes).max(initial=0.0) for _, slopes in _slopes_nearby(form, block, t, y)]
    return max((size for size in sizes if np.isfinite(size)), default=0.0)


def _agrees(call, p: np.ndarray, t: float, y: np.ndarray, slopes: np.ndarray, typical: float = 0.0) -> bool:
    """Whether the C function `call` gives the slopes that Python gave, to rounding of the largest or a typical one."""
    found = np.empty_like(slopes)
    if call(t, y.ctypes.data, found.ctypes.data, p.ctypes.data, y.size) != 0:
        return False
    size = np.abs(slopes)
    largest = size.max(initial=typical)
    if np.isfinite(largest):
        return bool((np.abs(found - slopes) <= AGREEMENT[size.itemsize] * largest).all())
    largest = size.max(initial=typical, where=np.isfinite(size))
    return bool(np.allclose(found, slopes, rtol=0.0, atol=AGREEMENT[size.itemsize] * largest, equal_nan=True))


def _replay(form: Form, values: np.ndarray, t: float, y: np.ndarray) -> np.ndarray:
    """Run the Python original."""
    dy = np.empty(form.n_out, form.dtype)
    python_call(form, values)(t, y, dy)
    return dy


def first_line(exception: Exception) -> str:
    """What went wrong, in one line."""
    lines = [line.strip() for line in str(exception).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During:", "File", "Cannot unify"))]
    return (useful or lines or [type(exception).__name__])[0][:160]
