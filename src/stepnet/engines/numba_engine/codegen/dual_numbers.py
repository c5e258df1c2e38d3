"""Dual numbers as a Numba type.

A dual number is a value with W = 8 tangents, x + x_dot eps with eps_i eps_j = 0, so that for smooth f

    f(y + Y_dot eps) = f(y) + (df/dy Y_dot) eps.

Branches depend on values only.  The operations and their partial derivatives are those of traces: the same tables,
emitted as LLVM instructions instead of graph nodes.  The type is registered when the first function is compiled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast, models, overload, register_model

from stepnet.engines.numba_engine.codegen.machine_code import INSTRUCTION, LIBM
from stepnet.engines.numba_engine.derivatives.graph_derivatives import RULES
from stepnet.engines.numba_engine.tracing.graph import BINARY, BOOLEAN, COMPOSED, ELEMENTARY, LOGICAL
from stepnet.engines.numba_engine.tracing.symbols import UFUNCS

WIDTH = 8  # tangents: one AVX-512 register, two of AVX2
NUMBERS = (types.Integer, types.Float, types.Boolean)
REAL, LANE = ir.DoubleType(), ir.IntType(32)
TANGENTS = ir.VectorType(REAL, WIDTH)
PAIR = ir.LiteralStructType([REAL, TANGENTS], packed=True)  # packed: the vector needs no aligned memory
NO_TANGENTS = ir.Constant(TANGENTS, [0.0] * WIDTH)


class DualType(types.Type):
    """A float64 with tangents; in mixed expressions plain numbers become duals without tangents."""

    is_internal = True  # lets Numba fuse array expressions into loops

    def __init__(self):
        super().__init__("Dual")

    def can_convert_from(self, typing_context, other):
        return Conversion.safe if isinstance(other, NUMBERS) else None

    def unify(self, typing_context, other):
        return self if isinstance(other, NUMBERS) else None


DUAL = DualType()


# ---- operations: a value, and tangents by the chain rule ---------------------------------------------------------


class Instructions:
    """Emits LLVM instructions through the interface of `Graph`: rules that add nodes to a graph emit code here."""

    def __init__(self, builder):
        self.builder = builder

    def constant(self, value: float):
        return ir.Constant(REAL, float(value))

    def apply(self, operation: str, *x):
        """Apply an operation of a graph to float64 values."""
        builder = self.builder
        if operation in INSTRUCTION:
            return getattr(builder, INSTRUCTION[operation])(*x, flags=("contract",))
        if operation in LIBM:
            return builder.call(_declare_c_function(builder.module, LIBM[operation], [REAL] * len(x)), x)
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
        return make_dual(builder, result, _apply_chain_rule(builder, PARTIALS[operation](plain, result, *values), x))


def _declare_c_function(module, name: str, arguments):
    """Declare a function of libm or LLVM without side effects, so that unused and repeated calls are eliminated."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(REAL, arguments), name)
    function.attributes.add("readnone")
    function.attributes.add("nounwind")
    return function


def _sign(g, x):
    """1, -1, or x itself for zeros and NaN."""
    rest = g.builder.select(g.apply("lt", x, g.constant(0)), g.constant(-1), x)
    return g.builder.select(g.apply("gt", x, g.constant(0)), g.constant(1), rest)


COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
WRITTEN: dict[str, Callable] = {
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


def lower(operation: str):
    """Generate code for an operation on duals and floats."""

    def lower(context, builder, signature, arguments):
        result = DualInstructions(builder).apply(operation, *arguments)
        is_missing = signature.return_type == DUAL and result.type != PAIR
        return make_dual(builder, result, NO_TANGENTS) if is_missing else result

    return lower


def _lower_whole_power(context, builder, signature, arguments):
    """x^k for an integer constant k, by multiplications: LLVM unrolls powi."""
    pair, k = arguments[0], signature.args[1].literal_value
    powi = _declare_c_function(builder.module, "llvm.powi.f64.i32", [REAL, LANE])
    x = builder.extract_value(pair, 0)
    partial = builder.fmul(ir.Constant(REAL, float(k)), builder.call(powi, (x, LANE(k - 1))))
    return make_dual(builder, builder.call(powi, (x, LANE(k))), _apply_chain_rule(builder, [partial], [pair]))


def make_dual(builder, value, tangents):
    pair = builder.insert_value(ir.Constant(PAIR, ir.Undefined), value, 0)
    return builder.insert_value(pair, tangents, 1)


def _apply_chain_rule(builder, partials, arguments):
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


# ---- registration with Numba -------------------------------------------------------------------------------------

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
FIRST = {"target": "cpu"}  # these rules are tried before Numba's general ones, some of which fail on new types
LONGEST_POWER = 64


@cache
def register() -> None:
    """Register the type with Numba: its memory layout, the conversion of numbers to duals, and all operations."""
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
    overload(np.where, **FIRST)(_select)


def _lower_conversion(context, builder, kind, _, number):
    return make_dual(builder, context.cast(builder, number, kind, types.float64), NO_TANGENTS)


def _register_operation(function, operation: str) -> None:
    """Duals and floats give duals; arrays of them give arrays, for which Numba generates the loops."""
    operands = [(DUAL,)] if operation in UNARY else [(DUAL, DUAL), (DUAL, types.float64), (types.float64, DUAL)]
    kind = types.boolean if operation in TRUTHS else types.int64 if operation == "int" else DUAL

    class Typing(AbstractTemplate):
        metadata = FIRST
        prefer_literal = operation == "pow"

        def generic(self, arguments, keywords):
            scalars = [_lower_scalar(x) for x in arguments]
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
        lower_builtin(function, *pattern)(lower(operation))
    if operation == "pow":
        lower_builtin(function, DUAL, types.IntegerLiteral)(_lower_whole_power)


def _lower_scalar(kind):
    return kind.dtype if isinstance(kind, types.Array) else kind


def _is_whole_power(operation: str, arguments) -> bool:
    exponent = arguments[-1]
    is_literal = operation == "pow" and isinstance(exponent, types.IntegerLiteral)
    return is_literal and 1 <= abs(exponent.literal_value) <= LONGEST_POWER


# ---- arrays of duals ---------------------------------------------------------------------------------------------


def _register_in_place(function, ufunc) -> None:
    @overload(function, **FIRST)
    def update(x, y):
        if _lower_scalar(x) != DUAL or x == DUAL:
            return None

        def updated(x, y):
            new = ufunc(x, y)
            for i in np.ndindex(x.shape):
                x[i] = new[i]
            return x

        return updated


def _product(x, y):
    """x y for a vector or matrix x and a vector y."""
    if DUAL not in (_lower_scalar(x), _lower_scalar(y)) or getattr(y, "ndim", 0) != 1:
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


def _select(condition, x, y):
    """np.where for numbers and arrays of equal shapes."""
    if DUAL not in (_lower_scalar(x), _lower_scalar(y)) or not isinstance(condition, types.Array):
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
