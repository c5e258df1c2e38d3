"""States of any shape and number type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numba_engine.runs.families import ADAPTIVE, FIXED, every_family, with_state

import stepnet as sn

SINGLE = 2e-4  # 300 float32 operations of 6e-8 each, and amplification
ROUNDING = 1e-13  # the same operations in another order

rungs = pytest.mark.parametrize("rung", ["compiled", "python"])


@pytest.fixture
def on(monkeypatch, request):
    """Solve on the rung of the test and make sure that it was that one."""
    rung = request.getfixturevalue("rung")
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")

    def solve(problem, scheme, **how):
        solution = sn.solve(problem, scheme, **how)
        assert solution.statistics.rung == rung, solution.statistics.rung_reason
        return solution

    return solve


# ---- shapes ---------------------------------------------------------------------------------------------------------


def decay(t, y):
    return -y * (1.0 + t)


def force(t, q):
    return -q


def drift(t, q, p):
    return p + 0.1 * q


def kick(t, q, p):
    return -q - 0.1 * p


EMPTY = {
    "ODE": (lambda: sn.ODE(decay, [], (0.0, 1.0)), ["rk4", "dopri5", "carpenter_kennedy54", "rkl2", "ab4"]),
    "Partitioned": (lambda: sn.Partitioned(force, force, [], [], (0.0, 1.0)), ["verlet", "rk4", "ab4"]),
    "not separable": (lambda: sn.Partitioned(drift, kick, [], [], (0.0, 1.0), separable=False), ["rk4", "rkl2"]),
    "SecondOrder": (lambda: sn.SecondOrder(force, [], [], (0.0, 1.0)), ["verlet", "leapfrog_two_step", "rk4"]),
    "Split": (lambda: sn.Split((decay, force), [], (0.0, 1.0)), ["strang", "rk4", "ab4"]),
}


@rungs
@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_state_takes_its_steps(on, rung, kind):
    make, schemes = EMPTY[kind]
    for scheme in schemes:
        solution = on(make(), scheme, steps=6)
        assert solution.success
        assert solution.y.shape == (7, 0)
    adaptive = on(make(), "dopri5")
    assert adaptive.success
    assert adaptive.t[-1] == 1.0


@rungs
def test_a_number_is_a_state(on, rung):
    solution = on(sn.ODE(decay, 1.0, (0.0, 1.0)), "rk4", steps=50)
    assert solution.y.shape == (51,)
    assert solution.y[-1] == pytest.approx(np.exp(-1.5), rel=1e-7)  # 50 steps of order 4
    flat = on(sn.ODE(decay, [1.0], (0.0, 1.0)), "rk4", steps=50)
    assert np.array_equal(solution.y, flat.y[:, 0])


@rungs
def test_a_number_is_a_state_in_place(on, rung):
    def in_place(t, y, dy):
        dy[0] = -y[0]

    solution = on(sn.ODE(in_place, 1.0, (0.0, 1.0)), "rk4", steps=50)
    assert solution.y.shape == (51,)
    assert solution.y[-1] == pytest.approx(np.exp(-1.0), rel=1e-8)  # 50 steps of order 4


@rungs
@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 2), (1, 1)])
def test_a_state_may_have_any_shape(on, rung, shape):
    y0 = 1.0 + np.arange(np.prod(shape)).reshape(shape)
    solution = on(sn.ODE(decay, y0, (0.0, 1.0)), "dop853", rtol=1e-10)
    assert solution.y.shape == (len(solution.t), *shape)
    exact = np.multiply.outer(np.exp(-solution.t - solution.t**2 / 2), y0)
    assert np.allclose(solution.y, exact, rtol=1e-8, atol=0)  # a hundred tolerances


@rungs
def test_rows_and_columns_of_a_state_are_told_apart(on, rung):
    def turn(t, y):
        dy = np.empty_like(y)
        for i in range(2):
            for j in range(3):
                dy[i, j] = (10.0 * i + j) * t
        return dy

    solution = on(sn.ODE(turn, np.zeros((2, 3)), (0.0, 1.0)), "rk4", steps=2)
    assert np.allclose(solution.y[-1], [[0.0, 0.5, 1.0], [5.0, 5.5, 6.0]], rtol=ROUNDING, atol=0)


@rungs
@pytest.mark.parametrize("scheme", ["verlet", "rk4", "leapfrog_two_step"])
def test_positions_and_velocities_keep_their_shape(on, rung, scheme):
    q0, v0 = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    solution = on(sn.SecondOrder(force, q0, v0, (0.0, 1.0)), scheme, steps=200)
    assert solution.q.shape == solution.v.shape == (201, 2, 3)
    assert solution.y.shape == (201, 12)
    # order 2 with h = 0.005 on an oscillator
    assert np.allclose(solution.q[-1], q0 * np.cos(1.0) + v0 * np.sin(1.0), atol=1e-4)
    assert np.allclose(solution.v[-1], v0 * np.cos(1.0) - q0 * np.sin(1.0), atol=1e-4)


@rungs
def test_a_number_for_positions_and_momenta(on, rung):
    solution = on(sn.Partitioned(force, force, 1.0, 0.5, (0.0, 1.0)), "verlet", steps=10)
    assert solution.q.shape == solution.p.shape == (11,)
    wide = on(sn.Partitioned(force, force, [1.0], [0.5], (0.0, 1.0)), "verlet", steps=10)
    assert np.array_equal(solution.y, wide.y)


def test_nested_lists_and_integers_become_float64():
    solution = sn.solve(sn.ODE(decay, [[1, 2], [3, 4]], (0, 1)), "rk4", steps=3)
    assert solution.y.dtype == np.float64
    assert solution.y.shape == (4, 2, 2)


# ---- number types ---------------------------------------------------------------------------------------------------


def in_single(problem):
    single = replace(problem, **{name: getattr(problem, name).astype(np.float32) for name in _state_names(problem)})
    assert single.initial.dtype == np.float32
    return single


def _state_names(problem):
    return [name for name in ("y0", "q0", "p0", "v0") if hasattr(problem, name)]


SINGLE_FAMILIES = [family for family in (*FIXED, ADAPTIVE[0], ADAPTIVE[2]) if family.label != "split in three"]


@pytest.mark.parametrize("family", SINGLE_FAMILIES, ids=lambda family: family.label)
def test_float32_is_kept_and_near_float64(family):
    how = {} if "steps" in family.how else {"rtol": 1e-4, "atol": 1e-5}
    single = family.solve(in_single(family.problem()), **how)
    double = family.solve(**how)
    assert single.y.dtype == np.float32
    assert single.statistics.rung == "compiled"
    assert np.max(np.abs(single.y[-1] - double.y[-1])) < SINGLE
    assert np.max(np.abs(single.y[-1] - double.y[-1])) > 0  # it did run in float32


def test_float32_reaches_the_python_right_hand_side(monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", "python")
    seen = set()

    def spy(t, y):
        seen.add(y.dtype)
        return -y

    solution = sn.solve(sn.ODE(spy, np.float32([1, 2]), (0, 1)), "dopri5", rtol=1e-4)
    assert seen == {np.dtype(np.float32)}
    assert solution.y.dtype == np.float32


def test_float32_with_default_tolerances_completes():
    """rtol = 1e-6 is near the rounding of float32; the run must not stall."""
    solution = sn.solve(sn.ODE(decay, np.float32([1, 2]), (0, 2)), "dopri5")
    assert solution.success
    assert np.allclose(solution.y[-1], np.array([1, 2]) * np.exp(-4), atol=1e-6)


def rotate(t, z):
    return np.array([(0.3j - 0.1) * z[0] * z[1], 1j * np.cos(t) * z[0] - 0.2 * z[1] * z[1]])


def rotate_real(t, y):
    a, b = y[0] + 1j * y[1], y[2] + 1j * y[3]
    da, db = (0.3j - 0.1) * a * b, 1j * np.cos(t) * a - 0.2 * b * b
    return np.array([da.real, da.imag, db.real, db.imag])


Z0 = np.array([1.0 + 0.5j, -0.3 + 0.8j])


@rungs
@pytest.mark.parametrize("scheme", ["rk4", "carpenter_kennedy54", "rkl2", "ab4", "dop853"])
def test_complex_states_equal_their_real_form(on, rung, scheme):
    complex_ = on(sn.ODE(rotate, Z0, (0.0, 2.0)), scheme, steps=30)
    real = on(sn.ODE(rotate_real, Z0.view(float), (0.0, 2.0)), scheme, steps=30)
    assert complex_.y.dtype == np.complex128
    assert complex_.y.shape == (31, 2)
    assert np.allclose(complex_.y.view(float), real.y, rtol=0, atol=ROUNDING)


@rungs
@pytest.mark.parametrize("scheme", ["verlet", "leapfrog_two_step", "rk4"])
def test_complex_oscillators_move_as_two_real_ones(on, rung, scheme):
    q0, v0 = np.array([1.0 + 2.0j]), np.array([0.5 - 1.0j])
    complex_ = on(sn.SecondOrder(force, q0, v0, (0.0, 1.0)), scheme, steps=20)
    real = on(sn.SecondOrder(force, q0.view(float), v0.view(float), (0.0, 1.0)), scheme, steps=20)
    assert np.allclose(complex_.q.view(float), real.q, rtol=0, atol=ROUNDING)
    assert np.allclose(complex_.v.view(float), real.v, rtol=0, atol=ROUNDING)


@rungs
def test_complex_parts_add_up(on, rung):
    def first(t, z):
        return 1j * z

    def second(t, z):
        return -0.5 * z * t

    for scheme in ("strang", "dop853"):
        solution = on(sn.Split((first, second), Z0, (0.0, 1.0)), scheme, steps=200)
        # the parts commute, so splitting is exact up to the inner rk4
        assert np.allclose(solution.y[-1], Z0 * np.exp(1j - 0.25), rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["rms", "max"])
def test_the_error_of_a_complex_state_is_its_modulus(norm):
    """Turning the initial state by a phase turns the solution, so the steps must stay where they were."""
    runs = []
    for phase in (0.0, 0.3, np.pi / 4, 2.0):
        z0 = np.array([np.exp(1j * phase), 2.0 * np.exp(1j * phase)])
        runs.append(sn.solve(sn.ODE(spiral, z0, (0.0, 5.0)), "dopri5", rtol=1e-6, atol=1e-12, norm=norm).t)
    assert len(runs[0]) > 20
    for other in runs[1:]:
        assert np.allclose(other, runs[0], rtol=1e-8, atol=0)  # error norms agree to rounding / error = 1e-16 / 1e-7


def spiral(t, z):
    return (2.0j - 0.3) * z


def test_complex64_becomes_complex128():
    assert sn.ODE(rotate, Z0.astype(np.complex64), (0, 1)).y0.dtype == np.complex128


def test_mixed_positions_and_momenta_take_the_wider_type():
    problem = sn.Partitioned(force, force, np.float32([1.0]), np.array([1.0]), (0, 1))
    assert problem.q0.dtype == problem.p0.dtype == np.float64


@every_family
def test_the_initial_state_is_copied(family):
    problem = family.problem()
    mine = problem.initial.copy()
    copy = with_state(problem, mine)
    mine[:] = 99.0
    assert np.array_equal(family.solve(copy).y, family.solve().y)
