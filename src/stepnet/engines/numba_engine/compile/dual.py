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
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, overload, register_model

from stepnet.engines.numba_engine.compile.arguments import Block
from stepnet.engines.numba_engine.compile.derivatives import RULES
from stepnet.engines.numba_engine.compile.form import Form
from stepnet.engines.numba_engine.compile.graph import BOOLEAN, ELEMENTARY
from stepnet.engines.numba_engine.compile.machine_code import INSTRUCTION, LIBM
from stepnet.engines.numba_engine.compile.native import OPTIONS, _make_body, _make_guarded
from stepnet.engines.numba_engine.compile.rewrite import returning_tuples
from stepnet.engines.numba_engine.compile.symbols import UFUNCS

WIDTH = 8  # tangents: one register of AVX-512, two of AVX2
OPTIONS = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
NUMBERS = (types.Integer, types.Float, types.Boolean)
REAL = ir.DoubleType()
TANGENTS = ir.VectorType(REAL, WIDTH)
PAIR = ir.LiteralStructType([REAL, TANGENTS], packed=True)  # packed: its vector needs no aligned memory
NO_TANGENTS = ir.Constant(TANGENTS, [0.0] * WIDTH)


class DualType(types.Type):
    """A float64 with tangents; plain numbers become duals without tangents wherever the two meet."""

    is_internal = True  # so that Numba makes loops of expressions with arrays of it

    def __init__(self):
        super().__init__("Dual")

    def can_convert_from(self, typing_context, other):
        return Conversion.safe if isinstance(other, NUMBERS) else None

    def unify(self, typing_context, other):
        return self if isinstance(other, NUMBERS) else None


DUAL = DualType()
DUALS = types.Array(DUAL, 1, "C")


# ---- operations: a value, and a tangent by the chain rule --------------------------------------------------------


class Instructions:
    """LLVM instructions being written, with the face of a `Graph`: rules that write nodes there write code here."""

    def __init__(self, builder):
        self._builder = builder

    def constant(self, value: float):
        return ir.Constant(REAL, float(value))

    def apply(self, operation: str, *x):
        """An operation of a graph, on float64 values."""
        builder = self._builder
        if operation in INSTRUCTION:
            return getattr(builder, INSTRUCTION[operation])(*x, flags=("contract",))
        if operation in LIBM:
            kind = ir.FunctionType(REAL, [REAL] * len(x))
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, LIBM[operation]), x)
        if operation in COMPARED_BY:
            return builder.fcmp_ordered(COMPARED_BY[operation], *x)
        if operation in COMPOSED:
            return COMPOSED[operation](self, *x)
        return getattr(builder, {"neg": "fneg", "or": "or_", "not": "not_"}.get(operation, operation))(*x)


COMPARED_BY = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
COMPOSED = {
    "ne": lambda g, x, y: g.apply("not", g.apply("eq", x, y)),
    "max": lambda g, x, y: g.apply("select", g.apply("or", g.apply("ge", x, y), g.apply("ne", x, x)), x, y),
    "min": lambda g, x, y: g.apply("select", g.apply("or", g.apply("le", x, y), g.apply("ne", x, x)), x, y),
    "sign": lambda g, x: g.apply("select", g.apply("eq", x, g.constant(0.0)), x, g.apply("div", x, g.apply("abs", x))),
    "floordiv": lambda g, x, y: g.apply("floor", g.apply("div", x, y)),
    "mod": lambda g, x, y: g.apply("sub", x, g.apply("mul", y, g.apply("floordiv", x, y))),
    "pos": lambda g, x: x,
    "square": lambda g, x: g.apply("mul", x, x),
}
PARTIALS = {
    **RULES,
    "pos": lambda g, r, x: [g.constant(1.0)],
    "square": lambda g, r, x: [g.apply("mul", g.constant(2.0), x)],
}


def lowered(operation: str):
    """Code for an operation on duals and floats: r_dot = sum_k (dr/dx_k) x_k_dot."""

    def lower(context, builder, signature, arguments):
        instructions = Instructions(builder)
        values = [builder.extract_value(x, 0) if x.type == PAIR else x for x in arguments]
        result = instructions.apply(operation, *values)
        if operation in BOOLEAN:
            return result
        partials = PARTIALS[operation](instructions, result, *values) if operation in PARTIALS else []
        return _pair(builder, result, _chained(builder, partials, arguments))

    return lower


def _pair(builder, value, tangents):
    pair = builder.insert_value(ir.Constant(PAIR, ir.Undefined), value, 0)
    return builder.insert_value(pair, tangents, 1)


def _chained(builder, partials, arguments):
    """sum_k partial_k tangents_k over the arguments that have tangents."""
    total = None
    for partial, x in zip(partials, arguments, strict=False):  # no partials at all: locally constant
        if x.type == PAIR:
            term = builder.fmul(_spread(builder, partial), builder.extract_value(x, 1), flags=("contract",))
            total = term if total is None else builder.fadd(total, term, flags=("contract",))
    return NO_TANGENTS if total is None else total


def _spread(builder, x):
    """The vector (x, x, ..., x)."""
    undefined, zeros = ir.Constant(TANGENTS, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)
    return builder.shuffle_vector(builder.insert_element(undefined, x, ir.IntType(32)(0)), undefined, zeros)


def _power(context, builder, signature, arguments):
    """x^k for a whole number k in the source, by multiplications: LLVM unrolls powi."""
    pair, exponent = arguments[0], signature.args[1].literal_value
    kind = ir.FunctionType(REAL, [REAL, ir.IntType(32)])
    powi = cgutils.get_or_insert_function(builder.module, kind, "llvm.powi.f64.i32")
    x = builder.extract_value(pair, 0)
    lower_power = builder.call(powi, (x, ir.IntType(32)(exponent - 1)))
    partial = builder.fmul(ir.Constant(REAL, float(exponent)), lower_power)
    value = builder.call(powi, (x, ir.IntType(32)(exponent)))
    return _pair(builder, value, _chained(builder, [partial], [pair]))


# ---- what Numba must be told, once -------------------------------------------------------------------------------

OPERATORS = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div", operator.pow: "pow",
    operator.mod: "mod", operator.floordiv: "floordiv", operator.iadd: "add", operator.isub: "sub",
    operator.imul: "mul", operator.itruediv: "div", operator.ipow: "pow", operator.neg: "neg", operator.pos: "pos",
    operator.lt: "lt", operator.le: "le", operator.gt: "gt", operator.ge: "ge", operator.eq: "eq", operator.ne: "ne",
    abs: "abs", max: "max", min: "min", float: "pos",
}  # fmt: skip
MATH = {
    getattr(math, name.replace("arc", "a")): name for name in (*ELEMENTARY, "arctan2", "hypot", "pow", "erf", "erfc")
}
NUMPY = {
    np.square: "square",
    **{ufunc: operation for ufunc, operation in UFUNCS.items() if operation not in ("and", "or", "not")},
}
IN_PLACE = {
    operator.iadd: np.add, operator.isub: np.subtract, operator.imul: np.multiply, operator.itruediv: np.divide,
}  # fmt: skip
FIRST = {"target": "cpu"}  # these rules are asked before Numba's general ones, some of which stumble over new types
UNARY = {"neg", "pos", "abs", "sign", "floor", "ceil", "square", "erf", "erfc", *ELEMENTARY}


@cache
def register() -> None:
    """Teach Numba the type: how it lies in memory, how numbers become duals, and all operations."""
    types.number_domain |= {DUAL}
    register_model(DualType)(lambda manager, kind: models.PrimitiveModel(manager, kind, PAIR))
    for kind in NUMBERS:
        lower_cast(kind, DualType)(_from_number)
    for function, operation in {**OPERATORS, **MATH, **NUMPY}.items():
        _register_operation(function, operation)
    for power in (operator.pow, operator.ipow):
        lower_builtin(power, DualType, types.IntegerLiteral)(_power)
    for function, ufunc in IN_PLACE.items():
        _register_in_place(function, ufunc)


def _from_number(context, builder, kind, _, number):
    return _pair(builder, context.cast(builder, number, kind, types.float64), NO_TANGENTS)


def _register_operation(function, operation: str) -> None:
    """Duals and floats give duals; arrays of them give arrays, for which Numba writes the loops."""
    patterns = [(DUAL,)] if operation in UNARY else [(DUAL, DUAL), (DUAL, types.float64), (types.float64, DUAL)]
    kind = types.boolean if operation in BOOLEAN else DUAL

    class Typing(AbstractTemplate):
        metadata = FIRST
        prefer_literal = operation == "pow"

        def generic(self, arguments, keywords):
            scalars = [x.dtype if isinstance(x, types.Array) else x for x in arguments]
            if len(arguments) != len(patterns[0]) or DUAL not in scalars:
                return None
            if not all(x == DUAL or isinstance(x, NUMBERS) for x in scalars):
                return None
            rank = max(x.ndim if isinstance(x, types.Array) else 0 for x in arguments)
            if rank:
                return None if function in IN_PLACE else signature(types.Array(kind, rank, "C"), *arguments)
            if operation == "pow" and isinstance(arguments[1], types.IntegerLiteral):
                return signature(kind, *arguments)
            return signature(kind, *(x if x == DUAL else types.float64 for x in arguments))

    infer_global(function)(Typing)
    for pattern in patterns:
        lower_builtin(function, *pattern)(lowered(operation))


def _register_in_place(function, ufunc) -> None:
    @overload(function, **FIRST)
    def update(x, y):
        if not isinstance(x, types.Array) or x.dtype != DUAL:
            return None

        def updated(x, y):
            x[...] = ufunc(x, y)
            return x

        return updated


# ---- a right-hand side on duals ----------------------------------------------------------------------------------


def compile_dual(form: Form, block: Block, result) -> CFunc:
    """Compile the derivative of a right-hand side that returned `result` in Python; raises whatever Numba raises.

    int32 jvp8(double t, const double *y, const double *y_dot, double *out, const double *p, int64 n)

    `y_dot` is (n, 8) and `out` = (df/dy) y_dot; the answer is 1 if the right-hand side raised.
    """
    register()
    function = getattr(form.function, "py_func", form.function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        rewritten = returning_tuples(function)
        if rewritten is not function and not form.is_in_place:
            try:
                return _compile(rewritten, form, block, tuple(np.ravel(result)))
            except Exception:  # it returns an array elsewhere, say: compile it as it stands
                pass
        return _compile(function, form, block, result)


def _compile(function, form: Form, block: Block, result) -> CFunc:
    inner = on_duals(function, {})
    args = tuple(on_duals(value, {}) if isinstance(value, FunctionType) else value for value in block.args)
    body = njit(**OPTIONS)(_make_body(inner, form, replace(block, args=args), result))
    signature = types.none(types.float64, DUALS, DUALS, types.Array(types.float64, 1, "C"))
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
    return cfunc(
        types.int32(types.float64, reals, reals, reals, reals, types.int64), error_model="numpy", nogil=True
    )(jvp8)  # fmt: skip


@intrinsic
def _joined(typing_context, y, y_dot, i):
    """The dual number of y[i] and the row y_dot[i]."""

    def generate(context, builder, signature, arguments):
        y, y_dot, i = arguments
        tangents = builder.load(_row(builder, y_dot, i), align=8)
        return _pair(builder, builder.load(builder.gep(y, [i])), tangents)

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


# ---- functions that make arrays of floats make arrays of duals ---------------------------------------------------


def on_duals(function: FunctionType, seen: dict) -> Dispatcher:
    """A compiled copy of a function in which NumPy makes arrays of duals, as it does in the functions it calls."""
    if id(function) in seen:
        return seen[id(function)]
    function = getattr(function, "py_func", function)
    namespace = dict(function.__globals__)
    cells = tuple(CellType(_replaced(cell.cell_contents, seen)) for cell in function.__closure__ or ())
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells)
    dispatcher = seen[id(function)] = njit(**OPTIONS)(copy)
    for name in set(function.__code__.co_names) & namespace.keys():
        namespace[name] = _replaced(namespace[name], seen)
    return dispatcher


def _replaced(value, seen: dict):
    if isinstance(value, Dispatcher) or (isinstance(value, FunctionType) and not _is_known(value)):
        return on_duals(value, seen)
    replacements = _replacements()
    return replacements.get(id(value), value)


def _is_known(function: FunctionType) -> bool:
    return function.__module__.split(".")[0] in ("numpy", "numba")


@cache
def _replacements() -> dict:
    own = {name: _make_allocator(getattr(np, name)) for name in ("zeros", "ones", "empty")}
    module = ModuleType("numpy")
    vars(module).update(vars(np), **own)
    return {id(np): module, **{id(getattr(np, name)): function for name, function in own.items()}}


def _make_allocator(function):
    def allocate(shape, dtype=None):
        raise NotImplementedError

    @overload(allocate)
    def allocate_on_duals(shape, dtype=None):
        if isinstance(dtype, (types.Omitted, types.NoneType)) or dtype is None:
            return lambda shape, dtype=None: function(shape, DUAL)
        return lambda shape, dtype=None: function(shape, dtype)

    return allocate
