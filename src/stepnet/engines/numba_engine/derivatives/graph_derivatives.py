"""Derivatives of a graph, as additional nodes of the same graph."""

from __future__ import annotations

import math

from stepnet.engines.numba_engine.tracing.graph import Graph

TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


def partials(g: Graph, number: int) -> list[int | None]:
    """The derivative of a node with respect to each of its operands, as nodes; None where it is zero."""
    operands, rule = g.operands(number), RULES.get(g.nodes[number][0])
    return rule(g, number, *operands) if rule else [None] * len(operands)


def _build_one(g):
    return g.constant(1.0)


def _minus_one(g):
    return g.constant(-1.0)


def _divide(g, x, y):
    return g.apply("div", x, y)


def _neg(g, x):
    return g.apply("neg", x)


def _mul(g, x, y):
    return g.apply("mul", x, y)


def _sub(g, x, y):
    return g.apply("sub", x, y)


def _add(g, x, y):
    return g.apply("add", x, y)


def _reciprocal(g, x):
    return g.apply("div", g.constant(1.0), x)


def _scaled_reciprocal(factor):
    return lambda g, r, x: [_divide(g, g.constant(factor), x)]


def _div(g, r, x, y):
    inverse = _reciprocal(g, y)
    return [inverse, _neg(g, _mul(g, r, inverse))]


def _pow(g, r, x, y):
    """y x^(y-1), which is 0 for y = 0 even at x = 0, and x^y log x, which is 0 where x is not positive."""
    zero = g.constant(0.0)
    lowered = _mul(g, y, g.apply("pow", x, _sub(g, y, _build_one(g))))
    is_positive = g.apply("gt", x, zero)
    by_y = _mul(g, r, g.apply("log", g.apply("select", is_positive, x, _build_one(g))))
    return [
        g.apply("select", g.apply("eq", y, zero), zero, lowered),
        g.apply("select", is_positive, by_y, zero),
    ]


def _copysign(g, r, x, y):
    return [_mul(g, g.apply("copysign", _build_one(g), x), g.apply("copysign", _build_one(g), y)), None]


def _choice(g, chosen, one=1.0, other=0.0):
    return g.apply("select", chosen, g.constant(one), g.constant(other))


def _maximum(comparison):
    def rule(g, r, x, y):
        first = g.apply(comparison, x, y)
        return [_choice(g, first), _choice(g, first, 0.0, 1.0)]

    return rule


def _arctan2(g, r, y, x):
    square = _add(g, _mul(g, x, x), _mul(g, y, y))
    return [_divide(g, x, square), _neg(g, _divide(g, y, square))]


def _select(g, r, c, x, y):
    return [None, _choice(g, c), _choice(g, c, 0.0, 1.0)]


def _gauss(factor):
    return lambda g, r, x: [_mul(g, g.constant(factor), g.apply("exp", _neg(g, _mul(g, x, x))))]


def _root_of_one(sign):
    """1 / sqrt(1 - x^2) times `sign`."""

    def rule(g, r, x):
        root = g.apply("sqrt", _sub(g, _build_one(g), _mul(g, x, x)))
        return [_divide(g, g.constant(sign), root)]

    return rule


def _one_plus_square(g, x):
    return _add(g, _build_one(g), _mul(g, x, x))


RULES = {
    "add": lambda g, r, x, y: [_build_one(g), _build_one(g)],
    "sub": lambda g, r, x, y: [_build_one(g), _minus_one(g)],
    "mul": lambda g, r, x, y: [y, x],
    "div": _div,
    "neg": lambda g, r, x: [_minus_one(g)],
    "pow": _pow,
    "fmod": lambda g, r, x, y: [_build_one(g), _divide(g, _sub(g, r, x), y)],
    "copysign": _copysign,
    "sqrt": lambda g, r, x: [_divide(g, g.constant(0.5), r)],
    "cbrt": lambda g, r, x: [_divide(g, r, _mul(g, g.constant(3.0), x))],
    "exp": lambda g, r, x: [r],
    "exp2": lambda g, r, x: [_mul(g, g.constant(math.log(2)), r)],
    "expm1": lambda g, r, x: [_add(g, r, _build_one(g))],
    "log": _scaled_reciprocal(1.0),
    "log2": _scaled_reciprocal(1 / math.log(2)),
    "log10": _scaled_reciprocal(1 / math.log(10)),
    "log1p": lambda g, r, x: [_reciprocal(g, _add(g, _build_one(g), x))],
    "sin": lambda g, r, x: [g.apply("cos", x)],
    "cos": lambda g, r, x: [_neg(g, g.apply("sin", x))],
    "tan": lambda g, r, x: [_one_plus_square(g, r)],
    "arcsin": _root_of_one(1.0),
    "arccos": _root_of_one(-1.0),
    "arctan": lambda g, r, x: [_reciprocal(g, _one_plus_square(g, x))],
    "sinh": lambda g, r, x: [g.apply("cosh", x)],
    "cosh": lambda g, r, x: [g.apply("sinh", x)],
    "tanh": lambda g, r, x: [_sub(g, _build_one(g), _mul(g, r, r))],
    "arcsinh": lambda g, r, x: [_reciprocal(g, g.apply("sqrt", _one_plus_square(g, x)))],
    "arccosh": lambda g, r, x: [_reciprocal(g, g.apply("sqrt", _sub(g, _mul(g, x, x), _build_one(g))))],
    "arctanh": lambda g, r, x: [_reciprocal(g, _sub(g, _build_one(g), _mul(g, x, x)))],
    "erf": _gauss(TWO_OVER_ROOT_PI),
    "erfc": _gauss(-TWO_OVER_ROOT_PI),
    "abs": lambda g, r, x: [g.apply("sign", x)],
    "hypot": lambda g, r, x, y: [_divide(g, x, r), _divide(g, y, r)],
    "arctan2": _arctan2,
    "max": _maximum("ge"),
    "min": _maximum("le"),
    "select": _select,
}
"""Operation -> partial derivatives; r is the node itself.  What is not listed is locally constant."""


def pushforward(g: Graph, outputs: list[int], seeds: dict[int, int]) -> list[int]:
    """Tangents of the outputs for tangents `seeds` (input node -> tangent node) of the inputs."""
    dots = dict(seeds)
    for number in g.live(outputs):
        if number in dots:
            continue
        total = None
        for operand, partial in zip(g.operands(number), partials(g, number), strict=True):
            if partial is not None and operand in dots:
                term = _mul(g, partial, dots[operand])
                total = term if total is None else _add(g, total, term)
        if total is not None:
            dots[number] = total
    return [dots.get(output, g.constant(0.0)) for output in outputs]


def pullback(g: Graph, outputs: list[int], weights: list[int], inputs: list[int]) -> list[int | None]:
    """Gradients of sum_i weights_i outputs_i with respect to the inputs; None where there is no dependence."""
    bars: dict[int, int] = {}

    def add(number: int, term: int) -> None:
        bars[number] = term if number not in bars else _add(g, bars[number], term)

    for output, weight in zip(outputs, weights, strict=True):
        add(output, weight)
    for number in reversed(g.live(outputs)):
        if number not in bars:
            continue
        for operand, partial in zip(g.operands(number), partials(g, number), strict=True):
            if partial is not None and g.value(operand) is None:
                add(operand, _mul(g, partial, bars[number]))
    return [bars.get(number) for number in inputs]
