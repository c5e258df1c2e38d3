"""Jacobians df/dy: supplied by the user, or assembled from a few directional derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array, issparse

from stepnet.c_functions import check_function
from stepnet.engines.numba_engine.array_tracing.array_trace import MOST_NODES, trace_short_or_loops
from stepnet.engines.numba_engine.array_tracing.loops import Loops
from stepnet.engines.numba_engine.codegen.loop_code import compile_trace
from stepnet.engines.numba_engine.derivatives.jacobian_products import (
    Pullback,
    Pushforward,
    as_state,
    build_difference_pushforward,
    build_dual_pushforward,
    build_traced_pullback,
    build_traced_pushforward,
    choose_points_near,
    wrap_c_slopes,
    wrap_user_pullback,
    wrap_user_pushforward,
)
from stepnet.engines.numba_engine.derivatives.sparsity import (
    Pattern,
    colour_columns,
    detect_sparsity,
    find_bandwidth,
    find_sparsity,
    search_by_nan,
)
from stepnet.engines.numba_engine.rhs.arguments import ArgumentBlock
from stepnet.engines.numba_engine.rhs.call_form import CallForm, try_once, wrap_python_call
from stepnet.engines.numba_engine.rhs.comparison import AGREEMENT
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, summarise
from stepnet.engines.numba_engine.tracing.graph import EVALUATE, TooManyNodes
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace, trace
from stepnet.records import as_array, convert_integers, format_value, validate_number
from stepnet.validation import whole

UNEXPLAINED = 1e-9  # relative part of a product that missing entries may account for: far above rounding, harmless


@dataclass(frozen=True)
class RHSJacobian:
    """df/dy at any (t, y), as a dense, banded or sparse matrix, and its products with vectors.

    `rung` is the source: user, traced, dual or differences, and `reason` says why not a faster one.  `entries(t, y)`
    gives rows, columns and values; `pattern.source` says how their positions are known.
    """

    rung: str
    shape: tuple[int, int]
    pattern: Pattern
    entries: Callable
    pushforward: Pushforward
    pullback: Pullback
    reason: str = ""
    dtype: np.dtype = np.dtype(np.float64)

    @property
    def sparsity(self) -> csr_array:
        """Where entries may differ from zero."""
        return self.pattern.sparsity

    @property
    def n_colours(self) -> int:
        """How many products with vectors one Jacobian costs."""
        return self.pattern.n_colours

    @property
    def bandwidth(self) -> tuple[int, int]:
        """The number of diagonals below and above the main one."""
        return find_bandwidth(self.sparsity)

    def dense(self, t: float, y) -> np.ndarray:
        """The matrix as an array."""
        rows, columns, values = self._entries(t, y)
        matrix = np.zeros(self.shape, values.dtype)
        matrix[rows, columns] = values
        return matrix

    def sparse(self, t: float, y) -> csc_array:
        """The matrix in compressed column format."""
        rows, columns, values = self._entries(t, y)
        return csc_array(coo_array((values, (rows, columns)), self.shape))

    def banded(self, t: float, y, lower: int | None = None, upper: int | None = None) -> np.ndarray:
        """The diagonals in the format of `scipy.linalg.solve_banded`: out[upper + i - j, j] = (df/dy)_ij."""
        rows, columns, values = self._entries(t, y)
        most = max(self.shape) - 1
        lower = self.bandwidth[0] if lower is None else whole(0, most)("lower", lower)
        upper = self.bandwidth[1] if upper is None else whole(0, most)("upper", upper)
        outside = ((rows - columns > lower) | (columns - rows > upper)) & (values != 0.0)
        if outside.any():
            i, j = rows[outside][0], columns[outside][0]
            raise ValueError(f"`lower` = {lower} and `upper` = {upper} leave out the entry ({i}, {j}) of the Jacobian")
        is_inside = (rows - columns <= lower) & (columns - rows <= upper)
        rows, columns, values = rows[is_inside], columns[is_inside], values[is_inside]
        diagonals = np.zeros((lower + upper + 1, self.shape[1]), values.dtype)
        diagonals[upper + rows - columns, columns] = values
        return diagonals

    def jvp(self, t: float, y, v) -> np.ndarray:
        """(df/dy) v."""
        n = self.shape[1]
        return self.pushforward.columns(
            validate_number("t", t), _flatten(y, n, self.dtype), _flatten(v, n, self.dtype, "v")[:, None]
        )[:, 0]

    def vjp(self, t: float, y, w) -> np.ndarray:
        """w (df/dy)."""
        n_rows, n = self.shape
        return self.pullback.product(
            validate_number("t", t), _flatten(y, n, self.dtype), _flatten(w, n_rows, self.dtype, "w")
        )

    def _entries(self, t: float, y):
        return self.entries(validate_number("t", t), _flatten(y, self.shape[1], self.dtype))


def _flatten(y, n: int, dtype, name: str = "y") -> np.ndarray:
    """A flat state of float64, or of complex128 for a complex problem."""
    try:
        given = np.asarray(y)
    except ValueError:
        given = np.asarray(None)
    given = convert_integers(name, given)
    if given.dtype.kind not in ("biufc" if np.dtype(dtype).kind == "c" else "biuf"):
        raise TypeError(f"`{name}` must be an array of numbers like the state, found {type(y).__name__}")
    flat = np.ascontiguousarray(given, np.result_type(dtype, np.float64)).ravel()
    if flat.size != n:
        raise ValueError(f"`{name}` must have {n} entries, found {flat.size}")
    return flat


# ---- the ladder --------------------------------------------------------------------------------------------------


def make_jacobian(
    form: CallForm,
    block: ArgumentBlock,
    t: float,
    y: np.ndarray,
    *,
    jac=None,
    jac_sparsity=None,
    jvp=None,
    vjp=None,
    rungs: tuple[str, ...] = ("traced", "dual"),
) -> RHSJacobian:
    """The Jacobian of a right-hand side: the user's derivatives if given, else the first of `rungs` that works.

    Parameters
    ----------
    form, block
        The right-hand side and its packed arguments.
    t, y
        The first trial point; `y` is flat.
    jac : callable, array_like or sparse matrix, optional
        `jac(t, y, *args)` returning the matrix, dense or sparse, or the matrix itself if it is constant.
    jac_sparsity : array_like or sparse matrix, optional
        Nonzero where slope i depends on entry j; needed only where it cannot be detected.
    jvp : callable or C function, optional
        `jvp(t, y, v, *args)` returning (df/dy) v.
    vjp : callable or C function, optional
        `vjp(t, y, w, *args)` returning w (df/dy).
    rungs : tuple of str
        "differences" is used only if it is listed.
    """
    shape, y = (form.n_out, form.n_in), _flatten(y, form.n_in, form.dtype)
    given = None if jac_sparsity is None else _validate_sparsity(jac_sparsity, shape)
    push = None if jvp is None else wrap_user_pushforward(form, block, _validate_function("jvp", jvp))
    pull = None if vjp is None else wrap_user_pullback(form, block, _validate_function("vjp", vjp))
    if jac is not None:
        return _wrap_user_jacobian(form, jac, given, push, pull, t, y)
    if form.dtype.kind == "c":
        raise TypeError(f"a complex state needs `jac`: `{form.label}` can be differentiated for real states only")
    refused = None, "not traced: refused" if "dual" in rungs else ""
    tracing, reason = _validate_trace(form, block, t, y) if "traced" in rungs else refused
    if push is None:
        push, reason = _try_in_turn(form, block, (t, y), tracing, rungs, reason)
    pattern = _make_pattern(push, shape, t, y, given, tracing)
    entries = _make_entries(push, shape, pattern)
    if pull is None:
        is_ours = tracing is not None and push.rung != "user"
        pull = build_traced_pullback(form, block, tracing) if is_ours else _build_pullback(push.rung, entries, shape)
    return RHSJacobian(push.rung, shape, pattern, entries, push, pull, reason)


def make_products(form: CallForm, block: ArgumentBlock, t: float, y: np.ndarray, *, jac=None, jvp=None, rungs=()):
    """(df/dy) v by the first rung that works, without the sparsity pattern: for matrix-free methods."""
    y = _flatten(y, form.n_in, form.dtype)
    if jvp is not None:
        return wrap_user_pushforward(form, block, _validate_function("jvp", jvp))
    if jac is not None:
        return _wrap_user_jacobian(form, jac, None, None, None, t, y).pushforward
    tracing, reason = _validate_trace(form, block, t, y) if "traced" in rungs else (None, "not traced: refused")
    return _try_in_turn(form, block, (t, y), tracing, rungs, reason)[0]


def _build_pullback(rung: str, entries: Callable, shape: tuple[int, int]) -> Pullback:
    """w (df/dy) from the entries of the matrix."""

    def product(t, y, w):
        rows, columns, values = entries(t, y)
        return csr_array((values, (columns, rows)), shape[::-1]) @ w

    return Pullback(rung, product)


def _try_in_turn(form: CallForm, block: ArgumentBlock, start, tracing: Trace | Loops | None, rungs, reason: str):
    """Short straight-line code or loops, duals, long straight-line code, differences; and why not a faster one."""
    (t, y), is_short = start, isinstance(tracing, Loops) or (tracing is not None and tracing.size <= MOST_NODES)
    ways = {
        "traced": lambda: build_traced_pushforward(form, block, tracing),
        "dual": lambda: build_dual_pushforward(form, block, try_once(form, block.values, t, y.astype(form.dtype))[0]),
        "differences": lambda: build_difference_pushforward(form, block),
    }
    order = ("traced", "dual", "differences") if is_short else ("dual", "traced", "differences")
    reasons = [reason] if reason else []
    for rung in order:
        if rung in rungs and not (rung == "traced" and tracing is None):
            try:
                return ways[rung](), "; ".join(reasons)
            except Exception as exception:  # of this package, Numba or LLVM: not on this rung
                reasons.append(f"not {rung}: {summarise(exception)}")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise ValueError(f"`{form.label}` cannot be differentiated{why}; supply `jac` or `jvp`")


def _validate_trace(form: CallForm, block: ArgumentBlock, t: float, y: np.ndarray) -> tuple[Trace | Loops | None, str]:
    """The trace, if it agrees with the Python function here and nearby, or the reason why there is none."""
    evaluate = wrap_python_call(form, block.values)
    try:
        tracing, slopes_of = _trace(form, block)
    except Exception as exception:  # of this package or the user's function
        return None, f"not traced: {summarise(exception)}"
    for near in (y, *choose_points_near(y)):
        slopes = np.empty(form.n_out, form.dtype)
        try:
            with np.errstate(all="ignore"):
                evaluate(t, near.astype(form.dtype), slopes)
        except Exception:  # outside the domain of the function: nothing to compare
            continue
        tolerance = AGREEMENT[slopes.itemsize] * np.max(np.abs(slopes), initial=0.0, where=np.isfinite(slopes))
        if not np.allclose(slopes_of(t, near), slopes, rtol=0, atol=tolerance, equal_nan=True):
            return None, "not traced: the trace differs from Python"
    return tracing, ""


def _trace(form: CallForm, block: ArgumentBlock) -> tuple[Trace | Loops, Callable]:
    """A short trace, loops or a long trace, and a function (t, y) that evaluates it."""
    try:
        tracing = trace_short_or_loops(form, block)
    except (CannotTrace, TooManyNodes):
        tracing = trace(form, block, MOST_NODES_OF_DERIVATIVES)
    if isinstance(tracing, Loops):
        return tracing, wrap_c_slopes(compile_trace(tracing, "f"), form.n_out, block.values)
    tracing.graph.most = 4 * MOST_NODES_OF_DERIVATIVES
    return tracing, lambda t, y: _evaluate(tracing, t, y, block.values)


def _evaluate(tracing: Trace, t: float, y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The slopes of a trace, node by node in Python."""
    constants: dict[str, Callable] = {"t": lambda: np.float64(t), "const": lambda x, _: x}
    inputs = {**constants, "y": lambda i: y[i], "p": lambda j: p[j]}
    values: dict = {}
    with np.errstate(all="ignore"):
        for number in tracing.graph.live(tracing.outputs):
            operation, *operands = tracing.graph.nodes[number]
            if operation in inputs:
                values[number] = inputs[operation](*operands)
            else:
                values[number] = EVALUATE[operation](*(values[operand] for operand in operands))
    return np.array([values[output] for output in tracing.outputs], dtype=np.float64)


def _make_pattern(push: Pushforward, shape, t: float, y: np.ndarray, given, tracing: Trace | Loops | None) -> Pattern:
    """The pattern from the trace, else from the user, else by numerical detection."""
    if tracing is not None:
        sparsity, source = find_sparsity(tracing, shape[1]), "exact"
        if given is not None:
            missing = (sparsity.astype(np.int8) - given.astype(np.int8)).tocoo()
            _refuse_missing(missing.row[missing.data > 0])
    elif given is not None:
        sparsity, source = given, "given"
    elif push.rung == "differences":
        sparsity, source = csr_array(np.ones(shape, bool)), "exact"
    else:
        sparsity, source = detect_sparsity(push, shape, t, y), "detected"
    return Pattern(sparsity, source, *colour_columns(sparsity))


def _refuse_missing(rows: np.ndarray) -> None:
    if rows.size:
        raise ValueError(f"`jac_sparsity` leaves out entries of the Jacobian in row {rows[0]}")


def _make_entries(push: Pushforward, shape: tuple[int, int], pattern: Pattern) -> Callable:
    """A function (t, y) -> rows, columns, values by one product per colour.

    A pattern that is not exact costs one more product, with a random vector w: if the entries do not explain (df/dy) w,
    the pattern is incomplete.  That is an error if the user gave it; else it is detected again at (t, y).
    """
    by_columns, n = csc_array(pattern.sparsity), shape[1]
    rows, columns = by_columns.indices, np.repeat(np.arange(n), np.diff(by_columns.indptr))
    seeds = np.zeros((n, pattern.n_colours))
    seeds[np.arange(n), pattern.colours] = 1.0
    w = np.random.default_rng(0).uniform(0.5, 1.5, n)

    def exact_entries(t, y):
        products = push.columns(t, y, seeds)
        return rows, columns, products[rows, pattern.colours[columns]]

    def check_entries(t, y):
        products = push.columns(t, y, np.column_stack((seeds, w)))
        values = products[rows, pattern.colours[columns]]
        terms = values * w[columns]
        rest = products[:, -1] - np.bincount(rows, terms, shape[0])
        unexplained = np.flatnonzero(np.abs(rest) > UNEXPLAINED * np.bincount(rows, np.abs(terms), shape[0]))
        if unexplained.size == 0:
            return rows, columns, values
        if pattern.source == "given":
            _refuse_missing(unexplained)
        fresh = search_by_nan(push, shape, t, y) if push.rung == "dual" else csr_array(np.ones(shape, bool))
        return _make_entries(push, shape, Pattern(fresh, "exact", *colour_columns(fresh)))(t, y)

    return exact_entries if pattern.source == "exact" else check_entries


# ---- user-supplied derivatives -----------------------------------------------------------------------------------


def _wrap_user_jacobian(
    form: CallForm, jac, given, push: Pushforward | None, pull: Pullback | None, t: float, y
) -> RHSJacobian:
    """The user's matrix, constant or a function of (t, y, *args)."""
    shape = (form.n_out, form.n_in)

    def matrix(t, y):
        found = jac(t, as_state(form, y), *form.args) if callable(jac) else jac
        return _validate_matrix(found, shape, is_real=form.dtype.kind == "f")

    def entries(t, y):
        found = matrix(t, y)
        found = found.tocoo() if issparse(found) else csc_array(found).tocoo()
        return found.row, found.col, found.data

    first = matrix(t, y)
    if given is None:
        is_open = callable(jac) and not issparse(first)  # zeros of a dense matrix may be nonzero at other states
        given = csr_array(np.ones(shape, bool)) if is_open else _find_stored(first)
    pattern = Pattern(given, "given", *colour_columns(given))
    push = push or Pushforward("user", lambda t, y, V: matrix(t, y) @ V)
    pull = pull or Pullback("user", lambda t, y, w: matrix(t, y).T @ w)
    return RHSJacobian("user", shape, pattern, entries, push, pull, dtype=form.dtype)


def _find_stored(matrix) -> csr_array:
    """Where a sparse matrix stores entries, zeros included, and where a dense one is nonzero."""
    if not issparse(matrix):
        return csr_array(matrix) != 0
    found = matrix.tocoo()
    return csr_array((np.ones(len(found.data), bool), (found.row, found.col)), matrix.shape)


def _validate_function(name: str, value):
    check_function(name, value)
    return value


def _validate_matrix(value, shape: tuple[int, int], is_real: bool):
    matrix = value if issparse(value) else as_array("jac", value)
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"`jac` must be a matrix of numbers or return one, found {format_value(value)}")
    if is_real and matrix.dtype.kind == "c":
        raise TypeError("`jac` must be real as the state is, found a complex matrix; for complex states give `y0 + 0j`")
    if not matrix.dtype.isnative:
        matrix = matrix.astype(matrix.dtype.newbyteorder("="))
    if matrix.shape != shape and matrix.shape in ((), (1,)):
        matrix = matrix.reshape(1, 1)
    if matrix.shape != shape:
        raise ValueError(f"`jac` must have shape {shape}, found {matrix.shape}: one row for every slope")
    return matrix


def _validate_sparsity(jac_sparsity, shape: tuple[int, int]) -> csr_array:
    given = jac_sparsity if issparse(jac_sparsity) else np.atleast_2d(np.asarray(jac_sparsity))
    if given.shape != shape:
        raise ValueError(f"`jac_sparsity` must have shape {shape}, found {given.shape}")
    return csr_array(given != 0)
