"""Dual numbers as a Numba type: the user's own right-hand side, loops and branches included, gives derivatives.

A dual number is a value with W = 8 tangents, x + x_dot eps with eps_i eps_j = 0, so that for smooth f

    f(y + Y_dot eps) = f(y) + (df/dy Y_dot) eps.

Branches go by values.  The operations and their partial derivatives are those of traces: the same tables, written as
LLVM instructions instead of nodes of a graph.  Numba learns the type when the first function is compiled.
"""

from __future__ import annotations

import math
import operator
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import CellType, FunctionType, ModuleType

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaWarning
from numba.core.imputils import lower_constant
from numba.core.typeconv import Conversion
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, overload, register_model
from numba.np.numpy_support import is_nonelike

from stepnet.engines.numba_engine.compile.arguments import Block
from stepnet.engines.numba_engine.compile.derivatives import RULES
from stepnet.engines.numba_engine.compile.form import Form
from stepnet.engines.numba_engine.compile.graph import BINARY, BOOLEAN, COMPOSED, ELEMENTARY, LOGICAL
from stepnet.engines.numba_engine.compile.machine_code import INSTRUCTION, LIBM
from stepnet.engines.numba_engine.compile.native import OPTIONS, _make_body, _make_guarded
from stepnet.engines.numba_engine.compile.rewrite import returning_tuples
from stepnet.engines.numba_engine.compile.symbols import UFUNCS

WIDTH = 8  # tangents: one register of AVX-512, two of AVX2
INNER_OPTIONS = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # duals have no Python counterpart
NUMBERS = (types.Integer, types.Float, types.Boolean)
REAL, LANE = ir.DoubleType(), ir.IntType(32)
TANGENTS = ir.VectorType(REAL, WIDTH)
PAIR = ir.LiteralStructType([REAL, TANGENTS], packed=True)  # packed: its vector needs no aligned memory
NO_TANGENTS = ir.Constant(TANGENTS, [0.0] * WIDTH)


class DualType(types.Type):
    """A float64 with tangents; plain numbers become duals without tangents wherever the two meet."""

    is_internal = True  # lets Numba fuse expressions of arrays into loops

    def __init__(self):
        super().__init__("Dual")

    def can_convert_from(self, typing_context, other):
        return Conversion.safe if isinstance(other, NUMBERS) else None

    def unify(self, typing_context, other):
        return self if isinstance(other, NUMBERS) else None


DUAL = DualType()


# ---- operations: a value, and tangents by the chain rule ---------------------------------------------------------


class Instructions:
    """LLVM instructions being written, with the face of a `Graph`: rules that write nodes there write code here."""

    def __init__(self, builder):
        self.builder = builder

    def constant(self, value: float):
        return ir.Constant(REAL, float(value))

    def apply(self, operation: str, *x):
        """An operation of a graph, on float64 values."""
        builder = self.builder
        if operation in INSTRUCTION:
            return getattr(builder, INSTRUCTION[operation])(*x, flags=("contract",))
        if operation in LIBM:
            return builder.call(_c_function(builder.module, LIBM[operation], [REAL] * len(x)), x)
        if operation in COMPARED:
            return builder.fcmp_ordered(COMPARED[operation], *x)
        return WRITTEN[operation](self, *x)


class DualInstructions(Instructions):
    """The same on duals and floats: r_dot = sum_k (dr/dx_k) x_k_dot."""

    def apply(self, operation: str, *x):
        if operation in COMPOSED:
            return COMPOSED[operation](self, *x)
        plain, builder = Instructions(self.builder), self.builder
        values = [builder.extract_value(operand, 0) if operand.type == PAIR else operand for operand in x]
        result = plain.apply(operation, *values)
        if operation not in PARTIALS or not any(operand.type == PAIR for operand in x):  # locally constant
            return result
        return _pair(builder, result, _chained(builder, PARTIALS[operation](plain, result, *values), x))


def _c_function(module, name: str, arguments):
    """A function of libm or LLVM without side effects, so that unused and repeated calls vanish."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(REAL, arguments), name)
    function.attributes.add("readnone")
    function.attributes.add("nounwind")
    return function


def _sign(g, x):
    """1, -1, or x itself for zeros and NaN."""
    rest = g.builder.select(g.apply("lt", x, g.constant(0)), g.constant(-1), x)
    return g.builder.select(g.apply("gt", x, g.constant(0)), g.constant(1), rest)


COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
WRITTEN = {
    "neg": lambda g, x: g.builder.fneg(x),
    "pos": lambda g, x: x,
    "select": lambda g, c, x, y: g.builder.select(c, x, y),
    "and": lambda g, x, y: g.builder.and_(x, y),
    "or": lambda g, x, y: g.builder.or_(x, y),
    "not": lambda g, x: g.builder.not_(x),
    "ne": lambda g, x, y: g.builder.fcmp_unordered("!=", x, y),
    "max": lambda g, x, y: g.builder.select(g.builder.or_(g.apply("ge", x, y), g.apply("ne", x, x)), x, y),
    "min": lambda g, x, y: g.builder.select(g.builder.or_(g.apply("le", x, y), g.apply("ne", x, x)), x, y),
    "sign": _sign,
    "int": lambda g, x: g.builder.fptosi(x, ir.IntType(64)),
}
PARTIALS = {**RULES, "pos": lambda g, r, x: [g.constant(1.0)]}


def lowered(operation: str):
    """Code for an operation on duals and floats."""

    def lower(context, builder, signature, arguments):
        result = DualInstructions(builder).apply(operation, *arguments)
        is_missing = signature.return_type == DUAL and result.type != PAIR
        return _pair(builder, result, NO_TANGENTS) if is_missing else result

    return lower


def _lower_whole_power(context, builder, signature, arguments):
    """x^k for a whole number k in the source, by multiplications: LLVM unrolls powi."""
    pair, k = arguments[0], signature.args[1].literal_value
    powi = _c_function(builder.module, "llvm.powi.f64.i32", [REAL, LANE])
    x = builder.extract_value(pair, 0)
    partial = builder.fmul(ir.Constant(REAL, float(k)), builder.call(powi, (x, LANE(k - 1))))
    return _pair(builder, builder.call(powi, (x, LANE(k))), _chained(builder, [partial], [pair]))


def _pair(builder, value, tangents):
    pair = builder.insert_value(ir.Constant(PAIR, ir.Undefined), value, 0)
    return builder.insert_value(pair, tangents, 1)


def _chained(builder, partials, arguments):
    """sum_k partial_k tangents_k over the arguments that have tangents."""
    total = None
    for partial, x in zip(partials, arguments, strict=True):
        if x.type == PAIR and partial is not None:
            term = builder.fmul(_spread(builder, partial), builder.extract_value(x, 1), flags=("contract",))
            total = term if total is None else builder.fadd(total, term, flags=("contract",))
    return NO_TANGENTS if total is None else total


def _spread(builder, x):
    """The vector (x, x, ..., x)."""
    undefined, firsts = ir.Constant(TANGENTS, ir.Undefined), ir.Constant(ir.VectorType(LANE, WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(undefined, x, LANE(0)), undefined, firsts)


# ---- what Numba is told, once ------------------------------------------------------------------------------------

OPERATORS = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div", operator.pow: "pow",
    operator.mod: "mod", operator.floordiv: "floordiv", operator.iadd: "add", operator.isub: "sub",
    operator.imul: "mul", operator.itruediv: "div", operator.ipow: "pow", operator.neg: "neg", operator.pos: "pos",
    operator.lt: "lt", operator.le: "le", operator.gt: "gt", operator.ge: "ge", operator.eq: "eq", operator.ne: "ne",
    abs: "abs", max: "max", min: "min", float: "pos", int: "int",
}  # fmt: skip
IN_PLACE = {
    operator.iadd: np.add, operator.isub: np.subtract, operator.imul: np.multiply, operator.itruediv: np.divide,
}  # fmt: skip
MATH = {
    math.fabs: "abs",
    **{getattr(math, x.replace("arc", "a")): x for x in (*ELEMENTARY, *BINARY, "erf", "erfc")},
}
NUMPY = {ufunc: operation for ufunc, operation in UFUNCS.items() if operation not in (*LOGICAL, "xor")}
UNARY = frozenset((
    "neg", "pos", "int", "erf", "erfc", *(operation for ufunc, operation in UFUNCS.items() if ufunc.nin == 1),
))  # fmt: skip
TRUTHS = BOOLEAN | {"isnan", "isinf", "isfinite"}
FIRST = {"target": "cpu"}  # these rules are asked before Numba's general ones, some of which stumble over new types
LONGEST_POWER = 64


@cache
def register() -> None:
    """Teach Numba the type: how it lies in memory, how numbers become duals, and all operations."""
    register_model(DualType)(lambda manager, kind: models.PrimitiveModel(manager, kind, PAIR))
    lower_constant(DualType)(lambda context, builder, kind, x: ir.Constant(PAIR, [REAL(float(x)), NO_TANGENTS]))
    for kind in NUMBERS:
        lower_cast(kind, DualType)(_lower_conversion)
    for function, operation in {**OPERATORS, **MATH, **NUMPY}.items():
        _register_operation(function, operation)
    for function, ufunc in IN_PLACE.items():
        _register_in_place(function, ufunc)
    for function in (np.dot, operator.matmul):
        overload(function, **FIRST)(_product)
    overload(np.where, **FIRST)(_where)


def _lower_conversion(context, builder, kind, _, number):
    return _pair(builder, context.cast(builder, number, kind, types.float64), NO_TANGENTS)


def _register_operation(function, operation: str) -> None:
    """Duals and floats give duals; arrays of them give arrays, for which Numba writes the loops."""
    operands = [(DUAL,)] if operation in UNARY else [(DUAL, DUAL), (DUAL, types.float64), (types.float64, DUAL)]
    kind = types.boolean if operation in TRUTHS else types.int64 if operation == "int" else DUAL

    class Typing(AbstractTemplate):
        metadata = FIRST
        prefer_literal = operation == "pow"

        def generic(self, arguments, keywords):
            scalars = [_scalar(x) for x in arguments]
            if len(arguments) != len(operands[0]) or DUAL not in scalars:
                return None
            if not all(x == DUAL or isinstance(x, NUMBERS) for x in scalars):
                return None
            rank = max(getattr(x, "ndim", 0) for x in arguments)
            if rank:
                return None if function in IN_PLACE else signature(types.Array(kind, rank, "C"), *arguments)
            if _is_whole_power(operation, arguments):
                return signature(kind, *arguments)
            return signature(kind, *(x if x == DUAL else types.float64 for x in arguments))

    infer_global(function)(Typing)
    for pattern in operands:
        lower_builtin(function, *pattern)(lowered(operation))
    if operation == "pow":
        lower_builtin(function, DUAL, types.IntegerLiteral)(_lower_whole_power)


def _scalar(kind):
    return kind.dtype if isinstance(kind, types.Array) else kind


def _is_whole_power(operation: str, arguments) -> bool:
    exponent = arguments[-1]
    is_literal = operation == "pow" and isinstance(exponent, types.IntegerLiteral)
    return is_literal and 1 <= abs(exponent.literal_value) <= LONGEST_POWER


# ---- arrays of duals ---------------------------------------------------------------------------------------------


def _register_in_place(function, ufunc) -> None:
    @overload(function, **FIRST)
    def update(x, y):
        if _scalar(x) != DUAL or x == DUAL:
            return None

        def updated(x, y):
            new = ufunc(x, y)
            for i in np.ndindex(x.shape):
                x[i] = new[i]
            return x

        return updated


def _product(x, y):
    """x y of a vector or a matrix with a vector."""
    if DUAL not in (_scalar(x), _scalar(y)) or getattr(y, "ndim", 0) != 1:
        return None

    def inner(x, y):
        total = 0.0
        for j in range(len(y)):
            total += x[j] * y[j]
        return total

    def rows(x, y):
        out = np.zeros(len(x), DUAL)
        for i in range(len(x)):
            for j in range(len(y)):
                out[i] += x[i, j] * y[j]
        return out

    return {1: inner, 2: rows}.get(getattr(x, "ndim", 0))


def _where(condition, x, y):
    """np.where for arrays of equal shapes and numbers."""
    if DUAL not in (_scalar(x), _scalar(y)) or not isinstance(condition, types.Array):
        return None

    def chosen(condition, x, y):
        out, other = np.empty(condition.shape, DUAL), np.empty(condition.shape, DUAL)
        out[...] = x
        other[...] = y
        for i in np.ndindex(condition.shape):
            if not condition[i]:
                out[i] = other[i]
        return out

    return chosen


def on_duals(function, seen: dict) -> Dispatcher:
    """A compiled copy of a function in which NumPy makes arrays of duals; likewise the functions it calls."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        raise TypeError(f"it is no plain Python function but {type(function).__name__}")
    if id(function) in seen:
        return seen[id(function)]
    namespace = dict(function.__globals__)
    cells = tuple(CellType(_replaced(cell.cell_contents, seen)) for cell in function.__closure__ or ())
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    dispatcher = seen[id(function)] = njit(**INNER_OPTIONS)(copy)
    for name in set(function.__code__.co_names) & namespace.keys():
        namespace[name] = _replaced(namespace[name], seen)
    return dispatcher


def _replaced(value, seen: dict):
    is_own = isinstance(value, FunctionType) and value.__module__.split(".")[0] not in ("numpy", "numba")
    if is_own or isinstance(value, Dispatcher):
        return on_duals(value, seen)
    return _replacements().get(id(value), value)


@cache
def _replacements() -> dict:
    """NumPy with its makers of arrays replaced, and these themselves, by the identity of the originals."""
    own = {np.array: _make_array, np.asarray: _make_array, np.full: _make_full}
    own |= {function: _make_filled(function) for function in (np.zeros, np.ones, np.empty)}
    module = ModuleType("numpy_of_duals")
    names = {function.__name__: replacement for function, replacement in own.items()}
    vars(module).update(
        vars(np) | names | {"__name__": module.__name__}
    )  # by its old name Numba would rewrite np.array
    return {id(np): module, **{id(function): replacement for function, replacement in own.items()}}


def _is_real(dtype) -> bool:
    """Whether NumPy would make floats: nothing said, `float` or one of NumPy's float types."""
    if is_nonelike(dtype) or getattr(dtype, "typing_key", None) is float:
        return True
    return isinstance(parse_dtype(dtype), types.Float)


def _make_filled(function):
    def make(shape, dtype=None):
        """Stands for np.zeros, np.ones or np.empty in compiled code."""

    @overload(make)
    def make_duals(shape, dtype=None):
        if _is_real(dtype):
            return lambda shape, dtype=None: function(shape, DUAL)
        return lambda shape, dtype=None: function(shape, dtype)

    return make


def _make_full(shape, fill_value, dtype=None):
    """Stands for np.full in compiled code."""


def _make_array(values, dtype=None):
    """Stands for np.array in compiled code."""


@overload(_make_full)
def _full_of_duals(shape, fill_value, dtype=None):
    if _is_real(dtype) and not isinstance(fill_value, types.Integer):
        return lambda shape, fill_value, dtype=None: np.full(shape, fill_value, DUAL)
    return lambda shape, fill_value, dtype=None: np.full(shape, fill_value, dtype)


@overload(_make_array)
def _array_of_duals(values, dtype=None):
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


def compile_dual(form: Form, block: Block, result) -> CFunc:
    """Compile the derivative of a right-hand side that returned `result` in Python; raises whatever Numba raises.

    int32 jvp8(double t, const double *y, const double *y_dot, double *out, const double *p, int64 n)

    `y_dot` is (n, 8), `out` becomes (df/dy) y_dot, and the answer is 1 if the right-hand side raised.
    """
    register()
    function = getattr(form.function, "py_func", form.function)
    with _duals_among_numbers(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        rewritten = returning_tuples(function)
        if rewritten is not function and not form.is_in_place:
            try:
                return _compile(rewritten, form, block, tuple(np.ravel(result)))
            except Exception:  # it returns an array elsewhere, say: compile it as it stands
                pass
        return _compile(function, form, block, result)


@contextmanager
def _duals_among_numbers():
    """While our functions compile, Numba lets duals stand beside arrays, as it does with numbers."""
    plain = types.number_domain
    types.number_domain = plain | {DUAL}
    try:
        yield
    finally:
        types.number_domain = plain


def _compile(function, form: Form, block: Block, result) -> CFunc:
    seen: dict = {}
    args = tuple(on_duals(value, seen) if isinstance(value, FunctionType) else value for value in block.args)
    body = njit(**INNER_OPTIONS)(_make_body(on_duals(function, seen), form, replace(block, args=args), result))
    states, parameters = types.Array(DUAL, 1, "C"), types.Array(types.float64, 1, "C")
    signature = types.none(types.float64, states, states, parameters)
    body.compile(signature)
    guarded = _make_guarded(body, signature)
    n_in, n_out, n_parameters = form.n_in, form.n_out, block.values.size

    def jvp8(t, y, y_dot, out, p, n):
        state, slopes = np.empty(n_in, DUAL), np.empty(n_out, DUAL)
        for i in range(n_in):
            state[i] = _joined(y, y_dot, i)
        status = guarded(t, state, slopes, carray(p, (n_parameters,)))
        for i in range(n_out):
            _store_tangents(slopes[i], out, i)
        return status

    reals = types.CPointer(types.float64)
    arguments = (types.float64, reals, reals, reals, reals, types.int64)
    return cfunc(types.int32(*arguments), error_model="numpy", nogil=True)(jvp8)


@intrinsic
def _joined(typing_context, y, y_dot, i):
    """The dual number of y[i] and the row y_dot[i]."""

    def generate(context, builder, signature, arguments):
        y, y_dot, i = arguments
        return _pair(builder, builder.load(builder.gep(y, [i])), builder.load(_row(builder, y_dot, i), align=8))

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
