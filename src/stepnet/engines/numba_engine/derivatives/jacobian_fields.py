"""Jacobians for kernels: the entries of df/dy, and df/dt, as a C function that is called by address.

    int32 entries(double t, const double *y, double *values, const double *p, int64 n)

writes the entries of df/dy at known places, then the n entries of df/dt.  The user's `jac` comes first, then
straight-line code of a trace, products with the columns of a colouring (loops, dual numbers), and differences.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import carray, njit

from stepnet.engines.numba_engine.codegen.intrinsics.address_calls import call_jvp8_at, call_jvp_at, call_rhs_at
from stepnet.engines.numba_engine.codegen.kernels import FieldKernel
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.derivatives.graph_derivatives import pushforward
from stepnet.engines.numba_engine.derivatives.jacobian_products import Pushforward
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE, Callback
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS, compile_traced
from stepnet.engines.numba_engine.rhs.problem_parts import build_jacobian
from stepnet.engines.numba_engine.tracing.graph import Graph, TooManyNodes
from stepnet.engines.numba_engine.tracing.joint_trace import copy_nodes
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.problem import ODE, Problem

LONGEST = 6000  # nodes of straight-line code for all entries; beyond, products with a few columns compile faster
STATE_STEP, TIME_STEP = 2.0**-26, 2.0**-17  # eps^(1/2) for forward differences, eps^(1/3) for central ones
LEAST_TIME_STEP = 2.0**-48  # relative to t: a few times its resolution
SMALL, LEAST = 1e-3, 1e-12  # an entry near zero is moved by a fraction of the largest one
CENTRAL_STEP, FAR, NOISE = 2.0**-17, 0.1, 1e-12  # comparison of a given Jacobian: rounding is far below `FAR`

NO_TIMES = (0.0, -1.0)  # an empty interval

_kept: WeakKeyDictionary = WeakKeyDictionary()


class JacobianField(NamedTuple):
    """The C function of a Jacobian, its parameter block, and the places of its entries; `rung` is its source.

    `bandwidth` is the number of diagonals below and above the main one, `n_slopes` that of evaluations of the
    right-hand side for differences, and `is_given` says that entries or their places are the user's.
    """

    address: int
    p: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    bandwidth: tuple[int, int]
    rung: str
    n_slopes: int = 0
    is_given: bool = False
    callbacks: tuple[Callback, ...] = ()
    keep_alive: object = None


class _Products(NamedTuple):
    """A pushforward with a C function, the colours of the columns, and the places of the entries."""

    push: Pushforward
    colours: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


_kept_products: WeakKeyDictionary = WeakKeyDictionary()


def build_jacobian_field(problem: Problem, field: CompiledRHS, needs_time: bool = True) -> JacobianField:
    """The Jacobian of the whole right-hand side `field` of a problem, by the first rung that works.

    Without `needs_time` there are no differences in time: df/dt may be zero instead.
    """
    n, code = problem.initial.size, field.keep_alive
    times = (min(problem.t_span), max(problem.t_span)) if needs_time else NO_TIMES
    is_given = isinstance(problem, ODE) and (problem.jac is not None or problem.jvp is not None)
    if is_given:
        return _wrap_user_jacobian(problem, field, times)  # type: ignore[arg-type]
    traced = getattr(code, "trace", None)
    if traced is not None:
        try:
            return _use_trace(code, traced, field)
        except TooManyNodes:
            pass
    if isinstance(problem, ODE) and field.rung != "python":
        jacobian = _find_products(problem, code)
        if jacobian is not None:
            return _use_products(jacobian, field, n, times)
    given = getattr(problem, "jac_sparsity", None)
    return _use_differences(field, n, given, times)


def evaluate_entries(jacobian: JacobianField, field: CompiledRHS, t: float, y: np.ndarray) -> np.ndarray:
    """The entries of df/dy, then df/dt, called as kernels do."""
    y, values = np.ascontiguousarray(y, float), np.zeros(len(jacobian.rows) + np.size(y))
    pointers = [each.ctypes.data for each in (y, values, jacobian.p)]
    if SIGNATURE(jacobian.address)(t, *pointers, y.size) != 0:
        for callback in (*jacobian.callbacks, *field.callbacks):
            if callback.exception is not None:
                raise callback.exception
        raise RuntimeError(f"df/dy cannot be evaluated at t = {t}")
    return values


def _use_trace(code: MachineCode, traced: Trace, field: CompiledRHS) -> JacobianField:
    if code not in _kept:
        derivative, rows, columns = trace_entries(traced)
        _kept[code] = compile_traced(derivative), rows, columns, _find_bandwidth(rows, columns)
    compiled, rows, columns, bandwidth = _kept[code]
    return JacobianField(compiled.address, field.p, rows, columns, bandwidth, "traced", keep_alive=compiled)


def _find_bandwidth(rows: np.ndarray, columns: np.ndarray) -> tuple[int, int]:
    return int(np.max(rows - columns, initial=0)), int(np.max(columns - rows, initial=0))


def trace_entries(traced: Trace) -> tuple[Trace, np.ndarray, np.ndarray]:
    """The entries that are not zero everywhere, column by column, then df/dt."""
    graph, n = Graph(LONGEST), traced.n
    slopes = copy_nodes(graph, traced.graph, traced.outputs, {})
    one, zero = graph.constant(1.0), graph.constant(0.0)
    live = set(graph.live(slopes))
    outputs, rows, columns = [], [], []
    for j in range(n):
        node = graph.node("y", j)
        found = pushforward(graph, slopes, {node: one}) if node in live else [zero] * n
        for i, entry in enumerate(found):
            if entry != zero:
                outputs.append(entry)
                rows.append(i)
                columns.append(j)
    time = graph.node("t")
    outputs += pushforward(graph, slopes, {time: one}) if time in live else [zero] * n
    return Trace(graph, outputs, n, traced.n_parameters), np.array(rows, np.int64), np.array(columns, np.int64)


def _wrap_user_jacobian(problem: ODE, field: CompiledRHS, times) -> JacobianField:
    """The user's matrix in Python; df/dt by differences."""
    jacobian, n = build_jacobian(problem), problem.initial.size
    pattern = jacobian.sparsity.tocoo()
    rows, columns = pattern.row.astype(np.int64), pattern.col.astype(np.int64)
    keys = rows * n + columns
    order = np.argsort(keys)
    sorted_keys = keys[order]

    def evaluate(t, y, values):
        found_rows, found_columns, entries = jacobian.entries(t, y)
        values[:] = 0.0
        wanted = np.asarray(found_rows, np.int64) * n + found_columns
        places = np.minimum(np.searchsorted(sorted_keys, wanted), len(keys) - 1)
        is_known = sorted_keys[places] == wanted if len(keys) else np.zeros(len(wanted), bool)
        is_left_out = ~is_known & (np.asarray(entries) != 0.0)
        if is_left_out.any():
            row = np.asarray(found_rows)[is_left_out][0]
            raise ValueError(
                f"the pattern of the Jacobian leaves out entries in row {row}: give `jac_sparsity` with all of them"
                if problem.jac_sparsity is None
                else f"`jac_sparsity` leaves out entries of the Jacobian in row {row}"
            )
        np.add.at(values, order[places[is_known]], np.asarray(entries)[is_known])
        values[len(rows) :] = _differentiate_time(field, t, y, times)

    callback = Callback(evaluate, (n,), (len(rows) + n,), np.dtype(float))
    places = rows, columns, _find_bandwidth(rows, columns)
    n_slopes = _count_slopes_in_time(times)
    return JacobianField(callback.address, field.p, *places, "user", n_slopes, True, (callback,), callback)


def _count_slopes_in_time(times) -> int:
    return 2 if times[1] > times[0] else 0


def build_point_field(problem: Problem, field: CompiledRHS, point, needs_time: bool) -> JacobianField:
    """A Jacobian without entries, whose evaluation sets `point.t` and `point.y`, for matrix-free linear solves."""
    n, times = problem.initial.size, (min(problem.t_span), max(problem.t_span)) if needs_time else NO_TIMES

    def evaluate(t, y, values):
        point.t, point.y = t, y
        values[:] = _differentiate_time(field, t, y, times)

    callback = Callback(evaluate, (n,), (n,), np.dtype(float))
    nowhere = np.zeros(0, np.int64)
    places = nowhere, nowhere, (0, 0)
    return JacobianField(
        callback.address, field.p, *places, "products", _count_slopes_in_time(times), False, (callback,), callback
    )


def _differentiate_time(field: CompiledRHS, t: float, y: np.ndarray, times) -> np.ndarray:
    earlier, later = _choose_times.py_func(t, *times)
    return (field(later, y) - field(earlier, y)) / (later - earlier) if later > earlier else np.zeros(y.size)


@njit(inline="always")
def _choose_times(t, first, last):
    """Times around t for central differences, or t and a neighbour at an end of the interval of integration."""
    length, least = min(max(1.0, abs(t)), last - first), LEAST_TIME_STEP * abs(t)
    step = max(TIME_STEP * length, least)
    if t - step >= first and t + step <= last:
        return t - step, t + step
    step = max(STATE_STEP * length, least)
    return max(first, t - step), min(last, t + step)


def _find_products(problem: ODE, code) -> _Products | None:
    """The products of a right-hand side that can be differentiated; those of a trace are kept with its machine code."""
    is_lasting = isinstance(code, MachineCode) and problem.jac_sparsity is None
    if is_lasting and code in _kept_products:
        return _kept_products[code]
    try:
        jacobian = build_jacobian(problem)
    except Exception:  # it cannot be differentiated, so that differences remain
        return None
    if not jacobian.pushforward.width:
        return None
    pattern = jacobian.sparsity.tocoo()
    places = pattern.row.astype(np.int64), pattern.col.astype(np.int64)
    found = _Products(jacobian.pushforward, jacobian.pattern.colours, *places)
    if is_lasting and jacobian.pattern.source == "exact" and jacobian.rung == "traced":
        _kept_products[code] = found
    return found


def _use_products(jacobian: _Products, field: CompiledRHS, n: int, times) -> JacobianField:
    """One product for each colour of columns, by the C function of the pushforward."""
    push, colours, rows, columns = jacobian
    block = _pack_products(push.address, push.width, field, colours, rows, columns, times)
    address = _find_entries_by_products.address(np.dtype(float))
    places = rows, columns, _find_bandwidth(rows, columns)
    n_slopes = _count_slopes_in_time(times) if push.width > 1 else 0
    return JacobianField(address, block, *places, push.rung, n_slopes, keep_alive=(push, field, block))


def _use_differences(field: CompiledRHS, n: int, given, times) -> JacobianField:
    """Forward differences, one evaluation for each colour of columns; all columns without a sparsity pattern."""
    if given is None:
        try:
            rows, columns = (each.ravel().astype(np.int64) for each in np.indices((n, n)))
        except (MemoryError, ValueError):  # the latter if the size in bytes overflows an integer
            raise MemoryError(describe_size(n, n, 1)) from None
        colours = np.arange(n)
    else:
        from scipy.sparse import coo_array, csr_array

        from stepnet.engines.numba_engine.derivatives.sparsity import colour_columns  # loads scipy.sparse

        pattern = coo_array(csr_array(given) != 0)
        rows, columns = pattern.row.astype(np.int64), pattern.col.astype(np.int64)
        colours, _ = colour_columns(csr_array(pattern))
    block = _pack_products(field.address, 0, field, colours, rows, columns, times)
    address = _find_entries_by_differences.address(np.dtype(float))
    places = rows, columns, _find_bandwidth(rows, columns)
    n_slopes = 1 + int(np.max(colours, initial=-1)) + 1 + _count_slopes_in_time(times)
    return JacobianField(address, block, *places, "differences", n_slopes, given is not None, keep_alive=(field, block))


def compare_with_differences(jacobian: JacobianField, field: CompiledRHS, problem: Problem) -> int:
    """Refuse a user's Jacobian that is far from finite differences along a random vector, at the initial state.

    Rosenbrock schemes lose their order with a wrong Jacobian, and nothing in a step with a fixed size shows it.
    Returns the number of evaluations of the right-hand side.
    """
    if not jacobian.is_given or problem.initial.size == 0 or problem.initial.dtype != np.float64:
        return 0
    t, y = problem.t_span[0], problem.initial
    values = np.zeros(len(jacobian.rows) + y.size)
    code = SIGNATURE(jacobian.address)(t, y.ctypes.data, values.ctypes.data, jacobian.p.ctypes.data, y.size)
    for callback in jacobian.callbacks:
        if callback.exception is not None:
            raise callback.exception
    if code != 0:
        return 0  # the right-hand side raised, which the run reports
    largest = np.max(np.abs(y))
    step = CENTRAL_STEP * np.maximum(np.abs(y), max(SMALL * largest, LEAST))
    step *= np.random.default_rng(0).uniform(-1.0, 1.0, y.size)
    n_slopes = jacobian.n_slopes + 2 + bool(field.callbacks)  # these called the function once when they were built
    try:
        above, below = field(t, y + step), field(t, y - step)
    except RuntimeError:  # outside the domain of the right-hand side
        for callback in field.callbacks:
            callback.exception = None
        return n_slopes
    product = np.bincount(jacobian.rows, values[: len(jacobian.rows)] * step[jacobian.columns], y.size)
    difference = 0.5 * (above - below)
    distance, size = np.max(np.abs(product - difference)), np.max(np.abs([product, difference]))
    if distance > FAR * size and distance > NOISE * np.max(np.abs(above)):
        name = "jac" if jacobian.rung == "user" else "jac_sparsity"
        raise ValueError(
            f"`{name}` differs from differences of the right-hand side at t = {t:g} by {distance / size:.0%} of a "
            f"product with a vector; correct it, as Rosenbrock schemes need the exact Jacobian, or use a scheme that "
            f"does not, such as kvaerno5 or radau5"
        )
    return n_slopes


def describe_size(n: int, width: int, count: int) -> str:
    """The message where the matrices of a system are larger than memory."""
    size = 8 * n * width * count / 2**30
    return (
        f"`problem` has {n} unknowns, and the matrices of an implicit step take {size:.3g} GiB: df/dy is dense, or "
        f"becomes so as its bandwidth is {width}; use a stabilised scheme such as rkl2 or an explicit one, or split "
        f"the stiff part off"
    )


def _pack_products(address: int, width: int, field: CompiledRHS, colours, rows, columns, times) -> np.ndarray:
    """Header, colours of the columns, rows and columns of the entries, times, workspace, parameters of the field."""
    n, n_entries, n_parameters = len(colours), len(rows), field.p.size
    n_colours = int(np.max(colours, initial=-1)) + 1
    header = [address, width, n_colours, n_entries, n, n_parameters, field.address]
    whole = np.concatenate((header, colours, rows, columns)).astype(np.int64)
    return np.concatenate((whole.view(np.float64), times, np.zeros(2 * n * max(1, width) + n_parameters), field.p))


class ProductBlock(NamedTuple):
    """The parts of the parameter block that `_pack_products` writes."""

    address: int
    width: int
    n_colours: int
    field: int
    colours: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    times: np.ndarray
    seeds: np.ndarray
    out: np.ndarray
    still: np.ndarray
    p: np.ndarray


@njit(inline="always")  # a function of its own cannot return arrays without Numba's runtime
def _unpack(p_):
    head = carray(p_, (7,)).view(np.int64)
    width, n_entries, n, n_parameters = max(1, head[1]), head[3], head[4], head[5]
    start = 7 + n + 2 * n_entries
    block = carray(p_, (start + 2 + 2 * n * width + 2 * n_parameters,))
    table, times, work = block[7:start].view(np.int64), block[start : start + 2], block[start + 2 :]
    seeds, out = work[: n * width], work[n * width : 2 * n * width]
    still, p = work[2 * n * width : 2 * n * width + n_parameters], work[2 * n * width + n_parameters :]
    rows, columns = table[n : n + n_entries], table[n + n_entries :]
    return ProductBlock(head[0], width, head[2], head[6], table[:n], rows, columns, times, seeds, out, still, p)


@njit(inline="always")
def _differentiate_by_time(block, t, y, base, n):
    """df/dt by differences inside the interval of integration."""
    earlier, later = _choose_times(t, block.times[0], block.times[1])
    if not later > earlier:
        for k in range(n):
            base[k] = 0.0
        return 0
    p = block.p.ctypes.data
    status = call_rhs_at(block.field, later, y, block.seeds.ctypes.data, p, n)
    if status == 0:
        status = call_rhs_at(block.field, earlier, y, block.out.ctypes.data, p, n)
    for k in range(n):
        base[k] = (block.seeds[k] - block.out[k]) / (later - earlier)
    return status


@FieldKernel
def _find_entries_by_products(t, y_, values_, p_, n_):
    """Entries from products with sums of columns of one colour, one or eight at a time."""
    block = _unpack(p_)
    n, n_entries, width = block.colours.shape[0], block.rows.shape[0], block.width
    values = carray(values_, (n_entries + n,))
    y, seeds, out = carray(y_, (n,)).ctypes.data, block.seeds.ctypes.data, block.out.ctypes.data
    p, still, base = block.p.ctypes.data, block.still.ctypes.data, values[n_entries:]
    for first in range(0, block.n_colours, width):
        for k in range(n):
            for lane in range(width):
                block.seeds[k * width + lane] = 1.0 if block.colours[k] == first + lane else 0.0
        if width == 1:
            status = call_jvp_at(block.address, t, y, p, 0.0, seeds, still, out, n)
        else:
            status = call_jvp8_at(block.address, t, y, seeds, out, p, n)
        if status != 0:
            return status
        for e in range(n_entries):
            lane = block.colours[block.columns[e]] - first
            if 0 <= lane < width:
                values[e] = block.out[block.rows[e] * width + lane]
    if width > 1:
        return _differentiate_by_time(block, t, y, base, n)
    for k in range(n):
        block.seeds[k] = 0.0
    return call_jvp_at(block.address, t, y, p, 1.0, seeds, still, base.ctypes.data, n)


@FieldKernel
def _find_entries_by_differences(t, y_, values_, p_, n_):
    """Entries from forward differences along sums of columns of one colour."""
    block = _unpack(p_)
    n, n_entries = block.colours.shape[0], block.rows.shape[0]
    y, values = carray(y_, (n,)), carray(values_, (n_entries + n,))
    base, seeds, out, p = values[n_entries:], block.seeds.ctypes.data, block.out.ctypes.data, block.p.ctypes.data
    largest = 0.0
    for k in range(n):
        largest = max(largest, abs(y[k]))
    status = call_rhs_at(block.field, t, y.ctypes.data, base.ctypes.data, p, n)
    for colour in range(block.n_colours):
        for k in range(n):
            step = STATE_STEP * max(abs(y[k]), SMALL * largest, LEAST) if block.colours[k] == colour else 0.0
            block.seeds[k] = y[k] + step
        if status == 0:
            status = call_rhs_at(block.field, t, seeds, out, p, n)
        if status != 0:
            return status
        for e in range(n_entries):
            j = block.columns[e]
            if block.colours[j] == colour:  # divided by the increment after rounding
                values[e] = (block.out[block.rows[e]] - base[block.rows[e]]) / (block.seeds[j] - y[j])
    return _differentiate_by_time(block, t, y.ctypes.data, base, n)
