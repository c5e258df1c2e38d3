"""Activations on arrays, vectorised: the exponential by a polynomial, whatever follows from it by few operations.

libm's functions, called one by one, take twenty times as long; these are within 2 units in the last place.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stepnet.engines.numba_engine.compile.cache import inlined
from stepnet.fields.activations import LEAK, SELU_ALPHA, SELU_SCALE

LN2_HIGH, LN2_LOW, PER_LN2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1.4426950408889634
ROUNDING = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, found in the last bits
LARGEST = 700.0
TANH, RELU, LEAKY, SOFTPLUS, GELU, SILU, ELU, SELU, SIGMOID, IDENTITY = range(10)


@intrinsic
def _power_of_two(typing_context, rounded):
    """2^k from k + ROUNDING, by its bits."""

    def generate(context, builder, signature, arguments):
        whole = ir.IntType(64)
        bits = builder.shl(builder.add(builder.bitcast(arguments[0], whole), whole(1023)), whole(52))
        return builder.bitcast(bits, ir.DoubleType())

    return types.float64(types.float64), generate


@inlined
def exponential_parts(u):
    """s = 2^k and q with exp(u) = s + s q, |q| < 0.42, for |u| < 700."""
    rounded = u * PER_LN2 + ROUNDING
    k = rounded - ROUNDING
    r = (u - k * LN2_HIGH) - k * LN2_LOW
    q = 1.6059043836821613e-10
    q = q * r + 2.08767569878681e-09
    q = q * r + 2.505210838544172e-08
    q = q * r + 2.755731922398589e-07
    q = q * r + 2.7557319223985893e-06
    q = q * r + 2.48015873015873e-05
    q = q * r + 1.984126984126984e-04
    q = q * r + 1.388888888888889e-03
    q = q * r + 8.333333333333333e-03
    q = q * r + 4.1666666666666664e-02
    q = q * r + 1.6666666666666666e-01
    q = q * r + 0.5
    return _power_of_two(rounded), r + (r * r) * q


@inlined
def exp(u):
    s, q = exponential_parts(max(min(u, LARGEST), -LARGEST))
    return s + s * q


@inlined
def exp_minus_one(u):
    s, q = exponential_parts(max(min(u, LARGEST), -LARGEST))
    return s * q + (s - 1.0)


@inlined
def tanh(u):
    """e / (e + 2), e = exp(2 |u|) - 1, which loses no digits of e; with the sign of u."""
    e = exp_minus_one(2.0 * min(abs(u), 20.0))
    size = e / (e + 2.0)
    return size if u >= 0 else -size


@inlined
def sigmoid(u):
    return 1.0 / (1.0 + exp(-u))


@inlined
def softplus(u):
    """max(u, 0) + log(1 + e), e = exp(-|u|), the logarithm as 2 artanh(e / (2 + e))."""
    e = exp(-abs(u))
    w = e / (2.0 + e)
    x = w * w
    total = 1.0 / 35.0
    for k in range(16, 0, -1):
        total = total * x + 1.0 / (2 * k + 1)
    w += w
    return max(u, 0.0) + (w + w * (x * total))


@inlined
def normal(u):
    return 0.5 * math.erfc(-u * 0.7071067811865476)


@inlined
def bell(u):
    return 0.3989422804014327 * exp(-0.5 * u * u)


def _loop(function):
    """z[i] = function(z[i] + bias) over an array, vectorised."""
    function = inlined(function)

    @inlined
    def run(z, bias):
        for i in range(z.shape[0]):
            z[i] = function(np.float64(z[i]) + bias)

    return run


_tanh, _softplus, _sigmoid = _loop(lambda u: tanh(u)), _loop(lambda u: softplus(u)), _loop(lambda u: sigmoid(u))
_relu, _leaky = _loop(lambda u: max(u, 0.0)), _loop(lambda u: max(u, LEAK * u))
_elu = _loop(lambda u: u if u > 0 else exp_minus_one(min(u, 0.0)))
_selu = _loop(lambda u: SELU_SCALE * (u if u > 0 else SELU_ALPHA * exp_minus_one(min(u, 0.0))))
_shifted = _loop(lambda u: u)


@inlined
def activate(number, z, bias, slopes):
    """z = s(z + bias) in place; `slopes` gets s' where it does not follow from the value, else it is not touched."""
    if number == TANH:
        _tanh(z, bias)
    elif number == RELU:
        _relu(z, bias)
    elif number == LEAKY:
        _leaky(z, bias)
    elif number == SOFTPLUS:
        _softplus(z, bias)
    elif number == ELU:
        _elu(z, bias)
    elif number == SELU:
        _selu(z, bias)
    elif number == SIGMOID:
        _sigmoid(z, bias)
    elif number == GELU:
        for i in range(z.shape[0]):
            u = np.float64(z[i]) + bias
            share = normal(u)
            slopes[i], z[i] = share + u * bell(u), u * share
    elif number == SILU:
        for i in range(z.shape[0]):
            u = np.float64(z[i]) + bias
            share = sigmoid(u)
            slopes[i], z[i] = share * (1.0 + u * (1.0 - share)), u * share
    elif bias != 0.0:
        _shifted(z, bias)


@inlined
def steepen(number, z, slopes, sign, g):
    """g *= sign s'(u), where sign z = s(u)."""
    if number == TANH:
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * (1.0 - z[i] * z[i])
    elif number == RELU:
        for i in range(g.shape[0]):
            g[i] = sign * g[i] if sign * z[i] > 0 else 0.0
    elif number == LEAKY:
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * (1.0 if sign * z[i] > 0 else LEAK)
    elif number == SOFTPLUS:
        for i in range(g.shape[0]):
            g[i] = -(sign * g[i]) * exp_minus_one(-np.float64(sign * z[i]))
    elif number == ELU:
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * (1.0 if sign * z[i] > 0 else sign * z[i] + 1.0)
    elif number == SELU:
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * (SELU_SCALE if sign * z[i] > 0 else sign * z[i] + SELU_SCALE * SELU_ALPHA)
    elif number == SIGMOID:
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * ((sign * z[i]) * (1.0 - sign * z[i]))
    elif number in (GELU, SILU):
        for i in range(g.shape[0]):
            g[i] = (sign * g[i]) * slopes[i]
    elif sign != 1.0:
        for i in range(g.shape[0]):
            g[i] = sign * g[i]
