"""Mass matrices: M y' = f(t, y) with M nonsingular or singular, against exact solutions and problems without M."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from scheme_names import FIXED_STEPS
from scipy.integrate import solve_ivp

import stepnet as sn
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import find_mass_refusal, is_implicit
from stepnet.solution import Status

MOST = 10.0  # error at the end in units of the tolerance
SAME = 1e-11  # of two ways to solve the same equations of a step, relative to the state
ROUNDING = 1e-13  # of linear invariants
CENTRAL = 1e-8  # central differences of a smooth function, relative to it
ALGEBRAIC = ("implicit_euler", "radau3", "radau5", "radau9", "sdirk2", "sdirk4", "trbdf2", "kvaerno3", "kvaerno4",
             "kvaerno5", "trapezoid", "lobatto_iiia4", "lobatto_iiic2", "lobatto_iiic4", "rodas3", "rodas4", "rodas5p",
             )  # fmt: skip

# ---- linear finite elements -----------------------------------------------------------------------------------------

N = 40
WIDTH = 1.0 / (N + 1)
CONSISTENT_MASS = WIDTH / 6 * scipy.sparse.diags_array([1.0, 4.0, 1.0], offsets=[-1, 0, 1], shape=(N, N))
STIFFNESS = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)) / WIDTH
BUMP = np.sin(np.pi * np.linspace(WIDTH, 1 - WIDTH, N)) + 0.1 * np.cos(np.arange(N))


def flow(t, u):
    slope = np.zeros(N)
    slope[1:-1] = u[:-2] - 2 * u[1:-1] + u[2:]
    slope[0], slope[-1] = u[1] - 2 * u[0], u[-2] - 2 * u[-1]
    return slope / WIDTH


def flow_in_place(t, u, dy, p):
    dy[1:-1] = (u[:-2] - 2 * u[1:-1] + u[2:]) / WIDTH
    dy[0], dy[-1] = (u[1] - 2 * u[0]) / WIDTH, (u[-2] - 2 * u[-1]) / WIDTH


@cache
def cooled() -> np.ndarray:
    generator = -np.linalg.solve(CONSISTENT_MASS.toarray(), STIFFNESS.toarray())
    return scipy.linalg.expm(0.1 * generator) @ BUMP


FORMATS = {
    "dense": CONSISTENT_MASS.toarray(), "diagonals": CONSISTENT_MASS, "rows": scipy.sparse.csr_matrix(CONSISTENT_MASS),
}  # fmt: skip


@pytest.mark.parametrize("given", FORMATS)
@pytest.mark.parametrize("scheme", ["radau5", "kvaerno5", "rodas5p", "ndf"])
def test_linear_finite_elements_with_consistent_mass_attain_the_tolerance(scheme, given):
    problem = sn.ODE(flow, BUMP, (0.0, 0.1), mass=FORMATS[given])
    solution = sn.solve(problem, scheme, rtol=1e-7, atol=1e-9, save_every=0)
    assert solution.statistics.linear_solver == "banded"
    assert np.max(np.abs(solution.y[-1] - cooled())) < MOST * 1e-7


@pytest.mark.parametrize(
    "scheme", ["implicit_midpoint", "trapezoid", "gauss4", "radau5", "kvaerno4", "ros3p", "rodas4"]
)
def test_steps_with_a_regular_mass_are_those_of_the_solved_equations(scheme):
    inverse = np.linalg.inv(CONSISTENT_MASS.toarray())
    matrix = -inverse @ STIFFNESS.toarray()
    wanted = sn.solve(sn.ODE(lambda t, u: matrix @ u, BUMP, (0.0, 0.1)), scheme, steps=25).y
    found = sn.solve(sn.ODE(flow, BUMP, (0.0, 0.1), mass=CONSISTENT_MASS), scheme, steps=25).y
    np.testing.assert_allclose(found, wanted, rtol=0, atol=SAME)


@pytest.mark.parametrize("fun", [flow, flow_in_place])
@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "ab2"])
def test_explicit_schemes_solve_with_the_factorised_mass(scheme, fun):
    problem = sn.ODE(fun, BUMP, (0.0, 0.1), mass=CONSISTENT_MASS)
    assert np.max(np.abs(sn.solve(problem, scheme, steps=4000, save_every=0).y[-1] - cooled())) < 1e-7


def test_dense_output_events_and_save_times_know_the_slopes():
    problem = sn.ODE(flow, BUMP, (0.0, 0.1), mass=CONSISTENT_MASS)
    dense = sn.solve(problem, "rodas4", rtol=1e-8, atol=1e-10, dense=True)
    saved = sn.solve(problem, "rodas4", rtol=1e-8, atol=1e-10, save_at=[0.03, 0.07, 0.1])
    np.testing.assert_allclose(saved.y, dense(saved.t), rtol=0, atol=1e-7)
    event = sn.Event(lambda t, u: u[N // 2] - 0.6, terminal=True)
    stopped = sn.solve(problem, "radau5", rtol=1e-8, atol=1e-10, events=event)
    assert stopped.status is Status.EVENT
    assert abs(dense(stopped.t[-1])[N // 2] - 0.6) < 1e-6
    run = sn.start(problem, "rodas4", rtol=1e-8, atol=1e-10).run_to(0.07)
    np.testing.assert_allclose(run.y, saved.y[1], rtol=0, atol=1e-8)


# ---- algebraic equations --------------------------------------------------------------------------------------------


def robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def conserved_robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, y[0] + y[1] + y[2] - 1.0]


HALF = np.diag([1.0, 1.0, 0.0])


@pytest.mark.parametrize("scheme", ["rodas4", "rodas5p", "radau5", "kvaerno5", "trbdf2", "sdirk4", "bdf", "ndf"])
def test_robertson_with_its_conservation_law_as_equation(scheme):
    problem = sn.ODE(conserved_robertson, [1.0, 0.0, 0.0], (0.0, 1e11), mass=HALF)
    found = sn.solve(problem, scheme, rtol=1e-6, atol=1e-10)
    exact = {"method": "Radau", "rtol": 1e-11, "atol": 1e-15}
    wanted = solve_ivp(robertson, (0.0, 1e11), [1.0, 0.0, 0.0], **exact).y[:, -1]
    assert np.max(np.abs(found.y[-1] - wanted) / (1e-10 + 1e-6 * np.abs(wanted))) < MOST
    np.testing.assert_allclose(found.y.sum(axis=1), 1.0, rtol=0, atol=ROUNDING)
    plain = sn.solve(sn.ODE(robertson, [1.0, 0.0, 0.0], (0.0, 1e11)), scheme, rtol=1e-6, atol=1e-10)
    assert abs(found.statistics.accepted - plain.statistics.accepted) <= 5


def test_algebraic_equations_need_no_rows_of_zeros():
    mixing = np.array([[1.0, 2.0, 0.5], [0.3, 1.0, -1.0], [2.0, 0.1, 1.0]])

    def mixed(t, y):
        return mixing @ np.array(conserved_robertson(t, y))

    problem = sn.ODE(conserved_robertson, [1.0, 0.0, 0.4], (0.0, 40.0), mass=HALF)
    other = sn.ODE(mixed, [1.0, 0.0, 0.4], (0.0, 40.0), mass=mixing @ HALF)
    wanted, found = (sn.solve(each, "radau5", rtol=1e-8, atol=1e-12).y[-1] for each in (problem, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def pendulum(t, y, k):
    return [y[1], -k * np.sin(y[0]) * y[2], 2.0 + 0.2 * np.cos(t) * y[0] ** 2 - y[2] - y[2] ** 3]


LINKED = sn.ODE(pendulum, [1.0, 0.2, 1.5], (0.0, 2.0), (0.8,), mass=HALF)


def follow_pendulum(t, y):
    """The same without the algebraic unknown, which is the root of a cubic equation."""
    right = 2.0 + 0.2 * np.cos(t) * y[0] ** 2
    root = np.sqrt(right**2 / 4 + 1 / 27)
    return [y[1], -0.8 * np.sin(y[0]) * (np.cbrt(right / 2 + root) + np.cbrt(right / 2 - root))]


@cache
def swung() -> np.ndarray:
    return solve_ivp(follow_pendulum, (0.0, 2.0), [1.0, 0.2], "DOP853", rtol=1e-13, atol=1e-14).y[:, -1]


@pytest.mark.parametrize("scheme", ALGEBRAIC)
def test_schemes_keep_their_order_for_differential_unknowns(scheme):
    record = catalogue.get(scheme)
    counts = np.array([8, 16] if record.order > 4 else [20, 40])
    errors = [np.abs(sn.solve(LINKED, scheme, steps=int(n)).y[-1, :2] - swung()).max() for n in counts]
    measured = np.log2(errors[0] / errors[1])
    print(f"{scheme}: {measured:.2f}, errors {errors}")
    assert measured > record.order - 0.5 or errors[1] < 1e-12


def test_which_schemes_admit_a_singular_mass_follows_from_their_numbers():
    implicit = [name for name in FIXED_STEPS if is_implicit(catalogue.get(name))]
    admitted = {name for name in implicit if find_mass_refusal(catalogue.get(name), is_singular=True) is None}
    assert set(ALGEBRAIC) <= admitted
    assert not admitted & {"gauss4", "gauss6", "implicit_midpoint", "lobatto_iiib4", "ros3p"}
    for name in ("gauss4", "ros3p", "dopri5", "ab2"):
        with pytest.raises(TypeError, match="singular"):
            sn.solve(LINKED, name, steps=10)


@pytest.mark.parametrize("scheme", ["auto", "lsoda"])
def test_schemes_that_switch_refuse_a_mass(scheme):
    for mass in (HALF, REGULAR):
        with pytest.raises(TypeError, match=f"`mass` is .* {scheme} switches"):
            sn.solve(sn.ODE(pendulum, [1.0, 0.2, 0.0], (0.0, 2.0), (0.8,), mass=mass), scheme)


def test_start_values_are_made_consistent_and_differential_ones_are_kept():
    solution = sn.solve(LINKED, "radau5")
    y = solution.y[0]
    assert y[:2].tolist() == [1.0, 0.2]
    assert abs(pendulum(0.0, y, 0.8)[2]) < ROUNDING
    again = sn.solve(sn.ODE(pendulum, y, (0.0, 2.0), (0.8,), mass=HALF), "radau5")
    np.testing.assert_array_equal(again.y, solution.y)


WRONG_STARTS = {
    "no solution": (lambda t, y: [y[1], y[0] ** 2 + y[1] ** 2 + 1.0], "was found from `y0`"),
    "index two": (lambda t, y: [y[1], y[0] - np.sin(t)], "index is greater than one"),
}


@pytest.mark.parametrize("name", WRONG_STARTS)
def test_an_inconsistent_start_is_refused_with_the_reason(name):
    fun, message = WRONG_STARTS[name]
    problem = sn.ODE(fun, [1.0, 1.0], (0.0, 1.0), mass=np.diag([1.0, 0.0]))
    solution = sn.solve(problem, "radau5", check=False)
    assert solution.status is Status.NOT_SOLVED
    assert message in solution.message
    assert solution.y.shape == (0, 2)
    with pytest.raises(sn.SolveFailed, match=message):
        sn.solve(problem, "rodas4")
    with pytest.raises(RuntimeError, match=message):
        sn.start(problem, "rodas4")


def test_bad_mass_matrices_are_refused():
    def build(mass, y0=(1.0, 2.0)):
        return sn.ODE(lambda t, y: -y, y0, (0.0, 1.0), mass=mass)

    with pytest.raises(ValueError, match="`mass` must have shape"):
        build(np.eye(3))
    with pytest.raises(ValueError, match="`mass` must be finite"):
        build(np.diag([1.0, np.nan]))
    with pytest.raises(TypeError, match="`mass` must be real"):
        build(1j * np.eye(2))
    with pytest.raises(TypeError, match="float64"):
        build(np.eye(2), np.ones(2, np.float32))
    with pytest.raises(TypeError, match="`mass` must be a matrix"):
        build("mass")
    with pytest.raises(ValueError, match="linearly dependent"):
        sn.solve(build(np.array([[1.0, 2.0, 0], [2.0, 4.0, 0], [0, 0, 0]]), np.ones(3)), "radau5")


# ---- derivatives ----------------------------------------------------------------------------------------------------

REGULAR = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.2, 4.0]])


def read(y):
    return y[0] * y[1] + y[2] ** 2


def differentiate_centrally(mass, scheme: str) -> np.ndarray:
    """By y0 and the argument."""

    def value(x):
        problem = sn.ODE(pendulum, x[:3], (0.0, 2.0), (x[3],), mass=mass)
        return read(sn.solve(problem, scheme, steps=20, save_every=0).y[-1])

    x, h = np.array([*LINKED.y0, 0.8]), 1e-5
    return np.array([(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(4)])


@pytest.mark.parametrize("mass", [HALF, REGULAR], ids=["singular", "regular"])
@pytest.mark.parametrize("scheme", ["radau5", "sdirk4", "lobatto_iiic4", "kvaerno5", "rodas4", "dopri5"])
def test_gradients_are_exact_or_refused(scheme, mass):
    problem = sn.ODE(pendulum, LINKED.y0, (0.0, 2.0), (0.8,), mass=mass)
    if mass is HALF and scheme not in ("radau5", "sdirk4", "lobatto_iiic4"):
        expected = TypeError if scheme == "dopri5" else sn.NoDerivative
        with pytest.raises(expected, match="singular"):
            sn.gradient(problem, scheme, read, steps=20)
        return
    found = sn.gradient(problem, scheme, read, steps=20)
    wanted = differentiate_centrally(mass, scheme)
    np.testing.assert_allclose([*found.y0, found.args[0]], wanted, rtol=0, atol=CENTRAL * np.abs(wanted).max())
    few = sn.gradient(problem, scheme, read, steps=20, memory=sn.Checkpoints(3))
    np.testing.assert_allclose(few.y0, found.y0, rtol=1e-12, atol=1e-14)
    along = sn.tangent(problem, scheme, y0=[0.3, -0.2, 0.0], args=(0.5,), steps=20)
    slope = np.array([along.y[1], along.y[0], 2 * along.y[2]]) @ along.dy
    assert abs(slope - found.y0 @ [0.3, -0.2, 0.0] - 0.5 * found.args[0]) < 1e-10


@pytest.mark.parametrize("scheme", ["radau5", "rodas4"])
def test_members_of_an_ensemble_have_mass_matrices(scheme):
    starts = LINKED.y0 + 0.1 * np.random.default_rng(0).standard_normal((6, 3))
    found = sn.solve_ensemble(LINKED, scheme, y0=starts, rtol=1e-7)
    alone = sn.solve(sn.ODE(pendulum, starts[4], (0.0, 2.0), (0.8,), mass=HALF), scheme, rtol=1e-7)
    np.testing.assert_array_equal(found.y[4, -1] if found.y.ndim == 3 else found.y[4], alone.y[-1])


def test_studies_of_stability_refuse_a_mass_matrix():
    with pytest.raises(TypeError, match="`mass`"):
        sn.stability.equilibrium(LINKED)


def test_stored_runs_know_their_mass(tmp_path):
    file = tmp_path / "run.npz"
    run = sn.start(LINKED, "radau5").run_to(1.0)
    run.save(file)
    np.testing.assert_array_equal(sn.start(LINKED, "radau5", restore=file).run_to(2.0).y, run.run_to(2.0).y)
    other = sn.ODE(pendulum, LINKED.y0, (0.0, 2.0), (0.8,), mass=2 * HALF)
    with pytest.raises(ValueError, match="another problem"):
        sn.start(other, "radau5", restore=file)
