"""Kernels of linear equations on grids: equal to the operators, exact pullbacks, whole steps equal to single ones."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field
from stepnet.engines.numba_engine.stencils import stencil_code
from stepnet.engines.numba_engine.stencils.stencil_code import StencilCode, build_stencil_code
from stepnet.schemes.step_program import build_scheme_program

ROUNDING = {np.float64: 2e-14, np.float32: 1e-5}  # relative to the largest slope: up to 28 terms, in another order
ADJOINT = 1e-12
STEPS_OF_ROUNDING = 1e-13  # over 20 steps, fused and not
EIGENMODE = 1e-13
SHAPES = {"line": (450,), "plane": (21, 40), "box": (9, 8, 11)}
SIDES = {
    "periodic": "periodic",
    "dirichlet": ("dirichlet", so.dirichlet(1.5)),
    "neumann": (so.neumann(-0.7), "neumann"),
    "robin": so.robin(1.0, 0.5, 2.0),
}
VJP = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_double, *[ctypes.c_void_p] * 6, ctypes.c_int64)
STEPS = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_double, ctypes.c_double, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def list_equations(grid: so.Grid, u: np.ndarray) -> dict:
    """Linear equations on a grid; the argument gives the initial state."""
    velocity = np.array([0.7, -0.4, 0.2])[: grid.ndim]
    return {
        "heat": se.heat(grid, u, (0.0, 1e-4), 0.7),
        "heat of order 6 with a source": se.heat(grid, u, (0.0, 1e-4), 0.7, source=np.cos(u), order=6),
        "transport": se.transport(grid, u, (0.0, 1e-4), velocity, check_steps=False),
        "advection and diffusion": se.advection_diffusion(grid, u, (0.0, 1e-4), velocity, 0.3, check_steps=False),
    }


def build_code(problem, dtype=np.float64) -> StencilCode:
    return build_stencil_code(problem.fun.find_linear_form(*problem.args), dtype)


def flatten(args: tuple) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in args]).astype(float)


def point(array: np.ndarray) -> int:
    return array.ctypes.data


def pull_back(code: StencilCode, u: np.ndarray, p: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pullback, bars = code.build_pullback(), (np.zeros(1), np.zeros(u.size), np.zeros(p.size))
    arguments = map(point, (np.ravel(u), p, np.ravel(w), *bars))
    assert VJP(pullback.address)(0.0, *arguments, u.size) == 0
    return bars[1:]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", SIDES)
def test_kernels_equal_the_operators_and_pull_back_exactly(shape, side, rng):
    size = SHAPES[shape]
    grid = so.Grid(size, 0.0, 1.0, boundary=[SIDES[side]] * len(size))
    for name, problem in list_equations(grid, rng.normal(size=size)).items():
        code, p, u = build_code(problem), flatten(problem.args), problem.y0
        expected = problem.fun(0.0, u, *problem.args)
        found = np.empty(size)
        assert SIGNATURE(code.address)(0.0, point(u), point(found), point(p), u.size) == 0
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=ROUNDING[np.float64] * np.abs(expected).max(), err_msg=name
        )
        w, v = rng.normal(size=(2, *size))
        moved = problem.fun(0.0, u + v, *problem.args) - expected
        y_bar, p_bar = pull_back(code, u, p, w)
        scale = np.abs(w * moved).sum()
        assert abs((w * moved).sum() - y_bar @ v.ravel()) <= ADJOINT * scale, name
        shifted = [1.0 + 0.1 * rng.normal() for _ in problem.args]  # slopes are linear in rates and sources of one sign
        other = tuple(each * factor for each, factor in zip(problem.args, shifted, strict=True))
        change = problem.fun(0.0, u, *other) - expected
        assert abs((w * change).sum() - p_bar @ (flatten(other) - p)) <= ADJOINT * np.abs(w * expected).sum(), name


def test_kernels_work_in_single_precision(rng):
    grid = so.Grid((21, 40), 0.0, 1.0, boundary=[SIDES["robin"], "periodic"])
    problem = se.heat(grid, rng.normal(size=grid.shape), (0.0, 1e-3), 0.7, order=4)
    code, u, found = build_code(problem, np.float32), problem.y0.astype(np.float32), np.empty(grid.shape, np.float32)
    assert SIGNATURE(code.address)(0.0, point(u), point(found), point(np.array([0.7])), u.size) == 0
    expected = problem.fun(0.0, u.astype(float), 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING[np.float32] * np.abs(expected).max())


@pytest.mark.parametrize("order", [2, 4, 8])
def test_solves_recognise_linear_equations(order, rng):
    grid = so.Grid((24, 30), boundary=["neumann", "periodic"])
    for problem in list_equations(grid, rng.normal(size=grid.shape)).values():
        assert isinstance(build_full_field(problem).keep_alive, StencilCode)
    assert isinstance(build_full_field(se.heat(grid, problem.y0, (0.0, 1.0), order=order)).keep_alive, StencilCode)


@pytest.mark.parametrize("shape", [(5,), (9, 7)])
def test_short_states_in_single_precision_run_by_kernels(shape, rng):
    grid = so.Grid(shape, 0.0, 1.0, boundary="neumann")
    u = rng.normal(size=shape)
    found, expected = (sn.solve(se.heat(grid, each, (0.0, 1e-3)), "rk4", steps=10) for each in (u.astype("f4"), u))
    assert (found.statistics.rung, found.y.dtype) == ("traced", np.float32)
    np.testing.assert_allclose(found.y, expected.y, rtol=0, atol=ROUNDING[np.float32] * np.abs(u).max())


@pytest.mark.parametrize("scheme", ["euler", "midpoint", "rk4", "ssprk3"])
def test_whole_steps_equal_single_ones_and_do_not_depend_on_saving(scheme, rng):
    grid = so.Grid((22, 31), 0.0, 1.0, boundary=[SIDES["dirichlet"], "periodic"])
    for name, problem in list_equations(grid, rng.normal(size=grid.shape)).items():
        check_steps(problem, lambda t, u, *args, f=problem.fun: f(t, u, *args), sn.ODE, scheme, name)


@pytest.mark.parametrize("scheme", ["verlet", "yoshida4"])
def test_whole_steps_of_waves_equal_single_ones(scheme, rng):
    grid = so.Grid((22, 31), 0.0, 1.0, boundary=[SIDES["neumann"], "periodic"])
    problem = se.wave(grid, *rng.normal(size=(2, *grid.shape)), (0.0, 1e-2), 1.3)
    plain = sn.SecondOrder(
        lambda t, q, speed: problem.acceleration(t, q, speed), problem.q0, problem.v0, problem.t_span, problem.args
    )
    compare_runs(problem, plain, scheme, "wave")


def check_steps(problem, function, kind, scheme: str, name: str) -> None:
    compare_runs(problem, kind(function, problem.y0, problem.t_span, problem.args), scheme, name)


def compare_runs(problem, plain, scheme: str, name: str) -> None:
    for steps in (1, 20):
        end = sn.solve(problem, scheme, steps=steps, save_every=0).y[-1]
        expected = sn.solve(plain, scheme, steps=steps, save_every=0).y[-1]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(end, expected, rtol=0, atol=STEPS_OF_ROUNDING * scale, err_msg=name)
        saved = sn.solve(problem, scheme, steps=steps, save_every=3).y[-1]
        np.testing.assert_array_equal(saved, end, err_msg=name)


@pytest.mark.parametrize("scheme", ["euler", "midpoint", "rk4", "ssprk3"])
@pytest.mark.parametrize("side", SIDES)
def test_several_steps_in_one_sweep_have_the_bits_of_single_steps(side, scheme, rng, monkeypatch):
    grid = so.Grid((50, 40), 0.0, 1.0, boundary=[SIDES[side], SIDES["neumann"]])
    equations = list_equations(grid, rng.normal(size=grid.shape))
    equations["heat of order 4"] = se.heat(grid, rng.normal(size=grid.shape), (0.0, 1.0), 0.7, order=4)
    program = build_scheme_program(sn.schemes.get(scheme), 1, False, False).step
    for name, problem in equations.items():
        compare_blocked_steps(
            problem.fun.find_linear_form(*problem.args), problem.args, program, rng, monkeypatch, name
        )


@pytest.mark.parametrize("scheme", ["verlet", "yoshida4"])
@pytest.mark.parametrize("side", SIDES)
def test_several_steps_of_waves_in_one_sweep_have_the_bits_of_single_steps(side, scheme, rng, monkeypatch):
    grid = so.Grid((50, 140), 0.0, 1.0, boundary=[SIDES[side], SIDES["periodic"]])
    problem = se.wave(grid, *rng.normal(size=(2, *grid.shape)), (0.0, 1e-2), 1.3)
    program = build_scheme_program(sn.schemes.get(scheme), 2, False, True).step
    form = problem.acceleration.find_linear_form(*problem.args)
    compare_blocked_steps(form, problem.args, program, rng, monkeypatch, "wave")


def compare_blocked_steps(form, args, program, rng, monkeypatch, name: str) -> None:
    """19 steps, a number that no block divides, with and without blocks."""
    start, p, ends = rng.normal(size=(program.n_rows, int(np.prod(form.shape)))), flatten(args), []
    for least in (0, np.inf):
        monkeypatch.setattr(stencil_code, "BLOCKED_BYTES", least)
        code = build_stencil_code(form, np.float64)
        assert (code.find_wavefront(program) is None) == (least > 0), name
        work = np.zeros((program.n_rows + code.count_spare_rows(program), start.shape[1]))
        work[: program.n_rows] = start
        address = code.find_steps(program, tuple(range(program.n_rows)), program.n_rows, work.shape[1])
        STEPS(address)(0.0, 1e-5, 0, 19, point(work), point(p))
        ends.append(work[: program.n_rows].copy())
    assert np.isfinite(ends[0]).all(), name
    assert not np.array_equal(ends[0], start), name
    np.testing.assert_array_equal(*ends, err_msg=name)


def test_a_discrete_eigenmode_decays_by_its_factor():
    grid = so.Grid((32, 48), 0.0, 1.0)
    x, y = grid.coordinates
    mode = np.cos(2 * np.pi * (3 * x + 2 * y))
    h_x, h_y = grid.spacing
    eigenvalue = -4 * (np.sin(3 * np.pi * h_x) ** 2 / h_x**2 + np.sin(2 * np.pi * h_y) ** 2 / h_y**2)
    problem = se.heat(grid, mode, (0.0, 4e-3), 0.5)
    factor = (1 + 4e-3 / 50 * 0.5 * eigenvalue) ** 50
    found = sn.solve(problem, "euler", steps=50, save_every=0).y[-1]
    np.testing.assert_allclose(found, factor * mode, rtol=0, atol=EIGENMODE)


def test_time_dependent_boundary_values_and_velocity_fields_keep_to_traces(rng):
    moving = so.Grid((22, 31), boundary=so.dirichlet(lambda t: np.sin(t)))
    heat = se.heat(moving, rng.normal(size=moving.shape), (0.0, 1.0))
    assert build_code(heat) is None
    still = so.Grid((22, 31))
    field = se.transport(still, rng.normal(size=still.shape), (0.0, 1.0), rng.normal(size=(2, 22, 31)))
    assert field.fun.find_linear_form(*field.args) is None
    assert not isinstance(build_full_field(field).keep_alive, StencilCode)


@pytest.mark.parametrize("scheme", ["euler", "rk4"])
@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(slots=4)], ids=["all", "checkpoints"])
def test_gradients_equal_those_of_traces(scheme, memory, rng):
    grid = so.Grid((22, 31), boundary=["neumann", "dirichlet"])
    problem = se.heat(grid, rng.normal(size=grid.shape), (0.0, 2e-3), 0.7)
    plain = sn.ODE(lambda t, u, k: problem.fun(t, u, k), problem.y0, problem.t_span, problem.args)
    weights = rng.normal(size=grid.shape)

    def loss(u):
        return (weights * u * u).sum(), 2 * weights * u

    found, expected = (sn.gradient(each, scheme, loss, steps=23, memory=memory) for each in (problem, plain))
    np.testing.assert_allclose(found.y0, expected.y0, rtol=0, atol=ADJOINT * np.abs(expected.y0).max())
    np.testing.assert_allclose(found.args[0], expected.args[0], rtol=ADJOINT)
