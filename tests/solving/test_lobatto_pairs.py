"""Lobatto pairs on Hamiltonians that are not separable: the symplectic form, the energy, the way back, Verlet."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn

NAMES = ["lobatto_iiia_iiib2", "lobatto_iiia_iiib4", "lobatto_iiia_iiib6", "lobatto_iiia_iiib(5)"]
FORM = 1e-12
WAY_BACK = 1e-12  # rounding of 2 x 40 steps
SAME_STEPS = 1e-14  # the same formulas, rounded otherwise
Q0, P0 = [0.4, -0.2], [0.3, 0.5]
DRIFT = 0.05  # of the oscillation
ENERGY_ROUNDING = 2e-12  # 10^5 steps whose stages are solved to a few units of rounding of a state of size 1

over_pairs = pytest.mark.parametrize("name", NAMES)


def dq(t, q, p, a):
    """dH/dp of H = (1 + q1^2) p1^2 / 2 + p2^2 / 2 + a q1 p2 + (q1^2 + q2^2 + q1^2 q2) / 2."""
    return [(1 + q[0] * q[0]) * p[0], p[1] + a * q[0]]


def dp(t, q, p, a):
    return [-q[0] * p[0] * p[0] - a * p[1] - q[0] - q[0] * q[1], -q[1] - 0.5 * q[0] * q[0]]


def energy(y, a=0.3):
    q1, q2, p1, p2 = y.T
    return (1 + q1**2) * p1**2 / 2 + p2**2 / 2 + a * q1 * p2 + (q1**2 + q2**2 + q1**2 * q2) / 2


def build(t_span=(0.0, 4.0), state=(*Q0, *P0)):
    return sn.Partitioned(dq, dp, state[:2], state[2:], t_span, (0.3,), separable=False)


@over_pairs
def test_the_jacobian_of_a_run_is_symplectic(name):
    D, J = sn.jacobian(build(), name, steps=20).y0, np.kron([[0, 1], [-1, 0]], np.eye(2))
    assert np.max(np.abs(D.T @ J @ D - J)) < FORM


@over_pairs
def test_a_run_with_steps_of_the_other_sign_goes_back(name):
    there = sn.solve(build(), name, steps=40, save_every=0).y[-1]
    back = sn.solve(build((4.0, 0.0), there), name, steps=40, save_every=0).y[-1]
    assert np.max(np.abs(back - [*Q0, *P0])) < WAY_BACK


@pytest.mark.parametrize("separable", [True, False])
def test_two_stages_take_the_steps_of_verlet_where_the_hamiltonian_is_separable(separable):
    """The force may depend on time, which is that of q in both."""
    speed, force = (lambda t, p: p + 0.1 * p**3), (lambda t, q: -np.sin(q + t))
    plain = sn.Partitioned(speed, force, Q0, P0, (0.0, 3.0))
    whole = sn.Partitioned(
        lambda t, q, p: p + 0.1 * p**3, lambda t, q, p: -np.sin(q + t), Q0, P0, (0.0, 3.0), separable=False
    )
    wanted = sn.solve(plain, "verlet", steps=30).y
    found = sn.solve(plain if separable else whole, "lobatto_iiia_iiib2", steps=30).y
    assert np.max(np.abs(found - wanted)) < SAME_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "h"), [(NAMES[0], 0.05), (NAMES[1], 0.1), (NAMES[2], 0.3), (NAMES[3], 0.5)])
def test_the_energy_does_not_drift_in_many_steps(name, h):
    steps = 100_000
    H = energy(sn.solve(build((0.0, steps * h)), name, steps=steps, save_every=10).y)
    first, last = H[: len(H) // 10], H[-len(H) // 10 :]
    drift, oscillation = abs(last.mean() - first.mean()), np.ptp(first)
    print(f"{name}: h = {h}, drift {drift:.1e} of an oscillation {oscillation:.1e}")
    assert drift < DRIFT * oscillation + ENERGY_ROUNDING
    assert np.ptp(H) < 2.0 * oscillation + ENERGY_ROUNDING


def test_equations_without_halves_are_refused():
    with pytest.raises(TypeError, match="no q and p; use `Partitioned` or `SecondOrder`"):
        sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "lobatto_iiia_iiib4", steps=3)
    with pytest.raises(TypeError, match="a sum has no q and p"):
        sn.solve(sn.Split((lambda t, y: -y, lambda t, y: y), [1.0], (0.0, 1.0)), "lobatto_iiia_iiib4", steps=3)


def test_a_singular_stage_equation_ends_the_run_with_the_states_before():
    speed, force = (lambda t, q, p: q * q + p), (lambda t, q, p: p * p + q)
    blow_up = sn.Partitioned(speed, force, [1.0], [1.0], (0.0, 8.0), separable=False)
    solution = sn.solve(blow_up, "lobatto_iiia_iiib4", steps=8, check=False)
    assert solution.status in (sn.Status.NOT_SOLVED, sn.Status.NOT_FINITE)
    assert np.all(np.isfinite(solution.y))
