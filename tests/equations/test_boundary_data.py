"""Boundary values that depend on arguments: gradients with respect to them, in every equation with free sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from equations.problems import SPAN, smooth

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

DIFFERENCE = 1e-7  # of central differences with steps of 1e-4, relative
ROUNDING = 1e-13
STEPS = 30
GRID = so.Grid((7, 6), 0.0, 1.0, boundary=[
    (so.dirichlet(lambda t, level, profile: level * np.cos(3.0 * t)), so.neumann(lambda t, level, profile: profile)),
    (so.robin(1.0, 0.5, lambda t, level, profile: level), "neumann"),
])  # fmt: skip
DATA = (0.7, np.linspace(-0.4, 0.5, 6))
EQUATIONS = {
    "heat": (lambda u: se.heat(GRID, u, SPAN, 0.7, source=lambda t: np.sin(t)), "rk4"),
    "heat along axes": (lambda u: se.heat(GRID, u, SPAN, 0.7), "adi"),
    "implicit heat": (lambda u: se.heat(GRID, u, SPAN, 0.7), "trapezoid"),
    "diffusion": (lambda u: se.diffusion(GRID, u, SPAN, u * u), "rk4"),
    "wave": (lambda u: se.wave(GRID, u, 0.1 * u, SPAN, 1.3), "verlet"),
    "transport": (lambda u: se.transport(GRID, u, SPAN, np.stack([u, -u])), "ssprk3"),
    "advection and diffusion": (lambda u: se.advection_diffusion(GRID, u, SPAN, [0.8, -0.3], 0.2), "rk4"),
    "burgers": (lambda u: se.burgers(GRID, u, SPAN, 0.1, reconstruction="muscl"), "ssprk3"),
    "allen_cahn": (lambda u: se.allen_cahn(GRID, u, SPAN, 0.5), "rk4"),
    "gray_scott": (lambda u: se.gray_scott(GRID, np.stack((u, 0.3 * u)), SPAN, (0.2, 0.1)), "rk4"),
    "fitzhugh_nagumo": (lambda u: se.fitzhugh_nagumo(GRID, np.stack((u, 0.3 * u)), SPAN, 0.2), "rk4"),
}  # fmt: skip


def squares(y):
    return 0.5 * float(np.sum(y * y)), y


@pytest.mark.parametrize("name", EQUATIONS)
def test_gradients_with_respect_to_boundary_data_are_exact(name):
    build, scheme = EQUATIONS[name]
    problem = se.add_boundary_data(build(smooth(GRID)), DATA)
    found = sn.gradient(problem, scheme, squares, steps=STEPS)
    turned = 0.5, np.random.default_rng(0).normal(size=6)

    def evaluate(size):
        moved = tuple(each + size * d for each, d in zip(DATA, turned, strict=True))
        args = (*problem.args[:-2], *moved)
        return squares(sn.solve(replace(problem, args=args), scheme, steps=STEPS, save_every=0).y[-1])[0]

    slope = found.args[-2] * turned[0] + found.args[-1] @ turned[1]
    assert slope == pytest.approx((evaluate(1e-4) - evaluate(-1e-4)) / 2e-4, rel=DIFFERENCE)


def test_data_give_the_solution_of_fixed_values():
    """And the limit of the equation, which does not depend on them."""
    u = smooth(GRID)
    fixed = so.Grid((7, 6), 0.0, 1.0, boundary=[
        (so.dirichlet(lambda t: 0.7 * np.cos(3.0 * t)), so.neumann(DATA[1])), (so.robin(1.0, 0.5, 0.7), "neumann"),
    ])  # fmt: skip
    problem, plain = se.add_boundary_data(se.heat(GRID, u, SPAN), DATA), se.heat(fixed, u, SPAN)
    found, wanted = (sn.solve(each, "rk4", steps=STEPS).y for each in (problem, plain))
    assert np.max(np.abs(found - wanted)) <= ROUNDING
    assert se.find_largest_step(problem, "rk4") == se.find_largest_step(plain, "rk4")
    with pytest.raises(ValueError, match="`steps` must be at least"):
        sn.solve(problem, "euler", steps=1)


def test_own_equations_hand_data_to_their_operators():
    lap = so.laplacian(GRID)
    problem = sn.ODE(lambda t, u, level, profile: lap(u, (t, level, profile)), smooth(GRID), SPAN, DATA)
    wanted = sn.gradient(se.add_boundary_data(se.heat(GRID, smooth(GRID), SPAN), DATA), "rk4", squares, steps=STEPS)
    found = sn.gradient(problem, "rk4", squares, steps=STEPS)
    assert np.allclose(found.args[1], wanted.args[2], rtol=1e-12)


def test_problems_without_such_sides_are_refused():
    plain = so.Grid(8, boundary=so.dirichlet(lambda t: t))
    with pytest.raises(TypeError, match="must have a grid whose boundary functions take t and 1 data"):
        se.add_boundary_data(se.heat(plain, np.ones(8), SPAN), [1.0])
    with pytest.raises(TypeError, match="`problem` must be an equation"):
        se.add_boundary_data(sn.ODE(lambda t, y: y, [1.0], SPAN), [1.0])
    with pytest.raises(ValueError, match="`data` must"):
        se.add_boundary_data(se.heat(plain, np.ones(8), SPAN), [])
    with pytest.raises(ValueError, match=r"`data\[0\]` must be finite"):
        se.add_boundary_data(se.heat(GRID, smooth(GRID), SPAN), (np.nan, DATA[1]))
