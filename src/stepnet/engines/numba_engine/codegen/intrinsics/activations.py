"""Vectorised activations: the exponential by a polynomial, the others from it by a few operations.

libm's functions, called one by one, take twenty times as long; these are within 2 units in the last place (tanh, SiLU
and SELU within 3, GELU within 4), in double precision and in single.
"""

from __future__ import annotations

from math import factorial, log
from typing import NamedTuple

from numba import types
from numba.extending import intrinsic
from numpy.polynomial import Polynomial, chebyshev

from stepnet.engines.numba_engine.codegen.vectors import I32, I64, VECTOR_BYTES, Prefetch, Vector, VectorWriter
from stepnet.fields.activations import LEAK, SELU_ALPHA, SELU_SCALE

TANH, RELU, LEAKY, SOFTPLUS, GELU, SILU, ELU, SELU, SIGMOID, IDENTITY = range(10)
LN2 = log(2.0)
SIDE_BY_SIDE = 4  # vectors whose operations are interleaved to hide latency; a tile has at least as many
MIDDLE = 4.0
TAIL = (
    0.9704512045660766, -0.7517088168395706, 0.22219355567525104, -0.048517753260446085, 0.006925920496242481,
    -0.00032059847439814995, -0.00010054739163210679, 1.8903369019706965e-05, 1.010356885474631e-06,
    -6.145334749397824e-07, -3.3810201200691756e-09, 2.0686508061742833e-08, -1.1282603632469507e-10,
    -7.774015228388695e-10, -9.941424191404708e-12, 3.174482949858303e-11, 1.842480684470494e-12,
    -1.3128616466710965e-12, -1.7415362652654813e-13, 4.9072740317044244e-14, 1.2931384326165576e-14,
    -1.2180663521726341e-15, -8.052147372620933e-16,
)  # fmt: skip
"""Chebyshev coefficients of (a + 4) exp(a^2 / 2) Q(a) in (a - 4) / (a + 4), Q the upper tail of the normal
distribution, down to 1e-16.  Shepherd & Laframboise (1981), Math. Comp. 36:249, with another factor."""
SHIFT = 0.2  # shift in the reduction for tanh: little cancellation where the result is small


class Precision(NamedTuple):
    """Mantissa digits, exponent bias, log 2 in two parts, the largest argument of exp, and terms of the series."""

    digits: int
    bias: int
    ln2: tuple[float, float]
    largest: float
    terms: int
    terms_of_log: int
    terms_of_tail: int
    terms_of_tanh: int


DOUBLE = Precision(52, 1023, (6.93147180369123816490e-01, 1.90821492927058770002e-10), 700.0, 11, 17, 23, 6)
SINGLE = Precision(23, 127, (0.693359375, -2.12194440054690583e-4), 86.0, 5, 7, 12, 4)


def find_precision(u: Vector) -> Precision:
    return DOUBLE if u.kit.size == 8 else SINGLE


def series(x: Vector, coefficients: list[float]) -> Vector:
    """sum_k coefficients_k x^k."""
    total = x.kit.whole(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def expand_exp_tail(terms: int) -> list[float]:
    """Coefficients of (e^r - 1 - r) / r^2 where |r| < log(2) / 2: its series, economised by Chebyshev's."""
    reach = LN2 / 2
    tail = chebyshev.poly2cheb([reach**k / factorial(k + 2) for k in range(24)])
    return [float(c / reach**k) for k, c in enumerate(chebyshev.cheb2poly(tail[:terms]))]


def expand_tanh(terms: int) -> tuple[list[float], list[float]]:
    """Coefficients of p and q in x^2, tanh(x) = x p / q: Lambert's x / (1 + x^2 / (3 + x^2 / (5 + ...)))."""
    x2 = Polynomial([0.0, 1.0])
    before: tuple[Polynomial, ...]
    now: tuple[Polynomial, ...]
    before, now = (Polynomial([1.0]), Polynomial([0.0])), (Polynomial([0.0]), Polynomial([1.0]))
    for k in range(terms):
        before, now = now, tuple((2 * k + 1) * b + (x2 if k else 1.0) * a for a, b in zip(before, now, strict=True))
    return tuple((each / each.coef[0]).trim().coef.tolist() for each in now)


# ---- functions ------------------------------------------------------------------------------------------------------


def _exponential_parts(u: Vector) -> tuple[Vector, Vector]:
    """s = 2^k and q with exp(u) = s + s q, |q| < 0.42; the largest arguments are clipped."""
    kit, p = u.kit, find_precision(u)
    u = kit.larger(kit.smaller(u, p.largest), -p.largest)
    rounding = 1.5 * 2.0**p.digits + p.bias  # adding it rounds to a whole number, found in the last bits
    rounded = u * (1 / LN2) + rounding
    k = rounded - rounding
    r = (u - k * p.ln2[0]) - k * p.ln2[1]
    return rounded.power_of_two(p.digits), r + (r * r) * series(r, expand_exp_tail(p.terms))


def exp(u: Vector) -> Vector:
    s, q = _exponential_parts(u)
    return s + s * q


def exp_minus_one(u: Vector) -> Vector:
    s, q = _exponential_parts(u)
    return s * q + (s - 1.0)


def tanh(u: Vector) -> Vector:
    """m / (m + q - p), m = (s (q + p) - (q - p)) / 2, where exp(2 |u|) = s exp(2 r), tanh(r) = p / q; the sign is u's.

    Errors of m matter little where it is large, and it loses no digits where it is small.
    """
    kit, precision = u.kit, find_precision(u)
    size = kit.smaller(abs(u), 20.0)
    rounding = 1.5 * 2.0**precision.digits + (precision.bias - 1)
    rounded = (size * (2 / LN2) - SHIFT) + rounding
    r = size - (rounded - rounding) * (LN2 / 2)
    half = rounded.power_of_two(precision.digits)
    above, below = expand_tanh(precision.terms_of_tanh)
    x = r * r
    p, q = r + (r * x) * series(x, above[1:]), series(x, below)
    m = kit.both(half - 0.5, q, half + 0.5, p)
    return kit.call("copysign", m / (m + (q - p)), u)


def sigmoid(u: Vector) -> Vector:
    return 1.0 / (1.0 + exp(-u))


def softplus(u: Vector) -> Vector:
    """max(u, 0) + log(1 + e), e = exp(-|u|), the logarithm as 2 artanh(e / (2 + e))."""
    e = exp(-abs(u))
    w = e / (2.0 + e)
    x = w * w
    rest = x * series(x, [1 / (2 * k + 3) for k in range(find_precision(u).terms_of_log)])
    return u.kit.larger(u, 0.0) + ((w + w) + (w + w) * rest)


def elu(u: Vector) -> Vector:
    return u.kit.select(u > 0.0, u, exp_minus_one(u.kit.smaller(u, 0.0)))


def selu(u: Vector) -> Vector:
    return u.kit.select(u > 0.0, SELU_SCALE * u, (SELU_SCALE * SELU_ALPHA) * exp_minus_one(u.kit.smaller(u, 0.0)))


def gelu(u: Vector) -> tuple[Vector, Vector]:
    """u Phi(u) and its derivative Phi(u) + u phi(u), Phi and phi being those of the normal distribution.

    The tail Q(a) = exp(-a^2 / 2) M(a), a = |u|, is accurate, because a^2 is corrected by its rounding error.
    """
    kit, p = u.kit, find_precision(u)
    a = kit.smaller(abs(u), (2 * p.largest) ** 0.5)
    square = a * a
    bell = exp(-0.5 * square)
    bell = bell - bell * (0.5 * kit.call("fma", a, a, -square))
    inverse = 1.0 / (a + MIDDLE)
    coefficients = chebyshev.cheb2poly(TAIL[: p.terms_of_tail]).tolist()
    tail = bell * (inverse * series((a - MIDDLE) * inverse, coefficients))
    share = kit.select(u > 0.0, 1.0 - tail, tail)
    return kit.select(u > 0.0, u, -a) * share, share + kit.call("copysign", a, u) * (0.3989422804014327 * bell)


def silu(u: Vector) -> tuple[Vector, Vector]:
    """u s and its derivative s (1 + u sigmoid(-u)), s = sigmoid(u); u is clipped where s is.

    sigmoid(-u) = exp(-u) s is accurate where 1 - s is lost to cancellation.
    """
    kit, largest = u.kit, find_precision(u).largest
    e, cut = exp(-u), kit.larger(kit.smaller(u, largest), -largest)
    share = 1.0 / (1.0 + e)
    return kit.select(u > 0.0, u, cut) * share, share * (1.0 + cut * (e * share))


VALUES = {
    TANH: tanh, RELU: lambda u: u.kit.larger(u, 0.0), LEAKY: lambda u: u.kit.larger(u, LEAK * u), SOFTPLUS: softplus,
    SIGMOID: sigmoid, ELU: elu, SELU: selu, IDENTITY: lambda u: u,
}  # fmt: skip
VALUES_AND_SLOPES = {GELU: gelu, SILU: silu}
SLOPES = {  # from the value z
    TANH: lambda z: 1.0 - z * z,
    RELU: lambda z: z.kit.select(z > 0.0, 1.0, 0.0),
    LEAKY: lambda z: z.kit.select(z > 0.0, 1.0, LEAK),
    SOFTPLUS: lambda z: -exp_minus_one(-z),
    SIGMOID: lambda z: z * (1.0 - z),
    ELU: lambda z: z.kit.select(z > 0.0, 1.0, z + 1.0),
    SELU: lambda z: z.kit.select(z > 0.0, SELU_SCALE, z + SELU_SCALE * SELU_ALPHA),
    IDENTITY: lambda z: z.kit.whole(1.0),
}


# ---- on arrays ------------------------------------------------------------------------------------------------------


@intrinsic
def exponential(typing_context, u):
    """exp of a number."""

    def generate(context, builder, signature, arguments):
        return exp(VectorWriter(context, builder, u, 1).spread(arguments[0])).value

    return u(u), generate


@intrinsic
def activate(typing_context, number, memory, u0, z0, slopes0, n, bias, sign, base0, sum0, v, w, soon, stop):
    """z = sign s(u + bias) over n entries; s' goes to `slopes0` where it does not follow from the value.

    If `sum0` is an offset, v base + w z is stored there.  The memory from `soon` to `stop` is prefetched, as many
    lines as u has; the result is the offset from which to continue.
    """
    whole, real = types.int64, memory.dtype
    signature = whole(whole, memory, *[whole] * 4, real, real, whole, whole, real, real, whole, whole)

    def generate(context, builder, signature, arguments):
        number, memory_, u0, z0, slopes0, n, bias, sign, base0, sum0, v, w, soon, stop = arguments
        kit = VectorWriter(context, builder, real, SIDE_BY_SIDE * VECTOR_BYTES * 8 // real.bitwidth)
        u, z, slopes, base, target = (
            kit.address(memory, memory_, each) for each in (u0, z0, slopes0, base0, sum0)
        )  # fmt: skip
        bias, sign, v, w = map(kit.spread, (bias, sign, v, w))
        has_sum = builder.icmp_signed(">=", sum0, I64(0))
        ahead = Prefetch(kit, kit.address(memory, memory_, soon), soon, stop)
        with kit.loop_over(n) as place:
            for j in range(SIDE_BY_SIDE):
                ahead.prefetch(builder.add(kit.lines(place), I64(j)))
        for case, formula in kit.cases(number, VALUES | VALUES_AND_SLOPES):
            with kit.loop_over(n) as place:
                value = formula(kit.load(builder.add(u, place)) + bias)
                if case in VALUES_AND_SLOPES:
                    value, slope = value
                    kit.store(slope, builder.add(slopes, place))
                value = kit.apply_sign(value, sign)
                kit.store(value, builder.add(z, place))
                with builder.if_then(has_sum):
                    total = kit.both(v, kit.load(builder.add(base, place)), w, value)
                    kit.store(total, builder.add(target, place))
        return ahead.find_index_after(kit.lines(kit.bytes(n)))

    return signature, generate


@intrinsic
def steepen(typing_context, number, memory, z0, slopes0, f0, g0, n, bias, sign, weight):
    """g = sign weight (f + bias) s'(u) over n entries, where sign z = s(u); the sum of g."""
    whole, real = types.int64, memory.dtype
    signature = real(whole, memory, *[whole] * 5, real, real, real)

    def generate(context, builder, signature, arguments):
        number, memory_, z0, slopes0, f0, g0, n, bias, sign, weight = arguments
        kit = VectorWriter(context, builder, real)
        z, slopes, f, g = (kit.address(memory, memory_, each) for each in (z0, slopes0, f0, g0))
        bias, sign, totals = kit.spread(bias), kit.spread(sign), kit.allocate_sums(2)
        weight = sign * kit.spread(weight)
        half = builder.sdiv(n, I64(2))
        for _, formula in kit.cases(number, SLOPES | dict.fromkeys(VALUES_AND_SLOPES, None)):
            with kit.loop_over(half) as offset:
                for j, place in enumerate((offset, builder.add(offset, kit.bytes(half)))):
                    if formula is None:
                        slope = kit.load(builder.add(slopes, place))
                    else:
                        slope = formula(kit.apply_sign(kit.load(builder.add(z, place)), sign))
                    value = (weight * (kit.load(builder.add(f, place)) + bias)) * slope
                    kit.store(value, builder.add(g, place))
                    totals[j] = totals[j] + value
        return builder.extract_element(kit.totals([totals[0] + totals[1]]), I32(0))

    return signature, generate
