"""Linear systems of implicit steps: dense, banded, sparse and matrix-free solvers take the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import splu

import stepnet as sn
from stepnet.solution import Status

SAME = 1e-10  # of converged steps and exact Rosenbrock steps by other factors, relative to the state
PRODUCTS = 1e-7  # Rosenbrock steps with linear systems solved to 1e-10

M = 12
LINE = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(M, M)) * (M + 1) ** 2
PLANE = scipy.sparse.csc_array(scipy.sparse.kron(LINE, scipy.sparse.eye_array(M)) + scipy.sparse.kron(
    scipy.sparse.eye_array(M), LINE))  # fmt: skip
CORNER = np.outer(*[np.sin(np.pi * np.arange(1, M + 1) / (M + 1))] * 2).ravel()


def diffuse(t, y):
    u = y.reshape(M, M)
    slope = -4.0 * u - 1e-3 * u**3
    slope[1:] = slope[1:] + u[:-1]
    slope[:-1] = slope[:-1] + u[1:]
    slope[:, 1:] = slope[:, 1:] + u[:, :-1]
    slope[:, :-1] = slope[:, :-1] + u[:, 1:]
    return (slope * (M + 1) ** 2).ravel()


def jacobian(t, y):
    return PLANE - scipy.sparse.diags_array(3e-3 * (M + 1) ** 2 * y**2)


SOLVERS = ("dense", "banded", "sparse", sn.Gmres(rtol=1e-10))
SOURCES = {
    "traced": {},
    "function": {"jac": jacobian},
    "differences": {"fun": lambda t, y: diffuse(t, np.array(y.tolist())), "jac_sparsity": PLANE},
    "products": {"jvp": lambda t, y, v: jacobian(t, y) @ v, "jac_sparsity": PLANE},
}


def solve(scheme: str, solver, **given):
    problem = sn.ODE(**{"fun": diffuse, "y0": CORNER, "t_span": (0.0, 0.05), "linear_solver": solver, **given})
    return sn.solve(problem, scheme, steps=8)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("scheme", ["implicit_euler", "radau5", "rodas4"])
def test_every_linear_solver_takes_the_same_steps(scheme, solver):
    wanted, found = solve(scheme, "banded"), solve(scheme, solver)
    name = "gmres" if isinstance(solver, sn.Gmres) else solver
    assert found.statistics.linear_solver == name
    tolerance = PRODUCTS if name == "gmres" and scheme == "rodas4" else SAME
    np.testing.assert_allclose(found.y, wanted.y, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("scheme", "solver"), [("ndf", "dense"), ("ndf", "sparse"), ("ndf", "gmres"), ("auto", "sparse")]
)
def test_schemes_of_variable_order_have_every_linear_solver(scheme, solver):
    rtol = 1e-4  # two runs may choose other steps, so they agree to the tolerance alone
    given = {"dense": "dense", "sparse": "sparse", "gmres": sn.Gmres(rtol=1e-10)}[solver]
    wanted, found = (
        sn.solve(sn.ODE(diffuse, CORNER, (0.0, 0.05), linear_solver=each), scheme, rtol=rtol, atol=1e-6)
        for each in ("banded", given)
    )
    assert found.statistics.linear_solver == solver
    np.testing.assert_allclose(found.y[-1], wanted.y[-1], rtol=0, atol=rtol)


@pytest.mark.parametrize("scheme", ["auto", "lsoda"])
def test_schemes_that_switch_need_the_entries_of_the_jacobian(scheme):
    with pytest.raises(TypeError, match="computes products"):
        sn.solve(sn.ODE(diffuse, CORNER, (0.0, 0.05), linear_solver="gmres"), scheme)


@pytest.mark.parametrize("solver", ["sparse", "gmres"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scheme", ["trapezoid", "rodas4"])
def test_every_source_of_the_jacobian_serves_large_systems(scheme, source, solver):
    wanted = solve(scheme, "banded").y[-1]
    found = solve(scheme, solver, **SOURCES[source]).y[-1]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 if scheme == "rodas4" else SAME)


def test_a_constant_sparse_jacobian_is_taken_as_it_is():
    def linear(t, y):
        return PLANE @ y

    problem = sn.ODE(linear, CORNER, (0.0, 0.05), jac=PLANE, trace=False, linear_solver="sparse")
    found = sn.solve(problem, "rodas4", rtol=1e-8, atol=1e-10)
    decay = np.exp(0.05 * 4 * (np.cos(np.pi / (M + 1)) - 1) * (M + 1) ** 2)
    np.testing.assert_allclose(found.y[-1], decay * CORNER, rtol=0, atol=1e-7)


def test_the_solver_is_chosen_by_size_and_fill():
    def choose(n, fun, **given):
        return sn.solve(sn.ODE(fun, np.ones(n), (0.0, 1e-3), **given), "implicit_euler", steps=1).statistics

    full = np.random.default_rng(0).standard_normal((200, 200)) / 200
    assert choose(3, lambda t, y: -y[::-1]).linear_solver == "dense"
    assert choose(200, lambda t, y: full @ y, jac=full).linear_solver == "dense"
    assert choose(60, lambda t, y: -y).linear_solver == "banded"
    large = scipy.sparse.kron(scipy.sparse.eye_array(60), scipy.sparse.csr_array(np.ones((1, 1)))) + (
        scipy.sparse.csr_array((np.ones(1), ([0], [59])), (60, 60))
    )
    wide = scipy.sparse.csc_array(scipy.sparse.kron(scipy.sparse.eye_array(60), large))
    assert choose(3600, lambda t, y: -(wide @ y), jac=-wide).linear_solver == "banded"
    corner = scipy.sparse.csc_array(-wide + scipy.sparse.csc_array((np.ones(1), ([3599], [0])), wide.shape))
    assert choose(3600, lambda t, y: corner @ y, jac=corner).linear_solver == "sparse"


def test_a_preconditioner_gets_time_state_factor_and_arguments():
    calls = []

    def precondition(t, y, factor, k):
        calls.append((t, y.shape, factor, k))
        return splu((scipy.sparse.eye_array(M * M) - factor * k * PLANE).tocsc()).solve

    def scaled(t, y, k):
        return k * diffuse(t, y)

    how = sn.Gmres(preconditioner=precondition)
    problem = sn.ODE(scaled, CORNER, (0.0, 0.05), (2.0,), linear_solver=how)
    found = sn.solve(problem, "radau5", steps=4)
    wanted = sn.solve(sn.ODE(scaled, CORNER, (0.0, 0.05), (2.0,)), "radau5", steps=4)
    np.testing.assert_allclose(found.y, wanted.y, rtol=0, atol=SAME)
    assert {(shape, k) for _, shape, _, k in calls} == {((M * M,), 2.0)}
    assert any(isinstance(factor, complex) for _, _, factor, _ in calls)


def test_iterations_that_do_not_converge_end_the_run_and_keep_the_valid_part():
    how = sn.Gmres(rtol=1e-12, restart=2, max_iterations=2)
    solution = sn.solve(sn.ODE(diffuse, CORNER, (0.0, 0.5), linear_solver=how), "implicit_euler", steps=5, check=False)
    assert solution.status is Status.NOT_SOLVED
    assert np.isfinite(solution.y).all()


def raise_error(t, y, factor):
    raise KeyError("mine")


BAD = {
    "raises": (raise_error, "mine"),
    "returns text": (lambda t, y, factor: "text", "must return a function"),
    "wrong shape": (lambda t, y, factor: np.eye(3), "operator of shape"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("scheme", ["implicit_euler", "rodas4", "ndf"])
def test_errors_of_a_preconditioner_are_the_users_own(scheme, name):
    given, message = BAD[name]
    problem = sn.ODE(diffuse, CORNER, (0.0, 0.05), linear_solver=sn.Gmres(preconditioner=given))
    with pytest.raises(sn.SolveFailed, match=message):
        sn.solve(problem, scheme, **({"steps": 5} if scheme == "implicit_euler" else {}))


@pytest.mark.parametrize("solver", ["sparse", "dense"])
def test_a_singular_matrix_outside_the_kernel_ends_the_run_with_a_status(solver):
    n = 200
    problem = sn.ODE(lambda t, y: y, np.ones(n), (0.0, 4.0), linear_solver=solver)
    solution = sn.solve(problem, "implicit_euler", steps=4, check=False)
    assert solution.status is Status.NOT_SOLVED
    assert solution.statistics.linear_solver == solver


def test_entries_outside_the_pattern_of_the_first_jacobian_are_an_error():
    def jac(t, y):
        return scipy.sparse.csc_array(np.diag([-1.0, -2.0]) + (t > 0.5) * np.eye(2, k=1))

    with pytest.raises(sn.SolveFailed, match="jac_sparsity"):
        sn.solve(sn.ODE(lambda t, y: [-y[0], -2 * y[1]], np.ones(2), (0.0, 1.0), jac=jac), "rodas4", steps=10)


def test_unknown_linear_solvers_are_refused():
    with pytest.raises(sn.UnknownName, match="linear_solver"):
        sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0), linear_solver="spares")
    with pytest.raises(ValueError, match="rtol"):
        sn.Gmres(rtol=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["trapezoid", "trbdf2", "rodas4"])
def test_heat_on_a_grid_of_128_by_128_is_solved_sparse(scheme):
    m = 128
    line = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(m, m)) * (m + 1) ** 2
    unit = scipy.sparse.eye_array(m)
    plane = scipy.sparse.csc_array(scipy.sparse.kron(line, unit) + scipy.sparse.kron(unit, line))
    bump = np.outer(*[np.sin(np.pi * np.arange(1, m + 1) / (m + 1))] * 2).ravel()
    problem = sn.ODE(lambda t, y: plane @ y, bump, (0.0, 0.1), jac=plane)
    solution = sn.solve(problem, scheme, save_every=0, **({} if scheme == "trbdf2" else {"steps": 40}))
    assert solution.statistics.linear_solver == "sparse"
    decay = np.exp(0.1 * 4 * (np.cos(np.pi / (m + 1)) - 1) * (m + 1) ** 2)
    assert np.max(np.abs(solution.y[-1] - decay * bump)) < 2e-4  # of the trapezoid; the others are below
