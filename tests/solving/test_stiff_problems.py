"""Stiff problems: accuracy against tight references, structure of Jacobians, failures that keep the valid part."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse
from scipy.integrate import solve_ivp

import stepnet as sn
from stepnet.solution import Status

PAIRS = ("radau5", "kvaerno5", "rodas4", "rodas5p", "bdf", "ndf", "lsoda", "auto")
RTOLS = (1e-4, 1e-6, 1e-8)
REFERENCE = {"method": "Radau", "rtol": 1e-11, "atol": 1e-15}
ATOL = 1e-4  # of the relative tolerance: small components of the kinetic problems matter
MOST = 10.0  # error at the end in units of the tolerance
BESIDE_BDF = 2.0  # times the error of SciPy's BDF
ROUNDING = 1e-10  # of converged fixed steps, relative to the state


def robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def van_der_pol(t, y, mu):
    return [y[1], mu * ((1 - y[0] ** 2) * y[1] - y[0])]


def hires(t, y):
    return [
        -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007,
        1.71 * y[0] - 8.75 * y[1],
        -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4],
        8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3],
        -1.745 * y[4] + 0.43 * y[5] + 0.43 * y[6],
        -280 * y[5] * y[7] + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6],
        280 * y[5] * y[7] - 1.81 * y[6],
        -280 * y[5] * y[7] + 1.81 * y[6],
    ]


def orego(t, y):
    s, w, q = 77.27, 0.161, 8.375e-6
    return [s * (y[1] + y[0] * (1 - q * y[0] - y[1])), (y[2] - (1 + y[0]) * y[1]) / s, w * (y[0] - y[2])]


def e5(t, y):
    a, b, c, m = 7.89e-10, 1.1e7, 1.13e3, 1e6
    first, second, third = a * y[0], b * y[0] * y[2], m * c * y[1] * y[2]
    return [-first - second, first - third, first - second - third + c * y[3], second - c * y[3]]


def brusselator(t, z):
    """250 points with diffusion: u and v alternate, so that five diagonals are occupied."""
    k = 0.02 * (N_LONG // 2 + 1) ** 2
    u, v = z[::2], z[1::2]
    left, right = np.concatenate(([1.0], u[:-1])), np.concatenate((u[1:], [1.0]))
    below, above = np.concatenate(([3.0], v[:-1])), np.concatenate((v[1:], [3.0]))
    slope = np.zeros(N_LONG)
    slope[::2] = 1 + u * u * v - 4 * u + k * (left - 2 * u + right)
    slope[1::2] = 3 * u - u * u * v + k * (below - 2 * v + above)
    return slope


N_LONG = 500
PLACES = np.linspace(0, 1, N_LONG // 2 + 2)[1:-1]
WAVES = np.ravel(np.column_stack((1 + np.sin(2 * np.pi * PLACES), np.full(N_LONG // 2, 3.0))))

PROBLEMS = {
    "robertson": sn.ODE(robertson, [1.0, 0.0, 0.0], (0.0, 1e11)),
    "van der Pol 1e3": sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 2.0), (1e3,)),
    "van der Pol 1e6": sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 2.0), (1e6,)),
    "HIRES": sn.ODE(hires, [1.0, 0, 0, 0, 0, 0, 0, 0.0057], (0.0, 321.8122)),
    "OREGO": sn.ODE(orego, [1.0, 2.0, 3.0], (0.0, 360.0)),
    "E5": sn.ODE(e5, [1.76e-3, 0.0, 0.0, 0.0], (0.0, 1e11)),
    "Brusselator": sn.ODE(brusselator, WAVES, (0.0, 10.0)),
}
BANDED = {"Brusselator": {"lband": 2, "uband": 2}}
SMALL = {"E5": 1e-20}  # absolute tolerances where states are tiny


@cache
def reference(name: str) -> np.ndarray:
    problem = PROBLEMS[name]
    if name in BANDED:  # dense factorisations of SciPy's Radau would take minutes
        choices = {"method": "LSODA", "rtol": 1e-12, "atol": 1e-13, **BANDED[name]}
    else:
        choices = REFERENCE | {"atol": SMALL.get(name, REFERENCE["atol"]) * (1e-4 if name in SMALL else 1)}
    return solve_ivp(problem.fun, problem.t_span, problem.y0, args=problem.args, **choices).y[:, -1]


@cache
def scipy_error(name: str, rtol: float) -> float:
    problem = PROBLEMS[name]
    choices = {"method": "BDF", "rtol": rtol, "atol": absolute(name, rtol), "args": problem.args}
    if name in BANDED:
        pattern = np.eye(N_LONG) + sum(np.eye(N_LONG, k=k) for k in (-2, -1, 1, 2))
        choices["jac_sparsity"] = scipy.sparse.csc_matrix(pattern)
    return scaled_error(name, rtol, solve_ivp(problem.fun, problem.t_span, problem.y0, **choices).y[:, -1])


def absolute(name: str, rtol: float) -> float:
    return SMALL.get(name, ATOL * rtol)


def scaled_error(name: str, rtol: float, end: np.ndarray) -> float:
    """Largest error in units of atol + rtol |y|."""
    wanted = reference(name)
    return float(np.max(np.abs(end - wanted) / (absolute(name, rtol) + rtol * np.abs(wanted))))


@pytest.mark.slow
@pytest.mark.parametrize("rtol", RTOLS)
@pytest.mark.parametrize("scheme", PAIRS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_at_the_end_are_those_of_the_tolerance(name, scheme, rtol):
    solution = sn.solve(PROBLEMS[name], scheme, rtol=rtol, atol=absolute(name, rtol), save_every=0)
    error = scaled_error(name, rtol, solution.y[-1])
    print(f"{name}, {scheme}, rtol {rtol:.0e}: {error:.1e}, SciPy's BDF {scipy_error(name, rtol):.1e}")
    assert error <= (MOST if scheme == "radau5" else max(MOST, BESIDE_BDF * scipy_error(name, rtol)))


@pytest.mark.parametrize("scheme", ["radau5", "rodas4"])
def test_a_stiff_problem_takes_few_steps(scheme):
    solution = sn.solve(PROBLEMS["robertson"], scheme, rtol=1e-4, atol=1e-8)
    statistics = solution.statistics
    assert statistics.accepted < 200
    assert 0 < statistics.jacobians <= statistics.factorisations
    np.testing.assert_allclose(solution.y.sum(axis=1), 1.0, rtol=1e-9)  # a linear invariant


# ---- Jacobians ------------------------------------------------------------------------------------------------------

N = 40


def heat(t, y, k):
    slope = np.zeros(N)
    slope[1:-1] = k * (y[:-2] - 2 * y[1:-1] + y[2:])
    slope[0], slope[-1] = k * (y[1] - 2 * y[0]), k * (y[-2] - 2 * y[-1])
    return slope - y**3


def heat_jacobian(t, y, k):
    off = np.full(N - 1, k)
    return np.diag(np.full(N, -2 * k) - 3 * y**2) + np.diag(off, 1) + np.diag(off, -1)


def pattern() -> np.ndarray:
    return np.eye(N) + np.eye(N, k=1) + np.eye(N, k=-1)


def opaque(t, y, k):
    try:
        return heat(t, y, k)
    except ZeroDivisionError:  # what handles exceptions cannot be traced
        return y


SOURCES = {
    "traced": {},
    "user": {"jac": heat_jacobian, "trace": False},
    "sparse": {"jac": lambda t, y, k: scipy.sparse.csc_array(heat_jacobian(t, y, k)), "jac_sparsity": pattern()},
    "products": {"jvp": lambda t, y, v, k: heat_jacobian(t, y, k) @ v, "jac_sparsity": pattern()},
    "differences": {"trace": False},
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scheme", ["trapezoid", "radau5", "rodas4"])
def test_every_source_of_the_jacobian_gives_the_same_steps(source, scheme):
    y0, span, args = np.sin(np.linspace(0.1, 3.0, N)), (0.0, 0.1), (500.0,)
    found = sn.solve(sn.ODE(heat, y0, span, args, **SOURCES[source]), scheme, steps=10).y[-1]
    wanted = sn.solve(sn.ODE(heat, y0, span, args), scheme, steps=10).y[-1]
    is_rosenbrock = scheme == "rodas4"  # its result depends on the Jacobian, so differences show
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-7 if is_rosenbrock else ROUNDING)


def test_a_function_that_is_not_traced_has_its_jacobian_by_dual_numbers_or_differences():
    y0, span, args = np.sin(np.linspace(0.1, 3.0, N)), (0.0, 0.1), (500.0,)
    found = sn.solve(sn.ODE(opaque, y0, span, args), "gauss4", steps=10)
    assert found.statistics.rung != "traced"
    wanted = sn.solve(sn.ODE(heat, y0, span, args), "gauss4", steps=10).y[-1]
    np.testing.assert_allclose(found.y[-1], wanted, rtol=0, atol=ROUNDING)


def test_a_long_banded_system_agrees_with_scipy():
    y0 = WAVES
    found = sn.solve(sn.ODE(brusselator, y0, (0.0, 1.0)), "rodas4", rtol=1e-6, atol=1e-8)
    wanted = solve_ivp(brusselator, (0.0, 1.0), y0, "LSODA", rtol=1e-9, atol=1e-11, lband=2, uband=2).y[:, -1]
    assert np.max(np.abs(found.y[-1] - wanted)) < 1e-5  # a few times the tolerance, summed over the steps


# ---- failures -------------------------------------------------------------------------------------------------------


def test_equations_without_solution_end_the_run_with_a_status_and_keep_the_valid_part():
    problem = sn.ODE(lambda t, y: y**2 + 1.0, [0.0], (0.0, 10.0))  # tan t
    solution = sn.solve(problem, "implicit_euler", steps=20, check=False)
    assert solution.status is Status.NOT_SOLVED
    assert "smaller steps" in solution.failure.advice
    assert len(solution.t) > 1
    assert np.isfinite(solution.y).all()


def test_a_singular_iteration_matrix_ends_the_run_with_a_status():
    solution = sn.solve(sn.ODE(lambda t, y: y, [1.0], (0.0, 4.0)), "implicit_euler", steps=4, check=False)
    assert solution.status is Status.NOT_SOLVED


def test_a_jacobian_of_wrong_shape_is_refused():
    problem = sn.ODE(robertson, [1.0, 0.0, 0.0], (0.0, 1.0), jac=lambda t, y: np.eye(2))
    with pytest.raises(ValueError, match="`jac` must have shape"):
        sn.solve(problem, "radau5")


def test_an_exception_of_the_jacobian_is_the_users_own():
    def jac(t, y):
        if t > 0.5:
            raise KeyError("mine")
        return np.diag([-1.0, -2.0, -3.0])

    problem = sn.ODE(lambda t, y: -y * np.array([1.0, 2.0, 3.0]), np.ones(3), (0.0, 1.0), jac=jac)
    with pytest.raises(sn.SolveFailed, match="mine"):
        sn.solve(problem, "implicit_midpoint", steps=10)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_other_states_than_float64_are_refused(dtype):
    with pytest.raises(TypeError, match="float64"):
        sn.solve(sn.ODE(lambda t, y: -y, np.ones(2, dtype), (0.0, 1.0)), "radau5")


# ---- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["implicit_midpoint", "gauss4"])
def test_energy_of_a_hamiltonian_that_is_not_separable_stays_bounded(scheme):
    """H = (p^2 + 1) (q^2 + 1) / 2, over many periods."""
    problem = sn.Partitioned(
        lambda t, q, p: p * (q**2 + 1), lambda t, q, p: -q * (p**2 + 1), [1.0], [0.3], (0.0, 1000.0), separable=False
    )
    y = sn.solve(problem, scheme, steps=10_000, save_every=50).y
    energy = (y[:, 1] ** 2 + 1) * (y[:, 0] ** 2 + 1) / 2
    drift = np.abs(energy / energy[0] - 1)
    half = len(drift) // 2
    assert drift.max() < 0.02
    assert drift[half:].max() <= 1.1 * drift[:half].max()  # it oscillates and does not grow


@pytest.mark.parametrize("scheme", ["implicit_midpoint", "gauss4"])
def test_energy_stays_bounded_over_a_hundred_thousand_steps(scheme):
    """The same Hamiltonian; the largest deviation of each tenth of the run is that of the first one."""
    problem = sn.Partitioned(
        lambda t, q, p: p * (q**2 + 1), lambda t, q, p: -q * (p**2 + 1), [1.0], [0.3], (0.0, 1e4), separable=False
    )
    y = sn.solve(problem, scheme, steps=100_000, save_every=7).y
    energy = (y[:, 1] ** 2 + 1) * (y[:, 0] ** 2 + 1) / 2
    drift = np.abs(energy / energy[0] - 1)
    largest = np.array([part.max() for part in np.array_split(drift, 10)])
    print(f"{scheme}: {largest}")
    assert largest.max() < (5e-3 if scheme == "implicit_midpoint" else 1e-5)
    assert largest.max() <= 1.01 * largest[0]


def test_order_reduction_on_prothero_robinson_is_that_of_the_stage_order():
    """y' = L (y - cos t) - sin t for very stiff L: Kvaerno's schemes have the stage order 2, Radau IIA 3."""
    L = -1e6
    problem = sn.ODE(lambda t, y: L * (y - np.cos(t)) - np.sin(t), [1.0], (0.0, 1.0))

    def order(scheme):
        counts = np.array([10, 20, 40])
        errors = [abs(sn.solve(problem, scheme, steps=int(n)).y[-1, 0] - np.cos(1.0)) for n in counts]
        return -np.polyfit(np.log(counts), np.log(errors), 1)[0]

    assert order("sdirk4") < 3.0
    assert order("gauss4") < 3.0


def follow_cosine(t, y):
    if not 0.0 <= t <= 1e-6:
        raise ValueError(f"evaluated at t = {t}")
    return [-5e7 * (float(str(float(y[0]))) - np.cos(1e6 * t))]  # a string: neither traced nor compiled


@pytest.mark.parametrize("scheme", ["implicit_euler", "radau5", "rodas4", "rodas5p"])
@pytest.mark.parametrize("jac", [None, [[-5e7]]], ids=["differences", "given"])
def test_differences_in_time_stay_inside_the_interval_and_follow_its_length(scheme, jac):
    inside = sn.ODE(follow_cosine, [0.0], (0.0, 1e-6), jac=jac)
    traced = sn.ODE(lambda t, y: [-5e7 * (y[0] - np.cos(1e6 * t))], [0.0], (0.0, 1e-6))
    found, expected = (sn.solve(each, scheme, steps=40, save_every=0) for each in (inside, traced))
    assert found.statistics.rung == "python"
    np.testing.assert_allclose(found.y, expected.y, rtol=ROUNDING)
