"""Gas dynamics, shallow water and sound: shocks at the right speed, orders, conservation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

GAMMA, GRAVITY, CELLS = 1.4, 9.81, 200
NEW_EXTREMA = 1e-3
FRONT_CELLS = 1.5  # within which the middle of a captured shock lies
L1_ERRORS = {"constant": 0.035, "muscl": 0.012}  # of the density; the contact is smeared
ORDER_TOLERANCE = 0.15
TUBE = so.Grid(CELLS, 0.0, 1.0, boundary="neumann")
HALF = TUBE.coordinates[0] < 0.5


def find_sod_states() -> tuple[float, float, float, float]:
    """Pressure and speed between the waves, and the densities beside the contact; Toro (2009), section 4."""
    c_left = np.sqrt(GAMMA)

    def rarefaction(p):
        return 2 * c_left / (GAMMA - 1) * (p ** ((GAMMA - 1) / (2 * GAMMA)) - 1)

    def shock(p):
        return (p - 0.1) * np.sqrt(2 / ((GAMMA + 1) * 0.125) / (p + (GAMMA - 1) / (GAMMA + 1) * 0.1))

    p = brentq(lambda p: rarefaction(p) + shock(p), 0.1, 1.0, xtol=1e-14)
    ratio, mu = p / 0.1, (GAMMA - 1) / (GAMMA + 1)
    return p, shock(p), p ** (1 / GAMMA), 0.125 * (ratio + mu) / (mu * ratio + 1)


def evaluate_sod(x: np.ndarray, t: float) -> np.ndarray:
    """The exact density of Sod's shock tube."""
    p, v, left, right = find_sod_states()
    c, c_star = np.sqrt(GAMMA), np.sqrt(GAMMA * p / left)
    shock = find_shock_speed()
    s = (x - 0.5) / t
    fan = (2 / (GAMMA + 1) - (GAMMA - 1) / ((GAMMA + 1) * c) * s) ** (2 / (GAMMA - 1))
    return np.select([s < -c, s < v - c_star, s < v, s < shock], [1.0, fan, left, right], 0.125)


def find_shock_speed() -> float:
    """By mass: right (s - v) = 0.125 s."""
    _, v, _, right = find_sod_states()
    return right * v / (right - 0.125)


@pytest.mark.parametrize("flux", ["hll", "rusanov"])
@pytest.mark.parametrize("reconstruction", L1_ERRORS)
def test_the_shock_tube_of_sod(reconstruction, flux):
    density, pressure = np.where(HALF, 1.0, 0.125), np.where(HALF, 1.0, 0.1)
    choices = {"reconstruction": reconstruction, "numerical_flux": flux}
    problem = se.euler(TUBE, density, np.zeros(CELLS), pressure, (0.0, 0.2), GAMMA, **choices)
    solution = sn.solve(problem, "ssprk3", steps=250, save_every=0)
    assert solution.statistics.rung == "traced"
    found, (x,) = solution.y[-1], TUBE.coordinates
    assert 0.125 - NEW_EXTREMA <= found[0].min() <= found[0].max() <= 1.0 + NEW_EXTREMA
    assert np.mean(np.abs(found[0] - evaluate_sod(x, 0.2))) <= L1_ERRORS[reconstruction]
    _, _, _, behind = find_sod_states()
    middle = np.interp(-(behind + 0.125) / 2, -found[0][x > 0.75], x[x > 0.75])
    assert abs(middle - (0.5 + 0.2 * find_shock_speed())) <= FRONT_CELLS / CELLS
    for k in (0, 2):  # mass and energy: nothing has reached the ends
        assert found[k].sum() == pytest.approx(problem.y0[k].sum(), rel=1e-12)
    assert found[1].sum() / CELLS == pytest.approx(0.2 * (1.0 - 0.1), rel=1e-10)  # momentum: the pressures at the ends


def test_a_dam_breaks_at_the_right_speed():
    """Stoker (1957): depth and speed behind the bore follow from the jump conditions and the rarefaction."""
    high, low, t = 2.0, 1.0, 0.05

    def speed_of_bore(d):
        return np.sqrt(GRAVITY * (d + low) / 2 * d / low)

    def velocity(d):
        return speed_of_bore(d) * (1 - low / d)

    depth = brentq(lambda d: velocity(d) - 2 * (np.sqrt(GRAVITY * high) - np.sqrt(GRAVITY * d)), low, high)
    problem = se.shallow_water(TUBE, np.where(HALF, high, low), np.zeros(CELLS), (0.0, t))
    found, (x,) = sn.solve(problem, "ssprk3", steps=150, save_every=0).y[-1], TUBE.coordinates
    middle = np.interp(-(depth + low) / 2, -found[0][x > 0.6], x[x > 0.6])
    assert abs(middle - (0.5 + t * speed_of_bore(depth))) <= FRONT_CELLS / CELLS
    assert found[0][np.argmin(np.abs(x - 0.6))] == pytest.approx(depth, abs=2e-3)
    assert low - NEW_EXTREMA <= found[0].min() <= found[0].max() <= high + NEW_EXTREMA


@pytest.mark.parametrize(("reconstruction", "least"), [("constant", 0.85), ("muscl", 1.8), ("weno5", 4.4)])
def test_sound_has_its_order_in_the_mean(reconstruction, least):
    """A wave that moves right without changing its shape; the steps are short enough for the order in space."""
    errors = []
    for n in (40, 80):
        grid = so.Grid(n, 0.0, 1.0)
        (x,) = grid.coordinates
        wave = np.sin(2 * np.pi * x)
        problem = se.acoustics(grid, 2.0 * wave, wave, (0.0, 0.1), 2.0, reconstruction=reconstruction)
        found = sn.solve(problem, "rk4", steps=60, save_every=0).y[-1, 1]
        errors.append(np.mean(np.abs(found - np.sin(2 * np.pi * (x - 0.2)))))
    assert np.log2(errors[0] / errors[1]) > least


def test_smooth_gas_is_transported_with_its_order():
    """A density wave at constant speed and pressure is an exact solution."""
    errors = []
    for n in (40, 80):
        grid = so.Grid(n, 0.0, 1.0)
        (x,) = grid.coordinates
        density = 1.0 + 0.2 * np.sin(2 * np.pi * x)
        problem = se.euler(grid, density, np.ones(n), np.ones(n), (0.0, 0.2))
        found = sn.solve(problem, "ssprk3", steps=3 * n, save_every=0).y[-1, 0]
        errors.append(np.mean(np.abs(found - 1.0 - 0.2 * np.sin(2 * np.pi * (x - 0.2)))))
    assert np.log2(errors[0] / errors[1]) > 1.8


def test_components_are_conserved_in_two_dimensions():
    grid = so.Grid((12, 10))
    x, y = grid.coordinates
    bump = 1.0 + 0.3 * np.sin(2 * np.pi * x) * np.cos(2 * np.pi * y)
    for problem in (
        se.shallow_water(grid, bump, np.stack((0.1 * bump, 0.0 * bump)), (0.0, 0.05), reconstruction="constant"),
        se.euler(grid, bump, np.zeros((2, 12, 10)), bump, (0.0, 0.05), reconstruction="constant"),
    ):
        totals = sn.solve(problem, "ssprk3", steps=20).y.sum(axis=(2, 3))
        assert np.max(np.abs(totals - totals[0])) <= 1e-11


REFUSALS = {
    "negative density": (
        lambda: se.euler(TUBE, -np.ones(CELLS), np.ones(CELLS), np.ones(CELLS), (0, 1)), "`density` must be finite and",
    ),
    "fixed values at a side": (
        lambda: se.shallow_water(so.Grid(8, boundary="dirichlet"), np.ones(8), np.ones(8), (0, 1)),
        "must be periodic or 'neumann'",
    ),
    "one velocity for two axes": (
        lambda: se.acoustics(so.Grid((4, 4)), np.ones((4, 4)), np.ones((4, 4)), (0, 1)), r"`velocity` must have the sh",
    ),
    "no ratio of specific heats": (
        lambda: se.euler(TUBE, np.ones(CELLS), np.ones(CELLS), np.ones(CELLS), (0, 1), 1.0), "`gamma` must be",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_wrong_fields_are_refused(name):
    build, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        build()
