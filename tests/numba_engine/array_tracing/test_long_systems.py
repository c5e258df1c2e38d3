"""Long systems: arrays traced to loops, with their derivatives."""

import math
from dataclasses import replace

import numpy as np
import pytest
from lines import heat_dirichlet, lines, numbers

import stepnet as sn
from stepnet.engines.numba_engine.array_tracing.array_trace import MOST_UNKNOWNS, trace_loops
from stepnet.engines.numba_engine.array_tracing.loop_nests import fold
from stepnet.engines.numba_engine.array_tracing.loops import list_places
from stepnet.engines.numba_engine.codegen.loop_code import compile_loops, compile_trace
from stepnet.engines.numba_engine.derivatives.jacobian_products import JVP, VJP, wrap_c_slopes
from stepnet.engines.numba_engine.rhs.arguments import pack, unpack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form, wrap_python_call
from stepnet.engines.numba_engine.rhs.ladder import make_field
from stepnet.engines.numba_engine.tracing.trace import trace

SAME_VALUE = 1e-13  # of the largest slope: the order of sums and fused products differ
COMPLEX_STEP = 1e-12  # sums of 10^4 products
T = 0.3

DIFFERENCES = 1e-9
NOT_COMPLEX = ("driven end", "one by one", "heat of planes", "Brusselator in 2-D")  # they store in real arrays
NOT_SMOOTH = ("Burgers, upwind", "limiter", "Lax-Friedrichs")
NAMES = list(lines(1000))
SHORT = ("heat, Dirichlet", "heat on a ring", "Fisher, padded", "Korteweg-de Vries", "Brusselator in pairs", "wave")


def largest(x) -> float:
    return float(np.max(np.abs(x)))


@pytest.mark.parametrize("size", [4000, 10_007, 100_000])
@pytest.mark.parametrize("name", NAMES)
def test_lines_become_loops_and_equal_python(name, size):
    fun, args, shape = lines(size)[name]
    field = make_field(fun, args, (shape,), shape, (0.0, 1.0), numbers(int(np.prod(shape))), "fun")
    assert (field.rung, field.reason) == ("traced", "")
    assert field.keep_alive.loops is not None
    y = numbers(int(np.prod(shape)), seed=5)
    form, expected = find_call_form(fun, args, (shape,), shape, y.dtype, "fun"), np.empty(y.size)
    wrap_python_call(form, field.p)(T, y, expected)
    assert largest(field(T, y) - expected) <= SAME_VALUE * largest(expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_SMOOTH])
def test_tangents_equal_complex_steps_and_gradients_are_their_transpose(name):
    fun, args, shape = lines(4000)[name]
    y, block = numbers(int(np.prod(shape))), pack(args)
    form = find_call_form(fun, args, (shape,), shape, y.dtype, "fun")
    loops, p = trace_loops(form, block), block.values
    random = np.random.default_rng(0)
    v, q, w = (random.standard_normal(k) for k in (y.size, p.size, y.size))
    tangent = np.empty(y.size)
    jvp, vjp = compile_loops(loops, "jvp"), compile_loops(loops, "vjp")
    pointers = [x.ctypes.data for x in (v, q, tangent)]
    assert JVP(jvp.address)(T, y.ctypes.data, p.ctypes.data, 0.7, *pointers, y.size) == 0
    h = 1e-30
    if name in NOT_COMPLEX:
        expected, tolerance = difference(form, block, y, v, q), DIFFERENCES
    else:
        expected = complex_slopes(form, block, T + 0.7j * h, y + 1j * h * v, p + 1j * h * q).imag / h
        tolerance = COMPLEX_STEP
    assert largest(tangent - expected) <= tolerance * largest(expected)
    bars = [np.zeros(1), np.zeros(y.size), np.zeros(p.size)]
    assert VJP(vjp.address)(T, *(x.ctypes.data for x in (y, p, w, *bars)), y.size) == 0
    products = np.concatenate((bars[0] * 0.7, bars[1] * v, bars[2] * q))
    assert abs(products.sum() - w @ tangent) <= COMPLEX_STEP * np.abs(products).sum()


def difference(form, block, y, v, q):
    """By four points, exact for polynomials of degree four."""

    def at(x):
        out = np.empty(y.size)
        moved = block._replace(values=block.values + x * q)
        values = unpack(moved.values, block.slots)
        wrap_python_call(replace(form, args=values), moved.values)(T + 0.7 * x, y + x * v, out)
        return out

    h = 1e-3
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


def complex_slopes(form, block, t, y, p):
    if form.is_in_place:
        dy = np.empty(y.size, complex)
        form.function(t, y, dy, p)
        return dy
    args, offset = [], 0
    for slot in block.slots:
        size = int(np.prod(slot.shape))
        args.append(p[offset : offset + size].reshape(slot.shape)[()])
        offset += size
    return np.ravel(form.function(t, y.reshape(form.inputs[0]), *args))


def test_gradient_of_a_run_over_lines_is_that_of_its_tangent():
    """Gray-Scott on 32 x 32 points; a gradient along a direction equals the difference of two runs."""
    fun, args, shape = lines(2048)["Gray-Scott"]
    y = numbers(int(np.prod(shape))).reshape(shape)
    problem = sn.ODE(fun, y, (0.0, 1.0), args)
    random = np.random.default_rng(2)
    w, v = random.standard_normal((2, *shape))
    found = sn.gradient(problem, "rk4", end_gradient=w, steps=8)

    def end(shift):
        moved = sn.ODE(fun, y + shift * v, (0.0, 1.0), args)
        return sn.solve(moved, "rk4", steps=8, save_every=0).y[-1]

    h = 1e-4
    differences = np.sum(w * (8 * (end(h) - end(-h)) - (end(2 * h) - end(-2 * h)))) / (12 * h)
    assert np.sum(found.y0 * v) == pytest.approx(differences, rel=1e-9)


@pytest.mark.parametrize("name", ["np.gradient", "Fisher, padded", "heat in 2-D, flat"])
def test_short_lines_trace_alike(name):
    fun, args, shape = lines(36)[name]
    y = numbers(36)
    field = make_field(fun, args, (shape,), shape, (0.0, 1.0), y, "fun")
    assert (field.rung, field.reason) == ("traced", "")
    assert largest(field(T, y) - fun(T, y)) <= SAME_VALUE * largest(fun(T, y))


WEIGHTS = np.array([1.0, -2.5, 1.5, 0.25])
FUNCTIONS = {
    "convolve, same": lambda t, u: np.convolve(u, WEIGHTS, "same"),
    "convolve, valid": lambda t, u: np.r_[0.0, np.convolve(u, WEIGHTS[:3], mode="valid"), 0.0],
    "convolve, full": lambda t, u: np.convolve(u, WEIGHTS)[3:],
    "trapezoid": lambda t, u: u - np.trapezoid(u, dx=0.1) / u.size,
    "trapezoid on a grid": lambda t, u: u - np.trapezoid(u, np.linspace(0.0, 1.0, u.size) ** 2),
    "prod": lambda t, u: u * np.prod(u[:5]),
    "norm": lambda t, u: u / np.linalg.norm(u),
    "outer": lambda t, u: np.outer([1.0, 2.0], u[: u.size // 2]).ravel(),
    "take": lambda t, u: np.take(u, np.arange(u.size) - 1) + np.tile(u[:2], u.size // 2),
    "list of sums": lambda t, u: np.array([u[1:].sum()] * u.size) - u,
    "vdot": lambda t, u: u * np.vdot(u, u) / u.size - np.repeat(u[::2], 2),
}


@pytest.mark.parametrize("n", [10, 3000])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_numpy_on_short_and_long_arrays(name, n):
    fun, y = FUNCTIONS[name], numbers(n)
    field = make_field(fun, (), ((n,),), (n,), (0.0, 1.0), y, "fun")
    assert (field.rung, field.reason) == ("traced", "")
    assert largest(field(T, y) - fun(T, y)) <= SAME_VALUE * largest(fun(T, y))


def test_irregular_masks_are_tables():
    x, y = np.meshgrid(np.linspace(-1, 1, 80), np.linspace(-1, 1, 80))
    inside = x * x + y * y < 0.5

    def fun(t, u):
        du = np.roll(u, 1, 0) + np.roll(u, -1, 1) - 2 * u
        du[inside] = 0.0
        return np.where(x > y, du, u)

    state = numbers(6400).reshape(80, 80)
    field = make_field(fun, (), ((80, 80),), (80, 80), (0.0, 1.0), state.ravel(), "fun")
    assert field.rung == "traced"
    assert largest(field(T, state.ravel()) - fun(T, state).ravel()) <= SAME_VALUE


def test_arrays_in_closures_are_constants():
    k = numbers(5000)

    def fun(t, u):
        return -k * u + np.where(k > 1.0, u[::-1], 0.0)

    y = numbers(5000, seed=4)
    field = make_field(fun, (), ((5000,),), (5000,), (0.0, 1.0), y, "fun")
    assert field.rung == "traced"
    assert largest(field(T, y) - fun(T, y)) <= SAME_VALUE


def branching(t, u):
    return -u if u[0] > 0 else u


def sorted_lines(t, u):
    return np.sort(u) - u


def running_sum(t, u):
    return np.cumsum(u) / u.size - u


def scattered(t, u):
    return u[np.random.default_rng(1).permutation(u.size)] - u


ORDER = np.random.default_rng(1).permutation(3000)


def shuffled(t, u):
    return u[ORDER] - u


@pytest.mark.parametrize(
    ("fun", "reason"),
    [
        (branching, "branches on data"),
        (sorted_lines, "sort"),
        (running_sum, "cumsum"),
        (shuffled, "do not have a common form"),
    ],
)
def test_what_is_no_loop_falls_to_numba_or_python(fun, reason):
    y = numbers(3000)
    field = make_field(fun, (), ((3000,),), (3000,), (0.0, 1.0), y, "fun")
    assert field.rung in ("compiled", "python")
    assert "not traced" in field.reason
    assert reason in field.reason
    assert largest(field(T, y) - fun(T, y)) <= SAME_VALUE * 3000


def test_statistics_tell_the_rung_of_a_long_run():
    problem = sn.ODE(heat_dirichlet, numbers(5000), (0.0, 1e-9))
    found = sn.solve(problem, "rk4", steps=3, save_every=0)
    assert (found.statistics.rung, found.statistics.rung_reason) == ("traced", "")
    assert found.statistics.compile_time > 0


def test_the_state_is_not_written_to():
    def fun(t, u):
        u[0] = 0.0
        return -u

    with pytest.raises(ValueError, match="read-only"):
        make_field(fun, (), ((3000,),), (3000,), (0.0, 1.0), numbers(3000), "fun")


def test_views_are_views():
    def fun(t, u):
        du = np.zeros_like(u)
        inner = du[1:-1]
        inner += u[2:] - u[:-2]
        same = np.sin(u)
        same[0] = 0.0
        return du + np.sin(u) - same

    y = numbers(3000)
    field = make_field(fun, (), ((3000,),), (3000,), (0.0, 1.0), y, "fun")
    assert field.rung == "traced"
    assert largest(field(T, y) - fun(T, y)) <= SAME_VALUE


@pytest.mark.parametrize("shape", [(50,), (7, 9), (6, 5, 8), (4, 3, 7)])
def test_folding_keeps_every_place_once(shape):
    """Neighbours on a torus: whatever the grid, the nests hold the rows that were folded, and are few."""
    numbers_ = np.arange(np.prod(shape)).reshape(shape)
    columns = [numbers_, *(np.roll(numbers_, k, axis) for axis in range(len(shape)) for k in (1, -1))]
    places = np.stack([column.ravel() for column in columns], axis=1)
    nests = fold(places)
    rows = np.concatenate([
        np.stack([
            list_places((nest.base[c], tuple(stride[c] for stride in nest.strides)), nest.counts)
            for c in range(places.shape[1])
        ], axis=1)
        for nest in nests
    ])  # fmt: skip
    assert len(rows) == len(places)
    assert {tuple(row) for row in rows.tolist()} == {tuple(row) for row in places.tolist()}
    assert len(nests) < len(places) / 2


def test_a_total_of_ten_thousand_numbers_is_as_exact_as_numpy():
    fun, y = (lambda t, u: u.sum() - u), numbers(10_000) * 10.0 ** np.random.default_rng(0).integers(-8, 8, 10_000)
    form, block = find_call_form(fun, (), ((10_000,),), (10_000,), y.dtype, "fun"), pack(())
    slopes = wrap_c_slopes(compile_loops(trace_loops(form, block), "f"), y.size, block.values)
    assert largest(slopes(T, y) - fun(T, y)) <= SAME_VALUE * abs(y).sum()


def both_forms(name: str, size: int):
    """Machine code of a right-hand side and of its pullback, as straight-line code and as loops."""
    fun, args, shape = lines(size)[name]
    form, block = find_call_form(fun, args, (shape,), shape, np.dtype(float), "fun"), pack(args)
    traced = trace(form, block, 10**6)
    traced.graph.most = 10**6
    loops = trace_loops(form, block)
    return [(compile_trace(each, "f"), compile_trace(each, "vjp")) for each in (traced, loops)], block


@pytest.mark.parametrize("size", [MOST_UNKNOWNS + 50, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_many_unknowns_become_loops_however_few_operations_they_take(name, size):
    fun, args, shape = lines(size)[name]
    n = int(np.prod(shape))
    field = make_field(fun, args, (shape,), shape, (0.0, 1.0), numbers(n), "fun")
    assert (field.rung, field.reason) == ("traced", "")
    assert field.keep_alive.loops is not None or n <= MOST_UNKNOWNS  # some shapes cannot be had as long as that


@pytest.mark.parametrize("name", SHORT)
def test_few_unknowns_stay_straight_line_code(name):
    fun, args, shape = lines(60)[name]
    field = make_field(fun, args, (shape,), shape, (0.0, 1.0), numbers(int(np.prod(shape))), "fun")
    assert (field.rung, field.reason) == ("traced", "")
    assert field.keep_alive.trace is not None


@pytest.mark.parametrize("name", SHORT)
def test_loops_give_the_numbers_of_straight_line_code(name):
    (straight, loops), block = both_forms(name, 500)
    n = int(np.prod(lines(500)[name][2]))
    y, w, p = numbers(n, seed=3), numbers(n, seed=4), block.values
    slopes = [wrap_c_slopes(code, n, p)(T, y) for code, _ in (straight, loops)]
    assert largest(slopes[1] - slopes[0]) <= SAME_VALUE * largest(slopes[0])
    bars = []
    for _, code in (straight, loops):
        t_bar, y_bar, p_bar = np.zeros(1), np.zeros(n), np.zeros(p.size)
        pointers = [x.ctypes.data for x in (y, p, w, t_bar, y_bar, p_bar)]
        assert VJP(code.address)(T, *pointers, n) == 0
        bars.append(np.concatenate((t_bar, y_bar, p_bar)))
    assert largest(bars[1] - bars[0]) <= SAME_VALUE * largest(bars[0])


def test_what_makes_no_loops_is_straight_line_code_if_it_is_short():
    order = np.random.default_rng(0).permutation(MOST_UNKNOWNS + 50)

    def shuffled(t, y):
        return [-y[int(i)] if i % 3 else y[int(i)] * math.tanh(y[0]) for i in order]

    y0 = numbers(order.size)
    solution = sn.solve(sn.ODE(shuffled, y0, (0.0, 0.1)), "rk4", steps=4)
    assert (solution.statistics.rung, solution.statistics.rung_reason) == ("traced", "")


def chain(t, q, k):
    return k * (np.roll(q, 1) - 2 * q + np.roll(q, -1)) - q**3


def test_problems_in_halves_have_gradients_however_long():
    """Loops cannot be joined to those of another part; their derivatives are traced in full instead."""
    n = MOST_UNKNOWNS + 10
    q0, v0 = 0.1 * numbers(n), 0.1 * numbers(n, seed=1)
    halves = sn.SecondOrder(chain, q0, v0, (0.0, 0.2), args=(1.5,))
    whole = sn.ODE(
        lambda t, y, k: np.concatenate((y[n:], chain(t, y[:n], k))), np.concatenate((q0, v0)), (0.0, 0.2), args=(1.5,)
    )
    loss = lambda y: (float(np.sum(y**2)), 2 * y)
    first, second = (sn.gradient(each, "rk4", loss, steps=4) for each in (halves, whole))
    assert largest(first.flat - second.flat) <= 1e-12 * largest(second.flat)
