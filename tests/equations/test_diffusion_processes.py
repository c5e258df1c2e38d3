"""Densities and expectations on grids agree with closed forms and with ensembles of paths."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

PULL, NOISE, END = 1.0, 0.5, 1.0
ORDER_TOLERANCE = 0.15
MASS = 1e-13
ORNSTEIN = sn.SDE(
    lambda t, y, k, s: -k * y, lambda t, y, k, s: s + 0.0 * y, [0.5], (0.0, END), (PULL, NOISE), seed=3
)  # fmt: skip
COUPLED = sn.SDE(
    lambda t, y: [y[1], -y[0] - 0.5 * y[1]], lambda t, y: [[0.5, 0.0], [0.3, 0.4]], [0.3, 0.0], (0.0, 0.5),
    noise="additive", seed=4,
)  # fmt: skip


def line(n: int, width: float = 3.0) -> so.Grid:
    return so.Grid(n, -width, width, boundary="neumann")


def normal(x, mean, variance):
    return np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


def test_the_density_of_a_linear_process_has_order_two_and_its_mass():
    errors, variance = [], 0.1
    for n in (60, 120):
        grid = line(n)
        (x,) = grid.coordinates
        problem = se.fokker_planck(grid, normal(x, 0.5, variance), (0.0, END), ORNSTEIN)
        solution = sn.solve(problem, "rk4", steps=300, save_every=100)
        assert solution.statistics.rung == "traced"
        masses = solution.y.sum(axis=1) * grid.cell_volume
        assert np.max(np.abs(masses - masses[0])) <= MASS
        assert solution.y.min() >= 0.0
        end = variance * np.exp(-2 * PULL * END) + NOISE**2 / (2 * PULL) * (1 - np.exp(-2 * PULL * END))
        errors.append(np.max(np.abs(solution.y[-1] - normal(x, 0.5 * np.exp(-PULL * END), end))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


def test_stationary_profiles_between_two_cells_are_exact():
    """A potential whose force is constant: exp(-2 V / s^2) at the cells has no flux."""
    sde = sn.SDE(lambda t, y: 0.0 * y - 2.0, lambda t, y: 0.7 + 0.0 * y, [0.0], (0.0, 1.0))
    grid = line(20, 1.0)
    (x,) = grid.coordinates
    problem = se.fokker_planck(grid, np.exp(-2 * 2.0 * x / 0.49), (0.0, 1.0), sde)
    slopes = problem.fun(0.0, problem.y0)
    assert np.max(np.abs(slopes)) <= 1e-12 * np.max(problem.y0) / grid.spacing[0] ** 2


def test_a_density_is_the_histogram_of_an_ensemble():
    """Within five standard errors in every bin, discretisation of paths and grid included."""
    paths, grid, variance = 40_000, line(120), 0.1
    (x,) = grid.coordinates
    start = 0.5 + np.sqrt(variance) * np.random.default_rng(5).normal(size=(paths, 1))
    ends = sn.solve_ensemble(ORNSTEIN, "sriw1", y0=start, steps=20).y_end[:, 0]
    problem = se.fokker_planck(grid, normal(x, 0.5, variance), (0.0, END), ORNSTEIN)
    density = sn.solve(problem, "rk4", steps=300, save_every=0).y[-1]
    share = density.reshape(-1, 6).sum(axis=1) * grid.cell_volume
    counts, _ = np.histogram(ends, np.linspace(-3.0, 3.0, 21))
    error = np.sqrt(np.maximum(share * (1 - share), 1 / paths) / paths)
    assert np.max(np.abs(counts / paths - share) / error) <= 5.0


def test_expectations_agree_with_the_closed_form_and_with_paths():
    grid = line(80)
    (x,) = grid.coordinates
    problem = se.backward_kolmogorov(grid, x**2, (0.0, END), ORNSTEIN)
    found = sn.solve(problem, "rk4", steps=300, save_every=0).y[-1]
    exact = x**2 * np.exp(-2 * PULL) + NOISE**2 / (2 * PULL) * (1 - np.exp(-2 * PULL))
    inside = np.abs(x) < 1.0
    assert np.max(np.abs(found - exact)[inside]) <= 1e-9  # a quadratic polynomial; the sides are far
    estimate = sn.montecarlo.feynman_kac(ORNSTEIN, lambda y: y[0] ** 2, [0.5], paths=20_000, steps=100)
    assert abs(np.interp(0.5, x, found) - estimate.value) <= 4 * estimate.standard_error + 3e-3  # of 100 steps


def test_potentials_and_sources_enter_the_expectation():
    """With a constant V = c and source = 1 for terminal values 0: u = (1 - exp(-c T)) / c."""
    grid, c = line(20), 0.7
    problem = se.backward_kolmogorov(
        grid, np.zeros(20), (0.0, END), ORNSTEIN, potential=lambda t, y, k, s: c, source=lambda t, y, k, s: 1.0
    )
    found = sn.solve(problem, "rk4", steps=60, save_every=0).y[-1]
    assert np.max(np.abs(found - (1 - np.exp(-c * END)) / c)) <= 1e-8


def test_coupled_noise_in_the_plane():
    """Second moments of a linear process, whose covariance solves S' = A S + S A' + G G'."""
    grid = so.Grid((48, 48), -2.5, 2.5, boundary="neumann")
    x, y = grid.coordinates
    start = normal(x, 0.3, 0.15) * normal(y, 0.0, 0.15)
    solution = sn.solve(se.fokker_planck(grid, start, COUPLED.t_span, COUPLED), "rk4", steps=50, save_every=0)
    density = solution.y[-1] * grid.cell_volume
    assert density.sum() == pytest.approx(start.sum() * grid.cell_volume, abs=MASS)
    A, G = np.array([[0.0, 1.0], [-1.0, -0.5]]), np.array([[0.5, 0.0], [0.3, 0.4]])
    moments = lambda t, s: np.ravel(A @ s.reshape(2, 2) + s.reshape(2, 2) @ A.T + G @ G.T)
    exact = sn.solve(sn.ODE(moments, np.ravel(0.15 * np.eye(2)), (0.0, 0.5)), "dopri5").y[-1].reshape(2, 2)
    mean = np.array([(density * x).sum(), (density * y).sum()])
    found = [(density * a * b).sum() - m for a, b, m in ((x, x, mean[0] ** 2), (x, y, mean[0] * mean[1]))]
    assert found == pytest.approx([exact[0, 0], exact[0, 1]], abs=0.01)  # h^2 of this grid
    backward = se.backward_kolmogorov(grid, x * y, COUPLED.t_span, COUPLED)
    expected = sn.solve(backward, "rk4", steps=50, save_every=0).y[-1]
    assert (expected * start).sum() * grid.cell_volume == pytest.approx(exact[0, 1] + mean.prod(), abs=0.01)


def test_stratonovich_equations_have_their_noise_induced_drift():
    """dx = s x o dW: E[x] = x0 exp(s^2 t / 2)."""
    sde = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 0.3 * y, [1.0], (0.0, 1.0), calculus="stratonovich")
    grid = so.Grid(40, 0.0, 4.0, boundary=[("neumann", so.neumann(1.0))])
    (x,) = grid.coordinates
    for each in (sde, sde.convert("ito")):
        problem = se.backward_kolmogorov(grid, x, (0.0, 1.0), each)
        found = sn.solve(problem, "rk4", steps=300, save_every=0).y[-1]
        assert np.interp(1.05, x, found) == pytest.approx(1.05 * np.exp(0.045), rel=1e-4)


REFUSALS = {
    "functions of single states": (
        lambda: se.fokker_planck(
            line(8), np.ones(8), (0, 1), sn.SDE(lambda t, y: [abs(float(y[0]))], lambda t, y: 1.0 + y, [0.0], (0, 1))
        ),
        TypeError, "`drift` of `sde` must also take an array of states",
    ),
    "a state of another dimension": (
        lambda: se.fokker_planck(line(8), np.ones(8), (0, 1), COUPLED), ValueError, "`sde` must have a state of the",
    ),
    "time that runs backward": (
        lambda: se.backward_kolmogorov(line(8), np.ones(8), (1, 0), ORNSTEIN), ValueError, "`t_span` must begin before",
    ),
    "nodes": (
        lambda: se.fokker_planck(so.Grid(8, centring="node"), np.ones(8), (0, 1), ORNSTEIN), ValueError, "in cells",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_processes_that_do_not_fit_are_refused(name):
    build, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        build()


def test_diffusion_backward_in_time_is_refused():
    grid = line(20)
    with pytest.raises(ValueError, match="diffusion cannot be run backward in time"):
        sn.solve(se.heat(grid, np.ones(20), (1.0, 0.0)), "rk4", steps=10_000)
    back = se.transport(so.Grid(20), np.arange(20.0), (1.0, 0.0), [1.0], order=1)
    end = sn.solve(back, "euler", steps=20).y[-1]
    assert np.allclose(end, np.arange(20.0), atol=1e-12)  # a period with steps of one cell is exact
