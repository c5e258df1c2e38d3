"""Detection of integers that may exceed 64 bits in compiled code; Python's integers are unbounded.

Counts and array indices never come near the limit; powers, shifts, products accumulated in loops and products of
several numbers may.  A function whose results depend on such a number is not compiled.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator

from numba.core import ir, types

POWERS = (operator.pow, operator.ipow, operator.lshift, operator.ilshift)
PRODUCTS = (operator.mul, operator.imul)
SUMS = (operator.add, operator.iadd, operator.sub, operator.isub)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
MOST_FACTORS = 2  # factors of an integer that is used outside integer arithmetic; one computed from data counts twice
DATA, COUNT = 2, 1


class MayOverflow(TypeError):
    """An integer may need more than 64 bits."""


def require_small_integers(annotation) -> None:
    """Refuse a compiled function in which an integer may exceed 64 bits and so differ from Python's."""
    Integers(annotation).require_small()


class Integers:
    """The integers of a function as typed by Numba, and which are computed from which."""

    def __init__(self, annotation):
        self._types = annotation.typemap
        statements = [statement for block in annotation.blocks.values() for statement in block.body]
        self._made = {s.target.name: s.value for s in statements if isinstance(s, ir.Assign)}
        self._uses: dict[str, list] = defaultdict(list)
        for statement in statements:
            for variable in statement.list_vars():
                self._uses[variable.name].append(statement)
        self._own_name = annotation.func_id.func_name

    def require_small(self) -> None:
        for name, value in self._made.items():
            if not self._is_whole(name) or not isinstance(value, ir.Expr):
                continue
            if value.op == "call" and self._is_recursive(value):
                raise MayOverflow("it computes whole numbers by calling itself, which may need more than 64 bits")
            if value.op not in ("binop", "inplace_binop"):
                continue
            function = value.fn
            if function in POWERS and self._power(value) is None:
                raise MayOverflow("it takes powers of whole numbers, which may need more than 64 bits")
            if function in (*PRODUCTS, *SUMS) and self._is_growing(name, value) and self._leaves(name):
                raise MayOverflow("it multiplies whole numbers in a loop, which may need more than 64 bits")
            if function in (*PRODUCTS, *POWERS) and self._factors(name, ()) > MOST_FACTORS and self._leaves(name):
                raise MayOverflow("it multiplies whole numbers, which may need more than 64 bits")

    def _is_whole(self, name: str) -> bool:
        return isinstance(self._types.get(name), types.Integer)

    def _constant(self, name: str) -> int | None:
        value = self._made.get(name)
        while isinstance(value, ir.Var):
            value = self._made.get(value.name)
        found = value.value if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)) else None
        return found if isinstance(found, int) else None

    def _power(self, value: ir.Expr) -> int | None:
        """The exponent of a power if it is a small constant."""
        exponent = self._constant(value.rhs.name)
        is_power = value.fn in (operator.pow, operator.ipow)
        return exponent if is_power and exponent is not None and 0 <= exponent <= MOST_FACTORS else None

    def _is_recursive(self, value: ir.Expr) -> bool:
        called = self._types.get(value.func.name)
        function = getattr(getattr(called, "dispatcher", None), "py_func", None)
        return isinstance(called, types.RecursiveCall) or getattr(function, "__name__", None) == self._own_name

    def _operands(self, name: str) -> list[str]:
        """The integers that an integer is computed from."""
        value = self._made.get(name)
        if isinstance(value, ir.Var):
            return [value.name]
        if not isinstance(value, ir.Expr) or value.op not in ("binop", "inplace_binop", "unary", "cast", "phi"):
            return []
        return [each.name for each in value.list_vars() if self._is_whole(each.name)]

    def _depends(self, name: str, on: str) -> bool:
        seen, waiting = set(), [name]
        while waiting:
            each = waiting.pop()
            if each == on:
                return True
            if each not in seen:
                seen.add(each)
                waiting.extend(self._operands(each))
        return False

    def _is_growing(self, name: str, value: ir.Expr) -> bool:
        """Whether a product is a factor of its own next value, or both terms of a sum depend on it."""
        around = [self._depends(each, name) for each in (value.lhs.name, value.rhs.name) if self._is_whole(each)]
        return any(around) if value.fn in PRODUCTS else len(around) == 2 and all(around)

    def _factors(self, name: str, above: tuple[str, ...]) -> int:
        """The largest number of non-constant factors in a value."""
        if self._constant(name) is not None or name in above:
            return 0
        operands, value = self._operands(name), self._made.get(name)
        if not operands:
            return DATA if self._is_made_from_data(value) else COUNT
        found = [self._factors(each, (*above, name)) for each in operands]
        if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop"):
            if value.fn in PRODUCTS:
                return sum(found)
            if value.fn in POWERS:
                return found[0] * (self._power(value) or 0)
        return max(found)

    def _is_made_from_data(self, value) -> bool:
        if not isinstance(value, ir.Expr) or value.op != "call":
            return False
        return any(isinstance(self._types.get(each.name), types.Float) for each in value.args)

    def _leaves(self, name: str) -> bool:
        """Whether a number is used for anything except array indices, ranges and comparisons."""
        seen, waiting = set(), [name]
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            for statement in self._uses[each]:
                target = self._find_next_use(statement, each)
                if target is None:
                    return True
                waiting.extend(target)
        return False

    def _find_next_use(self, statement, name: str) -> tuple[str, ...] | None:
        """The integers computed from one, () if it ends as an index, range or comparison; None for other uses."""
        if isinstance(statement, ir.Del) or (isinstance(statement, ir.Assign) and statement.target.name == name):
            return ()
        if isinstance(statement, (ir.SetItem, ir.StaticSetItem)):
            return () if name != statement.value.name else None
        if not isinstance(statement, ir.Assign):
            return None
        target, value = statement.target.name, statement.value
        if isinstance(value, ir.Var) or self._is_whole(target):
            return (target,)
        return self._find_next_use_in(value, target)

    def _find_next_use_in(self, value: ir.Expr, target: str) -> tuple[str, ...] | None:
        if value.op in ("getitem", "static_getitem"):
            return ()
        if value.op == "build_tuple":
            return (target,)
        if value.op == "call" and isinstance(self._types.get(target), types.RangeType):  # type: ignore[attr-defined]
            return ()
        return () if value.op == "binop" and value.fn in COMPARISONS else None


def collect_annotations(dispatchers) -> Iterator:
    """The type annotations of the functions that Numba compiled."""
    for dispatcher in dispatchers:
        for compiled in dispatcher.overloads.values():
            if compiled.type_annotation is not None:
                yield compiled.type_annotation
