"""Elementary functions of one number per SIMD lane, for code that runs many trajectories at once.

exp, log, tanh, sin, cos and pow are Taylor series after a reduction of the argument, at most 2 units in the last place
from the exact value (measured in the tests).  Arguments outside the range of a reduction, and all other functions,
are passed to libm lane by lane.  The result of a lane never depends on other lanes.

Reductions in parts whose products are exact: W. J. Cody & W. Waite (1980), Software Manual for the Elementary
Functions.  Sums and products with their rounding errors: T. J. Dekker (1971), Numer. Math. 18:224.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from math import factorial, inf, nan, sqrt

from stepnet.engines.numba_engine.codegen.machine_code import LANES, LIBM, AssemblyWriter, spread
from stepnet.engines.numba_engine.tracing.graph import BINARY

WHOLE = f"<{LANES} x i64>"
ROUNDER = 1.5 * 2.0**52  # x + ROUNDER holds the integer nearest to x in its last bits
SMALLEST = 2.0**-1022  # of full precision
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2 = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
HALF_PI = tuple(map(float.fromhex, ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69")))
MOST_QUARTERS = 2.0**19  # of a turn; beyond, the products of the reduction are no longer exact
TWO_THIRDS = 2 / 3, float.fromhex("0x1.5555555555555p-55")


class _Lanes(AssemblyWriter):
    """The operations that the functions are made of."""

    def __init__(self):
        super().__init__(is_wide=True)

    def add(self, x, y):
        return self.do("fadd", x, y)

    def sub(self, x, y):
        return self.do("fsub", x, y)

    def mul(self, x, y):
        return self.do("fmul", x, y)

    def div(self, x, y):
        return self.do("fdiv", x, y)

    def fma(self, x, y, z):
        """x y + z rounded once, on every processor."""
        return self.call("llvm.fma.f64", x, y, z)

    def series(self, z, coefficients):
        """sum_k coefficients_k z^k."""
        total = self.literal(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, z, self.literal(c))
        return total

    def bits(self, x):
        return self.line(f"bitcast {self.real} {x} to {WHOLE}")

    def from_bits(self, n):
        return self.line(f"bitcast {WHOLE} {n} to {self.real}")

    def whole(self, operation: str, n, m):
        """An instruction on integers, where `m` is a Python number or a name."""
        return self.line(f"{operation} {WHOLE} {n}, {spread(str(m), 'i64') if isinstance(m, int) else m}")

    def round_to_integer(self, x):
        """The nearest integer, as a number and as an integer."""
        shifted = self.add(x, self.literal(ROUNDER))
        return self.sub(shifted, self.literal(ROUNDER)), self.whole("sub", self.bits(shifted), _bits_of(ROUNDER))

    def power_of_two(self, n):
        """2^n for -1022 <= n <= 1023."""
        return self.from_bits(self.whole("shl", self.whole("add", n, 1023), 52))

    def both(self, x, y):
        return self.line(f"and {self.truth} {x}, {y}")

    def sum_and_rest(self, x, y):
        """x + y and its rounding error, for |x| >= |y|."""
        total = self.add(x, y)
        return total, self.sub(y, self.sub(total, x))


def _bits_of(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _exp(w: _Lanes, x, low=None):
    """2^n e^r with x + low = n log 2 + r."""
    x = w.select(w.compare("ogt", x, w.literal(720.0)), w.literal(720.0), x)
    x = w.select(w.compare("olt", x, w.literal(-760.0)), w.literal(-760.0), x)
    k, n = w.round_to_integer(w.mul(x, w.literal(LOG2_E)))
    r = w.fma(k, w.literal(-LN2[0]), x)
    r = w.fma(k, w.literal(-LN2[1]), r)
    if low is not None:
        r = w.add(r, low)
    tail = w.series(r, [1 / factorial(i) for i in range(2, 14)])
    rest = w.fma(w.mul(r, r), tail, r)
    half = w.whole("ashr", n, 1)  # 2^n in two factors, neither of which overflows
    scaled = w.mul(w.add(w.literal(1.0), rest), w.power_of_two(half))
    return w.mul(scaled, w.power_of_two(w.whole("sub", n, half)))


def _tanh(w: _Lanes, x):
    """x - x z D(z) / N(z) with z = x^2 from the continued fraction below 0.6, else 1 - 2 / (e^2|x| + 1)."""
    size = w.call("llvm.fabs.f64", x)
    is_small = w.compare("olt", size, w.literal(0.6))
    z = w.mul(x, x)
    top, bottom = (w.series(z, list(map(float, c))) for c in _expand_continued_fraction(15))
    growing = w.add(_exp(w, w.add(size, size)), w.literal(1.0))
    over = w.select(is_small, w.mul(w.mul(size, z), top), w.literal(2.0))
    rest = w.div(over, w.select(is_small, bottom, growing))
    return w.call("llvm.copysign.f64", w.sub(w.select(is_small, size, w.literal(1.0)), rest), x)


def _expand_continued_fraction(last: int) -> tuple[list[int], list[int]]:
    """D and N, from the lowest power, of tanh x = x - x z D / N, by x / (1 + z / (3 + z / (5 + ... z / last)))."""
    top, bottom = [last], [1]
    for odd in range(last - 2, 0, -2):
        top, bottom = [odd * c + d for c, d in zip_longest(top, [0, *bottom], fillvalue=0)], top
    return [c - d for c, d in zip_longest(top, bottom, fillvalue=0)][1:], top


def _mantissa(w: _Lanes, x):
    """e as a number and m with x = 2^e m, sqrt(1/2) <= m < sqrt(2), for normal positive x."""
    bits = w.bits(x)
    e = w.whole("ashr", w.whole("sub", bits, _bits_of(sqrt(0.5))), 52)
    m = w.from_bits(w.whole("sub", bits, w.whole("shl", e, 52)))
    exponent = w.sub(w.from_bits(w.whole("add", e, _bits_of(ROUNDER))), w.literal(ROUNDER))
    return exponent, m


def _log(w: _Lanes, x):
    """log m = 2 artanh(s), s = f / (2 + f), f = m - 1."""
    is_tiny = w.compare("olt", x, w.literal(SMALLEST))
    e, m = _mantissa(w, w.select(is_tiny, w.mul(x, w.literal(2.0**54)), x))
    e = w.select(is_tiny, w.sub(e, w.literal(54.0)), e)
    f = w.sub(m, w.literal(1.0))
    s = w.div(f, w.add(w.literal(2.0), f))
    z = w.mul(s, s)
    rest = w.mul(z, w.series(z, [2 / (2 * k + 3) for k in range(10)]))
    half = w.mul(w.mul(w.literal(0.5), f), f)
    low = w.fma(s, w.add(half, rest), w.mul(e, w.literal(LN2[1])))
    found = w.fma(e, w.literal(LN2[0]), w.sub(f, w.sub(half, low)))
    found = w.select(w.compare("oeq", x, w.literal(inf)), x, found)
    found = w.select(w.compare("oeq", x, w.literal(0.0)), w.literal(-inf), found)
    found = w.select(w.compare("olt", x, w.literal(0.0)), w.literal(nan), found)
    return w.select(w.compare("uno", x, x), x, found)


def _long_log(w: _Lanes, x):
    """log x as a sum of two numbers, to about 2^-64."""
    e, m = _mantissa(w, x)
    f = w.sub(m, w.literal(1.0))
    d = w.add(w.literal(2.0), f)
    d_low = w.sub(f, w.sub(d, w.literal(2.0)))
    s = w.div(f, d)
    s_low = w.div(w.fma(w.negative(s), d_low, w.fma(w.negative(s), d, f)), d)
    z = w.mul(s, s)
    z_low = w.fma(w.add(s, s), s_low, w.fma(s, s, w.negative(z)))
    c, c_low = map(w.literal, TWO_THIRDS)
    q = w.mul(z, c)
    q_low = w.fma(z_low, c, w.fma(z, c_low, w.fma(z, c, w.negative(q))))
    q_low = w.fma(w.mul(z, z), w.series(z, [2 / (2 * k + 5) for k in range(9)]), q_low)
    u = w.mul(s, q)  # log m = 2 s + s q
    low = w.fma(s, q_low, w.fma(s, q, w.negative(u)))
    low = w.fma(s_low, w.add(w.literal(2.0), q), low)
    low = w.fma(e, w.literal(LN2[1]), low)
    twice = w.add(s, s)
    large = w.mul(e, w.literal(LN2[0]))
    is_one = w.compare("oeq", e, w.literal(0.0))
    total, rest = w.sum_and_rest(w.select(is_one, twice, large), w.select(is_one, large, twice))
    total, rest_2 = w.sum_and_rest(total, u)
    return w.sum_and_rest(total, w.add(low, w.add(rest, rest_2)))


def _pow(w: _Lanes, x, y):
    """exp(y log x) with a logarithm of more digits, for normal positive x; C's `pow` for the rest."""
    log, low = _long_log(w, x)
    product = w.mul(y, log)
    product_low = w.fma(y, low, w.fma(y, log, w.negative(product)))
    is_large = w.compare("ogt", w.call("llvm.fabs.f64", product), w.literal(750.0))
    found = _exp(w, product, w.select(is_large, w.literal(0.0), product_low))
    is_usual = w.both(w.compare("oge", x, w.literal(SMALLEST)), w.compare("olt", x, w.literal(inf)))
    is_usual = w.both(is_usual, w.compare("olt", w.call("llvm.fabs.f64", y), w.literal(2.0**40)))
    return _fall_back_to_libm(w, "pow", is_usual, found, x, y)


def _quarter_turns(w: _Lanes, x):
    """n and r = high + low with x = n pi/2 + r."""
    k, n = w.round_to_integer(w.mul(x, w.literal(2 / 3.141592653589793)))
    r = w.sub(x, w.mul(k, w.literal(HALF_PI[0])))
    part = w.mul(k, w.literal(HALF_PI[1]))
    high = w.sub(r, part)
    low = w.sub(w.sub(w.sub(r, high), part), w.mul(k, w.literal(HALF_PI[2])))
    return n, *w.sum_and_rest(high, low)


def _circular(w: _Lanes, x, shift: int, name: str):
    """The sine of x + shift pi/2."""
    n, r, low = _quarter_turns(w, x)
    n = w.whole("add", n, shift)
    z = w.mul(r, r)
    one, half = w.literal(1.0), w.mul(w.literal(0.5), z)
    cubic = w.mul(w.mul(r, z), w.series(z, [(-1) ** (k + 1) / factorial(2 * k + 3) for k in range(8)]))
    sine = w.add(r, w.fma(low, w.sub(one, half), cubic))
    near = w.sub(one, half)
    quartic = w.mul(w.mul(z, z), w.series(z, [(-1) ** k / factorial(2 * k + 4) for k in range(8)]))
    rest = w.add(w.sub(w.sub(one, near), half), w.fma(w.negative(r), low, quartic))
    cosine = w.add(near, rest)
    is_odd = w.line(f"trunc {WHOLE} {n} to {w.truth}")
    found = w.bits(w.select(is_odd, cosine, sine))
    sign = w.whole("shl", w.whole("lshr", n, 1), 63)
    found = w.from_bits(w.whole("xor", found, sign))
    is_usual = w.compare("olt", w.call("llvm.fabs.f64", x), w.literal(MOST_QUARTERS))
    return _fall_back_to_libm(w, name, is_usual, found, x)


def _sin(w: _Lanes, x):
    found = _circular(w, x, 0, "sin")
    return w.select(w.compare("oeq", x, w.literal(0.0)), x, found)  # keeps the sign of zero


def _cos(w: _Lanes, x):
    return _circular(w, x, 1, "cos")


def _fall_back_to_libm(w: _Lanes, name: str, is_usual, found, *x):
    """`found` in the usual lanes, the C function in the others; it is called only if there are any."""
    w.lines.append(f"%mask = bitcast {w.truth} {is_usual} to i{LANES}")
    w.lines += [f"%all = icmp eq i{LANES} %mask, -1", "br i1 %all, label %done, label %rare", "rare:"]
    other = w.select(is_usual, found, _call_lane_by_lane(w, name, *x))
    w.lines += ["br label %done", "done:", f"%result = phi {w.real} [ {found}, %entry ], [ {other}, %rare ]"]
    return "%result"


def _call_lane_by_lane(w: _Lanes, name: str, *x):
    """The C function, called for each lane."""
    total = "undef"
    for lane in range(LANES):
        entries = [w.line(f"extractelement {w.real} {value}, i32 {lane}") for value in x]
        value = w.line(f"call double @{name}({', '.join(f'double {entry}' for entry in entries)})")
        total = w.line(f"insertelement {w.real} {total}, double {value}, i32 {lane}")
    return total


OWN: dict[str, Callable] = {"exp": _exp, "log": _log, "tanh": _tanh, "sin": _sin, "cos": _cos, "pow": _pow}


@cache
def write_definition(symbol: str) -> str:
    """Assembly of the function for lanes that replaces a function of libm."""
    operation = next(name for name, found in LIBM.items() if found == symbol)
    names = ["%x", "%y"] if operation in BINARY else ["%x"]
    w = _Lanes()
    result = OWN[symbol](w, *names) if symbol in OWN else _call_lane_by_lane(w, symbol, *names)
    head = ", ".join(f"{w.real} {name}" for name in names)
    body = "\n  ".join(["br label %entry", "entry:", *w.lines])
    return f"define internal {w.real} @lanes.{symbol}({head}) {{\n  {body}\n  ret {w.real} {result}\n}}\n"


def add_definitions(text: str) -> str:
    """Assembly of code for lanes, with the functions that it calls."""
    called = sorted(set(re.findall(r"@lanes\.(\w+)", text)))
    text += "".join(write_definition(symbol) for symbol in called)
    wide = f"<{LANES} x double>"
    declared = ""
    for symbol in sorted(set(re.findall(rf"@(llvm\.\w+\.v{LANES}f64)", text))):
        count = 3 if "fma" in symbol or "fmuladd" in symbol else 2 if "copysign" in symbol else 1
        declared += f"declare {wide} @{symbol}({', '.join([wide] * count)})\n"
    return declared + text
