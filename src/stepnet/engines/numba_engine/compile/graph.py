"""Expressions as a graph: every value once, constants folded, dead code never visited."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BOOLEAN = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"))
COMMUTATIVE = frozenset(("add", "mul", "and", "or", "eq", "ne"))

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
    "mod": lambda x, y: x - y * np.floor(x / y),
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


class TooManyNodes(Exception):
    """The straight-line code would be longer than it is worth."""


class Graph:
    """Nodes are tuples (operation, *operands): ("add", 3, 7), ("const", 2.0), ("y", 0).  Operands are node numbers."""

    def __init__(self, most: int):
        self.nodes: list[tuple] = []
        self._numbers: dict[tuple, int] = {}
        self.most = most

    def node(self, *key) -> int:
        """The number of a node, new or already there."""
        found = self._numbers.get(key)
        if found is None:
            if len(self.nodes) >= self.most:
                raise TooManyNodes(f"it takes more than {self.most} operations")
            found = self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
        return found

    def constant(self, value) -> int:
        """A number; the sign of zero and the kinds of NaN keep their own nodes."""
        value = bool(value) if isinstance(value, (bool, np.bool_)) else float(value)
        return self.node("const", value, math.copysign(1.0, value))

    def value(self, number: int):
        """The value of a constant node, None for others."""
        node = self.nodes[number]
        return node[1] if node[0] == "const" else None

    def apply(self, operation: str, *operands: int) -> int:
        """An operation on nodes, simplified where that changes no bit of the result."""
        values = [self.value(operand) for operand in operands]
        if all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.constant(
                    EVALUATE[operation](*(v if isinstance(v, bool) else np.float64(v) for v in values))
                )
        simple = self._simplified(operation, operands, values)
        if simple is not None:
            return simple
        if operation in COMMUTATIVE:
            operands = tuple(sorted(operands))
        return self.node(operation, *operands)

    def _simplified(self, operation, operands, values) -> int | None:
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
        if operation == "select" and isinstance(values[0], bool):
            return rest[0] if values[0] else rest[1]
        if operation == "select" and rest[0] == rest[1]:
            return rest[0]
        return None

    def _power(self, x: int, exponent: float) -> int | None:
        """x^k by multiplications for whole and half k up to 16: a libm pow costs as much as twenty of them."""
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
        """The nodes that outputs depend on, operands first."""
        seen: set[int] = set()
        waiting = list(outputs)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting.extend(self.operands(number))
        return sorted(seen)

    def operands(self, number: int) -> tuple[int, ...]:
        """The nodes an operation reads; inputs and constants read none."""
        operation, *operands = self.nodes[number]
        return tuple(operands) if operation in EVALUATE else ()
