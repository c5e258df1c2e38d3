"""Parts that are given by their solutions: splitting preserves its order, norms and conserved sums."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

ORDER_TOLERANCE = 0.15
NORM = 1e-12  # of some hundred Fourier transforms


def coherent(x: np.ndarray, t: float) -> np.ndarray:
    """The coherent state of a harmonic oscillator that begins at rest at x = 1."""
    q, p = np.cos(t), -np.sin(t)
    return np.pi**-0.25 * np.exp(-((x - q) ** 2) / 2 + 1j * (p * x - t / 2 - p * q / 2))


@pytest.mark.parametrize(("scheme", "order"), [("strang", 2), ("yoshida4", 4)])
def test_schroedingers_equation_has_the_order_of_the_scheme_and_keeps_the_norm(scheme, order):
    grid = so.Grid(64, -8.0, 8.0)
    (x,) = grid.coordinates
    errors = []
    for steps in (40, 80):
        problem = se.schroedinger(grid, coherent(x, 0.0), (0.0, 2.0), x**2 / 2)
        psi = sn.solve(problem, scheme, steps=steps).y
        errors.append(np.max(np.abs(psi[-1] - coherent(x, 2.0))))
        norms = np.sum(np.abs(psi) ** 2, axis=1) * grid.cell_volume
        assert np.max(np.abs(norms - 1.0)) <= NORM
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=ORDER_TOLERANCE)


def test_a_soliton_keeps_its_shape():
    """i psi_t = -1/2 psi_xx - |psi|^2 psi has the solution exp(i (v x + (1 - v^2) t / 2)) / cosh(x - v t)."""
    grid, speed = so.Grid(128, -16.0, 16.0), 1.5
    (x,) = grid.coordinates
    exact = lambda t: np.exp(1j * (speed * x + (1 - speed**2) * t / 2)) / np.cosh(x - speed * t)
    problem = se.schroedinger(grid, exact(0.0), (0.0, 2.0), interaction=-1.0)
    found = sn.solve(problem, "strang", steps=400, save_every=0).y[-1]
    assert np.max(np.abs(found - exact(2.0))) <= 1e-4


def test_cubic_characteristics_have_order_three_for_steps_in_proportion_to_the_grid():
    """Interpolation errors h^4 of 1 / h steps; the steps are longer than any explicit scheme could take."""
    errors = []
    for n in (20, 40):
        grid = so.Grid((n, n), 0.0, 1.0)
        x, y = grid.coordinates
        wave = lambda x, y: np.sin(2 * np.pi * x) * np.cos(2 * np.pi * y)
        problem = sn.Split((se.characteristic_flow(grid, [1.3, 0.7]), still), wave(x, y), (0.0, 1.0))
        found = sn.solve(problem, "strang", steps=n // 4, save_every=0).y[-1]
        errors.append(np.max(np.abs(found - wave(x - 1.3, y - 0.7))))
    assert np.log2(errors[0] / errors[1]) > 3.0 - ORDER_TOLERANCE


def still(t, u):
    return 0.0 * u


def test_characteristics_bend_with_the_velocity():
    """Rotation by a right angle turns a bump from (1/2, 0) to (0, 1/2)."""
    grid = so.Grid((48, 48), -1.5, 1.5, boundary="neumann")
    x, y = grid.coordinates
    bump = lambda a, b: np.exp(-10 * ((x - a) ** 2 + (y - b) ** 2))
    flow = se.characteristic_flow(grid, lambda t, at: np.stack((-at[1], at[0])))
    found = sn.solve(sn.Split((flow, still), bump(0.5, 0.0), (0.0, np.pi / 2)), "strang", steps=8).y[-1]
    assert np.max(np.abs(found - bump(0.0, 0.5))) <= 2e-3


def test_flows_and_right_hand_sides_can_be_mixed():
    """Heat in Fourier space and a logistic reaction; Strang splitting of parts that do not commute has order two."""
    grid = so.Grid(32, 0.0, 2 * np.pi)
    (x,) = grid.coordinates
    laplacian, start = so.spectral_laplacian(grid), 0.5 + 0.3 * np.sin(x)
    react = lambda t, u, r: r * u * (1.0 - u)
    whole = sn.ODE(lambda t, u, r: 0.2 * laplacian(u) + r * u * (1.0 - u), start, (0.0, 1.0), (2.0,))
    exact = sn.solve(whole, "dop853", rtol=1e-12, atol=1e-12, save_every=0).y[-1]
    errors = []
    for steps in (8, 16):
        problem = sn.Split((se.heat_flow(grid, 0.2), react), start, (0.0, 1.0), (2.0,))
        solution = sn.solve(problem, "strang", steps=steps, save_at=[0.33, 1.0])
        errors.append(np.max(np.abs(solution.y[-1] - exact)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


def test_traced_flows_get_their_step_and_arguments():
    decay = sn.Flow(lambda t, y, h, k: np.exp(-k * h) * y)
    problem = sn.Split((decay, lambda t, y, k: 0.0 * y), [1.0, 2.0], (0.0, 1.0), (0.7,))
    solution = sn.solve(problem, "strang", steps=4, save_at=[0.4, 1.0])
    assert solution.statistics.rung == "traced"
    assert np.allclose(solution.y, np.exp(-0.7 * np.array([[0.4], [1.0]])) * [1.0, 2.0], rtol=1e-14)
    by_hand = sn.start(problem, "strang", steps=4).run_to(1.0)
    assert np.array_equal(by_hand.y, solution.y[-1])


def test_what_needs_right_hand_sides_is_refused():
    problem = sn.Split((sn.Flow(lambda t, y, h: y), lambda t, y: -y), [1.0], (0.0, 1.0))
    for call in (
        lambda: sn.gradient(problem, "strang", lambda y: y @ y, steps=4),
        lambda: sn.solve_ensemble(problem, "strang", y0=[[1.0], [2.0]], steps=4),
        lambda: sn.solve(problem, "strang", steps=4, events=lambda t, y: y[0] - 0.5),
        lambda: sn.solve(problem, "rk4", steps=4),
    ):
        with pytest.raises(TypeError, match="`parts` hold a `Flow`"):
            call()
    with pytest.raises(TypeError, match="`fun` of a flow must be a function"):
        sn.Flow(1.0)


def test_heat_flow_keeps_complex_fields():
    grid = so.Grid(16, 0.0, 2 * np.pi)
    wave = np.exp(1j * grid.coordinates[0])
    assert np.allclose(se.heat_flow(grid, 0.5).fun(0.0, wave, 1.0), np.exp(-0.5) * wave, rtol=NORM)


@pytest.mark.parametrize("order", [3, 5])
def test_characteristics_see_no_end_of_a_periodic_grid(order):
    """Fields that are shifted by half of the grid are transported alike."""
    grid, field = so.Grid(64, 0.0, 1.0), np.random.default_rng(0).normal(size=64)
    flow = se.characteristic_flow(grid, [1.0], order).fun
    shifted = np.roll(flow(0.0, np.roll(field, 32), 0.4 / 64), -32)
    assert np.allclose(flow(0.0, field, 0.4 / 64), shifted, rtol=0, atol=NORM)
