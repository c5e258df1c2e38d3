"""Expressions as a graph without duplicate nodes, with constants folded; dead code is never visited."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

LOGICAL = frozenset(("and", "or", "not"))
BOOLEAN = frozenset(("lt", "le", "gt", "ge", "eq", "ne", *LOGICAL))
COMMUTATIVE = frozenset(("add", "mul", "and", "or", "eq", "ne"))

BINARY = frozenset(("pow", "arctan2", "hypot", "fmod", "copysign"))  # functions of two arguments
ELEMENTARY = (
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt",
)  # fmt: skip
EVALUATE: dict[str, Callable] = {
    **{name: getattr(np, name) for name in ELEMENTARY},
    "erf": math.erf,
    "erfc": math.erfc,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": abs,
    "sign": np.sign,
    "neg": lambda x: -x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "arctan2": np.arctan2,
    "hypot": np.hypot,
    "max": np.maximum,
    "min": np.minimum,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
    "not": lambda x: not x,
    "select": lambda c, x, y: x if c else y,
}
"""What every operation means, on NumPy floats (so that 1/0 is inf as it is in compiled code)."""


def _select(g, condition, x, y):
    return g.apply("select", condition, x, y)


def _remainder(g, x, y):
    """x - y floor(x / y), from the exact fmod; a zero result has the sign of y."""
    rest, zero = g.apply("fmod", x, y), g.constant(0.0)
    moved = _select(g, _compare_signs(g, rest, y), g.apply("add", rest, y), rest)
    vanishes = g.apply("and", g.apply("eq", rest, zero), g.apply("ne", y, zero))
    return _select(g, vanishes, g.apply("copysign", zero, y), moved)


def _floor_quotient(g, x, y):
    """floor(x / y) as NumPy computes it: from x minus its exact remainder, so that 1 // 0.1 is 9."""
    rest, zero, quotient = g.apply("fmod", x, y), g.constant(0.0), g.apply("div", x, y)
    whole = g.apply("div", g.apply("sub", x, rest), y)
    whole = _select(g, _compare_signs(g, rest, y), g.apply("sub", whole, g.constant(1.0)), whole)
    below = g.apply("floor", whole)
    is_far = g.apply("gt", g.apply("sub", whole, below), g.constant(0.5))
    rounded = _select(g, is_far, g.apply("add", below, g.constant(1.0)), below)
    found = _select(g, g.apply("eq", whole, zero), g.apply("copysign", zero, quotient), rounded)
    return _select(g, g.apply("eq", y, zero), quotient, found)


def _compare_signs(g, rest, y):
    """Whether a nonzero remainder and its divisor have opposite signs."""
    zero = g.constant(0.0)
    above = g.apply("and", g.apply("gt", rest, zero), g.apply("lt", y, zero))
    below = g.apply("and", g.apply("lt", rest, zero), g.apply("not", g.apply("lt", y, zero)))
    return g.apply("or", above, below)


def _log_of_sum(g, x, y):
    """log(e^x + e^y) = m + log1p(e^d) with the maximum m and the difference d <= 0; two equal infinities give x."""
    is_first, difference = g.apply("gt", x, y), g.apply("sub", x, y)
    larger, d = _select(g, is_first, x, y), _select(g, is_first, g.apply("neg", difference), difference)
    total = g.apply("add", larger, g.apply("log1p", g.apply("exp", d)))
    are_infinite = g.apply("and", g.apply("eq", x, y), g.apply("ne", difference, difference))
    return _select(g, are_infinite, x, total)


def _heaviside(g, x, at_zero):
    zero, one = g.constant(0.0), g.constant(1.0)
    positive = _select(g, g.apply("gt", x, zero), one, x)  # NaN is kept
    return _select(g, g.apply("eq", x, zero), at_zero, _select(g, g.apply("lt", x, zero), zero, positive))


def _build_not_nan(comparison):
    """The maximum or minimum of two values, ignoring a NaN."""
    return lambda g, x, y: _select(g, g.apply("or", g.apply(comparison, x, y), g.apply("ne", y, y)), x, y)


COMPOSED: dict[str, Callable] = {
    "mod": _remainder,
    "floordiv": _floor_quotient,
    "logaddexp": _log_of_sum,
    "heaviside": _heaviside,
    "fmax": _build_not_nan("ge"),
    "fmin": _build_not_nan("le"),
    "square": lambda g, x: g.apply("mul", x, x),
    "reciprocal": lambda g, x: g.apply("div", g.constant(1.0), x),
    "deg2rad": lambda g, x: g.apply("mul", x, g.constant(math.pi / 180)),
    "rad2deg": lambda g, x: g.apply("mul", x, g.constant(180 / math.pi)),
    "isnan": lambda g, x: g.apply("ne", x, x),
    "isinf": lambda g, x: g.apply("eq", g.apply("abs", x), g.constant(math.inf)),
    "isfinite": lambda g, x: g.apply("lt", g.apply("abs", x), g.constant(math.inf)),
    "xor": lambda g, x, y: g.apply("and", g.apply("or", x, y), g.apply("not", g.apply("and", x, y))),
}
"""Operations put together from those above, with NumPy's results for zeros, infinities and NaN."""


class TooManyNodes(Exception):
    """The straight-line code would be too long to be useful."""


class Graph:
    """Nodes are tuples (operation, *operands): ("add", 3, 7), ("const", 2.0), ("y", 0).  Operands are node numbers."""

    def __init__(self, most: int):
        self.nodes: list[tuple] = []
        self._numbers: dict[tuple, int] = {}
        self.most = most

    def node(self, *key) -> int:
        """The number of a node, which is added if it is new."""
        found = self._numbers.get(key)
        if found is None:
            if len(self.nodes) >= self.most:
                raise TooManyNodes(f"it takes more than {self.most} operations")
            found = self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
        return found

    def constant(self, value) -> int:
        """A number or a boolean; 0.0, -0.0 and `False` are different nodes."""
        if isinstance(value, (bool, np.bool_)):
            return self.node("const", bool(value), "boolean")
        return self.node("const", float(value), math.copysign(1.0, value))

    def is_boolean(self, number: int) -> bool:
        """Whether a node is a boolean."""
        operation, *rest = self.nodes[number]
        return operation in BOOLEAN or (operation == "const" and isinstance(rest[0], bool))

    def value(self, number: int):
        """The value of a constant node, None for others."""
        node = self.nodes[number]
        return node[1] if node[0] == "const" else None

    def apply(self, operation: str, *operands: int) -> int:
        """Apply an operation to nodes, simplified where that changes no bit of the result."""
        if operation in COMPOSED:
            return COMPOSED[operation](self, *operands)
        values = [self.value(operand) for operand in operands]
        if all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.constant(
                    EVALUATE[operation](*(v if isinstance(v, bool) else np.float64(v) for v in values))
                )
        simple = self._simplify(operation, operands, values)
        if simple is not None:
            return simple
        if operation in COMMUTATIVE:
            operands = tuple(sorted(operands))
        return self.node(operation, *operands)

    def _simplify(self, operation, operands, values) -> int | None:
        x, *rest = operands
        if operation == "mul" and 1.0 in values:
            return rest[0] if values[0] == 1.0 else x
        if operation == "mul" and -1.0 in values:
            return self.apply("neg", rest[0] if values[0] == -1.0 else x)
        if operation == "div" and values[1] == 1.0:
            return x
        if operation == "neg" and self.nodes[x][0] == "neg":
            return self.nodes[x][1]
        if operation == "add" and self.nodes[rest[0]][0] == "neg":
            return self.apply("sub", x, self.nodes[rest[0]][1])
        if operation == "pow" and values[1] is not None:
            return self._power(x, float(values[1]))
        if operation in ("and", "or") and any(isinstance(value, bool) for value in values):
            decides = operation == "or"  # `True` decides an "or", `False` an "and"
            return self.constant(decides) if decides in values else x if values[0] is None else rest[0]
        if operation == "select" and isinstance(values[0], bool):
            return rest[0] if values[0] else rest[1]
        if operation == "select" and rest[0] == rest[1]:
            return rest[0]
        return None

    def _power(self, x: int, exponent: float) -> int | None:
        """x^k by multiplications for integer and half-integer k up to 16: libm's pow costs about twenty of them."""
        if abs(exponent) > 16 or (2 * exponent) % 1:
            return None
        whole = int(abs(exponent))
        result = None
        for bit in bin(whole)[2:] if whole else "":
            if result is not None:
                result = self.apply("mul", result, result)
            if bit == "1":
                result = x if result is None else self.apply("mul", result, x)
        if exponent % 1:
            root = self.apply("sqrt", x)
            result = root if result is None else self.apply("mul", result, root)
        if result is None:
            return self.constant(1.0)
        return result if exponent > 0 else self.apply("div", self.constant(1.0), result)

    def live(self, outputs) -> list[int]:
        """The nodes that the outputs depend on, operands first."""
        seen: set[int] = set()
        waiting = list(outputs)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting.extend(self.operands(number))
        return sorted(seen)

    def operands(self, number: int) -> tuple[int, ...]:
        """The nodes that an operation reads; inputs and constants read none."""
        operation, *operands = self.nodes[number]
        return tuple(operands) if operation in EVALUATE else ()
