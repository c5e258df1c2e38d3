"""Steps along the axes of a grid: the schemes of Crank and Nicolson, Peaceman and Rachford, Douglas and Gunn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import spsolve

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so
from stepnet.errors import NoDerivative, SchemeError
from stepnet.operators.linear import embed_axis_matrix

ROUNDING = 2e-12  # of a few solves with matrices of condition up to a hundred
SINGLE = 1e-5
EIGENMODES = 1e-13
ADJOINT = 1e-12
ORDER_TOLERANCE = 0.15
DIFFERENCE = 1e-9  # of central differences of fourth order with steps of 1e-4
STEPS, SPAN = 4, (0.0, 0.1)
ROBIN = so.robin(1.0, 0.5, 2.0)
CASES = {
    "a ring": ("periodic", 2, (40,)),
    "a short ring of order 8": ("periodic", 8, (9, 8)),
    "a long ring of order 4": ("periodic", 4, (150, 3)),
    "values": ("dirichlet", 2, (12, 15)),
    "slopes of order 4": ("neumann", 4, (14, 9)),
    "Robin's condition of order 6": (ROBIN, 6, (8, 150)),
    "a box": ([("dirichlet", "neumann"), "periodic", ROBIN], 2, (7, 8, 9)),
}

VARYING = {
    "a ring": ("periodic", (40,)),
    "two points around": ("periodic", (2, 3)),
    "two rings": ("periodic", (9, 14)),
    "values": ("dirichlet", (12, 15)),
    "a box": ([("dirichlet", "neumann"), "periodic", ROBIN], (7, 8, 9)),
}


def draw(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def list_matrices(operator: so.StencilOperator, rate: float) -> list:
    """rate times the part of an operator along each axis."""
    grid = operator.grid
    return [rate * embed_axis_matrix(grid, k, operator.find_axis_matrix(k)) for k in range(grid.ndim)]


def solve(matrix, b):
    return spsolve(matrix.tocsc(), b)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_assembled_matrices(name):
    """u + h (I - h A_m / 2)^-1 ... (I - h A_1 / 2)^-1 f(u)."""
    boundary, order, shape = CASES[name]
    grid = so.Grid(shape, 0.0, 1.0, boundary=boundary if isinstance(boundary, str) else _per_axis(boundary, shape))
    problem, h = se.heat(grid, draw(shape), SPAN, 0.7, order=order, source=draw(shape, 1)), SPAN[1] / STEPS
    y, one = problem.y0, sparse.eye_array(problem.y0.size)
    matrices = list_matrices(so.laplacian(grid, order), 0.7)
    for _ in range(STEPS):
        slope = problem.fun(0.0, y, *problem.args).ravel()
        for A in matrices:
            slope = solve(one - h / 2 * A, slope)
        y = y + h * slope.reshape(shape)
    solution = sn.solve(problem, "adi", steps=STEPS)
    assert solution.statistics.rung == "traced"
    assert np.max(np.abs(solution.y[-1] - y)) <= ROUNDING * np.max(np.abs(y))


def _per_axis(boundary, shape):
    return boundary if isinstance(boundary, list) else [boundary] * len(shape)


@pytest.mark.parametrize("name", [*VARYING])
def test_steps_with_a_varying_coefficient_are_those_of_the_assembled_matrices(name):
    """SciPy solves the same systems; the parts along the axes add up to the operator."""
    boundary, shape = VARYING[name]
    grid = so.Grid(shape, 0.0, 1.0, boundary=boundary if isinstance(boundary, str) else _per_axis(boundary, shape))
    k, h = 0.2 + draw(shape, 5) ** 2, SPAN[1] / STEPS
    problem = se.diffusion(grid, draw(shape), SPAN, k, source=draw(shape, 1))
    matrices, y, one = split_diffusion(grid, k), problem.y0, sparse.eye_array(problem.y0.size)
    whole = so.VariableDiffusion(grid).matrix(k)
    assert abs(sum(matrices) - whole).max() <= ROUNDING * abs(whole).max()
    for _ in range(STEPS):
        slope = problem.fun(0.0, y, *problem.args).ravel()
        for A in matrices:
            slope = solve(one - h / 2 * A, slope)
        y = y + h * slope.reshape(shape)
    found = sn.solve(problem, "adi", steps=STEPS).y[-1]
    assert np.max(np.abs(found - y)) <= ROUNDING * np.max(np.abs(y))


def split_diffusion(grid: so.Grid, k: np.ndarray) -> list:
    """The parts of div(k grad u) along the axes: those of a grid on which k jumps down to zero along the others."""
    parts = []
    for axis, n in enumerate(grid.shape):
        lines, count = np.moveaxis(k, axis, -1).reshape(-1, n), k.size // n
        line = so.Grid(n, grid.lower[axis], grid.upper[axis], boundary=[grid.boundary[axis] or "periodic"])
        blocks = sparse.block_diag([so.VariableDiffusion(line).matrix(each) for each in lines], format="csr")
        order = np.moveaxis(np.arange(k.size).reshape(k.shape), axis, -1).ravel()
        place = sparse.csr_array((np.ones(k.size), (order, np.arange(k.size))))
        assert blocks.shape == (count * n, count * n)
        parts.append(place @ blocks @ place.T)
    return parts


@pytest.mark.parametrize("shape", [(12, 10), (7, 6, 8)], ids=["2-D", "3-D"])
def test_it_has_order_two_where_the_coefficient_varies(shape):
    value = so.dirichlet(lambda t: np.sin(4.0 * t))
    grid = so.Grid(shape, 0.0, 1.0, boundary=_per_axis([value, "neumann", "periodic"][: len(shape)], shape))
    x, y = grid.coordinates[:2]
    k = 0.1 + 0.3 * x + 0.1 * np.cos(2 * np.pi * y)
    problem = se.diffusion(grid, x * np.cos(np.pi * y), (0.0, 1.0), k, source=lambda t: np.cos(3.0 * t) * x * y)
    exact = sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_every=0).y[-1]
    errors = [np.max(np.abs(sn.solve(problem, "adi", steps=n, save_every=0).y[-1] - exact)) for n in (80, 160)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize("name", ["two rings", "a box"])
def test_the_adjoint_of_steps_with_a_varying_coefficient_is_their_transpose(name):
    """<w, S u> = <S' w, u> for the linear map S of a run."""
    boundary, shape = VARYING[name]
    grid = so.Grid(shape, 0.0, 1.0, boundary=_per_axis(boundary, shape))
    u, w = draw(shape, 6), draw(shape, 7)
    problem = se.diffusion(grid, u, SPAN, 0.2 + draw(shape, 5) ** 2)
    rest = sn.solve(replace(problem, y0=0.0 * u), "adi", steps=STEPS, save_every=0).y[-1]
    end = sn.solve(problem, "adi", steps=STEPS, save_every=0).y[-1] - rest
    found = sn.gradient(problem, "adi", end_gradient=w, steps=STEPS)
    assert abs(np.vdot(w, end) - np.vdot(found.y0, u)) <= ADJOINT * np.linalg.norm(w) * np.linalg.norm(end)


def test_in_one_dimension_it_is_crank_and_nicolsons_scheme():
    grid = so.Grid(60, 0.0, 1.0, boundary=[(so.dirichlet(1.0), "neumann")])
    problem = se.heat(grid, draw(60), SPAN, 0.3)
    found, wanted = (sn.solve(problem, scheme, steps=10, save_at=[0.033, 0.1]).y for scheme in ("adi", "trapezoid"))
    assert np.max(np.abs(found - wanted)) <= ROUNDING * np.max(np.abs(wanted))


def test_in_two_dimensions_it_is_peaceman_and_rachfords_scheme():
    """Half a step implicit along the first axis, half a step implicit along the second."""
    grid = so.Grid((13, 11), 0.0, 1.0, boundary=["dirichlet", ROBIN])
    problem, h = se.heat(grid, draw((13, 11)), SPAN, 0.5), SPAN[1] / STEPS
    (A, B), one = list_matrices(so.laplacian(grid), 0.5), sparse.eye_array(143)
    g, y = 0.5 * so.laplacian(grid).find_offset().ravel(), problem.initial
    for _ in range(STEPS):
        half = solve(one - h / 2 * A, y + h / 2 * (B @ y + g))
        y = solve(one - h / 2 * B, half + h / 2 * (A @ half + g))
    found = sn.solve(problem, "adi", steps=STEPS).y[-1].ravel()
    assert np.max(np.abs(found - y)) <= 10 * ROUNDING  # other sums of the same numbers


def test_in_three_dimensions_it_is_douglas_and_gunns_scheme():
    grid = so.Grid((6, 7, 5), 0.0, 1.0, boundary="dirichlet")
    problem, h = se.heat(grid, draw(grid.shape), SPAN, 0.5), SPAN[1] / STEPS
    (A, B, C), one, y = list_matrices(so.laplacian(grid), 0.5), sparse.eye_array(210), problem.initial
    for _ in range(STEPS):
        first = solve(one - h / 2 * A, y + h * ((A + B + C) @ y) - h / 2 * (A @ y))
        second = solve(one - h / 2 * B, first - h / 2 * (B @ y))
        y = solve(one - h / 2 * C, second - h / 2 * (C @ y))
    found = sn.solve(problem, "adi", steps=STEPS).y[-1].ravel()
    assert np.max(np.abs(found - y)) <= 10 * ROUNDING


def test_discrete_eigenmodes_have_their_factor_for_any_step():
    """1 + z / ((1 - z_1 / 2) (1 - z_2 / 2)) per step with z = z_1 + z_2, and none grows."""
    grid = so.Grid((24, 18), 0.0, 1.0, boundary=["dirichlet", "periodic"])
    x, y = grid.coordinates
    h_x, h_y = grid.spacing
    for k, m in ((1, 1), (5, 2), (24, 9)):
        mode = np.sin(np.pi * k * x) * np.cos(2 * np.pi * m * y)
        for h in (1e-4, 1.0, 1e4):
            z = [-4 * h * np.sin(np.pi * k * h_x / 2) ** 2 / h_x**2, -4 * h * np.sin(np.pi * m * h_y) ** 2 / h_y**2]
            factor = 1 + sum(z) / ((1 - z[0] / 2) * (1 - z[1] / 2))
            found = sn.solve(se.heat(grid, mode, (0.0, 3 * h)), "adi", steps=3).y[-1]
            assert np.max(np.abs(found - factor**3 * mode)) <= EIGENMODES * max(1.0, np.max(np.abs(mode)))
            assert abs(factor) <= 1.0
    assert se.find_largest_step(se.heat(grid, mode, SPAN), "adi") == np.inf


@pytest.mark.parametrize("moves", [False, True], ids=["constant data", "data that depend on time"])
def test_it_has_order_two_in_time(moves):
    value = so.dirichlet(lambda t: np.sin(4.0 * t)) if moves else so.dirichlet(1.0)
    grid = so.Grid((10, 8), 0.0, 1.0, boundary=[value, "neumann"])
    x, y = grid.coordinates
    source = (lambda t: np.cos(3.0 * t) * x * y) if moves else x * y
    problem = se.heat(grid, x * np.cos(np.pi * y), (0.0, 1.0), 0.2, source=source)
    exact = sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_every=0).y[-1]
    errors = [np.max(np.abs(sn.solve(problem, "adi", steps=n, save_every=0).y[-1] - exact)) for n in (40, 80)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


def test_advection_and_diffusion_take_long_steps():
    grid = so.Grid((40, 40), 0.0, 1.0)
    x, y = grid.coordinates
    problem = se.advection_diffusion(grid, np.sin(2 * np.pi * x) * np.cos(2 * np.pi * y), (0.0, 1.0), [1.0, -0.5], 0.05)
    assert se.find_largest_step(problem, "rk4") < 1 / 300
    errors, exact = [], sn.solve(problem, "rk4", steps=400, save_every=0).y[-1]
    for steps in (25, 50):
        found = sn.solve(problem, "adi", steps=steps, save_every=0).y[-1]
        assert abs(found.sum() - problem.y0.sum()) <= ROUNDING * np.abs(problem.y0).sum()
        errors.append(np.max(np.abs(found - exact)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


MOVING = so.dirichlet(lambda t: np.sin(3.0 * t))
PLANE = so.Grid((9, 11), 0.0, 1.0, boundary=[("dirichlet", "neumann"), "periodic"])
BOX = so.Grid((5, 6, 7), 0.0, 1.0, boundary="neumann", centring="node")
DIFFERENTIATED = {
    "heat": lambda: se.heat(PLANE, draw(PLANE.shape), SPAN, 0.7),
    "heat with a source": lambda: se.heat(PLANE, draw(PLANE.shape), SPAN, 0.7, source=draw(PLANE.shape, 1), order=4),
    "heat in a box": lambda: se.heat(BOX, draw(BOX.shape), SPAN, 0.7),
    "moving data": lambda: se.heat(so.Grid((9, 11), boundary=[MOVING, "periodic"]), draw((9, 11)), SPAN, 0.7,
                                   source=lambda t: np.cos(4.0 * t)),
    "a varying coefficient": lambda: se.diffusion(PLANE, draw(PLANE.shape), SPAN, 0.2 + draw(PLANE.shape, 5) ** 2,
                                                  source=draw(PLANE.shape, 1)),
    "a varying coefficient in a box": lambda: se.diffusion(BOX, draw(BOX.shape), SPAN, 0.2 + draw(BOX.shape, 5) ** 2),
    "a varying coefficient, moving data": lambda: se.diffusion(
        so.Grid((9, 11), boundary=[MOVING, "periodic"]), draw((9, 11)), SPAN, 0.2 + draw((9, 11), 5) ** 2),
    "advection and diffusion": lambda: se.advection_diffusion(PLANE, draw(PLANE.shape), SPAN, [0.5, -0.4], 0.7),
}  # fmt: skip


@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(slots=2)], ids=["all", "checkpoints"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_are_exact(name, memory):
    """With respect to the state, all arguments and both times, against differences along a direction."""
    problem = DIFFERENTIATED[name]()
    weights, direction = draw(problem.y0.shape, 2), draw(problem.y0.shape, 3)
    turned = [0.3 * draw(np.shape(each), 4) * np.mean(np.abs(each)) for each in problem.args]

    def loss(u):
        return 0.5 * float(np.sum(weights * u * u)), weights * u

    def evaluate(size):
        args = tuple(each + size * d for each, d in zip(problem.args, turned, strict=True))
        times = problem.t_span[0] + 0.01 * size, problem.t_span[1] - 0.02 * size
        moved = replace(problem, y0=problem.y0 + size * direction, args=args, t_span=times)
        return loss(sn.solve(moved, "adi", steps=STEPS, save_every=0).y[-1])[0]

    found = sn.gradient(problem, "adi", loss, steps=STEPS, memory=memory, times=True)
    slope = np.vdot(found.y0, direction) + 0.01 * found.t_span[0] - 0.02 * found.t_span[1]
    slope += sum(float(np.sum(g * d)) for g, d in zip(found.args, turned, strict=True))
    e = 1e-4
    wanted = (8 * (evaluate(e) - evaluate(-e)) - (evaluate(2 * e) - evaluate(-2 * e))) / (12 * e)
    assert slope == pytest.approx(wanted, rel=DIFFERENCE)


def test_losses_may_read_several_states():
    problem, times = DIFFERENTIATED["heat"](), [0.025, 0.075, 0.1]
    loss = lambda ys: (0.5 * float(np.sum(ys * ys)), ys)
    found = sn.gradient(problem, "adi", loss, steps=STEPS, save_at=times)
    direction, e = draw(problem.y0.shape, 3), 1e-4

    def evaluate(size):
        moved = replace(problem, y0=problem.y0 + size * direction)
        return loss(sn.solve(moved, "adi", steps=STEPS, save_at=times).y)[0]

    assert np.vdot(found.y0, direction) == pytest.approx((evaluate(e) - evaluate(-e)) / (2 * e), rel=DIFFERENCE)


def test_the_jacobian_of_a_linear_equation_is_its_map():
    problem = DIFFERENTIATED["heat"]()
    found = sn.jacobian(problem, "adi", steps=STEPS).y0.reshape(problem.y0.size, -1)
    end = sn.solve(problem, "adi", steps=STEPS).y[-1]
    assert np.max(np.abs(found @ problem.initial - end.ravel())) <= ROUNDING


@pytest.mark.slow  # the kernels for float32
def test_single_precision_is_kept():
    problem = se.heat(PLANE, draw(PLANE.shape).astype(np.float32), SPAN, 0.7)
    found = sn.solve(problem, "adi", steps=STEPS)
    assert found.y.dtype == np.float32
    wanted = sn.solve(replace(problem, y0=problem.y0.astype(float)), "adi", steps=STEPS).y[-1]
    assert np.max(np.abs(found.y[-1] - wanted)) <= SINGLE


def test_other_problems_take_the_whole_matrix():
    problem = sn.ODE(lambda t, y: -50.0 * (y - np.cos(t)), [0.0, 1.0], (0.0, 1.0))
    found = [sn.solve(problem, "adi", steps=n).y[-1] for n in (100, 200, 400)]
    changes = [np.max(np.abs(a - b)) for a, b in pairwise(found)]
    assert np.log2(changes[0] / changes[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


def test_what_has_no_axes_is_refused():
    problem = DIFFERENTIATED["heat"]()
    for call in (
        lambda: sn.tangent(problem, "adi", y0=problem.y0, steps=STEPS),
        lambda: sn.hvp(problem, "adi", lambda u: (u * u).sum(), y0=problem.y0, steps=STEPS),
    ):
        with pytest.raises(NoDerivative, match="solves along the axes of a grid"):
            call()
    with pytest.raises(SchemeError, match="`by_axes` needs one stage with gamma = 1/2"):
        replace(sn.schemes.get("rodas3"), by_axes=True)
