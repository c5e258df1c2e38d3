"""Lyapunov exponents are those of closed forms and of the literature, within their error bars."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet.engines import numba_engine
from stepnet.stability import LyapunovSpectrum, lyapunov

SUM = 1e-5  # of the sum of all exponents, the mean divergence: RK4 at h = 0.005 errs by (14.6 h)^5 / (120 h) = 3e-6


def lorenz(t, y):
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def henon_heiles(t, q):
    return [-q[0] - 2 * q[0] * q[1], -q[1] - q[0] ** 2 + q[1] ** 2]


def test_linear_problems_have_the_real_parts_of_their_eigenvalues():
    """A matrix that is not normal, with eigenvalues 0.3 and -0.2 +- 2i."""
    T = np.array([[1.0, 0.5, -0.3], [0.0, 1.0, 2.0], [0.4, 0.0, 1.0]])
    A = T @ np.array([[0.3, 0.0, 0.0], [0.0, -0.2, 2.0], [0.0, -2.0, -0.2]]) @ np.linalg.inv(T)
    problem = sn.ODE(lambda t, y: A @ y, [1e-9, 0.0, 0.0], (0.0, 70.0))
    found = lyapunov(problem, "rk4", every=0.5, transient=15.0, steps=14_000)
    turns = 1.0 / 55.0  # the rates of a rotating pair oscillate; their mean over the span is off by less
    np.testing.assert_allclose(found.exponents, [0.3, -0.2, -0.2], atol=turns)
    assert found.exponents[0] == pytest.approx(0.3, abs=2e-5)  # exp(-0.5 * 15) / 55 of the other directions is left
    assert found.exponents.sum() == pytest.approx(np.trace(A), abs=1e-6)


def test_lorenz_has_the_spectrum_of_the_literature():
    """0.906, 0, -14.572 and the dimension 2.062; Sprott (2003), Chaos and Time-Series Analysis."""
    problem = sn.ODE(lorenz, [1.0, 1.0, 20.0], (0.0, 310.0))
    found = lyapunov(problem, "rk4", every=0.5, transient=10.0, steps=62_000)
    assert (found.standard_errors < 0.05).all()
    assert (np.abs(found.exponents - [0.9056, 0.0, -14.5723]) < 4 * found.standard_errors).all()
    assert found.exponents.sum() == pytest.approx(-10 - 1 - 8 / 3, abs=SUM)
    assert found.dimension == pytest.approx(2.062, abs=0.005)
    assert found.rates.shape == (600, 3)


def test_fewer_exponents_are_the_largest_ones():
    problem = sn.ODE(lorenz, [1.0, 1.0, 20.0], (0.0, 20.0))
    whole = lyapunov(problem, "rk4", every=0.5, steps=4000)
    some = lyapunov(problem, "rk4", every=0.5, steps=4000, exponents=1)
    assert some.rates.shape == (40, 1)
    late = slice(32, None)  # the first vectors differ, so rates agree after they have aligned
    np.testing.assert_allclose(some.rates[late, 0], whole.rates[late, 0], atol=1e-4)


def test_exponents_of_a_hamiltonian_problem_are_pairs():
    """Verlet is symplectic: the sum of all vanishes to rounding, and pairs +-x appear as directions align."""
    problem = sn.SecondOrder(henon_heiles, [0.0, -0.25], [0.42, 0.0], (0.0, 500.0))
    found = lyapunov(problem, "verlet", steps=20_000)
    np.testing.assert_allclose(found.exponents + found.exponents[::-1], 0, atol=2e-3)  # 1 / T
    assert found.exponents.sum() == pytest.approx(0, abs=1e-9)
    assert found.exponents[0] > 3 * found.standard_errors[0]


def test_adaptive_and_fixed_steps_agree():
    problem = sn.ODE(lambda t, y: [0.5 * y[0], -y[1]], [0.1, 0.1], (0.0, 4.0))
    found = lyapunov(problem, "dopri5", rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.exponents, [0.5, -1.0], atol=0.5)  # directions still turn
    np.testing.assert_allclose(found.exponents, lyapunov(problem, "rk4", steps=4000).exponents, atol=1e-7)


def lorenz96(t, y, force):
    return (np.roll(y, -1) - np.roll(y, 2)) * np.roll(y, 1) - y + force * (1 + 0.1 * np.cos(t)) / (1 + 0.01 * y**2)


@pytest.mark.parametrize("name", ["heun3", "dopri5", "williamson3"])
def test_tangents_of_one_state_are_those_of_members_with_their_own_states(name, monkeypatch):
    """Nine tangents leave lanes empty, and seven steps end in the second copy of the tangents."""
    problem = sn.ODE(lorenz96, 8 + 0.1 * np.sin(np.arange(10)), (0.5, 1.7), args=(8.0,))
    build, built = numba_engine.build_tangent_block, []
    monkeypatch.setattr(numba_engine, "build_tangent_block", lambda *how: built.append(build(*how)) or built[-1])
    found = lyapunov(problem, name, every=0.4, steps=21, exponents=9)
    monkeypatch.setattr(numba_engine, "build_tangent_block", lambda *how: None)
    wanted = lyapunov(problem, name, every=0.4, steps=21, exponents=9)
    np.testing.assert_allclose(found.rates, wanted.rates, rtol=0, atol=1e-11)
    assert built[0] is not None


def test_failures_of_shared_states_say_where_they_are():
    problem = sn.ODE(lambda t, y: [y[0] ** 2, -y[1]], [1.0, 1.0], (0.0, 4.0))
    with pytest.raises(sn.SolveFailed):
        lyapunov(problem, "rk4", steps=400)


def test_dimensions_of_fixed_points_and_volumes():
    def dimension(*exponents):
        return LyapunovSpectrum(np.arange(2.0), np.array([exponents])).dimension

    assert dimension(-1.0, -2.0) == 0
    assert dimension(1.0, 0.5) == 2
    assert dimension(1.0, 0.0, -2.0) == 2.5
    assert np.isnan(LyapunovSpectrum(np.arange(2.0), np.ones((1, 2))).standard_errors).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exponents": 4}, "`exponents` must be at most 3"),
        ({"every": 0.0}, "`every`"),
        ({"transient": 30.0}, "`transient` must leave some"),
        ({"steps": 30, "every": 0.5}, "`steps` must be a multiple of the 40 pieces"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lyapunov(sn.ODE(lorenz, [1.0, 1.0, 20.0], (0.0, 20.0)), "rk4", **options)
    with pytest.raises(ValueError, match="`problem` must have a finite time span"):
        lyapunov(sn.ODE(lorenz, [1.0, 1.0, 20.0], (1.0, 0.0)), "rk4", steps=10)
