"""Exit and reflection: closed forms of Dirichlet and Neumann problems, the order of the bias, refusals."""

from __future__ import annotations

from math import cos, exp, pi

import numpy as np
import pytest
from montecarlo.problems import brownian, gbm, interrupt_call, ou

import stepnet as sn
from stepnet.montecarlo import feynman_kac

SIGMAS = 4.5  # a right estimate is farther off with probability 7e-6
X = np.array([[0.2], [0.5], [0.7]])


def interval(t, y):
    return y[0] * (1.0 - y[0])


def disc(t, y):
    return 1.0 - y[0] ** 2 - y[1] ** 2


def zero(y):
    return 0.0 * y[0]


def one(t, y):
    return 1.0 + 0.0 * y[0]


def wave(y):
    return np.cos(pi * y[0])


def assert_near(found, exact, bias=0.0):
    assert np.all(np.abs(found.value - exact) <= SIGMAS * np.asarray(found.standard_error) + bias)


def test_the_mean_exit_time_solves_poissons_equation():
    """1/2 u'' = -1 with u = 0 at 0 and 1: u = x (1 - x); after time 4 a path has left but for a part of 1e-8."""
    found = feynman_kac(brownian(1, 4.0), zero, X, source=one, domain=interval, steps=4096, paths=4096)
    assert_near(found, X[:, 0] * (1.0 - X[:, 0]), bias=2e-3)  # of order h = 1e-3
    assert found.rung == "lanes"


def test_the_value_at_the_boundary_is_that_of_the_harmonic_function():
    """u = x^2 - y^2 is harmonic: its value inside the disc is the mean of that where paths leave."""
    x = np.array([[0.3, 0.1], [-0.5, 0.5]])
    value = lambda t, y: y[0] ** 2 - y[1] ** 2
    found = feynman_kac(brownian(2, 8.0), zero, x, domain=disc, boundary=value, steps=4096, paths=4096)
    assert_near(found, x[:, 0] ** 2 - x[:, 1] ** 2, bias=5e-3)


def test_the_boundary_has_the_terminal_values_unless_told_otherwise():
    """A martingale that stops keeps its mean: u(x) = x."""
    found = feynman_kac(brownian(1, 1.0), lambda y: y[0], X, domain=interval, steps=256, paths=4096)
    assert_near(found, X[:, 0], bias=2e-3)  # of order h = 1/256


def test_a_potential_counts_up_to_the_exit():
    """1/2 u'' = c u with u = 1 at 0 and 1: u = cosh(k (x - 1/2)) / cosh(k / 2), k^2 = 2 c."""
    c = 2.0
    found = feynman_kac(
        brownian(1, 4.0), zero, X, potential=lambda t, y: c + 0.0 * y[0], domain=interval, boundary=one,
        steps=4096, paths=4096,
    )  # fmt: skip
    assert_near(found, np.cosh(2.0 * (X[:, 0] - 0.5)) / np.cosh(1.0), bias=3e-3)


def test_the_value_at_the_boundary_may_depend_on_time():
    """With the time of exit as the value at the boundary, u is its mean."""
    found = feynman_kac(
        brownian(1, 4.0), zero, X, domain=interval, boundary=lambda t, y: t + 0.0 * y[0], steps=4096, paths=4096
    )
    assert_near(found, X[:, 0] * (1.0 - X[:, 0]), bias=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("bridge", "order"), [(True, 1.0), (False, 0.5)])
def test_the_bridge_restores_the_weak_order_of_exit_problems(bridge, order):
    steps, exit_event = np.array([64, 128, 256, 512]), sn.Event(interval, terminal=True, bridge=bridge)
    how = {"source": one, "domain": exit_event, "paths": 200_000}
    biases = [feynman_kac(brownian(1, 4.0), zero, [0.3], steps=int(n), **how).value - 0.21 for n in steps]
    assert -np.polyfit(np.log(steps), np.log(biases), 1)[0] == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("sampling", ["plain", "antithetic", "quasi"])
def test_faces_of_a_box_reflect(sampling):
    """u_t + 1/2 u'' = 0 with u' = 0 at 0 and 1: cos(pi x) exp(-pi^2 t / 2); steps of Brownian motion have no bias."""
    x = np.array([[0.0], [0.3], [1.0]])
    found = feynman_kac(brownian(1, 0.2), wave, x, reflecting=(0.0, 1.0), steps=4, paths=4096, sampling=sampling)
    assert_near(found, [cos(pi * each) * exp(-0.1 * pi**2) for each in x[:, 0]])


def test_a_box_may_be_open_on_some_sides():
    """Brownian motions above 0, below 0, between -1 and 1 and free, in one state."""
    box = (np.array([0.0, -np.inf, -1.0, -np.inf]), np.array([np.inf, 0.0, 1.0, np.inf]))
    x = np.array([0.5, -0.5, 0.5, 0.5])
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    found = feynman_kac(brownian(4, 0.04), lambda y: y @ weights, x, reflecting=box, steps=2, paths=2**14)
    W = 0.2 * np.random.default_rng(0).normal(size=2_000_000)
    mean = np.abs(0.5 + W).mean()
    folded = 1.0 - np.abs((0.5 + W + 1.0) % 4.0 - 2.0)
    assert_near(found, mean - 2.0 * mean + 4.0 * folded.mean() + 8.0 * 0.5, bias=5e-3)


def test_a_reflected_drift_reaches_its_stationary_density():
    """dy = -dt + dW reflected at 0 has the density 2 exp(-2 y); potential and source see the folded state."""
    sde = sn.SDE(lambda t, y: -1.0 + 0.0 * y, lambda t, y: 1.0 + 0.0 * y, [0.5], (0.0, 6.0))
    found = feynman_kac(sde, lambda y: y[0], reflecting=(0.0, np.inf), steps=600, paths=4096)
    assert_near(found, 0.5, bias=0.02)
    total = feynman_kac(
        sde, zero, source=lambda t, y: np.where(y[0] < 0.0, 1.0, 0.0), reflecting=(0.0, np.inf), paths=64
    )
    assert total.value == 0.0


def test_ctrl_c_keeps_the_estimate_of_an_exit_problem(monkeypatch):
    from stepnet.montecarlo import path_averages

    monkeypatch.setattr(path_averages, "MOST_NUMBERS", 2**13)
    interrupt_call(monkeypatch, path_averages, 5)
    with pytest.raises(sn.Interrupted) as interrupted:
        feynman_kac(brownian(1, 1.0), lambda y: y[0], X, domain=interval, steps=64, paths=2**22)
    assert_near(interrupted.value.solution, X[:, 0], bias=1e-2)  # of order h = 1/64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": 3}, "`domain` must be"),
        ({"boundary": one}, "`boundary` needs `domain`"),
        ({"domain": interval, "x": [1.0]}, "`domain` must be positive at each start point, found 0"),
        ({"domain": lambda t, y: y}, "`domain` must return a number"),
        ({"domain": interval, "sampling": "quasi"}, "`domain` cannot be combined with"),
        ({"domain": interval, "boundary": lambda t, y: y}, "`boundary` must return a number"),
        ({"domain": interval, "reflecting": (0.0, 1.0)}, "exclude each other"),
        ({"reflecting": 1.0}, r"`reflecting` must be a pair \(lower, upper\)"),
        ({"reflecting": (1.0, 0.0)}, "lower < upper"),
        ({"reflecting": (np.nan, 1.0)}, "lower < upper"),
        ({"reflecting": ([0.0, 0.0], 1.0)}, r"array of the shape \(1,\)"),
        ({"reflecting": (0.7, 1.0)}, "`x` must lie between the faces"),
    ],
)  # fmt: skip
def test_bad_boundaries_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        feynman_kac(**{"sde": ou(), "terminal": zero, "x": [0.5], "steps": 2, "paths": 16, **changes})


def test_reflection_needs_a_drift_that_returns_its_result():
    def fill(t, y, dy, p):
        dy[0] = -y[0]

    sde = sn.SDE(fill, gbm().diffusion, [1.0], (0.0, 1.0))
    with pytest.raises(TypeError, match="`reflecting` needs a"):
        feynman_kac(sde, zero, reflecting=(0.0, np.inf), steps=2, paths=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domain": lambda t, y: y[0] * (0.5 - y[0])}, "`domain` must be positive at each start point"),
        ({"reflecting": (0.0, 0.5)}, "`x` must lie between the faces"),
    ],
)
def test_random_starts_must_lie_inside(options, message):
    motion = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, [0.3], (0.0, 1.0))
    start = sn.montecarlo.RandomStart(lambda u: u)
    with pytest.raises(ValueError, match=message):
        sn.montecarlo.feynman_kac(motion, lambda y: y[0], start, paths=512, steps=8, **options)
