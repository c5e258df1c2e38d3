"""Comparison of machine code with the Python function that it replaces."""

from __future__ import annotations

import math
from contextvars import Context
from ctypes import addressof, c_double
from dataclasses import replace
from itertools import count

import numpy as np

from stepnet.engines.numba_engine.rhs.call_form import CallForm, wrap_python_call
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.tracing.function_copies import unjit

AGREEMENT = {
    8: 1e-8,
    4: 1e-3,
}  # compiled against Python, relative to the largest slope; contraction changes the last digits
N_CHECKS = 4
GOLDEN = 0.6180339887498949  # the fractional parts of its multiples are dense in [0, 1]
FEW = 16  # slopes, which are compared faster one by one
_turns = count()

FLOAT64 = np.dtype(np.float64)
QUIET = Context()
"""A context without NumPy's floating-point warnings; entering a copy of it is ten times as fast as `np.errstate`."""
QUIET.run(np.seterr, all="ignore")


class Comparison:
    """Compares the C function at `address`, with parameters `p`, with the Python function of a form.

    If the latter calls jitted functions, which may be stale, a disagreement is settled by the Python functions they
    wrap.
    """

    def __init__(self, address: int, form: CallForm, p: np.ndarray, calls_jitted: bool = False):
        self._address, self._form, self._p, self._calls_jitted = address, form, p, calls_jitted
        self._function = getattr(form.function, "py_func", form.function)
        self._call, self._p_address = SIGNATURE(address), p.ctypes.data
        self._has_few = not form.is_in_place and len(form.inputs) == len(form.output) == 1 and form.output[0] <= FEW
        self._has_few &= form.dtype is FLOAT64
        self._few = c_double * (form.n_in + form.output[0]) if self._has_few else None

    @property
    def n_in(self) -> int:
        """The number of state entries that the function takes."""
        return self._form.n_in

    def agrees_somewhere(self, t_span: tuple[float, float], y: np.ndarray) -> bool:
        """Whether both give the same slopes at a point inside the span and near `y` that differs from call to call."""
        turn = next(_turns) * GOLDEN % 1.0
        t, factor, shift = choose_time_inside(t_span, turn), 1.0 + 0.01 * turn, 0.001 * turn
        if self._has_few and self._are_few_equal(t, [factor * x + shift for x in y.tolist()]):
            return True
        with np.errstate(all="ignore"):
            near = factor * y + shift
        return self.agrees(t, near)

    def agrees(self, t: float, y: np.ndarray) -> bool:
        """Whether both give the same slopes; also true if Python raises there."""
        try:
            with np.errstate(all="ignore"):
                slopes = self.slopes(t, y)
                if self.gives(t, y, slopes):
                    return True
                near = find_largest([self.slopes(t, each) for each in choose_states_near(y)])
        except Exception:  # a point outside the domain of the function is no evidence
            return True
        if self.gives(t, y, slopes, near):
            return True
        return self._calls_jitted and Comparison(self._address, strip_jit(self._form), self._p).agrees(t, y)

    def slopes(self, t: float, y: np.ndarray) -> np.ndarray:
        """The slopes that Python gives."""
        dy = np.empty(self._form.n_out, self._form.dtype)
        wrap_python_call(self._form, self._p)(t, y.copy(), dy)
        return dy

    def gives(self, t: float, y: np.ndarray, slopes: np.ndarray, typical: float = 0.0) -> bool:
        """Whether the C function gives these slopes."""
        return gives(self._call, self._p, t, y, slopes, typical)

    def _are_few_equal(self, t: float, state: list[float]) -> bool:
        """The same without creating arrays; False may also mean that the comparison needs arrays."""
        n, numbers = len(state), self._few(*state)
        first = addressof(numbers)
        if self._call(t, first, first + 8 * n, self._p_address, n) != 0:
            return False
        found = numbers[n:]
        try:
            expected = QUIET.copy().run(self._function, t, np.frombuffer(numbers, count=n), *self._form.args)  # type: ignore[call-overload]
            is_flat = type(expected) is np.ndarray and expected.dtype is FLOAT64 and expected.ndim == 1
            wanted = expected.tolist() if is_flat else [*map(float, expected)]
        except Exception:  # raised again in the comparison with arrays
            return False
        if len(wanted) != len(found):
            return False
        size = difference = 0.0
        for x, y in zip(found, wanted, strict=True):
            difference += abs(x - y)  # a sum, which is NaN or infinite if any slope is
            if abs(y) > size:
                size = abs(y)
        return difference <= AGREEMENT[8] * size < math.inf


def strip_jit(form: CallForm) -> CallForm:
    """A form whose function calls no jitted functions."""
    return replace(form, function=unjit(form.function))


def gives(call, p: np.ndarray, t: float, y: np.ndarray, slopes: np.ndarray, typical: float = 0.0) -> bool:
    """Whether the C function `call` gives the slopes of Python, up to rounding of the largest or a typical slope."""
    found = np.empty_like(slopes)
    if call(t, y.ctypes.data, found.ctypes.data, p.ctypes.data, y.size) != 0:
        return False
    return are_close(found, slopes, typical)


def are_close(found: np.ndarray, slopes: np.ndarray, typical: float = 0.0) -> bool:
    """Whether slopes agree up to rounding of the largest or a typical slope."""
    size = np.abs(slopes)
    most = size.max(initial=typical)
    if np.isfinite(most):
        return bool((np.abs(found - slopes) <= AGREEMENT[size.itemsize] * most).all())
    most = size.max(initial=typical, where=np.isfinite(size))
    return bool(np.allclose(found, slopes, rtol=0.0, atol=AGREEMENT[size.itemsize] * most, equal_nan=True))


def choose_time_inside(t_span: tuple[float, float], fraction: float) -> float:
    """A time in the span, or in its first part if it has no end."""
    t, end = t_span
    length = end - t
    if not -1e300 < length < 1e300:
        length = math.copysign(1.0 + abs(t), length)
    return t + fraction * length


def choose_states_near(y: np.ndarray) -> list[np.ndarray]:
    """A few states near `y`."""
    generator = np.random.default_rng(0)
    steps = [0.1 * (np.abs(y) + 0.1) * generator.standard_normal(y.size) for _ in range(N_CHECKS)]
    return [y + step.astype(y.real.dtype) for step in steps]


def find_largest(found: list[np.ndarray]) -> float:
    """The largest finite slope near a state: a scale for slopes at equilibria, which consist of rounding errors."""
    sizes = [np.abs(slopes).max(initial=0.0) for slopes in found]
    return max((size for size in sizes if np.isfinite(size)), default=0.0)


def evaluate_slopes_nearby(form: CallForm, p: np.ndarray, t_span, y: np.ndarray):
    """Times in the span and states near `y`, with Python's slopes; points outside the function's domain are skipped."""
    evaluate = wrap_python_call(form, p)
    for turn, near in enumerate(choose_states_near(y)):
        t, slopes = choose_time_inside(t_span, turn * GOLDEN % 1.0), np.empty(form.n_out, form.dtype)
        try:
            with np.errstate(all="ignore"):
                evaluate(t, near, slopes)
        except Exception:
            continue
        yield t, near, slopes
