"""Equations as sums with implicit or exact diffusion: the same slopes, measured orders, long steps, exact gradients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from equations.problems import LINE, PLANE, PROBLEMS
from scipy.sparse import diags_array

import stepnet as sn

SAME = 1e-12  # relative; sums in another order
ORDER_SLACK = 0.3
CLOSE = 1e-6  # relative, of derivatives by central differences of step 1e-4
DIFFERENCE = 1e-4

WITH_DIFFUSION = [
    "heat", "heat with a source", "diffusion", "advection and diffusion", "burgers, constant", "burgers, weno5",
    "gray_scott", "fitzhugh_nagumo", "allen_cahn",
]  # fmt: skip


@pytest.mark.parametrize("grid", [LINE, PLANE], ids=["line", "plane"])
@pytest.mark.parametrize("name", WITH_DIFFUSION)
def test_both_parts_sum_to_the_equation(name, grid):
    problem = PROBLEMS[name][0](grid)
    split = sn.equations.split_diffusion(problem)
    whole = problem.fun(0.3, problem.y0, *problem.args)
    parts = sum(np.asarray(part(0.3, split.y0, *split.args)) for part in split.parts)
    assert np.max(np.abs(whole - parts)) <= SAME * np.max(np.abs(whole))


def test_equations_without_diffusion_are_refused():
    with pytest.raises(TypeError, match="with diffusion, found ODE of transport"):
        sn.equations.split_diffusion(PROBLEMS["transport"][0](LINE))
    with pytest.raises(TypeError, match="with diffusion, found SecondOrder"):
        sn.equations.split_diffusion(PROBLEMS["wave"][0](LINE))


def front(n: int = 120, t_end: float = 1.0):
    grid = sn.operators.Grid(n, 0.0, 1.0, boundary="neumann")
    (x,) = grid.coordinates
    return sn.equations.allen_cahn(grid, np.cos(2 * np.pi * x) + 0.3 * x, (0.0, t_end), 0.2)


@pytest.mark.parametrize(("scheme", "order"), [("ars343", 3), ("sbdf2", 2), ("kencarp4", 4)])
def test_orders_with_steps_beyond_the_explicit_limit(scheme, order):
    problem = front()
    explicit = 2.0 / (4 * 0.2**2 * 120**2)  # Euler's limit
    exact = sn.solve(problem, "radau9", steps=200, save_every=0).y[-1]
    split = sn.equations.split_diffusion(problem)
    counts = (20, 40)
    assert 1.0 / counts[-1] > 20 * explicit
    errors = [np.max(np.abs(sn.solve(split, scheme, steps=n, save_every=0).y[-1] - exact)) for n in counts]
    assert np.log2(errors[0] / errors[1]) > order - ORDER_SLACK


def test_the_matrix_of_linear_diffusion_is_banded_and_factorised_once():
    split = sn.equations.split_diffusion(front())
    found = sn.solve(split, "ars222", steps=30).statistics
    assert (found.jacobians, found.factorisations) == (1, 1)


def test_implicit_steps_of_a_whole_equation():
    """Heat with Crank and Nicolson's scheme: second order, with the decay of the first mode on the grid."""
    grid = sn.operators.Grid(80, 0.0, 1.0, boundary="dirichlet", centring="node")
    (x,) = grid.coordinates
    mode, h = np.sin(np.pi * x), grid.spacing[0]
    rate = 4 / h**2 * np.sin(np.pi * h / 2) ** 2
    errors = []
    for n in (10, 20):
        end = sn.solve(sn.equations.heat(grid, mode, (0.0, 0.1), 1.0), "trapezoid", steps=n, save_every=0).y[-1]
        errors.append(np.max(np.abs(end - np.exp(-0.1 * rate) * mode)))
    assert abs(np.log2(errors[0] / errors[1]) - 2) < ORDER_SLACK


@pytest.mark.parametrize("scheme", ["ars222", "kencarp3", "sbdf3", "implicit_euler"])
def test_gradients_with_respect_to_the_diffusivity(scheme):
    def build(width):
        grid = sn.operators.Grid(12, 0.0, 1.0, boundary="neumann")
        (x,) = grid.coordinates
        problem = sn.equations.allen_cahn(grid, np.cos(np.pi * x) + 0.3 * x, (0.0, 1.0), width)
        return problem if scheme == "implicit_euler" else sn.equations.split_diffusion(problem)

    def value(width):
        end = sn.solve(build(width), scheme, steps=8, save_every=0).y[-1]
        return 0.5 * end @ end

    found = sn.gradient(build(0.3), scheme, lambda y: (0.5 * y @ y, y), steps=8)
    slope = (value(0.3 + DIFFERENCE) - value(0.3 - DIFFERENCE)) / (2 * DIFFERENCE)
    assert abs(found.args[0] - slope) <= CLOSE * abs(slope)


# ---- exact linear parts ---------------------------------------------------------------------------------------------


def kuramoto_sivashinsky(n: int = 64, t_end: float = 2.0) -> sn.Split:
    """u_t = -u u_x - u_xx - u_xxxx on a period of 22; Kassam & Trefethen (2005), SIAM J. Sci. Comput. 26:1214."""
    grid = sn.operators.Grid(n, 0.0, 22.0)
    (x,), k = grid.coordinates, 2 * np.pi * np.fft.fftfreq(n, grid.spacing[0])
    first = sn.operators.spectral_derivative(grid, 0)
    linear = sn.Linear(sn.operators.SpectralOperator(grid, k**2 - k**4))
    return sn.Split((lambda t, u: -0.5 * first(u * u), linear), np.cos(2 * np.pi * x / 22) + 0.1, (0.0, t_end))


def korteweg_de_vries(n: int = 128) -> tuple[sn.Split, np.ndarray]:
    """u_t = -6 u u_x - u_xxx with a soliton 2 k^2 sech^2(k (x - 4 k^2 t)), and the soliton at the end."""
    grid = sn.operators.Grid(n, -20.0, 20.0)
    (x,), first = grid.coordinates, sn.operators.spectral_derivative(grid, 0)
    symbol = -sn.operators.spectral_derivative(grid, 0, 3).symbol
    parts = lambda t, u: -3.0 * first(u * u), sn.Linear(sn.operators.SpectralOperator(grid, symbol))
    soliton = lambda t: 0.5 / np.cosh(0.5 * (x - t)) ** 2
    return sn.Split(parts, soliton(0.0), (0.0, 2.0)), soliton(2.0)


def test_kuramoto_sivashinsky_to_fourth_order():
    """The fastest mode decays at a rate of 7000, on which explicit steps of this length are unstable."""
    problem = kuramoto_sivashinsky()
    ends = [sn.solve(problem, "etdrk4", steps=n, save_every=0).y[-1] for n in (100, 200, 400)]
    errors = [np.max(np.abs(a - b)) for a, b in pairwise(ends)]
    assert abs(np.log2(errors[0] / errors[1]) - 4) < ORDER_SLACK


def test_a_soliton_keeps_its_shape():
    problem, wanted = korteweg_de_vries()
    end = sn.solve(problem, "etdrk4", steps=200, save_every=0).y[-1]
    assert np.max(np.abs(end - wanted)) < 1e-6  # of the period, beyond which the soliton is 1e-8, and of the grid


def test_a_linear_equation_is_solved_exactly_by_one_step():
    grid = sn.operators.Grid((8, 6), 0.0, 2 * np.pi)
    x, y = grid.coordinates
    u0 = np.cos(x) * np.sin(2 * y) + 0.3
    problem = sn.Split((lambda t, u: 0.0 * u, sn.Linear(sn.operators.spectral_laplacian(grid))), u0, (0.0, 0.7))
    for scheme in ("etd1", "etdrk2", "etdrk4"):
        end = sn.solve(problem, scheme, steps=1).y[-1]
        assert np.max(np.abs(end - (np.exp(-5 * 0.7) * (u0 - 0.3) + 0.3))) < SAME


def test_spectral_and_matrix_parts_agree_in_states_and_gradients():
    grid = sn.operators.Grid(9, 0.0, 1.0)
    operator = sn.operators.SpectralOperator(grid, 0.05 * sn.operators.spectral_laplacian(grid).symbol)
    u0 = np.stack((np.linspace(0.1, 1.0, 9), np.cos(np.arange(9.0))))

    def react(t, u, a):
        return np.stack((a * u[0] - u[0] * u[1] * u[1], u[0] * np.sin(t) - u[1]))

    found = []
    for linear in (operator, operator.matrix(), [operator, operator]):
        problem = sn.Split((react, sn.Linear(linear)), u0, (0.0, 1.0), (0.4,))
        gradient = sn.gradient(problem, "etdrk4", lambda y: ((y * y).sum() / 2, y), steps=5)
        middle = sn.solve(problem, "etdrk4", steps=20, save_at=[0.33]).y[0]
        found.append(np.concatenate((gradient.y.ravel(), gradient.y0.ravel(), gradient.args, middle.ravel())))
    assert np.max(np.abs(found[0] - found[1])) < SAME
    assert np.max(np.abs(found[0] - found[2])) < SAME


def test_a_sparse_linear_part_is_a_banded_jacobian():
    n = 60
    L = diags_array([np.ones(n - 1), -2.0 * np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1]) * 400.0
    problem = sn.Split((lambda t, y: np.sin(y), sn.Linear(L)), np.ones(n), (0.0, 0.1))
    exact = sn.solve(problem, "etdrk4", steps=100, save_every=0).y[-1]
    found = sn.solve(problem, "kencarp4", steps=20)
    assert found.statistics.factorisations == 1
    assert np.max(np.abs(found.y[-1] - exact)) < 1e-5


# ---- bad input ------------------------------------------------------------------------------------------------------

GRID = sn.operators.Grid(4)


def of(*parts, y0=(1.0, 0.5)):
    return sn.Split(parts, y0, (0.0, 1.0))


def nothing(t, y):
    return 0.0 * y


MATRIX = [[-1.0, 0.0], [0.5, -2.0]]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: sn.Linear([[1.0, 2.0]]), r"`operator` must have shape \(1, 1\)"),
        (lambda: sn.Linear("heat"), "`operator` must be a matrix, or an operator"),
        (lambda: sn.Linear([[np.nan]]), "`operator` must be finite"),
        (lambda: sn.Linear([[1j]]), "`operator` must be real"),
        (lambda: sn.Linear(sn.operators.laplacian(sn.operators.Grid(4, boundary=sn.operators.dirichlet(1.0)))),
         "boundary values make it nonzero"),
        (lambda: of(nothing, sn.Linear(np.eye(3))), "acts on 3 entries"),
        (lambda: sn.solve(of(nothing, nothing), "etdrk4", steps=3), "must be `stepnet.Linear"),
        (lambda: sn.solve(of(nothing, nothing, nothing), "ars222", steps=3), "takes two parts"),
        (lambda: sn.solve(of(nothing, sn.Flow(lambda t, y, h: y)), "ars222", steps=3), "hold a `Flow`"),
        (lambda: sn.solve(sn.ODE(nothing, [1.0], (0.0, 1.0)), "etdrk4", steps=3), "use `Split`"),
        (lambda: sn.solve(sn.ODE(nothing, [1.0], (0.0, 1.0)), "sbdf2", steps=3), "use `Split`"),
        (lambda: sn.solve(of(nothing, sn.Linear(MATRIX)), "etdrk4", rtol=1e-3), "give `steps`"),
        (lambda: sn.solve(of(nothing, sn.Linear(MATRIX)), "etdrk4", steps=[0.0, 0.3, 1.0]), "equal steps"),
        (lambda: sn.solve(of(nothing, nothing, y0=[1j, 0.0]), "ars222", steps=3), "float64"),
    ],
)  # fmt: skip
def test_bad_input_is_explained(build, words):
    with pytest.raises((TypeError, ValueError), match=words):
        build()


def test_steps_that_cannot_be_solved_keep_the_valid_part():
    """y = y0 + h y^2 has no real solution where 4 h y0 > 1."""
    problem = sn.Split((nothing, lambda t, y: y * y), [1.0], (0.0, 4.0))
    for scheme in ("imex_euler", "sbdf2"):
        with pytest.raises(sn.SolveFailed) as failed:
            sn.solve(problem, scheme, steps=8)
        assert failed.value.solution.t[-1] < 4.0
        assert np.all(np.isfinite(failed.value.solution.y))
