"""Plain Python right-hand sides become straight-line code with derivatives, or report why not and stay correct."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from zoo import CASES, FALLEN, NOISE, TRACED, Case, Spring, lorenz96, noisy_decay, parameters

import stepnet as sn
from stepnet.engines.numba_engine.codegen import machine_code
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.derivatives.graph_derivatives import RULES
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, TrialCall, validate_code
from stepnet.engines.numba_engine.rhs.ladder import _trace_code as traced_rung
from stepnet.engines.numba_engine.tracing.function_key import reach
from stepnet.engines.numba_engine.tracing.graph import EVALUATE, Graph, TooManyNodes
from stepnet.engines.numba_engine.tracing.symbols import UFUNCS, CannotTrace
from stepnet.engines.numba_engine.tracing.trace import Trace, trace

SAME_VALUE = 1e-13  # of the largest slope: contraction and another libm change the last two digits
COMPLEX_STEP = 1e-13  # relative: a complex step has no truncation and no cancellation
DIFFERENCES = 1e-11  # relative: differences of order 16 lose a digit or two to rounding
ADJOINT = 1e-12  # relative: the same products, summed in another order
RUNG_AGREEMENT = 1e-9  # relative, of solutions with this tolerance:
RTOL = 1e-10
ULPS = 4 * np.finfo(float).eps  # two libraries' elementary functions

POINTERS = [ctypes.c_void_p] * 3
JVP = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_double, *POINTERS[:2], ctypes.c_double, *POINTERS, ctypes.c_int64
)  # fmt: skip
VJP = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_double, *POINTERS, *POINTERS, ctypes.c_int64)

every_case = pytest.mark.parametrize("case", parameters(CASES))
every_traced = pytest.mark.parametrize("case", parameters(TRACED))
every_fallen = pytest.mark.parametrize("case", parameters(FALLEN))
every_analytic = pytest.mark.parametrize("case", parameters(case for case in TRACED if case.is_analytic))


# ---- from Python to machine code and back, by the parts of the compiler ----------------------------------------------


def trace_of(fun, y0, args=(), most: int = MOST_NODES_OF_DERIVATIVES) -> Trace:
    shape = np.shape(y0)
    return trace(find_call_form(fun, args, (shape,), shape, np.float64, "fun"), pack(args), most)


@cache
def code_of(case: Case, which: str) -> MachineCode:
    return MachineCode(write_assembly(trace_of(case.fun, case.start, case.args), which), which)


def machine_slopes(code: MachineCode, t: float, y, p=()) -> np.ndarray:
    y, p = np.array(y, dtype=float).ravel(), np.array(p, dtype=float)
    dy = np.full(y.size, np.nan)
    assert SIGNATURE(code.address)(t, y.ctypes.data, dy.ctypes.data, p.ctypes.data, y.size) == 0
    return dy


def machine_jvp(code: MachineCode, point, direction) -> np.ndarray:
    (t, y, p), (t_dot, y_dot, p_dot) = point, direction
    out = np.full(y.size, np.nan)
    arrays = (x.ctypes.data for x in (y_dot, p_dot, out))
    assert JVP(code.address)(t, y.ctypes.data, p.ctypes.data, t_dot, *arrays, y.size) == 0
    return out


def machine_vjp(code: MachineCode, point, w, bars=None):
    t, y, p = point
    bars = (np.zeros(1), np.zeros(y.size), np.zeros(p.size)) if bars is None else bars
    addresses = (x.ctypes.data for x in (y, p, w, *bars))
    assert VJP(code.address)(t, *addresses, y.size) == 0
    return bars


def python_slopes(case: Case, t, y, p) -> np.ndarray:
    """The flat slopes of the Python original, of any type, with the numbers of its arguments taken out of `p`."""
    function = getattr(case.fun, "py_func", case.fun)
    form = find_call_form(function, case.args, (case.start.shape,), case.start.shape, np.float64, "fun")
    state = np.array(y).reshape(case.start.shape)[()]
    if form.is_in_place:
        dy = np.empty(case.start.shape, np.result_type(y, p, t))
        function(t, state, dy, *((p,) if form.takes_parameters else ()))
        return dy.ravel()
    return np.ravel(np.asarray(function(t, state, *unpacked(case, p))))


def unpacked(case: Case, p) -> list:
    args = []
    for slot, value in zip(pack(case.args).slots, case.args, strict=True):
        if slot.kind == "array":
            args.append(p[slot.offset : slot.offset + value.size].reshape(value.shape))
        else:
            args.append(p[slot.offset] if slot.kind == "float" else value)
    return args


def is_real_number(case: Case) -> np.ndarray:
    """Which numbers of the parameter block are floats; whole numbers and flags must stay as they are."""
    slots = zip(pack(case.args).slots, case.args, strict=True)
    kinds = [np.full(np.size(a), s.kind in ("float", "array")) for s, a in slots]
    return np.concatenate(kinds) if kinds else np.zeros(0, bool)


def point_near(case: Case, rng):
    """A time, a state and parameters near those of the case."""
    y, p = case.start.ravel(), pack(case.args).values
    t = case.t_span[0] + rng.uniform(0.1, 0.3) * (case.t_span[1] - case.t_span[0])
    y = y + 0.3 * case.reach * (np.abs(y) + 0.05) * rng.uniform(-1, 1, y.size)
    return t, y, p + 0.3 * case.reach * np.abs(p) * rng.uniform(-1, 1, p.size) * is_real_number(case)


def direction_at(case: Case, point, rng):
    """A direction in time, state and parameters, each as large as what it changes."""
    _, y, p = point
    y_dot = (np.abs(y) + 0.05) * rng.uniform(-1, 1, y.size)
    return rng.uniform(-1, 1), y_dot, np.abs(p) * rng.uniform(-1, 1, p.size) * is_real_number(case)


def moved(point, direction, s):
    return tuple(x + s * v for x, v in zip(point, direction, strict=True))


def difference_quotient(case: Case, point, direction) -> np.ndarray:
    """d/ds of the Python slopes along a direction, by central differences of order 16."""
    h, half = case.reach / 8, 8
    total = 0.0
    for k in range(1, half + 1):
        weight = 2 * (-1) ** (k + 1) * math.comb(2 * half, half - k) / (k * math.comb(2 * half, half))
        ahead, behind = (python_slopes(case, *moved(point, direction, sign * k * h)) for sign in (1, -1))
        total = total + weight * (ahead - behind) / 2
    return total / h


def complex_step(case: Case, point, direction) -> np.ndarray:
    tiny = 1e-30
    return python_slopes(case, *moved(point, direction, tiny * 1j)).imag / tiny


def largest(*arrays) -> float:
    return max(float(np.max(np.abs(x), initial=0.0)) for x in arrays)


# ---- the rungs -------------------------------------------------------------------------------------------------------


def solved(case: Case) -> sn.Solution:
    problem = sn.ODE(case.fun, case.y0, case.t_span, case.args)
    return sn.solve(problem, "dop853", rtol=RTOL, atol=1e-3 * RTOL, save_every=0)


def test_the_zoo_is_large(capsys):
    with capsys.disabled():
        print(f"\nzoo: {len(TRACED)} right-hand sides to trace, {len(FALLEN)} that must fall back")
    assert len(TRACED) >= 45
    assert len(FALLEN) >= 8
    assert len({case.name for case in CASES}) == len(CASES)


@every_traced
def test_traced_where_straight_line_code_can_be(case):
    statistics = solved(case).statistics
    assert (statistics.rung, statistics.rung_reason) == ("traced", "")


@every_fallen
def test_falls_back_where_it_cannot_and_says_why(case, monkeypatch):
    found = solved(case)
    assert found.statistics.rung == case.rung
    assert "not traced" in found.statistics.rung_reason
    assert case.reason in found.statistics.rung_reason
    monkeypatch.setenv("STEPNET_RUNG", "python")
    plain = solved(case)
    assert plain.statistics.rung == "python"
    assert largest(found.y - plain.y) <= RUNG_AGREEMENT * largest(plain.y)


@every_traced
def test_trace_and_plain_python_give_one_solution(case, monkeypatch):
    found = solved(case)
    monkeypatch.setenv("STEPNET_RUNG", "python")
    plain = solved(case)
    assert plain.statistics.rung == "python"
    assert largest(found.y - plain.y) <= RUNG_AGREEMENT * largest(plain.y)


@every_traced
def test_even_steps_of_the_trace_are_those_of_python(case, monkeypatch):
    """Short traces are generated into whole steps, longer ones are called: both must do what Python does."""
    problem = sn.ODE(case.fun, case.y0, (case.t_span[0], case.t_span[0] + 0.2 * np.diff(case.t_span)[0]), case.args)
    found = sn.solve(problem, "rk4", steps=12)
    monkeypatch.setenv("STEPNET_RUNG", "python")
    plain = sn.solve(problem, "rk4", steps=12)
    np.testing.assert_array_equal(found.t, plain.t)
    assert largest(found.y - plain.y) <= 12 * SAME_VALUE * largest(plain.y)


@pytest.mark.slow
@every_traced
def test_compiled_rung_gives_the_same_solution(case, monkeypatch):
    found = solved(case)
    monkeypatch.setenv("STEPNET_RUNG", "compiled")
    compiled = solved(case)
    assert compiled.statistics.rung == ("compiled" if case.compiles else "python")
    assert largest(found.y - compiled.y) <= RUNG_AGREEMENT * largest(compiled.y)


def test_randomness_is_noticed_and_left_to_python():
    solution = sn.solve(sn.ODE(noisy_decay, [1.0, 2.0], (0.0, 1.0)), "rk4", steps=100)
    assert solution.statistics.rung == "python"
    assert "random numbers" in solution.statistics.rung_reason
    exact = np.array([1.0, 2.0]) * math.exp(-1.0)
    assert np.all(np.abs(solution.y[-1] - exact) <= NOISE)
    assert np.any(solution.y[-1] != exact)


# ---- values and derivatives ------------------------------------------------------------------------------------------


@every_traced
def test_code_computes_what_python_does(case):
    rng = np.random.default_rng(1)
    for _ in range(4):
        t, y, p = point_near(case, rng)
        expected = python_slopes(case, t, y, p)
        assert largest(expected) > 0
        assert largest(machine_slopes(code_of(case, "f"), t, y, p) - expected) <= SAME_VALUE * largest(expected)


@every_traced
def test_tangent_is_the_derivative(case):
    rng = np.random.default_rng(2)
    for _ in range(2):
        point = point_near(case, rng)
        direction = direction_at(case, point, rng)
        found, expected = (
            machine_jvp(code_of(case, "jvp"), point, direction),
            difference_quotient(case, point, direction),
        )
        assert largest(expected) > 0
        assert largest(found - expected) <= DIFFERENCES * largest(expected, python_slopes(case, *point))


@every_analytic
def test_tangent_is_the_complex_step(case):
    rng = np.random.default_rng(3)
    point = point_near(case, rng)
    direction = direction_at(case, point, rng)
    found, expected = machine_jvp(code_of(case, "jvp"), point, direction), complex_step(case, point, direction)
    assert largest(found - expected) <= COMPLEX_STEP * largest(expected, python_slopes(case, *point))


@every_analytic
def test_pullback_is_the_complex_step_entry_by_entry(case):
    rng = np.random.default_rng(4)
    point = point_near(case, rng)
    y = point[1]
    w = rng.uniform(-1, 1, y.size)
    found = np.concatenate(machine_vjp(code_of(case, "vjp"), point, w))
    wiggled = np.concatenate(([True], np.ones(y.size, bool), is_real_number(case)))
    expected, size = np.zeros(found.size), np.zeros(found.size)
    for i in np.flatnonzero(wiggled):
        e = np.eye(1, found.size, i)[0]
        column = complex_step(case, point, (e[0], e[1 : 1 + y.size], e[1 + y.size :]))
        expected[i], size[i] = w @ column, np.abs(w) @ np.abs(column)
    assert np.any(expected != 0)
    assert np.all(np.abs(found - expected)[wiggled] <= COMPLEX_STEP * np.maximum(size, size.max() * 1e-3)[wiggled])


@every_traced
def test_pullback_is_the_adjoint_of_the_tangent(case):
    rng = np.random.default_rng(5)
    point = point_near(case, rng)
    direction, w = direction_at(case, point, rng), rng.uniform(-1, 1, case.start.size)
    forward = machine_jvp(code_of(case, "jvp"), point, direction) * w
    t_bar, y_bar, p_bar = machine_vjp(code_of(case, "vjp"), point, w)
    backward = np.concatenate((t_bar * direction[0], y_bar * direction[1], p_bar * direction[2]))
    assert largest(backward) > 0
    assert abs(forward.sum() - backward.sum()) <= ADJOINT * (np.abs(forward).sum() + np.abs(backward).sum())


def test_pullback_adds_to_what_is_there():
    case = next(case for case in TRACED if case.name == "lorenz")
    point, w = (0.0, case.start, pack(case.args).values), np.array([1.0, -2.0, 0.5])
    alone = machine_vjp(code_of(case, "vjp"), point, w)
    added = machine_vjp(code_of(case, "vjp"), point, w, tuple(np.full(x.size, 3.0) for x in alone))
    for x, z in zip(alone, added, strict=True):
        np.testing.assert_array_equal(z, x + 3.0)


INSIDE = {"arcsin": (0.3, 0.7), "arccos": (0.3, 0.7), "arctanh": (0.3, 0.7), "arccosh": (1.5, 2.5)}
LOCALLY_CONSTANT = {"floor", "ceil", "sign", "isnan", "isinf", "isfinite"}  # the derivative is zero where there is one


@pytest.mark.parametrize("operation", sorted(set(UFUNCS.values()) - {"and", "or", "not", "xor"}))
def test_every_operation_has_its_derivative(operation):
    ufunc = next(ufunc for ufunc, name in UFUNCS.items() if name == operation)
    fun = (lambda t, y: [ufunc(y[0]) * 1.0]) if ufunc.nin == 1 else (lambda t, y: [ufunc(y[0], y[1]) * 1.0, y[0]])
    if operation in ("lt", "le", "gt", "ge", "eq", "ne"):
        fun = lambda t, y: np.where(ufunc(y[::-1], y), y * y, np.sin(y))
    case = Case(operation, fun, np.array([1.3, 0.6][: max(ufunc.nin, 1)]), (0.0, 1.0), reach=0.05)
    if operation in INSIDE:
        case = Case(operation, fun, np.array([np.mean(INSIDE[operation])]), (0.0, 1.0), reach=0.05)
    rng = np.random.default_rng(6)
    point = point_near(case, rng)
    direction = direction_at(case, point, rng)
    found, expected = machine_jvp(code_of(case, "jvp"), point, direction), difference_quotient(case, point, direction)
    assert (largest(expected) > 0) == (operation not in LOCALLY_CONSTANT)
    assert largest(found - expected) <= DIFFERENCES * largest(expected, python_slopes(case, *point))


def test_every_rule_of_differentiation_names_an_operation():
    assert set(RULES) <= set(EVALUATE)


NUMERIC = [ufunc for ufunc, operation in UFUNCS.items() if operation not in ("and", "or", "not", "xor")]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 0.1, 0.3, 3.0, 1e-300, 1e300, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("ufunc", NUMERIC, ids=lambda u: u.__name__)
def test_operations_agree_with_numpy_at_special_values(ufunc):
    """Zeros of both signs, infinities, NaN, and whole multiples on which a rounded quotient would be off by one."""
    values = np.array(SPECIAL)
    points = np.array([(x, z) for x in values for z in values] if ufunc.nin == 2 else [(x, 0.0) for x in values])
    if ufunc is np.floor_divide:  # NumPy says 1 // -inf = -1, for which nobody needs straight-line code
        points = points[np.all(np.isfinite(points), axis=1)]
    fun = (lambda t, y: [ufunc(y[0], y[1]), 0.0]) if ufunc.nin == 2 else (lambda t, y: [ufunc(y[0]), 0.0])
    code = MachineCode(write_assembly(trace_of(fun, np.ones(2)), "f"), "f")
    found = np.array([machine_slopes(code, 0.0, point)[0] for point in points])
    with np.errstate(all="ignore"):
        expected = ufunc(*points.T[: ufunc.nin]).astype(float)
    same = np.isclose(found, expected, rtol=ULPS, atol=0.0, equal_nan=True)
    wrong = [
        (tuple(map(float, p)), f, e)
        for p, f, e in zip(points, found, expected, strict=True)
        if not np.isclose(f, e, ULPS, 0.0, True)
    ]
    assert np.all(same), f"{len(wrong)} differ, (operands, found, NumPy's): {wrong[:4]}"


@pytest.mark.parametrize("ufunc", [np.remainder, np.floor_divide, np.fmod, np.heaviside, np.copysign])
def test_what_rounds_nothing_is_numpy_bit_for_bit(ufunc):
    rng = np.random.default_rng(9)
    points = np.array([(x, z) for x in SPECIAL for z in SPECIAL] + list(rng.normal(0, 10, (200, 2)).round(1)))
    code = MachineCode(write_assembly(trace_of(lambda t, y: [ufunc(y[0], y[1]), 0.0], np.ones(2)), "f"), "f")
    found = np.array([machine_slopes(code, 0.0, point)[0] for point in points])
    with np.errstate(all="ignore"):
        expected = ufunc(*points.T)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found) & ~np.isnan(found), np.signbit(expected) & ~np.isnan(expected))


def test_powers_are_differentiable_at_base_zero():
    """d(x^p)/dx = p x^(p-1) and d(x^p)/dp = x^p log x, which is 0 at x = 0."""
    case = Case("power", lambda t, y: [y[0] ** y[1], y[1]], np.array([0.5, 2.0]), (0.0, 1.0))
    for p, by_x in ((0.0, 0.0), (1.0, 1.0), (1.5, 0.0), (2.0, 0.0)):
        point, w = (0.0, np.array([0.0, p]), np.zeros(0)), np.array([1.0, 0.0])
        _, y_bar, _ = machine_vjp(code_of(case, "vjp"), point, w)
        assert y_bar.tolist() == [by_x, 0.0]


def test_the_derivative_of_a_log_of_sums_is_shared_at_a_tie():
    case = Case("logaddexp", lambda t, y: [np.logaddexp(y[0], y[1]), 0.0], np.ones(2), (0.0, 1.0))
    _, y_bar, _ = machine_vjp(code_of(case, "vjp"), (0.0, np.ones(2), np.zeros(0)), np.array([1.0, 0.0]))
    np.testing.assert_allclose(y_bar, [0.5, 0.5], rtol=ULPS)


MASKS = {
    "(y > 0) * y": lambda t, y: (y > 0) * y,
    "~mask": lambda t, y: np.where(~(y > 0), y, 0.5) + 1.0 * ~(y < 1),
    "mask & mask": lambda t, y: ((y > -1) & (y < 1)) * y,
    "mask | mask": lambda t, y: np.where((y < -1) | (y > 1), y, 0.0),
    "mask ^ mask": lambda t, y: ((y > -1) ^ (y > 1)) * 2.0,
    "mask + mask": lambda t, y: 1.5 * ((y > -1) + (y > 1)),
    "mask * mask": lambda t, y: 1.5 * ((y > -1) * (y < 1)),
    "sum of a mask": lambda t, y: np.sum(y > 0) * y,
    "method sum of a mask": lambda t, y: (y > 0).sum() * y,
    "cumulated mask": lambda t, y: np.cumsum(y > 0) + y,
    "mean of a mask": lambda t, y: np.mean(y > 0) * y,
    "built-in sum of a mask": lambda t, y: sum(y > 0) * y,
    "mask of numbers": lambda t, y: np.where(np.logical_and(y - y[0], 1.0), y, 2.0),
    "masks in an array": lambda t, y: mask_in_array(y) + mask_in_array(y),
    "masks beside numbers": lambda t, y: np.array([y[0] > 0, y[1], y[2] > 1]) + np.array([y[0] > 0, y[1], 2.0]),
    "joined masks": lambda t, y: np.concatenate((y[:1] > 0, y[1:])) + np.concatenate((y[:1] > 0, y[1:])),
    "number under a mask": lambda t, y: under_mask(t, y),
    "choice of masks": lambda t, y: 1.0 * ~np.where(y > 0, y > 1, y < -1),
    "any and all": lambda t, y: y * np.any(y > 1) + np.all(y > -2),
    "isnan": lambda t, y: np.where(np.isnan(y), 0.0, y) + np.isfinite(y),
    "scalar masks": lambda t, y: [(y[0] > 0) * y[1], y[0] * (y[1] < 0) * (y[2] > 0), (y[2] > 1) - y[0]],
}  # fmt: skip


def under_mask(t, y):
    slopes = -y
    slopes[y > 1] = t
    slopes[(slopes < -1) | (y < -1)] = 0
    return slopes


def mask_in_array(y):
    out = np.zeros(3)
    out[:] = y > 0
    out[0] = y[0] > 1
    return out


@pytest.mark.parametrize("style", MASKS)
def test_masks_mean_what_they_mean_in_numpy(style):
    fun = MASKS[style]
    code = MachineCode(write_assembly(trace_of(fun, np.ones(3)), "f"), "f")
    for y in np.random.default_rng(7).uniform(-3, 3, (50, 3)):
        expected = np.asarray(fun(0.0, y), dtype=float)
        assert largest(machine_slopes(code, 0.0, y) - expected) <= SAME_VALUE * largest(expected, 1.0)


REFUSED = {
    "sum of two truths": lambda t, y: [(t > 1) + (t > 2)],  # 2 for Python's, True for NumPy's
    "function of a truth": lambda t, y: np.exp(y > 0),  # float16
    "bits of numbers": lambda t, y: [y[0] & 1],
    "whole numbers": lambda t, y: np.zeros(1, dtype=int) + np.array(y, dtype=np.int32),
    "short numbers": lambda t, y: y.astype(np.float32),
    "masked ufunc": lambda t, y: np.sin(y, where=np.array([False])),
    "unknown keyword": lambda t, y: np.clip(y, 0.0, 1.0, dtype=np.float32),
    "stored elsewhere": lambda t, y: np.multiply(y, 2.0, out=BUFFER),
    "hypotenuse of three numbers": lambda t, y: [math.hypot(y[0], 1.0, 2.0)],
}  # fmt: skip
BUFFER = np.zeros(1)


@pytest.mark.parametrize("style", REFUSED)
def test_what_would_change_its_meaning_is_refused(style):
    with pytest.raises((CannotTrace, TypeError)):
        trace_of(REFUSED[style], np.ones(1))


# ---- what a trace must not miss --------------------------------------------------------------------------------------

KEYWORDS = {
    "clip(a_min, a_max)": lambda t, y: np.clip(y, a_min=-2.0, a_max=2.0),
    "clip(min, max)": lambda t, y: np.clip(y, min=-2.0, max=2.0),
    ".clip(min, max)": lambda t, y: y.clip(min=-2.0, max=2.0),
    ".clip(-2, 2)": lambda t, y: y.clip(-2.0, 2.0),
    "max(initial)": lambda t, y: y - np.max(y, initial=0.5),
    ".max(initial)": lambda t, y: y - y.max(initial=0.5),
    "min(initial)": lambda t, y: y - np.min(y, initial=0.5),
    "maximum.reduce(initial)": lambda t, y: y - np.maximum.reduce(y, initial=np.float64(0.5)),
    "sum(initial)": lambda t, y: y - np.sum(y, initial=0.5),
    "max(where)": lambda t, y: y - np.max(y, where=np.array([True, False, True]), initial=-9.0),
    "mean(where)": lambda t, y: y - np.mean(y, where=np.array([True, False, True])),
    "maximum(where, out)": lambda t, y: np.maximum(y, 0.5, where=np.array([True, False, True]), out=np.zeros(3)),
    "zeros_like(shape)": lambda t, y: y + np.zeros_like(y, shape=(3, 1)).sum(),
    "full_like": lambda t, y: y * np.full_like(y, 2.0),
    "full": lambda t, y: y * np.full(3, 2.0),
    "linspace": lambda t, y: y * np.linspace(0.0, 1.0, len(y)),
    "array of whole numbers": lambda t, y: np.array(y * 3, dtype=int) * 1.0,
    "filling whole numbers": lambda t, y: fill_whole_numbers(y),
    "diff(prepend)": lambda t, y: np.diff(y, prepend=0.5),
    "norm(1)": lambda t, y: y - np.linalg.norm(y, 1),
    "norm(inf)": lambda t, y: y - np.linalg.norm(y, ord=np.inf),
    "norm(3)": lambda t, y: y - np.linalg.norm(y, 3),
    "cross(axis)": lambda t, y: np.cross(np.stack((y, y * y, y + 1), axis=1), np.eye(3), axis=0)[0],
    "round": lambda t, y: np.round(y) + y,
    "trapezoid": lambda t, y: y * np.trapezoid(y, dx=0.5),
    "dot of a constant": lambda t, y: np.tanh(SQUARE.dot(y)),
    "floor": lambda t, y: y - np.floor(3 * y),
    "divmod": lambda t, y: y - divmod(y[0], 0.4)[1],
}  # fmt: skip
SQUARE = np.arange(9.0).reshape(3, 3) - 4.0


def fill_whole_numbers(y):
    dy = np.zeros(3, dtype=int)
    dy[:] = 4 * y
    return dy * 1.0


@pytest.mark.parametrize("style", KEYWORDS)
def test_keywords_and_kinds_are_honoured_or_refused(style):
    """Far from where the trace was taken, too: a swallowed keyword shows only there."""
    fun, y0 = KEYWORDS[style], np.array([0.9, 0.8, 0.7])
    form, block = find_call_form(fun, (), ((3,),), (3,), np.float64, "fun"), pack(())
    try:
        trial = TrialCall(form, block, reach(fun), None, y0, (0.0, 1.0), y0)
        code = validate_code(traced_rung(trial), form, block, trial.t_span, y0)
    except Exception:  # not on this rung: then the next one has it
        return
    for y in np.random.default_rng(7).uniform(-3, 3, (20, 3)):
        expected = np.asarray(fun(0.0, y))
        assert largest(machine_slopes(code, 0.0, y) - expected) <= SAME_VALUE * largest(expected, 1.0)


def test_a_handler_of_exceptions_is_honoured():
    """math.sqrt of a negative number raises in Python; machine code would go on with a NaN."""
    solution = sn.solve(sn.ODE(square_root_or_nothing, [1.0, 0.0], (0.0, 2.0)), "rk4", steps=200)
    assert abs(solution.y[-1, 1] - 2 / 3) < 1e-3  # the kink at t = 1 costs order


def square_root_or_nothing(t, y):
    try:
        root = math.sqrt(y[0])
    except ValueError:
        root = 0.0
    return [-1.0, root]


NUMBERS = {"k": 1.0}
LISTED = [1.0]
NESTED = {"spring": SimpleNamespace(k=1.0)}


class Constants:
    k = 1.0


def by_dictionary(t, y):
    return [y[1], -NUMBERS["k"] * y[0]]


def by_list(t, y):
    return [y[1], -LISTED[0] * y[0]]


def by_class(t, y):
    return [y[1], -Constants.k * y[0]]


def by_nested(t, y):
    return [y[1], -NESTED["spring"].k * y[0]]


def keyword_only(k):
    def rhs(t, y, *, k=k):
        return [y[1], -k * y[0]]

    return rhs


def _object(k):
    spring = Spring(1.0)
    fun = lambda t, y: [y[1], -spring.stiffness * y[0]]
    return fun, lambda: setattr(spring, "stiffness", k)


def _method(k):
    spring = Spring(1.0)
    return spring.slopes, lambda: setattr(spring, "stiffness", k)


CHANGES = {
    "a dictionary": lambda: (by_dictionary, lambda: NUMBERS.update(k=4.0)),
    "a list": lambda: (by_list, lambda: LISTED.__setitem__(0, 4.0)),
    "a class": lambda: (by_class, lambda: setattr(Constants, "k", 4.0)),
    "an object in a dictionary": lambda: (by_nested, lambda: setattr(NESTED["spring"], "k", 4.0)),
    "an object in a closure": lambda: _object(4.0),
    "the object of a method": lambda: _method(4.0),
}


def motion(fun, args=()) -> sn.Solution:
    """From y = 0 with speed 1: at the beginning all springs have the same slopes, so a look there shows nothing."""
    return sn.solve(sn.ODE(fun, [0.0, 1.0], (0.0, 0.1), args), "rk4", steps=20, save_every=0)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_a_function_refers_to_is_seen(what, monkeypatch):
    fun, change = CHANGES[what]()
    before = motion(fun)
    change()
    after = motion(fun)
    monkeypatch.setenv("STEPNET_RUNG", "python")
    np.testing.assert_allclose(after.y, motion(fun).y, rtol=SAME_VALUE)
    assert largest(after.y - before.y) > 1e-4


@pytest.mark.parametrize("holder", [dict, SimpleNamespace, list], ids=lambda kind: kind.__name__)
def test_a_change_inside_an_argument_is_seen(holder, monkeypatch):
    fun, value, change = {
        dict: (lambda t, y, a: [y[1], -a["k"] * y[0]], {"k": 1.0}, lambda a: a.update(k=4.0)),
        SimpleNamespace: (lambda t, y, a: [y[1], -a.k * y[0]], SimpleNamespace(k=1.0), lambda a: setattr(a, "k", 4.0)),
        list: (lambda t, y, a: [y[1], -a[0] * y[0]], [1.0], lambda a: a.__setitem__(0, 4.0)),
    }[holder]
    before = motion(fun, (value,))
    change(value)
    after = motion(fun, (value,))
    monkeypatch.setenv("STEPNET_RUNG", "python")
    np.testing.assert_allclose(after.y, motion(fun, (value,)).y, rtol=SAME_VALUE)
    assert largest(after.y - before.y) > 1e-4


def test_keyword_only_defaults_tell_functions_apart(monkeypatch):
    soft, hard = motion(keyword_only(1.0)), motion(keyword_only(4.0))
    monkeypatch.setenv("STEPNET_RUNG", "python")
    np.testing.assert_allclose(hard.y, motion(keyword_only(4.0)).y, rtol=SAME_VALUE)
    assert largest(hard.y - soft.y) > 1e-4


# ---- the graph -------------------------------------------------------------------------------------------------------


def operations(fun, n: int = 2) -> Counter:
    """How many operations of each kind the code of a function has."""
    found = trace_of(fun, np.ones(n))
    return counted(found.graph, found.outputs)


def counted(graph: Graph, outputs) -> Counter:
    kinds = (graph.nodes[number][0] for number in graph.live(outputs))
    return Counter(kind for kind in kinds if kind in EVALUATE)


def test_common_subexpressions_are_shared():
    fun = lambda t, y: [np.sin(y[0] * y[1]) + y[0] * y[1], np.sin(y[1] * y[0]) - y[0] * y[1]]
    assert operations(fun) == Counter(mul=1, sin=1, add=1, sub=1)


def test_work_that_no_slope_needs_is_absent():
    def fun(t, y):
        unused = np.exp(y) @ np.sin(y)
        return [y[1], -y[0] + 0.0 * len(str(type(unused)))]

    assert operations(fun)["exp"] == operations(fun)["sin"] == 0


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda t, y: [1.0 * y[0], y[1] / 1.0], {}),
        (lambda t, y: [-np.negative(y[0]), -1.0 * (-1.0 * y[1])], {}),
        (lambda t, y: [y[0] + (-y[1]), y[1] * -1.0], {"sub": 1, "neg": 1}),
        (lambda t, y: [np.where(y[0] > 0, y[1], y[1]), y[0]], {}),
        (lambda t, y: [y[0] * (np.full(2, 2.0) + np.ones(2))[0], y[1] * np.dot(np.ones(2), np.ones(2))], {"mul": 2}),
    ],
    ids=["one", "minus one twice", "minus", "equal choices", "constants"],
)
def test_arithmetic_that_changes_nothing_is_left_out(fun, expected):
    assert operations(fun) == Counter(expected)


def test_operations_on_constants_are_carried_out():
    graph = Graph(100)
    two, three = graph.constant(2.0), graph.constant(3.0)
    assert graph.value(graph.apply("mul", two, graph.apply("add", two, three))) == 10.0
    assert graph.value(graph.apply("div", two, graph.constant(0.0))) == math.inf
    assert graph.value(graph.apply("select", graph.apply("lt", two, three), two, three)) == 2.0


def test_zeros_of_both_signs_are_two_constants():
    graph = Graph(100)
    assert graph.constant(0.0) != graph.constant(-0.0)


POWERS = {
    0: {},
    1: {},
    2: {"mul": 1},
    3: {"mul": 2},
    4: {"mul": 2},
    8: {"mul": 3},
    0.5: {"sqrt": 1},
    1.5: {"sqrt": 1, "mul": 1},
    2.5: {"sqrt": 1, "mul": 2},
    -1: {"div": 1},
    -2: {"mul": 1, "div": 1},
    -0.5: {"sqrt": 1, "div": 1},
    -1.5: {"sqrt": 1, "mul": 1, "div": 1},
    2.3: {"pow": 1},
    40: {"pow": 1},
}


@pytest.mark.parametrize("as_array", [False, True], ids=["number", "array"])
@pytest.mark.parametrize("exponent", POWERS)
def test_whole_and_half_powers_are_products_and_roots(exponent, as_array):
    fun = (lambda t, y: y**exponent) if as_array else (lambda t, y: [y[0] ** exponent])
    assert operations(fun, 1) == Counter(POWERS[exponent])
    code = MachineCode(write_assembly(trace_of(fun, np.ones(1)), "f"), "f")
    for x in (0.3, 1.7, 12.0):
        assert machine_slopes(code, 0.0, [x])[0] == pytest.approx(x**exponent, rel=2 * ULPS)


def test_derivatives_of_a_linear_function_need_nothing_of_the_state():
    found = trace_of(lambda t, y, k: [k * y[1], 3.0 * y[0]], np.ones(2), (2.0,))
    bars = [bar for bar in found.gradient() if bar is not None]
    assert counted(found.graph, bars) == Counter(mul=3)  # k w0, 3 w1 and y1 w0
    assert counted(found.graph, found.tangent()) == Counter(mul=3, add=1)


def test_time_that_does_not_matter_has_no_gradient():
    gradient = trace_of(lambda t, y: [y[1], -y[0]], np.ones(2)).gradient()
    assert gradient[0] is None


def test_tracing_stops_at_the_limit_of_nodes():
    with pytest.raises(TooManyNodes, match="50 operations"):
        trace_of(lambda t, y: np.sin(y) * np.cos(y), np.ones(20), most=50)


def test_a_branch_refuses_to_be_traced():
    with pytest.raises(CannotTrace, match="branches on data"):
        trace_of(lambda t, y: [y[0] if y[0] > 0 else 0.0], np.ones(1))


# ---- long systems ----------------------------------------------------------------------------------------------------


def ring_start(n: int) -> np.ndarray:
    return 8.0 + np.sin(np.arange(n))


def heat_line(t, u, kappa):
    du = np.zeros_like(u)
    du[1:-1] = kappa * (u[2:] - 2 * u[1:-1] + u[:-2])
    return du


def brusselator_line(t, y, dy, p):
    n = y.size // 2
    u, v = y[:n], y[n:]
    w = u * u * v
    dy[:n], dy[n:] = p[0] + w - (p[1] + 1) * u, p[1] * u - w
    dy[1 : n - 1] += p[2] * (u[2:] - 2 * u[1:-1] + u[:-2])
    dy[n + 1 : -1] += p[2] * (v[2:] - 2 * v[1:-1] + v[:-2])


def heated_at_a_third(t, u):
    du = np.roll(u, 1) - 2 * u + np.roll(u, -1)
    du[len(u) // 3] += np.sin(t)
    return np.where(u > 2.0, 0.0, du)


LINES = {
    "heat": (heat_line, (0.3,)),
    "Brusselator": (brusselator_line, (1.0, 3.0, 0.2)),
    "Lorenz 96": (lorenz96, (8.0,)),
    "source": (heated_at_a_third, ()),
}


@pytest.mark.parametrize("n", [4000, 5002, 30_000])
@pytest.mark.parametrize("name", LINES)
def test_long_lines_become_loops(name, n, monkeypatch):
    fun, args = LINES[name]
    start = 1.5 + np.sin(np.arange(n))
    problem = sn.ODE(fun, start, (0.0, 0.01), args)
    found = sn.solve(problem, "rk4", steps=3, save_every=0)
    assert (found.statistics.rung, found.statistics.rung_reason) == ("traced", "")
    monkeypatch.setenv("STEPNET_RUNG", "python")
    plain = sn.solve(problem, "rk4", steps=3, save_every=0)
    assert largest(found.y - plain.y) <= SAME_VALUE * largest(plain.y)


def own_grid(t, u):
    return -u * np.linspace(0.0, 1.0, len(u))


def coupled_to_all(t, u):
    return u.mean() - u


def larger_is_different(t, u):
    return -u if len(u) < 1000 else -2 * u


def step_of_the_grid(t, u):
    dx = 1 / (len(u) - 1)
    du = np.zeros_like(u)
    du[1:] = -1e-3 * (u[1:] - u[:-1]) / dx
    return du


@pytest.mark.parametrize("fun", [own_grid, coupled_to_all, larger_is_different, step_of_the_grid])
def test_what_depends_on_the_number_of_unknowns_becomes_loops(fun, monkeypatch):
    problem = sn.ODE(fun, 1.5 + np.sin(np.arange(3000)), (0.0, 0.01))
    found = sn.solve(problem, "rk4", steps=3, save_every=0)
    assert (found.statistics.rung, found.statistics.rung_reason) == ("traced", "")
    monkeypatch.setenv("STEPNET_RUNG", "python")
    plain = sn.solve(problem, "rk4", steps=3, save_every=0)
    assert largest(found.y - plain.y) <= SAME_VALUE * largest(plain.y)


def test_long_pullback_is_exact_and_read_from_disk_the_second_time(tmp_path, monkeypatch):
    """Lorenz 96 with 1000 unknowns; x_i' = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + F."""
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    n, w = 1000, np.random.default_rng(8).standard_normal(1000)
    x = ring_start(n)
    text = write_assembly(trace_of(lorenz96, x, (8.0,)), "vjp")
    first = machine_vjp(MachineCode(text, "vjp"), (0.0, x, np.array([8.0])), w)
    a, b = np.roll(w, 1) * np.roll(x, 2), np.roll(w, -2) * np.roll(x, -1)
    expected = a - b + np.roll(w * (np.roll(x, -1) - np.roll(x, 2)), -1) - w
    np.testing.assert_allclose(first[1], expected, rtol=0, atol=COMPLEX_STEP * largest(expected))
    assert first[2][0] == pytest.approx(w.sum(), rel=ADJOINT)

    assert len(list(tmp_path.rglob("traced-*.o"))) == 1
    monkeypatch.setattr(machine_code, "_build_object", lambda text: pytest.fail("compiled again"))
    second = machine_vjp(MachineCode(text, "vjp"), (0.0, x, np.array([8.0])), w)
    for before, after in zip(first, second, strict=True):
        np.testing.assert_array_equal(after, before)
