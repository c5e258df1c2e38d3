"""What symplectic and symmetric schemes preserve and others do not: momenta, the form, mean energy, reversibility.

Long runs use the compiled engine; single steps the plain executor in extended precision.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from executor import applies, newest, parts_of, real, slope_of, step_jacobian, stepper, trajectory
from problems import (
    coupled_ode,
    coupled_partitioned,
    coupled_second_order,
    driven_hamiltonian,
    henon_heiles,
    henon_heiles_energy,
    henon_heiles_second_order,
    kepler,
    kepler_energy,
    kepler_momentum,
    kepler_second_order,
)
from scheme_names import FIXED_STEPS

import stepnet
from stepnet.schemes import (
    Butcher,
    ExponentialRK,
    FixedBDF,
    Multistep,
    PartitionedRK,
    SemiImplicitBDF,
    Splitting,
    conditions,
    get,
)

OF_SUMS = (SemiImplicitBDF, ExponentialRK)  # which take no equation without parts
NAMES = [name for name in FIXED_STEPS if not isinstance(get(name), OF_SUMS)]
SPLITTINGS = [name for name in NAMES if isinstance(get(name), Splitting)]
SYMPLECTIC = [name for name in NAMES if conditions.is_symplectic(get(name))]
MULTISTEP = [name for name in NAMES if isinstance(get(name), Multistep)]
BACKWARD_DIFFERENCES = [name for name in NAMES if isinstance(get(name), FixedBDF)]
ONE_STEP = [name for name in NAMES if name not in (*MULTISTEP, *BACKWARD_DIFFERENCES)]
RUNGE_KUTTA = [name for name in ONE_STEP if name not in SPLITTINGS]
LOBATTO_PAIRS = [name for name in RUNGE_KUTTA if isinstance(get(name), PartitionedRK)]  # test_lobatto_pairs
SYMPLECTIC_TABLEAUX = [name for name in RUNGE_KUTTA if name in SYMPLECTIC and name not in LOBATTO_PAIRS]

LONG = 100_000
ECCENTRICITY, KEPLER_STEP = 0.6, 0.05
ENERGY, HENON_HEILES_STEP = 1 / 12, 0.1

COEFFICIENT_ROUNDING = 1e-13  # coefficients rounded to float64, over 200 steps
MOMENTUM_ROUNDING = 1e-12  # a random walk of 10^5 roundings reaches 7e-14 (measured: 1e-13), a bias would reach 2e-11
ENERGY_ROUNDING = 3e-14  # the same walk for H of order 0.1 to 1, with room for 10 roundings in a step
DRIFT = 0.05  # of the oscillation
EXTENDED_ROUNDING = 1e-15  # longdouble steps with coefficients that add up to 1 within 1e-16
NOTICEABLE = 1e-11  # what order 9 leaves undone at the long steps used here; the others leave more


# ---- long runs ------------------------------------------------------------------------------------------------------


def orbit(name: str, t_end: float):
    """Kepler's problem in the form that the scheme is made for."""
    return (kepler if applies(kepler(0.5), get(name)) else kepler_second_order)(ECCENTRICITY, t_end)


def galaxy(name: str, t_end: float):
    """Henon and Heiles' problem likewise."""
    problem = henon_heiles if applies(kepler(0.5), get(name)) else henon_heiles_second_order
    return problem(ENERGY, t_end)


@cache
def long_orbit(name: str) -> np.ndarray:
    return stepnet.solve(orbit(name, LONG * KEPLER_STEP), name, steps=LONG).y


def drift_and_oscillation(energies: np.ndarray) -> tuple[float, float]:
    """Mean over the last tenth minus mean over the first, and the range of the first."""
    tenth = len(energies) // 10
    first, last = energies[:tenth], energies[-tenth:]
    return float(last.mean() - first.mean()), float(np.ptp(first))


def allowed(oscillation: float) -> float:
    return DRIFT * oscillation + ENERGY_ROUNDING


@pytest.mark.parametrize("name", SPLITTINGS)
def test_splittings_keep_angular_momentum_to_rounding(name):
    momentum = kepler_momentum(long_orbit(name))
    worst = np.max(np.abs(momentum / momentum[0] - 1))
    print(f"{name}: angular momentum off by {worst:.1e} in {LONG} steps")
    assert worst < MOMENTUM_ROUNDING


@pytest.mark.parametrize("name", SYMPLECTIC)
def test_symplectic_schemes_show_no_energy_drift_on_kepler(name):
    drift, oscillation = drift_and_oscillation(kepler_energy(long_orbit(name)))
    print(f"{name}: Kepler, drift {drift:+.1e}, {drift / oscillation:+.4f} of the oscillation {oscillation:.1e}")
    assert abs(drift) < allowed(oscillation)


def galaxy_drift(name: str, h: float) -> tuple[float, float]:
    states = stepnet.solve(galaxy(name, LONG * h), name, steps=LONG).y
    drift, oscillation = drift_and_oscillation(henon_heiles_energy(states))
    print(f"{name}: Henon-Heiles, h = {h}, drift {drift:+.1e}, {drift / oscillation:+.4f} of {oscillation:.1e}")
    return drift, oscillation


@pytest.mark.parametrize("name", SYMPLECTIC)
def test_symplectic_schemes_show_no_energy_drift_on_henon_heiles(name):
    """Where the oscillation is lost in rounding, also with longer steps, until it is not."""
    h = HENON_HEILES_STEP
    drift, oscillation = galaxy_drift(name, h)
    assert abs(drift) < allowed(oscillation)
    while DRIFT * oscillation < ENERGY_ROUNDING:
        h *= 2
        drift, oscillation = galaxy_drift(name, h)
    assert abs(drift) < DRIFT * oscillation


@pytest.mark.parametrize("name", ["rk4", "dopri5", "verner65", "dop853"])
def test_other_schemes_do_drift_by_the_same_measure(name):
    drift, oscillation = drift_and_oscillation(kepler_energy(long_orbit(name)))
    assert abs(drift) > 5 * oscillation
    drift, oscillation = galaxy_drift(name, HENON_HEILES_STEP)
    assert abs(drift) > 5 * oscillation > allowed(oscillation)


def test_explicit_euler_gains_energy():
    """Hairer, Lubich & Wanner, I.2: with h = 0.0005 to T = 200 the energy goes from -0.5 to about -0.31."""
    energies = kepler_energy(stepnet.solve(orbit("euler", 200.0), "euler", steps=400_000).y)
    gains = [energies[100_000 * k] - energies[0] for k in (1, 2, 4)]
    assert gains == pytest.approx([7.7e-2, 0.121, 0.189], rel=0.01)


def energy_error(name: str, h: float, t_end: float) -> float:
    """max |H - H_0| on Kepler's problem."""
    energies = kepler_energy(stepnet.solve(orbit(name, t_end), name, steps=round(t_end / h)).y)
    return float(np.max(np.abs(energies - energies[0])))


PRINTED = 0.01  # the table gives three digits
TABLE = [
    ("symplectic_euler_drift", 0.05, 9.66e-2),
    ("verlet", 0.05, 9.39e-3),
    ("verlet", 0.025, 2.32e-3),
    ("yoshida4", 0.05, 2.94e-4),
    ("yoshida4", 0.025, 1.93e-5),
]


@pytest.mark.parametrize(("name", "h", "expected"), TABLE)
def test_energy_errors_are_flat_and_as_published(name, h, expected):
    errors = [energy_error(name, h, t_end) for t_end in (50.0, 100.0, 200.0)]
    assert errors == pytest.approx([expected] * 3, rel=PRINTED)


def test_energy_error_of_the_classical_scheme_grows_linearly():
    errors = [energy_error("rk4", 0.05, t_end) for t_end in (50.0, 100.0, 200.0, 2000.0)]
    print(f"rk4 at T = 50, 100, 200, 2000: {errors}, ratio {errors[2] / errors[1]:.3f}")
    assert errors == pytest.approx([2.7e-4, 5.4e-4, 1.08e-3, 1.08e-2], rel=0.02)  # printed with two digits
    assert errors[2] / errors[1] == pytest.approx(2, abs=0.05)
    assert errors[3] > energy_error("verlet", 0.05, 2000.0)


def test_two_step_leapfrog_has_the_positions_of_verlet():
    """Its recursion adds h^2 a to differences, so rounding grows with the square of the number of steps: 1000^2 eps."""
    problem = henon_heiles_second_order(ENERGY, 1000 * HENON_HEILES_STEP)
    two_step, verlet = (stepnet.solve(problem, name, steps=1000) for name in ("leapfrog_two_step", "verlet"))
    assert np.max(np.abs(two_step.q - verlet.q)) < 1e-11
    assert np.max(np.abs(two_step.v - verlet.v)) < 1e-11


# ---- the symplectic form --------------------------------------------------------------------------------------------

OMEGA = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.eye(2), np.zeros((2, 2))]])
HAMILTONIAN = {"kepler": kepler_second_order(ECCENTRICITY), "driven": driven_hamiltonian()}


def form_defect(problem, scheme, h: float = 0.2) -> float:
    """max |J' Omega J - Omega| of one step."""
    J = step_jacobian(stepper(problem, scheme), real(0.3), real(h), real(problem.initial))
    return float(np.max(np.abs(J.T @ OMEGA @ J - OMEGA)))


@pytest.mark.parametrize("form", HAMILTONIAN)
@pytest.mark.parametrize("name", ONE_STEP)
def test_steps_keep_the_symplectic_form_if_and_only_if_the_numbers_say_so(name, form):
    scheme, problem = get(name), HAMILTONIAN[form]
    if conditions.is_symplectic(scheme) and applies(problem, scheme):
        assert form_defect(problem, scheme) < EXTENDED_ROUNDING
    elif applies(problem, scheme):
        assert form_defect(problem, scheme, h=0.5) > NOTICEABLE


# ---- implicit midpoint and Gauss: all quadratic invariants ----------------------------------------------------------

R3 = 3**0.5
IMPLICIT_MIDPOINT = Butcher(np.array([[0.5]]), np.array([1.0]), np.array([0.5]))
GAUSS2 = Butcher(
    np.array([[1 / 4, 1 / 4 - R3 / 6], [1 / 4 + R3 / 6, 1 / 4]]),
    np.array([0.5, 0.5]),
    np.array([1 / 2 - R3 / 6, 1 / 2 + R3 / 6]),
)
INERTIA = np.array([0.6, 0.8, 1.0])


def rigid_slope(t, y):
    """Euler's equations: y' = y x (y / inertia)."""
    a, b, c = y[0] / 0.6, y[1] / 0.8, y[2]
    return np.array([y[1] * c - y[2] * b, y[2] * a - y[0] * c, y[0] * b - y[1] * a])


def quadratic_errors(scheme, h: float, steps: int) -> np.ndarray:
    """How far |y|^2 and the energy y . (y / inertia) of the body go, both quadratic."""
    body = stepnet.ODE(rigid_slope, [np.cos(1.1), 0.0, np.sin(1.1)], (0.0, h * steps))
    y = trajectory(body, scheme, steps)
    invariants = np.stack((np.sum(y**2, axis=1), np.sum(y**2 / INERTIA, axis=1)))
    return np.max(np.abs(invariants - invariants[:, :1]), axis=1)


@pytest.mark.parametrize("name", SYMPLECTIC_TABLEAUX)
def test_symplectic_schemes_of_the_catalogue_keep_all_quadratic_invariants(name):
    assert np.all(quadratic_errors(get(name), 0.2, 200) < COEFFICIENT_ROUNDING)
    assert form_defect(driven_hamiltonian(), get(name)) < COEFFICIENT_ROUNDING


@pytest.mark.parametrize("table", [IMPLICIT_MIDPOINT, GAUSS2], ids=["implicit_midpoint", "gauss2"])
def test_symplectic_tableaux_keep_all_quadratic_invariants(table):
    assert conditions.is_symplectic(table)
    assert np.all(quadratic_errors(table, 0.2, 200) < EXTENDED_ROUNDING)
    assert form_defect(driven_hamiltonian(), table) < EXTENDED_ROUNDING


@pytest.mark.parametrize("name", [name for name in RUNGE_KUTTA if conditions.is_explicit(get(name))])
def test_explicit_tableaux_do_not(name):
    assert np.all(quadratic_errors(get(name), 1.6, 5) > NOTICEABLE)


def test_implicit_midpoint_has_the_published_energy_error():
    y = trajectory(orbit("rk4", 50.0), IMPLICIT_MIDPOINT, 1000)
    energies = kepler_energy(y)
    assert np.max(np.abs(energies - energies[0])) == pytest.approx(1.06e-2, rel=PRINTED)
    assert np.max(np.abs(kepler_momentum(y) / kepler_momentum(y[0]) - 1)) < EXTENDED_ROUNDING


@pytest.mark.parametrize("name", SPLITTINGS)
def test_splittings_keep_bilinear_invariants_but_not_all_quadratic_ones(name):
    """On q'' = -q, plane: q x p is bilinear and kept, the energy (q^2 + p^2) / 2 is not."""
    problem = stepnet.SecondOrder(lambda t, q: -q, [1.0, 0.2], [0.3, 0.7], (0.0, 20.0))
    y = trajectory(problem, get(name), 40)
    momentum, energies = kepler_momentum(y), np.sum(y**2, axis=1) / 2
    assert np.max(np.abs(momentum - momentum[0])) < EXTENDED_ROUNDING
    assert np.max(np.abs(energies - energies[0])) > NOTICEABLE


# ---- the way back ---------------------------------------------------------------------------------------------------


def return_error(problem, scheme, h: float = 0.5) -> float:
    """Distance to the start after a step forward and a step with -h."""
    step, t, h, y = stepper(problem, scheme), real(0.2), real(h), real(problem.initial)
    return float(np.max(np.abs(step(t + h, -h, step(t, h, y)) - y)))


@pytest.mark.parametrize("name", ONE_STEP)
def test_symmetric_schemes_and_only_these_find_the_way_back(name):
    scheme = get(name)
    for problem in (coupled_ode(), coupled_partitioned(), coupled_second_order()):
        if applies(problem, scheme) and conditions.is_symmetric(scheme):
            assert return_error(problem, scheme) < EXTENDED_ROUNDING
        elif applies(problem, scheme):
            assert return_error(problem, scheme) > NOTICEABLE


@pytest.mark.parametrize("name", MULTISTEP)
def test_symmetric_recursions_and_only_these_run_backward(name):
    """From the newest states in reversed order and with -h the recursion gives the one before them."""
    scheme, problem = get(name), coupled_second_order()
    d, k = scheme.derivative, scheme.n_steps
    h = problem.t_span[1] / real(10)
    states = trajectory(problem, scheme, 10)[:, : 4 // d]
    slope = parts_of(problem)[1] if d == 2 else slope_of(problem)
    slopes = [slope(i * h, y) for i, y in enumerate(states)]
    before = newest(scheme.alpha, states[k:0:-1]) + (-h) ** d * newest(scheme.beta, slopes[k:0:-1])
    distance = np.max(np.abs(before - states[0]))
    assert (distance < EXTENDED_ROUNDING) == conditions.is_symmetric(scheme)
    assert (distance > NOTICEABLE) != conditions.is_symmetric(scheme)


@pytest.mark.parametrize("name", [name for name in SPLITTINGS if conditions.is_symmetric(get(name))])
def test_symmetric_splittings_find_the_way_back_over_a_long_run(name):
    """The engine there and back over 1000 steps; the orbits do not grow errors, so only rounding is left."""
    there = stepnet.solve(henon_heiles_second_order(ENERGY, 100.0), name, steps=1000)
    back = stepnet.SecondOrder(there.problem.acceleration, there.q[-1], there.v[-1], (100.0, 0.0))
    assert np.max(np.abs(stepnet.solve(back, name, steps=1000).y[-1] - there.y[0])) < MOMENTUM_ROUNDING


def test_every_scheme_is_looked_at():
    assert {*ONE_STEP, *MULTISTEP, *BACKWARD_DIFFERENCES} == set(NAMES)
    assert {*SPLITTINGS, *SYMPLECTIC_TABLEAUX, *LOBATTO_PAIRS} == set(SYMPLECTIC)
    n_symmetric = sum(conditions.is_symmetric(get(name)) for name in NAMES)
    print(f"{len(NAMES)} schemes: {len(SYMPLECTIC)} symplectic, {n_symmetric} symmetric, {len(RUNGE_KUTTA)} neither")
