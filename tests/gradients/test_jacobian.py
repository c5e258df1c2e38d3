"""Jacobians against complex steps, f(y + i h e_j) = f(y) + i h (df/dy) e_j + O(h^2), which lose no digits at h = 1e-30.

Every right-hand side of the zoo is differentiated on every rung that takes it, and read back dense, banded and sparse.
"""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import dataclass
from functools import cache

import mpmath
import numpy as np
import pytest
import scipy.sparse
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy.linalg import solve_banded

import stepnet as sn
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode, write_assembly
from stepnet.engines.numba_engine.derivatives import jacobian_products as module
from stepnet.engines.numba_engine.derivatives.jacobian import RHSJacobian, make_jacobian
from stepnet.engines.numba_engine.derivatives.sparsity import colour_columns, find_bandwidth
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.tracing.trace import trace
from stepnet.gradients.derivatives import jacobian

EXACT = 1e-12  # relative to the largest entry: a few roundings, contracted or not
AGREE = 1e-13  # the rungs use the same rules in the same order
T = 0.3
STEP = 1e-30


# ---- the zoo: right-hand sides that NumPy runs on complex states ----------------------------------------------------


def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


def van_der_pol(t, y, mu):
    return y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]


def robertson(t, y):
    fast = 3e7 * y[1] ** 2
    return np.array([-0.04 * y[0] + 1e4 * y[1] * y[2], 0.04 * y[0] - 1e4 * y[1] * y[2] - fast, fast])


def brusselator_loops(t, y, dy, p):
    """u and v interleaved, so that the bandwidth is 2."""
    n = y.size // 2
    for i in range(n):
        u, v = y[2 * i], y[2 * i + 1]
        left_u, left_v = (y[2 * i - 2], y[2 * i - 1]) if i > 0 else (1.0, 3.0)
        right_u, right_v = (y[2 * i + 2], y[2 * i + 3]) if i < n - 1 else (1.0, 3.0)
        dy[2 * i] = p[0] + u * u * v - (p[1] + 1) * u + p[2] * (left_u - 2 * u + right_u)
        dy[2 * i + 1] = p[1] * u - u * u * v + p[2] * (left_v - 2 * v + right_v)


def brusselator_slices(t, y, a, b, alpha):
    n = y.size // 2
    u, v = y[:n], y[n:]
    du, dv = a + u * u * v - (b + 1) * u, b * u - u * u * v
    du[1:-1] += alpha * (u[2:] - 2 * u[1:-1] + u[:-2])
    dv[1:-1] += alpha * (v[2:] - 2 * v[1:-1] + v[:-2])
    return np.concatenate((du, dv))


def fisher_slices(t, y):
    dy = np.zeros_like(y)
    dy[1:-1] = y[2:] - 2 * y[1:-1] + y[:-2] + y[1:-1] * (1 - y[1:-1])
    return dy


def lorenz_96(t, y, dy, p):
    n = len(y)
    for i in range(n):
        dy[i] = (y[(i + 1) % n] - y[i - 2]) * y[i - 1] - y[i] + p[0]


def pleiades(t, y):
    x, z = y[:7], y[7:14]
    dy = np.empty_like(y)
    for i in range(7):
        dy[i], dy[7 + i] = y[14 + i], y[21 + i]
        a = b = 0.0
        for j in range(7):
            if i != j:
                r3 = ((x[i] - x[j]) ** 2 + (z[i] - z[j]) ** 2) ** 1.5
                a += (j + 1) * (x[j] - x[i]) / r3
                b += (j + 1) * (z[j] - z[i]) / r3
        dy[14 + i], dy[21 + i] = a, b
    return dy


def stick_slip(t, y, mu):
    friction = mu * y[1] if y[1] > 0.5 else mu * y[1] ** 3
    if y[0] > 0:
        return [y[1], -np.sin(y[0]) - friction]
    return [y[1] * y[0], y[0] - friction]


def halved(t, y):
    """A while loop on data: the number of rounds depends on the state."""
    x, rounds = y[0], 0
    while x > 0.1:
        x = 0.5 * x * np.cos(0.1 * y[1])
        rounds += 1
    return [x * rounds, y[1] * x]


def inner_newton(t, y, c):
    """An iteration inside, until z^3 + z = y_0 + c y_1."""
    z = 0.5 * y[0]
    for _ in range(30):
        step = (z**3 + z - y[0] - c * y[1]) / (3 * z**2 + 1)
        z -= step
        if step * step < 1e-30:
            break
    return [z, -z * y[1]]


def linear(t, y, A, b):
    return A @ y + b * np.cos(t)


def planets(t, y):
    """Positions and velocities as rows of a matrix."""
    dy = np.empty_like(y)
    r = np.sqrt(y[0, 0] ** 2 + y[0, 1] ** 2)
    dy[0] = y[1]
    dy[1] = -y[0] / r**3
    return dy


def logistic(t, y, rate):
    return rate * y * (1 - y) + np.sin(t * y)


def double_pendulum(t, y):
    a, b, p, q = y[0], y[1], y[2], y[3]
    d = 16 - 9 * np.cos(a - b) ** 2
    da = 6 * (2 * p - 3 * np.cos(a - b) * q) / d
    db = 6 * (8 * q - 3 * np.cos(a - b) * p) / d
    return da, db, -0.5 * (da * db * np.sin(a - b) + 3 * np.sin(a)), -0.5 * (-da * db * np.sin(a - b) + np.sin(b))


def fourier(t, y, weights, n_terms):
    """Loops over whole arguments and arrays."""
    dy = np.zeros_like(y)
    for i in range(len(y)):
        for k in range(n_terms):
            dy[i] += weights[k] * np.sin((k + 1) * y[i - 1]) / (1 + np.exp(y[i]))
    return dy


def square(x):
    return x * x


@njit
def saturated(x, limit):
    return limit * np.tanh(x / limit)


def with_helpers(t, y):
    return [square(y[0]) - saturated(y[1], 2.0), saturated(y[0] * y[1], 0.7)]


def burgers(t, y):
    """Upwind differences by np.maximum and np.minimum."""
    left, right = np.roll(y, 1), np.roll(y, -1)
    return -np.maximum(y, 0.0) * (y - left) - np.minimum(y, 0.0) * (right - y)


def enclosed(rate):
    weights = np.array([1.0, 2.0, 3.0])

    def field(t, y):
        return -rate * weights * y**3 + np.sum(y)

    return field


def hires(t, y, dy):
    dy[0] = -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007
    dy[1] = 1.71 * y[0] - 8.75 * y[1]
    dy[2] = -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4]
    dy[3] = 8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3]
    dy[4] = -1.745 * y[4] + 0.43 * y[5] + 0.43 * y[6]
    dy[5] = -280.0 * y[5] * y[7] + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6]
    dy[6] = 280.0 * y[5] * y[7] - 1.81 * y[6]
    dy[7] = -dy[6]


@dataclass(frozen=True)
class Case:
    function: object
    y: np.ndarray
    args: tuple = ()
    rungs: tuple[str, ...] = ("traced", "dual")

    @property
    def form(self):
        shape = np.shape(self.y)
        return find_call_form(self.function, self.args, (shape,), shape, np.float64, "fun")


def random_state(*shape):
    return np.random.default_rng(7).uniform(0.3, 1.2, shape)


ZOO = {
    "lorenz": Case(lorenz, np.array([1.0, 2.0, 20.0]), (10.0, 28.0, 8 / 3)),
    "van der Pol": Case(van_der_pol, np.array([2.0, -0.6]), (5,)),
    "Robertson": Case(robertson, np.array([0.8, 2e-5, 0.2])),
    "Brusselator, loops": Case(brusselator_loops, random_state(20), (1.0, 3.0, 0.4)),
    "Brusselator, slices": Case(brusselator_slices, random_state(20), (1.0, 3.0, 0.4), ("traced",)),
    "Fisher, slices": Case(fisher_slices, random_state(12)),
    "Lorenz-96": Case(lorenz_96, random_state(20), (8.0,)),
    "Pleiades": Case(pleiades, 3 * np.random.default_rng(3).standard_normal(28)),
    "branches, one way": Case(stick_slip, np.array([0.4, 0.8]), (0.3,), ("dual",)),
    "branches, other way": Case(stick_slip, np.array([-0.4, 0.2]), (0.3,), ("dual",)),
    "while loop": Case(halved, np.array([0.9, 0.7]), (), ("dual",)),
    "inner iteration": Case(inner_newton, np.array([0.9, 0.7]), (1.3,), ("dual",)),
    "matrix and vector as arguments": Case(linear, random_state(3), (np.arange(1.0, 10.0).reshape(3, 3), np.ones(3))),
    "state of rows": Case(planets, np.array([[1.0, 0.2], [-0.1, 0.9]])),
    "state of no dimension": Case(logistic, np.array(0.4), (2.0,)),
    "double pendulum": Case(double_pendulum, np.array([0.5, -0.8, 0.3, 0.1])),
    "loops over arguments": Case(fourier, random_state(5), (np.array([0.5, 0.2, 0.1]), 3)),
    "helpers": Case(with_helpers, np.array([0.6, 0.9])),
    "upwind": Case(burgers, np.linspace(-1, 1.1, 12)),
    "closure": Case(enclosed(0.7), random_state(3)),
    "HIRES": Case(hires, random_state(8)),
}
EVERY_RUNG = [(name, rung) for name, case in ZOO.items() for rung in case.rungs]


def complex_step(case: Case, y=None, t: float = T) -> np.ndarray:
    """df/dy of the Python function, entry by entry."""
    y = np.asarray(case.y if y is None else y)
    J = np.empty((y.size, y.size))
    function = getattr(case.function, "py_func", case.function)
    for j in range(y.size):
        z = y.astype(complex)
        z.reshape(-1)[j] += 1j * STEP
        if case.form.is_in_place:
            dz = np.empty_like(z)
            function(t, z, dz, *((pack(case.args).values,) if case.form.takes_parameters else ()))
        else:
            dz = function(t, z if z.ndim else z[()], *case.args)
        J[:, j] = np.ravel(dz).imag / STEP
    return J


def make(case: Case, **how) -> RHSJacobian:
    return make_jacobian(case.form, pack(case.args), T, np.ravel(case.y), **how)


@cache
def made(name: str, rung: str) -> RHSJacobian:
    return make(ZOO[name], rungs=(rung,))


def assert_close(found, expected, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rung"), EVERY_RUNG)
def test_jacobians_equal_complex_steps(name, rung):
    """Dense, sparse, banded and as products, at the point of making and elsewhere."""
    case, J = ZOO[name], made(name, rung)
    assert J.rung == rung
    for y in (case.y, 1.1 * case.y):
        expected = complex_step(case, y)
        assert_close(J.dense(T, y), expected)
        assert_close(J.sparse(T, y).toarray(), expected)
        assert_close(from_diagonals(J.banded(T, y), *J.bandwidth), expected)
        v = np.cos(np.arange(case.y.size))
        assert_close(J.jvp(T, y, v), expected @ v)
        assert_close(J.vjp(T, y, v), v @ expected)


def from_diagonals(diagonals, lower: int, upper: int) -> np.ndarray:
    n = diagonals.shape[1]
    J = np.zeros((n, n))
    for i in range(n):
        for j in range(max(0, i - lower), min(n, i + upper + 1)):
            J[i, j] = diagonals[upper + i - j, j]
    return J


@pytest.mark.slow
def test_updates_of_slices_on_duals():
    """Numba takes seconds to compile them, with duals or without."""
    case = ZOO["Brusselator, slices"]
    assert_close(make(case, rungs=("dual",)).dense(T, case.y), complex_step(case))


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if len(case.rungs) == 2])
def test_duals_and_traces_agree(name):
    y = ZOO[name].y
    assert_close(made(name, "dual").dense(T, y), made(name, "traced").dense(T, y), AGREE)


def test_banded_matrices_are_laid_out_for_scipy():
    J, case = made("Brusselator, loops", "traced"), ZOO["Brusselator, loops"]
    matrix, right = complex_step(case), np.ones(20)
    assert J.bandwidth == (2, 2)
    assert_close(solve_banded((2, 2), J.banded(T, case.y), right), np.linalg.solve(matrix, right), 1e-10)
    assert J.banded(T, case.y, 3, 4).shape == (8, 20)
    with pytest.raises(ValueError, match=r"`lower` = 1 and `upper` = 2 leave out the entry \(2, 0\)"):
        J.banded(T, case.y, 1, 2)


ELEMENTARY = ["sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arctanh", "exp",
              "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt"]  # fmt: skip
IN_MPMATH = {
    **{name: getattr(mpmath, name.replace("arc", "a"), None) for name in ELEMENTARY},
    "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2), "erf": mpmath.erf, "erfc": mpmath.erfc,
}  # fmt: skip


def test_elementary_functions_have_their_derivatives():
    """All functions of one variable, from NumPy and from math, in one right-hand side."""
    numpy_calls = [f"np.{name}(y[0])" for name in ELEMENTARY]
    math_calls = [f"math.{name.replace('arc', 'a')}(y[0])" for name in (*ELEMENTARY, "erf", "erfc")]
    calls = [*numpy_calls, *math_calls]
    namespace = {"np": np, "math": math}
    exec(f"def field(t, y): return ({', '.join(calls)})", namespace)
    x = np.full(len(calls), 0.37)
    for rung in ("traced", "dual"):
        found = make(Case(namespace["field"], x), rungs=(rung,)).dense(T, x)[:, 0]
        names = [*ELEMENTARY, *ELEMENTARY, "erf", "erfc"]
        expected = [float(mpmath.diff(IN_MPMATH[name], 0.37)) for name in names]
        np.testing.assert_allclose(found, expected, rtol=EXACT)


def mixed(t, y):
    """Operators between duals, floats and whole numbers, functions of two variables, and what is locally constant."""
    x, z = y[0], y[1]
    a = 2 / x + 2**z - (3 - x) * -z + x % 0.3 + x // 0.1 + z**x + z**2.5 + z**-3 + (+x)
    b = math.atan2(x, z) + np.arctan2(2, z) + np.hypot(x, 3.0) + math.hypot(x, z) + math.pow(x, z) + np.power(z, 2)
    c = abs(-x) + np.abs(z) + math.fabs(x) + np.maximum(x, 0.2) * np.minimum(z, x) + np.square(z)
    d = np.floor(10 * x) * z + np.sign(x) * x + np.ceil(z) + math.fmod(z, x) + np.fmod(x, 0.1) + np.copysign(x, -z)
    e = np.logaddexp(x, z) * np.fmax(x, z) + np.fmin(x, 3.0) * np.heaviside(x, 0.5) + np.reciprocal(z) + np.deg2rad(x)
    return a, b, c, d + e


def untraceable(t, y):
    """What needs values: the largest, a comparison, an index."""
    x, z = y[0], y[1]
    a = max(x, z) * min(x, 1.0) + float(x)
    b = z if x <= 1 and z >= 0 and x != z and x != 0 else x
    total = 0
    for value in y:
        total += value * y[int(3 * x)]
    return a, b**2, total, sum(y)


@pytest.mark.parametrize("function", [mixed, untraceable])
def test_operators_and_functions_of_two_variables(function):
    """Against central differences, good to ten digits."""
    case = Case(function, np.array([0.37, 0.81, 0.2, 0.1]))
    differences = make(case, rungs=("differences",))
    assert_close(make(case, rungs=("dual",)).dense(T, case.y), differences.dense(T, case.y), 1e-9)


def test_operators_agree_on_both_rungs():
    case = Case(mixed, np.array([0.37, 0.81, 0.2, 0.1]))
    dual, traced = (make(case, rungs=(rung,)).dense(T, case.y) for rung in ("dual", "traced"))
    assert_close(dual, traced, AGREE)


def polynomial(t, y):
    total = 0.0
    for k in range(4):
        total += y[0] ** k
    return [total]


def test_powers_are_differentiable_at_zero():
    """x^0 has the derivative 0 at x = 0, and not 0 times infinity."""
    case = Case(polynomial, np.zeros(1))
    for rung in case.rungs:
        assert make(case, rungs=(rung,)).dense(T, case.y) == 1.0


def filled(t, y):
    """Arrays made by NumPy inside: of floats in Python, of duals in compiled code."""
    a, b, c = np.zeros(len(y)), np.empty(3, dtype=np.float64), np.full(3, 2.0)
    counts = np.zeros(3, dtype=np.int64)
    for i in range(3):
        if y[i] > 0:
            counts[i] += 1
        a[i] = y[i] ** 2
        b[i] = np.sum(y) * counts[i]
    c *= a
    d = np.array([y[0], 1.0, y[2]])
    d -= np.where(y > 0.5, y, 0.0)
    return b + c * d + np.dot(y, y) + np.ones(3)


def test_arrays_made_inside_hold_derivatives():
    case = Case(filled, np.array([0.4, 0.7, 0.9]), (), ("dual",))
    assert_close(make(case).dense(T, case.y), make(case, rungs=("differences",)).dense(T, case.y), 1e-9)


# ---- sparsity and colours -------------------------------------------------------------------------------------------

ALL_ENTRIES_DIFFER = [name for name in ZOO if name not in ("upwind", "branches, one way", "branches, other way")]


@pytest.mark.parametrize(("name", "rung"), [(name, rung) for name, rung in EVERY_RUNG if name in ALL_ENTRIES_DIFFER])
def test_sparsity_is_exact(name, rung):
    """What the trace says, or what duals detect, is where complex steps at a random point are not zero."""
    case, J = ZOO[name], made(name, rung)
    y = case.y * (1 + 0.01 * random_state(*np.shape(case.y)))
    assert np.array_equal(J.sparsity.toarray(), complex_step(case, y) != 0)


def tridiagonal(n: int):
    return scipy.sparse.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1], format="csr")


def circulant(n: int, offsets):
    return sum(np.roll(np.eye(n), offset, axis=1) for offset in offsets)


def arrow(n: int):
    pattern = np.eye(n)
    pattern[0] = 1
    return pattern


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (np.eye(9), 1),
        (tridiagonal(30), 3),
        (circulant(20, (-2, -1, 0, 1)), 4),
        (circulant(30, (-2, -1, 0, 1, 2)), 5),
        (np.ones((6, 6)), 6),
        (arrow(8), 8),
        (arrow(8).T, 2),
        (np.zeros((4, 4)), 1),
    ],
    ids=["diagonal", "tridiagonal", "Lorenz-96", "circulant", "full", "arrow up", "arrow left", "zero"],
)
def test_known_patterns_need_the_fewest_colours(pattern, count):
    assert colour_columns(scipy.sparse.csr_array(pattern))[1] == count


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**30))
@settings(max_examples=60, deadline=None)
def test_columns_of_a_colour_share_no_row(n_rows, n_columns, seed):
    pattern = np.random.default_rng(seed).random((n_rows, n_columns)) < 0.3
    colours, count = colour_columns(scipy.sparse.csr_array(pattern))
    assert set(colours) == set(range(count))
    for colour in range(count):
        assert pattern[:, colours == colour].sum(axis=1).max() <= 1


def test_bandwidth_is_read_off_the_pattern():
    assert find_bandwidth(tridiagonal(5)) == (1, 1)
    assert find_bandwidth(scipy.sparse.csr_array(np.eye(5, k=3))) == (0, 3)
    assert find_bandwidth(scipy.sparse.csr_array((4, 4))) == (0, 0)


def counting(calls: list, kind):
    """A ctypes prototype whose functions write down that they were called."""

    def prototype(address):
        function = kind(address)
        return lambda *arguments: (calls.append(address), function(*arguments))[1]

    return prototype


def diffusion(t, y, dy):
    n = y.size
    for i in range(n):
        left = y[i - 1] if i > 0 else 0.0
        right = y[i + 1] if i < n - 1 else 0.0
        dy[i] = left - 2 * y[i] + right + (0.1 * y[i] if i % 2 == 0 else y[i] ** 2)


def test_a_jacobian_costs_as_many_products_as_colours(monkeypatch):
    calls: list = []
    monkeypatch.setattr(module, "JVP", counting(calls, module.JVP))
    J = make(Case(diffusion, random_state(60)))
    assert (J.rung, J.n_colours) == ("traced", 3)
    calls.clear()
    J.sparse(T, random_state(60))
    assert len(calls) == 3


def test_duals_take_eight_colours_at_once(monkeypatch):
    """Three colours, and the product that checks a detected pattern, in one evaluation."""
    calls: list = []
    monkeypatch.setattr(module, "JVP8", counting(calls, module.JVP8))
    J = make(Case(diffusion, random_state(60)), rungs=("dual",))
    assert (J.pattern.source, J.n_colours, J.bandwidth) == ("detected", 3, (1, 1))
    calls.clear()
    J.sparse(T, random_state(60))
    assert len(calls) == 1


def test_detection_takes_few_products(monkeypatch):
    """Eighths of groups: at most three colours on each of four levels, at four points."""
    calls: list = []
    monkeypatch.setattr(module, "JVP8", counting(calls, module.JVP8))
    J = make(Case(diffusion, random_state(3000)), rungs=("dual",))
    assert (J.n_colours, J.bandwidth) == (3, (1, 1))
    assert len(calls) <= 4 * (3 * 4 + 1)


def test_long_traces_lend_their_sparsity_to_duals():
    """Beyond 2500 operations duals are faster than straight-line code; a shuffled ring is no loop."""
    order = np.random.default_rng(5).permutation(600)

    def shuffled(t, y, forcing):
        z = y[order]
        return (np.roll(z, -1) - np.roll(z, 2)) * np.roll(z, 1) - z + forcing

    case = Case(shuffled, random_state(600), (8.0,))
    J = make(case)
    assert (J.rung, J.pattern.source) == ("dual", "exact")
    assert_close(J.dense(T, case.y), complex_step(case))


def test_long_rings_are_traced_as_loops():
    case = Case(lorenz_96, random_state(600), (8.0,))
    J = make(case)
    assert (J.rung, J.pattern.source, J.n_colours) == ("traced", "exact", 4)
    assert_close(J.dense(T, case.y), complex_step(case))


def mean_field(t, y):
    return np.sin(y).mean() - y


def test_averages_fill_the_jacobian_of_a_long_system():
    case = Case(mean_field, random_state(1300))
    J = make(case)
    assert (J.rung, J.pattern.source, J.sparsity.nnz) == ("traced", "exact", 1300**2)
    expected = np.cos(case.y) / 1300 - np.eye(1300)
    assert_close(J.dense(T, case.y), expected, CLOSED_FORM)


def test_a_jacobian_too_large_to_write_down_is_refused():
    with pytest.raises(ValueError, match="more than 1e\\+07 entries"):
        make(Case(mean_field, random_state(4000)))


def switched(t, y):
    if t > 5:
        return [y[1] * y[2], y[2], y[0]]
    return [y[0], y[1], y[2] ** 2]


def test_entries_that_detection_missed_are_noticed():
    """At t = T the pattern is diagonal; beyond t = 5 it is another one, and the Jacobian is right all the same."""
    case = Case(switched, np.array([1.0, 2.0, 3.0]))
    J = make(case)
    assert J.n_colours == 1
    assert_close(J.dense(9.0, case.y), complex_step(case, t=9.0))


def test_functions_of_positions_and_momenta():
    """Two arrays in, one out: the Jacobian has twice as many columns as rows."""

    def slope(t, q, p):
        return [p[0] * q[1], q[0] if q[0] > 0 else p[1]]

    form = find_call_form(slope, (), ((2,), (2,)), (2,), np.float64, "dq")
    J = make_jacobian(form, pack(()), T, np.array([1.0, 2.0, 3.0, 4.0]))
    assert J.dense(T, [1.0, 2.0, 3.0, 4.0]).tolist() == [[0, 3, 2, 0], [1, 0, 0, 0]]
    assert J.dense(T, [-1.0, 2.0, 3.0, 4.0]).tolist() == [[0, 3, 2, 0], [0, 0, 0, 1]]


def test_a_zero_partial_derivative_is_detected_as_a_dependence():
    """d(y0^2)/dy0 = 0 at 0, also nearby points are not needed: NaN times zero is NaN."""

    def field(t, y):
        return [y[1] ** 2 if y[0] < 1 else 0.0, y[0] * 0.0]

    assert make(Case(field, np.zeros(2))).sparsity.toarray().tolist() == [[False, True], [True, False]]


# ---- what the user supplies -----------------------------------------------------------------------------------------


def lorenz_jac(t, y, sigma, rho, beta):
    return [[-sigma, sigma, 0], [rho - y[2], -1, -y[0]], [y[1], y[0], -beta]]


def test_the_users_jac_wins():
    case, calls = ZOO["lorenz"], []

    def jac(t, y, *args):
        calls.append(y.copy())
        return lorenz_jac(t, y, *args)

    J = make(case, jac=jac)
    assert J.rung == "user"
    assert len(calls) == 1
    assert_close(J.dense(T, case.y), complex_step(case))
    assert_close(J.jvp(T, case.y, np.ones(3)), complex_step(case).sum(axis=1))
    assert len(calls) == 3


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_jac_may_be_a_constant_matrix_of_any_kind(kind):
    matrix = tridiagonal(5).toarray()
    J = make(Case(lambda t, y: matrix @ y, np.ones(5)), jac=kind(matrix))
    assert (J.rung, J.bandwidth, J.n_colours) == ("user", (1, 1), 3)
    assert np.array_equal(J.dense(T, np.ones(5)), matrix)
    assert np.array_equal(J.sparse(T, np.ones(5)).toarray(), matrix)
    assert np.array_equal(from_diagonals(J.banded(T, np.ones(5)), 1, 1), matrix)


def test_jac_of_a_complex_state():
    form = find_call_form(lambda t, y: 1j * y, (), ((2,),), (2,), np.complex128, "fun")
    y = np.array([1.0 + 2.0j, 0.0])
    J = make_jacobian(form, pack(()), T, y, jac=1j * np.eye(2))
    assert np.array_equal(J.dense(T, y), 1j * np.eye(2))
    with pytest.raises(TypeError, match="a complex state needs `jac`"):
        make_jacobian(form, pack(()), T, y)


@pytest.mark.parametrize(
    ("supplied", "error", "message"),
    [
        ({"jac": np.ones((2, 3))}, ValueError, r"`jac` must have shape \(3, 3\), found \(2, 3\)"),
        ({"jac": lambda t, y, *_: y}, ValueError, r"`jac` must have shape \(3, 3\), found \(3,\)"),
        ({"jac": lambda t, y, *_: None}, TypeError, "`jac` must be a matrix of numbers or return one, found"),
        ({"jac": "exact"}, TypeError, "`jac` must be a matrix of numbers or return one, found"),
        ({"jac_sparsity": np.ones((3, 2))}, ValueError, r"`jac_sparsity` must have shape \(3, 3\), found \(3, 2\)"),
        ({"jac_sparsity": np.eye(3)}, ValueError, "`jac_sparsity` leaves out entries of the Jacobian in row 0"),
        ({"jvp": 3.0}, TypeError, "`jvp` must be a function or a C function, found float"),
        (
            {"jvp": lambda t, y, v, *_: v[:2]},
            ValueError,
            r"`jvp` must return 3 numbers, found an array of shape \(2,\)",
        ),
    ],
)
def test_wrong_supplies_are_refused(supplied, error, message):
    case = ZOO["lorenz"]
    with pytest.raises(error, match=message):
        make(case, **supplied).dense(T, case.y)


def test_a_given_pattern_with_holes_is_refused_at_the_first_jacobian():
    case = ZOO["branches, one way"]
    J = make(case, jac_sparsity=np.eye(2))
    with pytest.raises(ValueError, match="`jac_sparsity` leaves out entries of the Jacobian in row 0"):
        J.dense(T, case.y)


def test_the_users_jvp_wins_and_is_called_once_for_every_colour():
    calls = []

    def jvp(t, y, v):
        calls.append(v)
        return tridiagonal(30) @ v

    J = make(Case(lambda t, y: y[[0, *range(29)]] + y + y[[*range(1, 30), 29]], np.ones(30)), jvp=jvp)
    assert (J.rung, J.n_colours) == ("user", 3)
    calls.clear()
    J.sparse(T, np.ones(30))
    assert len(calls) == 3


def test_a_c_function_may_be_the_jvp():
    case, traced = ZOO["lorenz"], made("lorenz", "traced")
    J = make(case, jvp=sn.address(traced.pushforward.address))
    assert J.rung == "user"
    assert_close(J.dense(T, case.y), complex_step(case))


# ---- the same of problems -------------------------------------------------------------------------------------------

CLOSED_FORM = 1e-13  # relative to the largest entry


def lorenz_problem(**supplied) -> sn.ODE:
    case = ZOO["lorenz"]
    return sn.ODE(lorenz, case.y, (0.0, 1.0), case.args, **supplied)


def lorenz_matrix(y) -> np.ndarray:
    return np.array(lorenz_jac(T, y, *ZOO["lorenz"].args), dtype=float)


def test_problems_have_jacobians_without_asking():
    J, y, v = jacobian(lorenz_problem()), ZOO["lorenz"].y, np.array([1.0, -2.0, 0.5])
    assert (J.rung, J.pullback.rung, J.pattern.source, J.reason) == ("traced", "traced", "exact", "")
    assert_close(J.dense(T, y), lorenz_matrix(y), CLOSED_FORM)
    assert_close(J.jvp(T, y, v), lorenz_matrix(y) @ v, CLOSED_FORM)
    assert_close(J.vjp(T, y, v), v @ lorenz_matrix(y), CLOSED_FORM)


def test_problems_that_branch_go_to_duals_and_say_why():
    case = ZOO["branches, one way"]
    J = jacobian(sn.ODE(case.function, case.y, (0.0, 1.0), case.args))
    assert (J.rung, J.pullback.rung) == ("dual", "dual")
    assert "not traced: it branches on data" in J.reason
    v, expected = np.array([0.3, -0.7]), complex_step(case)
    assert_close(J.dense(T, case.y), expected, CLOSED_FORM)
    assert_close(J.vjp(T, case.y, v), v @ expected, CLOSED_FORM)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csc_array])
def test_a_jac_of_the_problem_wins_in_every_product(kind):
    calls = []

    def jac(t, y, *args):
        calls.append(t)
        return kind(2 * lorenz_matrix(y))

    J, y, v = jacobian(lorenz_problem(jac=jac)), ZOO["lorenz"].y, np.array([1.0, -2.0, 0.5])
    assert (J.rung, J.pushforward.rung, J.pullback.rung) == ("user", "user", "user")
    calls.clear()
    assert_close(J.dense(T, y), 2 * lorenz_matrix(y), CLOSED_FORM)
    assert_close(J.sparse(T, y).toarray(), 2 * lorenz_matrix(y), CLOSED_FORM)
    assert_close(J.jvp(T, y, v), 2 * lorenz_matrix(y) @ v, CLOSED_FORM)
    assert_close(J.vjp(T, y, v), 2 * v @ lorenz_matrix(y), CLOSED_FORM)
    assert calls == [T] * 4


def test_a_jvp_of_the_problem_wins_also_in_pullbacks():
    calls = []

    def jvp(t, y, v, *args):
        calls.append("jvp")
        return 2 * lorenz_matrix(y) @ v

    J, y, w = jacobian(lorenz_problem(jvp=jvp)), ZOO["lorenz"].y, np.array([1.0, -2.0, 0.5])
    assert (J.rung, J.pullback.rung) == ("user", "user")
    assert_close(J.dense(T, y), 2 * lorenz_matrix(y), CLOSED_FORM)
    assert_close(J.vjp(T, y, w), 2 * w @ lorenz_matrix(y), CLOSED_FORM)
    assert calls


def test_a_vjp_of_the_problem_wins_in_pullbacks():
    J, y = jacobian(lorenz_problem(vjp=lambda t, y, w, *args: 2 * w @ lorenz_matrix(y))), ZOO["lorenz"].y
    w = np.array([1.0, -2.0, 0.5])
    assert (J.rung, J.pullback.rung) == ("traced", "user")
    assert_close(J.vjp(T, y, w), 2 * w @ lorenz_matrix(y), CLOSED_FORM)
    assert_close(J.dense(T, y), lorenz_matrix(y), CLOSED_FORM)


def test_a_c_function_may_be_the_vjp():
    case, w = ZOO["lorenz"], np.array([1.0, -2.0, 0.5])
    y, code = case.y, MachineCode(write_assembly(trace(case.form, pack(case.args), 1000), "vjp"), "vjp")
    J = jacobian(lorenz_problem(vjp=sn.address(code.address)))
    assert J.pullback.rung == "user"
    assert_close(J.vjp(T, y, w), w @ lorenz_matrix(y), CLOSED_FORM)


def test_a_given_sparsity_is_used_where_nothing_is_known():
    def coupled(t, y):
        return [y[1] if y[0] > 0 else y[0], y[0] * y[1], y[2] ** 2]

    pattern = scipy.sparse.csr_matrix([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    J = jacobian(sn.ODE(coupled, [1.0, 2.0, 3.0], (0.0, 1.0), jac_sparsity=pattern))
    assert (J.rung, J.pattern.source, J.n_colours) == ("dual", "given", 2)
    assert J.dense(T, [1.0, 2.0, 3.0]).tolist() == [[0, 1, 0], [2, 1, 0], [0, 0, 6]]


def test_a_c_right_hand_side_needs_a_supplied_derivative():
    field = sn.address(jacobian(lorenz_problem()).pushforward.address)
    assert jacobian(sn.ODE(field, np.ones(3), (0.0, 1.0), jac=np.eye(3))).rung == "user"
    with pytest.raises(ValueError, match="`fun` cannot be differentiated; supply `jac` or `jvp`"):
        jacobian(sn.ODE(field, np.ones(3), (0.0, 1.0)))


@pytest.mark.parametrize(
    ("supplied", "error", "message"),
    [
        ({"jac": np.ones((2, 3))}, ValueError, r"`jac` must have shape \(3, 3\), found \(2, 3\)"),
        ({"jac": scipy.sparse.eye_array(4)}, ValueError, r"`jac` must have shape \(3, 3\), found \(4, 4\)"),
        ({"jac": "exact"}, TypeError, "`jac` must be a matrix or a function returning one, found str"),
        ({"jac": [[1.0], [2.0, 3.0]]}, ValueError, "`jac` must be a matrix .* found a ragged sequence"),
        ({"jac_sparsity": np.ones(3)}, ValueError, r"`jac_sparsity` must have shape \(3, 3\), found \(3,\)"),
        ({"jvp": 3.0}, TypeError, "`jvp` must be a function or a C function, found float"),
        ({"vjp": np.eye(3)}, TypeError, "`vjp` must be a function or a C function, found ndarray"),
    ],
)
def test_wrong_supplies_are_refused_when_the_problem_is_made(supplied, error, message):
    with pytest.raises(error, match=message):
        lorenz_problem(**supplied)


def test_a_vjp_of_the_wrong_length_is_refused():
    J = jacobian(lorenz_problem(vjp=lambda t, y, w, *args: w[:2]))
    with pytest.raises(ValueError, match=r"`vjp` must return 3 numbers, found an array of shape \(2,\)"):
        J.vjp(T, np.ones(3), np.ones(3))


def test_only_odes_have_jacobians_so_far():
    with pytest.raises(TypeError, match="`problem` must be an ODE, found SecondOrder"):
        jacobian(sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 1.0)))


def test_pullback_of_a_long_system_is_traced():
    """Lorenz-96 with 1000 unknowns: dy_i = (y_{i+1} - y_{i-2}) y_{i-1} - y_i + F."""
    n, rng = 1000, np.random.default_rng(8)
    y, w = 8 + rng.standard_normal(n), rng.standard_normal(n)
    J = jacobian(sn.ODE(lorenz_96, y, (0.0, 1.0), (8.0,)))
    assert (J.pullback.rung, J.pattern.source, J.n_colours) == ("traced", "exact", 4)
    slopes = w * (np.roll(y, -1) - np.roll(y, 2))
    expected = np.roll(w * np.roll(y, 1), 1) - np.roll(w * np.roll(y, 1), -2) + np.roll(slopes, -1) - w
    assert_close(J.vjp(T, y, w), expected, CLOSED_FORM)


def test_lines_of_a_long_rod_are_loops(capsys):
    """Ten thousand unknowns: the pattern is read off the loops, and three colours do."""
    y = random_state(10_000)
    began = time.perf_counter()
    J = jacobian(sn.ODE(fisher_slices, y, (0.0, 1.0)))
    made_in = time.perf_counter() - began
    assert (J.rung, J.pattern.source, J.n_colours, J.bandwidth) == ("traced", "exact", 3, (1, 1))
    assert J.reason == ""
    began = time.perf_counter()
    matrix = J.sparse(T, y)
    with capsys.disabled():
        print(f"\nJacobian of 10^4 lines: made in {made_in:.2f} s, {time.perf_counter() - began:.4f} s each")
    inside = np.r_[0.0, np.ones(9998), 0.0]
    diagonals = (np.ones(9999) * inside[1:], (-2 + 1 - 2 * y) * inside, np.ones(9999) * inside[:-1])
    expected = scipy.sparse.diags_array(diagonals, offsets=(-1, 0, 1)).tocsc()
    assert abs(matrix - expected).max() <= CLOSED_FORM * abs(expected).max()


# ---- failures -------------------------------------------------------------------------------------------------------


def limited(t, y):
    if y[0] > 2:
        raise ValueError("out of the table")
    return [y[0] * y[1], y[1]]


def test_an_exception_inside_is_the_users_own():
    J = make(Case(limited, np.array([1.0, 1.0])))
    with pytest.raises(ValueError, match="out of the table"):
        J.dense(T, np.array([3.0, 1.0]))


def test_states_of_another_size_are_refused():
    """C code would read beyond the end."""
    with pytest.raises(ValueError, match="`y` must have 3 entries, found 2"):
        made("lorenz", "dual").dense(T, np.ones(2))
    with pytest.raises(ValueError, match="`v` must have 3 entries, found 4"):
        made("lorenz", "dual").jvp(T, np.ones(3), np.ones(4))


def bessel(t, y):
    return [float(scipy.special.jv(0, y[0])), y[0] * y[1]]


def test_what_cannot_be_differentiated_says_what_to_supply():
    with pytest.raises(
        ValueError, match=r"(?s)`fun` cannot be differentiated \(not traced: .*; not dual: .*\); supply `jac`"
    ):
        make(Case(bessel, np.ones(2)))


def test_differences_are_made_on_request_only():
    J = make(Case(bessel, np.array([0.7, 0.2])), rungs=("traced", "dual", "differences"))
    assert J.rung == "differences"
    assert "not traced" in J.reason
    assert "not dual" in J.reason
    assert_close(J.dense(T, [0.7, 0.2]), [[-scipy.special.jv(1, 0.7), 0.0], [0.2, 0.7]], 1e-9)


def test_a_side_effect_keeps_a_function_from_being_traced():
    """The trace would freeze what Python counts."""
    count = [0]

    def field(t, y):
        count[0] += 1
        return [y[0] * count[0]]

    with pytest.raises(ValueError, match="it changes something outside itself"):
        make(Case(field, np.ones(1)), rungs=("traced",))


# ---- what kernels will need -----------------------------------------------------------------------------------------


def test_addresses_lead_to_the_documented_c_functions():
    case, n = ZOO["branches, one way"], 2
    push = make(case).pushforward
    y, y_dot, out = case.y.copy(), np.zeros((n, 8)), np.full((n, 8), np.nan)
    y_dot[0, 3] = y_dot[1, 5] = 1.0
    pointers = (array.ctypes.data for array in (y, y_dot, out, push.p))
    real, reals = ctypes.c_double, ctypes.c_void_p
    jvp8 = ctypes.CFUNCTYPE(ctypes.c_int32, real, reals, reals, reals, reals, ctypes.c_int64)(push.address)
    assert push.width == 8
    assert jvp8(T, *pointers, n) == 0
    expected = np.zeros((n, 8))
    expected[:, [3, 5]] = complex_step(case)
    assert_close(out, expected)


def test_code_is_made_once_for_new_arguments():
    """Values of arguments are data: a sweep compiles once."""
    first, case = made("lorenz", "dual"), ZOO["lorenz"]
    other = Case(lorenz, case.y, (1.0, 2.0, 3.0))
    second = make(other, rungs=("dual",))
    assert second.pushforward.address == first.pushforward.address
    assert_close(second.dense(T, case.y), complex_step(other))
