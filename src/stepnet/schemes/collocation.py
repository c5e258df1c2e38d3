"""Coefficients of collocation schemes with any number of stages, from their nodes, in decimal arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import wraps
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

DIGITS = 60  # products of twenty nodes cancel by less than thirty digits
NEWTON_STEPS = 6  # from the sixteen digits of an eigenvalue solver


class Nodes(NamedTuple):
    """A tableau rounded to float64, and its nodes in decimals."""

    A: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[Decimal, ...]


def _compute_in_decimals(function: Callable[..., Nodes]) -> Callable[..., Nodes]:
    @wraps(function)
    def call(stages: int) -> Nodes:
        with localcontext() as context:
            context.prec = DIGITS
            return function(stages)

    return call


@_compute_in_decimals
def build_gauss(stages: int) -> Nodes:
    """c are the zeros of P_s; C(s) holds."""
    return _round(*_collocate(_find_zeros(stages, 0)))


@_compute_in_decimals
def build_radau_iia(stages: int) -> Nodes:
    """c are the zeros of P_s - P_(s-1), the last one is 1; C(s) holds."""
    return _round(*_collocate(_find_zeros(stages, 1)))


@_compute_in_decimals
def build_lobatto_iiia(stages: int) -> Nodes:
    """c are the zeros of P_s - P_(s-2), among them 0 and 1; C(s) holds."""
    return _round(*_collocate(_find_zeros(stages, 2)))


@_compute_in_decimals
def build_lobatto_iiib(stages: int) -> Nodes:
    """D(s) holds: b_i a^_ij + b_j a_ji = b_i b_j with A of Lobatto IIIA."""
    A, b, c = _collocate(_find_zeros(stages, 2))
    n = range(stages)
    return _round([[b[j] - b[j] * A[j][i] / b[i] for j in n] for i in n], b, c)


@_compute_in_decimals
def build_lobatto_iiic(stages: int) -> Nodes:
    """a_i1 = b_1, and C(s-1) holds."""
    _, b, c = _collocate(_find_zeros(stages, 2))
    rest = [_list_lagrange(c[1:], j) for j in range(stages - 1)]
    A = [[b[0], *(_integrate(p, x) - b[0] * p[0] for p in rest)] for x in c]
    return _round(A, b, c)


def build_start_weights(nodes: Nodes, gamma: float) -> tuple[float, ...]:
    """Weights b^ with B(s) for the nodes, if the slope at 0 has the weight gamma: b_j - gamma l_j(0)."""
    with localcontext() as context:
        context.prec = DIGITS
        at_start = [_list_lagrange(nodes.c, j)[0] for j in range(len(nodes.c))]
        integrals = [_integrate(_list_lagrange(nodes.c, j), Decimal(1)) for j in range(len(nodes.c))]
        return tuple(float(w - Decimal(gamma) * x) for w, x in zip(integrals, at_start, strict=True))


def _collocate(c: Sequence[Decimal]) -> tuple[list[list[Decimal]], list[Decimal], Sequence[Decimal]]:
    """a_ij = int_0^(c_i) l_j and b_j = int_0^1 l_j with Lagrange's polynomials of the nodes."""
    polynomials = [_list_lagrange(c, j) for j in range(len(c))]
    A = [[_integrate(p, x) for p in polynomials] for x in c]
    return A, [_integrate(p, Decimal(1)) for p in polynomials], c


def _list_lagrange(c: Sequence[Decimal], j: int) -> list[Decimal]:
    """The coefficients of l_j, which is 1 at c_j and 0 at the other nodes, by rising powers."""
    coefficients, scale = [Decimal(1)], Decimal(1)
    for i, x in enumerate(c):
        if i != j:
            shifted, scaled = [Decimal(0), *coefficients], [*(x * v for v in coefficients), Decimal(0)]
            coefficients = [u - v for u, v in zip(shifted, scaled, strict=True)]
            scale *= c[j] - x
    return [v / scale for v in coefficients]


def _integrate(coefficients: Sequence[Decimal], x: Decimal) -> Decimal:
    """int_0^x of a polynomial."""
    return sum((v * x ** (k + 1) / (k + 1) for k, v in enumerate(coefficients)), Decimal(0))


def _find_zeros(stages: int, back: int) -> tuple[Decimal, ...]:
    """The zeros of P_s - P_(s - back), or of P_s if back is 0, moved from [-1, 1] to [0, 1]."""
    series = np.zeros(stages + 1)
    series[stages] = 1.0
    if back:
        series[stages - back] = -1.0
    found = sorted(legendre.legroots(series).real)
    ends = {found[-1]: Decimal(1)} if back else {}
    if back == 2:
        ends[found[0]] = Decimal(-1)
    zeros = [ends[x] if x in ends else _polish_zero(Decimal(float(x)), stages, back) for x in found]
    return tuple((1 + x) / 2 for x in zeros)


def _polish_zero(x: Decimal, stages: int, back: int) -> Decimal:
    for _ in range(NEWTON_STEPS):
        values, slopes = [Decimal(1), x], [Decimal(0), Decimal(1)]
        for n in range(1, stages):
            values.append(((2 * n + 1) * x * values[n] - n * values[n - 1]) / (n + 1))
            slopes.append(slopes[n - 1] + (2 * n + 1) * values[n])
        value, slope = values[stages], slopes[stages]
        if back:
            value, slope = value - values[stages - back], slope - slopes[stages - back]
        x -= value / slope
    return x


def _round(A: Sequence[Sequence[Decimal]], b: Sequence[Decimal], c: Sequence[Decimal]) -> Nodes:
    tiny = Decimal(10) ** (30 - DIGITS)  # zeros of the tableau come out as rounding

    def as_float(x: Decimal) -> float:
        return 0.0 if abs(x) < tiny else float(x)

    return Nodes(tuple(tuple(as_float(x) for x in row) for row in A), tuple(as_float(x) for x in b), tuple(c))
