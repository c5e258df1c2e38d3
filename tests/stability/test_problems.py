"""Studies of problems have the values of closed forms and of the literature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import mathieu_a, mathieu_b

import stepnet as sn
from stepnet.stability import (
    continuation,
    drift,
    equilibrium,
    floquet,
    lyapunov_field,
    poincare_section,
    reversibility_error,
    spectra,
    symplecticity_error,
)

NEWTON = 1e-10  # relative, of states and special points found by Newton's method and root finding
ROUNDING = 1e-12  # of single evaluations and of reversed or symplectic runs of some hundred steps
CHEBYSHEV = 16  # points on an interval, of a smooth solution: errors are below 1e-8


def oscillator(t, q):
    return -q


def lorenz(t, y, rho):
    return [10 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def brusselator(t, y, A, B):
    return [A + y[0] ** 2 * y[1] - (B + 1) * y[0], B * y[0] - y[0] ** 2 * y[1]]


# ---- spectra --------------------------------------------------------------------------------------------------------


def test_spectra_of_linear_problems_are_their_eigenvalues():
    A = np.array([[-1.0, 3.0], [0.0, -50.0]])
    found = spectra(sn.ODE(lambda t, y: A @ y, [1.0, 1.0], (0.0, 1.0)), "rk4", steps=30, samples=7)
    assert found.eigenvalues.shape == (7, 2)
    np.testing.assert_allclose(found.eigenvalues, [[-1.0, -50.0]] * 7, rtol=ROUNDING)
    np.testing.assert_allclose(found.stiffness_ratios, 50.0, rtol=ROUNDING)
    np.testing.assert_allclose(found.log_norms, np.linalg.eigvalsh((A + A.T) / 2)[-1], rtol=ROUNDING)
    np.testing.assert_allclose(found.z, found.eigenvalues / 30)
    assert found.is_stable.all()  # 50 / 30 < 2.785
    assert not spectra(sn.ODE(lambda t, y: A @ y, [1.0, 1.0], (0.0, 1.0)), "rk4", steps=17).is_stable.any()


def test_growing_directions_are_not_unstable_steps():
    problem = sn.ODE(lambda t, y: [y[0], -y[1]], [1.0, 1.0], (0.0, 1.0))
    assert spectra(problem, "rk4", steps=10).is_stable.all()


@pytest.mark.parametrize(("steps", "is_stable"), [(11, True), (9, False)])
def test_partitioned_problems_are_placed_on_the_interval_of_their_scheme(steps, is_stable):
    """Verlet is stable up to h omega = 2."""
    problem = sn.SecondOrder(lambda t, q: -400 * q, [1.0], [0.0], (0.0, 1.0))
    found = spectra(problem, "verlet", steps=steps)
    np.testing.assert_allclose(found.eigenvalues, [[20j, -20j]] * steps, atol=ROUNDING)
    assert found.is_stable.all() == is_stable


def test_the_stiffness_ratio_is_undefined_where_nothing_decays():
    problem = sn.SecondOrder(oscillator, [1.0], [0.0], (0.0, 1.0))
    assert np.isnan(spectra(problem, "verlet", steps=3).stiffness_ratios).all()


# ---- equilibria and branches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "kind"),
    [
        ([[-1, 0], [0, -2]], "stable node"), ([[-1, 2], [-2, -1]], "stable focus"), ([[1, 0], [0, -2]], "saddle"),
        ([[1, 0], [0, 2]], "unstable node"), ([[1, 2], [-2, 1]], "unstable focus"), ([[0, 1], [-1, 0]], "centre"),
        ([[0, 0], [0, -1]], "degenerate"), ([[1, 0, 0], [0, -1, 2], [0, -2, -1]], "saddle focus"),
    ],
)  # fmt: skip
def test_equilibria_of_linear_problems_have_the_types_of_the_books(matrix, kind):
    A = np.array(matrix, float)
    found = equilibrium(sn.ODE(lambda t, y: A @ y, np.zeros(len(A)), (0.0, 1.0)))
    assert found.kind == kind
    assert found.is_stable == kind.startswith("stable")


def test_lorenz_has_its_three_equilibria():
    problem = sn.ODE(lorenz, [0.1, 0.1, 0.1], (0.0, 1.0), (28.0,))
    side = np.sqrt(8 / 3 * 27)
    for start, end in (([0.1] * 3, [0, 0, 0]), ([9, 9, 25], [side, side, 27]), ([-9, -9, 25], [-side, -side, 27])):
        np.testing.assert_allclose(equilibrium(problem, start).y, end, atol=NEWTON)


def test_equilibria_of_every_form_are_found():
    pendulum = {"q0": [3.0], "t_span": (0.0, 1.0)}
    forms = [
        sn.SecondOrder(lambda t, q: -np.sin(q), v0=[0.1], **pendulum),
        sn.Partitioned(lambda t, p: p, lambda t, q: -np.sin(q), p0=[0.1], **pendulum),
        sn.Partitioned(lambda t, q, p: p, lambda t, q, p: -np.sin(q), p0=[0.1], separable=False, **pendulum),
        sn.Split((lambda t, y: [y[1], 0 * y[0]], lambda t, y: [0 * y[0], -np.sin(y[0])]), [3.0, 0.1], (0.0, 1.0)),
    ]
    for problem in forms:
        found = equilibrium(problem)
        np.testing.assert_allclose(found.y, [np.pi, 0], atol=NEWTON)
        assert found.kind == "saddle"


@pytest.mark.parametrize("A", [0.7, 1.0, 1.7])
def test_the_brusselator_has_its_hopf_point(A):
    """B = 1 + A^2 with frequency A; Hairer, Norsett & Wanner (1993), I.16."""
    problem = sn.ODE(brusselator, [A, 1 / A], (0.0, 1.0), (A, 1.0))
    found = continuation(problem, "B", 6.0)
    (hopf,) = found.special
    assert hopf.kind == "hopf"
    assert hopf.parameter == pytest.approx(1 + A**2, abs=NEWTON)
    assert hopf.frequency == pytest.approx(A, abs=NEWTON)
    np.testing.assert_allclose(found.states[:, 0], A, atol=NEWTON)
    np.testing.assert_array_equal(found.is_stable, found.parameters < 1 + A**2)
    assert found.parameters[[0, -1]].tolist() == [1.0, 6.0]


def bratu(N):
    """u'' + lambda e^u = 0 with u = 0 at the ends of an interval of length one, at Chebyshev points."""
    x = np.cos(np.pi * np.arange(N + 1) / N)
    c = np.r_[2.0, np.ones(N - 1), 2.0] * (-1.0) ** np.arange(N + 1)
    D = np.outer(c, 1 / c) / (x[:, None] - x + np.eye(N + 1))
    D -= np.diag(D.sum(axis=1))
    second = 4 * (D @ D)[1:-1, 1:-1]
    return sn.ODE(lambda t, u, lam: second @ u + lam * np.exp(u), np.zeros(N - 1), (0.0, 1.0), (0.5,))


def test_the_bratu_problem_has_its_fold():
    """8 (theta / cosh theta)^2 with theta tanh theta = 1, 3.5138; the branch turns back there and loses stability."""
    theta = brentq(lambda x: x * np.tanh(x) - 1, 1.0, 1.5, xtol=1e-15)
    found = continuation(bratu(CHEBYSHEV), "lam", 4.0, step=0.4)
    (fold,) = found.special
    assert fold.kind == "fold"
    assert fold.parameter == pytest.approx(8 * (theta / np.cosh(theta)) ** 2, abs=1e-8)
    turn = int(np.argmax(found.parameters))
    assert found.is_stable[: turn - 1].all()
    assert not found.is_stable[turn + 1 :].any()
    assert found.parameters[-1] == 0.5  # back at its first value


def test_hopf_points_of_lorenz():
    """rho = sigma (sigma + b + 3) / (sigma - b - 1) = 470 / 19."""
    problem = sn.ODE(lorenz, [5.0, 5.0, 10.0], (0.0, 1.0), (15.0,))
    (hopf,) = continuation(problem, "rho", 30.0).special
    assert hopf.parameter == pytest.approx(470 / 19, rel=NEWTON)


# ---- periodic solutions ---------------------------------------------------------------------------------------------


def mathieu(a, q):
    return sn.SecondOrder(lambda t, y, a, q: -(a - 2 * q * np.cos(2 * t)) * y, [0.0], [0.0], (0.0, np.pi), (a, q))


@pytest.mark.parametrize(("characteristic", "order", "trace"), [
    (mathieu_a, 0, 2), (mathieu_a, 1, -2), (mathieu_b, 1, -2), (mathieu_a, 2, 2), (mathieu_b, 2, 2)
])  # fmt: skip
def test_mathieu_is_periodic_at_its_characteristic_values(characteristic, order, trace):
    """Multipliers are both 1 or both -1 there; their sum is smooth in a, unlike themselves."""
    q = 0.8
    found = floquet(mathieu(characteristic(order, q), q), "blanes_moan6", steps=400)
    assert found.multipliers.sum().real == pytest.approx(trace, abs=1e-9)
    assert np.prod(found.multipliers).real == pytest.approx(1, abs=ROUNDING)


def test_mathieu_is_unstable_between_its_characteristic_values():
    q = 0.8
    for r in (1, 2):
        inside = 0.5 * (mathieu_a(r, q) + mathieu_b(r, q))
        found = floquet(mathieu(inside, q), "yoshida4", steps=400)
        assert not found.is_stable
        assert found.exponents.real.max() > 0.01
    assert floquet(mathieu(0.5 * (mathieu_a(1, q) + mathieu_b(2, q)), q), "yoshida4", steps=400).is_stable


def test_a_limit_cycle_has_a_multiplier_of_one():
    """r' = r (1 - r^2), theta' = 1: the other is exp(-2 T)."""

    def fun(t, y):
        rest = 1 - y[0] ** 2 - y[1] ** 2
        return [rest * y[0] - y[1], rest * y[1] + y[0]]

    found = floquet(sn.ODE(fun, [1.0, 0.0], (0.0, 2 * np.pi)), "dop853", rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.multipliers, [1, np.exp(-4 * np.pi)], atol=1e-8)
    assert found.is_stable


# ---- fields, sections, long runs ------------------------------------------------------------------------------------


def test_lyapunov_fields_have_the_stretching_of_linear_flows():
    """A shear over the time T is [[1, T], [0, 1]], whose largest singular value is known."""
    shear = sn.ODE(lambda t, y: [y[1], 0 * y[0]], [0.0, 0.0], (0.0, 2.0))
    found = lyapunov_field(shear, [-1.0, 0.0, 1.0], [0.0, 0.5], "rk4", steps=20)
    assert found.values.shape == (2, 3)
    np.testing.assert_allclose(found.values, np.log(np.linalg.norm([[1, 2], [0, 1]], 2)) / 2, rtol=1e-10)


def test_lyapunov_fields_of_partitioned_problems_are_those_of_first_order():
    x, y = [-1.0, 0.3], [0.0, 0.2]
    second = sn.SecondOrder(lambda t, q: -np.sin(q), [0.0], [0.0], (0.0, 3.0))
    first = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [0.0, 0.0], (0.0, 3.0))
    found = lyapunov_field(second, x, y, "yoshida8", steps=300)
    np.testing.assert_allclose(found.values, lyapunov_field(first, x, y, "rk4", steps=3000).values, atol=1e-9)


def test_sections_of_an_ellipse_are_its_vertices():
    problem = sn.SecondOrder(oscillator, [0.0, 2.0], [1.0, 0.0], (0.0, 30.0))
    found = poincare_section(problem, lambda t, q, v: q[0], "blanes_moan6", steps=3000, transient=10.0)
    np.testing.assert_allclose(found.times, 2 * np.pi * np.arange(2, 5), atol=1e-8)
    np.testing.assert_allclose(found.points, [[0, 2, 1, 0]] * 3, atol=1e-8)
    both = poincare_section(problem, lambda t, q, v: q[0], "blanes_moan6", steps=3000, direction=0)
    assert len(both.times) > 1.9 * len(poincare_section(problem, lambda t, q, v: q[0], "rk4", steps=3000).times)


def energy(solution):
    return 0.5 * (solution.q[:, 0] ** 2 + solution.v[:, 0] ** 2)


def test_symplectic_schemes_do_not_drift_and_others_do():
    problem = sn.SecondOrder(oscillator, [1.0], [0.3], (0.0, 1000.0))
    runs = {name: drift(problem, name, {"energy": energy}, steps=10_000)[0] for name in ("verlet", "rk4", "euler")}
    assert not runs["verlet"].is_drifting
    assert runs["rk4"].is_drifting
    lost = -((1 - 0.1**6 / 72 + 0.1**8 / 576) ** 10_000 - 1)  # |R(ih)|^2 in each step
    assert -runs["rk4"].errors[-1] == pytest.approx(lost, rel=1e-9)
    assert runs["euler"].largest > 1e40


def test_structure_of_schemes_over_long_times():
    problem = sn.SecondOrder(lambda t, q: -(q**3), [1.0, 0.4], [0.0, 0.1], (0.0, 20.0))
    for name, is_symplectic in (("verlet", True), ("yoshida4", True), ("rk4", False)):
        assert (symplecticity_error(problem, name, steps=200) < 100 * ROUNDING) == is_symplectic
        assert (reversibility_error(problem, name, steps=200) < ROUNDING) == is_symplectic  # these are also symmetric


# ---- bad input ------------------------------------------------------------------------------------------------------

SUM = sn.Split((lambda t, y: -y, lambda t, y: -y), [1.0], (0.0, 1.0))
HARMONIC = sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 1.0))
DECAY = sn.ODE(lambda t, y, k: -k * y, [1.0], (0.0, 1.0), (1.0,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equilibrium(sn.ODE(lambda t, y: y * y + 1, [1.0], (0.0, 1.0))), "`y` must be near an equilibrium"),
        (lambda: equilibrium(sn.ODE(in_place, [1.0], (0.0, 1.0))), "`problem` must have a right-hand side"),
        (lambda: equilibrium(DECAY, [1.0, 2.0]), "`y` must be 1 finite numbers"),
        (lambda: continuation(DECAY, "l", 2.0), "`argument` must be one of k"),
        (lambda: continuation(DECAY, "k", 1.0), "`end` must differ"),
        (lambda: floquet(DECAY, "rk4", steps=10), "`problem` must have a time span of one period, after which"),
        (lambda: floquet(sn.ODE(lambda t, y: -t * y, [0.0], (0.0, 1.0)), "rk4", steps=10), "period of its equation"),
        (lambda: lyapunov_field(DECAY, [0.0], [0.0], "rk4", steps=3), "`problem` must have a state of two"),
        (lambda: lyapunov_field(bratu(4), [0.0], [0.0], "rk4", components=(1, 1)), "`components` must be two"),
        (lambda: drift(DECAY, "rk4", lambda s: 1.0, steps=10), "`invariants` must give one number"),
        (lambda: symplecticity_error(DECAY, "rk4", steps=3), "`problem` must be a Partitioned or a SecondOrder"),
        (lambda: spectra("problem", "rk4"), "`problem` must be a"),
        (lambda: spectra(DECAY, "bdf"), "`scheme` must have one stability function"),
        (lambda: spectra(DECAY, "euler_maruyama", steps=3), "`scheme` must be a scheme for ordinary"),
        (lambda: spectra(SUM, "ars343", steps=3), "`scheme` must take the sum of the parts"),
        (lambda: spectra(SUM, "strang", steps=3), "`scheme` must take the sum of the parts"),
        (lambda: floquet(DECAY, "bdf"), "bdf chooses its order.*no exact derivative"),
        (lambda: symplecticity_error(HARMONIC, "lsoda"), "lsoda chooses its scheme.*no exact derivative"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def in_place(t, y, dy):
    dy[0] = -y[0]


def test_floquet_multipliers_of_a_scalar_equation_whose_jacobian_vanishes_at_the_beginning():
    found = floquet(sn.ODE(lambda t, y: np.sin(t) * y, [1.0], (0.0, 2 * np.pi)), "rk4", steps=200)
    assert found.multipliers[0] == pytest.approx(1.0, abs=1e-8)
    assert not found.has_free_phase


def test_a_limit_cycle_is_stable_although_one_multiplier_is_not_exactly_one():
    """Van der Pol's cycle with a loose tolerance: the multiplier of the free phase is 1.01."""
    problem = sn.ODE(lambda t, y: [y[1], (1 - y[0] ** 2) * y[1] - y[0]], [2.00861986, 0.0], (0.0, 6.66328686))
    found = floquet(problem, "dopri5", rtol=1e-4, atol=1e-4)
    assert found.has_free_phase
    assert abs(found.multipliers[0]) > 1.001
    assert found.is_stable


@pytest.mark.parametrize(("name", "value"), [("save_at", [1.0]), ("save_every", 2)])
def test_save_times_that_hide_steps_are_refused(name, value):
    problem, options = sn.SecondOrder(oscillator, [1.0], [0.0], (0.0, 1.0)), {name: value}
    for study in (spectra, lambda *all, **named: drift(*all, lambda s: s.q[:, 0], **named)):
        with pytest.raises(TypeError, match=f"`{name}`"):
            study(problem, "verlet", steps=10, **options)


def test_studies_refuse_complex_states_and_invariants_that_are_not_finite():
    rotation = sn.ODE(lambda t, y: 1j * y, np.array([1.0 + 0.0j]), (0.0, 2.0))
    with pytest.raises(TypeError, match="`problem` must have a real state"):
        equilibrium(rotation)
    line = sn.SecondOrder(oscillator, [1.0], [0.0], (0.0, 1.0))
    with pytest.raises(ValueError, match="`invariants` must give finite numbers"):
        drift(line, "verlet", lambda s: s.q[:, 0] * np.nan, steps=10)
    with pytest.raises(TypeError, match="`steps` must be an integer"):
        drift(line, "verlet", lambda s: s.q[:, 0], steps=[0.0, 1.0])
