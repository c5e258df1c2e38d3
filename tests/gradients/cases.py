"""Every scheme of the catalogue on every kind of problem it takes: what the tests of derivatives run over.

Right-hand sides are written once for any module of functions (`np`, `torch`), entry by entry; they are smooth, driven
and nonlinear, depend on a number and on an array, and couple all entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from scheme_names import FIXED_STEPS

import stepnet as sn
from stepnet.schemes import Splitting
from stepnet.schemes.capabilities import needs_linear_part

A, B = 0.7, np.array([0.4, -0.3])
SPAN = (0.1, 0.7)
STEPS = 6  # more than any multistep scheme looks back


def slope(xp):
    def f(t, y, a, b):
        return [a * xp.sin(y[1] + t) - b[0] * y[0] * y[1], b[1] * xp.cos(y[0]) + y[0] * t - a * y[1] * y[1]]

    return f


def dq(xp):
    def f(t, p, a, b):
        return [p[0] + a * p[0] * p[1] + xp.sin(t), b[0] * xp.sin(p[1]) + p[0] * p[0]]

    return f


def dp(xp):
    def f(t, q, a, b):
        return [b[1] * q[0] - a * xp.sin(q[1] + t), q[0] * q[1] * b[0] - xp.cos(t) * q[1]]

    return f


def acceleration(xp):
    def f(t, q, a, b):
        return [b[0] * q[1] * q[1] - a * xp.sin(q[0] + t), b[1] * q[0] * q[1] - q[1] * xp.cos(t)]

    return f


def whole_dq(xp):
    def f(t, q, p, a, b):
        return [p[0] * q[1] + a * xp.sin(t + p[1]), b[0] * p[1] - q[0] * p[0]]

    return f


def whole_dp(xp):
    def f(t, q, p, a, b):
        return [b[1] * xp.sin(q[0] * p[1]) - t * q[1], -a * q[1] * p[0]]

    return f


def second(xp):
    def f(t, y, a, b):
        return [b[1] * y[0] * t, a * xp.sin(y[0] * y[1]) - y[1]]

    return f


def third(xp):
    def f(t, y, a, b):
        return [xp.cos(y[1]) * t - a * y[0], b[0] * y[0]]

    return f


MATRIX = np.array([[-0.8, 0.5], [0.3, -1.4]])


def linear(xp):
    """The linear part of a sum; entry by entry for modules other than NumPy."""
    if xp is np:
        return sn.Linear(MATRIX)
    return lambda t, y, a, b: [row[0] * y[0] + row[1] * y[1] for row in MATRIX.tolist()]


Q0, P0, Y0 = np.array([0.5, -0.4]), np.array([0.3, 0.6]), np.array([0.6, -0.5])


class Kind(NamedTuple):
    """A kind of problem: its functions for any module, and the record made from them."""

    name: str
    functions: tuple[Callable, ...]
    record: Callable
    initial: np.ndarray

    def build(self, initial=None, args=(A, B), t_span=SPAN):
        """The problem, from another flat state or with other arguments."""
        y = self.initial if initial is None else np.asarray(initial, float)
        return self.record(FUNCTIONS[self.name], y, t_span, args)

    def in_module(self, xp) -> tuple[Callable, ...]:
        return tuple(make(xp) for make in self.functions)


def _whole(functions, y, t_span, args):
    return sn.Partitioned(*functions, *np.split(y, 2), t_span, args, separable=False)


BOTH = np.concatenate((Q0, P0))
KINDS = [
    Kind("ode", (slope,), lambda f, y, span, args: sn.ODE(*f, y, span, args), Y0),
    Kind("partitioned", (dq, dp), lambda f, y, s, args: sn.Partitioned(*f, *np.split(y, 2), s, args), BOTH),
    Kind("not separable", (whole_dq, whole_dp), _whole, BOTH),
    Kind("second order", (acceleration,), lambda f, y, s, args: sn.SecondOrder(*f, *np.split(y, 2), s, args), BOTH),
    Kind("split in two", (slope, second), lambda f, y, s, args: sn.Split(f, y, s, args), Y0),
    Kind("semilinear", (slope, linear), lambda f, y, s, args: sn.Split(f, y, s, args), Y0),
    Kind("split in three", (slope, second, third), lambda f, y, s, args: sn.Split(f, y, s, args), Y0),
]
FUNCTIONS = {kind.name: kind.in_module(np) for kind in KINDS}  # the same objects throughout, so compiled once


def takes(scheme, kind: Kind) -> bool:
    """Whether a scheme runs a kind, by what `solve` itself says."""
    from stepnet.solving.planning import require_match

    try:
        require_match(kind.build(), scheme)
    except TypeError:
        return False
    if (kind.name == "semilinear") != needs_linear_part(scheme):
        return False  # others take such a sum as they take any
    return not (isinstance(scheme, Splitting) and scheme.nystrom and kind.name.startswith("split"))


SCHEMES = [sn.schemes.get(name) for name in FIXED_STEPS]
CASES = [(scheme, kind) for scheme in SCHEMES for kind in KINDS if takes(scheme, kind)]


def _parameters():
    """All cases; two kinds for each scheme (others for the next) are quick, the rest belongs to the long proofs."""
    for number, scheme in enumerate(SCHEMES):
        kinds = [kind for other, kind in CASES if other is scheme]
        quick = {0, 1 + number % max(1, len(kinds) - 1)}
        for i, kind in enumerate(kinds):
            name = f"{scheme.name}-{kind.name.replace(' ', '_')}"
            yield pytest.param(scheme, kind, id=name, marks=() if i in quick else pytest.mark.slow)


over_the_catalogue = pytest.mark.parametrize(("scheme", "kind"), list(_parameters()))


def generator(scheme, kind) -> np.random.Generator:
    """Random numbers of a case."""
    return np.random.default_rng([*scheme.name.encode(), *kind.name.encode()])


def relative(found, wanted) -> float:
    """Largest distance over largest entry, infinite if an entry is no number: NaN is not larger than any bound."""
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    ratio = np.max(np.abs(found - wanted), initial=0.0) / max(np.max(np.abs(wanted), initial=0.0), 1e-300)
    return float(np.inf if np.isnan(ratio) else ratio)


def loss(y):
    """Nonlinear in all entries of a flat state."""
    total = 0.0
    for i in range(len(y)):
        total = total + np.sin(y[i]) * (1.0 + i) + 0.5 * y[i] * y[i] * y[i - 1]
    return total
