"""Right-hand sides together with their pullbacks w -> (w df/dt, w df/dy, w df/dp), as C functions.

    int32 vjp(double t, const double *y, const double *p, const double *w, double *t_bar, double *y_bar, double *p_bar,
              int64 n)                                                              (the bars are added to)

The user's `vjp` is used first; then traces, with a much higher limit than for right-hand sides; then the user's `jac`
or `jvp`, dual numbers and, on request, finite differences.  The user's Python functions differentiate with
respect to the state only.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.engines.numba_engine.codegen.loop_code import compile_trace
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.derivatives.jacobian_products import (
    VJP,
    build_difference_matrix,
    build_dual_matrix,
    build_dual_pushforward,
    wrap_user_pullback,
)
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock, pack
from stepnet.engines.numba_engine.rhs.call_form import CallForm, find_call_form, try_once
from stepnet.engines.numba_engine.rhs.ladder import (
    MOST_NODES_OF_DERIVATIVES,
    CompiledRHS,
    compile_traced,
    find_c_address,
    summarise,
    validate_code,
)
from stepnet.engines.numba_engine.rhs.problem_parts import (
    PartFunction,
    build_jacobian,
    build_part_fields,
    list_functions,
)
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.joint_trace import compile_joined, copy_nodes
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace, trace
from stepnet.errors import NoDerivative
from stepnet.problem import Problem, StochasticProblem

_kept: WeakKeyDictionary = WeakKeyDictionary()
_long: WeakKeyDictionary = WeakKeyDictionary()
_directional: WeakKeyDictionary = WeakKeyDictionary()


@dataclass(frozen=True)
class PartPullback:
    """A right-hand side and its pullback; `rung` is the source of the pullback.

    It `is_complete` if it has derivatives with respect to time and arguments, not only to the state; `matrix(t, y)`
    gives all of them in a row where they are computed column by column.
    """

    field: CompiledRHS
    vjp: int
    rung: str
    is_complete: bool
    trace: Trace | None = dataclasses.field(default=None, repr=False)
    matrix: Callable | None = dataclasses.field(default=None, repr=False)
    keep_alive: object = dataclasses.field(default=None, repr=False)

    @property
    def exception(self) -> BaseException | None:
        """The exception that a pullback in Python raised."""
        return getattr(self.keep_alive, "exception", None)


def build_parts(
    problem: Problem, is_joined: bool, differences: bool = False, may_loop: bool = True
) -> tuple[PartPullback, ...]:
    """The parts of a problem, or all of them joined into one of the flat state.

    Long parts are loops unless `may_loop` is false; then they have a `trace`, if it is not too long.
    """
    if problem.initial.dtype != np.float64:
        raise NoDerivative(f"gradients are for states of float64, found {problem.initial.dtype}")
    fields, functions = build_part_fields(problem), list_functions(problem)
    if is_joined and len(fields) > 1:
        traced = tuple(_trace_in_full(problem, *each, differences) for each in zip(fields, functions, strict=True))
        code = compile_joined(problem, traced, MOST_NODES_OF_DERIVATIVES)
        if code is None:
            raise NoDerivative(
                "the parts of this problem cannot be traced, so a Runge-Kutta scheme has no derivative on it; "
                "write it as an `ODE` with `vjp`"
            )
        return (take_trace(CompiledRHS(code.address, fields[-1].p, "traced", keep_alive=code)),)
    return tuple(_build_part(problem, *each, differences, may_loop) for each in zip(fields, functions, strict=True))


def build_stochastic_parts(
    problem: StochasticProblem,
    fields: tuple[CompiledRHS, ...],
    differences: bool,
    may_loop: bool = True,
    needed: Container[int] | None = None,
) -> tuple[PartPullback, ...]:
    """Drift, diffusion and what is derived from their traces, with their pullbacks, or only those that are `needed`.

    `may_loop` is as in `build_parts`.
    """
    functions = list_functions(problem)
    parts: list[PartPullback] = []
    for i, each in enumerate(fields):
        if needed is not None and i not in needed:
            parts.append(PartPullback(each, 0, "none", False))
            continue
        is_derived = i >= len(functions) or getattr(each.keep_alive, "is_derived", False)
        parts.append(
            take_trace(each) if is_derived else _build_part(problem, each, functions[i], differences, may_loop)
        )
    return tuple(parts)


def _build_part(
    problem: Problem, field: CompiledRHS, which: PartFunction | None, differences: bool, may_loop: bool
) -> PartPullback:
    """A part with its pullback; q' = v needs none."""
    if which is None:
        return PartPullback(field, 0, "address", True)
    own = getattr(problem, "vjp", None)
    if find_c_address(own) is not None:
        return PartPullback(field, find_c_address(own), "user", True, keep_alive=own)
    if own is None and getattr(field.keep_alive, "trace", None) is not None:
        return take_trace(field)
    if own is None and may_loop and getattr(field.keep_alive, "build_pullback", None) is not None:
        return take_trace(field)
    if own is None and field.rung == "address" and not _has_jacobian(problem):
        raise NoDerivative(f"`{which.label}` is a C function, whose derivative is unknown; give `vjp`")
    block = pack(problem.args)
    function = _in_c if field.rung == "address" else which.function
    form = find_call_form(function, problem.args, which.inputs, which.output, which.y.dtype, which.label)
    if own is not None:
        return _wrap_python(field, form, wrap_user_pullback(form, block, own).product, "user")
    if may_loop and getattr(field.keep_alive, "loops", None) is not None:
        try:
            return take_trace(field)
        except CannotTrace:  # e.g. the maximum of many numbers
            pass
    return _try_other_ways(problem, field, which, form, block, differences)


def _trace_in_full(problem: Problem, field: CompiledRHS, which: PartFunction | None, differences: bool) -> CompiledRHS:
    """A part to be joined with others, with its complete trace if it runs as loops, which cannot be joined."""
    _build_part(problem, field, which, differences, may_loop=False)
    code = field.keep_alive
    return replace(field, keep_alive=_long[code]) if isinstance(code, MachineCode) and code in _long else field


def _has_jacobian(problem: Problem) -> bool:
    return getattr(problem, "jac", None) is not None or getattr(problem, "jvp", None) is not None


def _in_c(t, y, *args):
    """A placeholder for a C function in forms, which inspect signatures."""
    raise CannotTrace("it is a C function")


def _try_other_ways(
    problem: Problem, field: CompiledRHS, which: PartFunction, form: CallForm, block: ArgumentBlock, differences: bool
) -> PartPullback:
    """By a long trace, the user's Jacobian, dual numbers, or finite differences if requested."""
    t = problem.t_span[0]
    try:
        if not problem.trace:
            raise CannotTrace("refused")
        return take_trace(field, _trace_to_the_end(field, form, block, problem.t_span, which.y))
    except Exception as exception:
        reason = f"not traced: {summarise(exception)}"
    if _has_jacobian(problem):
        return _wrap_python(field, form, build_jacobian(problem).pullback.product, "user")  # type: ignore[arg-type]
    if field.rung != "python":
        try:
            return _use_dual_numbers(field, form, block, try_once(form, block.values, t, which.y)[0])
        except Exception as exception:
            reason += f"; not by dual numbers: {summarise(exception)}"
    if differences:
        return _use_columns(field, form, build_difference_matrix(form, block), "differences")
    raise NoDerivative(
        f"the derivative of `{which.label}` is not available ({reason}); give `vjp`, or `differences=True` for "
        f"finite differences, which are accurate to about ten digits"
    )


def _trace_to_the_end(field: CompiledRHS, form: CallForm, block: ArgumentBlock, t_span, y: np.ndarray) -> MachineCode:
    """The same right-hand side with a trace up to the limit for derivatives."""
    owner = field.keep_alive
    if owner not in _long:
        traced = trace(form, block, MOST_NODES_OF_DERIVATIVES)
        _long[owner] = validate_code(compile_traced(traced), form, block, t_span, y)
    return _long[owner]


def take_trace(field: CompiledRHS, code: MachineCode | None = None) -> PartPullback:
    """With the pullback of a trace: that of the right-hand side itself, or a longer one."""
    code = field.keep_alive if code is None else code
    pullback = _kept.get(code)
    if pullback is None:
        if code.trace is not None:
            code.trace.graph.most = 4 * MOST_NODES_OF_DERIVATIVES
        build = getattr(code, "build_pullback", None)
        made = build() if build is not None else compile_trace(code.trace or code.loops, "vjp")
        pullback = _kept.setdefault(code, made)  # the first of two threads wins
    return PartPullback(field, pullback.address, "traced", True, code.trace, pullback)


def compile_directional_pullback(part: PartPullback) -> MachineCode:
    """The pullback of (df/dy) v + tau df/dt for the state (y, v, tau): second derivatives, for Rosenbrock schemes."""
    if part.trace is None:
        raise NoDerivative(
            f"gradients of Rosenbrock schemes need second derivatives, so a trace of the right-hand side; found "
            f"{part.rung}; use an implicit Runge-Kutta scheme such as kvaerno5"
        )
    kept = _directional.get(part.trace.graph)
    if kept is None:
        kept = _directional.setdefault(part.trace.graph, compile_trace(trace_directional(part.trace), "vjp"))
    return kept


def trace_directional(trace: Trace) -> Trace:
    """(df/dy) v + tau df/dt for the state (y, v, tau)."""
    trace.graph.most = 4 * MOST_NODES_OF_DERIVATIVES
    graph, n = Graph(4 * MOST_NODES_OF_DERIVATIVES), trace.n
    exchange: dict[str, Callable] = {
        "y_dot": lambda i: graph.node("y", n + i),
        "p_dot": lambda j: graph.constant(0.0),
        "t_dot": lambda: graph.node("y", 2 * n),
    }
    return Trace(graph, copy_nodes(graph, trace.graph, trace.tangent(), exchange), 2 * n + 1, trace.n_parameters)


def _use_dual_numbers(field: CompiledRHS, form: CallForm, block: ArgumentBlock, result) -> PartPullback:
    """With respect to time, state and arguments, or only to the state if the others cannot be dual numbers."""
    try:
        return _use_columns(field, form, build_dual_matrix(form, block, result), "dual")
    except Exception:  # of Numba: the function accepts a dual state, but not all dual inputs
        columns, identity = build_dual_pushforward(form, block, result).columns, np.eye(form.n_in)
        return _wrap_python(field, form, lambda t, y, w: w @ columns(t, y, identity), "dual")


def _use_columns(field: CompiledRHS, form: CallForm, matrix: Callable, rung: str) -> PartPullback:
    return replace(_wrap_python(field, form, lambda t, y, w: w @ matrix(t, y), rung, True), matrix=matrix)


def _wrap_python(field: CompiledRHS, form: CallForm, product, rung: str, is_complete: bool = False) -> PartPullback:
    call = PythonPullback(form, field.p.size, product, is_complete)
    return PartPullback(field, call.address, rung, is_complete, keep_alive=call)


class PythonPullback:
    """A pullback in Python as a C function that stores an exception and returns 1.

    `product(t, y, w)` is with respect to the state, or, if it is complete, to time, state and arguments in a row.
    """

    def __init__(self, form: CallForm, n_parameters: int, product, is_complete: bool):
        self.exception: BaseException | None = None
        self._product, self._is_complete = product, is_complete
        self._sizes = form.n_in, form.n_out, n_parameters
        self._function = VJP(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _call(self, t, y, p, w, t_bar, y_bar, p_bar, n):
        n_in, n_out, n_parameters = self._sizes
        try:
            product = self._product(t, _array(y, n_in).copy(), _array(w, n_out).copy())
            if self._is_complete:
                _array(t_bar, 1)[:] += product[0]
                _array(p_bar, n_parameters)[:] += product[1 + n_in :]
                product = product[1 : 1 + n_in]
            _array(y_bar, n_in)[:] += product
        except BaseException as exception:  # ctypes would print and ignore it, even a KeyboardInterrupt
            self.exception = exception
            return 1
        return 0


def _array(address: int, n: int) -> np.ndarray:
    if n == 0:
        return np.empty(0)
    return np.frombuffer((ctypes.c_double * n).from_address(address or 1), np.float64)  # type: ignore[call-overload]
