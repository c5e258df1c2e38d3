"""Manufactured solutions: the order in space at every kind of side and in time, and where schemes lose their order."""

from __future__ import annotations

from functools import partial
from math import ceil

import numpy as np
import pytest

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

ORDER_TOLERANCE = 0.15
WORSE, BETTER = 0.15, 0.5  # sides of first order locally may gain on coarse grids
WENO_ERROR = 0.035  # mean over 200 points after one turn; steps and corners dominate
SPAN = (0.0, 0.2)


def exact(t, x):
    return 1.0 + 0.4 * np.exp(-t) * np.sin(2.0 * x + 0.4)


def slope(t, x):
    return 0.8 * np.exp(-t) * np.cos(2.0 * x + 0.4)


def change(t, x):
    return -0.4 * np.exp(-t) * np.sin(2.0 * x + 0.4)


def bend(t, x):
    return -1.6 * np.exp(-t) * np.sin(2.0 * x + 0.4)


def side(kind: str, x: float, normal: float) -> so.Boundary:
    """The condition of a kind that the exact solution satisfies."""
    if kind == "dirichlet":
        return so.dirichlet(lambda t: exact(t, x))
    if kind == "neumann":
        return so.neumann(lambda t: normal * slope(t, x))
    return so.robin(1.0, 0.5, lambda t: exact(t, x) + 0.5 * normal * slope(t, x))


EQUATIONS = {
    "heat": (lambda g, u: se.heat(g, u, SPAN, 0.3), lambda t, x: 0.3 * bend(t, x)),
    "diffusion": (
        lambda g, u: se.diffusion(g, u, SPAN, 0.2 * (1.0 + g.coordinates[0])),
        lambda t, x: 0.2 * (1.0 + x) * bend(t, x) + 0.2 * slope(t, x),
    ),
    "advection and diffusion": (
        lambda g, u: se.advection_diffusion(g, u, SPAN, [0.8], 0.3, order=2),
        lambda t, x: 0.3 * bend(t, x) - 0.8 * slope(t, x),
    ),
    "allen_cahn": (
        lambda g, u: se.allen_cahn(g, u, SPAN, 0.5),
        lambda t, x: 0.25 * bend(t, x) + exact(t, x) - exact(t, x) ** 3,
    ),
    "burgers": (
        lambda g, u: se.burgers(g, u, SPAN, 0.3, reconstruction="muscl"),
        lambda t, x: 0.3 * bend(t, x) - exact(t, x) * slope(t, x),
    ),
}


def build_gray_scott(grid, u):
    return se.gray_scott(grid, np.stack((u, 0.5 * u)), SPAN, (0.3, 0.2))


def build_pulse(grid, u):
    return se.fitzhugh_nagumo(grid, np.stack((u, 0.5 * u)), SPAN, 0.3)


def react(t, x):
    """The right-hand side of Gray and Scott for u = exact, v = exact / 2."""
    u = exact(t, x)
    return np.stack((
        0.3 * bend(t, x) - 0.25 * u**3 + 0.04 * (1.0 - u), 0.1 * bend(t, x) + 0.25 * u**3 - 0.05 * u,
    ))  # fmt: skip


def excite(t, x):
    """That of FitzHugh and Nagumo for the same fields."""
    u = exact(t, x)
    return np.stack((0.3 * bend(t, x) + u - u**3 / 3.0 - 0.5 * u, 0.08 * (u + 0.7 - 0.4 * u)))


SYSTEMS = {"gray_scott": (build_gray_scott, react), "fitzhugh_nagumo": (build_pulse, excite)}
RINGS = ("heat", "advection and diffusion", "allen_cahn", "burgers")


def add_sources(right_hand_side, x, continuous, t, state, *args):
    """The same for two components, v = u / 2."""
    moved = np.stack((change(t, x), 0.5 * change(t, x)))
    return right_hand_side(t, state, *args) + (moved - continuous(t, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_reactions_with_diffusion_have_order_two_in_space(name):
    """On a ring, with sources that make u = exact and v = exact / 2 solutions."""
    build, continuous = SYSTEMS[name]
    errors = []
    for n in (20, 40):
        grid = so.Grid(n, 0.0, np.pi)
        (x,) = grid.coordinates
        plain = build(grid, exact(0.0, x))
        problem = sn.ODE(partial(add_sources, plain.fun, x, continuous), plain.y0, SPAN, plain.args)
        found = sn.solve(problem, "rk4", steps=ceil(SPAN[1] / grid.spacing[0] ** 2) * 8, save_every=0).y[-1]
        errors.append(float(np.mean(np.abs(found[0] - exact(SPAN[1], x)))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", RINGS)
def test_equations_have_order_two_in_space_on_a_ring(name):
    build, continuous = EQUATIONS[name]
    errors = [measure(build, continuous, so.Grid(n, 0.0, np.pi), 8) for n in (20, 40)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


def add_source(right_hand_side, x, continuous, t, u, *args):
    """The equation with the source that makes the solution exact."""
    return right_hand_side(t, u, *args) + (change(t, x) - continuous(t, x))


def measure(build, continuous, grid: so.Grid, more: int = 1) -> float:
    """The mean error at the end, by so many steps that errors in time do not count."""
    (x,) = grid.coordinates
    plain = build(grid, exact(0.0, x))
    problem = sn.ODE(partial(add_source, plain.fun, x, continuous), plain.y0, SPAN, plain.args)
    steps = more * ceil(SPAN[1] / grid.spacing[0] ** 2)
    found = sn.solve(problem, "rk4", steps=steps, save_every=0).y[-1]
    return float(np.mean(np.abs(found - exact(SPAN[1], x))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dirichlet", "neumann", "robin"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_equations_have_order_two_in_space_at_every_side(name, kind):
    build, continuous = EQUATIONS[name]
    errors = []
    for n in (20, 40):
        sides = (side(kind, 0.0, -1.0), side(kind, 1.0, 1.0))
        errors.append(measure(build, continuous, so.Grid(n, 0.0, 1.0, boundary=[sides])))
    order = np.log2(errors[0] / errors[1])
    assert 2.0 - WORSE <= order <= 2.0 + BETTER


@pytest.mark.parametrize("kind", ["dirichlet", "neumann"])
def test_waves_have_order_two_in_space_and_time(kind):
    """A standing wave by leapfrog, with steps in proportion to the spacing."""
    errors = []
    for n in (20, 40):
        grid = so.Grid(n, 0.0, 1.0, boundary=kind)
        (x,) = grid.coordinates
        mode = np.sin(np.pi * x) if kind == "dirichlet" else np.cos(np.pi * x)
        solution = sn.solve(se.wave(grid, mode, 0 * mode, (0.0, 0.7)), "verlet", steps=n, save_every=0)
        errors.append(np.max(np.abs(solution.q[-1] - np.cos(0.7 * np.pi) * mode)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("ssprk3", 3), ("rk4", 4)])
def test_schemes_have_their_order_in_time_on_a_fixed_grid(scheme, order):
    grid = so.Grid(8, 0.0, 1.0, boundary="neumann")
    (x,) = grid.coordinates
    problem = se.allen_cahn(grid, np.cos(np.pi * x), (0.0, 1.0), 0.2)
    reference = sn.solve(problem, "dop853", rtol=1e-13, atol=1e-13, save_every=0).y[-1]
    errors = [
        np.max(np.abs(sn.solve(problem, scheme, steps=steps, save_every=0).y[-1] - reference)) for steps in (40, 80)
    ]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize(("moves", "lowest", "highest"), [(False, 3.8, 4.2), (True, 1.6, 2.4)])
def test_runge_kutta_schemes_lose_order_with_boundary_data_that_depend_on_time(moves, lowest, highest):
    """On grids refined with the steps, RK4 has order 2 in time if the values at Dirichlet sides move, else 4.

    Both solutions are exact in space: cos(w t) (1 + x), and cos(w t) times an eigenmode.  Carpenter, Gottlieb,
    Abarbanel & Don (1995), SIAM J. Sci. Comput. 16:1241.
    """
    w, end, errors = 10.0, 0.5, []
    for n in (16, 32):
        value = [(so.dirichlet(lambda t: np.cos(w * t)), so.dirichlet(lambda t: 2.0 * np.cos(w * t)))]
        grid = so.Grid(n, 0.0, 1.0, boundary=value if moves else "dirichlet")
        (x,) = grid.coordinates
        shape = 1.0 + x if moves else np.sin(np.pi * x)
        decay = 0.0 if moves else 4 * n**2 * np.sin(np.pi / (2 * n)) ** 2

        def source(t, shape=shape, decay=decay):
            return (decay * np.cos(w * t) - w * np.sin(w * t)) * shape

        problem = se.heat(grid, shape, (0.0, end), source=source)
        found = sn.solve(problem, "rk4", steps=ceil(end * n * n * 1.6), save_every=0).y[-1]
        errors.append(np.max(np.abs(found - np.cos(w * end) * shape)))
    assert lowest <= np.log2(errors[0] / errors[1]) / 2 <= highest  # steps fall by 4


@pytest.mark.slow
def test_weno_transports_the_profiles_of_jiang_and_shu():
    """A Gaussian, a square, a triangle, half an ellipse, once around: Jiang & Shu (1996), J. Comput. Phys. 126:202."""
    grid = so.Grid(200, -1.0, 1.0)
    (x,) = grid.coordinates

    def average(profile, middle):
        return (profile(x - middle - 0.005) + profile(x - middle + 0.005) + 4 * profile(x - middle)) / 6

    gauss = lambda s: np.exp(-np.log(2) / (36 * 0.005**2) * s**2)
    ellipse = lambda s: np.sqrt(np.maximum(1 - 100 * s**2, 0.0))
    start = np.where(np.abs(x + 0.7) <= 0.1, average(gauss, -0.7), 0.0)
    start = start + np.where(np.abs(x + 0.3) <= 0.1, 1.0, 0.0) + np.maximum(0.0, 1 - 10 * np.abs(x - 0.1))
    start = start + np.where(np.abs(x - 0.5) <= 0.1, average(ellipse, 0.5), 0.0)
    errors, extrema = {}, {}
    for reconstruction in ("constant", "muscl", "weno5"):
        law = so.ConservationLaw(
            grid, lambda u, axis: u, lambda u, axis: (1.0 + 0.0 * u, 1.0 + 0.0 * u), reconstruction
        )
        found = sn.solve(sn.ODE(lambda t, u, law=law: law(u, t), start, (0.0, 2.0)), "ssprk3", steps=500).y[-1]
        errors[reconstruction] = np.mean(np.abs(found - start))
        extrema[reconstruction] = max(-found.min(), found.max() - 1.0)
    assert errors["weno5"] < errors["muscl"] < errors["constant"]
    assert errors["weno5"] < WENO_ERROR
    assert extrema["muscl"] <= 1e-12
    assert extrema["weno5"] <= 2e-3  # essentially, not strictly, free of new extrema
