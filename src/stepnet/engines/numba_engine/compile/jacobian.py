"""Jacobians df/dy: supplied by the user, or put together from a few directional derivatives.

Columns that share no row get one colour and are found together.  With S_jc = 1 where column j has the colour c,

    B = (df/dy) S,    (df/dy)_ij = B_i,colour(j)    wherever slope i depends on entry j

(Curtis, Powell & Reid, IMA J. Appl. Math. 13, 1974), so a tridiagonal Jacobian costs three products, whatever n is.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array, issparse

from stepnet.engines.numba_engine.compile.arguments import Block
from stepnet.engines.numba_engine.compile.derivatives import RULES
from stepnet.engines.numba_engine.compile.dual import WIDTH, compile_dual
from stepnet.engines.numba_engine.compile.field import (
    AGREEMENT,
    MOST_NODES,
    MOST_NODES_OF_DERIVATIVES,
    N_CHECKS,
    _first_line,
    c_address,
)
from stepnet.engines.numba_engine.compile.fingerprint import fingerprint
from stepnet.engines.numba_engine.compile.form import Form, python_call, try_once
from stepnet.engines.numba_engine.compile.graph import EVALUATE
from stepnet.engines.numba_engine.compile.machine_code import Code, assembly
from stepnet.engines.numba_engine.compile.trace import Trace, trace

UNEXPLAINED = 1e-9  # part of a product that the entries may leave unexplained: far above rounding, harmless if lost
_REAL, _REALS, _COUNT = ctypes.c_double, ctypes.c_void_p, ctypes.c_int64
JVP = ctypes.CFUNCTYPE(ctypes.c_int32, _REAL, _REALS, _REALS, _REAL, _REALS, _REALS, _REALS, _COUNT)
JVP8 = ctypes.CFUNCTYPE(ctypes.c_int32, _REAL, _REALS, _REALS, _REALS, _REALS, _COUNT)

_kept: OrderedDict = OrderedDict()
_MOST_KEPT = 64


# ---- the records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pushforward:
    """V -> (df/dy) V: `columns(t, y, V)` takes V of shape (n, k) for any k.

    `address` is the C function behind it, `p` its parameter block and `width` the number of columns it takes at once:
    1 with the signature of `jvp`, 8 with that of `jvp8`, 0 if there is none.
    """

    rung: str
    columns: Callable
    address: int = 0
    width: int = 0
    p: np.ndarray | None = None
    keep_alive: object = field(default=None, repr=False)


@dataclass(frozen=True)
class Pattern:
    """Where df/dy may differ from zero, and the colours of its columns.

    `source` is "exact", "given" (by the user) or "detected" (by trying, so another branch may know more).
    """

    sparsity: csr_array
    source: str
    colours: np.ndarray
    n_colours: int


@dataclass(frozen=True)
class Jacobian:
    """df/dy at any (t, y), as a dense, banded or sparse matrix, and its products with vectors.

    `rung` says where it comes from: user, traced, dual or differences.  `entries(t, y)` gives rows, columns and values.
    """

    rung: str
    shape: tuple[int, int]
    pattern: Pattern
    entries: Callable
    pushforward: Pushforward
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
        return bandwidth(self.sparsity)

    def dense(self, t: float, y) -> np.ndarray:
        """The matrix as an array."""
        rows, columns, values = self._entries(t, y)
        matrix = np.zeros(self.shape, values.dtype)
        matrix[rows, columns] = values
        return matrix

    def sparse(self, t: float, y) -> csc_array:
        """The matrix by compressed columns."""
        rows, columns, values = self._entries(t, y)
        return csc_array(coo_array((values, (rows, columns)), self.shape))

    def banded(self, t: float, y, lower: int | None = None, upper: int | None = None) -> np.ndarray:
        """The diagonals, as `scipy.linalg.solve_banded` wants them: out[upper + i - j, j] = (df/dy)_ij."""
        rows, columns, values = self._entries(t, y)
        lower = self.bandwidth[0] if lower is None else lower
        upper = self.bandwidth[1] if upper is None else upper
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
        return self.pushforward.columns(t, _flat(y, n, self.dtype), _flat(v, n, self.dtype, "v")[:, None])[:, 0]

    def _entries(self, t: float, y):
        return self.entries(t, _flat(y, self.shape[1], self.dtype))


def _flat(y, n: int, dtype, name: str = "y") -> np.ndarray:
    """A state as one row of float64, or of complex128 for a complex problem."""
    flat = np.ascontiguousarray(y, np.result_type(dtype, np.float64)).ravel()
    if flat.size != n:
        raise ValueError(f"`{name}` must have {n} entries, found {flat.size}")
    return flat


# ---- where the entries are ---------------------------------------------------------------------------------------


def sparsity_of(tracing: Trace) -> csr_array:
    """Which slopes depend on which entries of the state, read off the graph; sets are the bits of whole numbers.

    Operations without derivatives (comparisons, floor, sign) pass no dependence on.
    """
    graph, reached = tracing.graph, {}
    for number in graph.live(tracing.outputs):
        operation, *operands = graph.nodes[number]
        bits = 1 << operands[0] if operation == "y" else 0
        if operation in RULES:
            for operand in operands:
                bits |= reached[operand]
        reached[number] = bits
    columns = [_positions(reached[output], tracing.n) for output in tracing.outputs]
    starts = np.cumsum([0, *(row.size for row in columns)])
    return csr_array((np.ones(starts[-1], bool), np.concatenate(columns), starts), shape=(len(columns), tracing.n))


def _positions(bits: int, n: int) -> np.ndarray:
    packed = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def detected_sparsity(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
    """Which slopes answer NaN to a tangent NaN, at y and at random points nearby: a numerical detection.

    NaN survives a partial derivative that happens to be zero, but nothing shows what a branch not taken would do.
    """
    n = shape[1]
    found = csr_array(shape, dtype=bool)
    n_points = 0
    for near in (y, *_points_near(y)):
        try:
            if not np.any(push.columns(t, near, np.zeros((n, 1)))):  # NaN where the function is not defined
                found, n_points = found + _reached_by_nan(push, shape, t, near), n_points + 1
        except Exception:  # outside the domain of the function
            continue
    return found if n_points else csr_array(np.ones(shape, bool))


def _reached_by_nan(push: Pushforward, shape: tuple[int, int], t: float, y: np.ndarray) -> csr_array:
    """Search groups of columns, then the eighths of the groups found, and so on.

    Groups that share no row are searched together, so a banded Jacobian takes O(log n) products.
    """
    n_rows, n = shape
    found, width = csr_array(np.ones((n_rows, 1), bool)), WIDTH  # rows and groups of `width` columns
    while width < n:
        width *= WIDTH
    while width > 1:
        width //= WIDTH
        part = np.arange(n) // width
        colours, n_colours = colouring(found)
        reached = np.empty((n_colours, n_rows, WIDTH), bool)
        for colour in range(n_colours):
            members = np.flatnonzero(colours[part // WIDTH] == colour)
            seeds = np.zeros((n, WIDTH))
            seeds[members, part[members] % WIDTH] = np.nan
            reached[colour] = np.isnan(push.columns(t, y, seeds))
        rows, groups = found.nonzero()
        which, eighths = np.nonzero(reached[colours[groups], rows])
        entries = (np.ones(which.size, bool), (rows[which], WIDTH * groups[which] + eighths))
        found = csr_array(entries, shape=(n_rows, part[-1] + 1))
    return found


def _points_near(y: np.ndarray):
    generator = np.random.default_rng(0)
    return (y + 0.1 * (np.abs(y) + 0.1) * generator.standard_normal(y.size) for _ in range(N_CHECKS))


def bandwidth(sparsity) -> tuple[int, int]:
    """(lower, upper): the number of diagonals below and above the main one that hold entries."""
    rows, columns = sparsity.nonzero()
    return int(np.max(rows - columns, initial=0)), int(np.max(columns - rows, initial=0))


def colouring(sparsity) -> tuple[np.ndarray, int]:
    """Colours of the columns, such that no two of a colour share a row, and how many there are.

    Greedy, once from left to right and once by falling number of entries; the better of the two.
    """
    by_columns = csc_array(sparsity)
    fullest_first = np.argsort(-np.diff(by_columns.indptr), kind="stable")
    attempts = [_greedy(by_columns, order) for order in (np.arange(by_columns.shape[1]), fullest_first)]
    return min(attempts, key=lambda attempt: attempt[1])


def _greedy(by_columns: csc_array, order: np.ndarray) -> tuple[np.ndarray, int]:
    """Give every column the first colour that none of its rows has seen; sets of colours are bits of whole numbers."""
    seen = [0] * by_columns.shape[0]
    colours = np.zeros(by_columns.shape[1], int)
    starts, indices = by_columns.indptr.tolist(), by_columns.indices.tolist()
    for column in order.tolist():
        rows = indices[starts[column] : starts[column + 1]]
        taken = 0
        for row in rows:
            taken |= seen[row]
        first_free = ~taken & (taken + 1)
        for row in rows:
            seen[row] |= first_free
        colours[column] = first_free.bit_length() - 1
    return colours, int(colours.max(initial=0)) + 1


# ---- products with vectors ---------------------------------------------------------------------------------------


def traced_pushforward(form: Form, block: Block, tracing: Trace) -> Pushforward:
    """By the straight-line code of a trace, one column at a time."""
    key = ("traced", *_key(form, block), block.frozen)
    code = _remembered(key, lambda: Code(assembly(tracing, "jvp"), "jvp"))
    return _c_pushforward("traced", form, block, code.address, code)


def _c_pushforward(rung: str, form: Form, block: Block, address: int, keep_alive) -> Pushforward:
    function, p, p_dot = JVP(address), block.values, np.zeros(block.values.size)

    def columns(t, y, V):
        directions, out = np.ascontiguousarray(V.T), np.empty((V.shape[1], form.n_out))
        for v, product in zip(directions, out, strict=True):
            pointers = (v.ctypes.data, p_dot.ctypes.data, product.ctypes.data)
            if function(t, y.ctypes.data, p.ctypes.data, 0.0, *pointers, y.size) != 0:
                _replay(form, block, t, y)
        return out.T

    return Pushforward(rung, columns, address, 1, p, keep_alive)


def dual_pushforward(form: Form, block: Block, result) -> Pushforward:
    """By the right-hand side, which returned `result` in Python, on dual numbers: eight columns at a time."""
    key = ("dual", *_key(form, block), type(result).__name__, np.shape(result))
    code = _remembered(key, lambda: compile_dual(form, block, result))
    function, p = JVP8(code.address), block.values

    def columns(t, y, V):
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


def difference_pushforward(form: Form, block: Block) -> Pushforward:
    """By central differences, (f(y + hv) - f(y - hv)) / 2h: about ten digits at best."""
    evaluate, relative_step = python_call(form, block.values), np.finfo(float).eps ** (1 / 3)

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


def user_pushforward(form: Form, block: Block, jvp) -> Pushforward:
    """By the user's `jvp(t, y, v, *args)`, or a C function with the signature of `jvp`."""
    address = c_address(jvp)
    if address is not None:
        return _c_pushforward("user", form, block, address, jvp)
    if not callable(jvp):
        raise TypeError(f"`jvp` must be a function or a C address, found {type(jvp).__name__}")

    def columns(t, y, V):
        out = np.empty((form.n_out, V.shape[1]))
        for k, v in enumerate(V.T):
            product = np.asarray(jvp(t, _shaped(form, y), _shaped(form, v), *form.args))
            if product.size != form.n_out:
                raise ValueError(f"`jvp` must return {form.n_out} numbers, found an array of shape {product.shape}")
            out[:, k] = product.ravel()
        return out

    return Pushforward("user", columns)


def _key(form: Form, block: Block) -> tuple:
    """What machine code depends on: the function and the shapes and kinds of its arguments."""
    return fingerprint(form.function), form.inputs, form.output, form.is_in_place, block.slots


def _remembered(key: tuple, build: Callable):
    """Machine code made earlier in this process, or now."""
    if key not in _kept:
        _kept[key] = build()
        if len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return _kept[key]


def _shaped(form: Form, y: np.ndarray):
    """The flat state as the user's functions take it."""
    return y.reshape(form.inputs[0])[()] if len(form.inputs) == 1 else y


def _replay(form: Form, block: Block, t: float, y: np.ndarray):
    """Run the Python original where its compiled copy raised, to show the user's own exception."""
    python_call(form, block.values)(t, y, np.empty(form.n_out))
    raise RuntimeError(f"the derivative of `{form.label}` raised at t = {t:g}, though `{form.label}` itself does not")


# ---- the ladder --------------------------------------------------------------------------------------------------


def make_jacobian(
    form: Form,
    block: Block,
    t: float,
    y: np.ndarray,
    *,
    jac=None,
    jac_sparsity=None,
    jvp=None,
    rungs: tuple[str, ...] = ("traced", "dual"),
) -> Jacobian:
    """The Jacobian of a right-hand side; what the user supplies wins, then the first of `rungs` that works.

    Parameters
    ----------
    form, block
        The right-hand side and its packed arguments.
    t, y
        Where it is tried first; `y` is flat.
    jac : callable, array_like or sparse matrix, optional
        `jac(t, y, *args)` giving the matrix, dense or sparse, or the matrix itself if it is constant.
    jac_sparsity : array_like or sparse matrix, optional
        Nonzero where slope i depends on entry j; needed only where it cannot be found out.
    jvp : callable or C address, optional
        `jvp(t, y, v, *args)` giving (df/dy) v.
    rungs : tuple of str
        "differences" must be asked for by name.
    """
    shape, y = (form.n_out, form.n_in), _flat(y, form.n_in, form.dtype)
    given = None if jac_sparsity is None else _given_sparsity(jac_sparsity, shape)
    push = None if jvp is None else user_pushforward(form, block, jvp)
    if jac is not None:
        return _user_jacobian(form, jac, given, push, t, y)
    if form.dtype.kind == "c":
        raise TypeError(f"a complex state needs `jac`: `{form.label}` can be differentiated for real states only")
    result, _ = try_once(form, block.values, t, y.astype(form.dtype))
    tracing, reason = _checked_trace(form, block, t, y) if "traced" in rungs else (None, "")
    if push is None:
        push, reason = _first_that_works(form, block, result, tracing, rungs, reason)
    pattern = _make_pattern(push, shape, t, y, given, tracing)
    return Jacobian(push.rung, shape, pattern, _make_entries(push, shape, pattern), push, reason)


def _first_that_works(form: Form, block: Block, result, tracing: Trace | None, rungs, reason: str):
    """Short straight-line code, duals, long straight-line code, differences; and why not a faster one."""
    is_short = tracing is not None and len(tracing.graph.live(tracing.outputs)) <= MOST_NODES
    ways = {
        "traced": lambda: traced_pushforward(form, block, tracing),
        "dual": lambda: dual_pushforward(form, block, result),
        "differences": lambda: difference_pushforward(form, block),
    }
    order = ("traced", "dual", "differences") if is_short else ("dual", "traced", "differences")
    reasons = [reason] if reason else []
    for rung in order:
        if rung in rungs and not (rung == "traced" and tracing is None):
            try:
                return ways[rung](), "; ".join(reasons)
            except Exception as exception:  # ours, Numba's or LLVM's: not on this rung
                reasons.append(f"not {rung}: {_first_line(exception)}")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise ValueError(
        f"`{form.label}` cannot be differentiated{why}; supply `jac` or `jvp`, or ask for finite differences"
    )


def _checked_trace(form: Form, block: Block, t: float, y: np.ndarray) -> tuple[Trace | None, str]:
    """The trace, if it does what the Python function does here and nearby, or the reason why there is none."""
    evaluate = python_call(form, block.values)
    try:
        tracing = trace(form, block, MOST_NODES_OF_DERIVATIVES)
    except Exception as exception:  # ours, or Python's from inside
        return None, f"not traced: {_first_line(exception)}"
    for near in (y, *_points_near(y)):
        slopes = np.empty(form.n_out, form.dtype)
        try:
            with np.errstate(all="ignore"):
                evaluate(t, near.astype(form.dtype), slopes)
        except Exception:  # outside the domain of the function: no place to compare
            continue
        tolerance = AGREEMENT[slopes.itemsize] * np.max(np.abs(slopes), initial=0.0, where=np.isfinite(slopes))
        if not np.allclose(_evaluated(tracing, t, near, block.values), slopes, rtol=0, atol=tolerance, equal_nan=True):
            return None, "not traced: the trace gave another result than Python"
    return tracing, ""


def _evaluated(tracing: Trace, t: float, y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The slopes of a trace, node by node in Python."""
    inputs = {"t": lambda: np.float64(t), "y": lambda i: y[i], "p": lambda j: p[j], "const": lambda x, _: x}
    values: dict = {}
    with np.errstate(all="ignore"):
        for number in tracing.graph.live(tracing.outputs):
            operation, *operands = tracing.graph.nodes[number]
            if operation in inputs:
                values[number] = inputs[operation](*operands)
            else:
                values[number] = EVALUATE[operation](*(values[operand] for operand in operands))
    return np.array([values[output] for output in tracing.outputs], dtype=np.float64)


def _make_pattern(push: Pushforward, shape, t: float, y: np.ndarray, given, tracing: Trace | None) -> Pattern:
    """What the trace says; else what the user says; else what can be found by trying."""
    if tracing is not None:
        sparsity, source = sparsity_of(tracing), "exact"
        if given is not None:
            missing = (sparsity.astype(np.int8) - given.astype(np.int8)).tocoo()
            _refuse_missing(missing.row[missing.data > 0])
    elif given is not None:
        sparsity, source = given, "given"
    elif push.rung == "differences":
        sparsity, source = csr_array(np.ones(shape, bool)), "exact"
    else:
        sparsity, source = detected_sparsity(push, shape, t, y), "detected"
    return Pattern(sparsity, source, *colouring(sparsity))


def _refuse_missing(rows: np.ndarray) -> None:
    if rows.size:
        raise ValueError(f"`jac_sparsity` leaves out entries of the Jacobian in row {rows[0]}")


def _make_entries(push: Pushforward, shape: tuple[int, int], pattern: Pattern) -> Callable:
    """A function (t, y) -> rows, columns, values by one product for every colour.

    A pattern that is not exact costs one product more, with a random vector w: if the entries do not explain
    (df/dy) w, the pattern has holes.  That is an error if the user gave it; else there is another search at (t, y).
    """
    by_columns, n = csc_array(pattern.sparsity), shape[1]
    rows, columns = by_columns.indices, np.repeat(np.arange(n), np.diff(by_columns.indptr))
    seeds = np.zeros((n, pattern.n_colours))
    seeds[np.arange(n), pattern.colours] = 1.0
    w = np.random.default_rng(0).uniform(0.5, 1.5, n)

    def exact_entries(t, y):
        products = push.columns(t, y, seeds)
        return rows, columns, products[rows, pattern.colours[columns]]

    def checked_entries(t, y):
        products = push.columns(t, y, np.column_stack((seeds, w)))
        values = products[rows, pattern.colours[columns]]
        terms = values * w[columns]
        rest = products[:, -1] - np.bincount(rows, terms, shape[0])
        unexplained = np.flatnonzero(np.abs(rest) > UNEXPLAINED * np.bincount(rows, np.abs(terms), shape[0]))
        if unexplained.size == 0:
            return rows, columns, values
        if pattern.source == "given":
            _refuse_missing(unexplained)
        fresh = _reached_by_nan(push, shape, t, y) if push.rung == "dual" else csr_array(np.ones(shape, bool))
        return _make_entries(push, shape, Pattern(fresh, "exact", *colouring(fresh)))(t, y)

    return exact_entries if pattern.source == "exact" else checked_entries


# ---- what the user supplies --------------------------------------------------------------------------------------


def _user_jacobian(form: Form, jac, given, push: Pushforward | None, t: float, y: np.ndarray) -> Jacobian:
    """The user's matrix, constant or a function of (t, y, *args)."""
    shape = (form.n_out, form.n_in)

    def matrix(t, y):
        return _checked_matrix(jac(t, _shaped(form, y), *form.args) if callable(jac) else jac, shape)

    def entries(t, y):
        found = csc_array(matrix(t, y)).tocoo()
        return found.row, found.col, found.data

    first = matrix(t, y)
    if given is None:
        given = csr_array(np.ones(shape, bool)) if callable(jac) else csr_array(first) != 0
    pattern = Pattern(given, "given", *colouring(given))
    push = push or Pushforward("user", lambda t, y, V: matrix(t, y) @ V)
    return Jacobian("user", shape, pattern, entries, push, dtype=form.dtype)


def _checked_matrix(value, shape: tuple[int, int]):
    matrix = value if issparse(value) else np.asarray(value)
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"`jac` must be a matrix or return one, found {type(value).__name__}")
    if matrix.shape != shape and matrix.shape in ((), (1,)):
        matrix = matrix.reshape(1, 1)
    if matrix.shape != shape:
        raise ValueError(f"`jac` must have shape {shape}, found {matrix.shape}: one row for every slope")
    return matrix


def _given_sparsity(jac_sparsity, shape: tuple[int, int]) -> csr_array:
    given = jac_sparsity if issparse(jac_sparsity) else np.atleast_2d(np.asarray(jac_sparsity))
    if given.shape != shape:
        raise ValueError(f"`jac_sparsity` must have shape {shape}, found {given.shape}")
    return csr_array(given != 0)
